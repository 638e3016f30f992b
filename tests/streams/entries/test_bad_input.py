"""Bad arguments: each is a RaxlogError of its own kind that says what, where and what to do.

And it leaves the disk as it was: every entry of the database is compared before and after.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import raxlog
from refusals import MAX, dump, make_orders, refused


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store with one stream, 'orders': 1-1 to 9-1 but for 5-1, which has been deleted."""
    return make_orders(tmp_path / "store.rax")


@pytest.fixture
def unharmed(path: Path) -> Iterator[raxlog.Store]:
    """That store, open; at the end nothing in it may have changed, and it must still work."""
    before = dump(path)
    with raxlog.open(path) as store:
        yield store
    assert dump(path) == before
    with raxlog.open(path) as store:
        assert len(store.stream("orders")) == 8
        assert store.stream("orders").append({"n": 10}, "10-1") == (10, 1)


WRONG_IDS = [
    "", "-", "+", "$", ">", "x", "1-", "-1", "1-1-1", "1--1", "0x9-0", "1.5", "18446744073709551616", "5-*x", "é",
    b"\xff", b"1-\x00", "1" * 128, True, None, 1.5, -1, 1 << 64, [], (1, 2), {}, object(),
]  # fmt: skip


@pytest.mark.parametrize(
    "use",
    [
        lambda orders, sid: orders.append({"n": 1}, sid),
        lambda orders, sid: orders.extend([{"n": 1}, {"n": 2}], ["11-1", sid]),
        lambda orders, sid: orders.delete("1-1", sid),
        lambda orders, sid: orders.get(sid),
        lambda orders, sid: orders.rank(sid),
        lambda orders, sid: orders.set_id(sid),
        lambda orders, sid: orders.set_id("20-1", max_deleted_id=sid) if sid is not None else orders.set_id(None),
        lambda orders, sid: orders.trim(minid=sid) if sid is not None else orders.delete(None),
    ],
    ids=["append", "extend", "delete", "get", "rank", "set_id", "max_deleted_id", "minid"],
)
def test_what_is_no_id_is_refused_everywhere(unharmed: raxlog.Store, use: Callable[..., Any]) -> None:
    for wrong in WRONG_IDS:
        with refused(raxlog.InvalidStreamID):
            use(unharmed.stream("orders"), wrong)


@pytest.mark.parametrize("wrong", ["", "x", "(", "(-", "(+", "((1", "$", "1-", None, True, 1.5, []])
def test_what_is_no_end_of_a_range_is_refused_at_once(unharmed: raxlog.Store, wrong: Any) -> None:
    orders = unharmed.stream("orders")
    for call in (lambda: orders.range(wrong, "+"), lambda: orders.range("-", wrong), lambda: orders.count(wrong)):
        with refused(raxlog.InvalidStreamID):
            call()


def test_an_excluded_end_with_nothing_beyond_it_is_refused(unharmed: raxlog.Store) -> None:
    with refused(raxlog.InvalidStreamID, "invalid start ID for the interval"):
        unharmed.stream("orders").range(f"({MAX}-{MAX}")
    with refused(raxlog.InvalidStreamID, "invalid end ID for the interval"):
        unharmed.stream("orders").range("-", "(0-0")


@pytest.mark.parametrize("sid", ["9-1", "9-0", "9", "1-1", "8-*", 9])
def test_an_id_not_above_the_last_one_is_refused_with_both_named(unharmed: raxlog.Store, sid: Any) -> None:
    with refused(raxlog.IDTooSmall, "9-1", "'orders'", "Append with"):
        unharmed.stream("orders").append({"n": 1}, sid)


@pytest.mark.parametrize("sid", ["0-0", "0", 0])
def test_the_id_0_0_is_refused(unharmed: raxlog.Store, sid: Any) -> None:
    with refused(raxlog.IDZero, "0-0"):
        unharmed.stream("orders").append({"n": 1}, sid)
    with refused(raxlog.IDZero, "0-0"):
        unharmed.stream("never made").append({"n": 1}, sid)
    assert not unharmed.stream("never made").exists()


def test_one_id_too_small_refuses_the_whole_batch(unharmed: raxlog.Store) -> None:
    with refused(raxlog.IDTooSmall, "10-1", "'orders'"):
        unharmed.stream("orders").extend([{"n": n} for n in range(3)], ["10-1", "11-1", "10-1"])
    with refused(raxlog.IDTooSmall):
        unharmed.stream("never made").extend([{"n": n} for n in range(2)], ["10-1", "10-1"])
    assert not unharmed.stream("never made").exists()


@pytest.mark.parametrize("sid", ["*", f"{MAX}-*", f"{MAX}-{MAX}", "1-1"])
def test_a_stream_with_the_last_id_takes_no_more(unharmed: raxlog.Store, sid: str) -> None:
    with refused(raxlog.StreamExhausted, "'full'", f"{MAX}-{MAX}", "another stream"):
        unharmed.stream("full").append({"n": 1}, sid)


WRONG_FIELDS = [
    {}, [], (), iter([]), None, True, 5, 1.5, "text", b"bytes", object(), ["n"], [("n",)], [("n", 1, 2)], ["nv"],
    [("n", None)], [(None, 1)], {"n": None}, {"n": True}, {True: 1}, {"n": [1]}, {"n": {}}, {"n": 1j}, {("a",): 1},
    {"n": "\ud800"}, {"\ud800": 1}, [("a", 1), ("b",)],
]  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG_FIELDS, ids=lambda wrong: repr(wrong)[:19])
def test_fields_that_cannot_be_stored_are_refused(unharmed: raxlog.Store, wrong: Any) -> None:
    with refused(raxlog.InvalidFields):
        unharmed.stream("orders").append(wrong)


def test_an_entry_of_a_batch_that_cannot_be_stored_is_named_by_its_place(unharmed: raxlog.Store) -> None:
    with refused(raxlog.InvalidFields, "entry no. 1", "'n'", "NoneType"):
        unharmed.stream("orders").extend([{"n": 1}, {"n": None}, {"n": 3}])


def test_an_entry_above_a_gigabyte_is_refused(unharmed: raxlog.Store) -> None:
    part = bytes(1 << 20)
    with refused(raxlog.InvalidFields, "too large", str(1 << 30)):
        unharmed.stream("orders").append([(b"", part)] * 1025)


@pytest.mark.parametrize("entries", [None, 5, True])
def test_a_batch_that_is_no_iterable_is_refused(unharmed: raxlog.Store, entries: Any) -> None:
    with refused(raxlog.InvalidArgument):
        unharmed.stream("orders").extend(entries)


def test_a_batch_needs_as_many_ids_as_entries(unharmed: raxlog.Store) -> None:
    with refused(raxlog.InvalidArgument, "2 entries", "1 "):
        unharmed.stream("orders").extend([{"n": 1}, {"n": 2}], ["11-1"])
    with refused(raxlog.InvalidArgument):
        unharmed.stream("orders").extend([{"n": 1}], 5)  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", ["x" * 503, b"x" * 10_000, "é" * 252, None, True, [], ("a",), "\ud800", {}])
def test_a_name_that_cannot_be_a_key_is_refused(unharmed: raxlog.Store, wrong: Any) -> None:
    calls: list[Callable[[], Any]] = [
        lambda: unharmed.stream(wrong),
        lambda: unharmed.delete_stream(wrong),
        lambda: unharmed.rename_stream("orders", wrong),
        lambda: unharmed.rename_stream(wrong, "new"),
    ]
    for call in calls:
        with refused(raxlog.InvalidName):
            call()


def test_a_name_may_be_as_long_as_the_message_says(tmp_path: Path) -> None:
    with raxlog.open(tmp_path / "store.rax") as store:
        for name in (b"x" * 502, b""):
            store.stream(name).append({"n": 1}, "1-1")
            assert len(store.stream(name)) == 1


WRONG_TRIMS: list[dict[str, Any]] = [
    {}, {"maxlen": -1}, {"maxlen": 1.5}, {"maxlen": "3"}, {"maxlen": True}, {"maxlen": 3, "minid": "3-1"}, {"limit": 3},
    {"maxlen": 3, "limit": 3}, {"maxlen": 3, "approximate": True, "limit": -1}, {"approximate": True},
    {"maxlen": 3, "approximate": True, "limit": 1.5}, {"maxlen": 3, "approximate": True, "limit": True},
]  # fmt: skip


@pytest.mark.parametrize("options", WRONG_TRIMS, ids=repr)
def test_a_trim_that_makes_no_sense_is_refused(unharmed: raxlog.Store, options: dict[str, Any]) -> None:
    with refused(raxlog.InvalidArgument):
        unharmed.stream("orders").trim(**options)
    if set(options) - {"approximate"}:
        with refused(raxlog.InvalidArgument):
            unharmed.stream("orders").append({"n": 1}, **options)


@pytest.mark.parametrize("count", [-1, 1.5, "3", True])
def test_a_count_that_is_no_whole_number_is_refused(unharmed: raxlog.Store, count: Any) -> None:
    with refused(raxlog.InvalidArgument, "count", repr(count)):
        unharmed.stream("orders").range(count=count)


@pytest.mark.parametrize("parts", [0, -1, 1.5, "3", None, True])
def test_a_split_into_no_parts_is_refused(unharmed: raxlog.Store, parts: Any) -> None:
    with refused(raxlog.InvalidArgument, repr(parts)):
        unharmed.stream("orders").split(parts)


@pytest.mark.parametrize("k", [1.5, "3", None, True])
def test_the_number_of_an_entry_is_a_whole_number(unharmed: raxlog.Store, k: Any) -> None:
    with refused(raxlog.InvalidArgument, repr(k)):
        unharmed.stream("orders").select(k)


@pytest.mark.parametrize("k", [8, -1, -9, 1 << 70])
def test_beyond_the_last_entry_there_is_none_to_select(unharmed: raxlog.Store, k: int) -> None:
    with pytest.raises(IndexError, match=r"'orders' has 8 live entries"):
        unharmed.stream("orders").select(k)


def test_a_last_id_that_contradicts_the_stream_is_refused(unharmed: raxlog.Store) -> None:
    orders = unharmed.stream("orders")
    with refused(raxlog.IDBelowEntries, "9-0", "9-1"):
        orders.set_id("9-0")
    with refused(raxlog.IDBelowDeleted, "5-0", "5-1"):
        orders.set_id("5-0")
    with refused(raxlog.IDTooSmall, "20-1", "20-2"):
        orders.set_id("20-1", max_deleted_id="20-2")
    for added in (-1, 1.5, True, "3"):
        with refused(raxlog.InvalidArgument, "entries_added", repr(added)):
            orders.set_id("20-1", entries_added=added)  # type: ignore[arg-type]
    with refused(raxlog.CountTooSmall, "entries_added=7", "8"):
        orders.set_id("20-1", entries_added=7)


def test_what_is_asked_of_a_stream_that_is_not_there_names_it(unharmed: raxlog.Store) -> None:
    nothing = unharmed.stream("nothing")
    calls: list[Callable[[], Any]] = [
        nothing.info, lambda: nothing.set_id("1-1"), lambda: nothing.create_group("g", create_stream=False),
        lambda: unharmed.rename_stream("nothing", "something"),
    ]  # fmt: skip
    for call in calls:
        with refused(raxlog.NoStream, "'nothing'"):
            call()
    assert unharmed.delete_stream("nothing") is False
    assert nothing.delete("1-1") == nothing.trim(maxlen=0) == len(nothing) == nothing.count() == 0
    assert nothing.append({"n": 1}, create=False) is None


def test_a_name_that_is_taken_cannot_be_given_again(unharmed: raxlog.Store) -> None:
    with refused(raxlog.StreamExists, "'full'"):
        unharmed.rename_stream("orders", "full")


WRONG_LIMITS: list[dict[str, Any]] = [
    {"compression": "lz4"}, {"compression": True}, {"compression": 5}, {"node_max_bytes": -1}, {"node_max_bytes": "4k"},
    {"node_max_bytes": True}, {"node_max_entries": -1}, {"node_max_entries": 1.5}, {"node_max_bytes": (1 << 30) + 1},
]  # fmt: skip


@pytest.mark.parametrize("options", WRONG_LIMITS, ids=repr)
def test_node_limits_that_make_no_sense_are_refused(
    unharmed: raxlog.Store, tmp_path: Path, options: dict[str, Any]
) -> None:
    name = next(iter(options))
    with refused(raxlog.InvalidArgument, name):
        unharmed.stream("orders", **options)
    with refused(raxlog.InvalidArgument, name):
        unharmed.stream("orders").configure(**options)
    with refused(raxlog.InvalidArgument, name):
        raxlog.open(tmp_path / "other.rax", **options)
    assert not (tmp_path / "other.rax").exists()


WRONG_OPENINGS: list[dict[str, Any]] = [
    {"durability": "eventual"}, {"durability": None}, {"durability": []}, {"lock_timeout": -1}, {"lock_timeout": "1"},
    {"lock_timeout": True}, {"lock_timeout": float("nan")}, {"encoding": "no such"}, {"encoding": 5}, {"map_size": 0},
    {"map_size": 1.5}, {"max_map_size": -1}, {"max_map_size": True}, {"max_readers": 0},
    {"map_size": 1 << 63}, {"max_map_size": 1 << 64}, {"max_readers": 1 << 32},
]  # fmt: skip


@pytest.mark.parametrize("options", WRONG_OPENINGS, ids=repr)
def test_an_option_of_open_that_makes_no_sense_is_refused(tmp_path: Path, options: dict[str, Any]) -> None:
    with refused(raxlog.InvalidArgument, next(iter(options))):
        raxlog.open(tmp_path / "store.rax", **options)
    assert list(tmp_path.iterdir()) == []


def test_an_option_nobody_knows_is_a_type_error(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="colour"):
        raxlog.open(tmp_path / "store.rax", colour="red")  # type: ignore[call-arg]
    assert list(tmp_path.iterdir()) == []
