"""The consumer groups of a stream, what idempotent appends remember, what is deferred, results, unique names.

    name ──> group ──┬─ name ──> consumer        one to one, numbers below the next one's
                     └─ buckets <──> by consumer, by time, released        both ways
                        pending entry (39) ──> key (38): who holds it, who is parked
    header's count of groups    group's count of pending    consumers' counts of pending

    pair (24) <── age (25) ── counted under the producer (25)

    deferred entries (26) ── counted in the stream's header
        a schedule's tick  <──> the schedule (29)

    result (27) <──> its time (28)                  unique name (2a): under its hash

The numbers of the invariants are those of docs/format-groups.md, section 20.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Any

from ...storage.format import keys, records
from ...storage.trees.rax import Rax, RaxTransaction
from ...stream.entries.header import NEVER, StreamHeader, shown
from ...stream.entries.idempotent import name_digest
from ...stream.entries.schedules import ScheduleState
from ...stream.entries.unique import UNTIL, Holder
from ...stream.group.parking import HELD, NEXT, PARKED, WAITS, is_parked, place_of
from ...stream.group.state import ConsumerState, GroupState, Key, KeyRow
from ...stream.node.stream_id import StreamID, pack_id, unpack_id
from ...stream.pel import pending_check
from .page_tree import FAILURES
from .report import Findings


def _rows(tree: RaxTransaction, prefix: bytes, find: Findings, **where: Any) -> Iterator[tuple[bytes, list[Any]]]:
    """The readable rows of one family, without the prefix; the others are reported."""
    for suffix, value in Rax(tree, prefix).items():
        find.step()
        try:
            yield suffix, records.unseal(prefix + suffix, value)
        except FAILURES as error:
            find.error("group", error, key=prefix + suffix, **where)


def check_groups(tree: RaxTransaction, number: int, stream: str, header: StreamHeader | None,
                 doomed: set[bytes], find: Findings) -> None:
    """Invariants 15 to 23 of every group of a stream."""
    problem = partial(find.problem, "group", stream=stream)
    groups: dict[int, GroupState] = {}
    prefix = keys.family(number, keys.GROUP)
    for suffix, row in _rows(tree, prefix, find, stream=stream):
        try:
            state = GroupState.from_row(number, int.from_bytes(suffix, "big"), row)
        except FAILURES as error:
            find.error("group", error, key=prefix + suffix, stream=stream)
            continue
        groups[state.group] = state
    names: set[int] = set()
    prefix = keys.family(number, keys.GROUP_NAME)
    for suffix, row in _rows(tree, prefix, find, stream=stream):
        found = groups.get(row[0])
        if found is None or keys.name_suffix(found.name) != suffix:
            what = "is missing" if found is None else f"has the name {shown(found.name)}"
            problem(f"the name {shown(suffix[1:])} leads to group no. {row[0]}, which {what}", key=prefix + suffix,
                group=shown(suffix[1:]))
        elif row[0] in names:
            problem("two names lead to it", key=prefix + suffix, group=shown(found.name))
        names.add(row[0])
    for group, state in groups.items():
        name = shown(state.name)
        if group not in names:
            problem("no name leads to it", group=name, key=prefix + keys.name_suffix(state.name))
        if header is not None and group >= header.next_group:
            problem(f"has the number {group}, which was never assigned", group=name, key=state.key)
        _check_group(tree, state, stream, find)
    if header is not None and header.groups != len(groups):
        problem(f"{len(groups)} groups are there, the header counts {header.groups}", key=keys.header_key(number))
    swept = {int.from_bytes(suffix[8:], "big") for suffix in doomed
             if len(suffix) == 12 and int.from_bytes(suffix[:8], "big") == number}
    _check_strays(tree, number, stream, {*groups, *swept}, find)


def _check_group(tree: RaxTransaction, state: GroupState, stream: str, find: Findings) -> None:
    number, group = state.number, state.group
    where: dict[str, Any] = {"stream": stream, "group": shown(state.name)}
    problem = partial(find.problem, "group", stream=stream, group=where["group"])
    consumers: dict[int, ConsumerState] = {}
    prefix = keys.group_family(number, keys.CONSUMER, group)
    for suffix, row in _rows(tree, prefix, find, **where):
        consumer = int.from_bytes(suffix, "big")
        consumers[consumer] = ConsumerState.from_row(consumer, row)
        if consumer >= state.next_consumer:
            problem(f"consumer no. {consumer} was never assigned", key=prefix + suffix)
    named: set[int] = set()
    prefix = keys.group_family(number, keys.CONSUMER_NAME, group)
    for suffix, row in _rows(tree, prefix, find, **where):
        found = consumers.get(row[0])
        if found is None or keys.name_suffix(found.name) != suffix or row[0] in named:
            what = f"which is {'missing' if found is None else shown(found.name)}"
            problem(f"the consumer name {shown(suffix[1:])} leads to no. {row[0]}, {what}", key=prefix + suffix)
        named.add(row[0])
    for consumer in consumers.keys() - named:
        problem(f"no name leads to consumer {shown(consumers[consumer].name)}", key=prefix)
    problem = partial(find.problem, "pending", stream=stream, group=where["group"])
    prefix = keys.group_family(number, keys.PENDING, group)
    try:
        found_problems, totals = pending_check.problems(tree, number, group)
    except FAILURES as error:
        find.error("pending", error, key=prefix, **where)
        return
    for what in found_problems:
        problem(what, key=prefix)
    pending = totals.total()
    find.counts["pending"] += pending
    find.step(pending)
    if pending != state.pending:
        problem(f"{pending} entries are pending, the group counts {state.pending}", key=state.key)
    for consumer, total in totals.items():
        if consumer and consumer not in consumers:
            problem(f"{total} entries are pending with consumer no. {consumer}, which is missing",
                key=state.consumer_key(consumer))
    try:
        _check_keys(tree, state, find, where)
    except FAILURES as error:
        find.error("pending", error, key=prefix, **where)
    for consumer, known in consumers.items():
        if known.pending != totals[consumer]:
            problem(f"{totals[consumer]} entries are pending with consumer {shown(known.name)}, its record counts "
                f"{known.pending}", key=state.consumer_key(consumer))


def _check_keys(tree: RaxTransaction, state: GroupState, find: Findings, where: dict[str, Any]) -> None:
    """Invariant 29, both ways."""
    problem = partial(find.problem, "pending", stream=where["stream"], group=where["group"])
    key = state.key_limit or Key(b"", 0)
    wanted: dict[bytes, KeyRow | None] = {}  # None: that of a parked entry
    parked = 0
    prefix = keys.group_family(state.number, keys.PENDING, state.group)
    for sid, nack in state.pel(tree).scan(StreamID.MIN, StreamID.MAX):
        place = place_of(nack)
        if is_parked(nack) != (place == PARKED):
            problem(f"{StreamID(*sid)} is parked by its time or by its key, not by both", key=prefix + pack_id(*sid))
        if nack.key:
            mark, parked = nack.key[:16], parked + (place == PARKED)
            held, waits, _, following = wanted.get(mark) or KeyRow()
            wanted[mark] = KeyRow(held + (place in (HELD, NEXT)), waits + (place == PARKED), 0,
                                  following + (place == NEXT))
            if not WAITS <= place <= NEXT:
                problem(f"{StreamID(*sid)} is {place} to its key", key=prefix + pack_id(*sid))
            elif place == PARKED:
                wanted[mark + pack_id(*sid)] = None
    if parked != key.parked or (state.key_limit is None and wanted):
        problem(f"{parked} entries are parked, the group counts {key.parked}", key=state.key)
    prefix = keys.group_family(state.number, keys.KEY, state.group)
    for mark, about in wanted.items():
        if about is not None and about.parked and not about.next and (not key.per_key or about.held < key.per_key):
            problem(f"{about.parked} entries are parked for a key that {about.held} hold, and {key.per_key} may",
                    key=prefix + mark)
        if about is not None and about.next > (key.many > 0):
            problem(f"{about.next} entries of a key are the next", key=prefix + mark)
    for suffix, row in _rows(tree, prefix, find, **where):
        about = wanted.pop(suffix, KeyRow())
        is_right = row == [] if about is None else (
            len(suffix) == 16 and any(row) and len(row) == (4 if key.many else 2)
            and KeyRow(*row)._replace(turn=0) == about)
        if not is_right:
            problem(f"a key's row is {row}, which its entries do not ask for", key=prefix + suffix)
    for suffix in [suffix for suffix, about in wanted.items() if about != KeyRow()]:
        problem("a key that entries have, or a parked entry of it, has no row", key=prefix + suffix)


def _check_strays(tree: RaxTransaction, number: int, stream: str, known: set[int], find: Findings) -> None:
    """Report rows of groups that neither have a record nor are being swept."""
    with tree.cursor() as cursor:
        for kind in keys.GROUP_KINDS:
            prefix = keys.family(number, kind)
            found = cursor.set_range(prefix)
            while found and cursor.key().startswith(prefix):
                key = cursor.key()
                group = int.from_bytes(key[9:13], "big")
                if group not in known:
                    find.problem("group", f"there are rows of group no. {group} (kind {kind:02x}), which is missing",
                             key=key, stream=stream)
                behind = (keys.group_family(number, kind, group + 1) if group < 0xFFFFFFFF
                          else keys.family(number, kind + 1))
                # Where keys are out of order a seek can lead back.
                found = cursor.set_range(behind) and cursor.key() >= behind


def check_appends(tree: RaxTransaction, number: int, stream: str, find: Findings) -> None:
    """Invariant 24: idempotent appends, and how many pairs each producer has."""
    problem = partial(find.problem, "append", stream=stream)
    pairs: dict[bytes, tuple[int, int]] = {}
    counted: Counter[bytes] = Counter()
    stated: dict[bytes, int] = {}
    prefix = keys.family(number, keys.IDEMPOTENT)
    for suffix, row in _rows(tree, prefix, find, stream=stream):
        producer, iid, ms, seq = row[:4]
        pairs[suffix] = (ms, seq)
        if suffix != name_digest(producer) + name_digest(iid):
            problem(f"a pair of producer {shown(producer)} has another's hash as its key", key=prefix + suffix)
    find.counts["remembered"] += len(pairs)
    prefix = keys.family(number, keys.IDEMPOTENT_AGE)
    for suffix, row in _rows(tree, prefix, find, stream=stream):
        if len(suffix) == 16:
            stated[suffix] = row[1]
            if suffix != name_digest(row[0]):
                problem(f"the count of producer {shown(row[0])} has another's hash as its key", key=prefix + suffix)
            continue
        counted[suffix[:16]] += 1
        ms, seq = int.from_bytes(suffix[16:24], "big"), int.from_bytes(suffix[24:], "big")
        if pairs.get(suffix[:16] + row[0]) != (ms, seq):
            problem(f"entry {ms}-{seq} is remembered by its age and not by its idempotent ID", key=prefix + suffix)
    for producer in counted.keys() | stated.keys():
        if counted[producer] != stated.get(producer, 0):
            problem(f"{counted[producer]} appends of the producer with hash {producer.hex()} are remembered, "
                    f"its record counts {stated.get(producer, 0)}", key=prefix + producer)


def check_deferred(tree: RaxTransaction, number: int, stream: str, header: StreamHeader | None, find: Findings) -> None:
    """Invariants 25, 27: deferred entries are as many, as early, as the header says, and ticks those of schedules."""
    problem = partial(find.problem, "deferred", stream=stream)
    prefix = keys.family(number, keys.DEFERRED)
    first, after, count = NEVER, 0, 0
    ticks: list[tuple[bytes, int, int]] = []
    planned: list[tuple[bytes, int, int]] = []
    for suffix, row in _rows(tree, prefix, find, stream=stream):
        due, place = unpack_id(suffix)
        first, after, count = min(first, due), max(after, place + 1), count + 1
        flat = row[0]
        if not flat or len(flat) % 2 or not all(type(part) is bytes for part in flat):
            problem(f"the entry deferred to {due} ms, no. {place}, is not names and values", key=prefix + suffix)
        ticks += [(row[1], due, place)] if len(row) > 1 else []
    find.counts["deferred"] += count
    made = keys.family(number, keys.SCHEDULE)
    for name, row in _rows(tree, made, find, stream=stream):
        find.counts["schedules"] += 1
        schedule = ScheduleState.from_row(name, row)
        planned += [(name, *schedule.tick[1:])] if schedule.tick is not None else []
    for name, due, place in sorted({*ticks} ^ {*planned}):
        problem(f"the tick of schedule {shown(name)}, deferred to {due} ms, no. {place}, is in one of its two records "
                "alone", key=made + name)
    if header is not None and (header.deferred, header.due) != (count, first):
        problem(f"{count} deferred entries are there, the first due at {first} ms; the header counts "
                f"{header.deferred}, the first due at {header.due}", key=keys.header_key(number))
    if header is not None and after > header.next_deferred:
        problem(f"a deferred entry has the number {after - 1}, which was never assigned", key=prefix)


def check_results(tree: RaxTransaction, number: int, stream: str, find: Findings) -> None:
    """Invariant 26: each result has one row by its name and one by the time when it expires."""
    by_name, by_time = keys.family(number, keys.RESULT), keys.family(number, keys.RESULT_AGE)
    named = {row[0].to_bytes(8, "big") + name for name, row in _rows(tree, by_name, find, stream=stream)}
    timed = {suffix for suffix, _ in _rows(tree, by_time, find, stream=stream)}
    find.counts["results"] += len(named)
    for age in named ^ timed:
        find.problem("result", f"result {age[8:].hex()} expires at {int.from_bytes(age[:8], 'big')} ms by one of its "
                     "rows alone", key=by_time + age, stream=stream)


def check_unique(tree: RaxTransaction, number: int, stream: str, find: Findings) -> None:
    """Invariant 28: each unique name lies under its hash, with an entry and an end. The entry may be gone."""
    prefix = keys.family(number, keys.UNIQUE)
    for suffix, row in _rows(tree, prefix, find, stream=stream):
        find.counts["unique"] += 1
        kept = Holder(*row)
        if suffix != name_digest(kept.name):
            find.problem("unique", f"unique name {shown(kept.name)} has another's hash as its key", key=prefix + suffix,
                         stream=stream)
        has_end = kept.until in UNTIL if kept.length == 0 else type(kept.until) is int
        if not all(type(part) is int for part in kept[2:]) or not has_end:
            find.problem("unique", f"unique name {shown(kept.name)} is no entry's, or has no end", key=prefix + suffix,
                         stream=stream)
