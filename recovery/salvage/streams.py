"""Rebuilds one stream from its gathered records: nodes as they are, all counts recomputed.

    ordinals   0 ──node──┬─ gap ─┬──node──┬── gap ── next ordinal
               gap, marked as deleted before: deleted          not marked: LOST, and marked now
    lost       between the last ID before the gap and the ID of the node behind it

Blocks are copied byte for byte, so their ordinals stay; they are renumbered only where copies of
different age overlap. The header keeps the past (IDs, limits, counters that only grow) and gets
the counts of the nodes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, NamedTuple

from ...storage.format import keys, records
from ...storage.trees.ordinals import EVERY, DeadCounts, OrdinalIndex
from ...storage.trees.rax import RaxTransaction, family_rows
from ...stream.entries import header as headers
from ...stream.entries.header import NodeLimits, StreamHeader, shown
from ...stream.entries.schedules import ScheduleState
from ...stream.node import decode
from ...stream.node.stream_id import make_id, pack_id, unpack_id
from ..check.page_tree import FAILURES
from .pages import GatheredRecords
from .report import Loss


class _ValidNode(NamedTuple):
    key: bytes
    value: bytes
    head: records.BlockHeader
    listpack: bytes
    first: tuple[int, int] | None  # live
    last: tuple[int, int]


class StreamBuilder:
    """Builds one stream in a new store. ``txn`` is its write transaction."""

    def __init__(self, gathered: GatheredRecords, txn: RaxTransaction, number: int, name: bytes) -> None:
        self._gathered = gathered
        self._txn = txn
        self.number = number
        self.name = name
        self.shown: str = shown(name)
        self.lost: list[Loss] = []
        self.entries: int = 0
        self.nodes: int = 0
        self.old: StreamHeader | None = None
        with contextlib.suppress(*FAILURES):
            self.old = headers.load(gathered, number)
        self.header: StreamHeader = self.old or StreamHeader(name, NodeLimits())
        self.header.name = name
        if self.old is None:
            self.lose("header: limits and counters are as in a new stream")
        elif gathered.is_doubted(keys.header_key(number)):
            self.lose("entries, perhaps: the header may be an old copy", make_id(*self.old.last).next())

    def lose(self, what: str, first: tuple[int, int] | None = None, last: tuple[int, int] | None = None,
             entries: int | None = None, group: str | None = None) -> None:
        """Report a loss of this stream."""
        start, end = (None if sid is None else str(make_id(*sid)) for sid in (first, last))
        self.lost.append(Loss(what, self.shown, group, start, end, entries))

    def copy_nodes(self) -> None:
        """Copy every whole node; report what is missing between them."""
        old_marks = DeadCounts(self._gathered, self.number)
        marks = DeadCounts(self._txn, self.number)
        notes = OrdinalIndex(self._txn, self.number)
        expected: int | None = None
        last = (0, 0)
        live = 0
        self.header.stored_bytes = 0
        first_live: tuple[int, int] | None = None
        self._report_lost_head()
        for found in self._valid_nodes():
            ms, seq = records.node_id(found.key)
            head = found.head
            if expected is not None and head.ordinal < expected:
                head = head._replace(ordinal=expected)  # copies of different age overlap here
            if expected is not None and head.ordinal > expected:
                self._gap(old_marks, expected, head.ordinal, last, (ms, seq))
                marks.mark_span(expected, head.ordinal)
            if head.live == 0 and self.nodes:
                marks.mark_span(head.ordinal, head.ordinal + head.span)  # only the first may have no live ones
                expected = head.ordinal + head.span
                continue
            codec = records.ZSTD if found.head.codec else records.RAW
            kept = found.value if head == found.head else records.encode_block(
                found.key, found.listpack, head.ordinal, head.span, head.live, codec
            )
            self._txn.put(found.key, kept)
            self.header.stored_bytes += len(kept)
            if self.nodes:
                marks.mark_span(head.ordinal, head.ordinal + head.span - head.live)
            if self.nodes % EVERY == 0:
                notes.note(head.ordinal, ms, seq)
            expected = head.ordinal + head.span
            last = found.last
            live += head.live
            first_live = first_live or found.first
            self.nodes += 1
        self._finish(old_marks, marks, expected, last, live, first_live)

    def _valid_nodes(self) -> Iterator[_ValidNode]:
        last = (0, 0)
        begun = False
        for key, value in family_rows(self._gathered, keys.family(self.number, keys.NODE)):
            ms, seq = records.node_id(key)
            try:
                head, listpack = records.open_block(key, value)
                live, gone, *end = decode.validate_node(listpack, ms, seq)
                first = decode.first_live(listpack, ms, seq)
            except FAILURES:
                self.lose("node that is not valid", (ms, seq))
                continue
            if begun and (ms, seq) <= last:
                continue  # an old copy of a node; the one before has its entries
            if self.old is not None and (end[0], end[1]) < self.old.first:
                continue  # trimmed: an old copy
            last, begun = (end[0], end[1]), True
            head = head._replace(live=live, span=max(head.span, live + gone))
            yield _ValidNode(key, value, head, listpack, first, last)

    def _report_lost_head(self) -> None:
        """Report the entries before the first node that is left."""
        prefix = keys.family(self.number, keys.NODE)
        rows = family_rows(self._gathered, prefix)
        if self.old is None:
            first, _ = next(rows, (None, b""))
            if first is not None and self._gathered.is_hidden(prefix, first):
                end = make_id(*records.node_id(first)).prev()
                self.lose("entries, unless they had been trimmed", (0, 1), end)
            return
        if not self.old.length:
            return
        for key, value in rows:
            master = records.node_id(key)
            if master > self.old.first:
                self.lose("entries", self.old.first, make_id(*master).prev())
                return
            with contextlib.suppress(*FAILURES):
                listpack = records.open_block(key, value)[1]
                if decode.last_entry_id(listpack, *master) >= self.old.first:
                    return

    def _gap(self, old_marks: DeadCounts, start: int, stop: int, last: tuple[int, int],
             behind: tuple[int, int] | None) -> None:
        marked = keys.family(self.number, keys.DEAD)
        lost: int | None = None  # unknown, if it is unknown how many of them had been deleted
        with contextlib.suppress(*FAILURES):
            known = old_marks.dead_between(start, stop)
            if known == stop - start:
                return
            if not self._gathered.is_hidden(marked, keys.family(self.number, keys.ORDINAL)):
                lost = stop - start - known
        end = make_id(*behind).prev() if behind is not None else make_id(*self.header.last)
        if (end[0], end[1]) > last:
            self.lose("entries", make_id(*last).next(), end, lost)

    def _finish(self, old_marks: DeadCounts, marks: DeadCounts, expected: int | None, last: tuple[int, int],
                live: int, first_live: tuple[int, int] | None) -> None:
        header = self.header
        if self.old is None:
            self.lose("entries, perhaps: their number is unknown", make_id(*last).next())
            header.last = last
            header.next_ordinal = header.entries_added = expected or 0
        header.last = max(header.last, last)
        if expected is not None and expected < header.next_ordinal:
            self._gap(old_marks, expected, header.next_ordinal, last, None)
            marks.mark_span(expected, header.next_ordinal)
        if expected is None and self.old is not None and self.old.length:
            self.lose("entries", self.old.first, self.old.last, self.old.length)
        header.next_ordinal = max(header.next_ordinal, expected or 0)
        missing = header.length - live
        header.length = live
        header.first = first_live or (0, 0)
        header.max_deleted = min(header.max_deleted, header.last)
        header.leaves = self.nodes
        # The next note is due after EVERY nodes, counted from now.
        header.leaves_added = max(header.leaves_added, self.nodes)
        header.leaves_added += (self.nodes - header.leaves_added) % EVERY
        self.entries = live
        self._complete_losses(missing)

    def _complete_losses(self, missing: int) -> None:
        """Compute the size of a single gap of unknown size from the header's old length."""
        if self.old is None:
            return
        unknown = [at for at, loss in enumerate(self.lost) if loss.what == "entries" and loss.entries is None]
        known = sum(loss.entries or 0 for loss in self.lost if loss.what == "entries")
        if len(unknown) == 1 and missing >= known:
            at = unknown[0]
            loss = self.lost[at]
            if missing > known:
                self.lost[at] = Loss(loss.what, loss.stream, None, loss.first, loss.last, missing - known)
            else:
                del self.lost[at]

    def copy_deferred(self) -> int:
        """Copy the deferred entries that are whole, and the schedules, with their ticks. Returns the number of entries.

        A tick is in its schedule's record, too; without that it is an entry like others.
        """
        header = self.header
        known, header.deferred, header.due = header.deferred, 0, headers.NEVER
        prefix, schedules = (keys.family(self.number, kind) for kind in (keys.DEFERRED, keys.SCHEDULE))
        found = dict(self._gathered.rows(prefix))
        lost = {row[1] for row in found.values() if len(row) > 1}
        found = {suffix: row[:1] for suffix, row in found.items()}
        for name, row in self._gathered.rows(schedules):
            schedule = ScheduleState.from_row(name, row)
            lost.discard(name)
            header.next_deferred = max(header.next_deferred, 1)  # also where it is paused: it once had a tick
            self.put(schedules + name, row)
            if schedule.tick is not None:
                found[pack_id(*schedule.tick[1:])] = [schedule.entry(schedule.nominal), name]
        if lost:
            self.lose("schedules", entries=len(lost))
        for suffix, row in sorted(found.items()):
            due, place = unpack_id(suffix)
            self.put(prefix + suffix, row)
            header.deferred += 1
            header.due = min(header.due, due)
            header.next_deferred = max(header.next_deferred, place + 1)
        if self.old is None and self._gathered.is_hidden(prefix, keys.family(self.number, keys.NODE)):
            self.lose("deferred entries, perhaps")
        elif known > header.deferred:
            self.lose("deferred entries", entries=known - header.deferred)
        return header.deferred

    def copy_results(self) -> int:
        """Copy the results that are whole. Returns their number."""
        by_name, by_time = keys.family(self.number, keys.RESULT), keys.family(self.number, keys.RESULT_AGE)
        count = 0
        for name, row in self._gathered.rows(by_name):
            self.put(by_name + name, row)
            self.put(by_time + row[0].to_bytes(8, "big") + name, [])
            count += 1
        lost = sum(1 for _ in self._gathered.rows(by_time)) - count
        if lost > 0:
            self.lose("results", entries=lost)
        return count

    def copy_unique(self) -> None:
        """Copy the unique names that are whole; those that are lost are free."""
        prefix = keys.family(self.number, keys.UNIQUE)
        for suffix, row in self._gathered.rows(prefix):
            self.put(prefix + suffix, row)

    def write_header(self) -> None:
        self.put(keys.header_key(self.number), self.header.row())
        self.put(keys.NAMES + self.name, [self.number])

    def put(self, key: bytes, row: list[Any]) -> None:
        self._txn.put(key, records.seal(key, row))
