"""Every record of a store: its pages, its checksum, the form of its key, its stream.

    all records      pages, checksum, format, form of the key
    number 0         the store's own record; names <-> headers, one to one; what is being swept
    numbers 1 …      a stream with a name and a header, or one that is being swept
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from xxhash import xxh3_64_digest, xxh3_64_intdigest

from ...storage.errors import UnsupportedFormat
from ...storage.format import keys, records
from ...storage.format.keys import FORMAT
from ...storage.tree import lmdb_file
from ...storage.tree.lmdb_file import PageFault, PageFile
from ...stream.entries.header import shown
from .page_tree import FAILURES, PageTree
from .report import Findings

SUBJECT_KINDS = range(0x10, 0x20)  # of number 0: the subject index
_STORE_KINDS = {keys.STORE: (9,), keys.NAME: range(9, 512), keys.DOOMED: (17, 21), keys.STATE: range(9, 512),
                keys.LOG: (10,), keys.SUPERSEDED: (9,),
                **dict.fromkeys(SUBJECT_KINDS, range(9, 512))}
STREAM_KINDS = {
    keys.DEAD: (18,), keys.ORDINAL: (17,), keys.GROUP_NAME: range(10, 411), keys.CONSUMER_NAME: range(14, 415),
    keys.IDEMPOTENT: (41,), keys.IDEMPOTENT_AGE: (25, 41), keys.DEFERRED: (25,), keys.RESULT: range(10, 512),
    keys.RESULT_AGE: range(18, 512), keys.SCHEDULE: range(10, 410), keys.UNIQUE: (25,), keys.NODE: (25,),
    keys.HEADER: (9,), keys.GROUP: (13,), keys.CONSUMER: (17,), keys.PENDING: (29,), keys.PENDING_BY_CONSUMER: (33,),
    keys.PENDING_BY_TIME: (37,), keys.RELEASED: (29,), keys.KEY: (29, 45),
}  # fmt: skip
_COUNTED = {
    keys.NODE: "nodes", keys.GROUP: "groups", keys.CONSUMER: "consumers", keys.STATE: "state",
    keys.PENDING: "buckets",
}  # fmt: skip


class Inventory:
    """The contents of a store, by the stream numbers that its keys begin with."""

    def __init__(self) -> None:
        self.kinds: dict[int, Counter[int]] = {}
        self.sealed = 0  # records whose checksum is right
        self.names: dict[bytes, int] = {}
        self.headers: dict[int, bytes] = {}
        self.doomed: set[bytes] = set()
        self.next_number: int | None = None
        self.state: int | None = None  # keys of state, as they are counted
        self.newer: UnsupportedFormat | None = None

    def name_of(self, number: int) -> str:
        """The name of a stream as messages show it."""
        name = self.headers.get(number)
        if name is None:
            name = next((other for other, known in self.names.items() if known == number), None)
        return f"no. {number}" if name is None else shown(name)


def is_sealed(key: bytes, value: bytes) -> bool:
    """Whether a value's checksum is right under its key."""
    return len(value) >= 9 and xxh3_64_digest(value[8:], xxh3_64_intdigest(key))[::-1] == value[:8]


def well_formed(key: bytes) -> bool | None:
    """Whether a key has the form of its kind; None for an unknown kind."""
    if len(key) < 9:
        return False
    kinds: dict[int, Any] = STREAM_KINDS if any(key[:8]) else _STORE_KINDS
    lengths = kinds.get(key[8])
    return None if lengths is None else len(key) in lengths


def check_records(tree: PageTree, file: PageFile, find: Findings, logged: dict[bytes, bytes | None]) -> Inventory:
    """Check all records, of the file and those that the log has ``logged`` since. Every value is read once."""
    inventory = Inventory()
    covered: set[int] = set()
    for page, node in tree.records():
        key = node.key
        find.step()
        find.counts["records"] += 1
        try:
            value = _value(file, node, covered)
        except PageFault as fault:
            find.problem("page", f"the value of the record under key {key.hex()} cannot be read: page {fault.page} "
                     f"{fault.what}", page=fault.page, **_place(key))
            continue
        if key not in logged or not is_sealed(key, value):
            _check_record(inventory, find, key, value, page, node.overflow if node.inline is None else page)
    for key, kept in logged.items():
        if kept is not None:
            _check_record(inventory, find, key, kept, None, None)
    return inventory


def _place(key: bytes) -> dict[str, Any]:
    """The stream and the node of a record, as a problem names them."""
    number = int.from_bytes(key[:8], "big")
    where: dict[str, Any] = {"stream": f"no. {number}"} if number else {}
    if len(key) == 25 and key[8] == keys.NODE:
        where["node"] = "{}-{}".format(*records.node_id(key))
    return where


def _check_record(inventory: Inventory, find: Findings, key: bytes, value: bytes, page: int | None,
                  at: int | None) -> None:
    """Check one record, on a leaf ``page`` with its value ``at`` a page, or in the log; add it to the inventory."""
    where, form, number = _place(key), well_formed(key), int.from_bytes(key[:8], "big")
    if not is_sealed(key, value):
        find.problem("checksum", f"the record under key {key.hex()} fails its checksum", offset=0, page=at, **where)
        return
    inventory.sealed += 1
    if form is False:
        find.problem("record", f"the key {key.hex()} has not the form of its kind", page=page, **where)
        return
    if form is None:
        find.counts["unknown"] += 1  # a newer raxlog may write kinds that we do not know
    if value[8] > FORMAT:
        inventory.newer = UnsupportedFormat(
            f"the record under key {key.hex()} has format {value[8]}, this raxlog reads up to {FORMAT}; "
            "check the store with a newer raxlog"
        )
    inventory.kinds.setdefault(number, Counter())[key[8]] += 1
    if key[8] in _COUNTED:
        find.counts[_COUNTED[key[8]]] += 1
    if number == 0 or key[8] == keys.HEADER:
        _remember(inventory, find, key, value)


def _value(file: PageFile, node: lmdb_file.Node, covered: set[int]) -> bytes:
    """A record's value, with its overflow pages checked."""
    if node.inline is not None:
        return node.inline
    first = node.overflow
    value, count = file.run(first, node.size)
    head = file.page(first)
    if lmdb_file.number_of(head) != first:
        raise PageFault(first, f"has the number {lmdb_file.number_of(head)}")
    if lmdb_file.flags_of(head) != lmdb_file.OVERFLOW:
        raise PageFault(first, f"has the unknown flags {lmdb_file.flags_of(head):#x}")
    if first in covered:
        raise PageFault(first, "is claimed by two records")
    covered.update(range(first, first + count))
    return value


def _remember(inventory: Inventory, find: Findings, key: bytes, value: bytes) -> None:
    kind = key[8]
    if kind not in (keys.STORE, keys.NAME, keys.DOOMED, keys.HEADER):
        return
    try:
        row = records.unseal(key, value)
        if kind == keys.STORE:
            inventory.next_number = row[3]
            inventory.state = row[5] if len(row) > 5 else None
            try:
                records.require_format(row[0], "the store")
            except UnsupportedFormat as error:
                inventory.newer = error
        elif kind == keys.NAME:
            inventory.names[key[9:]] = row[0]
        elif kind == keys.DOOMED:
            inventory.doomed.add(key[9:])
        else:
            inventory.headers[int.from_bytes(key[:8], "big")] = row[0]
    except FAILURES as error:
        find.error("record", error, key=key)


def check_names(inventory: Inventory, find: Findings) -> list[int]:
    """Compare names, headers and numbers with each other. Returns the numbers of all streams."""
    if inventory.next_number is None:
        find.problem("record", "the store's own record is missing: it cannot be opened", key=keys.STORE_KEY)
    found = inventory.kinds[0][keys.STATE] if 0 in inventory.kinds else 0
    if inventory.state is not None and found != inventory.state:
        find.problem("record", f"there are {found} whole keys of state, and {inventory.state} are counted",
                 key=keys.STORE_KEY)
    taken: dict[int, bytes] = {}
    for name, number in inventory.names.items():
        key = keys.NAMES + name
        stream = shown(name)
        if number in taken:
            find.problem("name", f"leads to the same stream as {shown(taken[number])}", key=key, stream=stream)
        taken[number] = name
        if inventory.next_number is not None and not 0 < number < inventory.next_number:
            find.problem("name", f"leads to number {number}, which was never assigned", key=key, stream=stream)
        if number not in inventory.headers:
            find.problem("name", "leads to a stream without a header", key=keys.header_key(number), stream=stream)
        elif inventory.headers[number] != name:
            find.problem("name", f"leads to the header of {shown(inventory.headers[number])}", key=key, stream=stream)
    swept = {int.from_bytes(suffix, "big") for suffix in inventory.doomed if len(suffix) == 8}
    for number in sorted(inventory.kinds):
        if not number or number in swept:
            continue
        if number not in taken:
            count = inventory.kinds[number].total()
            borne = inventory.headers.get(number)
            find.problem("name", f"{count} records of stream no. {number} are there and no name leads to them",
                     key=None if borne is None else keys.NAMES + borne, stream=inventory.name_of(number))
        elif inventory.next_number is not None and number >= inventory.next_number:
            find.problem("record", f"stream no. {number} was never assigned", stream=inventory.name_of(number))
    find.counts["streams"] = len(inventory.names)
    return sorted(number for number in {*taken, *inventory.kinds} - swept if number)
