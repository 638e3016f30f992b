"""The cursor over LMDB's keys and the overlay's: what a view sees stays as it is while another thread writes."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from raxlog.storage.log.overlay import Overlay, View

KEYS = [b"%02d" % n for n in range(12)]


class Rows:
    """Sorted keys, as LMDB's transaction and cursor show them; each move lets another thread run."""

    def __init__(self, keys: list[bytes], in_between: Callable[[], None]) -> None:
        self.keys = sorted(keys)
        self.at = -1
        self.in_between = in_between

    def cursor(self) -> Rows:
        return Rows(self.keys, self.in_between)

    def get(self, key: bytes) -> bytes | None:
        return b"lmdb" if key in self.keys else None

    def abort(self) -> None:
        self.at = -1

    def move(self, to: int) -> bool:
        self.in_between()
        self.at = to
        return 0 <= to < len(self.keys)

    def set_range(self, key: bytes) -> bool:
        return self.move(bisect_left(self.keys, key))

    def first(self) -> bool:
        return self.move(0)

    def last(self) -> bool:
        return self.move(len(self.keys) - 1)

    def next(self) -> bool:
        return self.move(self.at + 1)

    def prev(self) -> bool:
        return self.move(self.at - 1)

    def key(self) -> bytes:
        return self.keys[self.at]

    def value(self) -> bytes:
        return b"lmdb"


@pytest.mark.parametrize("busy", [False, True])
@given(below=st.sets(st.sampled_from(KEYS)), changes=st.lists(st.tuples(st.sampled_from(KEYS), st.booleans())),
       later=st.lists(st.tuples(st.sampled_from(KEYS), st.booleans())),
       moves=st.lists(st.sampled_from(["next", "prev", "first", "last", *KEYS])))
def test_a_cursor_shows_one_state_beside_a_writer(
    busy: bool, below: set[bytes], changes: list[tuple[bytes, bool]], later: list[tuple[bytes, bool]], moves: list[str]
) -> None:
    overlay = Overlay(0)
    for lsn, (key, there) in enumerate(changes, 1):
        overlay.write(key, b"log" if there else None, lsn)
        overlay.settle({key: None})
    seen = below | {key for key, _ in changes}
    seen -= {key for key, there in dict(changes).items() if not there}
    expected = sorted(seen)
    left = list(enumerate(later, len(changes) + 1))

    def write() -> None:
        if left:
            lsn, (key, there) = left.pop(0)
            overlay.write(key, b"later" if there else None, lsn)
            overlay.settle({key: None})

    def nothing() -> None:
        return

    log = SimpleNamespace(pos=len(changes))
    with View(log, Rows(list(below), write if busy else nothing), overlay, False) as view:
        cursor = view.cursor()
        place = None  # None: nowhere yet
        for move in moves:
            if isinstance(move, bytes):
                found, place = cursor.set_range(move), bisect_left(expected, move)
            elif move in ("first", "last") or place is None:
                to_first = move in ("first", "next")
                found, place = cursor.first() if to_first else cursor.last(), 0 if to_first else len(expected) - 1
            else:
                found, place = getattr(cursor, move)(), place + (1 if move == "next" else -1)
            assert found == (0 <= place < len(expected))
            if not found:
                break
            assert cursor.key() == expected[place]
            assert cursor.value() == (b"log" if dict(changes).get(expected[place]) else b"lmdb")
        assert [key for key in KEYS if view.get(key) is not None] == expected


@given(changes=st.lists(st.lists(st.tuples(st.sampled_from(KEYS), st.booleans()), min_size=1)))
def test_what_is_undone_leaves_no_trace(changes: list[list[tuple[bytes, bool]]]) -> None:
    overlay = Overlay(0)
    for lsn, batch in enumerate(changes, 1):
        before = (
            {key: (version.lsn, version.value) for key, version in overlay.rows.items()}, list(overlay.order),
            overlay.bytes, overlay.singles, overlay.runs,
        )
        for key, there in batch:
            overlay.write(key, bytes(100 * lsn) if there else None, lsn)
        touched = dict.fromkeys(key for key, _ in batch)
        if lsn % 2:
            overlay.settle(touched)
        else:
            overlay.undo(touched, lsn)
            overlay.undo(touched, lsn)
            assert before == (
                {key: (version.lsn, version.value) for key, version in overlay.rows.items()}, list(overlay.order),
                overlay.bytes, overlay.singles, overlay.runs,
            )
        assert overlay.order == sorted(key for key, version in overlay.rows.items() if version.value is not None)
