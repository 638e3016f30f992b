"""Damage on disk: a read gives the right data or a CorruptionError, never anything else.

A store is closed, one byte of one value is changed or a node is taken out, and everything is read.
What the damage does not concern must stay readable.
"""

from __future__ import annotations

import contextlib
import random
import shutil
import struct
from collections.abc import Callable, Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import raxlog
from raw_records import changed_copy, flipped, raw_records, records_of
from raxlog.index.subjects.sublist import Subscription
from raxlog.storage.format import keys as layout
from raxlog.storage.trees.rax import Rax

OPTIONS: dict[str, dict[str, Any]] = {
    "orders": {"node_max_entries": 3},
    "history": {"node_max_entries": 25, "compression": "zstd"},
    "mail": {},
}
ENTRIES = 230  # of three in a node, so that a second leaf is noted in the index of ordinals
Content = dict[str, list[tuple[raxlog.StreamID, list[tuple[str, str]]]]]


def build(path: Path) -> Content:
    """Three streams with entries deleted at the head, in the middle, at the tail, and trimmed."""
    content: Content = {}
    with raxlog.open(path, durability="relaxed") as store:
        for name, options in OPTIONS.items():
            stream = store.stream(name, **options)
            ids = [f"{10 + number // 2}-{number % 2}" for number in range(ENTRIES)]
            stream.extend([{"n": number, "text": "some words " * 3} for number in range(ENTRIES)], ids)
            stream.trim(maxlen=ENTRIES - 4)
            stream.delete(*ids[20:33], ids[50], ids[51], *ids[100:103], ids[150], ids[-2], ids[-3])
            content[name] = [(entry.id, entry.pairs) for entry in stream.range()]
            assert stream.split(4)
    return content


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Content]:
    """A store without damage, and what is in it."""
    path = tmp_path_factory.mktemp("sound") / "store.rax"
    return path, build(path)


class Reader:
    """Reads everything of a stream in every way, and counts how often the damage was told."""

    def __init__(self, store: raxlog.Store, name: str, content: Content) -> None:
        self.stream = store.stream(name)
        self.entries = content[name]
        self.ids = [sid for sid, _ in self.entries]
        self.told: list[raxlog.CorruptionError] = []

    def right(self, call: Callable[[], Any], expected: Any) -> None:
        """The call must give this, or say that the store is damaged."""
        try:
            got = call()
        except raxlog.CorruptionError as error:
            self.told.append(error)
        else:
            assert got == expected

    def range(self, start: Any, end: Any, expected: list[Any], **options: Any) -> None:
        """What comes before the damage is told must be right as well."""
        got = []
        try:
            for entry in self.stream.range(start, end, **options):
                got.append((entry.id, entry.pairs))
        except raxlog.CorruptionError as error:
            self.told.append(error)
            assert got == expected[: len(got)]
        else:
            assert got == expected

    def everything(self, rng: random.Random) -> list[raxlog.CorruptionError]:
        entries, ids, stream = self.entries, self.ids, self.stream
        self.range("-", "+", entries)
        self.range("-", "+", entries[::-1], reverse=True)
        places = sorted(rng.sample(range(len(ids)), 14))
        for place in places:
            sid = ids[place]
            self.right(lambda sid=sid: (entry := stream.get(sid)) and entry.pairs, entries[place][1])
            self.right(lambda sid=sid: stream.rank(sid), place)
            self.right(lambda place=place: stream.select(place), sid)
            for low, high in ((place, place + 1), (max(0, place - 7), place + 1), (place, place + 90)):
                part = entries[low:high]
                self.range(part[0][0], part[-1][0], part)
                self.range(part[0][0], part[-1][0], part[::-1], reverse=True)
                self.range(part[0][0], "+", entries[low : low + 5], count=5)
                self.right(lambda part=part: stream.count(part[0][0], part[-1][0]), len(part))
        self.right(lambda: len(stream), len(ids))
        self.right(stream.exists, True)
        self.right(lambda: stream.count("-", "+"), len(ids))
        self.right(lambda: stream.last_id, ids[-1])
        self.right(lambda: [part.entries for part in stream.split(2)], [len(ids) // 2, len(ids) - len(ids) // 2])
        self.right(lambda: self.facts(stream.info()), (len(ids), ids[0], ids[-1], ENTRIES))
        return self.told

    @staticmethod
    def facts(info: raxlog.StreamInfo) -> tuple[Any, ...]:
        assert info.first_entry is not None
        assert info.last_entry is not None
        return info.length, info.first_entry.id, info.last_entry.id, info.entries_added


def read_damaged(path: Path, content: Content, name: str, seed: int) -> list[raxlog.CorruptionError]:
    """Read the damaged stream, and the others, which must be whole."""
    with raxlog.open(path, durability="relaxed") as store:
        assert store.streams() == sorted(OPTIONS)
        told = Reader(store, name, content).everything(random.Random(seed))
        for other in OPTIONS.keys() - {name}:
            assert Reader(store, other, content).everything(random.Random(seed)) == []
            assert store.stream(other).append({"still": "here"}) is not None
    return told


def spread(records: list[tuple[bytes, bytes]], many: int) -> Iterable[tuple[bytes, bytes]]:
    """The first, the last, and some between."""
    return [records[place * (len(records) - 1) // max(1, many - 1)] for place in range(min(many, len(records)))]


def test_a_store_without_damage_reads_as_it_was_written(sound: tuple[Path, Content], tmp_path: Path) -> None:
    path = changed_copy(sound[0], tmp_path / "copy", {})
    for number, name in enumerate(OPTIONS):
        assert read_damaged(path, sound[1], name, number) == []
        shutil.rmtree(path)
        changed_copy(sound[0], path, {})


@pytest.mark.parametrize("number", [1, 2], ids=["raw", "zstd"])
def test_a_flipped_bit_in_a_node_is_told_with_stream_and_node(
    sound: tuple[Path, Content], tmp_path: Path, number: int
) -> None:
    rng = random.Random(number)
    name = list(OPTIONS)[number - 1]
    for round_, (key, value) in enumerate(spread(records_of(sound[0], number, layout.NODE), 7)):
        for at in [rng.randrange(30), rng.randrange(30, len(value))]:
            damaged = {key: flipped(value, at, 1 << rng.randrange(8))}
            path = changed_copy(sound[0], tmp_path / f"{round_}-{at}", damaged)
            told = read_damaged(path, sound[1], name, round_)
            assert told
            node = str(raxlog.StreamID.from_bytes(key[9:]))
            for error in told:
                assert error.stream == repr(name)
                assert error.node == node
                assert node in str(error)
            shutil.rmtree(path)


@pytest.mark.parametrize("kind", [layout.DEAD, layout.ORDINAL, layout.HEADER], ids=["dead", "ordinals", "header"])
def test_a_flipped_bit_in_a_record_is_told(sound: tuple[Path, Content], tmp_path: Path, kind: int) -> None:
    rng = random.Random(kind)
    records = records_of(sound[0], 1, kind)
    assert records
    for round_, (key, value) in enumerate(records):
        for at in {0, 8, len(value) - 1, rng.randrange(len(value))}:
            damaged = {key: flipped(value, at, 1 << rng.randrange(8))}
            path = changed_copy(sound[0], tmp_path / f"{round_}-{at}", damaged)
            assert read_damaged(path, sound[1], "orders", round_)
            shutil.rmtree(path)


def test_a_flipped_bit_in_a_name_is_told_and_leaves_the_others(sound: tuple[Path, Content], tmp_path: Path) -> None:
    key = layout.NAMES + b"orders"
    value = raw_records(sound[0])[key]
    for at in range(len(value)):
        path = changed_copy(sound[0], tmp_path / str(at), {key: flipped(value, at, 4)})
        assert read_damaged(path, sound[1], "orders", at)
        shutil.rmtree(path)


def test_a_flipped_bit_in_the_stores_own_record_refuses_the_store(sound: tuple[Path, Content], tmp_path: Path) -> None:
    value = raw_records(sound[0])[layout.STORE_KEY]
    for at in range(0, len(value), 5):
        path = changed_copy(sound[0], tmp_path / str(at), {layout.STORE_KEY: flipped(value, at, 1)})
        with pytest.raises(raxlog.CorruptionError):
            raxlog.open(path)


@pytest.mark.parametrize("kind", [layout.NODE, layout.HEADER, layout.ORDINAL, layout.DEAD])
def test_a_value_that_is_cut_off_is_told(sound: tuple[Path, Content], tmp_path: Path, kind: int) -> None:
    for round_, (key, value) in enumerate(spread(records_of(sound[0], 1, kind), 3)):
        for size in (0, 7, len(value) // 2, len(value) - 1):
            path = changed_copy(sound[0], tmp_path / f"{round_}-{size}", {key: value[:size]})
            assert read_damaged(path, sound[1], "orders", round_)
            shutil.rmtree(path)


@pytest.mark.parametrize("number", [1, 2], ids=["raw", "zstd"])
def test_a_node_under_the_key_of_another_is_told(sound: tuple[Path, Content], tmp_path: Path, number: int) -> None:
    nodes = records_of(sound[0], number, layout.NODE)
    first, second = nodes[len(nodes) // 2 - 1], nodes[len(nodes) // 2]
    path = changed_copy(sound[0], tmp_path / "copy", {first[0]: second[1], second[0]: first[1]})
    assert read_damaged(path, sound[1], list(OPTIONS)[number - 1], number)


@pytest.mark.parametrize("number", [1, 2], ids=["raw", "zstd"])
def test_nodes_that_have_vanished_are_told_by_whoever_would_miss_them(
    sound: tuple[Path, Content], tmp_path: Path, number: int
) -> None:
    name = list(OPTIONS)[number - 1]
    keys = [key for key, _ in records_of(sound[0], number, layout.NODE)]
    last = len(keys) - 1
    runs = [(0, 1), (0, 2), (1, 2), (1, 3), (last // 2, last // 2 + 1), (last - 1, last), (last, last + 1), (2, last)]
    for low, high in [*runs, (0, last + 1)]:
        path = changed_copy(sound[0], tmp_path / f"{low}-{high}", dict.fromkeys(keys[low:high]))
        told = read_damaged(path, sound[1], name, low)
        assert told
        assert {error.stream for error in told} == {repr(name)}
        shutil.rmtree(path)


def test_every_entry_outside_a_damaged_node_can_still_be_read(sound: tuple[Path, Content], tmp_path: Path) -> None:
    nodes = records_of(sound[0], 1, layout.NODE)
    key, value = nodes[len(nodes) // 2]
    behind = raxlog.StreamID.from_bytes(nodes[len(nodes) // 2 + 1][0][9:])
    master = raxlog.StreamID.from_bytes(key[9:])
    path = changed_copy(sound[0], tmp_path / "copy", {key: flipped(value, 40, 1)})
    whole = sound[1]["orders"]
    with raxlog.open(path) as store:
        orders = store.stream("orders")
        for sid, pairs in whole:
            if sid < master or sid >= behind:
                entry = orders.get(sid)
                assert entry is not None
                assert entry.pairs == pairs
        before = [entry.id for entry in orders.range("-", master.prev())]
        after = [entry.id for entry in orders.range(behind, "+")]
        assert before == [sid for sid, _ in whole if sid < master]
        assert after == [sid for sid, _ in whole if sid >= behind]
        assert [entry.id for entry in orders.range(behind, "+", reverse=True)] == after[::-1]
        assert orders.append({"n": 1}) is not None


def test_appending_behind_a_damaged_last_node_is_refused(sound: tuple[Path, Content], tmp_path: Path) -> None:
    key, value = records_of(sound[0], 1, layout.NODE)[-1]
    for change in (flipped(value, len(value) - 9, 1), None):
        path = changed_copy(sound[0], tmp_path / str(change is None), {key: change})
        with raxlog.open(path) as store:
            with pytest.raises(raxlog.CorruptionError) as caught:
                store.stream("orders").append({"n": 1})
            assert caught.value.stream == "'orders'"
        before = raw_records(path)
        assert before.get(key) == change


@pytest.mark.parametrize("ask", [
    lambda group: group.read("b", count=50, claim_idle=0),
    lambda group: group.read("b", count=50, claim_idle=0.001),
    lambda group: group.autoclaim("b", count=50),
])  # fmt: skip
def test_pending_entries_that_vanish_after_they_were_found_whole_are_missed(
    tmp_path: Path, ask: Callable[[raxlog.Group], Any]
) -> None:
    """A damaged page may show its rows to one call and not to the next."""
    with raxlog.open(tmp_path / "s.rax") as store:
        stream = store.stream("s")
        stream.extend([{"n": n} for n in range(30)])
        stream.create_group("g", "0")
        group = stream.group("g")
        group.read("a")
        assert group.autoclaim("b", min_idle=3600).entries == group.read("b", claim_idle=3600) == []  # all is there

        def lose(txn: Any) -> None:
            for kind in (layout.PENDING, layout.PENDING_BY_TIME):
                prefix = layout.group_family(1, kind, 1)
                (key,) = [prefix + key for key, _ in Rax(txn, prefix).items()]
                txn.delete(key)

        store._source.submit(lose)
        with pytest.raises(raxlog.CorruptionError, match="not whole"):
            ask(group)


def show_in_place_of(path: Path, wanted: bytes, shown: bytes) -> bool:
    """Have each leaf of LMDB's that has both rows show one of them where the other was; False where none has."""
    file = path / "000001" / "data.mdb"
    data = bytearray(file.read_bytes())
    is_changed = False
    for page in range(2 * 4096, len(data), 4096):
        number, _, flags, lower, _ = struct.unpack_from("<QHHHH", data, page)
        if number != page // 4096 or flags != 2:
            continue
        places = {}
        for place in range(page + 16, page + lower, 2):
            row = page + int.from_bytes(data[place : place + 2], "little")
            size = int.from_bytes(data[row + 6 : row + 8], "little")
            places[bytes(data[row + 8 : row + 8 + size])] = place
        if wanted in places and shown in places:
            data[places[wanted] : places[wanted] + 2] = data[places[shown] : places[shown] + 2]
            is_changed = True
    file.write_bytes(data)
    return is_changed


def test_a_family_whose_last_row_shows_one_of_an_earlier_family_does_not_end_there(tmp_path: Path) -> None:
    path = tmp_path / "s.rax"
    with raxlog.open(path, durability="relaxed") as store:
        stream = store.stream("s")
        stream.extend([{"n": n} for n in range(9)])
        group = stream.create_group("g", "0")
        for consumer in ("one", "two", "three"):
            group.read(consumer, count=3)
    found = records_of(path, 1, layout.CONSUMER)
    assert len(found) == 3
    assert show_in_place_of(path, found[-1][0], records_of(path, 1, layout.GROUP)[0][0])
    with raxlog.open(path) as store:
        for read in (store.stream("s").group("g").consumers, store.stream("s").group("g").pending):
            with pytest.raises(raxlog.CorruptionError, match="comes behind"):
                read()


@pytest.mark.parametrize("logged", [False, True])
def test_a_row_of_subscribers_that_comes_a_second_time_is_told(tmp_path: Path, logged: bool) -> None:
    """By those who ask for them. The store can be opened, also where the log has what data.mdb does not."""
    path = tmp_path / "s.rax"
    with raxlog.open(path, durability="relaxed") as store:
        for _ in range(15):
            store.subjects.insert_many([Subscription.of("a.b")] * 100)
    if logged:
        with raxlog.open(path, durability="relaxed") as store:
            store.subjects.insert_many([Subscription.of("a.b")])
            path = shutil.copytree(path, tmp_path / "logged.rax")
    rows = sorted(key for key in raw_records(path) if b"a\0b\0" in key)
    damaged = 0
    for first, second in pairwise(rows[1:]):
        copy = tmp_path / "copy.rax"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(path, copy)
        if show_in_place_of(copy, second, first):  # else they lie in two leaves
            damaged += 1
            store = raxlog.open(copy)
            with pytest.raises(raxlog.CorruptionError):
                store.subjects.match("a.b")
            with contextlib.suppress(raxlog.CorruptionError):  # where the last checkpoint would write into that page
                store.close()
    assert damaged
