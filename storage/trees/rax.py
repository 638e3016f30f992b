"""The rax: Redis' radix tree over the ordered keys of LMDB.

    LMDB, under the prefix P      the rax that these keys imply, as show() draws it
    ------------------------      --------------------------------------------------
    P foo     -> 1 byte           "foo" -> [bt]=1 bytes
    P foobar  -> 2 bytes                  `-(b) "ar" -> []=2 bytes
    P footer  -> 3 bytes                  `-(t) "er" -> []=3 bytes

Only the keys are stored; the inner nodes are implied, for there is a branch exactly where two neighbouring
keys part: foobar and footer share three bytes, so there is a branch at "foo". Nothing is split or merged on
a write and nothing can disagree; what asks about the tree finds its neighbours with set_range.

A node is known by its path, the bytes that lead to it. It begins
    1. at the root;
    2. where a key ends ("foo"; and the empty leaves behind "foobar" and "footer");
    3. where more than one byte can follow, a branch ("foo" again: [bt]);
    4. right behind a byte of a branch ("foob": the node "ar").
From there to the next beginning the bytes go single file, and they are the node's label. Two
bytes and more make a compressed node, drawn in quotes; one byte, or one for each way down of
a branch, a plain one, drawn in brackets.

How this differs from the rax in Redis' memory. The tree here depends on nothing but the set
of keys. Redis builds the same tree on insert, node for node; raxRemove merges less than its
own comment says (redis#7429, antirez/rax#21 and #29), so a chain can stay cut in two when
    A. the removed key's node is compressed: `h->size == 1` counts its bytes, not its children
       (foo, foobar, remove foo: "foo" -> "bar" -> [], here "foobar" -> []);
    B. a key heads the chain above: merging upwards stops below a key
       (f, fo, foo, remove fo: [f] -> [o]=f -> [o] -> [], here [f] -> "oo"=f -> []);
    C. a key that is a branch loses its last but one way down: `new->iskey == 0`
       (foo, foobar, footer, remove footer: [b]=foo -> "ar" -> [], here "bar"=foo -> []).
Each needs a key that is the beginning of another one. Keys of one length (stream IDs,
ordinals, numbers) never are: there the two agree after any inserts and removes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol, Self

from ..errors import InvalidArgument
from ..format.keys import MAX_KEY
from ..log.cursor import NEXT, LogCursor, behind, cursor_over


class Cursor(Protocol):
    """A place among the keys of a transaction. Keys and values are bytes, or LMDB's memory where that was asked for."""

    def set_range(self, key: bytes, /) -> bool: ...
    def set_key(self, key: bytes, /) -> bool: ...
    def first(self) -> bool: ...
    def last(self) -> bool: ...
    def next(self) -> bool: ...
    def prev(self) -> bool: ...
    def key(self) -> Any: ...
    def value(self) -> Any: ...
    def item(self) -> tuple[Any, Any]: ...
    def iternext(self, keys: bool = True, values: bool = True) -> Iterator[Any]: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *error: Any) -> None: ...


class ReadTransaction(Protocol):
    """What a reader of records needs: a tree's read, a view of the log, or the pages of a damaged file."""

    def get(self, key: bytes, /) -> Any: ...
    def cursor(self) -> Cursor: ...


class RaxTransaction(ReadTransaction, Protocol):
    """What a rax needs of its transaction: a tree's transaction, or one of the log's."""

    def put(self, key: bytes, value: bytes, /, *, overwrite: bool = True) -> bool: ...
    def delete(self, key: bytes, /) -> bool: ...


def family_rows(txn: ReadTransaction, prefix: bytes, start: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
    """The rows of one family, from the key ``start`` on, with whole keys, over a cursor of their own.

    CorruptionError where the keys do not ascend.
    """
    return cursor_over(txn, prefix).rows_from(prefix if start is None else start)


class RaxNode(NamedTuple):
    """A node as Redis would hold it.

    ``path`` leads to it from the root. ``label`` is its bytes, as raxShow prints them: the
    chain of a compressed node, else one byte for each way down, in order. ``children`` is the
    first byte of each way down: all of a plain node's label, one byte of a compressed one's.
    ``is_key`` says that ``path`` is a key. A leaf has no label and is always a key, but for
    the root of an empty rax.
    """

    path: bytes
    label: bytes
    children: bytes
    is_key: bool
    is_compressed: bool

    def child(self, index: int) -> bytes:
        """The path of the node down the way ``children[index]``."""
        if self.is_compressed:
            return self.path + self.label
        return self.path + self.children[index : index + 1]


class Rax:
    """The keys of one family, those behind ``prefix``, as a rax within one transaction.

    ``prefix`` is 1 to 511 bytes long and no other family's prefix may begin with it; a key of
    the rax has up to ``511 - len(prefix)`` bytes, none at all included. Values are opaque
    bytes; what is returned is always a copy, never LMDB's buffer. Nothing outside the prefix
    is ever read into an answer, or written. A rax lives as long as its transaction and, like
    it, belongs to one thread. Raises InvalidArgument for a prefix of another length.
    """

    __slots__ = ("_delete", "_get", "_made", "_prefix", "_put", "_skip", "_txn")

    def __init__(self, txn: RaxTransaction, prefix: bytes) -> None:
        if not 0 < len(prefix) <= MAX_KEY:
            raise InvalidArgument(f"a rax needs a prefix of 1 to {MAX_KEY} bytes, this one has {len(prefix)}")
        self._txn = txn
        self._prefix = prefix
        self._skip = len(prefix)
        self._get = txn.get
        self._put = txn.put
        self._delete = txn.delete
        self._made: LogCursor | None = None  # moved only within a call, never across two

    # ------------------------------------------------------------------ one key

    def find(self, key: bytes) -> bytes | None:
        """The value under ``key``, None if it is not there. One get. raxFind."""
        value = self._get(self._prefix + key)
        return None if value is None else bytes(value)

    def __contains__(self, key: bytes) -> bool:
        return self._cursor().set_key(self._prefix + key)

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

    def iterator(self) -> LogCursor:
        """A new iterator, at eof until its first seek. raxStart; there is nothing to stop."""
        return cursor_over(self._txn, self._prefix)

    def floor(self, key: bytes) -> tuple[bytes, bytes] | None:
        """The greatest key <= ``key`` and its value, None if there is none. One descent."""
        return self._cursor().item() if self._cursor().seek("<=", key) else None

    def first(self) -> tuple[bytes, bytes] | None:
        """The least key and its value, None if the rax is empty. One descent."""
        return self._cursor().item() if self._cursor().first() else None

    def last(self) -> tuple[bytes, bytes] | None:
        """The greatest key and its value, None if the rax is empty. One descent."""
        return self._cursor().item() if self._cursor().last() else None

    def items(self, start: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Keys and values in order, from ``start`` (itself included; None: the first key) to the end.

        To be used up inside the transaction, without writes between two steps; LogCursor has the rule for those.
        """
        iterator = self.iterator()
        if start is None or iterator.seek(">=", start):
            yield from iterator.iternext()

    def _cursor(self) -> LogCursor:
        """The cursor, made by the first call that moves one."""
        if self._made is None:
            self._made = cursor_over(self._txn, self._prefix)
        return self._made

    # ------------------------------------------------------------------ the tree

    @property
    def numele(self) -> int:
        """How many keys there are: one pass over them, values are not read. raxSize."""
        return sum(1 for _ in self.iterator().iternext(values=False))

    @property
    def numnodes(self) -> int:
        """How many nodes Redis' rax of these keys has (XINFO STREAM: radix-tree-nodes).

        An empty rax has one, its head. One pass over the keys: O(keys), values are not read.
        """
        # The places on the path to the last key at which a key ends or branches, root
        # first: [depth, ways down, ways down that are longer than one byte].
        places = [[0, 0, 0]]
        count = 0
        last = b""
        for key in self.iterator().iternext(values=False):
            count += _fold(places, common(last, key))
            if key:  # the empty key is the root, which is there already
                places.append([len(key), 0, 0])
            last = key
        count += _fold(places, 0)
        _, ways, long_ways = places[0]
        return count + 1 + (long_ways if ways > 1 else 0)

    def nodes(self) -> Iterator[RaxNode]:
        """All nodes, a parent before its children, these in order. A few seeks a node.

        To be used up inside the transaction, without writes between two steps.
        """
        paths = [b""]
        while paths:
            node = self._node(paths.pop())
            yield node
            paths += [node.child(index) for index in reversed(range(len(node.children)))]

    def show(self) -> str:
        """The tree as raxShow draws it, with the length of a value in place of its pointer.

        Bytes that are not printable ASCII, and the backslash, are drawn as \\xhh.
        """
        drawing = []
        pending = [(b"", "", 0, 0)]  # path, what is drawn in front of it, level, padding
        while pending:
            path, lead, level, padding = pending.pop()
            node = self._node(path)
            text = f'"{_text(node.label)}"' if node.is_compressed else f"[{_text(node.label)}]"
            if node.is_key:
                self._cursor().set_key(self._prefix + path)
                text += f"={len(self._cursor().value())} bytes"
            drawing += [lead, text]
            ways = len(node.children)
            if level:  # raxShow does not count the head in, so we do not
                padding += 7 if ways > 1 else 4 + len(text)
            for index in reversed(range(ways)):
                lead = " -> "
                if ways > 1:
                    lead = f"\n{' ' * padding} `-({_text(node.children[index : index + 1])}) "
                pending.append((node.child(index), lead, level + 1, padding))
        return "".join(drawing)

    def _node(self, path: bytes) -> RaxNode:
        """The node at ``path``, where one is known to begin."""
        full = self._prefix + path
        depth = len(path)
        first = self._least(full)
        is_key = first == path
        if is_key:
            first = self._least(full + NEXT)
        last = self._greatest(behind(full))
        if first is None or last is None or not first.startswith(path):
            return RaxNode(path, b"", b"", is_key, False)
        end = common(first, last)
        if end > depth:
            label = first[depth:end]
            return RaxNode(path, label, label[:1], is_key, len(label) > 1)
        ways = bytearray()
        while first is not None and first.startswith(path):
            ways.append(first[depth])
            first = self._least(behind(full + first[depth : depth + 1]))
        return RaxNode(path, bytes(ways), bytes(ways), is_key, False)

    def _least(self, full: bytes | None) -> bytes | None:
        """The key that is the least >= ``full`` of all in LMDB, None if it is not ours."""
        return self._cursor().key() if full is not None and self._cursor().set_range(full) else None

    def _greatest(self, full: bytes | None) -> bytes | None:
        """The key that is the greatest < ``full`` of all in LMDB, None if it is not ours."""
        cursor = self._cursor()
        return cursor.key() if (cursor.last() if full is None else cursor.set_before(full)) else None


def common(a: bytes, b: bytes) -> int:
    """How many bytes the two begin with in common. No loop: the highest bit of a ^ b says."""
    size = min(len(a), len(b))
    differ = int.from_bytes(a[:size], "big") ^ int.from_bytes(b[:size], "big")
    return size - (differ.bit_length() + 7) // 8


def _fold(places: list[list[int]], depth: int) -> int:
    """Take the places deeper than ``depth`` off the stack: the next key is not below them.
    Returns their nodes: one each, and one for each longer way down from a branch."""
    count = 0
    while places[-1][0] > depth:
        below, ways, long_ways = places.pop()
        count += 1 + (long_ways if ways > 1 else 0)
        if places[-1][0] < depth:
            places.append([depth, 0, 0])  # where the next key parts, a branch now
        above = places[-1]
        above[1] += 1
        above[2] += below - above[0] > 1
    return count


def _text(raw: bytes) -> str:
    return "".join(chr(b) if 32 <= b < 127 and b != 92 else f"\\x{b:02x}" for b in raw)
