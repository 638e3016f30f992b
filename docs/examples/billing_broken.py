"""A consumer that adds up orders. It has a bug; docs/crash-testing.md finds it."""

from collections.abc import Callable
from pathlib import Path

import raxlog
from raxlog.crashtest import crash_point


def consume(store: raxlog.Store, report: Callable[[int], object]) -> None:
    billing = store.stream("orders").group("billing")
    # First the entries that this consumer had when it was killed, then new ones.
    while batch := billing.read("worker-1", count=3, ids="0") or billing.read("worker-1", count=3):
        billing.ack([entry.id for entry in batch])
        crash_point("billing.acked")
        with store.transaction() as tx:
            total = int(tx.state.get("total", 0)) + sum(int(entry.fields["cents"]) for entry in batch)
            tx.state["total"] = total
        report(total)


def workload(folder: Path, ack: Callable[[int], object]) -> None:
    with raxlog.open(folder / "shop.rax") as store:
        store.stream("orders").create_group("billing")
        store.stream("orders").extend([{"cents": cents} for cents in range(1, 13)])
        consume(store, ack)


def check(folder: Path, acks: list[int]) -> None:
    with raxlog.open(folder / "shop.rax") as store:
        orders = [int(entry.fields["cents"]) for entry in store.stream("orders").range()]
        if orders:
            consume(store, report=lambda total: None)  # as the program does when it starts again
        total = int(store.state.get("total", 0))
        assert total == sum(orders), f"{sum(orders)} cents were ordered, {total} are billed"
        assert total >= max(acks, default=0), "a total that was reported is gone"
