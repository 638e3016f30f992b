"""Calls that a signal's handler, or a finalizer, makes at any bytecode of another call of its thread."""

from __future__ import annotations

import faulthandler
import random
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import raxlog
from children import Child

PACKAGE = str(Path(raxlog.__file__).parent)
Call = Callable[[raxlog.Store], object]


def in_a_transaction(store: raxlog.Store) -> None:
    """Append to two streams."""
    with store.transaction() as tx:
        tx.stream("q").append({"n": 1})
        tx.stream("beside").append({"n": 1})


CALLED: dict[str, Call] = {
    "append": lambda store: store.stream("q").append({"n": 1}),
    "extend": lambda store: store.stream("q").extend([{"n": 1}] * 20),
    "take": lambda store: store.stream("q").group("g").read("c", count=1),
    "ack": lambda store: store.stream("q").group("g").ack(next(iter(store.stream("q"))).id),
    "wait": lambda store: store.stream("q").group("late").read("c", timeout=0.05),
    "follow": lambda store: list(store.stream("q").follow(timeout=0.02)),
    "range": lambda store: list(store.stream("q").range(count=20)),
    "len": lambda store: len(store.stream("q")),
    "trim": lambda store: store.stream("q").trim(maxlen=5),
    "transaction": in_a_transaction,
    "publish": lambda store: store.publish("a.b", {"n": 1}),
    "subscribe": lambda store: store.subscribe("a.*").close(),
    "work": lambda store: store.stream("q").group("g").worker(lambda _: None).run(burst=True),
    "compact": lambda store: store.compact(),
    "flush": lambda store: store.flush(),
    "close": lambda store: store.close(),
}
INTERRUPTING: dict[str, Call] = {
    "close": lambda store: store.close(),
    "append": lambda store: store.stream("noted").append({"n": 1}),
    "wait": lambda store: store.stream("q").group("late").read("d", timeout=0.01),
    "subscribe": lambda store: store.subscribe("b.*").close(),
    "compact": lambda store: store.compact(),
}


class Interruption:
    """A call at the N-th bytecode of raxlog's that this thread runs: where a handler runs, and a finalizer may."""

    def __init__(self, call: Callable[[], object], at: int) -> None:
        self.call, self.at = call, at
        self.bytecodes = 0
        self.outcome = "not made"
        self.seconds = 0.0

    def trace(self, frame: FrameType, _: str, __: object) -> Any:
        """For sys.settrace()."""
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return None
        frame.f_trace_opcodes = True
        return self._count

    def _count(self, _: FrameType, event: str, __: object) -> Any:
        if event == "opcode":
            self.bytecodes += 1
            if self.bytecodes == self.at:
                sys.settrace(None)
                begun = time.monotonic()
                self.outcome = outcome_of(self.call)
                self.seconds = time.monotonic() - begun
                return None
        return self._count


def outcome_of(call: Callable[[], object]) -> str:
    try:
        call()
    except (raxlog.TransactionError, raxlog.StoreClosed) as error:
        return type(error).__name__
    return "done"


def interrupted(path: Path, durability: raxlog.Durability, called: str, interrupting: str, at: int
                ) -> tuple[int, str, float, str]:
    """In a process of its own: the call's bytecodes, what came of the call within it and its seconds, and of itself."""

    def work(say: Callable[[object], None]) -> None:
        faulthandler.dump_traceback_later(60, exit=True)
        store = raxlog.open(path, durability=durability)
        stream = store.stream("q")
        stream.extend([{"n": n} for n in range(50)])
        if not stream.groups():
            stream.create_group("g", start="0")
            stream.create_group("late", start="$")
        stream.group("g").read("c", count=3)
        store.flush()
        interruption = Interruption(lambda: INTERRUPTING[interrupting](store), at)
        sys.settrace(interruption.trace)
        try:
            end = outcome_of(lambda: CALLED[called](store))
        finally:
            sys.settrace(None)
        store.close()
        with raxlog.open(path) as again:
            again.stream("q").append({"n": 1})
        say((interruption.bytecodes, interruption.outcome, interruption.seconds, end))

    with Child(work) as child:
        (said,) = child.finish()
    return tuple(said)  # type: ignore[return-value]


_counted: dict[tuple[str, str], int] = {}


def bytecodes_of(path: Path, durability: raxlog.Durability, called: str) -> int:
    """How many the call has that nothing interrupts."""
    if (durability, called) not in _counted:
        _counted[durability, called] = interrupted(path, durability, called, "close", 0)[0]
    return _counted[durability, called]


@pytest.mark.parametrize("times", [2, pytest.param(12, marks=pytest.mark.storm)])
@pytest.mark.parametrize("durability", ["commit", "buffered"])
@pytest.mark.parametrize("interrupting", INTERRUPTING)
def test_a_call_within_another_one_of_its_thread_is_done_or_refused_and_damages_neither(
    tmp_path: Path, interrupting: str, durability: raxlog.Durability, times: int
) -> None:
    seed = random.randrange(1 << 32)
    print("seed", seed)
    rng = random.Random(seed)
    outcomes: Counter[str] = Counter()
    for called in CALLED:
        bytecodes = bytecodes_of(tmp_path / f"{called}-counted.rax", durability, called)
        for at in sorted(rng.sample(range(1, bytecodes + 1), times)):
            where = f"{interrupting} at bytecode {at} of {bytecodes} of {called}"
            print(where)
            _, outcome, seconds, end = interrupted(tmp_path / f"{called}.rax", durability, called, interrupting, at)
            outcomes[outcome] += 1
            assert seconds < 10, where
            assert end == "done" or (end == "StoreClosed" and (interrupting, outcome) == ("close", "done")), where
        assert raxlog.check(tmp_path / f"{called}.rax").ok, called
    print(dict(outcomes))
    assert outcomes["done"] > 2
    assert outcomes["TransactionError"] > 2
