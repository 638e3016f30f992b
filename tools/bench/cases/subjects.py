"""Subjects: matching among a million device subscriptions.

    device.4711.sensor3.temp       nine of ten are literal
    device.4711.*.temp             one of ten is a pattern, of four shapes
"""

from __future__ import annotations

import random
import shutil
import time
from functools import partial

import raxlog
from raxlog.index.subjects.handle import Sublist
from raxlog.index.subjects.match import Cache
from raxlog.index.subjects.subscription import Subscription

from ..rounds import Figure, Rounds, each_us, median_us, ms_of

_LOAD = 10_000
_SAMPLES = 2000


def device_patterns(count: int) -> list[str]:
    """``count`` patterns, one of ten with a wildcard."""
    rng = random.Random(4)
    devices = max(1, count // 10)
    shapes = ("device.{}.*.temp", "device.{}.>", "device.*.{}.state", "device.{}.*.*.low")
    return [
        f"device.{n % devices}.sensor{n // devices}.temp" if n // devices < 9
        else rng.choice(shapes).format(n % devices) for n in range(count)
    ]


def subjects(rounds: Rounds) -> list[Figure]:
    """All contests on subjects, with as many subscriptions as entries elsewhere."""
    path, count = rounds.folder / "subjects.rax", rounds.entries
    patterns = device_patterns(count)
    figures: list[Figure] = []
    start = time.perf_counter()
    with raxlog.open(path) as store:
        for at in range(0, count, _LOAD):
            made = [
                Subscription.of(pattern, kind=3, owner=b"client%d" % (n % 5000))
                for n, pattern in enumerate(patterns[at : at + _LOAD], at)
            ]
            store.subjects.insert_many(made)
    figures.append(Figure("subjects: made, by tens of thousands", "raxlog", "s", [time.perf_counter() - start]))
    start = time.perf_counter()
    with raxlog.open(path) as store:
        store.subjects.match("device.5.sensor3.temp")
        took = (time.perf_counter() - start) * 1000
        figures.append(Figure("subjects: open to the first match", "raxlog", "ms", [took]))
        figures += _matching(store.subjects, patterns)
        figures += _alone(store.subjects, count)
    shutil.rmtree(path)
    return figures


def _matching(index: Sublist, patterns: list[str]) -> list[Figure]:
    rng = random.Random(5)
    devices = max(1, len(patterns) // 10)
    asked = [f"device.{rng.randrange(devices)}.sensor{rng.randrange(9)}.temp" for _ in range(_SAMPLES)]
    missing = [subject[:-4] + "none" for subject in asked]
    bare, warm = index.with_cache(Cache(0)), index.with_cache(Cache())
    hot = [asked[0]] * 100
    twenties = [asked[at : at + 20] for at in range(0, len(asked), 20)]
    contests: dict[str, dict[str, float]] = {
        "subjects: match, nothing cached": {
            "raxlog": each_us(bare.match, asked),
            "raxlog, in one transaction": each_us(bare.match_many, twenties) / 20,
        },
        "subjects: match that reaches a device's own patterns only": {"raxlog": each_us(bare.match, missing)},
        "subjects: match, cached": {
            "raxlog": median_us(lambda: [warm.match(subject) for subject in hot], 200) / len(hot),
            "raxlog, in one transaction": median_us(lambda: warm.match_many(hot), 200) / len(hot),
        },
    }
    return [
        Figure(contest, name, "µs", [spent])
        for contest, contenders in contests.items() for name, spent in contenders.items()
    ]


def _alone(index: Sublist, count: int) -> list[Figure]:
    rng = random.Random(6)
    batches = []
    for n in range(7):
        made = [
            Subscription.of(
                ("device.*.{}.{}" if at % 10 == 0 else "device.{}.new.{}").format(rng.randrange(count), n),
                kind=3, owner="bench",
            ) for at in range(1000)
        ]
        batches.append(ms_of(partial(index.insert_many, made)))
    lost = ms_of(lambda: index.remove_owner("bench"))
    bare = index.with_cache(Cache(0))
    index.insert_many([Subscription.of("fan.out", kind=3) for _ in range(10_000)])
    fans = median_us(lambda: bare.match("fan.out"), 50)
    tokens = "abcdefghijkl"
    index.insert_many([
        Subscription.of("near." + ".".join("*" if mask >> at & 1 else token for at, token in enumerate(tokens)) + ".x")
        for mask in range(4096)
    ])
    near = median_us(lambda: bare.match("near." + ".".join(tokens)), 30)
    return [
        Figure("subjects: a durable batch of 1,000", "raxlog", "ms", batches),
        Figure("subjects: an owner of 7,000 is lost", "raxlog", "ms", [lost]),
        Figure("subjects: 10,000 subscribers of one subject", "raxlog", "ms", [fans / 1000]),
        Figure("subjects: 4,096 near misses", "raxlog", "ms", [near / 1000]),
    ]
