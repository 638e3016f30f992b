"""Recovery: where the log ends for a process that enters it alone, and what shows that it went on further once.

Where no other process is inside, the end is that of the valid chain, whatever the word END says. Records were there
behind it, and are damaged, where

    the words know     OWNER is this store, and FLUSHED lies further: what was on disk once is
    the tree knows     nothing follows the applied LSN, and the record that ends there is not in the ring
    a record knows     one behind the end says that all before it had been on disk

In all other cases what is behind the end was never durable: a torn write, or one that a power cut has taken.
"""

from __future__ import annotations

from collections.abc import Iterator

from raxlog.storage.errors import CorruptionError
from raxlog.storage.folder.log_file import HEADER

from .feed import AFTER_LARGE
from .record import HEAD, RECORD
from .ring import Ring


def find_damage(ring: Ring, end: int, last_epoch: int, is_short: bool) -> CorruptionError | None:
    """What is wrong where the chain ``is_short``, or a record behind its end shows that it is.

    ``last_epoch``: that of the opening that wrote the last record of the chain.

    A sector of a torn write beside one of the lap before can look like a record's head, with that one's epoch. So
    what shows more must be valid behind what can be a record's head, or of an epoch that is known, in this lap.
    """
    size, lap = ring.size, end - end % ring.size
    missing, _, lsn, _, epoch = RECORD.unpack(ring.map[HEADER + end - lap :][:HEAD].ljust(HEAD, b"\0"))
    # The head at the end itself may be whole where what follows it is torn: then its epoch is known, too.
    known = {last_epoch, ring.first_epoch(end, epoch) if lsn == end else last_epoch}

    def shows_more(first: int, place: int, can_be_known: bool) -> bool:
        """Whether the record there, or what is valid behind it or in its place, says that all before was on disk."""
        checksum, length, _, _, epoch = RECORD.unpack_from(ring.map, HEADER + place)
        after = place + HEAD + length
        return (
            (can_be_known and epoch & 1 and ring.first_epoch(first, epoch) in known)
            or says_all_before(ring, place, first, missing)  # it follows the one that is damaged
            or says_all_before(ring, after, first + HEAD + length, checksum)
        )

    # This lap, behind the chain's end: wherever one begins, for what is damaged may have had any length.
    for lsn in heads_behind(ring, end):
        length = RECORD.unpack_from(ring.map, HEADER + lsn - lap)[1]
        is_short = is_short or (0 < length <= size - (lsn - lap) - HEAD and shows_more(lsn, lsn - lap, True))
    # A later lap, from its beginning on, one behind the other: the first may be the chain's next, and torn.
    place, first = 0, ring.lsn_at(0)
    while not is_short and first % size == 0 and first > end and ring.lsn_at(place) == first + place:
        length = RECORD.unpack_from(ring.map, HEADER + place)[1]
        if not 0 < length <= size - place - HEAD:
            break
        is_short = shows_more(first + place, place, place > 0 or first != lap + size)
        place += HEAD + length
    return None if not is_short else CorruptionError(
        f"the log {ring.path} is damaged at byte {HEADER + end - lap}: what has been acknowledged there, or behind "
        "it, cannot be read"
    )


def heads_behind(ring: Ring, end: int) -> Iterator[int]:
    """The LSNs of this lap, behind ``end``, where the ring has bytes like those of a record's head."""
    lap = end - end % ring.size
    behind = lap + ring.size
    for first in range(end & ~0xFFFF, behind, 1 << 16):  # the LSNs of one round share six bytes
        begin = max(first, end + 1)
        piece = ring.map[HEADER + begin - lap : HEADER + min(first + (1 << 16), behind) - lap + HEAD]
        used = len(piece) if first else len(piece.rstrip(b"\0")) + HEAD  # zeros, where none has been written yet
        upper = (first >> 16).to_bytes(6, "little")
        found = piece.find(upper, HEAD - 14, used)
        while found >= 0:
            start = found - HEAD + 14
            if start + HEAD <= len(piece) and RECORD.unpack_from(piece, start)[2] == begin + start:
                yield begin + start
            found = piece.find(upper, found + 1, used)


def says_all_before(ring: Ring, place: int, lsn: int, chain: int) -> bool:
    """Whether there is a valid record behind one with this checksum, and all before it had been on disk."""
    record = ring.record_at(place, lsn, chain)
    return record is not None and bool(record[24] & 1)


def holds(ring: Ring, upto: int, chain: int, begun: tuple[int, int]) -> bool:
    """Whether the record that ends where LMDB's state does is in the ring, if there is one."""
    start, seed = begun
    if start == upto:
        return True
    record = ring.record_at(start % ring.size, start, seed)
    return record is not None and int.from_bytes(record[:8], "little") in (chain, chain ^ AFTER_LARGE)
