"""What may happen to groups, as rules: each acts on a store and on the model beside it.

MOVES holds the arguments of each, so that they can also be drawn as data, for a child process
that carries them out before it is killed.
"""

from __future__ import annotations

import copy
from contextlib import ExitStack
from typing import Any

import pytest
import raxlog
from groups_in_memory import ID, Pairs, World, outcome
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule
from raxlog import StreamID, TransactionError
from raxlog.stream.node.stream_id import time_at

STREAMS = [b"s", b"\xff\x00"]
GROUPS = [b"g", b"", b"h" * 401]
CONSUMERS = [b"a", b"\xfe", b"c" * 401]
KEYS = [b"k", b"", b"\x00" * 502]

Place = float  # where among the IDs that play a part

places = st.floats(0, 1, exclude_max=True)
streams = st.sampled_from([STREAMS[0], *STREAMS])
group_names = st.sampled_from([GROUPS[0], *GROUPS])
consumers = st.sampled_from(CONSUMERS)
some = st.lists(places, max_size=4)
counts = st.none() | st.integers(0, 5)
lows, highs = st.just(0.0) | places, st.just(0.999) | places
idles = st.sampled_from([0, 0, 1, 50, 1000, 70_000])
policies = st.sampled_from(["keepref", "delref", "acked"])
retries = st.none() | st.none() | st.sampled_from([0, 3, (1 << 63) - 1])
pairs = st.sampled_from([[(b"n", b"1")], [(b"n", b"2"), (b"m", b"")], [(b"x" * 100, b"y" * 900)]])
starts = st.none() | st.just("first") | places

# The arguments of every rule that may happen in a transaction, or in a child that dies.
MOVES: dict[str, dict[str, Any]] = {
    "tick": {"by": st.sampled_from([0, 1, 60, 1000, 80_000, -500])},
    "append": {
        "name": streams, "row": pairs, "ahead": st.none() | st.none() | st.integers(-1, 3),
        "create": st.just(True) | st.booleans(), "maxlen": st.none() | st.none() | st.integers(0, 12),
    },
    "append_once": {"name": streams, "row": pairs, "producer": st.sampled_from([b"p", b"q"]),
                    "iids": st.lists(st.none() | st.sampled_from([b"1", b"2", b"3"]), min_size=1, max_size=5)},
    "extend": {"name": streams, "many": st.integers(1, 8), "stumble": st.sampled_from([False] * 7 + [True])},
    "configure": {"name": streams, "window": st.sampled_from([1, 100]), "cap": st.sampled_from([0, 1, 2, 100])},
    "trim": {"name": streams, "maxlen": st.none() | st.integers(0, 10), "place": places, "refs": policies},
    "delete": {"name": streams, "group": group_names, "ids": some},
    "delete_ex": {"name": streams, "group": group_names, "ids": some, "refs": policies},
    "create_group": {"name": streams, "group": group_names, "start": starts, "exist_ok": st.booleans(),
                     "create_stream": st.booleans()},
    "set_id": {"name": streams, "group": group_names, "start": starts},
    "destroy": {"name": streams, "group": group_names, "sure": st.sampled_from([True, False, False])},
    "create_consumer": {"name": streams, "group": group_names, "consumer": consumers},
    "delete_consumer": {"name": streams, "group": group_names, "consumer": consumers,
                        "way": st.sampled_from(["refuse", "to", "drop"]), "heir": consumers},
    "read_new": {"name": streams, "group": group_names, "consumer": consumers, "count": counts,
                 "noack": st.sampled_from([False, False, True]), "ack": some, "min_idle": st.none() | idles},
    "read_history": {"name": streams, "group": group_names, "consumer": consumers, "count": counts,
                     "behind": st.none() | lows, "ack": some},
    "ack": {"name": streams, "group": group_names, "ids": some},
    "ack_delete": {"name": streams, "group": group_names, "ids": some, "refs": policies},
    "nack": {"name": streams, "group": group_names, "ids": some, "mode": st.sampled_from(["silent", "fail", "fatal"]),
             "delay": st.sampled_from([0, 0, 40, 60_000]), "deliveries": retries, "force": st.booleans()},
    "claim": {"name": streams, "group": group_names, "consumer": consumers, "ids": some, "min_idle": idles,
              "idle": st.none() | st.sampled_from([0, 500, -5, 9_000]),
              "time": st.none() | st.integers(-90_000, 90_000),
              "deliveries": retries, "force": st.booleans(), "justid": st.booleans(), "lastid": st.none() | places},
    "autoclaim": {"name": streams, "group": group_names, "consumer": consumers, "min_idle": idles, "start": lows,
                  "count": st.integers(1, 4), "justid": st.booleans()},
    "set_state": {"key": st.sampled_from(KEYS), "letter": st.binary(min_size=1, max_size=1),
                  "size": st.sampled_from([0, 1, 3, 70_000])},
    "del_state": {"key": st.sampled_from(KEYS)},
}  # fmt: skip

moves = st.sampled_from(sorted(MOVES)).flatmap(
    lambda name: st.tuples(st.just(name), st.fixed_dictionaries(MOVES[name]))
)


def told(entries: list[raxlog.Entry]) -> list[Any]:
    return [(entry.id, entry.pairs, entry.deliveries, entry.idle) for entry in entries]


def seconds(ms: int | None) -> float | None:
    return None if ms is None else ms / 1000


class GroupMoves(RuleBasedStateMachine):
    """Moves a store, or its open transaction, and the model; both must answer the same."""

    store: raxlog.Store
    tx: Any
    world: World
    before: World | None  # what others see while a transaction is open
    open_transaction: ExitStack
    acting: bool  # False: only the model is moved

    def ended(self, kept: bool) -> None:
        """The transaction has ended."""
        if not kept:
            assert self.before is not None
            self.before.now = self.world.now
            self.world = self.before
        self.before = self.tx = None
        self.meet_the_future()

    # -- both sides ---------------------------------------------------------------------

    def stream(self, name: bytes) -> Any:
        return (self.tx or self.store).stream(name)

    def group(self, name: bytes, group: bytes) -> Any:
        return self.stream(name).group(group)

    def both(self, expected: Any, call: Any) -> Any:
        """Move the model, and the store; the answer both give."""
        should = outcome(expected)
        if self.acting:
            answer = outcome(call)
            assert answer == should, f"the store answers {answer}, the model {should}"
        return should

    def sid(self, name: bytes, place: Place, group: bytes | None = None) -> ID:
        """An ID that plays a part in the stream, or in the group: live, pending, or the last."""
        stream = self.world.streams.get(name)
        if stream is None:
            return 5, 0
        known = {*stream.entries, stream.last}
        if group in stream.groups:
            known |= stream.groups[group].pel.keys()
        return sorted(known)[int(place * len(known))]

    def sids(self, name: bytes, group: bytes, ids: list[Place]) -> list[ID]:
        return [self.sid(name, place, group) for place in ids]

    def start(self, name: bytes, start: Any) -> tuple[ID | None, Any]:
        """Where a group starts: the ID for the model, and as it is written."""
        if start is None:
            return None, "$"
        sid = (0, 0) if start == "first" else self.sid(name, start)
        return sid, StreamID(*sid)

    # -- streams ------------------------------------------------------------------------

    @rule(**MOVES["tick"])
    def tick(self, by: int) -> None:
        self.world.now += by
        self.world.back[0] -= min(0, by)
        self.meet_the_future()

    def meet_the_future(self) -> None:
        """Have a scan meet each delivery in the future: with others, which it is depends on the bucket it lies in."""
        for name, stream in self.world.streams.items():
            for group, state in stream.groups.items():
                if any(held.owner is not None and held.time > self.world.now for held in state.pel.values()):
                    self.autoclaim_from(name, group, CONSUMERS[0], 1 << 40, (0, 0), 10_000, True)

    @rule(**MOVES["append"])
    def append(self, name: bytes, row: Pairs, ahead: int | None, create: bool, maxlen: int | None) -> None:
        last = self.world.streams[name].last if name in self.world.streams else (self.world.now, 0)
        sid = None if ahead is None else (last[0], max(0, last[1] + ahead))
        self.both(
            lambda: self.world.append(name, row, sid, create, maxlen, None, None),
            lambda: self.stream(name).append(row, "*" if sid is None else StreamID(*sid), create=create, maxlen=maxlen),
        )

    @rule(**MOVES["append_once"])
    def append_once(self, name: bytes, row: Pairs, producer: bytes, iids: list[bytes | None]) -> None:
        for iid in iids:
            self.both(
                lambda iid=iid: self.world.append(name, row, None, True, None, producer, iid),
                lambda iid=iid: self.stream(name).append(row, producer=producer, idempotent_id=iid),
            )

    @rule(**MOVES["extend"])
    def extend(self, name: bytes, many: int, stumble: bool) -> None:
        known = name in self.world.streams
        ms, seq = self.world.streams[name].last if known else (7, 0)
        ids = [(ms, seq + 1 + at) for at in range(many)]
        rows = [[(b"n", b"%d" % sid[1])] for sid in ids]
        if stumble:  # over the last one, when the others have been appended
            ids[-1] = ids[0] if many > 1 else (ms, seq)
            if many == 1 and not known:
                return
        world = copy.deepcopy(self.world)
        said = self.both(
            lambda: self.world.extend(name, ids),
            lambda: self.stream(name).extend(rows, [StreamID(*sid) for sid in ids]),
        )
        if said is raxlog.IDTooSmall:
            self.world = world
            if self.tx is not None and many > 1:  # half of a call is in the transaction: all of it must go
                if self.acting:
                    with pytest.raises(TransactionError, match="half way"):
                        self.open_transaction.close()
                self.ended(kept=False)

    @rule(**MOVES["configure"])
    def configure(self, name: bytes, window: int, cap: int) -> None:
        self.both(
            lambda: self.world.configure(name, window, cap),
            lambda: self.stream(name).configure(idempotence_window=window, idempotence_cap=cap).to_dict(),
        )

    @rule(**MOVES["trim"])
    def trim(self, name: bytes, maxlen: int | None, place: Place, refs: str) -> None:
        if maxlen is not None and refs == "acked":
            refs = "delref"  # what is passed over depends on the nodes there
        minid = self.sid(name, place) if maxlen is None else None
        self.both(
            lambda: self.world.trim(name, maxlen, minid, refs),
            lambda: self.stream(name).trim(maxlen=maxlen, minid=minid and StreamID(*minid), refs=refs),
        )

    @rule(**MOVES["delete"])
    def delete(self, name: bytes, group: bytes, ids: list[Place]) -> None:
        sids = self.sids(name, group, ids)
        self.both(
            lambda: self.world.delete(name, sids), lambda: self.stream(name).delete(*[StreamID(*sid) for sid in sids])
        )

    @rule(**MOVES["delete_ex"])
    def delete_ex(self, name: bytes, group: bytes, ids: list[Place], refs: str) -> None:
        sids = self.sids(name, group, ids)
        self.both(
            lambda: self.world.delete_ex(name, sids, refs),
            lambda: self.stream(name).delete_ex(*[StreamID(*sid) for sid in sids], refs=refs),
        )

    # -- groups and consumers -----------------------------------------------------------

    @rule(**MOVES["create_group"])
    def create_group(self, name: bytes, group: bytes, start: Any, exist_ok: bool, create_stream: bool) -> None:
        sid, written = self.start(name, start)

        def call() -> None:
            self.stream(name).create_group(group, written, exist_ok=exist_ok, create_stream=create_stream)

        self.both(lambda: self.world.create_group(name, group, sid, exist_ok, create_stream), call)

    @rule(**MOVES["set_id"])
    def set_id(self, name: bytes, group: bytes, start: Any) -> None:
        sid, written = self.start(name, start)
        self.both(
            lambda: self.world.set_id(name, group, sid), lambda: self.group(name, group).set_id(written)
        )

    @rule(**MOVES["destroy"])
    def destroy(self, name: bytes, group: bytes, sure: bool) -> None:
        if sure:
            self.both(lambda: self.world.destroy(name, group), lambda: self.group(name, group).destroy())

    @rule(**MOVES["create_consumer"])
    def create_consumer(self, name: bytes, group: bytes, consumer: bytes) -> None:
        self.both(
            lambda: self.world.create_consumer(name, group, consumer),
            lambda: self.group(name, group).create_consumer(consumer),
        )

    @rule(**MOVES["delete_consumer"])
    def delete_consumer(self, name: bytes, group: bytes, consumer: bytes, way: str, heir: bytes) -> None:
        if way == "to" and heir == consumer:
            return
        options = {"to": heir} if way == "to" else {"pending": way}
        self.both(
            lambda: self.world.delete_consumer(name, group, consumer, way, heir),
            lambda: self.group(name, group).delete_consumer(consumer, **options),
        )

    # -- reading ------------------------------------------------------------------------

    def read(self, name: bytes, group: bytes, consumer: bytes, count: int | None, after: ID | None,
             ack: list[Place], noack: bool = False, min_idle: int | None = None) -> None:
        acked = self.sids(name, group, ack)

        def expected() -> Any:
            answer = self.world.read(group, consumer, [(name, after, acked)], count, None, noack, min_idle)
            return answer[0][1] if answer else []

        self.both(expected, lambda: told(self.group(name, group).read(
            consumer, count, ids=">" if after is None else StreamID(*after), noack=noack,
            ack=[StreamID(*sid) for sid in acked], claim_idle=seconds(min_idle),
        )))

    @rule(**MOVES["read_new"])
    def read_new(self, name: bytes, group: bytes, consumer: bytes, count: int | None, noack: bool,
                 ack: list[Place], min_idle: int | None) -> None:
        self.read(name, group, consumer, count, None, ack, noack, min_idle)

    @rule(**MOVES["read_history"])
    def read_history(self, name: bytes, group: bytes, consumer: bytes, count: int | None, behind: Place | None,
                     ack: list[Place]) -> None:
        after = (0, 0) if behind is None else self.sid(name, behind, group)
        self.read(name, group, consumer, count, after, ack)

    @precondition(lambda self: self.tx is None)
    @rule(group=group_names, consumer=consumers, names=st.permutations(STREAMS),
          new=st.tuples(st.booleans(), st.booleans()), count=st.none() | st.integers(1, 3),
          more=st.none() | st.integers(0, 3), ack=some, min_idle=st.none() | idles)
    def read_several(self, group: bytes, consumer: bytes, names: list[bytes], new: tuple[bool, bool],
                     count: int | None, more: int | None, ack: list[Place], min_idle: int | None) -> None:
        total = None if more is None else (count or 1) + more
        wanted = [(name, None if is_new else (0, 0), self.sids(name, group, ack))
                  for name, is_new in zip(names, new, strict=True)]
        self.both(
            lambda: self.world.read(group, consumer, wanted, count, total, False, min_idle),
            lambda: [(name, told(entries)) for name, entries in self.store.read_group(
                group, consumer, {name: ">" if after is None else "0" for name, after, _ in wanted}, count,
                total=total, ack={name: [StreamID(*sid) for sid in acked] for name, _, acked in wanted},
                claim_idle=seconds(min_idle),
            ).items()],
        )

    # -- pending entries ----------------------------------------------------------------

    @rule(**MOVES["ack"])
    def ack(self, name: bytes, group: bytes, ids: list[Place]) -> None:
        sids = self.sids(name, group, ids)
        self.both(
            lambda: self.world.ack(name, group, sids),
            lambda: self.group(name, group).ack(*[StreamID(*sid) for sid in sids]),
        )

    @rule(**MOVES["ack_delete"])
    def ack_delete(self, name: bytes, group: bytes, ids: list[Place], refs: str) -> None:
        sids = self.sids(name, group, ids)
        self.both(
            lambda: self.world.ack_delete(name, group, sids, refs),
            lambda: self.group(name, group).ack_delete(*[StreamID(*sid) for sid in sids], refs=refs),
        )

    @rule(**MOVES["nack"])
    def nack(self, name: bytes, group: bytes, ids: list[Place], **options: Any) -> None:
        sids = self.sids(name, group, ids)
        in_seconds = options | {"delay": options["delay"] / 1000}
        self.both(
            lambda: self.world.nack(name, group, sids, **options),
            lambda: self.group(name, group).nack(*[StreamID(*sid) for sid in sids], **in_seconds),
        )

    @rule(**MOVES["claim"])
    def claim(self, name: bytes, group: bytes, consumer: bytes, ids: list[Place], min_idle: int, idle: int | None,
              time: int | None, lastid: Place | None, justid: bool, **options: Any) -> None:
        sids = self.sids(name, group, ids)
        last = None if lastid is None else self.sid(name, lastid)
        now = self.world.now
        at = None if idle is None else now - idle
        at = at if time is None else now + time

        def call() -> Any:
            handle = self.group(name, group)
            claimed: Any = (handle.claim_ids if justid else handle.claim)(
                consumer, *[StreamID(*sid) for sid in sids], min_idle=min_idle / 1000, idle=seconds(idle),
                time=None if time is None else time_at(now + time), lastid=last and StreamID(*last), **options,
            )
            if justid:
                return claimed
            final = {entry.id: entry.deliveries for entry in claimed}  # one named twice counts twice
            return [(sid, pairs, final[sid], idle) for sid, pairs, _, idle in told(claimed)]

        self.both(
            lambda: self.world.claim(
                name, group, consumer, sids, min_idle, at, justid=justid, lastid=last, **options
            ),
            call,
        )

    @rule(**MOVES["autoclaim"])
    def autoclaim(self, name: bytes, group: bytes, consumer: bytes, min_idle: int, start: Place, count: int,
                  justid: bool) -> None:
        self.autoclaim_from(name, group, consumer, min_idle, self.sid(name, start, group), count, justid)

    def autoclaim_from(self, name: bytes, group: bytes, consumer: bytes, min_idle: int, first: ID, count: int,
                       justid: bool) -> None:
        def call() -> Any:
            handle = self.group(name, group)
            claim: Any = handle.autoclaim_ids if justid else handle.autoclaim
            done = claim(consumer, min_idle / 1000, StreamID(*first), count)
            return done.cursor, done.entries if justid else told(done.entries), done.deleted

        self.both(lambda: self.world.autoclaim(name, group, consumer, min_idle, first, count, justid), call)

    # -- state --------------------------------------------------------------------------

    @rule(**MOVES["set_state"])
    def set_state(self, key: bytes, size: int, letter: bytes) -> None:
        value = letter * size
        self.both(
            lambda: self.world.set_state(key, value), lambda: (self.tx or self.store).state.__setitem__(key, value)
        )

    @rule(**MOVES["del_state"])
    def del_state(self, key: bytes) -> None:
        self.both(lambda: self.world.del_state(key), lambda: (self.tx or self.store).state.__delitem__(key))
