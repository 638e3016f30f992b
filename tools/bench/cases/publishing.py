"""Publishing, globs and waking: what a message costs, and how soon another process has it or an entry."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import raxlog
from raxlog.index.pubsub import channel_index
from raxlog.index.pubsub.glob import glob_matches_bytes

from ..children import running
from ..rounds import Figure, Rounds, single, used_by

_GLOBS = (100, 10_000, 100_000)


def globs(rounds: Rounds) -> list[Figure]:
    """The subscribers of a channel among more and more globs; and one glob by itself."""
    name = "subscribers of a channel: 2 globs match, among others with a literal prefix"
    figures = []
    with raxlog.open(rounds.folder / "globs.rax", durability="relaxed") as store:
        client = store.channels.psubscribe("device.77.*", "*.77.temperature")
        client.subscribe("device.77.temperature")
        subscribed = 0
        for count in _GLOBS:
            client.psubscribe(*(f"sensor.{n}.*" if n % 2 else f"device.{n}.x*" for n in range(subscribed, count)))
            subscribed = count
            with store._env.read() as txn:
                look = partial(channel_index.subscribers, txn, channel_index.CHANNEL, b"device.77.temperature")
                assert len(look()) == 3
                figures.append(single(name, f"{count:,} globs", look, 2000))
            for what, channel, times in (("publish on that channel, relaxed", "device.77.temperature", 300),
                                         ("publish without a subscriber", "no.subscriber", 2000)):
                publish = partial(store.channels.publish, channel, b"21.5")
                figures.append(single(what, f"{count:,} globs", publish, times))
    kinds = {
        "news.* v. news.it.rome": (b"news.*", b"news.it.rome"),
        "h[a-e]llo v. hello": (b"h[a-e]llo", b"hello"),
        "a*a*a*a*b v. 1,000 times a": (b"a*a*a*a*b", b"a" * 1000),
        "the same, 10,000 times a": (b"a*a*a*a*b", b"a" * 10_000),
    }
    figures += [single("one glob", kind, partial(glob_matches_bytes, *args), 2000) for kind, args in kinds.items()]
    return sorted(figures, key=lambda figure: figure.contest)


def publishing(rounds: Rounds, messages: int = 300) -> list[Figure]:
    """A lone publish by what it reaches, in a commit of its own; and how soon others have it."""
    name = "publish, a commit of its own"
    figures = []

    def add(contender: str, store: raxlog.Store, expected: int, times: int = messages) -> None:
        assert store.publish("events.new", {"sent": 1}) == expected
        figures.append(single(name, contender, lambda: store.publish("events.new", {"sent": 1}), times))

    path = rounds.folder / "publishing.rax"
    with raxlog.open(path) as store:
        add("reaches nothing", store, 0, 3000)
        figures.append(single(name, "Stream.append, to compare", lambda: store.stream("plain").append({"sent": 1}),
                              messages))
        store.bind("events.>", "one")
        add("1 binding", store, 1)
        for n in range(9):
            store.bind("events.>", f"more-{n}")
        add("10 bindings", store, 10)
        for n in range(9):
            store.unbind("events.>", f"more-{n}")
        store.subscribe_durable("events.>", "kept").close()
        add("1 binding, 1 durable", store, 2)
        with store.subscribe("events.*"):
            add("1 binding, 1 durable, 1 live", store, 3)
        store.unsubscribe("kept")
        store.unbind("events.>", "one")
        subscriptions = [store.subscribe("events.*", max_queued=1) for _ in range(1000)]
        add("1,000 live", store, 1000, 100)
        for subscription in subscriptions:
            subscription.close()

        def publish(n: int) -> None:
            assert store.publish("events.new", {"sent": n}) == 1

        heard = "a live subscriber in another process has the message, after the commit"
        return figures + latency(heard, "listener", path, messages, publish)


def latency(name: str, child: str, path: Path, wakes: int, write: Callable[[int], object]) -> list[Figure]:
    """How long after ``write(n)`` has returned another process, which does this, has what was written."""
    latencies = []
    with running(child, path, wakes) as (reader,):
        for n in range(wakes):
            time.sleep(0.004 + n % 7 * 0.001)
            write(n)
            committed = time.monotonic_ns()
            latencies.append(max(0, int(reader.stdout.readline()) - committed) / 1000)
    latencies.sort()
    return [
        Figure(name, "median", "µs", [statistics.median(latencies)]),
        Figure(name, "99 of 100", "µs", [latencies[len(latencies) * 99 // 100]]),
    ]


def waking(rounds: Rounds, wakes: int = 400, sleepers: int = 10, seconds: float = 30.0) -> list[Figure]:
    """Wake-up latency from the commit's return, and the CPU of readers that sleep."""
    path = rounds.folder / "waking.rax"
    with raxlog.open(path) as store:
        stream = store.stream("events")
        store.stream("quiet").create_group("g")
        name = "a blocked reader in another process has the entry, after the commit"
        figures = latency(name, "waiter", path, wakes, lambda n: stream.append({"sent": n}))
        with running("sleeper", path, seconds + 60, count=sleepers) as asleep:
            quiet = [process.pid for process in asleep]
            time.sleep(2)  # so long falling asleep takes at most
            before, start = [used_by(pid) for pid in quiet], time.monotonic()
            time.sleep(seconds)
            shares = [(used_by(pid) - earlier) / (time.monotonic() - start)
                      for pid, earlier in zip(quiet, before, strict=True)]
    figures.append(Figure("CPU of blocked readers, of one core", f"{sleepers} processes", "%", [sum(shares) * 100]))
    return figures
