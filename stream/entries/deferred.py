"""The deferred entries of a stream, as records: each is appended once its time has come.

    n  26  due (8)  number (8)   ->  [[name, value, …]]            in the order in which they fall due
    n  31                        ->  header: how many there are, when the first is due, the next number

    release()    one commit:   the entries due ── appended, with IDs as any other
                               their records   ── deleted
                               the header      ── counts both

So an entry is either deferred or in the stream, never both, whatever is killed; and of processes that release
at once the second finds nothing. A look at the header says whether anything is due: no other record is read.
"""

from __future__ import annotations

from ...storage.errors import CorruptionError
from ...storage.format import keys, records
from ...storage.log.transaction import WriteTransaction
from ...storage.trees.rax import Rax, RaxTransaction
from ..node.stream_id import AUTO, StreamID, make_id, pack_id
from .header import NEVER, StreamHeader, shown
from .writer import StreamWriter

_AT_ONCE = 1000  # entries that a commit releases, or a transaction reads
_BYTES = 1 << 20  # of them, or one entry more


def put(txn: WriteTransaction, stream: StreamWriter, due: int, now: int, flat: list[bytes]) -> int:
    """Defer an entry; its number. MalformedValue, StreamExhausted. What is due by now is released."""
    header = stream.header
    stream.require_values((flat,))
    stream.next_id(AUTO, now)
    stream.changed(txn)
    number = header.next_deferred
    header.next_deferred = number + 1
    header.deferred += 1
    header.due = min(header.due, due)
    key = keys.family(stream.number, keys.DEFERRED) + pack_id(due, number)
    txn.put(key, records.seal(key, [flat]))
    if now >= header.due:
        release(txn, stream, now)
    return number


def remove(txn: WriteTransaction, stream: StreamWriter, due: int, number: int) -> bool:
    """Delete a deferred entry; False if it is not there (any more)."""
    key = keys.family(stream.number, keys.DEFERRED) + pack_id(due, number)
    if txn.get(key) is None:
        return False
    stream.changed(txn)
    txn.delete(key)
    _removed(txn, stream, 1)
    return True


def rows(txn: RaxTransaction, number: int, header: StreamHeader, after: bytes,
         until: int) -> list[tuple[bytes, list[bytes]]]:
    """Deferred entries behind a key, due by ``until``: their keys' ends and their fields. The first so many of them.

    CorruptionError for one that is damaged, and if those that the header counts are not there.
    """
    prefix = keys.family(number, keys.DEFERRED)
    place = Rax(txn, prefix).iterator()
    found: list[tuple[bytes, list[bytes]]] = []
    size = 0
    has_row = place.seek(">", after)
    while has_row and len(found) < _AT_ONCE and size < _BYTES and int.from_bytes(place.key[:8], "big") <= until:
        found.append((place.key, records.unseal(prefix + place.key, place.value)[0]))
        size += len(place.value)
        has_row = place.next()
    first = int.from_bytes(found[0][0][:8], "big") if found else NEVER
    if not after and (first != header.due or (not has_row and len(found) != header.deferred)):
        raise CorruptionError(f"of {header.deferred} deferred entries, the first due at {header.due} ms, some are lost",
                              stream=shown(header.name))
    return found


def release(txn: WriteTransaction, stream: StreamWriter, now: int) -> None:
    """Append what is due by ``now``, which is something: the first so many, see rows(). CorruptionError.

    The values are not compared with the schema again: they were when they were deferred.
    """
    header = stream.header
    due = rows(txn, stream.number, header, b"", now)[: StreamID.MAX - make_id(*header.last)]
    if not due:
        return  # the stream has no ID left
    stream.changed(txn)
    schema, header.schema = header.schema, None
    try:
        stream.extend(txn, now, [flat for _, flat in due])
    finally:
        header.schema = schema
    prefix = keys.family(stream.number, keys.DEFERRED)
    for key, _ in due:
        txn.delete(prefix + key)
    _removed(txn, stream, len(due))


def _removed(txn: WriteTransaction, stream: StreamWriter, count: int) -> None:
    """Records have been deleted: count, and find the first that is left."""
    stream.header.deferred -= count
    first = Rax(txn, keys.family(stream.number, keys.DEFERRED)).first()
    stream.header.due = NEVER if first is None else int.from_bytes(first[0][:8], "big")
