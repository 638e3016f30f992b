"""Flattened entries: those that need no look at each field any more, as rows, or as columns of texts.

    Flattened         [[b"item", b"book", b"qty", b"1"], [b"qty", b"2"], …]

    TextColumns       item   starts  0 4 4 7    texts  bookpen    is there  1 0 1
                      qty    starts  0 1 2 3    texts  123        (all are)

A node takes rows out of columns (builder.py) without an object of Python for each value. Columns are a sequence of
rows, too, for all that goes row by row.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from ...storage.errors import InvalidFields
from .entry import MAX_ELEMENTS, OWN_FIELD, checked
from .listpack import SAMEFIELDS, put_integer, put_text, put_value  # cimport

SOURCE_HASH = ""

_START = struct.Struct("=q")


def start_of(starts: bytes, i: int) -> int:  # cimport
    """The i-th of an array of int64."""
    return int(_START.unpack_from(starts, 8 * i)[0])


def put_start(starts: bytearray, i: int, value: int) -> None:  # cimport
    """Write the i-th of an array of int64."""
    _START.pack_into(starts, 8 * i, value)


class Flattened:
    """Entries whose fields are flattened: extend() takes them as they are."""

    __slots__ = ("flats",)

    def __init__(self, flats: list[list[bytes]] | TextColumns) -> None:
        self.flats: list[list[bytes]] | TextColumns = flats


class TextColumns:
    """Entries whose values are columns of texts. An entry has the names whose column has a text for it, in their order.

    ``columns``: for each name three runs of bytes. Where each text starts, and the last one ends, as int64, which may
    begin with any number; the texts; and a byte for each entry, 0 where it lacks the name, or nothing if none does.
    """

    __slots__ = ("count", "full", "names", "starts", "texts", "there")

    def __init__(self, names: list[bytes], columns: list[tuple[bytes, bytes, bytes]]) -> None:
        self.names: list[bytes] = names
        self.starts: list[bytes] = [column[0] for column in columns]
        self.texts: list[bytes] = [column[1] for column in columns]
        self.there: list[bytes] = [column[2] for column in columns]
        self.count: int = len(self.starts[0]) // 8 - 1
        self.full: bool = not any(self.there)  # all entries have all names

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[list[bytes]]:
        return map(self.__getitem__, range(self.count))

    def __getitem__(self, i: int) -> list[bytes]:
        """An entry as flatten() has it; not checked."""
        if not 0 <= i < self.count:
            raise IndexError(i)
        flat: list[bytes] = []
        k = 0
        while k < len(self.names):
            if self.full or self.has(k, i):
                starts = self.starts[k]
                texts = self.texts[k]
                at = start_of(starts, i) - start_of(starts, 0)
                flat.append(self.names[k])
                flat.append(texts[at : at + start_of(starts, i + 1) - start_of(starts, i)])
            k += 1
        return flat

    def check(self) -> None:
        """InvalidFields, as flatten_all() has it, if one of them cannot be an entry."""
        reserved = OWN_FIELD in self.names
        most = MAX_ELEMENTS
        i = 0
        while i < self.count:
            if reserved or not 0 < self.size_of(i) <= most:  # no bytes: no names, or an empty one
                try:
                    checked(self[i])
                except InvalidFields as error:
                    raise InvalidFields(f"entry no. {i}: {error}") from None
            i += 1

    def parts(self) -> list[bytes]:
        """All of it, but for the names, so that those of entries that come in several pieces join to those of all."""
        found: list[bytes] = []
        k = 0
        while k < len(self.names):
            starts = self.starts[k]
            sizes = bytearray(8 * self.count)
            i = 0
            while i < self.count:
                there: bool = self.full or self.has(k, i)
                put_start(sizes, i, start_of(starts, i + 1) - start_of(starts, i) if there else -1)
                i += 1
            found.append(bytes(sizes))
            found.append(self.texts[k])
            k += 1
        return found

    # -- for the builder of a node ------------------------------------------------------

    def has(self, k: int, i: int) -> bool:
        """Whether the i-th entry has the k-th name."""
        there = self.there[k]
        return len(there) == 0 or there[i] != 0

    def width(self, i: int) -> int:
        """How many fields the i-th entry has."""
        if self.full:
            return len(self.names)
        fields = k = 0
        while k < len(self.names):
            fields += self.has(k, i)
            k += 1
        return fields

    def size_of(self, i: int) -> int:
        """The bytes of the i-th entry's names and values."""
        size = k = 0
        while k < len(self.names):
            if self.full or self.has(k, i):
                starts = self.starts[k]
                name = self.names[k]
                size += len(name) + start_of(starts, i + 1) - start_of(starts, i)
            k += 1
        return size

    def has_names(self, i: int, names: list[bytes]) -> bool:
        """Whether the i-th entry has these names, in their order."""
        k = at = 0
        while k < len(self.names):
            if self.full or self.has(k, i):
                name = self.names[k]
                if at == len(names) or (names[at] is not name and names[at] != name):
                    return False
                at += 1
            k += 1
        return at == len(names)

    def put_entry(self, p: bytearray, at: int, ms: int, seq: int, i: int, same: bool) -> int:
        """listpack.put_entry() of the i-th entry."""
        fields = self.width(i)
        at = put_integer(p, at, SAMEFIELDS if same else 0)
        at = put_integer(p, at, ms)
        at = put_integer(p, at, seq)
        if not same:
            at = put_integer(p, at, fields)
        k = 0
        while k < len(self.names):
            if self.full or self.has(k, i):
                starts = self.starts[k]
                texts = self.texts[k]
                start = start_of(starts, i)
                if not same:
                    at = put_value(p, at, self.names[k])
                at = put_text(p, at, texts, start - start_of(starts, 0), start_of(starts, i + 1) - start)
            k += 1
        return put_integer(p, at, fields + 3 if same else 2 * fields + 4)
