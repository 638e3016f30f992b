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

from ..errors import CorruptionError, InvalidArgument
from ..format.keys import MAX_KEY

SOURCE_HASH = ""

NEXT = b"\x00"  # key + NEXT is the first byte string behind key: "> key" is ">= key + NEXT"


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
    """The rows of one family, from the key ``start`` on, with whole keys, over a cursor of their own. No copies.

    CorruptionError where the keys do not ascend.
    """
    cursor = txn.cursor()
    begin = prefix if start is None else start
    there = step_from(cursor, begin)
    last = b""
    while there:
        key = cursor.key()
        if key <= last:  # first: damage may lead back to another family
            raise disorder(key, last)
        if not key.startswith(prefix):
            return
        last = key
        yield key, cursor.value()
        there = cursor.next()


def disorder(key: bytes, last: bytes) -> CorruptionError:
    """The error for keys that do not ascend: a damaged page shows one row twice, or one in the place of another."""
    number = int.from_bytes(key[:8], "big")  # 0 in the keys that belong to no stream
    return CorruptionError(
        f"the key {key.hex()} comes behind {last.hex()}: a page of data.mdb is damaged",
        stream=str(number) if number else None,
    )


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


class RaxIterator:
    """A place in a rax, over one LMDB cursor. Made by Rax.iterator().

    After a seek ``key`` and ``value`` are those of the element found, and next() and prev()
    move away from it. (In Redis the first raxNext after a raxSeek returns the sought element.)
    ``key`` is without the prefix; both are copies.

    ``eof`` is true before the first seek, after one that found nothing (key and value are
    empty then), and after a step past either end (they stay on the last element, as in
    Redis); next() and prev() then answer False until the next seek. A step to a key that is not on
    that side raises CorruptionError: a page of LMDB's is damaged. After any write to the
    database seek again: ``it.seek(">", it.key)`` goes on behind an element just removed.
    """

    __slots__ = ("_cursor", "_prefix", "_skip", "eof", "key", "value")

    def __init__(self, cursor: Cursor, prefix: bytes) -> None:
        self._cursor = cursor
        self._prefix = prefix
        self._skip = len(prefix)
        self.eof: bool = True
        self.key: bytes = b""
        self.value: bytes = b""

    def seek(self, op: str, key: bytes = b"") -> bool:
        """Stand on the element that ``op`` names; False, and eof, if there is none.

        ``op`` is ">", ">=", "<", "<=" (the nearest on that side of ``key``), "=" (the key
        itself), "^" (the first) or "$" (the last); the last two ignore ``key``. Any other is
        an InvalidArgument and leaves the iterator alone. One descent of the B+tree. raxSeek.
        """
        cursor = self._cursor
        full = self._prefix + key
        if op == ">=":
            found = step_from(cursor, full)
        elif op == "<=":
            found = step_before(cursor, full + NEXT)
        elif op == ">":
            found = step_from(cursor, full + NEXT)
        elif op == "<":
            found = step_before(cursor, full)
        elif op == "=":
            found = cursor.set_key(full)
        elif op == "^":
            found = step_from(cursor, self._prefix)
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
        if self.eof:
            return False
        before = self.key
        found = self._cursor.next()
        if not self._settle(found):
            if found and (outside := bytes(self._cursor.key())) < self._prefix:
                raise disorder(outside, self._prefix + before)
            return False
        if self.key <= before:
            raise disorder(self._prefix + self.key, self._prefix + before)
        return True

    def prev(self) -> bool:
        """Move to the next smaller key; False, and eof, if this was the first. raxPrev."""
        if self.eof:
            return False
        before = self.key
        found = self._cursor.prev()
        if not self._settle(found):
            if found and (outside := bytes(self._cursor.key())) > self._prefix:
                raise disorder(self._prefix + before, outside)
            return False
        if self.key >= before:
            raise disorder(self._prefix + before, self._prefix + self.key)
        return True

    def take(self, most: int, stop: bytes) -> list[tuple[bytes, bytes]]:
        """The element here and those behind it, up to the key ``stop`` (included), at most ``most`` of them.

        Keys come whole, with the prefix. Then seek again. One copy an element, as with next(), and no call.
        """
        found: list[tuple[bytes, bytes]] = []
        prefix = self._prefix
        last = prefix + stop
        before = b""
        if not self.eof and most > 0:
            for full, value in self._cursor.iternext():
                key = bytes(full)
                if key <= before:
                    raise disorder(key, before)
                if key > last or not key.startswith(prefix):
                    break
                before = key
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
        self._made: Cursor | None = None  # moved only within a call, never across two

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

    def iterator(self) -> RaxIterator:
        """A new iterator, at eof until its first seek. raxStart; there is nothing to stop."""
        return RaxIterator(self._txn.cursor(), self._prefix)

    def floor(self, key: bytes) -> tuple[bytes, bytes] | None:
        """The greatest key <= ``key`` and its value, None if there is none. One descent."""
        return self._item() if step_before(self._cursor(), self._prefix + key + NEXT) else None

    def first(self) -> tuple[bytes, bytes] | None:
        """The least key and its value, None if the rax is empty. One descent."""
        return self._item() if step_from(self._cursor(), self._prefix) else None

    def last(self) -> tuple[bytes, bytes] | None:
        """The greatest key and its value, None if the rax is empty. One descent."""
        return self._item() if step_before(self._cursor(), behind(self._prefix)) else None

    def items(self, start: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Keys and values in order, from ``start`` (itself included; None: the first key) to the end.

        To be used up inside the transaction, without writes between two steps; RaxIterator has the rule for those.
        """
        iterator = self.iterator()
        more = iterator.seek("^") if start is None else iterator.seek(">=", start)
        while more:
            yield iterator.key, iterator.value
            more = iterator.next()

    def _cursor(self) -> Cursor:
        """The cursor, made by the first call that moves one."""
        if self._made is None:
            self._made = self._txn.cursor()
        return self._made

    def _item(self) -> tuple[bytes, bytes] | None:
        """The element under the cursor, None if that is outside the rax."""
        full, value = self._cursor().item()
        full = bytes(full)
        return (full[self._skip :], bytes(value)) if full.startswith(self._prefix) else None

    # ------------------------------------------------------------------ the tree

    @property
    def numele(self) -> int:
        """How many keys there are: one pass over them, values are not read. raxSize."""
        return sum(1 for _ in self._keys())

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
        for key in self._keys():
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
        if full is None or not step_from(self._cursor(), full):
            return None
        found = bytes(self._cursor().key())
        return found[self._skip :] if found.startswith(self._prefix) else None

    def _greatest(self, full: bytes | None) -> bytes | None:
        """The key that is the greatest < ``full`` of all in LMDB, None if it is not ours."""
        if not step_before(self._cursor(), full):
            return None
        found = bytes(self._cursor().key())
        return found[self._skip :] if found.startswith(self._prefix) else None

    def _keys(self) -> Iterator[bytes]:
        cursor = self._cursor()
        if cursor.set_range(self._prefix):
            for full in cursor.iternext(keys=True, values=False):
                found = bytes(full)
                if not found.startswith(self._prefix):
                    return
                yield found[self._skip :]


def step_from(cursor: Cursor, full: bytes) -> bool:
    """Stand on the least key >= ``full`` of the database.

    CorruptionError where it is less: in a damaged page LMDB's search goes astray.
    """
    there = cursor.set_range(full)
    if there and bytes(cursor.key()) < full:
        raise disorder(bytes(cursor.key()), full)
    return there


def step_before(cursor: Cursor, full: bytes | None) -> bool:
    """Stand on the greatest key < ``full`` of the database; None is behind all keys.

    CorruptionError where it is not less: in a damaged page LMDB's search goes astray.
    """
    if full is None:
        return cursor.last()
    set_before = getattr(cursor, "set_before", None)  # LMDB's cursor has none
    there: bool
    if set_before is not None:
        there = set_before(full)  # it compares them itself
        return there
    there = cursor.prev() if cursor.set_range(full) else cursor.last()
    if there and bytes(cursor.key()) >= full:
        raise disorder(full, bytes(cursor.key()))
    return there


def behind(full: bytes) -> bytes | None:
    """The first byte string behind all that begin with ``full``: its successor without the
    ff bytes at its end, which have none. None if it is all ff: then nothing follows."""
    stem = full.rstrip(b"\xff")
    return stem[:-1] + bytes((stem[-1] + 1,)) if stem else None


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
