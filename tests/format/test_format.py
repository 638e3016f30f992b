"""The format on disk is what docs/format.md says: a reader written from it sees what raxlog sees.

raxlog writes ──> store ──> second_reader.py (knows the page only)
                    └─────> raxlog reads          both must say the same
"""

from __future__ import annotations

import random
import re
import shutil
import struct
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import raxlog
import second_reader
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from raw_records import raw_records, resealed
from raxlog.storage.format import keys
from raxlog.stream.node import listpack

PAGE = Path(__file__).parents[2] / "docs" / "format.md"
READERS = Path(__file__).parents[1] / "support" / "readers"

# a value of each encoding, and of each side of each border
NUMBERS = [
    0, 1, 127, 128, -1, 4095, 4096, -4096, -4097, 32767, 32768, -32768, -32769, 8388607, 8388608,
    -8388608, -8388609, 2147483647, 2147483648, -2147483648, -2147483649, (1 << 63) - 1, -(1 << 63),
]  # fmt: skip
TEXTS = [
    b"", b"bob", b"-0", b"007", b"+7", b"9223372036854775808", b"\xff\x00\xfe", bytes(range(256)),
    b"a" * 63, b"a" * 64, b"a" * 125, b"a" * 126, b"a" * 4095, b"a" * 4096,
    *(b"x" * (border - 5 + step) for border in (16383, 2097151) for step in (-1, 0, 1)),
]  # fmt: skip
LIMITS: dict[str, dict[str, Any]] = {
    "by pages": {},
    "as Redis": {"node_max_bytes": 4096, "node_max_entries": 100},
    "five entries": {"node_max_entries": 5},
    "zstd": {"compression": "zstd"},
    "compact": {"compression": "compact"},
}


def assert_same(store: raxlog.Store) -> second_reader.Store:
    """Assert that both readers tell the same of every stream."""
    read = second_reader_in_another_process(store.path)
    assert sorted(read.streams) == store.streams()
    for name, stream in read.streams.items():
        ours = store.stream(name)
        info = ours.info()
        assert stream.length == len(ours) == info.length
        assert stream.last == ours.last_id == info.last_generated_id
        assert stream.first == info.recorded_first_entry_id
        assert stream.max_deleted == info.max_deleted_entry_id
        assert stream.entries_added == info.entries_added
        assert stream.next_ordinal == info.next_ordinal
        assert stream.leaves == info.radix_tree_keys
        live = [(entry.id, entry.pairs) for entry in stream.entries if not entry.deleted]
        assert live == [(tuple(entry.id), entry.pairs) for entry in ours.range()]
        assert all(ours.get(raxlog.StreamID(*e.id)) is None for e in stream.entries if e.deleted)
    return read


def second_reader_in_another_process(path: Path) -> second_reader.Store:
    """What the second reader says. LMDB forbids a process to open a store twice: read a copy."""
    copy = path.with_name(path.name + ".copy")
    if copy.exists():
        shutil.rmtree(copy)
    shutil.copytree(path, copy)
    return second_reader.read_store(copy)


def test_the_second_reader_knows_nothing_of_raxlog() -> None:
    loaded = "import sys, second_reader; print('raxlog' in sys.modules)"
    answer = subprocess.run(
        [sys.executable, "-c", loaded], cwd=READERS, check=True, capture_output=True
    )
    assert answer.stdout.strip() == b"False"


def test_an_empty_store_reads_as_one(store: raxlog.Store) -> None:
    assert assert_same(store).streams == {}


@pytest.mark.parametrize("limits", LIMITS.values(), ids=LIMITS)
def test_every_encoding_is_read_back_by_a_reader_made_from_the_page(
    store: raxlog.Store, limits: dict[str, Any]
) -> None:
    stream = store.stream("encodings", **limits)
    for number in NUMBERS:
        stream.append({"n": number, number: "n"})
    for text in TEXTS:
        stream.append([(b"t", text), (b"t", text[:100]), (text[:40], b"")])
    many = [(b"%d" % i, b"v%d" % i) for i in range(40_000)]  # more elements than a header can say
    stream.append(many)
    read = assert_same(store)
    assert read.streams[b"encodings"].entries[-1].pairs == many


@pytest.mark.parametrize("limits", LIMITS.values(), ids=LIMITS)
def test_deletions_trims_and_compaction_leave_what_the_page_says(
    store: raxlog.Store, limits: dict[str, Any]
) -> None:
    stream = store.stream("log", **limits)
    chance = random.Random(20)
    ids = []
    for _ in range(examples(15, 15)):
        ids += stream.extend(
            {"user": f"user-{chance.randrange(50)}", "n": chance.randrange(1 << 40), "path": "/a/b"}
            for _ in range(400)
        )
        stream.delete(*chance.sample(ids, 60))
        at = chance.randrange(len(ids))
        stream.delete(*ids[at : at + 150])
    assert_same(store)
    stream.trim(minid=ids[1500])
    assert_same(store)
    stream.trim(maxlen=2000)
    assert_same(store)
    stream.delete(*ids[-700:])
    assert_same(store)
    stream.append({"a": "new", "node": "follows"})
    assert_same(store)
    stream.trim(maxlen=0)
    stream.append({"last": 1})
    assert_same(store)


def test_sealed_nodes_are_zstd_frames_and_the_last_node_is_raw(store: raxlog.Store) -> None:
    stream = store.stream("events", compression="zstd")
    for _ in range(20):
        stream.extend({"event": "page viewed", "path": "/index.html", "n": n} for n in range(100))
    nodes = assert_same(store).streams[b"events"].nodes
    assert {node.codec for node in nodes[:-1]} == {1}
    assert nodes[-1].codec == 0
    stream.configure(compression="none")
    stream.extend({"event": "page viewed", "path": "/index.html", "n": n} for n in range(2000))
    assert [node.codec for node in assert_same(store).streams[b"events"].nodes][-2:] == [0, 0]


@pytest.mark.parametrize("limits", LIMITS.values(), ids=LIMITS)
def test_nodes_of_several_pages_are_what_the_page_says(store: raxlog.Store, limits: dict[str, Any]) -> None:
    stream = store.stream("large", **limits)
    chance = random.Random(9)
    ids = []
    for _ in range(8):
        ids += stream.extend({"v": b"v%d" % n * chance.randrange(1, 3000)} for n in range(20))
        ids += [stream.append({"v": b"ab" * chance.randrange(5000)}, id="*") for _ in range(5)]
        stream.delete(*chance.sample(ids, 8))
        assert stream.count("-", "+") == len(stream) == sum(1 for _ in stream.range())
    assert_same(store)
    stream.trim(maxlen=70)
    stream.delete(*ids[-15:])
    stream.append({"v": "x" * 2100})
    assert_same(store)
    parts = stream.split(4)
    assert [one.entries for one in parts] == [sum(1 for _ in stream.range(one.start, one.end)) for one in parts]
    assert sum(one.entries for one in parts) == len(stream)


def test_streams_renamed_deleted_emptied_and_set_are_read_as_raxlog_reads_them(
    store: raxlog.Store,
) -> None:
    for name in ("a", "b", "c", b"\xff\x00", "n" * 502):
        store.stream(name).extend({"n": n} for n in range(300))
    store.rename_stream("a", "z")
    store.delete_stream("b")
    store.stream("c").trim(maxlen=0)
    store.stream("c").set_id("18446744073709551615-3", entries_added=7)
    store.stream("z").set_id("18446744073709551615-18446744073709551615", max_deleted_id="5-5")
    read = assert_same(store)
    assert set(read.streams) == {b"z", b"c", b"\xff\x00", b"n" * 502}


def test_ids_far_from_their_node_wrap_around(store: raxlog.Store) -> None:
    stream = store.stream("far")
    stream.append({"n": 1}, id="0-1")
    stream.append({"n": 2}, id="5-18446744073709551615")
    stream.append({"n": 3}, id="9223372036854775809-0")
    stream.append({"n": 4}, id="18446744073709551615-18446744073709551615")
    assert len(assert_same(store).streams[b"far"].nodes) == 1


def test_the_ordinal_index_notes_every_64th_node(store: raxlog.Store) -> None:
    stream = store.stream("index", node_max_entries=2)
    stream.extend({"n": n} for n in range(600))
    read = assert_same(store).streams[b"index"]
    assert [ordinal for ordinal, _ in read.notes] == [0, 128, 256, 384, 512]


def test_a_node_that_is_the_last_once_more_takes_over_the_ordinals_behind_it(
    store: raxlog.Store,
) -> None:
    stream = store.stream("again")
    stream.extend({"n": n} for n in range(1000))
    large = stream.extend({"pad": "x" * 4000} for _ in range(3))  # a node each
    stream.delete(*large)
    small = stream.append({"n": "small enough for the node before"})
    last = assert_same(store).streams[b"again"].nodes[-1]
    assert last.span == len(last.entries) + len(large)
    stream.delete(small)
    assert_same(store)


_OPERATION = st.one_of(
    st.tuples(st.just("append"), st.integers(1, 40), st.integers(0, 200)),
    st.tuples(st.just("delete"), st.integers(0, 400), st.integers(1, 30)),
    st.tuples(st.just("maxlen"), st.integers(0, 300), st.booleans()),
    st.tuples(st.just("minid"), st.integers(0, 400), st.booleans()),
)


@settings(max_examples=examples(30))
@given(
    operations=st.lists(_OPERATION, min_size=1, max_size=25),
    limits=st.sampled_from(sorted(LIMITS)),
)
def test_whatever_is_done_to_a_stream_both_readers_agree(
    tmp_path_factory: pytest.TempPathFactory, operations: list[tuple[Any, ...]], limits: str
) -> None:
    path = tmp_path_factory.mktemp("any") / "store.rax"
    with raxlog.open(path, durability="relaxed", encoding=None) as store:
        stream = store.stream("s", **LIMITS[limits])
        ids: list[raxlog.StreamID] = []
        for what, *how in operations:
            if what == "append":
                ids += stream.extend({"n": n, "pad": "x" * how[1]} for n in range(how[0]))
            elif what == "delete":
                stream.delete(*ids[how[0] : how[0] + how[1]])
            elif what == "maxlen":
                stream.trim(maxlen=how[0], approximate=how[1])
            elif ids:
                stream.trim(minid=ids[min(how[0], len(ids) - 1)], approximate=how[1])
        assert_same(store)
    shutil.rmtree(path.parent)


# -- what the second reader refuses ---------------------------------------------------------


@pytest.fixture
def closed(tmp_path: Path) -> dict[bytes, bytes]:
    """All keys and values of a small store of several nodes."""
    with raxlog.open(tmp_path / "closed.rax", node_max_entries=10, encoding=None) as store:
        ids = store.stream("s").extend({"n": n} for n in range(100))
        store.stream("s").delete(*ids[25:65])
    return raw_records(tmp_path / "closed.rax")


def test_the_second_reader_notices_every_flipped_bit(closed: dict[bytes, bytes]) -> None:
    second_reader.understand(closed)
    for key, value in closed.items():
        for at in range(len(value)):
            bad = value[:at] + bytes([value[at] ^ 1 << at % 8]) + value[at + 1 :]
            with pytest.raises(second_reader.Wrong):
                second_reader.understand({**closed, key: bad})


def test_the_second_reader_notices_a_node_that_has_vanished(closed: dict[bytes, bytes]) -> None:
    nodes = [key for key in closed if key[8] == 0x30]
    assert len(nodes) > 5
    for gone in nodes:
        rest = {key: value for key, value in closed.items() if key != gone}
        header = next(key for key in closed if key[8] == 0x31)
        rest[header] = resealed(header, closed[header], partial(one_node_less, len(closed[gone])))
        with pytest.raises(second_reader.Wrong):
            second_reader.understand(rest)


def test_the_second_reader_notices_two_nodes_in_each_others_place(
    closed: dict[bytes, bytes],
) -> None:
    one, two, *_ = (key for key in closed if key[8] == 0x30)
    with pytest.raises(second_reader.Wrong, match="checksum"):
        second_reader.understand({**closed, one: closed[two], two: closed[one]})


def one_node_less(size: int, row: list[Any]) -> None:
    """Let a header's row state one node less: whoever took the node has hidden his trace."""
    numbers = [*struct.unpack("<14Q", row[1])]
    numbers[6] -= 1
    numbers[5] -= size
    row[1] = struct.pack("<14Q", *numbers)


# -- the page's own examples ----------------------------------------------------------------


def hex_after(text: str, label: str) -> bytes:
    """The bytes in hex that follow ``label`` on a line of the page."""
    (line,) = (line for line in text.splitlines() if line.startswith(label))
    return bytes.fromhex(line.removeprefix(label))


def test_the_examples_of_the_page_are_what_raxlog_writes(tmp_path: Path) -> None:
    page = PAGE.read_text(encoding="utf-8")
    with raxlog.open(tmp_path / "example.rax", encoding=None) as store:
        stream = store.stream("orders")
        stream.append({"name": "bob", "age": 7}, id="1000-5")
        stream.append({"x": 300}, id="1003-1")
    written = raw_records(tmp_path / "example.rax")
    assert written[hex_after(page, "key    ")] == hex_after(page, "value  ")
    example = page.split("as a whole block.")[1].split("```")[1]
    block = b"".join(bytes.fromhex(line.split("   ")[0]) for line in example.split("\n") if line)
    key = bytes.fromhex(page.split("25-byte key")[1].split("```")[1])
    assert written[key] == block


def test_the_elements_in_the_pages_table_are_what_raxlog_writes() -> None:
    table = PAGE.read_text(encoding="utf-8").split("| value | element |")[1].split("\n\n")[0]
    rows = [line.strip("| ").split(" | ") for line in table.splitlines()[2:]]
    assert len(rows) >= 15
    for shown, element in rows:
        value = shown.strip('`"').encode()
        if " times " in shown:
            count, _, text = shown.partition(" times ")
            value = text.strip("`").encode() * int(count.replace(",", ""))
        start, ellipsis, end = element.replace("`", "").partition("…")
        encoded = listpack.encode(value)
        if ellipsis:
            assert encoded.startswith(bytes.fromhex(start))
            assert encoded.endswith(bytes.fromhex(end))
        else:
            assert encoded == bytes.fromhex(start)


def test_the_page_lists_every_kind_of_key_and_states_the_formats() -> None:
    page = " ".join(PAGE.read_text(encoding="utf-8").split())
    table = page.split("## 3. Keys")[1].split("## 4.")[0]
    listed = set()
    for first, last in re.findall(r"\| (?:0|n) \| `(\w\w)`(?: to `(\w\w)`)?", table):
        listed |= set(range(int(first, 16), int(last or first, 16) + 1))
    listed |= {int(second, 16) for second in re.findall(r"`\w\w`, `(\w\w)` \|", table)}
    layout = keys.__doc__ or ""
    assert {int(kind, 16) for kind in re.findall(r"^    (?:0|n) +(\w\w) ", layout, re.M)} <= listed
    assert f"a format number, at present {keys.FORMAT}," in page
    assert f"in its record, at present {keys.STORE_FORMAT}." in page
