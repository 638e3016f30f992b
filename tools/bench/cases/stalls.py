"""How long an append waits beside a call that has much to do: the longest of those made in another thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from itertools import count

import raxlog

from ..peers import ROW
from ..rounds import Figure, Rounds
from .cliffs import of_pending, pending

_NUMBERS = count()


def stalls(rounds: Rounds) -> list[Figure]:
    """Milliseconds, at a tenth of the size and at the size. What is worked on is made ready first, not beside."""
    figures: list[Figure] = []
    with raxlog.open(rounds.folder / "stalls.rax") as store:
        for name, (size, prepare) in STALLS.items():
            figures += rounds.contest(f"longest stall beside {name}", {
                f"{many:,}": partial(_longest, store, prepare, many) for many in (size // 10, size)
            }, "ms", lower_is_better=True)
    return figures


def _longest(store: raxlog.Store, prepare: Callable[[raxlog.Stream, int], Callable[[], object]], size: int) -> float:
    work = prepare(store.stream(f"s{next(_NUMBERS)}"), size)
    beside = store.stream("beside")
    ended = threading.Event()
    waits = [0.0]

    def append() -> None:
        while not ended.is_set():
            start = time.perf_counter()
            beside.append(ROW)
            waits.append(time.perf_counter() - start)

    appender = threading.Thread(target=append)
    appender.start()
    work()
    ended.set()
    appender.join()
    return max(waits) * 1000


def _trim(stream: raxlog.Stream, size: int, refs: str) -> Callable[[], object]:
    group, ids = pending(stream, size)
    if refs == "acked":
        group.ack(*ids)
    return lambda: stream.trim(maxlen=0, refs=refs)


def _unread(stream: raxlog.Stream, size: int) -> Callable[[], object]:
    stream.extend([ROW] * size)
    return partial(stream.create_group("g", "0").read, "a", count=None)


STALLS: dict[str, tuple[int, Callable[[raxlog.Stream, int], Callable[[], object]]]] = {
    "trim, delref": (500_000, partial(_trim, refs="delref")),
    "trim, acked": (500_000, partial(_trim, refs="acked")),
    "delete_consumer, drop": (900_000, of_pending(lambda group, _: group.delete_consumer("a", pending="drop"))),
    "ack": (100_000, of_pending(lambda group, ids: group.ack(*ids))),
    "ack_delete": (100_000, of_pending(lambda group, ids: group.ack_delete(*ids))),
    "delete": (50_000, lambda stream, size: partial(stream.delete, *stream.extend([ROW] * size))),
    "read(count=None)": (200_000, _unread),
    "extend": (1_000_000, lambda stream, size: partial(stream.extend, [ROW] * size)),
}
