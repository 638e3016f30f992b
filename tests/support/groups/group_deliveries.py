"""Random commands that deliver: reading, acknowledging, looking, claiming; and a whole run."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import raxlog
from group_commands import CONSUMERS, GROUPS, GroupCommands
from raxlog.stream.node.stream_id import time_at
from redis_groups import STREAMS, as_pair, entries_reply, id_reply

HOUR = 3_600_000  # ms; idle times are 0 or hours, so that milliseconds decide nothing
MANY = (1 << 63) - 1000  # deliveries; Redis before 8.8 runs over at 2**63

USUAL = {
    "append": 30, "delete": 8, "trim": 3, "set_stream_id": 2, "delete_stream": 0.3,
    "create_group": 4, "set_group_id": 2, "destroy_group": 0.7, "create_consumer": 1, "delete_consumer": 1,
    "read_new": 20, "read_history": 6, "read_several": 4, "acknowledge_and_read": 3, "acknowledge": 10,
    "pending_summary": 2, "pending_range": 6, "claim": 12, "autoclaim": 8, "read_plain": 3, "describe": 3,
    "delete_ex": 0, "acknowledge_and_delete": 0, "reopen": 0.4,
}  # fmt: skip



class Run(GroupCommands):
    """One run: commands drawn from a seed, given to both worlds."""

    def run(self, operations: int, compare_every: int) -> None:
        """So many commands; everything is compared now and then, and at the end twice."""
        weights = {**USUAL, **self.profile.weights}
        kinds: list[Callable[[], None]] = [getattr(self, name) for name in weights]
        for done in range(1, operations + 1):
            self.begin()
            self.rng.choices(kinds, list(weights.values()))[0]()
            if done % compare_every == 0 or self.profile.paused:
                self.compare()
            if done % (5 * compare_every) == 0:
                self.check()
            elif self.rng.random() < 0.1:
                self.commit()
        self.check()
        self.compare()
        self.reopen()
        self.compare()
        self.check()

    # -- reading ------------------------------------------------------------------------

    def read_new(self) -> None:
        self.read([(self.name(), b">")])

    def read_history(self) -> None:
        name = self.name()
        wrong = (b"x", b"$", b"-", b"+", b"(1-1")
        behind = self.rng.choice((b"0", b"0-0", self.text(self.any_id(name))))
        there = self.groups_of(name)
        if there and self.flawed():  # Redis looks for the group first
            self.read([(name, self.rng.choice(wrong))], group=self.rng.choice(there))
        else:
            self.read([(name, behind)])

    def read_several(self) -> None:
        self.commit()
        names = self.rng.sample(STREAMS, self.rng.choice((1, 2, 3)))
        self.read([(name, b">" if self.rng.random() < 0.7 else self.text(self.any_id(name))) for name in names], True)

    def read(self, asked: list[tuple[bytes, bytes]], several: bool = False, group: bytes | None = None,
             ack: list[bytes] | None = None) -> None:
        """XREADGROUP, of one stream by its group, or of several by the store."""
        rng = self.rng
        names = [name for name, _ in asked]
        name, behind = asked[0]
        consumer = rng.choice(CONSUMERS)
        if group is None:
            group = rng.choice(self.groups_of(name) if self.groups_of(name) and not self.flawed() else GROUPS)
        options: dict[str, Any] = {}
        words: list[Any] = ["XREADGROUP", "GROUP", group, consumer]
        count = rng.choice((None, 1, 2, 3, 7, 50))
        if count is not None:
            options["count"] = count
            words += ["COUNT", count]
        if rng.random() < 0.15:
            options["noack"] = True
            words.append("NOACK")
        words += ["STREAMS", *names, *(after for _, after in asked)]
        before = {name: self.full(name) for name in names if group in self.groups_of(name)}

        def of_several() -> Any:
            found = self.store.read_group(group, consumer, dict(asked), **options)
            return [[name, entries_reply(entries)] for name, entries in found.items()] or None

        def of_one() -> Any:
            found = entries_reply(self.group(name, group).read(consumer, ids=behind, ack=ack or (), **options))
            return [[name, found]] if found or behind != b">" else None

        reply = self.both(words, of_several if several else of_one)
        if isinstance(reply, Exception):
            return
        self.seen_in_redis(names, group, consumer)
        for name, entries in reply or []:
            if dict(asked)[name] == b">":
                self.rules.delivered(name, group, before[name], [as_pair(sid) for sid, _ in entries])

    def read_plain(self) -> None:
        """XREAD."""
        rng = self.rng
        self.commit()
        names = rng.sample(STREAMS, rng.choice((1, 2, 3)))
        ids = [rng.choice((b"0", b"$", self.text(self.any_id(name)), self.text(self.any_id(name)))) for name in names]
        if self.version >= (7, 4) and rng.random() < 0.2:
            ids[0] = b"+"
        if self.flawed():
            ids[-1] = rng.choice((b"-", b">", b"x"))
        count = rng.choice((None, 1, 3, 20))
        words = ["XREAD", *([] if count is None else ["COUNT", count]), "STREAMS", *names, *ids]
        self.both(words, lambda: [
            [name, entries_reply(entries)]
            for name, entries in self.store.read(dict(zip(names, ids, strict=True)), count).items()
        ] or None)  # fmt: skip

    # -- acknowledging ------------------------------------------------------------------

    def acknowledge(self) -> None:
        name, group, _ = self.where()
        ids = self.pending_ids(name, group)
        if self.flawed() and group in self.groups_of(name):
            ids.insert(self.rng.randrange(len(ids) + 1), self.wrong_id())
        self.both(["XACK", name, group, *ids], lambda: self.group(name, group).ack(*ids))

    def acknowledge_and_read(self) -> None:
        """Our one call for XACK and XREADGROUP."""
        name, group, _ = self.where()
        if group in self.groups_of(name):
            ids = self.pending_ids(name, group)
            self.client.execute_command("XACK", name, group, *ids)
            self.read([(name, b">")], group=group, ack=ids)

    def acknowledge_and_delete(self) -> None:
        name, group, _ = self.where()
        refs = self.rng.choice(("keepref", "delref", "acked"))
        ids = self.pending_ids(name, group)
        if self.flawed() and group in self.groups_of(name):
            ids.append(self.wrong_id())
        words = ["XACKDEL", name, group, refs, "IDS", len(ids), *ids]
        self.both(words, lambda: list(map(int, self.group(name, group).ack_delete(*ids, refs=refs))))

    # -- looking ------------------------------------------------------------------------

    def pending_summary(self) -> None:
        name, group, _ = self.where()

        def call() -> list[Any]:
            found = self.group(name, group).pending()
            owners = [[owner, b"%d" % many] for owner, many in found.consumers.items()]
            return [found.total, id_reply(found.first), id_reply(found.last), owners or None]

        self.both(["XPENDING", name, group], call)

    def pending_range(self) -> None:
        rng = self.rng
        name, group, consumer = self.where()
        words: list[Any] = ["XPENDING", name, group]
        options: dict[str, Any] = {}
        if rng.random() < 0.4:
            idle = rng.choice((0, HOUR, 3 * HOUR, -5))
            words += ["IDLE", idle]
            options["min_idle"] = idle / 1000
        start, end = self.edge(name), self.edge(name)
        if rng.random() < 0.5:
            start, end = b"-", b"+"
        count = rng.choice((0, -1, 1, 3, 10, 10_000))
        words += [start, end, count]
        if rng.random() < 0.4:
            words.append(consumer)
            options["consumer"] = consumer
        idle_times: list[list[float]] = []

        def without_idle(rows: list[list[Any]]) -> list[list[Any]]:
            idle_times.append([row.pop(2) for row in rows])
            return rows

        def call() -> list[Any]:
            rows = self.group(name, group).pending_entries(start, end, count, **options)
            return without_idle([[id_reply(row.id), row.consumer, row.idle * 1000, row.deliveries] for row in rows])

        reply = self.both(words, call, shown=without_idle)
        if not isinstance(reply, Exception):
            assert all(map(self.near, *idle_times))

    def edge(self, name: bytes) -> bytes:
        if self.flawed(0.02):
            return self.rng.choice((b"(-", b"x", b"(0-0", b"(18446744073709551615-18446744073709551615", b"$"))
        ms, seq = self.any_id(name)
        return self.rng.choice((b"%d-%d" % (ms, seq), b"(%d-%d" % (ms, seq), b"%d" % ms, b"-", b"+"))

    # -- claiming -----------------------------------------------------------------------

    def claim(self) -> None:
        rng = self.rng
        name, group, consumer = self.where()
        ids = self.pending_ids(name, group)
        idle = rng.choice((0, 0, HOUR, -1))
        words: list[Any] = ["XCLAIM", name, group, consumer, idle, *ids]
        options: dict[str, Any] = {"min_idle": idle / 1000}
        kind = rng.random()
        if kind < 0.35:
            given = rng.choice((0, 2 * HOUR, 2 * HOUR, 50 * HOUR, -3, 1 << 52))
            words += ["IDLE", given]
            options["idle"] = given / 1000
        elif kind < 0.6:
            now = time.time_ns() // 1_000_000
            given = rng.choice((rng.randrange(1 << 40, now - 2 * HOUR), 0, -3, now + HOUR))
            if 0 <= given < now:
                self.given_times.add(given)
            words += ["TIME", given]
            options["time"] = time_at(given)
        if rng.random() < 0.3:
            options["deliveries"] = rng.choice((0, 1, 7, MANY))
            words += ["RETRYCOUNT", options["deliveries"]]
        for option in ("force", "justid"):
            if rng.random() < 0.3:
                words.append(option)
                options[option] = True
        if self.profile.by_hand and rng.random() < 0.2:
            options["lastid"] = text = self.text(self.any_id(name))
            words += ["LASTID", text]
            self.rules.last_set_by_hand(name, group)
        if self.flawed() and group in self.groups_of(name):
            options["lastid"] = text = self.rng.choice((b"x", b"-", b"1-"))
            words += ["LASTID", text]
        how = "claim_ids" if options.pop("justid", False) else "claim"
        reply = self.both(words, lambda: self.claimed(
            getattr(self.group(name, group), how)(consumer, *ids, **options)))
        if not isinstance(reply, Exception):
            self.seen_in_redis([name], group, consumer)

    def claimed(self, found: list[Any]) -> list[Any]:
        return [id_reply(one) if isinstance(one, raxlog.StreamID) else entries_reply([one])[0] for one in found]

    def autoclaim(self) -> None:
        rng = self.rng
        name, group, consumer = self.where()
        idle = rng.choice((0, HOUR, HOUR, -1))
        start = rng.choice((b"0", b"-", b"0-0", self.edge(name)))
        words: list[Any] = ["XAUTOCLAIM", name, group, consumer, idle, start]
        options: dict[str, Any] = {"min_idle": idle / 1000, "start": start}
        if rng.random() < 0.8:
            options["count"] = 0 if self.flawed(0.02) else rng.choice((1, 1, 2, 5, 100))
            words += ["COUNT", options["count"]]
        if rng.random() < 0.3:
            words.append("JUSTID")
        how = "autoclaim_ids" if "JUSTID" in words else "autoclaim"

        def call() -> list[Any]:
            done = getattr(self.group(name, group), how)(consumer, **options)
            return [id_reply(done.cursor), self.claimed(done.entries), list(map(id_reply, done.deleted))]

        reply = self.both(words, call)
        if not isinstance(reply, Exception):
            self.seen_in_redis([name], group, consumer)
