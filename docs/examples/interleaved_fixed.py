"""Two workers that pay orders. The same as interleaved_broken.py, with one commit for each payment."""

from collections.abc import Callable
from pathlib import Path

import raxlog


def prepare(folder: Path) -> None:
    with raxlog.open(folder / "shop.rax") as store:
        store.stream("orders").create_group("pay")
        store.stream("orders").append({"order": "7", "cents": "1200"})


def pay(store: raxlog.Store, order: str, cents: str) -> None:
    with store.transaction() as tx:
        if tx.state.get(f"paid:{order}") is None:
            tx.stream("payments").append({"order": order, "cents": cents})
            tx.state[f"paid:{order}"] = "yes"


def worker(folder: Path, ack: Callable[[str], object], name: str) -> None:
    with raxlog.open(folder / "shop.rax") as store:
        group = store.stream("orders").group("pay")
        # New orders, and those that another worker has begun to pay and not acknowledged.
        for entry in [*group.read(name), *group.autoclaim(name).entries]:
            pay(store, entry.fields["order"], entry.fields["cents"])
            group.ack(entry.id)
            ack(entry.fields["order"])


def first(folder: Path, ack: Callable[[str], object]) -> None:
    worker(folder, ack, "first")


def second(folder: Path, ack: Callable[[str], object]) -> None:
    worker(folder, ack, "second")


def check(folder: Path, acks: list[str]) -> None:
    with raxlog.open(folder / "shop.rax") as store:
        paid = [entry.fields["order"] for entry in store.stream("payments").range()]
        assert len(paid) == len(set(paid)), f"paid twice: {paid}"
        assert set(acks) <= set(paid), f"acknowledged as paid, and not: {set(acks) - set(paid)}"


workloads = [first, second]
