"""The rax: Redis' radix tree over the ordered keys of LMDB.

    LMDB, under the prefix P      the rax that these keys imply, as show() draws it
    ------------------------      --------------------------------------------------
    P foo     -> 1 byte           "foo" -> [bt]=1 bytes
    P foobar  -> 2 bytes                  `-(b) "ar" -> []=2 bytes
    P footer  -> 3 bytes                  `-(t) "er" -> []=3 bytes

Only the keys are stored. A node is known by its path, the bytes that lead to it, and the
inner nodes are implied, for there is a branch exactly where two neighbouring keys part: foobar
and footer share three bytes, so there is a branch at "foo". Nothing is split or merged on a
write and nothing can disagree; what asks about the tree finds its neighbours with set_range.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol

from ..errors import InvalidArgument
from ..format.keys import MAX_KEY
from .rax_nodes import NEXT, RaxNode, RaxTree, behind, step_before

if TYPE_CHECKING:
    import lmdb

SOURCE_HASH = ""


class ReadTransaction(Protocol):
    """What a reader of records needs: an lmdb.Transaction, a WriteTransaction, or the pages of a damaged file."""

    def get(self, key: bytes, /) -> Any: ...
    def cursor(self) -> lmdb.Cursor[Any]: ...


class RaxTransaction(ReadTransaction, Protocol):
    """What a rax needs of its transaction: an lmdb.Transaction, or a wrapper around one."""

    def put(self, key: bytes, value: bytes, /, *, overwrite: bool = True) -> bool: ...
    def delete(self, key: bytes, /) -> bool: ...


def family_rows(txn: ReadTransaction, prefix: bytes, start: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
    """The rows of one family, from the key ``start`` on, with whole keys, over a cursor of their own. No copies."""
    cursor = txn.cursor()
    there = cursor.set_range(prefix if start is None else start)
    while there:
        key = cursor.key()
        if not key.startswith(prefix):
            return
        yield key, cursor.value()
        there = cursor.next()


class RaxIterator:
    """A place in a rax, over one LMDB cursor. Made by Rax.iterator().

    After a seek ``key`` and ``value`` are those of the element found, and next() and prev()
    move away from it. (In Redis the first raxNext after a raxSeek returns the sought element.)
    ``key`` is without the prefix; both are copies.

    ``eof`` is true before the first seek, after one that found nothing (key and value are
    empty then), and after a step past either end (they stay on the last element, as in
    Redis); next() and prev() then answer False until the next seek. After any write to the
    database seek again: ``it.seek(">", it.key)`` goes on behind an element just removed.
    """

    __slots__ = ("_cursor", "_prefix", "_skip", "eof", "key", "value")

    def __init__(self, cursor: lmdb.Cursor[Any], prefix: bytes) -> None:
        self._cursor = cursor
        self._prefix = prefix
        self._skip = len(prefix)
        self.eof = True
        self.key = b""
        self.value = b""

    def seek(self, op: str, key: bytes = b"") -> bool:
        """Stand on the element that ``op`` names; False, and eof, if there is none.

        ``op`` is ">", ">=", "<", "<=" (the nearest on that side of ``key``), "=" (the key
        itself), "^" (the first) or "$" (the last); the last two ignore ``key``. Any other is
        an InvalidArgument and leaves the iterator alone. One descent of the B+tree. raxSeek.
        """
        cursor = self._cursor
        full = self._prefix + key
        if op == ">=":
            found = cursor.set_range(full)
        elif op == "<=":
            found = step_before(cursor, full + NEXT)
        elif op == ">":
            found = cursor.set_range(full + NEXT)
        elif op == "<":
            found = step_before(cursor, full)
        elif op == "=":
            found = cursor.set_key(full)
        elif op == "^":
            found = cursor.set_range(self._prefix)
        elif op == "$":
            found = step_before(cursor, behind(self._prefix))
        else:
            raise InvalidArgument(f"a rax cannot seek {op!r}; the operators are '>', '>=', '<', '<=', '=', '^', '$'")
        if self._settle(found):
            return True
        self.key = self.value = b""
        return False

    def next(self) -> bool:
        """Move to the next greater key; False, and eof, if this was the last. raxNext."""
        return not self.eof and self._settle(self._cursor.next())

    def prev(self) -> bool:
        """Move to the next smaller key; False, and eof, if this was the first. raxPrev."""
        return not self.eof and self._settle(self._cursor.prev())

    def take(self, most: int, stop: bytes) -> list[tuple[bytes, bytes]]:
        """The element here and those behind it, up to the key ``stop`` (included), at most ``most`` of them.

        Keys come whole, with the prefix. Then seek again. One copy an element, as with next(), and no call.
        """
        found: list[tuple[bytes, bytes]] = []
        prefix = self._prefix
        last = prefix + stop
        if not self.eof and most > 0:
            for full, value in self._cursor.iternext():
                key = bytes(full)
                if key > last or not key.startswith(prefix):
                    break
                found.append((key, bytes(value)))
                if len(found) == most:
                    break
        self.eof = True
        return found

    def _settle(self, found: bool) -> bool:
        if found:
            full, value = self._cursor.item()
            full = bytes(full)
            if full.startswith(self._prefix):
                self.key = full[self._skip :]
                self.value = bytes(value)
                self.eof = False
                return True
        self.eof = True
        return False


class Rax:
    """The keys of one family, those behind ``prefix``, as a rax within one transaction.

    ``prefix`` is 1 to 511 bytes long and no other family's prefix may begin with it; a key of
    the rax has up to ``511 - len(prefix)`` bytes, none at all included. Values are opaque
    bytes; what is returned is always a copy, never LMDB's buffer. Nothing outside the prefix
    is ever read into an answer, or written. A rax lives as long as its transaction and, like
    it, belongs to one thread. Raises InvalidArgument for a prefix of another length.
    """

    __slots__ = ("_cursor", "_delete", "_get", "_prefix", "_put", "_skip", "_txn")

    def __init__(self, txn: RaxTransaction, prefix: bytes) -> None:
        if not 0 < len(prefix) <= MAX_KEY:
            raise InvalidArgument(f"a rax needs a prefix of 1 to {MAX_KEY} bytes, this one has {len(prefix)}")
        self._txn = txn
        self._prefix = prefix
        self._skip = len(prefix)
        self._get = txn.get
        self._put = txn.put
        self._delete = txn.delete
        self._cursor = txn.cursor()  # moved only within a call, never across two

    # ------------------------------------------------------------------ one key

    def find(self, key: bytes) -> bytes | None:
        """The value under ``key``, None if it is not there. One get. raxFind."""
        value = self._get(self._prefix + key)
        return None if value is None else bytes(value)

    def __contains__(self, key: bytes) -> bool:
        return self._cursor.set_key(self._prefix + key)

    def insert(self, key: bytes, value: bytes) -> bytes | None:
        """Set the value under ``key``; the old one, or None if the key is new. raxInsert.

        One get and one put. InvalidArgument if the key is too long for LMDB; nothing is
        changed then.
        """
        full = self._prefix + key
        if len(full) > MAX_KEY:
            raise self._too_long(key)
        found = self._get(full)
        old = None if found is None else bytes(found)  # a buffer would not outlive the put
        self._put(full, value)
        return old

    def try_insert(self, key: bytes, value: bytes) -> bool:
        """Set the value unless the key is there; whether it was set. One put. raxTryInsert."""
        full = self._prefix + key
        if len(full) > MAX_KEY:
            raise self._too_long(key)
        return self._put(full, value, overwrite=False)

    def remove(self, key: bytes) -> bytes | None:
        """Remove ``key``; its value, or None if it was not there. raxRemove."""
        full = self._prefix + key
        found = self._get(full)
        if found is None:
            return None
        old = bytes(found)
        self._delete(full)
        return old

    def _too_long(self, key: bytes) -> InvalidArgument:
        return InvalidArgument(
            f"a key of {len(key)} bytes is too long for this rax, which holds keys of up to "
            f"{MAX_KEY - self._skip} (LMDB's {MAX_KEY} less the prefix); shorten it"
        )

    # ---------------------------------------------------------------- neighbours

    def iterator(self) -> RaxIterator:
        """A new iterator, at eof until its first seek. raxStart; there is nothing to stop."""
        return RaxIterator(self._txn.cursor(), self._prefix)

    def ceiling(self, key: bytes) -> tuple[bytes, bytes] | None:
        """The least key >= ``key`` and its value, None if there is none. One descent."""
        return self._item() if self._cursor.set_range(self._prefix + key) else None

    def floor(self, key: bytes) -> tuple[bytes, bytes] | None:
        """The greatest key <= ``key`` and its value, None if there is none. One descent."""
        cursor = self._cursor
        if cursor.set_range(self._prefix + key + NEXT):
            return self._item() if cursor.prev() else None
        return self._item() if cursor.last() else None

    def first(self) -> tuple[bytes, bytes] | None:
        """The least key and its value, None if the rax is empty. One descent."""
        return self._item() if self._cursor.set_range(self._prefix) else None

    def last(self) -> tuple[bytes, bytes] | None:
        """The greatest key and its value, None if the rax is empty. One descent."""
        return self._item() if step_before(self._cursor, behind(self._prefix)) else None

    def items(self, start: bytes | None = None, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        """Keys and values in order, from ``start`` (itself included) to the end.

        With ``reverse`` from ``start`` down to the first; ``start`` None is the first key, or
        the last with ``reverse``. To be used up inside the transaction, without writes between
        two steps; RaxIterator has the rule for those.
        """
        iterator = self.iterator()
        if start is None:
            iterator.seek("$" if reverse else "^")
        else:
            iterator.seek("<=" if reverse else ">=", start)
        step = iterator.prev if reverse else iterator.next
        more = not iterator.eof
        while more:
            yield iterator.key, iterator.value
            more = step()

    def _item(self) -> tuple[bytes, bytes] | None:
        """The element under the cursor, None if that is outside the rax."""
        full, value = self._cursor.item()
        full = bytes(full)
        return (full[self._skip :], bytes(value)) if full.startswith(self._prefix) else None

    # ------------------------------------------------------------------ the tree

    @property
    def numele(self) -> int:
        """How many keys there are: one pass over them, values are not read. raxSize."""
        return self._tree().numele()

    @property
    def numnodes(self) -> int:
        """How many nodes Redis' rax of these keys has: one pass over the keys."""
        return self._tree().numnodes()

    def node(self, path: bytes) -> RaxNode | None:
        """The node that begins at ``path``, None if none does."""
        return self._tree().node(path)

    def nodes(self) -> Iterator[RaxNode]:
        """All nodes, a parent before its children, these in order."""
        return self._tree().nodes()

    def show(self) -> str:
        """The tree as raxShow draws it."""
        return self._tree().show()

    def _tree(self) -> RaxTree:
        return RaxTree(self._txn.cursor(), self._prefix)
