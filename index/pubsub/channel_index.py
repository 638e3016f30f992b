r"""The subscribers of channels and globs: rows on disk, one for each name and process.

    1C  c  news.it 00 00                       owner   [name, subscribers]     a channel
    1C  s  news.it 00 00                       owner   [name, subscribers]     a shard channel
    1C  p  news.   00 00  SHA-256 of the glob  owner   [glob, subscribers]     news.*
    1C  q  :done backwards 00 00  SHA-256      owner   [glob, subscribers]     *:done
    1C  00                                             [globs, their subscribers]
    1E  owner                                          [pid, since]
    1E  owner  the row's key from its letter on        []

A row counts the subscribers of one process; which they are only that process knows, since it
alone can call them. So the cost of a publish depends on the number of processes, not on how many
subscribers each has, and it can still return their exact number.

A glob is stored under its literal beginning or, where that is longer, its reversed literal
end: its anchor. The globs that can match a channel are under anchors that the channel begins with,
and those are found from the longest to the shortest without passing over others:

    channel news.it.rome
      the greatest anchor <= news.it.rome       news.it.   begins it: test its globs
      the greatest anchor <= news.it            news.fr.   does not; both begin with news.
      the greatest anchor <= news.              news.      begins it: test its globs
      …

Each step is one descent and takes a byte off at least; globs anchored elsewhere cost nothing.
Those without any anchor (``*x*``) are all under the empty one and are all tested.

In keys a NUL is 00 FF and the end of a name is 00 00, so that the order is the names' own and
no name's rows are among those of a longer one. Names of more than 440 bytes so written are cut
and distinguished by their hash.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from ...storage.format import keys, records
from ...storage.log.cursor import cursor_over
from ...storage.log.transaction import WriteTransaction
from ...storage.trees.rax import RaxTransaction, common, family_rows
from .glob import glob_matches_bytes, literal_ends

CHANNEL, SHARD, GLOB = b"c", b"s", b"p"
_GLOB_BY_END = b"q"
_END, _CUT = b"\0\0", b"\0\1"
_MOST_NAME, _KEPT_OF_CUT = 440, 200
_MOST_ANCHOR = 150
_HASH = 16
OWNER_BYTES = 8

ROWS = keys.family(0, keys.CHANNEL)
OWNERS = keys.family(0, keys.OWNER)
COUNTS = ROWS + b"\0"


class Subscribers(NamedTuple):
    """The subscribers of a channel in one process: by its name (glob None) or by a glob."""

    owner: int
    glob: bytes | None
    number: int


# -- keys ---------------------------------------------------------------------------------


def _escaped(name: bytes) -> bytes:
    return name.replace(b"\0", b"\0\xff")


def _written(name: bytes) -> bytes:
    written = _escaped(name)
    if len(written) <= _MOST_NAME:
        return written + _END
    return _escaped(name[:_KEPT_OF_CUT]) + _CUT + keys.sha256(name)


def row_of(kind: bytes, name: bytes) -> bytes:
    """A row's key between the family and the owner."""
    if kind != GLOB:
        return kind + _written(name)
    head, tail, _ = literal_ends(name)
    identity = keys.sha256(name)[:_HASH]
    if len(tail) > len(head):
        return _GLOB_BY_END + _escaped(tail[::-1][:_MOST_ANCHOR]) + _END + identity
    return GLOB + _escaped(head[:_MOST_ANCHOR]) + _END + identity


def owner_key(owner: int) -> bytes:
    """The key of a process' record; with a row's key behind it, of the entry that leads to that row."""
    return OWNERS + owner.to_bytes(OWNER_BYTES, "big")


# -- subscribing --------------------------------------------------------------------------


def add(txn: WriteTransaction, owner: int, kind: bytes, name: bytes, by: int) -> None:
    """Add ``by`` (or subtract -``by``) subscribers of this process on a channel or glob. O(1)."""
    row = row_of(kind, name)
    key = ROWS + row + owner.to_bytes(OWNER_BYTES, "big")
    value = txn.get(key)
    had = 0 if value is None else records.unseal(key, value)[1]
    _set(txn, owner, row, name, had, max(0, had + by))


def _set(txn: WriteTransaction, owner: int, row: bytes, name: bytes, had: int, has: int) -> None:
    if has == had:
        return
    key = ROWS + row + owner.to_bytes(OWNER_BYTES, "big")
    mirror = owner_key(owner) + row
    is_glob = row[:1] in (GLOB, _GLOB_BY_END)
    alone = is_glob and (not had or not has) and not any(other != owner for other, _, _ in _rows(txn, row))
    if has:
        txn.put(key, records.seal(key, [name, has]))
        if not had:
            txn.put(mirror, records.seal(mirror, []))
    else:
        txn.delete(key)
        txn.delete(mirror)
    if is_glob:
        globs, subscribers = numpat(txn)
        globs += bool(has) - bool(had) if alone else 0
        txn.put(COUNTS, records.seal(COUNTS, [globs, subscribers + has - had]))


def add_owner(txn: WriteTransaction, owner: int, pid: int, since: int) -> None:
    """Record a process that is about to own live subscriptions. ``since`` in ms."""
    key = owner_key(owner)
    txn.put(key, records.seal(key, [pid, since]))


def has_owner(txn: RaxTransaction, owner: int) -> bool:
    """Whether this process has been recorded."""
    return txn.get(owner_key(owner)) is not None


def remove_owner(txn: WriteTransaction, owner: int) -> None:
    """Remove everything a process owned here."""
    base = owner_key(owner)
    mirrors = [key[len(base):] for key, _ in family_rows(txn, base)]
    for row in mirrors:
        if row:
            key = ROWS + row + owner.to_bytes(OWNER_BYTES, "big")
            value = txn.get(key)
            name, had = records.unseal(key, value) if value is not None else (b"", 0)
            _set(txn, owner, row, name, had, 0)
    if b"" in mirrors:
        txn.delete(base)


# -- finding ------------------------------------------------------------------------------


def subscribers(txn: RaxTransaction, kind: bytes, channel: bytes) -> list[Subscribers]:
    """The subscribers of a channel: its own first, then by globs.

    Globs do not match shard channels. One descent for the name, and for the globs some that
    depend on the channel's length, not on how many globs there are elsewhere.
    """
    found = [Subscribers(owner, None, count) for owner, _, count in _rows(txn, row_of(kind, channel))]
    if kind == CHANNEL:
        for mode, text in ((GLOB, channel), (_GLOB_BY_END, channel[::-1])):
            for owner, glob, count in _anchored(txn, mode, text):
                if glob_matches_bytes(glob, channel):
                    found.append(Subscribers(owner, glob, count))
    return found


def _rows(txn: RaxTransaction, row: bytes) -> Iterator[tuple[int, bytes, int]]:
    """(owner, name, subscribers) of every process on one channel or glob, or under one anchor."""
    for key, value in family_rows(txn, ROWS + row):
        name, subscribers = records.unseal(key, value)
        yield int.from_bytes(key[-OWNER_BYTES:], "big"), name, subscribers


def _anchored(txn: RaxTransaction, mode: bytes, text: bytes) -> Iterator[tuple[int, bytes, int]]:
    """The globs under every anchor that ``text`` begins with, from the longest anchor down."""
    base = ROWS + mode
    cursor = cursor_over(txn, base)
    prefix: bytes | None = text[:_MOST_ANCHOR]
    while prefix is not None:
        behind = base + _escaped(prefix) + _CUT  # just behind all rows whose anchor is ``prefix``
        if not cursor.set_before(behind):
            return
        written = cursor.key()[:-OWNER_BYTES - _HASH - len(_END)]
        anchor = written.replace(b"\0\xff", b"\0")
        if prefix.startswith(anchor):
            yield from _rows(txn, mode + written + _END)
            prefix = anchor[:-1] if anchor else None
        else:
            prefix = prefix[:common(anchor, prefix)]


def names(txn: RaxTransaction, kind: bytes, pattern: bytes | None) -> list[bytes]:
    """The channels with subscribers of their own that a glob matches, in order of their bytes.

    None for all, the empty name included, which ``*`` does not match. Looks only at those that
    begin with the glob's literal beginning.
    """
    head, _, literal = (b"", b"", False) if pattern is None else literal_ends(pattern)
    if literal:
        return [head] if any(True for _ in _rows(txn, row_of(kind, head))) else []
    found: list[bytes] = []
    for _, name, _ in _rows(txn, kind + _escaped(head[:_KEPT_OF_CUT])):
        if (not found or found[-1] != name) and (pattern is None or glob_matches_bytes(pattern, name)):
            found.append(name)
    return sorted(found)


def numsub(txn: RaxTransaction, kind: bytes, channel: bytes) -> int:
    """How many subscribers a channel has of its own; those by globs do not count."""
    return sum(subscribers for _, _, subscribers in _rows(txn, row_of(kind, channel)))


def numpat(txn: RaxTransaction) -> tuple[int, int]:
    """(different globs, subscriptions to globs). One record."""
    value = txn.get(COUNTS)
    if value is None:
        return 0, 0
    globs, subscribers = records.unseal(COUNTS, value)
    return globs, subscribers
