"""Publishing and globs: what a message costs, by whom it reaches and by how many it does not."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import raxlog
from raxlog.index import channel_rows
from raxlog.index.glob import glob_matches_bytes

from .rounds import Figure, Rounds, median_us
from .waking import latency

_GLOBS = (100, 10_000, 100_000)


def globs(rounds: Rounds) -> list[Figure]:
    """Who hears a channel, among more and more globs; and one glob by itself."""
    name = "who hears a channel: 2 globs do, among others with a literal beginning"
    figures = []
    with raxlog.open(rounds.folder / "globs.rax", durability="relaxed") as store:
        client = store.channels.psubscribe("device.77.*", "*.77.temperature")
        client.subscribe("device.77.temperature")
        there = 0
        for count in _GLOBS:
            client.psubscribe(*(f"sensor.{n}.*" if n % 2 else f"device.{n}.x*" for n in range(there, count)))
            there = count
            with store._env.read() as txn:
                found = channel_rows.hearers(txn, channel_rows.CHANNEL, b"device.77.temperature")
                assert len(found) == 3
                look = partial(channel_rows.hearers, txn, channel_rows.CHANNEL, b"device.77.temperature")
                spent = median_us(look, 2000)
            figures.append(Figure(name, f"{count:,} globs", "µs", [spent]))
            published = median_us(lambda: store.channels.publish("device.77.temperature", b"21.5"), 300)
            figures.append(Figure("publish on that channel, relaxed", f"{count:,} globs", "µs", [published]))
            nobody = median_us(lambda: store.channels.publish("nobody.is.there", b"21.5"), 2000)
            figures.append(Figure("publish where nobody listens", f"{count:,} globs", "µs", [nobody]))
    kinds = {
        "news.* v. news.it.rome": (b"news.*", b"news.it.rome"),
        "h[a-e]llo v. hello": (b"h[a-e]llo", b"hello"),
        "a*a*a*a*b v. 1,000 times a": (b"a*a*a*a*b", b"a" * 1000),
        "the same, 10,000 times a": (b"a*a*a*a*b", b"a" * 10_000),
    }
    for kind, (pattern, text) in kinds.items():
        spent = median_us(partial(glob_matches_bytes, pattern, text), 2000)
        figures.append(Figure("one glob", kind, "µs", [spent]))
    return sorted(figures, key=lambda figure: figure.contest)


def publishing(rounds: Rounds, messages: int = 300) -> list[Figure]:
    """A lone publish by what it reaches, in the commit of its own; and how soon others have it."""
    name = "publish, a commit of its own"
    figures = []

    def add(contender: str, store: raxlog.Store, expected: int, times: int = messages) -> None:
        assert store.publish("events.new", {"sent": 1}) == expected
        spent = median_us(lambda: store.publish("events.new", {"sent": 1}), times)
        figures.append(Figure(name, contender, "µs", [spent]))

    path = rounds.folder / "publishing.rax"
    with raxlog.open(path) as store:
        add("reaches nobody", store, 0, 3000)
        spent = median_us(lambda: store.stream("plain").append({"sent": 1}), messages)
        figures.append(Figure(name, "Stream.append, to compare", "µs", [spent]))
        store.bind("events.>", "one")
        add("1 binding", store, 1)
        for n in range(9):
            store.bind("events.>", f"more-{n}")
        add("10 bindings", store, 10)
        for n in range(9):
            store.unbind("events.>", f"more-{n}")
        store.subscribe("events.>", durable="kept").close()
        add("1 binding, 1 durable", store, 2)
        with store.subscribe("events.*"):
            add("1 binding, 1 durable, 1 live", store, 3)
        store.unsubscribe("kept")
        store.unbind("events.>", "one")
        subscriptions = [store.subscribe("events.*", limit=1) for _ in range(1000)]
        add("1,000 live", store, 1000, 100)
        for subscription in subscriptions:
            subscription.close()
        figures += _latency(store, path, messages)
    return figures


def _latency(store: raxlog.Store, path: Path, messages: int) -> list[Figure]:
    def publish(n: int) -> None:
        assert store.publish("events.new", {"sent": n}) == 1

    name = "a live subscriber in another process has the message, after the commit"
    return latency(name, "listener", path, messages, publish)
