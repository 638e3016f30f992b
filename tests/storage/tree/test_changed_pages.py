"""Damaged pages are not written to: what was acknowledged stays in the log, and is there once the page is mended."""

from __future__ import annotations

import os
import random
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import crash_parts
import pytest
import raxlog
from counting import checkpoint
from raxlog.storage.format import records
from raxlog.storage.tree import changed_pages, lmdb_file
from raxlog.storage.tree.lmdb_file import BIG, BRANCH, HEADER, LEAF, PageFault, PageFile

PAGE = 4096
KEYS = [b"key%04d" % number for number in range(400)]
Spoil = Callable[[bytes, int, int], tuple[int, bytes]]  # of the file, its root and a leaf: a place, and what it becomes


@pytest.fixture
def path() -> Iterator[Path]:
    with crash_parts.in_memory() as folder:
        yield folder / "s.rax"


def number_at(data: bytes, at: int) -> int:
    return int(struct.unpack_from("=H", data, at)[0])


def flags(bit: int, of_leaf: bool) -> Spoil:
    def spoil(data: bytes, root: int, leaf: int) -> tuple[int, bytes]:
        at = PAGE * (leaf if of_leaf else root) + 10
        return at, struct.pack("=H", number_at(data, at) ^ bit)

    return spoil


def first_row_twice(data: bytes, root: int, leaf: int) -> tuple[int, bytes]:
    at = PAGE * leaf + HEADER
    return at + 2, data[at : at + 2]


def last_row_first(data: bytes, root: int, leaf: int) -> tuple[int, bytes]:
    at = PAGE * leaf + number_at(data, PAGE * leaf + 12) - 2
    return PAGE * leaf + HEADER, data[at : at + 2]


def other_number(data: bytes, root: int, leaf: int) -> tuple[int, bytes]:
    return PAGE * leaf, struct.pack("=Q", leaf ^ 8)


def rows_begin_earlier(data: bytes, root: int, leaf: int) -> tuple[int, bytes]:
    at = PAGE * leaf + 14
    return at, struct.pack("=H", number_at(data, at) - 2)


def other_child(data: bytes, root: int, leaf: int) -> tuple[int, bytes]:
    """The way to the first leaf leads to the second."""
    first, second = (PAGE * root + number_at(data, PAGE * root + HEADER + 2 * place) for place in (0, 1))
    return first, data[second : second + 2]


def first_key_of_the_branch_greater(data: bytes, root: int, leaf: int) -> tuple[int, bytes]:
    at = PAGE * root + number_at(data, PAGE * root + HEADER + 2) + 8
    return at, b"\xff"


def longer_run(data: bytes, root: int, leaf: int) -> tuple[int, bytes]:
    """The first page of a long value says that there are more."""
    for place in range(HEADER, number_at(data, PAGE * leaf + 12), 2):
        at = PAGE * leaf + number_at(data, PAGE * leaf + place)
        if number_at(data, at + 4) & BIG:
            first = struct.unpack_from("=Q", data, at + 8 + number_at(data, at + 6))[0]
            return PAGE * first + 12, struct.pack("=I", 9)
    raise AssertionError("no long value")


@pytest.mark.parametrize("is_deleted", [False, True])
@pytest.mark.parametrize("spoil", [
    flags(0x8000, False), flags(0x4000, False), flags(0x8000, True), flags(0x10, True), first_row_twice, last_row_first,
    other_number, rows_begin_earlier, other_child, first_key_of_the_branch_greater, longer_run,
])  # fmt: skip
def test_a_damaged_page_is_not_written_to_and_the_log_keeps_all(path: Path, spoil: Spoil, is_deleted: bool) -> None:
    expected = dict.fromkeys(KEYS, b"v" * 60) | {KEYS[0]: b"long" * 3000}
    with raxlog.open(path, encoding=None) as store:
        store.state.update(expected)
        checkpoint(store)
        data_file = store._env.map.generation / "data.mdb"
        data = data_file.read_bytes()
        with PageFile(data_file) as file:
            root = file.metas()[0].root
            assert lmdb_file.flags_of(file.page(root)) == BRANCH
            leaves = lmdb_file.branch(root, file.page(root)).pages
            leaf = next(number for number in leaves if KEYS[0] in file.page(number))
            assert lmdb_file.flags_of(file.page(leaf)) == LEAF
        at, content = spoil(data, root, leaf)
        assert data[at : at + len(content)] != content
        for key in (KEYS[0], KEYS[1], KEYS[-1]):
            if is_deleted:
                del store.state[key], expected[key]
            else:
                store.state[key] = expected[key] = b"w" * 100
        with data_file.open("r+b") as opened:
            opened.seek(at)
            opened.write(content)
        damaged = data_file.read_bytes()
        with pytest.raises(raxlog.CorruptionError, match=r"page \d+ of data\.mdb"):
            checkpoint(store)
        assert store.state.get(KEYS[-1]) == expected.get(KEYS[-1])
        with pytest.raises(raxlog.CorruptionError, match=r"page \d+ of data\.mdb"):
            store.close()
    assert data_file.read_bytes() == damaged, "nothing has been written to it"
    raxlog.salvage(path, path.with_name("new.rax"))
    with raxlog.open(path.with_name("new.rax"), encoding=None) as store:
        assert dict(store.state.items()) == expected
    data_file.write_bytes(data)
    with raxlog.open(path, encoding=None) as store:
        assert dict(store.state.items()) == expected
        checkpoint(store)
        assert dict(store.state.items()) == expected
    assert raxlog.check(path).ok


def test_a_value_that_became_shorter_in_one_transaction_keeps_its_pages_and_is_no_damage(path: Path) -> None:
    """A compaction puts all that was written beside it into the copy so, in few transactions."""
    with raxlog.open(path, encoding=None) as store:
        store.state.update(dict.fromkeys(KEYS, b"v" * 60))
        checkpoint(store)
        with store._env.map.log.tree.write() as txn:
            key = next(bytes(key) for key, _ in txn.cursor() if bytes(key).endswith(KEYS[7]))
            for size in (30_000, 5_000):
                txn.put(key, records.seal(key, [b"x" * size]))
        for value in (b"y" * 5_000, b"z" * 9_000):
            store.state[KEYS[7]] = value
            checkpoint(store)
        assert store.state[KEYS[7]] == b"z" * 9_000
    assert raxlog.check(path).ok


def test_a_damaged_page_beside_one_that_loses_its_rows_is_not_written_to(path: Path) -> None:
    """LMDB would move rows of it."""
    with raxlog.open(path, encoding=None) as store:
        store.state.update(dict.fromkeys(KEYS, b"v" * 60))
        checkpoint(store)
        data_file = store._env.map.generation / "data.mdb"
        with PageFile(data_file) as file:
            root = file.metas()[0].root
            leaves = lmdb_file.branch(root, file.page(root)).pages
        data = bytearray(data_file.read_bytes())
        held = [[key for key in KEYS if key in data[PAGE * leaf : PAGE * leaf + PAGE]] for leaf in leaves]
        place = next(place for place in range(2, len(leaves)) if held[place - 1] and held[place])
        with data_file.open("r+b") as opened:
            opened.seek(PAGE * leaves[place - 1] + 11)
            opened.write(b"\x80")
        store.state[held[place][5]] = b"w" * 60
        checkpoint(store)
        for key in held[place][:-1]:
            del store.state[key]
        with pytest.raises(raxlog.CorruptionError, match=f"page {leaves[place - 1]} of data.mdb"):
            checkpoint(store)
        with pytest.raises(raxlog.CorruptionError):
            store.close()


def test_a_damaged_list_of_free_pages_is_not_written_to(path: Path) -> None:
    with raxlog.open(path, encoding=None) as store:
        for value in (b"one", b"two"):
            store.state[b"key"] = value
            checkpoint(store)
        store.state[b"key"] = b"three"
        data_file = store._env.map.generation / "data.mdb"
        with PageFile(data_file) as file:
            free_root = file.metas()[0].free_root
        with data_file.open("r+b") as opened:
            opened.seek(PAGE * free_root + 11)
            opened.write(b"\x80")
        with pytest.raises(raxlog.CorruptionError, match=f"page {free_root} of data.mdb"):
            checkpoint(store)
        with data_file.open("r+b") as opened:
            opened.seek(PAGE * free_root + 11)
            opened.write(b"\0")
        checkpoint(store)
    with raxlog.open(path, encoding=None) as store:
        assert store.state[b"key"] == b"three"
    assert raxlog.check(path).ok


def require_sound_by_objects(file: PageFile, number: int, low: bytes, high: bytes | None, last_page: int) -> None:
    """What the look asks of a page and of all below it, in the words of lmdb_file.py, an object for each record."""
    if not 2 <= number <= last_page:
        raise PageFault(number, "no page of the store")
    page = file.page(number)
    lmdb_file.require_head(number, page)
    if lmdb_file.flags_of(page) == BRANCH:
        inner = lmdb_file.branch(number, page)
        starts = [low, *inner.keys[1:]]
        ends = [*starts[1:], high]
        if any(end is not None and start >= end for start, end in zip(starts, ends, strict=True)):
            raise PageFault(number, "order")
        for child, start, end in zip(inner.pages, starts, ends, strict=True):
            require_sound_by_objects(file, child, start, end, last_page)
        return
    nodes = lmdb_file.leaf(number, page)
    found = [node.key for node in nodes]
    if not found or found != sorted(set(found)) or found[0] < low or (high is not None and found[-1] >= high):
        raise PageFault(number, "order")
    taken = [8 + len(node.key) + (8 if node.inline is None else node.size) for node in nodes]
    if sum(size + size % 2 for size in taken) != PAGE - number_at(page, 14):
        raise PageFault(number, "lies over another")
    for node in nodes:
        if node.inline is None:
            file.require_run(node.overflow, node.size, last_page)


def is_refused(look: Callable[[], None]) -> bool:
    try:
        look()
    except (PageFault, raxlog.CorruptionError):
        return True
    return False


def pages_below(file: PageFile, number: int) -> list[int]:
    page = file.page(number)
    children = lmdb_file.branch(number, page).pages if lmdb_file.flags_of(page) == BRANCH else []
    return [number, *(below for child in children for below in pages_below(file, child))]


def rows_below(file: PageFile, number: int) -> list[bytes]:
    leaves = [page for page in pages_below(file, number) if lmdb_file.flags_of(file.page(page)) == LEAF]
    return [node.key for leaf in leaves for node in lmdb_file.leaf(leaf, file.page(leaf))]


@pytest.mark.parametrize("longer", [b"", b"x" * 400], ids=["two levels", "three levels"])
@pytest.mark.parametrize("is_later", [False, True])
def test_a_row_that_the_ways_lead_past_is_not_written_again(path: Path, longer: bytes, is_later: bool) -> None:
    """A branch says of a page that it begins later, or earlier, than it does: LMDB would look into the one beside."""
    with raxlog.open(path, encoding=None) as store:
        store.state.update((key + longer, b"v" * 60) for key in KEYS[:: 4 if longer else 1])
        checkpoint(store)
        data_file = store._env.map.generation / "data.mdb"
        copy = path.with_name("copy")
        copy.write_bytes(data_file.read_bytes())
    with PageFile(copy) as file, copy.open("r+b", buffering=0) as opened:
        root = file.metas()[0].root
        inner = lmdb_file.branch(root, file.page(root))
        left, right = (rows_below(file, inner.pages[place]) for place in (0, 1))
        lost, begins = (right[0], right[1]) if is_later else (left[-1], left[-1])
        at = number_at(file.page(root), HEADER + 2) + 8
        changed_pages.require_sound(file, [(lost, b"w")])
        opened.seek(root * PAGE + at)
        assert len(begins) == len(inner.keys[1])
        opened.write(begins)
        with pytest.raises(raxlog.CorruptionError, match="keys of a page"):
            changed_pages.require_sound(file, [(lost, b"w")])


@pytest.mark.parametrize("longer", [b"", b"x" * 400], ids=["two levels", "three levels"])
def test_whatever_is_damaged_the_look_finds_what_one_by_objects_finds(path: Path, longer: bytes) -> None:
    seed = int(os.environ.get("RAXLOG_SEED", "0")) or random.randrange(1 << 30)
    print(f"RAXLOG_SEED={seed}")
    chance = random.Random(seed)
    found = [key + longer for key in KEYS[:: 4 if longer else 1]]
    with raxlog.open(path, encoding=None) as store:
        store.state.update(dict.fromkeys(found, b"v" * 60) | {found[0]: b"long" * 3000, found[1]: b"", found[2]: b"o"})
        checkpoint(store)
        with store._env.map.log.tree.begin() as txn:
            rows = [(bytes(key), bytes(value)) for key, value in txn.cursor()]
        data_file = store._env.map.generation / "data.mdb"
        copy = path.with_name("copy")
        copy.write_bytes(data_file.read_bytes())
    many = 20_000 if os.environ.get("RAXLOG_LONG") == "1" else 1000
    refused = 0
    with PageFile(copy) as file, copy.open("r+b", buffering=0) as opened:
        meta = file.metas()[0]
        assert meta.depth == (3 if longer else 2)
        pages = pages_below(file, meta.root)
        branches = [number for number in pages if lmdb_file.flags_of(file.page(number)) == BRANCH]
        for _ in range(many):
            number = chance.choice(chance.choice((pages, branches)))
            page = file.page(number)
            heads = [*range(HEADER), *range(HEADER, number_at(page, 12))]
            heads += [at + byte for place in range(HEADER, number_at(page, 12), 2) for at in [number_at(page, place)]
                      for byte in range(24)]  # of a record: the numbers, and the key where it is another's
            at = min(chance.choice(heads), PAGE - 1) if chance.random() < 0.8 else chance.randrange(PAGE)
            changed = bytearray(page)
            changed[at] ^= 1 << chance.randrange(8)
            opened.seek(number * PAGE)
            opened.write(changed)
            by_objects = is_refused(lambda: require_sound_by_objects(file, meta.root, b"", None, meta.last_page))
            assert is_refused(lambda: changed_pages.require_sound(file, rows)) == by_objects, (number, at)
            refused += by_objects
            opened.seek(number * PAGE)
            opened.write(page)
        assert not is_refused(lambda: changed_pages.require_sound(file, rows))
    assert many / 5 < refused
