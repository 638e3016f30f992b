"""Where Redis' own counters of a group say what ours must say: entries-read and lag.

entries-read moves with every delivery, by one of two rules. Redis 8 (and we) count one more if
nothing from the group's last delivered ID on has been deleted and that ID is not before the
first entry; else the counter is estimated anew from the entry's ID. Redis 7.0 looks only behind
the entry delivered, so the two part when

    a tombstone lies between the last delivered ID and the entry delivered      1  2̶  3
                                                                                ^     ^
    the last delivered ID has been trimmed away                              ^  |  5  6

and 7.0's counter is wrong from then on, until both estimate (or XGROUP SETID forgets it). The
estimate itself is the same. So 7.0 is compared with exactly until they part, 8 always.

The lag of Redis is entries-added less entries-read, or null where it knows it cannot know. It
is wrong, and not compared, once a counter it is made of was set by hand (ENTRIESREAD,
ENTRIESADDED, MAXDELETEDID, XCLAIM's LASTID, a last ID that XSETID set back), after an ACKED
trim (which leaves holes that MAXDELETEDID does not tell of), and in 7.0 where the last
delivered ID has been trimmed away, since there it counts the trimmed entries too.
"""

from __future__ import annotations

from typing import Any

ID = tuple[int, int]


def _pair(text: bytes) -> ID:
    ms, _, seq = text.partition(b"-")
    return int(ms), int(seq)


class CounterRules:
    """Follows what happens to the counters, to know which of them can be compared."""

    def __init__(self, version: tuple[int, ...]) -> None:
        self._old = version < (8, 0)
        self._streams_by_hand: set[bytes] = set()
        self._groups_by_hand: set[tuple[bytes, bytes]] = set()
        self._parted: set[tuple[bytes, bytes]] = set()

    def stream_set_by_hand(self, name: bytes) -> None:
        """A counter of the stream was set, or holes were left."""
        self._streams_by_hand.add(name)

    def stream_deleted(self, name: bytes) -> None:
        """The stream begins anew, whenever it does."""
        self._streams_by_hand.discard(name)
        for marked in (self._groups_by_hand, self._parted):
            marked -= {pair for pair in marked if pair[0] == name}

    def group_set(self, name: bytes, group: bytes, by_hand: bool) -> None:
        """The group was made, destroyed or set; ``by_hand`` its counter too."""
        self._parted.discard((name, group))
        self._groups_by_hand.discard((name, group))
        if by_hand:
            self._groups_by_hand.add((name, group))

    def last_set_by_hand(self, name: bytes, group: bytes) -> None:
        """The last delivered ID moved, and the counter did not."""
        self._groups_by_hand.add((name, group))

    def delivered(self, name: bytes, group: bytes, before: dict[bytes, Any], ids: list[ID]) -> None:
        """Entries were delivered to a group; ``before`` is XINFO STREAM FULL before that."""
        described = [dict(zip(flat[::2], flat[1::2], strict=True)) for flat in before[b"groups"]]
        state = next(flat for flat in described if flat[b"name"] == group)
        known = state[b"entries-read"] is not None
        last = _pair(state[b"last-delivered-id"])
        first, deleted = _pair(before[b"recorded-first-entry-id"]), _pair(before[b"max-deleted-entry-id"])
        for sid in ids:
            old_counts = deleted < sid
            new_counts = last >= first and (deleted < last or deleted == (0, 0))
            both_estimate = not (old_counts or new_counts)
            if both_estimate or (not known and (name, group) not in self._parted):
                self._parted.discard((name, group))
            elif old_counts != new_counts:
                self._parted.add((name, group))
            known, last = True, sid

    def entries_read_comparable(self, name: bytes, group: bytes) -> bool:
        """Whether Redis' entries-read follows our rule."""
        return not (self._old and (name, group) in self._parted)

    def lag_comparable(self, name: bytes, group: bytes, flat: dict[bytes, Any], full: dict[bytes, Any]) -> bool:
        """Whether Redis' lag is the number of entries to come; asked where it is not null."""
        if name in self._streams_by_hand or (name, group) in self._groups_by_hand:
            return False
        if not self._old or flat[b"entries-read"] is None:
            return True
        if (name, group) in self._parted or not full[b"length"]:
            return False
        return _pair(flat[b"last-delivered-id"]) >= _pair(full[b"recorded-first-entry-id"])
