"""Consumer groups under bad input: refused with the right error, and nothing changed.

The fixture ``queue`` compares the whole store, consumers and times included, after every test
with what was before it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import raxlog
from raxlog import (
    ConsumerBusy,
    GroupExists,
    InvalidArgument,
    InvalidStreamID,
    NoGroup,
    NoStream,
)
from raxlog.stream.node.stream_id import now_ms, time_at
from unharmed_queue import g, queue

__all__ = ["queue"]

HUGE = 1 << 70
Use = Callable[[raxlog.Store], Any]


# -- names ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [
    b"", b"\0", b"a\0b", b"\xff\xfe", "Grüße ☃".encode("utf-16"), b"n" * 400, b"n" * 401, b"\0" * 10_240,
    b"\xff" * 65_536,
], ids=lambda name: f"{name[:4]!r} of {len(name)}")  # fmt: skip
def test_a_group_and_a_consumer_may_have_any_bytes_for_a_name(tmp_path: Path, name: bytes) -> None:
    with raxlog.open(tmp_path / "s.rax") as store:
        sid = store.stream("s").append({"n": 1})
        group = store.stream("s").create_group(name, "0")
        assert [entry.id for entry in group.read(name)] == [sid]
        with pytest.raises(GroupExists):
            store.stream("s").create_group(name, "$")
        with pytest.raises(ConsumerBusy):
            group.delete_consumer(name)
    with raxlog.open(tmp_path / "s.rax") as store:
        group = store.stream("s").group(name)
        shown = name.decode(errors="surrogateescape")
        assert [info.name for info in store.stream("s").groups()] == [shown]
        assert [row.name for row in group.consumers()] == [shown]
        assert group.pending().consumers == {shown: 1}
        assert group.ack(sid) == 1
        assert group.delete_consumer(name) == 0
        assert group.destroy()
        assert store.stream("s").groups() == []


def test_names_that_begin_alike_are_not_the_same(store: raxlog.Store) -> None:
    long = "x" * 500
    names = [long, long + "\0", long[:-1], "x", "", "\0"]
    store.stream("s").append({"n": 1})
    for name in names:
        store.stream("s").create_group(name, "0").create_consumer(name)
    assert [info.name for info in store.stream("s").groups()] == sorted(names)
    store.stream("s").group(long).destroy()
    assert [info.name for info in store.stream("s").groups()] == sorted(names[1:])


NO_NAMES = [None, True, ["g"], ("g",), {"g": 1}, object(), 1j, b"x" * 65_537, "é" * 32_769, "\ud800", 10**5000,
            -(10**4400), 7, 1.5]


@pytest.mark.parametrize("use", [
    lambda store, wrong: store.stream("s").group(wrong),
    lambda store, wrong: store.stream("s").create_group(wrong, "$"),
    lambda store, wrong: g(store).read(wrong),
    lambda store, wrong: g(store).claim(wrong, "2-0"),
    lambda store, wrong: g(store).autoclaim(wrong),
    lambda store, wrong: g(store).create_consumer(wrong),
    lambda store, wrong: g(store).delete_consumer(wrong),
    lambda store, wrong: g(store).delete_consumer("c", to=[] if wrong is None else wrong),  # None: no heir
    lambda store, wrong: g(store).pending_entries("-", consumer=[] if wrong is None else wrong),  # None: anybody's
    lambda store, wrong: store.read_group(wrong, "c", {"s": ">"}),
    lambda store, wrong: store.read_group("g", wrong, {"s": ">"}),
])  # fmt: skip
def test_what_cannot_be_a_name_is_refused(queue: raxlog.Store, use: Any) -> None:
    for wrong in NO_NAMES:
        with pytest.raises(InvalidArgument):
            use(queue, wrong)


# -- IDs ------------------------------------------------------------------------------------


NO_IDS = ["", "x", "1-2-3", "-1", "1--2", "1-x", "18446744073709551616", "1-18446744073709551616", -1, 1 << 64, 1.5,
          None, ["2-0"], b"\xff", "²-0", "2-0\n", "2-*", "*"]

@pytest.mark.parametrize("use", [
    lambda store, *ids: g(store).ack(*ids),
    lambda store, *ids: g(store).nack(*ids),
    lambda store, *ids: g(store).nack(*ids, force=True, delay=1),
    lambda store, *ids: g(store).claim("new", *ids),
    lambda store, *ids: g(store).claim("new", "2-0", lastid=ids[-1] or "x"),
    lambda store, *ids: g(store).ack_delete(*ids),
    lambda store, *ids: g(store).autoclaim("new", start=ids[-1]),
    lambda store, *ids: g(store).read("new", ack=ids),
    lambda store, *ids: g(store).read("new", ids=ids[-1]),
    lambda store, *ids: g(store).set_id(ids[-1]),
    lambda store, *ids: store.stream("s").delete(*ids),
    lambda store, *ids: store.stream("s").delete_ex(*ids, refs="delref"),
    lambda store, *ids: store.stream("s").create_group("new", ids[-1]),
    lambda store, *ids: store.read_group("g", "new", {"s": ">"}, ack={"s": ids}),
    lambda store, *ids: store.read_group("g", "new", {"s": ids[-1]}),
    lambda store, *ids: store.read({"s": ids[-1]}),
])  # fmt: skip
def test_all_ids_are_parsed_before_anything_changes(queue: raxlog.Store, use: Any) -> None:
    for wrong in NO_IDS:
        with pytest.raises(InvalidStreamID):
            use(queue, "2-0", "3-0", wrong)


@pytest.mark.parametrize("use", [
    lambda store, ids: g(store).read("new", ack=ids),
    lambda store, ids: store.read_group("g", "new", {"s": ">"}, ack={"s": ids}),
])  # fmt: skip
@pytest.mark.parametrize("ids", [raxlog.StreamID("2-0"), "2-0", b"2", 2, 2.0, None], ids=repr)
def test_one_id_where_a_list_belongs_is_not_taken_to_pieces(queue: raxlog.Store, use: Any, ids: Any) -> None:
    with pytest.raises(InvalidArgument):
        use(queue, ids)


@pytest.mark.parametrize("special", ["$", "+", "-", "(2-0"])
def test_special_ids_are_taken_only_where_they_mean_something(queue: raxlog.Store, special: str) -> None:
    uses: list[Use] = [
        lambda store: g(store).ack(special),
        lambda store: g(store).claim("new", special),
        lambda store: g(store).nack(special),
        lambda store: g(store).read("new", ids=special),
    ]
    if special == "(2-0":
        uses += [lambda store: g(store).set_id(special), lambda store: store.stream("s").create_group("new", special)]
    for use in uses:
        with pytest.raises(InvalidStreamID):
            use(queue)


# -- numbers --------------------------------------------------------------------------------


@pytest.mark.parametrize("use", [
    lambda store, wrong: g(store).read("new", count=wrong),
    lambda store, wrong: g(store).nack("2-0", deliveries=wrong),
    lambda store, wrong: g(store).claim("new", "2-0", deliveries=wrong),
    lambda store, wrong: g(store).autoclaim("new", count=wrong),
    lambda store, wrong: store.read({"s": "0"}, count=wrong),
    lambda store, wrong: store.read({"s": "0"}, total=wrong),
    lambda store, wrong: store.read({"s": "0"}, max_bytes=wrong),
    lambda store, wrong: store.read_group("g", "new", {"s": ">"}, count=wrong),
    lambda store, wrong: store.read_group("g", "new", {"s": ">"}, max_bytes=wrong),
    lambda store, wrong: store.stream("s").configure(idempotence_window=wrong),
    lambda store, wrong: store.stream("s").configure(idempotence_cap=wrong),
    lambda store, wrong: store.stream("s").set_id("9-0", entries_added=wrong),
])  # fmt: skip
def test_a_count_is_a_whole_number_and_not_negative(queue: raxlog.Store, use: Any) -> None:
    for wrong in (-1, -HUGE, 1.0, "1", True, math.nan, [1], b"1"):
        with pytest.raises(InvalidArgument):
            use(queue, wrong)


@pytest.mark.parametrize("use", [
    lambda store: g(store).nack("2-0", deliveries=1 << 63),
    lambda store: g(store).nack("2-0", deliveries=HUGE),
    lambda store: g(store).claim("new", "2-0", deliveries=1 << 63),
    lambda store: store.stream("s").set_id("9-0", entries_added=HUGE),
    lambda store: store.stream("s").configure(idempotence_cap=HUGE),
    lambda store: g(store).set_id("0", entries_read=-2),
    lambda store: g(store).set_id("0", entries_read="1"),
    lambda store: store.stream("s").create_group("new", "$", entries_read=1.0),
    lambda store: store.read_group("g", "new", {"s": ">"}, count=2, total=1),
])  # fmt: skip
def test_a_number_that_cannot_be_stored_is_refused(queue: raxlog.Store, use: Use) -> None:
    with pytest.raises(InvalidArgument):
        use(queue)


def test_a_huge_count_means_all(store: raxlog.Store) -> None:
    store.stream("s").extend([{"n": n} for n in range(5)])
    group = store.stream("s").create_group("g", "0")
    assert len(list(store.stream("s").range(count=HUGE))) == 5
    assert len(store.read({"s": "0"}, count=HUGE, total=HUGE, max_bytes=HUGE)["s"]) == 5
    assert len(group.read("c", count=HUGE)) == 5
    assert len(group.read("c", count=HUGE, ids="0")) == 5
    assert len(group.autoclaim("d", count=HUGE).entries) == 5
    assert len(group.read("c", count=HUGE, claim_idle=0.0)) == 5
    assert len(group.pending_entries("-", "+", HUGE)) == 5


@pytest.mark.parametrize("use", [
    lambda store, wrong: g(store).read("new", timeout=wrong),
    lambda store, wrong: g(store).read("new", claim_idle=wrong),
    lambda store, wrong: g(store).nack("2-0", delay=wrong),
    lambda store, wrong: store.read({"s": "$"}, timeout=wrong),
    lambda store, wrong: store.read_group("g", "new", {"s": ">"}, timeout=wrong),
    lambda store, wrong: store.read_group("g", "new", {"s": ">"}, claim_idle=wrong),
])  # fmt: skip
def test_a_duration_is_a_number_of_seconds_and_not_negative(queue: raxlog.Store, use: Any) -> None:
    for wrong in (-1, -0.5, math.nan, math.inf, 1e300, 10**400, "1", b"1", True, [1], Fraction(1, 2)):
        with pytest.raises(InvalidArgument):
            use(queue, wrong)


@pytest.mark.parametrize("name", ["min_idle", "idle"])
@pytest.mark.parametrize("wrong", [
    math.nan, math.inf, -math.inf, 1e300, -(10**400), "1", True,
], ids=lambda wrong: f"{wrong!s:.5}")  # fmt: skip
def test_an_idle_time_is_a_number_that_can_be_counted(queue: raxlog.Store, name: str, wrong: Any) -> None:
    with pytest.raises(InvalidArgument):
        g(queue).claim("new", "2-0", **{name: wrong})
    if name == "min_idle":
        for use in (lambda: g(queue).autoclaim("new", wrong), lambda: g(queue).pending_entries("-", min_idle=wrong)):
            with pytest.raises(InvalidArgument):
                use()


def test_negative_idle_times_are_none_and_future_ones_now(store: raxlog.Store) -> None:
    store.stream("s").append({"n": 1}, id="1-0")
    group = store.stream("s").create_group("g", "0")
    group.read("c")
    for options in ({"idle": -5}, {"time": time_at(now_ms() + 10**6)}, {"time": time_at(-3)}, {"min_idle": -1e9},
                    {"idle": 9e12}):
        assert len(group.claim("d", "1-0", **options)) == 1
        assert group.pending_entries("-")[0].idle < 5
    assert group.claim("d", "1-0", idle=100.0)
    assert 100 <= group.pending_entries("-")[0].idle < 105


@pytest.mark.parametrize("use", [
    lambda store: g(store).nack("2-0", mode="gently"),
    lambda store: g(store).nack("2-0", mode=None),
    lambda store: g(store).ack_delete("2-0", refs="all"),
    lambda store: store.stream("s").delete_ex("2-0", refs=["keepref"]),
    lambda store: store.stream("s").trim(maxlen=0, refs="KEEPREF"),
    lambda store: store.stream("s").append({"n": 1}, maxlen=0, refs=None),
    lambda store: g(store).delete_consumer("c", pending="keep"),
    lambda store: g(store).delete_consumer("c", to="c"),
    lambda store: store.stream("s").append({"n": 1}, idempotent_id="x"),
    lambda store: store.stream("s").append({"n": 1}, producer="p", id="9-0"),
    lambda store: store.stream("s").append({"n": 1}, producer=""),
    lambda store: store.stream("s").append({"n": 1}, producer="p", idempotent_id=b""),
    lambda store: store.stream("s").append({"n": 1}, producer="p" * 65_537),
    lambda store: store.read([]),
    lambda store: store.read({}),
    lambda store: store.read("s"),
    lambda store: store.read({"s": ">"}),
    lambda store: store.read_group("g", "new", ["s"]),
    lambda store: store.read_group("g", "new", {}),
    lambda store: store.read_group("g", "new", {"s": ">", b"s": ">"}),
    lambda store: store.read_group("g", "new", {"s": ">"}, ack=["1-0"]),
    lambda store: store.read_group("g", "new", {"s": ">"}, ack={"t": ["1-0"]}),
    lambda store: store.read_group("g", "new", {"s": ">"}, ack={"s": ["2-0"], b"s": ["3-0"]}),
    lambda store: store.state.__setitem__(None, b"v"),
    lambda store: store.state.__setitem__(b"k", None),
    lambda store: store.state.__setitem__(b"k" * 503, b"v"),
    lambda store: store.state.__setitem__(b"k", bytes((1 << 24) + 1)),
    lambda store: store.state[["k"]],
])  # fmt: skip
def test_what_makes_no_sense_is_refused(queue: raxlog.Store, use: Use) -> None:
    with pytest.raises(InvalidArgument):
        use(queue)


# -- what is not there ----------------------------------------------------------------------


@pytest.mark.parametrize("use", [
    lambda group: group.read("c"), lambda group: group.read("c", ids="0"), lambda group: group.read("c", timeout=None),
    lambda group: group.claim("c", "1-0"), lambda group: group.autoclaim("c"), lambda group: group.nack("1-0"),
    lambda group: group.pending(), lambda group: group.pending_entries("-"), lambda group: group.consumers(),
    lambda group: group.info(), lambda group: group.lag, lambda group: group.last_delivered_id,
    lambda group: group.set_id("0"), lambda group: group.create_consumer("c"), lambda group: group.delete_consumer("c"),
])  # fmt: skip
def test_a_group_that_is_not_there_is_named_with_those_that_are(queue: raxlog.Store, use: Any) -> None:
    with pytest.raises(NoGroup, match=r"stream 's' has no consumer group 'h'\. It has: 'g'"):
        use(queue.stream("s").group("h"))
    with pytest.raises(NoGroup, match="there is no stream 't'"):
        use(queue.stream("t").group("g"))


def test_what_is_not_pending_is_acknowledged_in_vain(queue: raxlog.Store) -> None:
    for group in (queue.stream("s").group("h"), queue.stream("t").group("g")):
        assert group.ack("1-0") == 0
        assert group.ack_delete("1-0") == [-1]
        assert group.destroy() is False
    assert g(queue).ack("1-0", "5-0", "99-0") == 0
    assert g(queue).ack() == 0
    with pytest.raises(NoStream):
        queue.stream("t").create_group("g", create_stream=False)
    with pytest.raises(NoStream):
        queue.stream("t").groups()


def test_one_stream_without_the_group_stops_the_read_of_all(queue: raxlog.Store) -> None:
    with pytest.raises(NoGroup):
        queue.read_group("g", "new", {"s": ">", "t": ">"}, ack={"s": ["2-0"]})
