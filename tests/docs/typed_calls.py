"""Calls of raxlog with the types that mypy and pyright give them: which test_types.py checks and nothing runs.

What must be refused has a ``type: ignore``, and mypy --strict says so where it is not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, TypedDict, assert_type

import raxlog
import raxlog.aio
import raxlog.testing
from raxlog import Entry, Group, Stream, StreamID, Transaction
from raxlog.crashtest import Storm, explore


@dataclass
class Order:
    item: str


class Basket(TypedDict):
    items: list[str]


def send(entry: Entry[Order]) -> str:
    return entry.value.item


def bill(entry: Entry[Order], tx: Transaction) -> None:
    tx.stream("bills").append({"item": entry.value.item})


async def send_soon(entry: Entry[Order]) -> None:
    send(entry)


def plain(entry: Entry) -> object:
    return entry.value["item"]


def of_streams(store: raxlog.Store) -> None:
    orders = store.stream("orders", type=Order)
    assert_type(orders, Stream[Order])
    assert_type(store.stream("orders"), Stream[dict[str, Any]])
    assert_type(store.stream("baskets", type=Basket), Stream[Basket])
    either: Stream[Order | Basket] = store.stream("both", type=Order | Basket)
    assert_type([entry.value for entry in either], list[Order | Basket])
    assert_type(orders.append(Order("book")), StreamID)
    assert_type(orders.append(Order("book"), create=False), StreamID | None)
    assert_type(orders.get("5-0"), Entry[Order] | None)
    assert_type([entry.value for entry in orders], list[Order])
    assert_type(next(orders.range(reverse=True)), Entry[Order])
    assert_type(next(orders.follow()).value, Order)
    assert_type(store.read({"orders": "0"})["orders"], list[Entry])
    assert_type(store.state.get("at"), bytes | None)
    assert_type(store.state.pop("at", 5), bytes | int)
    orders.delete_ex("5-0", refs="acked")
    orders.delete_ex("5-0", refs="none")  # type: ignore[arg-type]
    orders.to_arrow(mode="STRICT")  # type: ignore[arg-type]
    orders.configure(codec="xml")  # type: ignore[arg-type]
    store.stream("orders", compression="gzip")  # type: ignore[call-overload]
    store.pipeline().stream("orders", type=Order | Basket, codec="xml")  # type: ignore[arg-type]
    assert_type(orders.defer(Order("book"), delay=5).pairs, list[tuple[Any, Any]])
    assert_type(orders.schedule("nightly", Order("book"), cron="30 2 * * *").next, datetime | None)
    orders.schedule("nightly", Order("book"), every=60, coalesce="none")  # type: ignore[arg-type]
    with store.transaction() as tx:
        assert_type(tx.stream("orders", type=Order).get("5-0"), Entry[Order] | None)


def of_groups(orders: Stream[Order], others: Group) -> None:
    group = orders.create_group("mail")
    assert_type(group, Group[Order])
    entries: list[Entry[Order]] = group.read("w1")
    assert_type(entries[0].value, Order)
    assert_type(group.claim("w1", "5-0")[0], Entry[Order])
    assert_type(group.autoclaim("w1").entries[0].value, Order)
    assert_type([letter.entry.value for letter in group.dead_letters], list[Order])
    assert_type(group.wait_result("5-0"), raxlog.Result)
    assert_type(group.job("5-0"), raxlog.Job)
    group.worker(send, threads=4)
    group.worker(bill, transaction=True, lease=10)
    others.worker(plain)
    others.worker(send)  # type: ignore[arg-type]
    group.worker(bill)  # type: ignore[arg-type]
    group.worker(send, transaction=True)  # type: ignore[call-overload]
    group.worker(send, attempts=3)  # type: ignore[call-overload]
    raxlog.worker({group: send}, back_every=5)
    raxlog.worker({group: bill}, transaction=True)
    raxlog.worker({group: bill})  # type: ignore[dict-item]
    of_all_types: dict[Group[Any], Callable[..., object]] = {group: send, others: plain}
    raxlog.worker(of_all_types)
    assert_type(group.cancel("5-0", "why"), int)
    group.nack("5-0", mode="never")  # type: ignore[arg-type]


def of_tests(folder: Path) -> None:
    with raxlog.testing.store(durability="relaxed", node_max_entries=5) as store:
        assert_type(store, raxlog.Store)
    raxlog.testing.store(durability="never")  # type: ignore[arg-type]
    assert_type(raxlog.testing.run(send, Order("book"), type=Order, codec="json"), str)
    raxlog.testing.run(send, Order("book"), type=Order, codec="xml")  # type: ignore[arg-type]
    explore(write, check, modes=[Storm()])
    explore(write, len, modes=[Storm()])  # type: ignore[arg-type]


def write(folder: Path, ack: Callable[[int], object]) -> None:
    ack(5)


def check(folder: Path, acks: list[int]) -> None:
    assert max(acks) == 5


async def of_tasks() -> None:
    async with raxlog.aio.open("events.rax") as store:
        orders = store.stream("orders", type=Order)
        assert_type(orders, raxlog.aio.AsyncStream[Order])
        assert_type(await orders.append(Order("book")), StreamID)
        assert_type(await orders.get("5-0"), Entry[Order] | None)
        assert_type([entry.value async for entry in orders], list[Order])
        assert_type([entry.value async for entry in orders.follow()], list[Order])
        group = await orders.create_group("mail")
        assert_type((await group.read("w1"))[0].value, Order)
        assert_type((await group.claim("w1", "5-0"))[0], Entry[Order])
        assert_type(await group.wait_result("5-0"), raxlog.Result)
        assert_type(await orders.last_id, StreamID)
        assert_type(await store.state.get("at"), bytes | None)
        group.worker(send_soon)
        group.worker(bill, transaction=True)
        group.worker(bill)  # type: ignore[arg-type]
        print(store.subjects)  # type: ignore[attr-defined]
        assert_type(await orders.length(), int)  # what follows a mistake is checked, too
