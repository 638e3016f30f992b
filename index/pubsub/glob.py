r"""Globs: Redis' own, byte by byte, as SUBSCRIBE patterns and KEYS have them.

    *         any run of bytes; it crosses dots
    ?         one byte (so "?" does not match "é", which has two)
    [abc]     one of these; [a-z] a range, its ends in either order; [^a] anything but these
    \x        the byte x, whatever it means otherwise

Redis' oddities are kept, since a difference would count as a fault:

    *  and ""       do not match: only the empty pattern matches the empty string
    []   [^]        nothing; any byte. A "]" right behind "[" closes the class
    [abc            an unclosed class is closed by the end
    [a-]            the range from "a" to "]", and not closed by it
    [!a]            "!" or "a"; only ^ negates
    a\              a last backslash stands for itself
    ranges          compare signed bytes, as C's char is on the machines Redis runs on: 0x80 to
                    0xff come before 0x00
    1,000 stars     with something behind each of them: one more matches nothing

A pattern is stars with runs between them that have a fixed length. Each run is taken where it
fits first, and only the last star is ever moved on: a run that does not fit anywhere behind
fits nowhere for any star before. So ``a*a*a*a*b`` costs no more than the string times its
longest run, where trying every star at every place would cost a power of it.
"""

from __future__ import annotations

from ...stream.node.arguments import Name, stored_bytes

SOURCE_HASH = ""

STAR = 0x2A  # *
ANY = 0x3F  # ?
OPEN = 0x5B  # [
CLOSE = 0x5D  # ]
NOT = 0x5E  # ^
RANGE = 0x2D  # -
QUOTE = 0x5C  # the backslash
MOST_STARS = 1000  # with something behind them; Redis nests no deeper


def glob_matches(pattern: Name, string: Name) -> bool:
    """Whether the string matches the glob, byte by byte, by Redis' rules.

    Both are str (taken as UTF-8), bytes, int or float; InvalidName for another type. Takes at most
    ``len(string)`` times the longest run between two stars: some 0.2 µs for usual names.
    """
    return glob_matches_bytes(stored_bytes(pattern, "glob"), stored_bytes(string, "string to match"))


def glob_matches_bytes(pattern: bytes, string: bytes) -> bool:
    """Whether the string matches the pattern, as Redis' stringmatchlen() decides it.

    Any bytes, NUL included. At most ``len(string)`` times the longest run between two stars.
    """
    p = pattern
    s = string
    plen = len(pattern)
    slen = len(string)
    i = 0  # in the pattern
    j = 0  # in the string
    after_star = -1  # where the pattern goes on behind the last star
    retry = 0  # where that was tried last
    stars = 0
    if slen == 0:
        return plen == 0
    while True:
        if i < plen and p[i] == STAR:
            while i < plen and p[i] == STAR:
                i += 1
            if i == plen:
                return True
            stars += 1
            if stars > MOST_STARS and j < slen:
                return False
            after_star = i
            retry = j
            continue
        if j == slen:
            # A star moved on would leave the rest of the pattern even less.
            return i == plen
        if i < plen:
            step = step_over(p, plen, i, s[j])
            if step > 0:
                i = step
                j += 1
                continue
        if after_star < 0:
            return False
        retry += 1
        i = after_star
        j = retry


def step_over(p: bytes, plen: int, i: int, byte: int) -> int:
    """Match one byte with what begins at ``i``: where the pattern goes on; minus that if it differs.

    ``i`` is below ``plen`` and not at a star.
    """
    c = p[i]
    if c == ANY:
        return i + 1
    if c == OPEN:
        return class_over(p, plen, i + 1, byte)
    if c == QUOTE and i + 1 < plen:
        i += 1
        c = p[i]
    return i + 1 if c == byte else -i - 1


def class_over(p: bytes, plen: int, i: int, byte: int) -> int:
    """step_over() for a class, whose first byte behind the bracket is at ``i``."""
    negated = i < plen and p[i] == NOT
    if negated:
        i += 1
    found = False
    signed = byte - 256 if byte > 127 else byte
    while i < plen and p[i] != CLOSE:
        if p[i] == QUOTE and i + 1 < plen:
            i += 1
            if p[i] == byte:
                found = True
        elif i + 2 < plen and p[i + 1] == RANGE:
            low = p[i] - 256 if p[i] > 127 else p[i] + 0
            high = p[i + 2] - 256 if p[i + 2] > 127 else p[i + 2] + 0
            if low <= signed <= high or high <= signed <= low:
                found = True
            i += 2
        elif p[i] == byte:
            found = True
        i += 1
    if i < plen:
        i += 1  # the bracket that closes it
    return i if found != negated else -i


def literal_ends(pattern: bytes) -> tuple[bytes, bytes, bool]:
    """The literal bytes a pattern begins and ends with, and whether there is nothing else.

    What matches begins with the first and ends with the second: the handles by which patterns
    are found without testing each. ``(whole, whole, True)`` where nothing in it is special.
    """
    head = bytearray()
    tail = bytearray()
    special = False
    p = pattern
    plen = len(pattern)
    i = 0
    while i < plen:
        c = p[i]
        if c in (STAR, ANY, OPEN):
            special = True
            tail.clear()
            # Which byte is asked for does not matter: only where the class ends.
            i = abs(class_over(p, plen, i + 1, 0)) if c == OPEN else i + 1
            continue
        if c == QUOTE and i + 1 < plen:
            i += 1
            c = p[i]
        if not special:
            head.append(c)
        tail.append(c)
        i += 1
    return bytes(head), bytes(tail), not special
