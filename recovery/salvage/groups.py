"""Rebuilds a stream's consumer groups and idempotent appends from their gathered records.

    group's record  or  its name          each alone is enough; without the record its position is lost
    consumer's record  or  name           each alone is enough
    buckets of pending entries   ──>      put again one by one, which rebuilds every index row
    the group's old count - what is left = what is lost

Old index rows name the buckets, so a lost bucket is reported with its first ID.
"""

from __future__ import annotations

from collections import Counter
from functools import partial

from ...storage.format import keys, records
from ...storage.trees.rax import Rax, RaxTransaction, family_rows
from ...stream.entries.header import shown
from ...stream.entries.idempotent import name_digest
from ...stream.group.parking import is_parked
from ...stream.group.state import ConsumerState, GroupState
from ...stream.node.stream_id import StreamID, make_id, unpack_id
from ...stream.pel.bucket import Bucket
from ...stream.pel.pending_list import PendingList
from ..check.page_tree import FAILURES
from .pages import GatheredRecords
from .streams import StreamBuilder

_BATCH = 5000  # pending entries put at once


class GroupsBuilder:
    """Builds the groups of one stream. ``txn`` is the new store's write transaction."""

    def __init__(self, gathered: GatheredRecords, txn: RaxTransaction, stream: StreamBuilder,
                 doomed: set[bytes]) -> None:
        self._gathered = gathered
        self._txn = txn
        self._stream = stream
        self._number = stream.number
        self._doomed = doomed
        self.groups: int = 0
        self.pending: int = 0

    def build(self) -> None:
        """Build all groups; the stream's header gets their number."""
        header = self._stream.header
        states = self._states()
        named = {state.name for state in states.values()}
        for suffix, row in self._gathered.rows(keys.family(self._number, keys.GROUP_NAME)):
            if row[0] not in states and suffix[:1] == b"\0" and suffix[1:] not in named:
                states[row[0]] = self._without_record(row[0], suffix[1:])
        for group in sorted(states):
            self._build(states[group])
        known = {*states, *(int.from_bytes(suffix[8:], "big") for suffix in self._doomed if len(suffix) == 12)}
        strays: Counter[int] = Counter()
        for key, value in family_rows(self._gathered, keys.family(self._number, keys.PENDING)):
            group = int.from_bytes(key[9:13], "big")
            if group not in known:
                strays[group] += len(Bucket.decode(key, value))
        for group, count in strays.items():
            self._stream.lose("pending entries of a group whose name and record are lost", entries=count,
                              group=f"no. {group}")
        if self._stream.old is not None and len(states) < header.groups:
            self._stream.lose(f"{header.groups - len(states)} consumer groups")
        header.groups = self.groups = len(states)
        header.next_group = max([header.next_group, *(group + 1 for group in known)])

    def _states(self) -> dict[int, GroupState]:
        found: dict[int, GroupState] = {}
        names: dict[bytes, int] = {}
        for suffix, row in self._gathered.rows(keys.family(self._number, keys.GROUP)):
            try:
                state = GroupState.from_row(self._number, int.from_bytes(suffix, "big"), row)
            except FAILURES:
                continue
            earlier = names.get(state.name)
            if earlier is not None:
                del found[earlier]  # an old copy of a group that was destroyed and created again
            found[state.group] = state
            names[state.name] = state.group
        return found

    def _without_record(self, group: int, name: bytes) -> GroupState:
        state = GroupState(self._number, group, name)
        last = b""
        for key, value in family_rows(self._gathered, keys.group_family(self._number, keys.PENDING, group)):
            last = Bucket.decode(key, value).ids[-16:]
        if last:
            state.last = unpack_id(last)
        self._stream.lose("last delivered ID, and with it what had been delivered and acknowledged: entries behind "
                          f"{make_id(*state.last)} will be delivered again", group=shown(name))
        return state

    def _build(self, state: GroupState) -> None:
        known = state.pending
        if state.key_limit is not None:
            self._stream.lose("limit by a key, which configure() gives it again; what was parked is released",
                              group=shown(state.name))
            state.key_limit = None
        has_record = self._gathered.get(state.key) is not None
        consumers = self._consumers(state)
        totals = self._pending(state, consumers, known if has_record else None)
        for consumer in consumers.values():
            consumer.pending = totals[consumer.number]
            self._stream.put(state.consumer_key(consumer.number), consumer.row())
            names = keys.group_family(self._number, keys.CONSUMER_NAME, state.group)
            self._stream.put(names + keys.name_suffix(consumer.name), [consumer.number])
        state.pending = totals.total()
        state.next_consumer = max([state.next_consumer, *(number + 1 for number in consumers)])
        self.pending += state.pending
        self._stream.put(state.key, state.row())
        self._stream.put(keys.family(self._number, keys.GROUP_NAME) + keys.name_suffix(state.name), [state.group])

    def _consumers(self, state: GroupState) -> dict[int, ConsumerState]:
        found: dict[int, ConsumerState] = {}
        names: set[bytes] = set()
        prefix = keys.group_family(self._number, keys.CONSUMER, state.group)
        for suffix, row in self._gathered.rows(prefix):
            number = int.from_bytes(suffix, "big")
            if row[0] not in names:
                found[number] = ConsumerState.from_row(number, row)
                names.add(row[0])
        prefix = keys.group_family(self._number, keys.CONSUMER_NAME, state.group)
        for suffix, row in self._gathered.rows(prefix):
            if row[0] not in found and suffix[:1] == b"\0" and suffix[1:] not in names:
                found[row[0]] = ConsumerState(row[0], suffix[1:], 0)
                names.add(suffix[1:])
                self._stream.lose(f"times of consumer {shown(suffix[1:])}", group=shown(state.name))
        return found

    def _pending(self, state: GroupState, consumers: dict[int, ConsumerState], known: int | None) -> Counter[int]:
        """Put the pending entries. Returns how many each consumer has."""
        pel = PendingList(self._txn, self._number, state.group)
        totals: Counter[int] = Counter()
        owned: list[tuple[tuple[int, int], int, int, int]] = []
        released = []
        buckets: set[bytes] = set()
        last = (-1, -1)
        for key, value in family_rows(self._gathered, keys.group_family(self._number, keys.PENDING, state.group)):
            buckets.add(key[-16:])
            for sid, nack in Bucket.decode(key, value).rows():
                if sid <= last:
                    continue  # of an old copy
                last = sid
                totals[nack.consumer] += 1
                if nack.consumer:
                    if nack.consumer not in consumers:
                        self._name_consumer(state, consumers, nack.consumer)
                    owned.append((sid, nack.consumer, nack.time, nack.count))
                else:
                    released.append((0 if is_parked(nack) else nack.time, nack.released, sid, nack.count))
            if len(owned) >= _BATCH:
                pel.set(owned)
                owned = []
        pel.set(owned)
        released.sort()  # in the order of their release
        for start in range(0, len(released), _BATCH):
            batch = [(sid, count, due) for due, _, sid, count in released[start : start + _BATCH]]
            pel.release(batch, insert=True)
        self._report_lost(state, buckets, totals.total(), known)
        return totals

    def _name_consumer(self, state: GroupState, consumers: dict[int, ConsumerState], number: int) -> None:
        """Name a consumer of which only pending entries are left."""
        name = b"recovered-%d" % number
        while any(consumer.name == name for consumer in consumers.values()):
            name += b"'"
        consumers[number] = ConsumerState(number, name, 0)
        self._stream.lose(f"name of consumer no. {number}: it is {shown(name)} now", group=shown(state.name))

    def _report_lost(self, state: GroupState, buckets: set[bytes], kept: int, known: int | None) -> None:
        missing = None if known is None else known - kept
        gone: Counter[bytes] = Counter()
        prefix = keys.group_family(self._number, keys.PENDING_BY_CONSUMER, state.group)
        for suffix, row in self._gathered.rows(prefix):
            if suffix[-16:] not in buckets:
                gone[suffix[-16:]] += row[0]
        if missing == 0:
            return
        lose = partial(self._stream.lose, group=shown(state.name))
        begins = sorted({*buckets, *gone})
        for begin in sorted(gone):
            behind = next((other for other in begins if other > begin), None)
            end = None if behind is None else StreamID.from_bytes(behind).prev()
            lose("pending entries", StreamID.from_bytes(begin), end, gone[begin])
        if missing is None:
            hidden = keys.group_family(self._number, keys.PENDING, state.group)
            if self._gathered.is_hidden(hidden, hidden + b"\xff" * 17):
                lose("pending entries, perhaps")
        elif missing > gone.total():
            lose("pending entries", entries=missing - gone.total())

    def build_appends(self) -> int:
        """Copy the remembered idempotent appends. Returns the number of pairs."""
        counted: Counter[bytes] = Counter()
        producers: dict[bytes, bytes] = {}
        pairs = 0
        prefix = keys.family(self._number, keys.IDEMPOTENT)
        ages = keys.family(self._number, keys.IDEMPOTENT_AGE)
        rax = Rax(self._txn, ages)
        for suffix, row in self._gathered.rows(prefix):
            producer, iid, ms, seq = row[:4]
            if suffix != name_digest(producer) + name_digest(iid):
                continue
            self._stream.put(prefix + suffix, row)
            pairs += 1
            aged = suffix[:16] + bytes(make_id(ms, seq))
            if rax.try_insert(aged, records.seal(ages + aged, [suffix[16:]])):
                counted[suffix[:16]] += 1
            producers[suffix[:16]] = producer
        stated = 0
        for suffix, row in self._gathered.rows(ages):
            if len(suffix) == 16:
                stated += row[1]
        for hashed, producer in producers.items():
            self._stream.put(ages + hashed, [producer, counted[hashed]])
        if stated > counted.total():
            self._stream.lose("idempotent appends that are remembered no more", entries=stated - counted.total())
        return pairs
