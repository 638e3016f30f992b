"""Globs equal Redis' own: the vectors given, what is odd in them, and random ones against a live server."""

from __future__ import annotations

import os
import random
import time
from typing import Any

import pytest
from glob_cases import VECTORS, random_pattern, random_text, redis_says
from raxlog.index.pubsub import glob
from raxlog.index.pubsub.glob import glob_matches_bytes, literal_ends

LONG = os.environ.get("RAXLOG_LONG") == "1"


@pytest.mark.parametrize(("pattern", "text", "matches"), VECTORS)
def test_the_vectors_pass(pattern: bytes, text: bytes, matches: bool) -> None:
    assert glob_matches_bytes(pattern, text) is matches


def test_redis_agrees_with_the_vectors(redis_address: tuple[str, int]) -> None:
    patterns = sorted({pattern for pattern, _, _ in VECTORS})
    texts = sorted({text for _, text, _ in VECTORS})
    matched = redis_says(redis_address, patterns, texts)
    for pattern, text, matches in VECTORS:
        assert ((pattern, text) in matched) is matches, (pattern, text)


@pytest.mark.parametrize("alphabet", [b"ab*?[]^-\\!", b"ab*", b"a\x00\x7f\x80\xff*[]-^\\", b"abc.*?"])
def test_twenty_thousand_random_pairs_are_decided_as_redis_does(
        redis_address: tuple[str, int], alphabet: bytes) -> None:
    seed = int(os.environ.get("RAXLOG_SEED") or random.randrange(1 << 32))
    print(f"RAXLOG_SEED={seed}")
    rng = random.Random(seed)
    for _ in range(20 if LONG else 1):
        patterns = sorted({random_pattern(rng, alphabet) for _ in range(100)})
        texts = sorted({random_text(rng, alphabet) for _ in range(60)})
        matched = redis_says(redis_address, patterns, texts)
        for pattern in patterns:
            for text in texts:
                assert glob_matches_bytes(pattern, text) is ((pattern, text) in matched), (pattern, text)


def test_a_thousand_stars_with_something_behind_are_the_most(redis_address: tuple[str, int]) -> None:
    text = b"a" * 1200
    patterns = [b"*a" * n for n in (999, 1000, 1001, 1002)] + [b"*a" * n + b"*" for n in (1000, 1001)]
    matched = redis_says(redis_address, patterns, [text])
    assert [glob_matches_bytes(pattern, text) for pattern in patterns] == [(p, text) in matched for p in patterns]


def test_many_stars_that_match_nothing_take_no_time() -> None:
    before = time.perf_counter()
    assert not glob_matches_bytes(b"a*" * 200 + b"b", b"a" * 5000)
    # Tried at every place it would be 5000 to the power of 200; nothing short of that takes ten seconds.
    assert time.perf_counter() - before < 10


def test_what_matches_begins_and_ends_with_the_literal_ends() -> None:
    rng = random.Random(7)
    found = 0
    for _ in range(4000):
        pattern, text = random_pattern(rng, b"ab*?[]\\"), random_text(rng, b"ab")
        head, tail, literal = literal_ends(pattern)
        if glob_matches_bytes(pattern, text):
            found += 1
            assert text.startswith(head)
            assert text.endswith(tail)
            assert not literal or text == head
        if literal:
            assert glob_matches_bytes(pattern, head)
    assert found > 100


@pytest.mark.parametrize(("pattern", "ends"), [
    (b"news.*", (b"news.", b"", False)), (b"*:done", (b"", b":done", False)), (b"a[b]c", (b"a", b"c", False)),
    (b"a\\*b", (b"a*b", b"a*b", True)), (b"plain", (b"plain", b"plain", True)), (b"", (b"", b"", True)),
    (b"a[b", (b"a", b"", False)), (b"a\\", (b"a\\", b"a\\", True)), (b"x[\\]]y", (b"x", b"y", False)),
])
def test_the_literal_ends_of_patterns(pattern: bytes, ends: tuple[bytes, bytes, bool]) -> None:
    assert literal_ends(pattern) == ends


def test_the_face_takes_text_and_bytes_and_refuses_the_rest() -> None:
    import raxlog  # noqa: PLC0415

    matches: Any = raxlog.glob_matches
    assert matches(b"news.*", b"news.it")
    assert matches("news.*", "news.it")
    assert not matches("?", "é")
    with pytest.raises(raxlog.InvalidName, match="glob"):
        matches(None, b"a")
    assert glob.SOURCE_HASH is not None
