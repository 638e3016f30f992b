"""The cursor over LMDB's keys and the overlay's: what a view sees stays as it is while another thread writes."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from bisect import bisect_left
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from raxlog.storage.errors import CorruptionError
from raxlog.storage.log.cursor import LogCursor, cursor_over, seek
from raxlog.storage.log.transaction import Overlay, Version, View

KEYS = [b"%02d" % n for n in range(12)]


class Rows:
    """Sorted keys, as LMDB's transaction and cursor show them; each move lets another thread run."""

    def __init__(self, keys: list[bytes], in_between: Callable[[], object]) -> None:
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

    def item(self) -> tuple[bytes, bytes]:
        return self.key(), self.value()


@pytest.mark.parametrize("busy", [False, True])
@given(below=st.sets(st.sampled_from(KEYS)), changes=st.lists(st.tuples(st.sampled_from(KEYS), st.booleans())),
       later=st.lists(st.tuples(st.sampled_from(KEYS), st.booleans())),
       moves=st.lists(st.sampled_from(["next", "prev", "first", "last", *KEYS, *((key,) for key in KEYS)])))
def test_a_cursor_shows_one_state_beside_a_writer(
    busy: bool, below: set[bytes], changes: list[tuple[bytes, bool]], later: list[tuple[bytes, bool]],
    moves: list[str | bytes | tuple[bytes]]
) -> None:
    overlay = Overlay(0)
    for lsn, (key, there) in enumerate(changes, 1):
        overlay.write(key, b"log" if there else None, lsn)
        overlay.settle([key])
    seen = below | {key for key, _ in changes}
    seen -= {key for key, there in dict(changes).items() if not there}
    expected = sorted(seen)
    left = list(enumerate(later, len(changes) + 1))

    def write() -> None:
        if left:
            lsn, (key, there) = left.pop(0)
            overlay.write(key, b"later" if there else None, lsn)
            overlay.settle([key])

    def nothing() -> None:
        return

    log = SimpleNamespace(pos=len(changes))
    with View(log, Rows(list(below), write if busy else nothing), overlay, False) as view:
        cursor = cursor_over(view)
        place = None  # None: nowhere yet
        for move in moves:
            if isinstance(move, bytes):
                found, place = cursor.set_range(move), bisect_left(expected, move)
            elif isinstance(move, tuple):
                found, place = cursor.set_before(move[0]), bisect_left(expected, move[0]) - 1
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
            overlay.settle(list(touched))
        else:
            overlay.undo(touched, lsn)
            overlay.undo(touched, lsn)
            assert before == (
                {key: (version.lsn, version.value) for key, version in overlay.rows.items()}, list(overlay.order),
                overlay.bytes, overlay.singles, overlay.runs,
            )
        assert overlay.order == sorted(key for key, version in overlay.rows.items() if version.value is not None)


AT_EACH_BYTECODE = """
import sys
from types import SimpleNamespace
sys.path.insert(0, sys.argv[1])
from raxlog.storage.log.cursor import LogCursor, cursor_over
from raxlog.storage.log.transaction import Overlay, View
from test_transaction import Rows

codes = {part.__code__ for part in vars(LogCursor).values() if hasattr(part, "__code__")}
overlay, below, theirs = Overlay(0), [b"c", b"g"], dict.fromkeys((b"a", b"e", b"i"))
for lsn, key in enumerate((b"b", b"d", b"f", b"g", b"h"), 1):
    overlay.write(key, b"log", lsn)
seen = [(key, b"lmdb" if key == b"c" else b"log") for key in (b"b", b"c", b"d", b"f", b"g", b"h")]
left = gap = 0

def turn():  # a transaction of another thread writes, or is undone
    if b"e" in overlay.rows:
        overlay.undo(theirs, 100)
    else:
        for key in theirs:
            overlay.write(key, b"later", 100)

def trace(frame, event, _):
    if frame.f_code not in codes:
        return None
    frame.f_trace_opcodes = True
    return step

def step(frame, event, _):
    global left
    if event == "opcode":
        left -= 1
        if left == 0 or left == -gap:
            turn()
            if left == -gap:  # the last time
                sys.settrace(None)
    return step

def walk(cursor):
    found, there = [], cursor.first()
    while there:
        found.append((cursor.key(), cursor.value()))
        there = cursor.next()
    there = cursor.last()
    while there:
        found.append((cursor.key(), cursor.value()))
        there = cursor.prev()
    for key in (b"e", b"f"):
        found += [cursor.set_range(key) and cursor.key(), cursor.prev() and cursor.key(),
                  cursor.next() and cursor.key(), cursor.next() and cursor.key()]
    return found

def walk_struck(begin, apart):
    global left, gap
    left, gap = begin, apart
    with View(SimpleNamespace(pos=5), Rows(below, lambda: None), overlay, False) as view:
        cursor = cursor_over(view)
        sys.settrace(trace)
        try: return walk(cursor)
        finally: sys.settrace(None)

expected = walk_struck(-1, 0)
assert expected[:12] == seen + seen[::-1], expected
steps = -1 - left
for apart, every in (1, 11), (9, 13), (steps, 3):
    for begin in range(1, steps, every):
        got = walk_struck(begin, apart)
        assert got == expected, (begin, apart, got, expected)
print(steps)
"""


def test_a_thread_that_writes_at_any_bytecode_of_a_move_changes_nothing_that_a_view_sees() -> None:
    """In the plain sources; the compiled ones are not interrupted there."""
    done = subprocess.run([sys.executable, "-c", AT_EACH_BYTECODE, str(Path(__file__).parent)], capture_output=True,
                          text=True, check=False, timeout=100, env={**os.environ, "RAXLOG_PURE": "1"})  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 1000


MANY = [b"%03d" % n for n in range(60)]


def rows_of(view: View) -> list[tuple[bytes, bytes]]:
    cursor, found = cursor_over(view), []
    there = cursor.first()
    while there:
        found.append((cursor.key(), cursor.value()))
        there = cursor.next()
    return found


def move_about(view: View, start: bytes) -> list[tuple[bytes, bytes] | None]:
    """What a cursor shows from ``start`` on, back, and forth again: each turn from each place."""
    cursor = cursor_over(view)
    found = [cursor.item() if cursor.set_range(start) else None]
    while found[-1] is not None and len(found) < 60:
        for move in (cursor.next, cursor.prev, cursor.next):
            found.append(cursor.item() if move() else None)
            if found[-1] is None:
                break
    cursor = cursor_over(view)
    found.append(cursor.item() if cursor.set_range(start) else None)
    while found[-1] is not None:
        found.append(cursor.item() if cursor.prev() else None)
    return [*found, cursor.item() if cursor.set_before(start) else None]


def expected_of(state: dict[bytes, bytes], start: bytes) -> list[tuple[bytes, bytes] | None]:
    """The same, by a list."""
    rows: list[tuple[bytes, bytes] | None] = [*sorted(state.items()), None]
    first = sum(key < start for key in state)
    found, at = [rows[first]], first
    while found[-1] is not None and len(found) < 60:
        for move in (1, -1, 1):
            at += move
            found.append(rows[at])
            if found[-1] is None:
                break
    found.append(rows[first])
    if found[-1] is not None:
        found += [*rows[:first][::-1], None]
    return [*found, rows[first - 1] if first else None]


@given(
    below=st.sets(st.sampled_from(MANY)),
    transactions=st.lists(st.tuples(
        st.lists(st.tuples(st.integers(0, 59), st.integers(1, 40), st.booleans()), min_size=1, max_size=3),
        st.booleans(), st.sampled_from(MANY))),
)
@example(below=set(MANY), transactions=[([(0, 40, False)], True, b"000"), ([(0, 1, False)], False, b"000")])
def test_runs_of_deleted_keys_are_skipped_by_each_view_as_it_must_see_them(
    below: set[bytes], transactions: list[tuple[list[tuple[int, int, bool]], bool, bytes]]
) -> None:
    """Transactions delete or set runs of keys; some are undone. Views of all states stay open and are read again."""
    overlay, raw = Overlay(0), Rows(list(below), lambda: None)
    log = SimpleNamespace(pos=0)
    state = dict.fromkeys(below, b"lmdb")
    views = [(View(log, raw, overlay, False), state)]
    for changes, is_undone, start in transactions:
        after = dict(state)
        touched: dict[bytes, Version | None] = {}
        writer = View(log, raw, overlay, True)
        for first, length, there in changes:
            for key in MANY[first : first + length]:
                touched.setdefault(key, None)
                overlay.write(key, b"log" if there else None, writer.upto)
                after.pop(key, None)
                after |= {key: b"log"} if there else {}
            assert rows_of(writer) == sorted(after.items())
            assert move_about(writer, start) == expected_of(after, start)
        if is_undone:
            overlay.undo(touched, writer.upto)
        else:
            log.pos += 2
            overlay.settle(list(touched))
            state = after
        views.append((View(log, raw, overlay, False), state))
        for view, expected in views:
            cursor = cursor_over(view)
            behind = sorted(item for item in expected.items() if item[0] >= start)
            assert cursor.set_range(start) == bool(behind)
            assert not behind or (cursor.key(), cursor.value()) == behind[0]
            assert rows_of(view) == sorted(expected.items())
            assert move_about(view, start) == expected_of(expected, start)
    for view, _ in views:
        view.abort()


def test_the_first_key_is_found_in_a_step_however_many_were_deleted_before_it() -> None:
    moves = itertools.count()
    keys = [b"%05d" % n for n in range(2000)]
    overlay = Overlay(0)
    writer = View(SimpleNamespace(pos=0), Rows(keys, lambda: next(moves)), overlay, True)
    for key in keys:
        cursor = cursor_over(writer)
        assert cursor.first()
        assert cursor.key() == key
        overlay.write(key, None, writer.upto)
    assert next(moves) < 12 * len(keys)


@pytest.mark.parametrize("backward", [False, True])
def test_a_step_takes_as_long_however_many_keys_around_it_have_changed(backward: bool) -> None:
    """Each node of a stream may have got a new value since the last checkpoint: a read looks at those it asks for."""
    moves = itertools.count()
    keys = [b"%05d" % n for n in range(2000)]
    overlay = Overlay(0)
    for key in keys:
        overlay.write(key, b"log", 1)
    view = View(SimpleNamespace(pos=1), Rows(keys, lambda: next(moves)), overlay, False)
    for key in keys[::7]:
        cursor = cursor_over(view)
        assert cursor.set_range(key)
        assert cursor.item() == (key, b"log")
        if backward and key != keys[0]:
            assert cursor.prev()
    assert next(moves) < 12 * len(keys[::7])


@given(rows=st.sets(st.sampled_from(MANY), min_size=1), place=st.integers(0), shown=st.sampled_from(MANY),
       wanted=st.sampled_from(MANY), before=st.booleans())
@example(rows=set(MANY[:5]), place=2, shown=MANY[0], wanted=MANY[1], before=True)  # the search goes on behind the row
@example(rows=set(MANY[:5]), place=2, shown=MANY[9], wanted=MANY[3], before=False)  # and before it
def test_a_search_is_right_or_raises_where_one_row_shows_another_key(
    rows: set[bytes], place: int, shown: bytes, wanted: bytes, before: bool
) -> None:
    cursor = Rows(list(rows), lambda: None)
    place %= len(rows)
    others = cursor.keys[:place] + cursor.keys[place + 1 :]
    cursor.keys[place] = shown
    try:
        found = seek(cursor, wanted, before)
        assert found is None or cursor.key() == found
    except CorruptionError:
        assert cursor.keys != sorted({shown, *others})
        return
    right = []
    for keys in (others, sorted([shown, *others])):  # the row itself may be missed
        at = bisect_left(keys, wanted) - before
        right.append(keys[at] if 0 <= at < len(keys) else None)
    assert found in right


def back_to_the_first(cursor: LogCursor, back: list[tuple[bytes, bytes]]) -> None:
    there = cursor.last()
    while there:
        back.append(cursor.item())
        there = cursor.prev()


def test_a_value_that_the_log_has_replaced_is_not_shown_where_a_damaged_page_leads_back() -> None:
    overlay, rows = Overlay(0), Rows([], lambda: None)
    rows.keys = [b"a", b"b", b"c", b"d", b"a", b"b"]  # the first leaf comes a second time
    rows.cursor = lambda: rows  # type: ignore[method-assign]
    for key in (b"a", b"b", b"e"):
        overlay.write(key, b"log", 1)
    view = View(SimpleNamespace(pos=1), rows, overlay, False)
    assert rows_of(view) == [(b"a", b"log"), (b"b", b"log"), (b"c", b"lmdb"), (b"d", b"lmdb"), (b"e", b"log")]
    back: list[tuple[bytes, bytes]] = []
    with pytest.raises(CorruptionError, match="comes behind"):
        back_to_the_first(cursor_over(view), back)
    assert (b"a", b"lmdb") not in back
    assert (b"b", b"lmdb") not in back


def test_a_search_for_the_key_before_that_skips_deleted_rows_does_not_end_behind_it() -> None:
    overlay, rows = Overlay(0), Rows([], lambda: None)
    rows.keys = [b"a", b"z", b"c", b"d", b"e"]  # b shows another key
    rows.cursor = lambda: rows  # type: ignore[method-assign]
    for key in (b"c", b"d"):
        overlay.write(key, None, 1)
    view = View(SimpleNamespace(pos=1), rows, overlay, False)
    with pytest.raises(CorruptionError, match="comes behind"):
        cursor_over(view).set_before(b"e")


@given(below=st.sets(st.sampled_from(KEYS[:5])), moves=st.lists(st.one_of(
    st.sampled_from(["next", "prev", "first", "last"]), st.sampled_from(KEYS[:5]),
    st.tuples(st.sampled_from(KEYS[:5]), st.booleans())), max_size=30))  # fmt: skip
@example(below={KEYS[0]}, moves=[(KEYS[1], True), "first", (KEYS[1], False), "next"])
@example(below={KEYS[0]}, moves=[(KEYS[1], True), (KEYS[1], False), "first", (KEYS[1], True), "next"])
def test_a_cursor_of_a_transaction_sees_what_the_transaction_writes_beside_it(
    below: set[bytes], moves: list[str | bytes | tuple[bytes, bool]]
) -> None:
    overlay = Overlay(0)
    writer = View(SimpleNamespace(pos=0), Rows(list(below), lambda: None), overlay, True)
    state = dict.fromkeys(below, b"lmdb")
    cursor, here = cursor_over(writer), None
    for move in moves:
        if isinstance(move, tuple):
            key, there = move
            overlay.write(key, b"log" if there else None, writer.upto)
            state.pop(key, None)
            state |= {key: b"log"} if there else {}
            continue
        if isinstance(move, bytes):
            found, right = cursor.set_range(move), [key for key in sorted(state) if key >= move][:1]
        elif move in ("first", "last") or here is None:
            forward = move in ("first", "next")
            found = cursor.first() if forward else cursor.last()
            right = sorted(state, reverse=not forward)[:1]
        elif move == "next":
            found, right = cursor.next(), sorted(key for key in state if key > here)[:1]
        else:
            found, right = cursor.prev(), sorted(key for key in state if key < here)[-1:]
        assert found == bool(right)
        here = right[0] if right else None
        assert cursor.eof == (here is None)
        assert here is None or cursor.item() == (here, state[here])
