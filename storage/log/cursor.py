"""The cursor over log and tree: one place among the keys that a view sees, or those of them with one prefix.

    LMDB's cursor    a     c  d        the nearer of both candidates is shown, in the direction of the step;
    the overlay      a  b        e     of a key that both have, the overlay's value

The overlay, its deleted keys and its gaps are described in transaction.py.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import Any

from raxlog.storage.errors import CorruptionError, InvalidArgument

from .transaction import Overlay, Version, View  # cimport

SOURCE_HASH = ""

NEXT = b"\0"  # key + NEXT is the first byte string behind key: "> key" is ">= key + NEXT"
BEHIND = b"\xff" * 512  # behind all keys: LMDB's have up to 511 bytes
SHORT = 8  # keys: a run that is stepped over faster than looked up
MOST_GAPS = 1000


def disorder(key: bytes, last: bytes) -> CorruptionError:
    """The error for keys that do not ascend: a damaged page shows one row twice, or one in the place of another."""
    number = int.from_bytes(key[:8], "big")  # 0 in the keys that belong to no stream
    return CorruptionError(
        f"the key {key.hex()} comes behind {last.hex()}: a page of data.mdb is damaged",
        stream=str(number) if number else None,
    )


def behind(full: bytes) -> bytes | None:
    """The first byte string behind all that begin with ``full``: its successor without the
    ff bytes at its end, which have none. None if it is all ff: then nothing follows."""
    stem = full.rstrip(b"\xff")
    last = len(stem) - 1
    return stem[:last] + bytes((stem[last] + 1,)) if stem else None


def seek(cursor: Any, full: bytes, before: bool = False) -> bytes | None:
    """Stand on the least key >= ``full`` of LMDB's; ``before``: on the greatest before it. That key, or None.

    LMDB looks for a key by halves, and has no checksum over its pages: one row that shows a wrong key sends the search
    to the wrong side of it, and all rows between there and the right place are missed. The search ends beside that
    row, for all other rows lead it back there. So these show it:

        k[-2] < k[-1] < full <= k[0] < k[1]

    CorruptionError where that does not hold. Six steps of a cursor, a third of a microsecond.
    """
    key: bytes | None = None
    if cursor.set_range(full):
        key = cursor.key()
        if key < full:
            raise disorder(key, full)
        if not cursor.next():
            cursor.last()
        elif cursor.key() <= key:
            raise disorder(cursor.key(), key)
        else:
            cursor.prev()
    if not (cursor.last() if key is None else cursor.prev()):  # there is none before it
        if not before:
            cursor.first()
            return key
        return None
    last: bytes = cursor.key()
    if last >= full:
        raise disorder(full, last)
    if cursor.prev():
        if cursor.key() >= last:
            raise disorder(last, cursor.key())
        cursor.next()
    else:
        cursor.first()
    if before:
        return last
    if key is not None:
        cursor.next()
    return key


NOTHING = Overlay(0)  # of what has no log: it stays empty


class LogCursor:
    """A place among the keys of log and tree that begin with a prefix; the empty one begins all.

    It stands on the nearer of two candidates, LMDB's and the overlay's. key() is without the prefix, ``here`` with it.
    Where a tree is read alone, LMDB's cursor lies below, or one with its methods, and the overlay is NOTHING.

    ``eof`` is true before the first seek, after one that found nothing (key() is empty then), and after a step past
    either end (key() stays on the last element, as in Redis); next() and prev() then answer False until the next seek.
    A seek or a step to a key that is not on that side raises CorruptionError: a page of LMDB's is damaged. In a
    transaction of LMDB's seek again after any write: ``cursor.seek(">", cursor.key())`` goes on behind an element just
    removed. (In Redis the first raxNext after a raxSeek returns the sought element.)
    """

    __slots__ = ("at", "both", "cursor", "eof", "forward", "here", "index", "moves", "on_lmdb", "other", "overlay",
                 "prefix", "rest", "rows", "seen", "skip", "upto", "version")

    def __init__(self, cursor: Any, overlay: Overlay, upto: int) -> None:
        self.cursor: Any = cursor
        self.overlay: Overlay = overlay
        self.rows: dict[bytes, Version] = overlay.rows
        self.upto: int = upto
        self.prefix: bytes = b""
        self.skip: int = 0  # its length
        self.eof: bool = True
        self.here: bytes = b""  # the key it stands on
        self.rest: bytes = b""  # without the prefix
        self.seen: bytes | None = None  # its value, once it was asked for
        self.at: bytes | None = None  # LMDB's candidate
        self.both: bool = False  # whether the overlay has it too
        self.other: bytes | None = None  # the overlay's candidate, found at ``index`` of the order
        self.version: Version | None = None
        self.index: int = 0
        self.moves: int = -1
        self.forward: bool = True
        self.on_lmdb: bool = False

    def __enter__(self) -> LogCursor:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the cursor of LMDB's that lies below."""
        self.cursor.close()

    def turn_to(self, prefix: bytes) -> None:
        """Go on among the keys with another prefix; at eof until the next seek."""
        self.prefix = prefix
        self.skip = len(prefix)
        self.eof = True

    def below(self, found: bool) -> bytes | None:
        """The key that LMDB's cursor stands on, if it has found one."""
        if not found:
            return None
        key = self.cursor.key()
        return key if type(key) is bytes else bytes(key)  # or LMDB's memory, where that was asked for

    def search(self, full: bytes, before: bool = False) -> bytes | None:
        """seek() by LMDB's cursor; of a tree that is read alone only what is found is looked at."""
        if self.overlay is not NOTHING:
            return seek(self.cursor, full, before)
        cursor = self.cursor
        found = cursor.set_range(full)
        if before:
            found = cursor.prev() if found else cursor.last()
        return self.below(found)

    def skip_from(self, key: bytes | None) -> None:
        """LMDB's candidate: ``key``, where its cursor stands, or the next that the overlay has not deleted."""
        cursor = self.cursor
        first: bytes | None = None  # of a run, forward
        steps = 0
        self.both = False
        while key is not None and self.rows:  # else there is nothing to look up
            version = self.rows.get(key)
            while version is not None and version.lsn > self.upto:
                version = version.older
            if version is None or version.value is not None:
                self.both = version is not None
                break
            if not self.forward:
                key = self.below(cursor.prev())
                continue
            if first is None:
                first = key
                gap = self.overlay.gaps.get(key)
                if gap is not None and gap[0] <= self.upto:
                    end = gap[1]
                    key = None if end is None else self.search(end)
                    steps = SHORT
                    continue
            steps += 1
            key = self.below(cursor.next())
        self.at = key
        if steps > SHORT and first is not None:
            gaps = self.overlay.gaps
            if len(gaps) >= MOST_GAPS:
                gaps.clear()
            gaps[first] = self.upto, key

    def skip_lmdb(self, found: bool) -> None:
        """The same after a move of LMDB's cursor."""
        self.skip_from(self.below(found))

    def skip_overlay(self, index: int, bound: bytes) -> None:
        """Set the overlay's candidate: the first key >= ``bound``, or going backward the last key < ``bound``.

        ``index`` is the place of ``bound`` in the overlay's order, unless another thread has inserted or removed keys
        since. So its two neighbours are fetched in one step, which no thread can interrupt, and are compared with it.
        """
        order = self.overlay.order
        while True:
            before = 1 if index > 0 else 0  # whether there is a key on that side
            beside = order[index - before : index + 1]
            size = len(beside)
            if size < before or (before and beside[0] >= bound) or (size > before and beside[before] < bound):
                index = bisect_left(order, bound)
                continue
            self.index = index
            at = before if self.forward else before - 1
            if not 0 <= at < size:
                self.other = self.version = None
                break
            key = beside[at]
            version = self.rows.get(key)
            while version is not None and version.lsn > self.upto:
                version = version.older
            if version is not None and version.value is not None:
                self.other = key
                self.version = version
                break
            bound = key + NEXT if self.forward else key
            index += 1 if self.forward else -1
        self.moves = self.overlay.moves

    def pick(self) -> bytes | None:
        """The nearer candidate.

        What both have is met on both sides at once, or LMDB's cursor has come to it a second time: it turned, where a
        gap lies, or a damaged page leads back. LMDB's value, which the overlay has replaced, is never shown.
        """
        while True:
            if self.at is None:
                self.on_lmdb = False
            elif self.other is None:
                self.on_lmdb = True
            else:
                self.on_lmdb = self.at < self.other if self.forward else self.at > self.other
            if not self.on_lmdb or not self.both:
                return self.at if self.on_lmdb else self.other
            self.skip_lmdb(self.cursor.next() if self.forward else self.cursor.prev())

    def stand(self, key: bytes | None) -> bool:
        """Stand on a key, unless it is none or has another prefix."""
        if key is None or (self.skip and not key.startswith(self.prefix)):
            self.eof = True
            return False
        self.here = key
        text = key
        self.rest = text[self.skip : len(key)] if self.skip else key
        self.seen = None
        self.eof = False
        return True

    def stand_found(self, key: bytes | None) -> bool:
        """The same after a seek: where there is none it stands nowhere."""
        if self.stand(key):
            return True
        self.here = self.rest = b""
        return False

    def approach(self, full: bytes, forward: bool) -> None:
        """Set both candidates: the first key >= ``full``, or backward the last one before it."""
        self.forward = forward
        self.skip_from(self.search(full, not forward))
        self.skip_overlay(bisect_left(self.overlay.order, full), full)

    def set_range(self, full: bytes) -> bool:
        """Stand on the first key >= ``full``, which has the prefix or is behind all that have it."""
        self.approach(full, True)
        key = self.pick()
        if key is not None and key < full:
            raise disorder(key, full)
        return self.stand_found(key)

    def set_before(self, full: bytes) -> bool:
        """Stand on the last key < ``full``."""
        self.approach(full, False)
        key = self.pick()
        if key is not None and key >= full:
            raise disorder(full, key)
        return self.stand_found(key)

    def set_key(self, full: bytes) -> bool:
        """Stand on this key."""
        self.approach(full, True)
        key = self.pick()
        return self.stand_found(key if key == full else None)

    def seek(self, op: str, key: bytes = b"") -> bool:
        """Stand on the element that ``op`` names; False, and eof, if there is none.

        ``op`` is ">", ">=", "<", "<=" (the nearest on that side of ``key``), "=" (the key
        itself), "^" (the first) or "$" (the last); the last two ignore ``key``. Any other is
        an InvalidArgument and leaves the cursor alone. One descent of the B+tree. raxSeek.
        """
        if op == ">=":
            return self.set_range(self.prefix + key)
        if op == "<=":
            return self.set_before(self.prefix + key + NEXT)
        if op == ">":
            return self.set_range(self.prefix + key + NEXT)
        if op == "<":
            return self.set_before(self.prefix + key)
        if op == "=":
            return self.set_key(self.prefix + key)
        if op == "^":
            return self.first()
        if op == "$":
            return self.last()
        raise InvalidArgument(f"a rax cannot seek {op!r}; the operators are '>', '>=', '<', '<=', '=', '^', '$'")

    def first(self) -> bool:
        """Stand on the first key."""
        if self.skip:
            return self.set_range(self.prefix)
        self.forward = True
        self.skip_lmdb(self.cursor.first())  # of all: there is nothing that a search could miss
        self.skip_overlay(0, b"")
        return self.stand_found(self.pick())

    def last(self) -> bool:
        """Stand on the last key."""
        return self.set_before(behind(self.prefix) or BEHIND)

    def next(self) -> bool:
        """Step to the next key; False, and eof, if this was the last. raxNext."""
        if self.eof:
            return False
        here = self.here
        if self.moves != self.overlay.moves:
            self.approach(here + NEXT, True)
        elif not self.forward:  # no seek: both candidates stand here or before, and a damaged key leads elsewhere
            self.forward = True
            self.skip_lmdb(self.cursor.first() if self.at is None else self.cursor.next())
            self.skip_overlay(bisect_right(self.overlay.order, here), here + NEXT)
        elif self.on_lmdb:
            self.skip_lmdb(self.cursor.next())
        else:
            if self.at == here:
                self.skip_lmdb(self.cursor.next())
            self.skip_overlay(self.index + 1, here + NEXT)
        key = self.pick()
        if key is not None and key <= here:
            raise disorder(key, here)
        return self.stand(key)

    def prev(self) -> bool:
        """Step to the key before; False, and eof, if this was the first. raxPrev."""
        if self.eof:
            return False
        here = self.here
        if self.moves != self.overlay.moves:
            self.approach(here, False)
        elif self.forward:
            self.forward = False
            self.skip_lmdb(self.cursor.last() if self.at is None else self.cursor.prev())
            self.skip_overlay(bisect_left(self.overlay.order, here), here)
        elif self.on_lmdb:
            self.skip_lmdb(self.cursor.prev())
        else:
            if self.at == here:
                self.skip_lmdb(self.cursor.prev())
            self.skip_overlay(self.index - 1, here)
        key = self.pick()
        if key is not None and key >= here:
            raise disorder(here, key)
        return self.stand(key)

    def key(self) -> bytes:
        """The key it stands on, without the prefix."""
        return self.rest

    def value(self) -> bytes:
        """The value of the key it stands on, a copy; empty where it stands on none."""
        if self.eof:
            return b""
        if self.seen is None:
            value: Any = self.cursor.value() if self.on_lmdb else self.version.value  # type: ignore[union-attr]
            self.seen = value if type(value) is bytes else bytes(value)
        return self.seen

    def item(self) -> tuple[bytes, bytes]:
        """key() and value()."""
        return self.rest, self.value()

    def take(self, most: int, stop: bytes) -> list[tuple[bytes, bytes]]:
        """The element here and those behind it, up to the key ``stop`` (included), at most ``most`` of them.

        Keys come whole, with the prefix. Then seek again.
        """
        found: list[tuple[bytes, bytes]] = []
        last = self.prefix + stop
        more = not self.eof and most > 0
        if more and self.overlay is NOTHING:  # LMDB's cursor alone: no candidates to compare
            here = b""
            for key, value in self.cursor.iternext():
                if not here < key <= last or len(found) == most:
                    if key <= here:
                        raise disorder(key, here)
                    break
                here = key if type(key) is bytes else bytes(key)
                found.append((here, value if type(value) is bytes else bytes(value)))
            more = False
        while more and self.here <= last:
            found.append((self.here, self.value()))
            more = len(found) < most and self.next()
        self.eof = True
        return found

    def __iter__(self) -> Iterator[Any]:
        return self.iternext()

    def rows_from(self, start: bytes) -> Iterator[tuple[bytes, bytes]]:
        """From the first key >= ``start`` on, with the prefix."""
        found = self.set_range(start)
        while found:
            yield self.here, self.value()
            found = self.next()

    def iternext(self, keys: bool = True, values: bool = True) -> Iterator[Any]:
        """From here on, or from the first key."""
        found = not self.eof or self.first()
        while found:
            yield self.item() if keys and values else self.rest if keys else self.value()
            found = self.next()


def cursor_over(txn: Any, prefix: bytes = b"") -> LogCursor:
    """A cursor over the keys with that prefix in a view of the log, a transaction of the tree, or what is like one."""
    if isinstance(txn, View):
        view = txn
        merges = view.writes or len(view.rows) > 0  # else LMDB's has all
        cursor = LogCursor(view.lmdb().cursor(), view.overlay if merges else NOTHING, view.upto)
    else:
        cursor = LogCursor(txn.cursor(), NOTHING, 0)
    cursor.turn_to(prefix)
    return cursor
