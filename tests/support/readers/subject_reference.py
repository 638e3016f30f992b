"""Subjects without any of the product's code: a brute-force matcher, and a trie of dicts.

    brute_match(["a", "*"], ["a", "b"])        by the definition, one token after the other
    Trie.add(pattern, number), .match(subject)  what an index held in memory would answer
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any


def brute_match(pattern: list[str], subject: list[str]) -> bool:
    """Does the pattern match the tokens of a published subject? By the definition, recursively."""
    if "" in subject:
        return False
    if not pattern:
        return not subject
    if pattern == [">"]:
        return len(subject) >= 1
    return bool(subject) and (pattern[0] in ("*", subject[0])) and brute_match(pattern[1:], subject[1:])


def well_formed(pattern: str) -> bool:
    """NATS' rule for what Insert takes: no empty token, nothing behind a ``>``."""
    tokens = pattern.split(".")
    return "" not in tokens and ">" not in tokens[:-1]


def all_subjects(alphabet: str, longest: int) -> list[list[str]]:
    """Every subject over the alphabet up to that many tokens."""
    return [list(tokens) for length in range(1, longest + 1) for tokens in product(alphabet, repeat=length)]


class Trie:
    """Patterns in nested dicts, as every router in memory has them."""

    def __init__(self) -> None:
        self.root: dict[str, Any] = {}

    def add(self, pattern: str, value: Any) -> None:
        """Put a value at a pattern."""
        level = self.root
        for token in pattern.split("."):
            level = level.setdefault(token, {})
        level.setdefault("", []).append(value)

    def discard(self, pattern: str, value: Any) -> None:
        """Take it away again."""
        level = self.root
        for token in pattern.split("."):
            level = level[token]
        level[""].remove(value)

    def match(self, subject: str) -> list[Any]:
        """All values whose pattern matches the subject."""
        return list(self._walk(self.root, subject.split("."), 0))

    def _walk(self, level: dict[str, Any], tokens: list[str], at: int) -> Iterator[Any]:
        if at == len(tokens):
            yield from level.get("", ())
            return
        if ">" in level:
            yield from level[">"].get("", ())
        for token in ("*", tokens[at]):
            if token in level:
                yield from self._walk(level[token], tokens, at + 1)
