"""A worker that counts the mails it has sent. It has a bug; docs/jobs.md finds it."""

import time
from collections.abc import Callable
from pathlib import Path

import raxlog
from raxlog.crashtest import crash_point

LEASE = 0.1


def work(store: raxlog.Store, report: Callable[[int], object] = lambda sent: None) -> None:
    def send(entry: raxlog.Entry) -> None:
        with store.transaction() as tx:
            sent = int(tx.state.get("sent", 0)) + 1
            tx.state["sent"] = sent
        crash_point("mailer.sent")
        report(sent)

    store.stream("mail").group("senders").worker(send, lease=LEASE).run(burst=True)


def workload(folder: Path, ack: Callable[[int], object]) -> None:
    with raxlog.open(folder / "shop.rax") as store:
        store.stream("mail").create_group("senders")
        store.stream("mail").extend([{"to": f"{n}@example.org"} for n in range(4)])
        work(store, ack)


def check(folder: Path, acks: list[int]) -> None:
    with raxlog.open(folder / "shop.rax") as store:
        mails = store.stream("mail")
        if len(mails):
            if mails.group("senders").pending().total:
                time.sleep(LEASE)  # then the next worker takes over what the killed one had
            work(store)
        sent = int(store.state.get("sent", 0))
        assert sent == len(mails), f"there are {len(mails)} mails, {sent} are counted"
        assert sent >= max(acks, default=0), "a mail that was reported is not counted"
