"""Filters: the rules for subjects that the groups of stream/group/subject_filter.py go by (store.py hands them in).

What a group has met once it remembers, so a subject that comes again costs one look into a dict.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any

from ...storage.errors import InvalidArgument
from ..subjects import subject as subjects

MAX_PATTERNS = 64
_MOST_REMEMBERED = 10_000


def checked(given: Any) -> list[bytes]:
    """One pattern, or several, as bytes. SubjectError for a malformed one, InvalidArgument for too many."""
    several = [given] if isinstance(given, str | bytes) or not isinstance(given, Iterable) else list(given)
    if len(several) > MAX_PATTERNS:
        raise InvalidArgument(f"{len(several)} subjects were given; a group is filtered by {MAX_PATTERNS} at most")
    if not several:
        raise InvalidArgument("subjects=[] would let nothing through; leave it out for no filter")
    return sorted({subjects.pattern(one) for one in several})


def matcher(patterns: list[bytes]) -> Callable[[bytes], bool]:
    """What tells whether a subject matches one of the patterns."""

    @lru_cache(_MOST_REMEMBERED)
    def matches(subject: bytes) -> bool:
        return any(subjects.matches(pattern, subject) for pattern in patterns)

    return matches

