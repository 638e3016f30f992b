"""The log's feed: every commit once, in order, with whole values; and no writer that waits for its follower."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import raxlog
import second_reader
from children import Child
from raxlog.storage.log import ring as log_ring
from raxlog.storage.log.feed import SEGMENTS, Feed, Overwritten
from raxlog.storage.log.ring import unseal_applied

RING = 1 << 16
SEED = int(os.environ.get("RAXLOG_SEED", time.time_ns() % 1_000_000_007))

Say = Callable[[Any], None]


@pytest.fixture(autouse=True)
def small_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let new stores have a small log."""
    monkeypatch.setattr(log_ring, "RING", RING)


class Follower:
    """What a feed gives, applied to a copy of the store's records."""

    def __init__(self, store: raxlog.Store) -> None:
        self.log: Any = store._env.map.log
        self.feed = Feed(self.log.ring.path.parent)
        self.feed.open(store._env.record.uuid)
        self.log.checkpoints.make(True)
        with self.log.tree.begin() as txn:
            self.rows = dict(txn.cursor())
        self.at, self.chain, *_ = unseal_applied(self.rows.pop(log_ring.APPLIED_KEY))
        self.seen = 0

    def follow(self) -> None:
        for at, chain, changes in self.feed.changes(self.at, self.chain, self.rows.get):
            assert at > self.at
            assert len(dict(changes)) == len(changes) > 0
            self.at, self.chain, self.seen = at, chain, self.seen + 1
            for key, value in changes:
                if value is None:
                    self.rows.pop(key, None)
                else:
                    self.rows[key] = value


def work(store: raxlog.Store, rng: random.Random, many: int) -> None:
    """Commits of all sizes: deltas of nodes, deletions, values that have their own pages, what is beyond the ring."""
    for n in range(many):
        name = rng.choice("abc")
        act = rng.random()
        if act < 0.7:
            store.stream(name).append({"n": n, "x": bytes(rng.choice((10, 10, 300, 5000)))})
        elif act < 0.8:
            store.stream(name).trim(maxlen=rng.choice((0, 5, 50)))
        elif act < 0.9:
            store.state[str(rng.randrange(20))] = rng.randbytes(rng.randrange(3000))
        elif act < 0.98:
            with contextlib.suppress(KeyError):
                del store.state[str(rng.randrange(20))]
        else:
            store.stream(name).extend([{"x": rng.randbytes(1000)}] * 80)


def test_a_follower_has_what_the_store_has_however_slow_it_is(path: Path) -> None:
    print(f"RAXLOG_SEED={SEED}")
    rng = random.Random(SEED)

    def other(say: Say) -> None:
        with raxlog.open(path, durability="relaxed") as store:
            work(store, random.Random(SEED + 1), 400)

    with raxlog.open(path, durability="relaxed") as store:
        work(store, rng, 50)
        follower = Follower(store)
        begun, place = follower.at, store._env.map.generation / SEGMENTS
        with Child(other) as child:
            for pause in (1, 3, 10, 100, 200, 30):
                work(store, rng, pause)
                follower.follow()
            child.finish()
        work(store, rng, 400)
        assert len(list(place.iterdir())) > 2
        follower.follow()
        assert follower.at - begun > 4 * RING
        assert follower.seen > 900
        with follower.log.begin() as view:
            assert follower.at == view.upto
            rows = dict(view.cursor().iternext())
        del rows[log_ring.APPLIED_KEY]
        assert follower.rows == rows
        follower.feed.close()
        follower.log.checkpoints.make(True)  # one under way as the feed was closed may have put a segment back
        assert not place.exists()


def test_the_second_reader_reads_the_segments_as_their_page_has_them(path: Path) -> None:
    print(f"RAXLOG_SEED={SEED}")
    with raxlog.open(path, durability="relaxed") as store:
        work(store, random.Random(SEED), 50)
        follower = Follower(store)
        log = follower.log
        with log.tree.begin() as txn:
            first = dict(txn.cursor())
        work(store, random.Random(SEED + 1), 600)
        store.stream("a").extend([{"x": random.Random(SEED).randbytes(1000)}] * 80)  # one has no place in the ring
        store.stream("a").append({"n": 1})
        log.checkpoints.make(True)
        with log.tree.begin() as txn:
            last = dict(txn.cursor())
        segments = store._env.map.generation / SEGMENTS
        assert len(list(segments.iterdir())) > 5
        rows, applied = second_reader.with_segments(first, segments, RING)
        assert applied == second_reader.record(last.pop(log_ring.APPLIED_KEY))
        assert rows == last
        follower.feed.close()


def test_a_follower_that_was_killed_or_stopped_keeps_no_writer_and_leaves_no_segments(path: Path) -> None:
    def follow(say: Say) -> None:
        with raxlog.open(path) as store:
            follower = Follower(store)
            say(follower.at)
            time.sleep(60)

    with raxlog.open(path, durability="relaxed") as store, Child(follow) as child:
        child.heard()
        child.send(signal.SIGSTOP)
        work(store, random.Random(1), 500)
        place = store._env.map.generation / SEGMENTS
        assert len(list(place.iterdir())) > 2
        with pytest.raises(raxlog.LockTimeout):
            Follower(store)
        child.kill()
        work(store, random.Random(2), 100)
        store._env.map.log.checkpoints.make(True)  # type: ignore[union-attr]
        assert not place.exists()


def test_what_nothing_has_kept_is_refused_by_its_position(path: Path) -> None:
    with raxlog.open(path, durability="relaxed") as store:
        store.stream("a").append({"n": 1})
        follower = Follower(store)
        work(store, random.Random(1), 20)
        follower.feed.close()
        work(store, random.Random(1), 500)
        feed = Feed(store._env.map.generation)
        feed.open(store._env.record.uuid)
        with pytest.raises(Overwritten, match=f"position {follower.at}"):
            list(feed.changes(follower.at, follower.chain, follower.rows.get))
        feed.close()
        Follower(store).feed.close()
