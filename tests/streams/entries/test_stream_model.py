"""The public face of streams beside a model that is a plain list, under hypothesis.

Nodes are kept small (three entries, or values that fill a page), so that some dozens of steps make
and lose many nodes. After each run every node is validated and the counts are checked.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from bisect import bisect_left, bisect_right
from pathlib import Path
from typing import Any

import pytest
import raxlog
from examples import examples
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from raxlog import (
    CountTooSmall,
    IDBelowDeleted,
    IDBelowEntries,
    IDTooSmall,
    IDZero,
    NoStream,
    StreamExhausted,
    StreamExists,
    StreamID,
)
from raxlog.stream.node.decode import last_entry_id
from stored_nodes import check_stream, nodes_of

MAX64 = (1 << 64) - 1
MAX = (MAX64, MAX64)
NAMES = [b"a", b"b", b"\xff\x00"]

ID = tuple[int, int]
Pairs = list[tuple[bytes, bytes]]


class Model:
    """A stream as a list."""

    def __init__(self) -> None:
        self.ids: list[ID] = []
        self.pairs: list[Pairs] = []
        self.last: ID = (0, 0)
        self.max_deleted: ID = (0, 0)
        self.added = 0
        self.ever = 0

    def add(self, sid: ID, pairs: Pairs) -> None:
        self.ids.append(sid)
        self.pairs.append(pairs)
        self.last = sid
        self.added += 1
        self.ever += 1

    def drop_first(self, many: int) -> None:
        del self.ids[:many], self.pairs[:many]

    def drop(self, sid: ID) -> bool:
        at = bisect_left(self.ids, sid)
        if at == len(self.ids) or self.ids[at] != sid:
            return False
        del self.ids[at], self.pairs[at]
        self.max_deleted = max(self.max_deleted, sid)
        return True

    def doomed(self, maxlen: int | None, minid: ID | None) -> int:
        """How many entries an exact trim evicts."""
        return max(0, len(self.ids) - maxlen) if minid is None else bisect_left(self.ids, minid)  # type: ignore[operator]

    def between(self, low: ID, high: ID) -> list[tuple[ID, Pairs]]:
        span = slice(bisect_left(self.ids, low), bisect_right(self.ids, high))
        return list(zip(self.ids[span], self.pairs[span], strict=True))


def text(sid: ID) -> str:
    return f"{sid[0]}-{sid[1]}"


def moved(sid: ID, by: int) -> ID:
    number = min(max((sid[0] << 64 | sid[1]) + by, 0), (1 << 128) - 1)
    return number >> 64, number & MAX64


def outcome(call: Any) -> Any:
    """What a call returns, or the class of error it raises."""
    try:
        return call()
    except raxlog.RaxlogError as error:
        return type(error)


names = st.sampled_from(NAMES)
small = st.binary(max_size=4) | st.integers(-5000, 40_000).map(lambda n: str(n).encode())
values = small | small | st.sampled_from([100, 1500, 5000]).map(lambda size: b"v" * size)
rows = st.sampled_from([[b"n"], [b"n", b"m"], [b"n", b"n"], [b"", b"7"]]).flatmap(
    lambda row: st.tuples(*[st.tuples(st.just(name), values) for name in row]).map(list)
) | st.lists(st.tuples(small, values), min_size=1, max_size=4)
places = st.floats(0, 1, exclude_max=True)  # where in the list
edges = st.tuples(places, st.integers(-1, 1), st.sampled_from(["full", "full", "ms", "(", "open"]))
counts = st.none() | st.integers(0, 8)
limits = st.fixed_dictionaries(
    {},
    optional={
        "compression": st.sampled_from(["none", "zstd", "compact"]),
        "node_max_entries": st.sampled_from([0, 2, 3, 12]),
        "node_max_bytes": st.sampled_from([64, 300, 4096]),
    },
)
new_ids = (
    st.tuples(st.just("after"), st.sampled_from([0, 0, 0, 1, 1, 2, 300]), st.sampled_from([0, 1, 1, 2, 1 << 40]))
    | st.tuples(st.just("auto seq"), st.sampled_from([0, 0, 1, 5]), st.just(0))
    | st.just(("clock", 0, 0))
    | st.tuples(st.just("old"), st.integers(-3, 0), st.integers(0, 2))
)
last_ids = st.just(("last", 0, 0)) | new_ids.filter(lambda new: new[0] != "clock")


class StreamsBesideALists(RuleBasedStateMachine):
    """Every call goes to a store and to the model; both must say the same."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.models: dict[bytes, Model] = {}
        self.store: raxlog.Store

    @initialize(options=limits)
    def open_store(self, options: dict[str, Any]) -> None:
        self.options = {"node_max_entries": 3} | options
        self.open()

    def open(self) -> None:
        self.store = raxlog.open(self.folder / "store.rax", durability="relaxed", **self.options, encoding=None)
        self.handles = {name: self.store.stream(name) for name in NAMES}

    def teardown(self) -> None:
        if hasattr(self, "store"):
            for name in NAMES:
                self.compare(name)
                check_stream(self.store, name)
            self.store.close()
        shutil.rmtree(self.folder)

    def compare(self, name: bytes) -> None:
        model = self.models.get(name, Model())
        everything = [(entry.id, entry.pairs) for entry in self.handles[name].range()]
        assert everything == model.between((0, 0), MAX)
        assert [(entry.id, entry.pairs) for entry in self.handles[name].range(reverse=True)] == everything[::-1]

    def asked(self, model: Model, new: tuple[str, int, int]) -> tuple[str, ID | None]:
        """The ID as an append is given it, and the one to be expected (None: by the clock)."""
        form, ms, seq = new
        last = model.last
        if form == "clock":
            return "*", None
        if form == "auto seq":
            at = min(MAX64, last[0] + ms)
            return f"{at}-*", (at, min(MAX64, last[1] + 1) if at == last[0] else 0)
        if form == "old":
            at = max(0, last[0] + ms)
            return f"{at}-{seq}", (at, seq)
        if ms == 0:
            sid = moved(last, max(seq, 1))
        else:
            sid = min(MAX64, last[0] + ms), seq
        return text(sid), sid

    def refusal(self, model: Model, sid: ID | None) -> type[Exception] | None:
        if sid == (0, 0):
            return IDZero
        if model.last == MAX:
            return StreamExhausted
        return IDTooSmall if sid is not None and sid <= model.last else None

    def accept(self, model: Model, given: StreamID, sid: ID | None, pairs: Pairs, before_ms: int) -> None:
        if sid is None:
            assert given == moved(model.last, 1) or before_ms <= given.ms <= time.time_ns() // 1_000_000
            assert given > model.last
        else:
            assert given == sid
        model.add(given, pairs)

    # -------------------------------------------------------------- writing

    @rule(name=names, pairs=rows, new=new_ids, create=st.sampled_from([True, True, True, False]))
    def append(self, name: bytes, pairs: Pairs, new: tuple[str, int, int], create: bool) -> None:
        model = self.models.get(name, Model())
        asked, sid = self.asked(model, new)
        before = time.time_ns() // 1_000_000
        given = outcome(lambda: self.handles[name].append(pairs, asked, create=create))
        refused = self.refusal(model, sid)
        if sid == (0, 0) or (refused and (create or name in self.models)):
            assert given is refused
        elif name not in self.models and not create:
            assert given is None
        else:
            self.models[name] = model
            self.accept(model, given, sid, pairs, before)

    @rule(name=names, entries=st.lists(rows, max_size=9), step=st.integers(1, 3), clock=st.booleans(),
          spoilt=st.sampled_from([False, False, False, True]))
    def extend(self, name: bytes, entries: list[Pairs], step: int, clock: bool, spoilt: bool) -> None:
        model = self.models.get(name, Model())
        before = time.time_ns() // 1_000_000
        if clock:
            given = outcome(lambda: self.handles[name].extend(entries))
            expected: list[ID | None] = [None] * len(entries)
            refused = StreamExhausted if entries and model.last[0] == MAX64 else None
            if refused and given is not refused:  # the last IDs were just enough
                refused = None
        else:
            wanted = [moved(model.last, step * place) for place in range(1, len(entries) + 1)]
            if spoilt and wanted:
                wanted[-1] = model.last
            refused = next((no for no in self.refusals(model.last, wanted) if no), None)
            given = outcome(lambda: self.handles[name].extend(entries, map(text, wanted)))
            expected = list(wanted)
        if refused:
            assert given is refused  # and nothing of it is there, which compare() sees
        elif entries:
            self.models[name] = model
            for sid, want, pairs in zip(given, expected, entries, strict=True):
                self.accept(model, sid, want, pairs, before)
        else:
            assert given == []

    @rule(name=names, many=st.integers(1, 3))
    def pour(self, name: bytes, many: int) -> None:
        model = self.models.setdefault(name, Model())
        if model.last[0] == MAX64:
            return
        entries = [[(b"n", b"%d" % number)] for number in range(70 * many)]
        ids = [moved(model.last, 1 + number) for number in range(len(entries))]
        assert self.handles[name].extend(entries, map(text, ids)) == ids
        for sid, pairs in zip(ids, entries, strict=True):
            model.add(sid, pairs)

    def refusals(self, last: ID, wanted: list[ID]) -> list[type[Exception] | None]:
        found: list[type[Exception] | None] = []
        for sid in wanted:
            fresh = Model()
            fresh.last = last
            found.append(self.refusal(fresh, sid))
            last = max(last, sid)
        return found

    @rule(name=names, pairs=rows, kept=places, by_id=st.booleans())
    def append_and_trim(self, name: bytes, pairs: Pairs, kept: float, by_id: bool) -> None:
        model = self.models.setdefault(name, Model())
        if model.last == MAX:
            return
        sid = moved(model.last, 1)
        maxlen, minid = self.strategy(model, kept, by_id)
        options = {"maxlen": maxlen} if minid is None else {"minid": text(minid)}
        assert self.handles[name].append(pairs, text(sid), **options) == sid  # type: ignore[arg-type]
        model.add(sid, pairs)
        model.drop_first(model.doomed(maxlen, minid))

    def strategy(self, model: Model, kept: float, by_id: bool) -> tuple[int | None, ID | None]:
        at = int(kept * (len(model.ids) + 1))
        if not by_id:
            return at, None
        return None, model.ids[at] if at < len(model.ids) else moved(model.last, 1)

    @rule(name=names, chosen=st.lists(st.tuples(places, st.sampled_from([0, 0, 0, 0, 1])), max_size=6))
    def delete(self, name: bytes, chosen: list[tuple[float, int]]) -> None:
        model = self.models.get(name, Model())
        ids = [moved(model.ids[int(place * len(model.ids))], by) for place, by in chosen if model.ids]
        assert self.handles[name].delete(*map(text, ids)) == sum([model.drop(sid) for sid in ids])

    @rule(name=names, start=places, many=st.integers(1, 12) | st.integers(13, 250))
    def delete_a_run(self, name: bytes, start: float, many: int) -> None:
        model = self.models.get(name, Model())
        at = int(start * len(model.ids))
        ids = model.ids[at : at + many]
        assert self.handles[name].delete(*map(text, ids)) == sum([model.drop(sid) for sid in ids])

    @rule(name=names, many=st.integers(1, 9) | st.integers(10, 250))
    def delete_the_newest(self, name: bytes, many: int) -> None:
        model = self.models.get(name, Model())
        ids = model.ids[-many:]
        assert self.handles[name].delete(*map(text, ids)) == sum([model.drop(sid) for sid in ids])

    @rule(name=names, kept=places, by_id=st.booleans(), approximate=st.booleans(), limit=st.none() | st.integers(0, 9))
    def trim(self, name: bytes, kept: float, by_id: bool, approximate: bool, limit: int | None) -> None:
        model = self.models.get(name, Model())
        maxlen, minid = self.strategy(model, kept, by_id)
        options: dict[str, Any] = {"maxlen": maxlen} if minid is None else {"minid": text(minid)}
        if not approximate:
            evicted = self.handles[name].trim(**options)
            assert evicted == model.doomed(maxlen, minid)
        else:
            evicted = self.handles[name].trim(**options, approximate=True, limit=limit)
            assert 0 <= evicted <= model.doomed(maxlen, minid)
            assert not limit or evicted <= limit
        model.drop_first(evicted)

    @rule(name=names, new=last_ids, added=st.none() | st.integers(0, 30), deleted=st.none() | places)
    def set_id(self, name: bytes, new: tuple[str, int, int], added: int | None, deleted: float | None) -> None:
        model = self.models.get(name, Model())
        _, sid = self.asked(model, new) if new[0] != "last" else ("", model.last)
        assert sid is not None
        options: dict[str, Any] = {} if added is None else {"entries_added": added}
        gone: ID | None = None
        if deleted is not None:
            gone = moved(sid, -int(deleted * 3))
            options["max_deleted_id"] = text(gone)
        last_node = nodes_of(self.store, name)[-1:]
        buried = [last_entry_id(node.listpack, *StreamID.from_bytes(node.key)) for node in last_node]
        said = outcome(lambda: self.handles[name].set_id(text(sid), **options))
        if name not in self.models:
            assert said is NoStream
        elif gone is not None and sid < gone:
            assert said is IDTooSmall
        elif sid < model.max_deleted:
            assert said is IDBelowDeleted
        elif model.ids and sid < model.ids[-1]:
            assert said is IDBelowEntries
        elif model.ids and added is not None and added < len(model.ids):
            assert said is CountTooSmall
        elif buried and sid < buried[0]:
            assert said is IDBelowDeleted
        else:
            assert said is None
            model.last = sid
            model.added = model.added if added is None else added
            if gone is not None and gone != (0, 0):
                model.max_deleted = gone

    @rule(name=names, options=limits)
    def configure(self, name: bytes, options: dict[str, Any]) -> None:
        said = outcome(lambda: self.handles[name].configure(**options))
        self.models.setdefault(name, Model())
        given = {name: value for name, value in options.items() if value is not None}
        assert said.to_dict().items() <= given.items()
        assert self.handles[name].configure(**options).to_dict() == {}

    @rule(old=names, new=names)
    def rename(self, old: bytes, new: bytes) -> None:
        said = outcome(lambda: self.store.rename_stream(old, new))
        if old not in self.models:
            assert said is NoStream
        elif old != new and new in self.models:
            assert said is StreamExists
        else:
            assert said is (old != new)
            self.models[new] = self.models.pop(old)

    @rule(name=names, sure=st.sampled_from([True, False, False]))
    def delete_stream(self, name: bytes, sure: bool) -> None:
        if sure:
            assert self.store.delete_stream(name) is (self.models.pop(name, None) is not None)

    @rule()
    def close_and_reopen(self) -> None:
        self.store.close()
        self.open()

    # -------------------------------------------------------------- reading

    def edge(self, model: Model, edge: tuple[float, int, str], is_end: bool) -> tuple[str, ID] | None:
        """An end of a range as it is written, and the ID it stands for; None if there is none."""
        place, by, form = edge
        if form == "open":
            return ("+", MAX) if is_end else ("-", (0, 0))
        sid = moved(model.ids[int(place * len(model.ids))] if model.ids else model.last, by)
        if form == "ms":
            return str(sid[0]), (sid[0], MAX64 if is_end else 0)
        if form == "(":
            if sid == (MAX if not is_end else (0, 0)):
                return None
            return "(" + text(sid), moved(sid, -1 if is_end else 1)
        return text(sid), sid

    @rule(name=names, low=edges, high=edges, count=counts, reverse=st.booleans())
    def read_a_range(
        self, name: bytes, low: tuple[float, int, str], high: tuple[float, int, str], count: int | None, reverse: bool
    ) -> None:
        model = self.models.get(name, Model())
        start, end = self.edge(model, low, False), self.edge(model, high, True)
        if start is None or end is None:
            return
        expected = model.between(start[1], end[1])
        stream = self.handles[name]
        assert stream.count(start[0], end[0]) == len(expected)
        if reverse:
            expected = expected[::-1]
        found = [(entry.id, entry.pairs) for entry in stream.range(start[0], end[0], count, reverse=reverse)]
        assert found == expected[:count]

    @rule(name=names, place=places, by=st.integers(-1, 1))
    def look_at_one(self, name: bytes, place: float, by: int) -> None:
        model = self.models.get(name, Model())
        stream = self.handles[name]
        k = int(place * (len(model.ids) + 1))
        sid = moved(model.ids[k] if k < len(model.ids) else model.last, by)
        entry = stream.get(text(sid))
        expected = dict(model.between(sid, sid)).get(sid)
        assert (None if entry is None else entry.pairs) == expected
        assert stream.rank(text(sid)) == bisect_left(model.ids, sid)
        if k < len(model.ids):
            assert stream.select(k) == model.ids[k]
        else:
            with pytest.raises(IndexError):
                stream.select(k)

    @rule(name=names, parts=st.integers(1, 7))
    def split(self, name: bytes, parts: int) -> None:
        model = self.models.get(name, Model())
        ranges = self.handles[name].split(parts)
        assert len(ranges) == min(parts, len(model.ids))
        sizes = [one.entries for one in ranges]
        assert [len(model.between(one.start, one.end)) for one in ranges] == sizes
        assert sum(sizes) == len(model.ids)
        assert max(sizes, default=0) - min(sizes, default=0) <= 1

    @rule(name=names)
    def ask_for_info(self, name: bytes) -> None:
        model = self.models.get(name)
        if model is None:
            assert outcome(self.handles[name].info) is NoStream
            return
        info = self.handles[name].info()
        assert info.length == len(model.ids)
        assert info.last_generated_id == self.handles[name].last_id == model.last
        assert info.max_deleted_entry_id == model.max_deleted
        assert info.entries_added == model.added
        assert info.next_ordinal == model.ever
        assert info.recorded_first_entry_id == (model.ids[0] if model.ids else (0, 0))
        ends = [None if entry is None else (entry.id, entry.pairs) for entry in (info.first_entry, info.last_entry)]
        assert ends == ([(model.ids[at], model.pairs[at]) for at in (0, -1)] if model.ids else [None, None])
        assert info.radix_tree_keys == len(nodes_of(self.store, name))

    @invariant()
    def names_and_lengths_agree(self) -> None:
        if hasattr(self, "store"):
            assert self.store.streams() == sorted(self.models)
            for name, stream in self.handles.items():
                assert len(stream) == len(self.models[name].ids if name in self.models else [])
                assert stream.exists() is (name in self.models)


TestStreamsBesideALists = StreamsBesideALists.TestCase
TestStreamsBesideALists.settings = settings(max_examples=examples(60), stateful_step_count=60)


# ------------------------------------------------------------------ what has once gone wrong


def filled(store: raxlog.Store, entries: int) -> raxlog.Stream:
    """A stream of one field an entry, three entries a node, IDs 1-0 upwards."""
    stream = store.stream("s", node_max_entries=3)
    stream.extend([{"n": n} for n in range(1, entries + 1)], [f"{n}-0" for n in range(1, entries + 1)])
    return stream


def test_a_node_that_is_the_last_once_more_goes_on_behind_the_deleted_ones(store: raxlog.Store) -> None:
    stream = filled(store, 8)  # 1 2 3 | 4 5 6 | 7 8
    stream.configure(node_max_entries=9)
    stream.delete("7-0", "8-0", "4-0")
    stream.extend([{"n": n} for n in (9, 10, 11)], ["9-0", "10-0", "11-0"])  # behind 6, in its node
    check_stream(store, b"s")
    stream.delete("5-0", "6-0", "9-0")
    check_stream(store, b"s")
    left = [1, 2, 3, 10, 11]
    assert [entry.ms for entry in stream.range()] == left
    assert [stream.select(k).ms for k in range(5)] == left
    assert [stream.rank(f"{ms}-0") for ms in left] == [0, 1, 2, 3, 4]
    stream.delete("10-0", "11-0")
    check_stream(store, b"s")


def test_an_entry_is_selected_though_the_leaf_noted_before_it_is_gone(store: raxlog.Store) -> None:
    stream = filled(store, 64 * 3 + 3)  # leaf no. 64, which is noted, holds 193 to 195
    stream.configure(node_max_entries=4)
    stream.delete("193-0", "194-0", "195-0")
    stream.append({"n": 1}, "196-0")  # into the leaf before, which is full with it
    stream.append({"n": 1}, "197-0")
    assert [stream.select(k).ms for k in (191, 192, 193)] == [192, 196, 197]
    check_stream(store, b"s")


def test_an_emptied_stream_may_begin_again_with_smaller_ids(store: raxlog.Store) -> None:
    stream = filled(store, 200)
    stream.trim(maxlen=0)
    stream.set_id("1-0")
    stream.extend([{"n": n} for n in range(9)], [f"{n}-0" for n in range(2, 11)])
    assert [stream.select(k).ms for k in range(9)] == list(range(2, 11))
    check_stream(store, b"s")


def test_a_last_id_below_a_deleted_entry_that_still_has_its_place_is_refused(store: raxlog.Store) -> None:
    stream = filled(store, 3)
    stream.delete("3-0")
    stream.set_id("3-0", max_deleted_id="1-0")
    with pytest.raises(IDTooSmall, match="3-0"):
        stream.set_id("2-0")


def test_a_backward_range_before_the_first_entry_is_empty(store: raxlog.Store) -> None:
    stream = store.stream("s")
    stream.append({"n": 1}, "6-3")
    assert list(stream.range("1-0", "3-0", reverse=True)) == []


def test_a_handle_sees_that_its_stream_has_got_another_name(store: raxlog.Store) -> None:
    stream = filled(store, 3)
    assert stream.exists()
    store.rename_stream("s", "t")
    assert not stream.exists()
