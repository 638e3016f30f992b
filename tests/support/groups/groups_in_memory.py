"""Streams, groups and durable state as plain dicts: what a store must say, worked out slowly.

    World ── streams ── Stream ── entries         {ID: pairs}
         │                    └── groups ── Group ── pel      {ID: Held}
         │                                       └── members  {name: Member}
         ├── state     {key: value}
         └── now       the clock, in milliseconds

Methods give what the same call on a store gives, in plain tuples, or raise its error before
they change anything. An entry is (ID, pairs, deliveries, idle seconds).
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from raxlog import ConsumerBusy, GroupExists, IDTooSmall, IDZero, NoGroup, NoStream, StreamExists

ID = tuple[int, int]
Pairs = list[tuple[bytes, bytes]]
Told = tuple[ID, Pairs, int, float | None]

MOST = (1 << 63) - 1
DELETED, MISSING, REFERENCED = 1, -1, 2


@dataclass
class Held:
    """A pending entry: its owner (None: released), delivery or due time, count, turn."""

    owner: bytes | None
    time: int
    count: int
    turn: int = 0


class Shared(list[int]):
    """Numbers that a copy of what holds them holds as well."""

    def __deepcopy__(self, _: object) -> Shared:
        return self


@dataclass
class Member:
    """A consumer: when it last tried, and last got something (None: never).

    That it tried is known at once, whatever becomes of the transaction; copies share what is known.
    """

    seen: int
    active: int | None = None
    tried: Shared = field(default_factory=Shared)

    def got(self, now: int) -> None:
        self.seen = self.active = now

    def last_seen(self) -> int:
        return max([self.seen, *self.tried])


@dataclass
class Group:
    """A consumer group."""

    last: ID
    pel: dict[ID, Held] = field(default_factory=dict)
    members: dict[bytes, Member] = field(default_factory=dict)
    gone: int = 0  # pending entries that were no longer in the stream, and have been taken out

    def owned(self, name: bytes) -> list[ID]:
        return sorted(sid for sid, held in self.pel.items() if held.owner == name)

    def ensure(self, name: bytes, now: int) -> Member:
        member = self.members.setdefault(name, Member(now))
        member.seen = now
        member.tried[:] = [now]
        return member

    def ack(self, ids: list[ID]) -> int:
        return sum(self.pel.pop(sid, None) is not None for sid in ids)

    def take_out(self, ids: list[ID]) -> None:
        self.gone += self.ack(ids)


@dataclass
class Stream:
    """A stream with its groups, and what its producers have sent."""

    entries: dict[ID, Pairs] = field(default_factory=dict)
    last: ID = (0, 0)
    groups: dict[bytes, Group] = field(default_factory=dict)
    window: int = 0  # of idempotent appends; not set: a day
    cap: int = 0  # not set: none
    sent: dict[bytes, dict[Any, ID]] = field(default_factory=dict)  # of each producer, oldest first

    def told(self, sid: ID, deliveries: int, idle: float | None = None) -> Told:
        return sid, self.entries.get(sid, []), deliveries, idle

    def behind(self, sid: ID) -> list[ID]:
        ids = list(self.entries)
        return ids[bisect_right(ids, sid):]

    def held(self, sid: ID) -> bool:
        return any(group.last < sid or sid in group.pel for group in self.groups.values())

    def drop(self, ids: list[ID]) -> None:
        for group in self.groups.values():
            group.ack(ids)


@dataclass
class World:
    """Everything a store holds."""

    now: int
    streams: dict[bytes, Stream] = field(default_factory=dict)
    state: dict[bytes, bytes] = field(default_factory=dict)
    turns: int = 0
    back: Shared = field(default_factory=lambda: Shared([0]))  # ms by which the clock has been set back in all

    # -- streams ------------------------------------------------------------------------

    def append(self, name: bytes, pairs: Pairs, sid: ID | None, create: bool, maxlen: int | None,
               producer: bytes | None, iid: bytes | None) -> ID | None:
        stream = self.streams.get(name)
        if stream is None and not create:
            return None
        stream = stream or Stream()
        ticket = ("content", tuple(sorted(pairs))) if iid is None else iid
        sent = stream.sent.setdefault(producer, {}) if producer is not None else {}
        oldest = self.now - (stream.window or 86_400) * 1000
        if ticket in sent and (sent[ticket][0] > oldest or sent[ticket] in stream.entries):
            return sent[ticket]
        if sid is None:
            sid = (self.now, 0) if self.now > stream.last[0] else (stream.last[0], stream.last[1] + 1)
        if sid <= stream.last:
            raise IDZero if sid == (0, 0) else IDTooSmall
        if producer is not None:
            sent.pop(ticket, None)
            room = 2
            for old, at in list(sent.items()):
                if len(sent) < (stream.cap or math.inf):
                    if at[0] > oldest or not room or at >= next(iter(stream.entries), sid):
                        break
                    room -= 1
                del sent[old]
            sent[ticket] = sid
        self.streams[name] = stream
        stream.entries[sid] = pairs
        stream.last = sid
        if maxlen is not None:
            self.trim(name, maxlen, None, "keepref")
        return sid

    def extend(self, name: bytes, ids: list[ID]) -> list[ID]:
        stream = self.streams.get(name) or Stream()
        last = stream.last
        for sid in ids:
            if sid <= last:
                raise IDZero if sid == (0, 0) else IDTooSmall
            last = sid
        return [sid for sid in ids if self.append(name, [(b"n", b"%d" % sid[1])], sid, True, None, None, None)]

    def trim(self, name: bytes, maxlen: int | None, minid: ID | None, refs: str) -> int:
        stream = self.streams.get(name)
        if stream is None:
            return 0
        if maxlen is not None:
            going = list(stream.entries)[: max(0, len(stream.entries) - maxlen)]
        else:
            assert minid is not None
            going = [sid for sid in stream.entries if sid < minid]
        if refs == "acked":
            going = [sid for sid in going if not stream.held(sid)]
        if refs == "delref":
            stream.drop(going)
        for sid in going:
            del stream.entries[sid]
        return len(going)

    def delete(self, name: bytes, ids: list[ID]) -> int:
        stream = self.streams.get(name) or Stream()
        for group in stream.groups.values():  # what waits for a retry
            waiting = [sid for sid, held in group.pel.items() if held.owner is None and held.time]
            group.take_out([sid for sid in waiting if sid in ids])
        return sum(stream.entries.pop(sid, None) is not None for sid in ids)

    def delete_ex(self, name: bytes, ids: list[ID], refs: str) -> list[int]:
        stream = self.streams.get(name) or Stream()
        results = []
        for sid in ids:
            if refs == "acked" and stream.held(sid):
                results.append(REFERENCED)
            else:
                results.append(DELETED if stream.entries.pop(sid, None) is not None else MISSING)
        if refs == "delref":
            stream.drop(ids)
        return results

    def configure(self, name: bytes, window: int, cap: int) -> dict[str, int]:
        stream = self.streams.setdefault(name, Stream())
        changed = {"idempotence_window": window} if window != stream.window else {}
        if cap != stream.cap:
            changed["idempotence_cap"] = cap
        if changed:
            stream.window, stream.cap = window, cap
        return changed

    def stream(self, name: bytes) -> Stream:
        if name not in self.streams:
            raise NoStream
        return self.streams[name]

    def rename(self, old: bytes, new: bytes) -> bool:
        self.stream(old)
        if old != new and new in self.streams:
            raise StreamExists
        self.streams[new] = self.streams.pop(old)
        return old != new

    def delete_stream(self, name: bytes) -> bool:
        return self.streams.pop(name, None) is not None

    # -- groups -------------------------------------------------------------------------

    def group(self, name: bytes, group: bytes) -> tuple[Stream, Group]:
        stream = self.streams.get(name)
        if stream is None or group not in stream.groups:
            raise NoGroup
        return stream, stream.groups[group]

    def create_group(self, name: bytes, group: bytes, start: ID | None, exist_ok: bool, create_stream: bool) -> None:
        if not create_stream:
            self.stream(name)
        stream = self.streams.setdefault(name, Stream())
        if group not in stream.groups:
            stream.groups[group] = Group(stream.last if start is None else start)
        elif not exist_ok:
            raise GroupExists

    def set_id(self, name: bytes, group: bytes, start: ID | None) -> None:
        stream, found = self.group(name, group)
        found.last = stream.last if start is None else start

    def destroy(self, name: bytes, group: bytes) -> bool:
        stream = self.streams.get(name)
        return stream is not None and stream.groups.pop(group, None) is not None

    def create_consumer(self, name: bytes, group: bytes, consumer: bytes) -> bool:
        _, found = self.group(name, group)
        if consumer in found.members:
            return False
        found.ensure(consumer, self.now)
        return True

    def delete_consumer(self, name: bytes, group: bytes, consumer: bytes, way: str, heir: bytes) -> int:
        stream, found = self.group(name, group)
        if consumer not in found.members:
            return 0
        owned = found.owned(consumer)
        if way == "refuse" and not any(sid in stream.entries for sid in owned):
            found.take_out(owned)
        elif owned and way == "refuse":
            raise ConsumerBusy
        elif owned and way == "to":
            found.ensure(heir, self.now)
            for sid in owned:
                found.pel[sid].owner = heir
        elif owned:
            found.ack(owned)
        del found.members[consumer]
        return len(owned)

    # -- reading ------------------------------------------------------------------------

    def read(self, group: bytes, consumer: bytes, wanted: list[tuple[bytes, ID | None, list[ID]]],
             count: int | None, total: int | None, noack: bool, min_idle: int | None) -> list[tuple[bytes, list[Told]]]:
        """``wanted``: (stream, ID behind which history is read or None for new, IDs to acknowledge)."""
        answer = []
        found = [self.group(name, group) for name, _, _ in wanted]
        for (stream, state), (name, after, acked) in zip(found, wanted, strict=True):
            state.ack(acked)
            member = state.ensure(consumer, self.now)
            room = min((limit for limit in (count, total) if limit is not None), default=MOST)
            if after is not None:
                min_idle = None
                told = self._history(stream, state, consumer, after, room)
            else:
                told = [] if min_idle is None else self._claim_idle(stream, state, consumer, min_idle, room)
                new = self._new(stream, state, consumer, room - len(told), noack)
                if told or (new and not noack):
                    member.got(self.now)
                told += new
            total = None if total is None else total - len(told)
            if told or after is not None:
                answer.append((name, told))
        return answer

    def _new(self, stream: Stream, group: Group, consumer: bytes, room: int, noack: bool) -> list[Told]:
        told = []
        for sid in stream.behind(group.last)[:room]:
            group.last = sid
            if not noack:
                group.pel[sid] = Held(consumer, self.now, 1)
            told.append(stream.told(sid, 1))
        return told

    def _history(self, stream: Stream, group: Group, consumer: bytes, after: ID, room: int) -> list[Told]:
        told = []
        for sid in [sid for sid in group.owned(consumer) if sid > after][:room]:
            held = group.pel[sid]
            if sid in stream.entries:
                held.count = min(held.count + 1, MOST)
                held.time = self.now
            told.append(stream.told(sid, held.count))
        return told

    def _claim_idle(self, stream: Stream, group: Group, consumer: bytes, min_idle: int, room: int) -> list[Told]:
        released = [(held.time, held.turn, sid) for sid, held in group.pel.items()
                    if held.owner is None and held.time <= self.now]
        owned = [(held.time, sid) for sid, held in group.pel.items()
                 if held.owner is not None and held.time <= self.now - min_idle]
        told = []
        for *_, sid in sorted(released) + sorted(owned):
            if len(told) == room:
                break
            if sid in stream.entries:
                held = group.pel[sid]
                idle = None if held.owner is None else max(0, self.now - held.time) / 1000
                count = min(held.count + 1, MOST)
                group.pel[sid] = Held(consumer, self.now, count)
                told.append(stream.told(sid, count, idle))
            else:
                group.take_out([sid])
        return told

    # -- pending entries ----------------------------------------------------------------

    def ack(self, name: bytes, group: bytes, ids: list[ID]) -> int:
        stream = self.streams.get(name) or Stream()
        return stream.groups[group].ack(ids) if group in stream.groups else 0

    def ack_delete(self, name: bytes, group: bytes, ids: list[ID], refs: str) -> list[int]:
        stream = self.streams.get(name) or Stream()
        results = []
        going = []
        for sid in ids:
            if group not in stream.groups or not stream.groups[group].ack([sid]):
                results.append(MISSING)
            elif refs == "acked" and stream.held(sid):
                results.append(REFERENCED)
            else:
                results.append(DELETED)
                going.append(sid)
        for sid in going:
            stream.entries.pop(sid, None)
        if refs == "delref":
            stream.drop(going)
        return results

    def nack(self, name: bytes, group: bytes, ids: list[ID], mode: str, delay: int, deliveries: int | None,
             force: bool) -> int:
        if not ids:
            return 0
        stream, found = self.group(name, group)
        counts: dict[ID, int] = {}
        released = 0
        for sid in ids:
            if sid in counts:
                count = counts[sid]
            elif sid in found.pel:
                count = found.pel[sid].count
            elif force and sid in stream.entries:
                count = 1 if mode == "silent" else 0
            else:
                continue
            changed = {"silent": max(0, count - 1), "fail": count, "fatal": MOST}[mode]
            counts[sid] = changed if deliveries is None else deliveries
            released += 1
        for sid, count in counts.items():
            self.turns += 1
            found.pel[sid] = Held(None, self.now + delay if delay else 0, count, self.turns)
        return released

    def claim(self, name: bytes, group: bytes, consumer: bytes, ids: list[ID], min_idle: int, at: int | None,
              deliveries: int | None, force: bool, justid: bool, lastid: ID | None) -> list[Any]:
        """``at`` is the delivery time to set, in ms; None and what is to come mean now."""
        if not ids:
            return []
        stream, found = self.group(name, group)
        member = found.ensure(consumer, self.now)
        found.last = max(found.last, lastid or (0, 0))
        time = self.now if at is None or not 0 <= at <= self.now else at
        claimed = []
        for sid in ids:
            held = found.pel.get(sid)
            if sid not in stream.entries:
                found.take_out([sid])
                continue
            if held is None and not force:
                continue
            if held is not None and held.owner is not None and min_idle and self.now - held.time < min_idle:
                continue
            count = 0 if held is None else held.count
            if deliveries is not None:
                count = deliveries
            elif held is None:
                count = 1 if justid else 2
            elif not justid:
                count = min(count + 1, MOST)
            found.pel[sid] = Held(consumer, time, count)
            claimed.append(sid)
            member.got(self.now)
        return claimed if justid else [stream.told(sid, found.pel[sid].count) for sid in claimed]

    def autoclaim(self, name: bytes, group: bytes, consumer: bytes, min_idle: int, start: ID, count: int,
                  justid: bool) -> tuple[ID, list[Any], list[ID]]:
        stream, found = self.group(name, group)
        member = found.ensure(consumer, self.now)
        told: list[Told] = []
        gone: list[ID] = []
        cursor = (0, 0)
        for looked, sid in enumerate(sorted(sid for sid in found.pel if sid >= start)):
            if looked == 10 * count or len(told) + len(gone) == count:
                cursor = sid
                break
            held = found.pel[sid]
            if sid not in stream.entries:
                gone.append(sid)
                found.take_out([sid])
            elif held.owner is None or not min_idle or self.now - held.time >= min_idle:
                held.count = held.count if justid else min(held.count + 1, MOST)
                found.pel[sid] = Held(consumer, self.now, held.count)
                told.append(stream.told(sid, held.count))
                member.got(self.now)
            elif held.time > self.now:
                held.time = self.now
        return cursor, [sid for sid, *_ in told] if justid else told, gone

    # -- state --------------------------------------------------------------------------

    def set_state(self, key: bytes, value: bytes) -> None:
        self.state[key] = value

    def del_state(self, key: bytes) -> None:
        del self.state[key]


def outcome(call: Callable[[], Any]) -> Any:
    """What a call returns, or the class of the error it raises."""
    try:
        return call()
    except Exception as error:
        return type(error)
