"""A job: what has become of an entry in a group, looked up by its ID.

    appended ──> queued ── delivered ──> running ── acknowledged ──> done
                                          │   ^
                              it has failed   │ due
                                          v   │
                                         retry             running ── given up ──> dead, as long as its letter is there

    gone       deleted, trimmed, or dead and then replayed or purged
    unknown    greater than each ID that the stream has had
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from ...storage.figures import Figures
from ...storage.trees.rax import RaxTransaction
from ..entries import header as headers
from ..entries.range_read import read_now
from ..jobs import results
from ..jobs.results import Given, Result, unpacked
from ..node.arguments import Text, text_of
from ..node.stream_id import StreamID, make_id, time_at
from .state import UNOWNED, GroupState, find_group

Status = Literal["queued", "running", "retry", "done", "dead", "gone", "unknown"]
_WAITING = ("queued", "running", "retry")


@dataclass(frozen=True, slots=True)
class Job(Figures):
    """What has become of an entry in a group. Times are in UTC.

    ``status``   "queued": not delivered yet, or parked (Group.configure(key=)); "running": delivered to ``consumer``
                 at ``since``; "retry": released, for after ``due``; "done": acknowledged, or passed over, with its
                 ``result`` as long as that is kept; "dead": given up, for ``reason``; "gone": not in the stream any
                 more; "unknown": never was
    ``deliveries``   how often it was delivered, while it is pending or a dead letter
    """

    id: StreamID
    status: Status
    deliveries: int = 0
    consumer: Text | None = None
    since: datetime | None = None
    due: datetime | None = None
    result: Result | None = None
    reason: str | None = None


def find(txn: RaxTransaction, number: int, header: headers.StreamHeader, group: GroupState, sid: StreamID,
         encoding: str | None) -> Job:
    """The job of an entry, in one transaction: some 20 µs."""
    nack = group.pel(txn).get((sid.ms, sid.seq))
    exists = _has(txn, number, header, sid)
    if nack is not None and exists:
        if group.key_limit is not None and nack.consumer == UNOWNED and not nack.count:
            return Job(sid, "queued")  # parked, or the next of its key
        at = time_at(nack.time)
        if nack.consumer == UNOWNED:
            return Job(sid, "retry", nack.count, due=at)
        return Job(sid, "running", nack.count, text_of(group.consumer_no(txn, nack.consumer).name, encoding), at)
    raw = results.get(txn, number, results.name_of(group.name, sid))
    given = None if raw is None else Given.unpacked(raw)
    if raw is not None and given is None:
        return Job(sid, "done", result=unpacked(raw))
    if raw is not None and given is not None:
        letters, letter = headers.find(txn, given.letters), StreamID.from_bytes(given.letter)
        if letters is None or not _has(txn, *letters, letter):
            return Job(sid, "gone")
        return Job(sid, "dead", given.deliveries, result=Result(None, unpacked(raw).error, "dead"), reason=given.reason)
    if sid > make_id(*header.last):
        return Job(sid, "unknown")
    if not exists:
        return Job(sid, "gone")
    return Job(sid, "queued" if (sid.ms, sid.seq) > group.last else "done")


def _has(txn: RaxTransaction, number: int, header: headers.StreamHeader, sid: StreamID) -> bool:
    return [entry.id for entry in read_now(txn, number, header, sid, 1)] == [sid]


def result_of(txn: RaxTransaction, number: int, header: headers.StreamHeader, group: GroupState,
              sid: StreamID) -> Result:
    """The result that an entry has, or "timeout": there may be one yet. One that is kept counts, pending or not."""
    raw = results.get(txn, number, results.name_of(group.name, sid))
    if raw is not None and Given.unpacked(raw) is None:
        return unpacked(raw)
    job = find(txn, number, header, group, sid, None)
    if job.status in _WAITING:
        return Result(status="timeout")
    return job.result or Result(status="not_kept" if job.status == "done" else job.status)  # type: ignore[arg-type]


def job_moves(txn: RaxTransaction, stream: bytes, group: bytes, sid: StreamID) -> Hashable:
    """What ends a wait for a result: "timeout" until there is one, or none can come any more."""
    found = headers.find(txn, stream)
    state = None if found is None else find_group(txn, found[0], group)
    return None if found is None or state is None else result_of(txn, *found, state, sid).status
