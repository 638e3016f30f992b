"""Calls on a store in which the N-th allocation of memory fails, for each N until none fails any more.

    LD_PRELOAD=RECORDER python out_of_memory.py FOLDER [CASE …]     prints a line of JSON a case: tried, what was wrong
    python out_of_memory.py FOLDER [CASE …]                         the same with Python's memory

The C library's memory is LMDB's, that of kernels and codecs, and Python's larger blocks; Python's, of which
_testcapi.set_nomemory refuses an allocation, is every object of its own. After each failure the store must be as before
the call, or as after it; and it goes on.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import raxlog

Call = Callable[[raxlog.Store, str], object]
MOST = 20_000  # allocations of one call
CALM = 60  # attempts in a row that raised nothing: others beside it may have taken one, or done without


def seed(store: raxlog.Store, name: str) -> None:
    """Three entries, two of them delivered; a binding, a state, something due later."""
    stream = store.stream(name)
    stream.extend([{"n": n, "x": "x" * 700} for n in range(3)])
    stream.create_group("g", start="0")
    stream.group("g").read("one", count=2)
    store.state[f"{name}:k"] = "v"
    store.bind(f"{name}.in", name)
    stream.defer({"n": "later"}, delay=3600.0)


def transaction(store: raxlog.Store, name: str) -> None:
    with store.transaction() as tx:
        tx.stream(name).append({"n": 10})
        tx.stream(name + "-other").append({"n": 11})
        tx.group(name, "g").ack(ids(store, name)[0])
        tx.state[f"{name}:k"] = "w"


def ids(store: raxlog.Store, name: str) -> list[Any]:
    return [entry.id for entry in store.stream(name).range()]


CASES: dict[str, Call] = {  # none starts a thread: Thread.start() waits for ever for one without memory to say it runs
    "append": lambda store, name: store.stream(name).append({"n": 9, "y": "y" * 900}),
    "append by a mapping of bytes": lambda store, name: store.stream(name).append({b"n": b"9" * 3000}),
    "extend": lambda store, name: store.stream(name).extend([{"n": n, "y": "y" * 50} for n in range(200)]),
    "idempotent append": lambda store, name: store.stream(name).append({"n": 9}, producer="p", idempotent_id="i"),
    "defer": lambda store, name: store.stream(name).defer({"n": 9}, delay=60.0),
    "get": lambda store, name: store.stream(name).get(LAST[name][0]),
    "range": lambda store, name: list(store.stream(name).range()),
    "backwards": lambda store, name: list(store.stream(name).range(reverse=True, count=2)),
    "len": lambda store, name: len(store.stream(name)),
    "count": lambda store, name: store.stream(name).count(),
    "info": lambda store, name: store.stream(name).info(),
    "delete": lambda store, name: store.stream(name).delete(LAST[name][1]),
    "trim": lambda store, name: store.stream(name).trim(maxlen=1, approximate=False),
    "configure": lambda store, name: store.stream(name).configure(retention=raxlog.Retention(maxlen=1000)),
    "read": lambda store, name: store.read({name: "0"}),
    "transaction": transaction,
    "state set": lambda store, name: store.state.update({f"{name}:k": "w", f"{name}:l": "x" * 5000}),
    "state get": lambda store, name: store.state.get(f"{name}:k"),
    "state delete": lambda store, name: store.state.pop(f"{name}:k", None),
    "publish": lambda store, name: store.publish(f"{name}.in", {"n": 9}),
    "bind": lambda store, name: store.bind(f"{name}.*.more", name),
    "unbind": lambda store, name: store.unbind(f"{name}.in", name),
    "create group": lambda store, name: store.stream(name).create_group("h"),
    "group read": lambda store, name: store.stream(name).group("g").read("two", count=5),
    "group history": lambda store, name: store.stream(name).group("g").read("one", ids="0"),
    "ack": lambda store, name: store.stream(name).group("g").ack(LAST[name][0]),
    "nack": lambda store, name: store.stream(name).group("g").nack(LAST[name][0], delay=5.0),
    "claim": lambda store, name: store.stream(name).group("g").claim("three", LAST[name][0]),
    "autoclaim": lambda store, name: store.stream(name).group("g").autoclaim("three"),
    "ack and delete": lambda store, name: store.stream(name).group("g").ack_delete(LAST[name][0]),
    "pending": lambda store, name: store.stream(name).group("g").pending(),
    "pending entries": lambda store, name: store.stream(name).group("g").pending_entries(),
    "consumers": lambda store, name: store.stream(name).group("g").consumers(),
    "create consumer": lambda store, name: store.stream(name).group("g").create_consumer("four"),
    "delete consumer": lambda store, name: store.stream(name).group("g").delete_consumer("one", pending="drop"),
    "set id": lambda store, name: store.stream(name).group("g").set_id("0"),
    "pause": lambda store, name: store.stream(name).group("g").pause(),
    "destroy": lambda store, name: store.stream(name).group("g").destroy(),
    "rename": lambda store, name: store.rename_stream(name, name + "-new"),
    "copy": lambda store, name: store.copy_stream(name, name + "-copy"),
    "delete stream": lambda store, name: store.delete_stream(name),
    "streams": lambda store, name: store.streams(),
    "status": lambda store, name: store.status(),
    "flush": lambda store, name: store.flush(),
    "open and close": lambda store, name: raxlog.open(store.path.with_name("another.rax")).close(),
}
LAST: dict[str, list[Any]] = {}  # the IDs that a stream began with


def facts(store: raxlog.Store, name: str) -> Any:
    """All there is of a stream, without IDs and times."""
    found: dict[str, Any] = {}
    for suffix in ("", "-other", "-new", "-copy"):
        if name + suffix not in store.streams():
            continue
        stream = store.stream(name + suffix)
        groups = {}
        for info in stream.groups():
            group = stream.group(info.name)
            groups[info.name] = (
                group.lag, group.paused, sorted(one.name for one in group.consumers()),
                [(one.consumer, one.deliveries) for one in group.pending_entries()])
        found[suffix] = ([dict(entry.fields) for entry in stream.range()], len(stream), groups,
                         len(list(stream.deferred())), str(stream.info().retention))
    found["state"] = {key: value for key, value in store.state.items() if key.startswith(f"{name}:")}
    found["bindings"] = sorted(str(one.subject).removeprefix(name) for one in store.bindings()
                               if str(one.subject).startswith(name))
    return json.loads(json.dumps(found, default=repr).replace(name, "S"))


def failing() -> Callable[[int], int]:
    """A function that has the N-th allocation from now on fail; with 0 none does, and how many were left comes back."""
    if "LD_PRELOAD" in os.environ:
        fail = ctypes.PyDLL(os.environ["LD_PRELOAD"]).recorder_fail_allocation
        fail.argtypes, fail.restype = (ctypes.c_long,), ctypes.c_long
        return fail  # type: ignore[no-any-return]
    import _testcapi  # noqa: PLC0415  (not in every Python)

    def fail_python(n: int) -> int:
        if n:
            _testcapi.set_nomemory(n, n + 1)
        else:
            _testcapi.remove_mem_hooks()
        return 1  # it does not say

    return fail_python


def begin(store: raxlog.Store, name: str) -> None:
    seed(store, name)
    LAST[name] = ids(store, name)


def tried(store: raxlog.Store, case: str) -> tuple[int, list[str]]:
    """Fail each allocation of a case; how many did, and what was wrong."""
    call, wrong, fail = CASES[case], list[str](), failing()
    name = "calm"
    begin(store, name)
    before = facts(store, name)
    call(store, name)
    after = facts(store, name)
    count = calm = 0
    for n in range(1, MOST):
        clear(store, name)
        name = f"n{n}"
        begin(store, name)
        error: BaseException | None = None
        fail(n)
        try:
            call(store, name)
        except BaseException as raised:
            error = raised
        left = fail(0)
        count += error is not None
        calm = calm + 1 if left > 0 and error is None else 0
        if error is not None and not isinstance(error, Exception):
            wrong.append(f"{n}: {''.join(traceback.format_exception(error))[-1500:]}")
        found = facts(store, name)
        if found not in (before, after):
            wrong.append(f"{n}: half there: {found} is neither {before} nor {after}")
        elif error is None and found != after:
            wrong.append(f"{n}: it raised nothing, and was not done")
        store.stream(name).append({"n": "still"})
        if calm > CALM or len(wrong) > 3:
            break
    clear(store, name)
    return count, wrong


def clear(store: raxlog.Store, name: str) -> None:
    """Delete what a case has made."""
    for binding in store.bindings():
        store.unbind(binding.subject, binding.stream)
    for stream in store.streams():
        store.delete_stream(stream)
    store.state.clear()


def main() -> None:
    folder, *names = sys.argv[1:]
    path = Path(folder) / "s.rax"
    with raxlog.open(path) as store:
        for case in names or CASES:
            count, wrong = tried(store, case)
            print(json.dumps({"case": case, "failed": count, "wrong": wrong}), flush=True)
    report = raxlog.check(path)
    assert report.ok, str(report)


if __name__ == "__main__":
    main()
