"""Idempotent appends: how long their IDs are remembered, in the Python API and at the door."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import raxlog
import raxlog.testing
from door import door
from resp_wire import RespWire

DAY = 86_400


@pytest.fixture
def clock() -> Iterator[raxlog.testing.Clock]:
    with raxlog.testing.clock() as moved:
        yield moved


@pytest.fixture
def orders(clock: raxlog.testing.Clock, store: raxlog.Store) -> raxlog.Stream:
    return store.stream("orders")


def send(stream: raxlog.Stream, number: int) -> raxlog.StreamID:
    sid = stream.append({"n": number}, producer="outbox", idempotent_id=str(number))
    assert sid is not None
    return sid


def test_a_relay_that_runs_again_later_or_behind_many_others_adds_nothing_twice(
    orders: raxlog.Stream, clock: raxlog.testing.Clock
) -> None:
    sent = [send(orders, number) for number in range(150)]
    clock.advance(105)
    assert [send(orders, number) for number in range(150)] == sent
    clock.advance(2 * DAY)
    assert [send(orders, number) for number in range(150)] == sent  # their entries are there
    assert len(orders) == 150


def test_no_trim_and_no_deletion_forgets_an_id_within_the_window(
    orders: raxlog.Stream, clock: raxlog.testing.Clock
) -> None:
    sent = [send(orders, number) for number in range(6)]
    orders.delete(sent[5])
    orders.trim(maxlen=1)
    clock.advance(DAY - 1)
    assert [send(orders, number) for number in range(6)] == sent
    clock.advance(1)
    assert send(orders, 4) == sent[4]  # it is there still
    assert send(orders, 5) > sent[5]
    assert send(orders, 0) > sent[5]


@pytest.mark.parametrize("how", ["maintain", "appends"])
def test_what_is_out_of_the_window_and_gone_is_forgotten_by_maintain_and_by_later_appends(
    how: str, store: raxlog.Store, orders: raxlog.Stream, clock: raxlog.testing.Clock
) -> None:
    sent = [send(orders, number) for number in range(2500)]
    orders.trim(maxlen=500)
    orders.delete(sent[2200], sent[2201])
    assert orders.info().remembered == 2500
    clock.advance(DAY)
    if how == "maintain":
        assert store.maintain().freed == {}
        assert orders.info().remembered == 498
    else:
        for number in range(10_000, 10_004):
            send(orders, number)
        assert orders.info().remembered == 2500 - 4
    assert raxlog.check(store.path).ok
    assert send(orders, 2499) == sent[2499]


def test_a_window_and_a_cap_that_are_set_hold_for_what_is_remembered_already(
    orders: raxlog.Stream, clock: raxlog.testing.Clock
) -> None:
    sent = [send(orders, number) for number in range(5)]
    orders.trim(maxlen=0)
    info = orders.info()
    assert (info.idempotence_window, info.idempotence_cap) == (DAY, None)
    orders.configure(idempotence_window=10, idempotence_cap=3)
    info = orders.info()
    assert (info.idempotence_window, info.idempotence_cap) == (10, 3)
    assert send(orders, 0) == sent[0]
    send(orders, 5)
    assert orders.info().remembered == 3  # 3, 4 and 5
    assert send(orders, 4) == sent[4]
    clock.advance(10)
    assert send(orders, 4) > sent[4]


def test_the_door_keeps_the_window_and_the_cap_of_redis(path: Path) -> None:
    def add(number: int) -> bytes:
        kind, sid = wire.ask("XADD", "s", "IDMP", "p", number, "*", "n", number)
        assert kind == "$", sid
        return bytes(sid)

    with door(path) as address, RespWire(address) as wire:
        first = add(0)
        assert add(0) == first
        for number in range(1, 101):
            last = add(number)
        assert add(100) == last
        assert add(0) != first  # it was one of 101
        assert wire.ask("XCFGSET", "s", "IDMP-MAXSIZE", 5) == ("+", "OK")
        assert add(100) != last  # a change forgets all
    with raxlog.open(path) as store:
        info = store.stream("s").info()
        assert (info.idempotence_window, info.idempotence_cap) == (DAY, 5)
