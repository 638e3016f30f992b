"""Subjects: matching among a million device subscriptions, beside tries held in memory.

    device.4711.sensor3.temp       nine of ten are literal
    device.4711.*.temp             one of ten is a pattern, of four shapes

The peers are a plain trie of dicts and paho's MQTTMatcher. They hold everything in memory and
forget it when the process ends, so they answer faster, and take seconds before the first answer.
"""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import raxlog
from raxlog.index.cache import Cache
from raxlog.index.handle import Sublist
from raxlog.index.subscription import Subscription

from .rounds import Figure, each_us, median_us, ms_of

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


def subjects(folder: Path, count: int) -> list[Figure]:
    """All contests on subjects, with ``count`` subscriptions."""
    path = folder / "subjects.rax"
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
        figures.append(Figure("subjects: open to the first match", "raxlog", "ms", [_ms(start)]))
        figures += _against_peers(store.subjects, patterns)
        figures += _alone(store.subjects, count)
    shutil.rmtree(path)
    return figures


def _against_peers(index: Sublist, patterns: list[str]) -> list[Figure]:
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
    first, second, third = contests.values()
    loading: list[Figure] = []
    for name, make in (("trie of dicts", _dict_trie), ("paho MQTTMatcher", _paho)):
        start = time.perf_counter()
        match = make(patterns)
        if match is None:
            continue
        loading.append(Figure("subjects: open to the first match", name, "ms", [_ms(start)]))
        first[name] = each_us(match, asked)
        second[name] = each_us(match, missing)
        third[name] = median_us(lambda match=match: [match(subject) for subject in hot], 200) / len(hot)  # type: ignore[misc]
        del match
    return loading + [
        Figure(contest, name, "us", [spent])
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


def _ms(start: float) -> float:
    return (time.perf_counter() - start) * 1000


def _dict_trie(patterns: list[str]) -> Callable[[str], list[int]]:
    root: dict[str, Any] = {}
    for number, pattern in enumerate(patterns):
        level = root
        for token in pattern.split("."):
            level = level.setdefault(token, {})
        level.setdefault("", []).append(number)

    def walk(level: dict[str, Any], tokens: list[str], at: int, found: list[int]) -> None:
        if at == len(tokens):
            found += level.get("", ())
            return
        rest = level.get(">")
        if rest is not None:
            found += rest[""]
        for token in ("*", tokens[at]):
            deeper = level.get(token)
            if deeper is not None:
                walk(deeper, tokens, at + 1, found)

    def match(subject: str) -> list[int]:
        found: list[int] = []
        walk(root, subject.split("."), 0, found)
        return found

    return match


def _paho(patterns: list[str]) -> Callable[[str], list[int]] | None:
    try:
        matcher: Any = import_module("paho.mqtt.matcher").MQTTMatcher()  # a peer that may be absent
    except ImportError:
        return None
    ids: dict[str, list[int]] = {}
    for number, pattern in enumerate(patterns):
        topic = pattern.replace(".", "/").replace("*", "+").replace(">", "#")
        if topic in ids:  # it keeps one value for a filter
            ids[topic].append(number)
        else:
            matcher[topic] = ids[topic] = [number]

    def match(subject: str) -> list[int]:
        return [number for found in matcher.iter_match(subject.replace(".", "/")) for number in found]

    return match
