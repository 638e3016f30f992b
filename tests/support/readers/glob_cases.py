"""Globs to try, and what a live redis-server says of them."""

from __future__ import annotations

import random
from collections.abc import Sequence

from redis_wire import Wire, packed

# (pattern, text, whether they match): those of Redis' matcher that tell something each.
VECTORS = [
    (b"*", b"", False), (b"", b"", True), (b"a", b"", False), (b"", b"a", False), (b"*", b"a", True),
    (b"**", b"abc", True), (b"h?llo", b"hllo", False), (b"h*llo", b"hllo", True), (b"h[ae]llo", b"hello", True),
    (b"h[^e]llo", b"hallo", True), (b"h[^e]llo", b"hello", False), (b"h[a-b]llo", b"hbllo", True),
    (b"h[b-a]llo", b"hallo", True), (b"h[!e]llo", b"hxllo", False), (b"h[!e]llo", b"h!llo", True),
    (b"h\\*llo", b"hxllo", False), (b"h\\*llo", b"h*llo", True), (b"h\\[llo", b"h[llo", True),
    (b"\\", b"\\", True), (b"foo\\", b"foo", False), (b"foo\\", b"foo\\", True), (b"[\\^a]", b"^", True),
    (b"[]", b"a", False), (b"[]a]", b"]", False), (b"[^]", b"", False), (b"[^]", b"a", True),
    (b"[abc", b"d", False), (b"[abc", b"b", True), (b"[a-", b"a", True), (b"[a-", b"-", True),
    (b"[a-]", b"-", False), (b"[a-]", b"^", True), (b"[-a]", b"-", True), (b"[", b"a", False), (b"[^", b"a", True),
    (b"foo.*", b"foo.1", True), (b"foo.*", b"foo.", True), (b"foo.*", b"foo", False), (b"news.?", b"news.a", True),
    (b"a?c", b"a.c", True), (b"*a*b*c*", b"xaxbxcx", True), (b"a*a*a*a*a*b", b"a" * 24, False),
    (b"?", "é".encode(), False), ("[é]".encode(), "é".encode(), False), ("[é]?".encode(), "é".encode(), True),
    (b"__keyspace@0__:*", b"__keyspace@0__:k", True), (b"[a-z][0-9]", b"q7", True), (b"x[^a]*y", b"xby", True),
    (b"*?", b"", False), (b"*?", b"a", True), (b"foo\0bar", b"foo\0bar", True), (b"foo\0*", b"foo\0bar", True),
    (b"[\x80-\x90]", b"\x85", True), (b"[a-\x80]", b"\x85", True), (b"[a-\x80]", b"\x00", True),
    (b"[a-\x80]", b"z", False), (b"[\\]-a]", b"]", True), (b"A", b"a", False),
]


def random_pattern(rng: random.Random, alphabet: bytes) -> bytes:
    """Up to 10 bytes of the alphabet."""
    return bytes(rng.choices(alphabet, k=rng.randrange(11)))


def random_text(rng: random.Random, alphabet: bytes) -> bytes:
    """Up to 8 bytes; mostly those that mean nothing in a pattern, or few would match."""
    plain = bytes(c for c in alphabet if c not in b"*?[]^-\\!")
    return bytes(rng.choices(plain * 4 + alphabet, k=rng.randrange(9)))


def redis_says(address: tuple[str, int], patterns: Sequence[bytes], texts: Sequence[bytes]) -> set[tuple[bytes, bytes]]:
    """Which (pattern, text) match: one client subscribes to all patterns, each text is published once."""
    with Wire(address) as listener, Wire(address) as publisher:
        listener.send(b"PSUBSCRIBE", *patterns)
        for _ in patterns:
            listener.reply()
        publisher.send_raw(b"".join(packed(b"PUBLISH", text, b"x") for text in texts))
        matched = set()
        for text in texts:
            for _ in range(publisher.reply()):
                message = listener.reply()
                assert (message[0], message[2]) == (b"pmessage", text)
                matched.add((message[1], text))
        return matched
