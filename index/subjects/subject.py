"""Subjects: one tokenizer, one relation, and the form of subjects in ordered keys.

    orders.eu.*      tokens between dots; ``*`` is exactly one token, a last ``>`` one or more
    orders.**        a wildcard is a whole token of one byte: this is a literal

    relation(a, b)   walks two subjects token by token, once:

        a \\ b      end       >            *            token
        end       done      disjoint     disjoint     disjoint
        >         disjoint  b covers a   overlap      overlap
        *         disjoint  b covers a   go on        go on, b no longer covers a
        token     disjoint  b covers a   go on        go on if equal, else disjoint

matches() and the index read its answer. Everything is compared byte by byte: upper
and lower case differ, nothing is normalised, ``$``, ``/`` and ``#`` mean nothing.

In a key each token is closed by 00, and ``>`` is written 01, ``*`` 02:

    orders.eu.*   ->   o r d e r s 00 e u 00 02 00      (and one more 00 where a row ends)

The order ``>`` < ``*`` < tokens is what advance() depends on: a walk that goes back to try a
token has passed every wildcard in its place by then, so it only ever goes forward in the keys.

Two strictnesses. The relation takes any bytes, as NATS' matcher does, and knows two faults: an
empty token, and a ``>`` that is not last. What is stored or published must besides be UTF-8
without spaces and control bytes, and have 492 bytes at most (a key of LMDB has 511).
"""

from __future__ import annotations

from typing import NoReturn

from ...storage.errors import CorruptionError, SubjectError

SOURCE_HASH = ""

MAX_SUBJECT = 492  # of the 511 bytes of a key: kind and stream number 9, end 2, a bucket's ID 8

DISJOINT = 0
OVERLAP = 1  # some subject is matched by both
COVERED = 3  # every subject that matches the first matches the second, too

MATCH = b""  # of advance(): the row matches

_EMPTY = -1
_EMPTY_TOKEN = -2
_MISPLACED = -3
_FORBIDDEN = -4
_NOT_ASCII = 1 << 16


def raw_subject(subject: str | bytes) -> bytes:
    """The subject's bytes. SubjectError for another type, or a str that is not Unicode text."""
    if isinstance(subject, bytes):
        return subject
    if isinstance(subject, str):
        try:
            # bytes that were no UTF-8 come back from a store opened with an encoding like this
            return subject.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError as error:
            raise SubjectError(f"the subject {subject!r} is not Unicode text: {error.reason}") from None
    raise SubjectError(f"a subject must be str or bytes, not {type(subject).__name__} ({subject!r:.60})")


def examine(raw: bytes) -> int:
    """How many wildcard tokens a subject has, or what is wrong with it, as a negative number.

    _NOT_ASCII is added where bytes above 7F occur, so that only those are looked at as UTF-8.
    _FORBIDDEN is answered only where nothing worse is wrong.
    """
    p = raw
    n = len(raw)
    i = 0
    start = 0
    wildcards = 0
    forbidden = 0
    high = 0
    if n == 0:
        return _EMPTY
    while True:
        if i == n or p[i] == 0x2E:
            if i == start:
                return _EMPTY_TOKEN
            if i == start + 1:
                if p[start] == 0x2A:
                    wildcards += 1
                elif p[start] == 0x3E:
                    if i != n:
                        return _EMPTY_TOKEN if _has_empty_token(raw, i) else _MISPLACED
                    wildcards += 1
            if i == n:
                break
            start = i + 1
        elif p[i] <= 0x20 or p[i] == 0x7F:
            forbidden = 1
        elif p[i] >= 0x80:
            high = 1
        i += 1
    if forbidden:
        return _FORBIDDEN
    return wildcards + (_NOT_ASCII if high else 0)


def relation(a: bytes, b: bytes, literal: bool) -> int:
    """DISJOINT, OVERLAP or COVERED (a is covered by b), of two well-formed subjects.

    ``literal``: the wildcards of ``a`` are ordinary tokens, as in a subject published. Linear
    in the shorter of the two; 0.1 µs compiled.
    """
    p = a
    q = b
    m = len(a)
    n = len(b)
    i = 0
    j = 0
    result = COVERED
    while True:
        # both stand at the first byte of a token, or one behind the end
        if i > m or j > n:
            return result if i > m and j > n else DISJOINT
        if q[j] == 0x3E and j + 1 == n:
            return result
        if not literal and p[i] == 0x3E and i + 1 == m:
            return OVERLAP
        if q[j] == 0x2A and (j + 1 == n or q[j + 1] == 0x2E):
            j += 2
            while i < m and p[i] != 0x2E:
                i += 1
            i += 1
        elif not literal and p[i] == 0x2A and (i + 1 == m or p[i + 1] == 0x2E):
            result = OVERLAP
            i += 2
            while j < n and q[j] != 0x2E:
                j += 1
            j += 1
        else:
            while i < m and j < n and p[i] == q[j] and p[i] != 0x2E:
                i += 1
                j += 1
            if (i < m and p[i] != 0x2E) or (j < n and q[j] != 0x2E):
                return DISJOINT
            i += 1
            j += 1


def advance(row: bytes, skip: int, wanted: bytes) -> bytes | None:
    """Where to go from a row of an ordered index: MATCH, the key to seek next, or None for the end.

    ``row``     a key: ``skip`` bytes of prefix, a pattern's tokens each closed by 00, one more 00
    ``wanted``  the subject looked for, as key_form() gives it. It may be a pattern: then rows
                match that overlap it

    No row between ``row`` and the answer matches. So a walk that seeks from answer to answer,
    and behind a match to ``row + 01`` in place of its last 00, sees every match once.
    """
    p = row
    w = wanted
    n = len(row)
    m = len(wanted)
    i = skip
    j = 0
    way = -1  # where in the row one might go another way last, and where that is in wanted
    fork = 0
    while True:
        if i >= n:
            _malformed(row)
        if p[i] == 0:
            # The row ends. It is a match, or those that go on from here have yet to be looked at.
            return MATCH if j == m else row[:i] + b"\1"
        if j == m:
            break  # the row is longer, and so is all that begins like it
        if p[i] == 1 or w[j] == 1:
            return MATCH
        if w[j] == 2 or p[i] == 2:
            way = i
            fork = j
            while i < n and p[i] != 0:
                i += 1
            while w[j] != 0:
                j += 1
        else:
            start = i
            at = j
            while i < n and p[i] == w[j] and p[i] != 0:
                i += 1
                j += 1
            if i >= n:
                _malformed(row)
            if p[i] != w[j]:
                if p[i] < w[j]:
                    while w[j] != 0:
                        j += 1
                    return row[:start] + wanted[at : j + 1]
                break  # everything from here on is greater than the token
        i += 1
        j += 1
    if way < 0:
        return None
    if w[fork] == 2:  # any token will do there: to the next one
        i = way
        while p[i] != 0:
            i += 1
        return row[:i] + b"\1"
    j = fork
    while w[j] != 0:
        j += 1
    return row[:way] + wanted[fork : j + 1]


# -- what is wrong with a subject ---------------------------------------------------------


def _has_empty_token(raw: bytes, start: int) -> bool:
    return b".." in raw[start:] or raw.endswith(b".")


def _malformed(row: bytes) -> NoReturn:
    raise CorruptionError(f"the key {row.hex()} of the subject index does not end where a pattern may")


def shown(raw: bytes) -> str:
    """A subject for an error message: quoted, and cut if it is long."""
    text = raw.decode("utf-8", "backslashreplace")
    return repr(text if len(text) <= 80 else text[:77] + "...")


def _refuse(raw: bytes, code: int) -> NoReturn:
    if code == _EMPTY:
        raise SubjectError("the subject is empty; it needs at least one token, as in 'orders'")
    if code == _EMPTY_TOKEN:
        raise SubjectError(f"the subject {shown(raw)} has an empty token; write one between any two dots")
    if code == _MISPLACED:
        raise SubjectError(f"the subject {shown(raw)} has a '>' that is not its last token; use '*' for one token")
    byte = next(byte for byte in raw if byte <= 0x20 or byte == 0x7F)
    raise SubjectError(
        f"the subject {shown(raw)} has the byte 0x{byte:02x} at offset {raw.index(byte)}; spaces and control "
        "bytes are not allowed"
    )


def well_formed(subject: str | bytes) -> bytes:
    """The bytes of a pattern whose tokens are in order, of any bytes.

    SubjectError for an empty subject, an empty token, or a ``>`` that is not last.
    """
    raw = raw_subject(subject)
    code = examine(raw)
    if code < 0 and code != _FORBIDDEN:
        _refuse(raw, code)
    return raw


def pattern(subject: str | bytes) -> bytes:
    """The bytes of a pattern that may be stored. SubjectError says what is wrong with another.

    Beside what well_formed() asks: no space, no control byte (00-1F, 7F), UTF-8, and at most
    MAX_SUBJECT bytes. There is no limit on tokens of its own: 492 bytes hold 246 at most.
    """
    raw = raw_subject(subject)
    code = examine(raw)
    if code < 0:
        _refuse(raw, code)
    if len(raw) > MAX_SUBJECT:
        raise SubjectError(f"the subject {shown(raw)} has {len(raw)} bytes; {MAX_SUBJECT} are allowed")
    if code >= _NOT_ASCII:
        try:
            raw.decode()
        except UnicodeDecodeError as error:
            raise SubjectError(f"the subject {shown(raw)} is not UTF-8 at offset {error.start}") from None
    return raw


def literal(subject: str | bytes) -> bytes:
    """The bytes of a subject to publish to: a pattern() without wildcards. SubjectError if not."""
    raw = pattern(subject)
    if has_wildcard(raw):
        raise SubjectError(f"the subject {shown(raw)} has a wildcard, and nothing can be published to a pattern")
    return raw


# -- questions ----------------------------------------------------------------------------


def is_valid(subject: str | bytes) -> bool:
    """Whether a subject may be stored as a pattern: NATS' IsValidSubject, and no control bytes."""
    try:
        pattern(subject)
    except SubjectError:
        return False
    return True


def has_wildcard(raw: bytes) -> bool:
    """Whether a well-formed subject has a token that is ``*`` or ``>``."""
    if b"*" not in raw and b">" not in raw:
        return False
    words = raw.split(b".")
    return b"*" in words or b">" in words


def tokens(subject: str | bytes) -> tuple[bytes, ...]:
    """The tokens of a well-formed subject."""
    return tuple(well_formed(subject).split(b"."))


def matches(pattern: str | bytes, subject: str | bytes) -> bool:
    """Whether a message published to ``subject`` would reach a subscription to the pattern, by NATS' rules.

    >>> matches("orders.*.new", "orders.eu.new"), matches("orders.>", "orders")
    (True, False)

    Wildcards in ``subject`` are ordinary tokens, as they are for NATS; a subject that is empty
    or has an empty token matches nothing. SubjectError where the pattern is empty, has an empty
    token or a ``>`` that is not last. Any other bytes are compared as they are, spaces
    included; the index refuses to store those. 0.5 µs compiled, linear in the length.
    """
    wanted = well_formed(pattern)
    raw = raw_subject(subject)
    code = examine(raw)
    if code in (_EMPTY, _EMPTY_TOKEN) or (code == _MISPLACED and _has_empty_token(raw, 0)):
        return False
    return relation(raw, wanted, True) == COVERED


# -- subjects in keys ---------------------------------------------------------------------

_CODES = {b">": b"\1", b"*": b"\2"}
_WILDCARDS = {code: token for token, code in _CODES.items()}


def key_form(raw: bytes) -> bytes:
    """The tokens of a pattern() as they stand in a key: each closed by 00, wildcards as 01 and 02."""
    if b"*" in raw or b">" in raw:
        raw = b".".join([_CODES.get(token, token) for token in raw.split(b".")])
    return raw.replace(b".", b"\0") + b"\0"


def from_key_form(form: bytes) -> bytes:
    """The inverse of key_form(): the pattern, with dots and wildcards."""
    return b".".join([_WILDCARDS.get(token, token) for token in form[: len(form) - 1].split(b"\0")])


def shape(raw: bytes) -> bytes:
    """A pattern with every literal token replaced by a dash: ``orders.*.>`` is ``-*>``."""
    return b"".join([token if token in _CODES else b"-" for token in raw.split(b".")])
