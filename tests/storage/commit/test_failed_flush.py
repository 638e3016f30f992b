"""After a flush that failed a process writes nothing more until it has opened the store anew."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import raxlog
from raxlog.crashtest import Errors, explore

SEED = int(os.environ.get("RAXLOG_SEED", "11"))

pytestmark = pytest.mark.storm


def insisting(folder: Path, ack: Callable[[Any], None], *, many: int) -> None:
    """Appends; after the first error it goes on in the same process, then opens the store anew."""
    store = raxlog.open(folder / "s.rax")
    n = 0
    try:
        for n in range(many):
            store.stream("s").append({"n": n})
            ack(n)
    except raxlog.StoreError as error:
        for _ in range(3):
            try:
                store.stream("s").append({"n": "again"})
                ack("again")
            except raxlog.StoreError as second:
                if "Input/output" not in str(error) or "open it again" not in str(second):
                    raise
        len(store.stream("s"))
        store.close()
        store = raxlog.open(folder / "s.rax")
        ack(store.last_end.how)
        store.stream("s").append({"n": "anew"})
        ack("anew")
    store.close()


def consistent(folder: Path, acks: list[Any]) -> None:
    """What was acknowledged is there; after the failed flush nothing was, but through a new opening."""
    if not acks:
        return  # its creation failed
    said = [one for one in acks if isinstance(one, int)]
    with raxlog.open(folder / "s.rax") as store:
        there = [entry.fields["n"] for entry in store.stream("s").range()]
        assert [str(n) for n in said] == there[: len(said)], "LOST"
        if "anew" in acks:
            assert there[-1] == "anew"
            assert "again" not in acks, "written after a flush that had failed"
            assert "power cut" in acks, "opened without a look"
    assert raxlog.check(folder / "s.rax").ok


def test_after_a_flush_that_failed_nothing_is_written_but_through_a_new_opening(
    tmp_path: Path, require: Callable[[str], str]
) -> None:
    require("cc")
    report = explore(partial(insisting, many=4), consistent, seed=SEED, keep=tmp_path,
                     modes=[Errors("EIO", calls=("sync",), most=12, allowed=(raxlog.RaxlogError,))])
    print(report)
    assert not report.failed
