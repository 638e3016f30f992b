"""Subjects: the one relation, held against a matcher that follows the definition and knows no bytes.

RAXLOG_LONG=1 compares a million random pairs instead of a hundred thousand.
"""

from __future__ import annotations

import os
import random
from itertools import product

import pytest
import raxlog
from raxlog.index.subjects import subject
from subject_reference import all_subjects, brute_match, well_formed
from subject_vectors import VECTORS

LONG = os.environ.get("RAXLOG_LONG") == "1"
DISJOINT, COVERED = 0, 3  # answers of relation()


def is_subset(a: str, b: str) -> bool:
    """Whether every subject that matches the pattern ``a`` matches ``b``, too."""
    return subject.relation(subject.well_formed(a), subject.well_formed(b), False) == COVERED


def overlaps(a: str, b: str) -> bool:
    """Whether some subject matches both patterns."""
    return subject.relation(subject.well_formed(a), subject.well_formed(b), False) != DISJOINT


@pytest.mark.parametrize(("pattern", "published", "match", "valid", "why"), VECTORS)
def test_the_vectors_pass(pattern: str, published: str, match: str, valid: bool, why: str) -> None:
    if match == "E":
        with pytest.raises(raxlog.SubjectError):
            raxlog.subject_matches(pattern, published)
    else:
        assert raxlog.subject_matches(pattern, published) is (match == "1"), why
        assert raxlog.subject_matches(pattern.encode(), published.encode()) is (match == "1"), why
    if pattern != "\x0b" and valid != subject.is_valid(pattern):
        pytest.fail(f"is_valid({pattern!r}) should be {valid}")


def test_random_pairs_are_decided_by_the_definition() -> None:
    seed = int(os.environ.get("RAXLOG_SEED") or random.randrange(1 << 32))
    print(f"RAXLOG_SEED={seed}")
    rng = random.Random(seed)
    alphabet = ["a", "b", "*", ">", "a*", ">b", "", "ab", "é", "**"]
    weights = [6, 6, 5, 3, 1, 1, 1, 2, 1, 1]
    refused = matched = 0
    for _ in range(1_000_000 if LONG else 100_000):
        pattern = rng.choices(alphabet, weights, k=rng.randrange(1, 6))
        published = rng.choices(alphabet, weights, k=rng.randrange(1, 6))
        text, of = ".".join(pattern), ".".join(published)
        if well_formed(text):
            expected = brute_match(pattern, published)
            matched += expected
            assert subject.matches(text, of) is expected, (text, of)
        else:
            refused += 1
            with pytest.raises(raxlog.SubjectError):
                subject.matches(text, of)
    assert refused > 1000
    assert matched > 1000


def _patterns(alphabet: str, longest: int) -> list[str]:
    found = []
    for length in range(1, longest + 1):
        for tokens in product(alphabet + "*>", repeat=length):
            if well_formed(".".join(tokens)):
                found.append(".".join(tokens))
    return found


def test_subset_and_overlap_are_what_all_short_subjects_say() -> None:
    # Patterns have up to 3 tokens, subjects up to 5: a ``>`` has room to stand for more than
    # any pattern names. The third letter is one that no pattern names.
    patterns = _patterns("ab", 3)
    subjects = all_subjects("abx", 5)
    matched = {p: frozenset(i for i, s in enumerate(subjects) if brute_match(p.split("."), s)) for p in patterns}
    for a in patterns:
        for b in patterns:
            assert is_subset(a, b) is (matched[a] <= matched[b]), (a, b)
            assert overlaps(a, b) is bool(matched[a] & matched[b]), (a, b)


@pytest.mark.parametrize(("a", "b", "subset", "overlap"), [
    # what NATS' helpers get wrong: a token that only begins with a star is a literal
    ("foo.bar", "foo.*baz", False, False), ("foo.*bar.*", "foo.x.y", False, False), ("foo.*-", "foo.*", True, True),
    ("foo.bar", "foo.*-", False, False), ("foo.***.bar", "foo.x.bar", False, False),
    # and what it documents
    ("foo.*", "*.foo", False, True), ("foo.bar.>", "*.bar.foo", False, True), ("foo.>", "foo.*.bar", False, True),
    ("foo.*", "foo.*.bar.>", False, False), ("foo.>", "foo", False, False), ("foo.*", "foo.*.>", False, False),
    (">", "*.>", False, True), ("*.>", ">", True, True), ("foo.*", "foo.>", True, True),
    ("foo.>", "foo.*", False, True),
    # nats-server #7585, #6827: a `>` is only ever last; literals before further wildcards
    ("a.*.c.>", "a.b.>", False, True), ("a.b.*.d", "a.*.*.d", True, True),
])
def test_relations_of_two_patterns(a: str, b: str, subset: bool, overlap: bool) -> None:
    assert is_subset(a, b) is subset
    assert overlaps(a, b) is overlap
    assert overlaps(b, a) is overlap


@pytest.mark.parametrize("broken", ["", "foo.", ".", "a..b", "foo.>.bar", ">.a"])
def test_relations_refuse_what_is_no_pattern(broken: str) -> None:
    for question in (is_subset, overlaps, subject.matches):
        with pytest.raises(raxlog.SubjectError):
            question(broken, ">")
    for question in (is_subset, overlaps):
        with pytest.raises(raxlog.SubjectError):
            question(">", broken)


def test_every_pattern_that_matches_covers_the_subject_and_overlaps_it() -> None:
    for pattern in _patterns("ab", 4):
        for tokens in all_subjects("ab", 4):
            published = ".".join(tokens)
            hit = subject.matches(pattern, published)
            assert is_subset(published, pattern) is hit
            assert overlaps(published, pattern) is hit


@pytest.mark.parametrize(("given", "says"), [
    ("", "is empty"), (".", "empty token"), ("a..b", "empty token"), (".a", "empty token"), ("a.", "empty token"),
    ("a.>.b", "not its last"), (">.a", "not its last"), ("a b", "0x20"), ("a.\t", "0x09"), ("a\0b", "0x00"),
    ("a.\x01", "0x01"), ("a.\x02.b", "0x02"), ("a\x7f", "0x7f"), ("a\x0bb", "0x0b"), (b"a.\xff\xfe", "not UTF-8"),
    ("a" * 600, "600 bytes"), (".".join(["abcd"] * 200), "999 bytes"), ("\ud800", "not Unicode text"),
    (7, "must be str or bytes"), (None, "must be str or bytes"), (["a"], "must be str or bytes"),
    (bytearray(b"a"), "must be str or bytes"),
])
def test_what_cannot_be_stored_is_refused_with_the_reason(given: object, says: str) -> None:
    with pytest.raises(raxlog.SubjectError, match=says):
        subject.pattern(given)  # type: ignore[arg-type]
    with pytest.raises(raxlog.SubjectError, match=says):
        subject.literal(given)  # type: ignore[arg-type]
    assert not subject.is_valid(given)  # type: ignore[arg-type]


@pytest.mark.parametrize("wild", ["*", ">", "a.*", "a.>", "*.b", "a.*.é"])
def test_nothing_can_be_published_to_a_pattern(wild: str) -> None:
    assert subject.is_valid(wild)
    with pytest.raises(raxlog.SubjectError, match="wildcard"):
        subject.literal(wild)


@pytest.mark.parametrize(
    "plain", ["a", "a*", "foo.**", "foo.>>", "foo.>bar", "a*.b", "$SYS.a", "é.ü", "a/b.#", "_INBOX.x"]
)
def test_a_wildcard_is_a_whole_token_of_one_byte(plain: str) -> None:
    assert subject.literal(plain) == plain.encode()


def test_the_longest_subject_fits_and_one_byte_more_does_not() -> None:
    most = subject.MAX_SUBJECT
    assert subject.is_valid("a" * most)
    assert not subject.is_valid("a" * (most + 1))
    assert subject.is_valid(".".join(["*"] * (most // 2)))


def test_the_form_in_keys_comes_back_and_sorts_wildcards_first() -> None:
    for pattern in [*_patterns("ab", 3), "a*.>b.**", "é.*.>"]:
        assert subject.from_key_form(subject.key_form(pattern.encode())) == pattern.encode()
    order = sorted(["a", "a.>", "a.*", "a.!", "a.*.b", "a.>x", "a.$", "b"], key=lambda p: subject.key_form(p.encode()))
    assert order == ["a", "a.>", "a.*", "a.*.b", "a.!", "a.$", "a.>x", "b"]


def _walk(rows: list[bytes], wanted: bytes) -> list[bytes]:
    """What a walk with advance() over sorted rows finds; it must stop by itself."""
    found, target, steps = [], b"", 0
    while True:
        steps += 1
        assert steps <= 4 * len(rows) + 4
        later = [row for row in rows if row >= target]
        if not later:
            return found
        answer = subject.advance(b"prefix" + later[0], 6, wanted)
        if answer is None:
            return found
        if answer == subject.MATCH:
            found.append(later[0])
            target = later[0][:-1] + b"\1"
        else:
            assert answer[6:] > later[0]  # it never goes back
            target = answer[6:]


def test_a_walk_over_ordered_rows_finds_what_the_relation_says() -> None:
    rng = random.Random(20)
    universe = [*_patterns("abc", 3), "aa.*", "a!.>", "*.a!.b", "a.b.c.*.>", "*.*.*.*"]
    for _ in range(400 if LONG else 60):
        patterns = rng.sample(universe, rng.randrange(1, 60))
        rows = sorted(subject.key_form(p.encode()) + b"\0" for p in patterns)
        for wanted in rng.sample(universe, 12):
            found = [subject.from_key_form(row[:-1]).decode() for row in _walk(rows, subject.key_form(wanted.encode()))]
            assert sorted(found) == sorted(p for p in patterns if overlaps(p, wanted)), (wanted, patterns)


def test_a_row_that_ends_where_no_pattern_may_is_an_error_not_an_answer() -> None:
    for row in (b"", b"a", b"a\0", b"a\0b", b"\2", b"\2\0"):
        with pytest.raises(raxlog.CorruptionError):
            subject.advance(b"prefix" + row, 6, subject.key_form(b"a.b"))
