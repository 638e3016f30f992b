"""Random commands on streams and their groups, each as Redis' arguments and as a call of ours.

Those that deliver are in group_deliveries.py.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from raxlog import NoStream, StreamID
from raxlog.stream.node.decode import last_entry_id
from redis_groups import STREAMS, TwoWorlds, as_dict, id_reply
from stored_nodes import nodes_of

GROUPS = (b"billing", b"audit", b"\xff\x00g")
CONSUMERS = (b"al", b"bob", b"7", b"\x00\xfe")
POLICIES = ("keepref", "delref", "acked")


@dataclass(frozen=True)
class Profile:
    """How a run mixes its commands. ``weights`` are given where they differ from the usual."""

    weights: dict[str, float] = field(default_factory=dict)
    node_entries: int | None = 10  # None: nodes of our own size, and trims by whole nodes left out
    by_hand: bool = False  # counters are set by ENTRIESREAD, ENTRIESADDED, MAXDELETEDID, LASTID
    policies: bool = False  # needs Redis 8.2
    transactions: bool = False
    paused: bool = False


class GroupCommands(TwoWorlds):
    """Commands on streams, groups and consumers, drawn from a seed."""

    def __init__(self, client: Any, path: Path, seed: int, profile: Profile) -> None:
        super().__init__(client, path, profile.node_entries, profile.transactions, profile.paused)
        self.rng = random.Random(seed)
        self.profile = profile
        self.last = dict.fromkeys(STREAMS, (0, 0))
        self.used: dict[bytes, list[tuple[int, int]]] = {name: [] for name in STREAMS}

    # -- what is drawn ------------------------------------------------------------------

    def name(self) -> bytes:
        return self.rng.choices(STREAMS, (6, 2, 1))[0]

    def where(self) -> tuple[bytes, bytes, bytes]:
        """A stream, a group and a consumer, mostly such as there are."""
        name = self.name()
        there = self.groups_of(name)
        group = self.rng.choice(there) if there and self.rng.random() < 0.97 else self.rng.choice(GROUPS)
        return name, group, self.rng.choice(CONSUMERS)

    def groups_of(self, name: bytes) -> list[bytes]:
        if not self.client.execute_command("EXISTS", name):
            return []
        return [as_dict(flat)[b"name"] for flat in self.client.execute_command("XINFO", "GROUPS", name)]

    def full(self, name: bytes) -> dict[bytes, Any]:
        return as_dict(self.client.execute_command("XINFO", "STREAM", name, "FULL", "COUNT", 1))

    def text(self, sid: tuple[int, int]) -> bytes:
        ms, seq = sid
        return b"%d" % ms if seq == 0 and self.rng.random() < 0.5 else b"%d-%d" % sid

    def any_id(self, name: bytes) -> tuple[int, int]:
        kind = self.rng.random()
        if self.used[name] and kind < 0.9:
            return self.rng.choice(self.used[name][-60:])
        ms, seq = self.last[name]
        return self.rng.choice(((0, 0), (ms, seq + 1), (ms + 1, 0), (self.rng.randrange(ms + 1), 1), (ms + 5, 0)))

    def pending_ids(self, name: bytes, group: bytes) -> list[bytes]:
        """Some IDs, mostly pending ones, ready to be sent."""
        rng = self.rng
        found = []
        if group in self.groups_of(name):
            found = [row[0] for row in self.client.execute_command("XPENDING", name, group, "-", "+", 200)]
        size = rng.choice((1, 1, 2, 5, 15))
        if found and rng.random() < 0.85:
            at = rng.randrange(len(found))
            ids = found[at : at + size] if rng.random() < 0.5 else rng.choices(found, k=size)
        else:
            ids = []
        while not ids or rng.random() < 0.15:
            ids.append(self.text(self.any_id(name)))
        return ids

    def flawed(self, chance: float = 0.03) -> bool:
        return self.rng.random() < chance

    def wrong_id(self) -> bytes:
        return self.rng.choice((b"x", b"1-", b"$", b"(1-1", b"", b"18446744073709551616-0", b"1-*"))

    # -- the stream ---------------------------------------------------------------------

    def append(self) -> None:
        rng, name = self.rng, self.name()
        words: list[Any] = ["XADD", name]
        options: dict[str, Any] = {}
        if rng.random() < 0.05:
            self.trim_options(name, words, options)
        for _ in range(rng.choice((1, 1, 3, 8))):
            ms, seq = self.last[name]
            sid = rng.choice(((ms, seq + 1), (ms + 1, 0), (ms + rng.randrange(1, 4), rng.randrange(3))))
            if self.flawed(0.02):
                sid = max((0, 1), (ms, seq - rng.randrange(3) if seq > 2 else seq))
            pairs = [(b"n", b"%d" % len(self.used[name])), (b"f%d" % rng.randrange(3), b"v" * rng.randrange(30))]
            flat = [part for pair in pairs for part in pair]
            text = b"%d-%d" % sid

            def call(pairs: Any = pairs, text: bytes = text) -> bytes | None:
                return id_reply(self.stream(name).append(pairs, text, **options))

            reply = self.both([*words, text, *flat], call)
            if isinstance(reply, bytes):
                self.last[name] = sid
                self.used[name].append(sid)

    def delete(self) -> None:
        name = self.name()
        ids = [self.text(self.any_id(name)) for _ in range(self.rng.choice((1, 1, 2, 6)))]
        if self.flawed() and self.client.execute_command("EXISTS", name):
            ids.append(self.wrong_id())
        self.both(["XDEL", name, *ids], lambda: self.stream(name).delete(*ids))

    def trim_options(self, name: bytes, words: list[Any], options: dict[str, Any]) -> None:
        rng = self.rng
        if rng.random() < 0.5:
            length = self.client.execute_command("XLEN", name)
            options["maxlen"] = max(0, length - rng.randrange(12))
            strategy, border = b"MAXLEN", options["maxlen"]
        else:
            at = self.used[name][-rng.randrange(20, 50) :] or [(0, 0)]
            options["minid"] = border = self.text(at[0])
            strategy = b"MINID"
        refs = rng.choice(POLICIES) if self.profile.policies and rng.random() < 0.8 else ""
        # With a policy 8.2.3 evicts nothing if it is told to be approximate; we evict whole nodes.
        approximate = self.profile.node_entries is not None and refs in {"", "keepref"} and rng.random() < 0.4
        words += [strategy, b"~" if approximate else b"=", border]
        if approximate:
            options["approximate"] = True
        if refs:
            options["refs"] = refs
            words.append(refs)
            if refs == "acked":
                self.rules.stream_set_by_hand(name)

    def trim(self) -> None:
        name = self.name()
        words: list[Any] = ["XTRIM", name]
        options: dict[str, Any] = {}
        self.trim_options(name, words, options)
        self.both(words, lambda: self.stream(name).trim(**options))

    def set_stream_id(self) -> None:
        rng, name = self.rng, self.name()
        self.commit()
        if not self.client.execute_command("EXISTS", name):
            self.both(["XSETID", name, b"5-0"], lambda: self.stream(name).set_id(b"5-0"))
            return
        last = self.last[name]
        ms, seq = last
        wanted = rng.choice((last, last, (ms, seq + 3), (ms + 2, 0), self.lowest_last_id(name)))
        words: list[Any] = ["XSETID", name, b"%d-%d" % wanted]
        options: dict[str, Any] = {}
        if self.profile.by_hand and rng.random() < 0.7:
            options["entries_added"] = self.client.execute_command("XLEN", name) + rng.randrange(4)
            words += ["ENTRIESADDED", options["entries_added"]]
        if self.profile.by_hand and rng.random() < 0.4:
            options["max_deleted_id"] = text = b"%d-%d" % min(self.any_id(name), wanted)
            words += ["MAXDELETEDID", text]
        if options or wanted < last:
            self.rules.stream_set_by_hand(name)
        self.both(words, lambda: self.ok(self.stream(name).set_id(words[2], **options)))
        self.last[name] = wanted

    def lowest_last_id(self, name: bytes) -> tuple[int, int]:
        """What XSETID may go back to: below it Redis would lose the order of its entries."""
        info = self.stream(name).info()
        nodes = nodes_of(self.store, name)[-1:]
        buried = [last_entry_id(node.listpack, *StreamID.from_bytes(node.key)) for node in nodes]
        return max([(0, 1), tuple(info.max_deleted_entry_id), *buried])  # type: ignore[type-var]

    def delete_stream(self) -> None:
        self.commit()
        name = self.name()
        self.both(["DEL", name], lambda: int(self.store.delete_stream(name)))
        self.rules.stream_deleted(name)
        self.last[name] = (0, 0)
        self.used[name].clear()

    def delete_ex(self) -> None:
        rng, name = self.rng, self.name()
        refs = rng.choice(POLICIES)
        ids = [b"%d-%d" % self.any_id(name) for _ in range(rng.choice((1, 2, 6)))]
        if self.flawed() and self.client.execute_command("EXISTS", name):
            ids.append(self.wrong_id())
        words = ["XDELEX", name, *([] if refs == "keepref" and rng.random() < 0.5 else [refs]), "IDS", len(ids), *ids]
        self.both(words, lambda: list(map(int, self.stream(name).delete_ex(*ids, refs=refs))))

    # -- groups and consumers -----------------------------------------------------------

    def position(self, name: bytes, words: list[Any], options: dict[str, Any], flawed: bool) -> bytes:
        """Where a group stands: $, an ID, and by hand how many it has read."""
        rng = self.rng
        ms, seq = self.last[name]
        ids = (b"$", b"0", self.text(self.any_id(name)), self.text(self.any_id(name)), b"%d-%d" % (ms, seq + 2))
        text = self.wrong_id() if flawed else rng.choice(ids)
        if text == b"$" and rng.random() < 0.1:
            text = b"%d-%d" % self.last[name]
        words.append(text)
        if self.profile.by_hand and rng.random() < 0.6:
            read = rng.choice((0, 1, 5, 10_000, -1, -2 if not flawed and self.flawed(0.1) else 3))
            if self.version < (8, 0) and self.client.execute_command("EXISTS", name):  # 7.0 takes any number
                read = min(read, self.full(name)[b"entries-added"])
            options["entries_read"] = read
        return text

    def create_group(self) -> None:
        rng, name = self.rng, self.name()
        group = rng.choice(GROUPS)
        words: list[Any] = ["XGROUP", "CREATE", name, group]
        options: dict[str, Any] = {"create_stream": False}
        there = bool(self.client.execute_command("EXISTS", name))
        start = self.position(name, words, options, there and self.flawed())
        if rng.random() < (0.3 if there else 0.8):
            words.append("MKSTREAM")
            options["create_stream"] = True
        if "entries_read" in options:
            if not there and self.version < (8, 0):
                options["entries_read"] = min(options["entries_read"], 0)
            words += ["ENTRIESREAD", options["entries_read"]]
        had = group in self.groups_of(name)
        reply = self.both(
            words, lambda: self.ok(self.stream(name).create_group(group, start, **options)), no_key=NoStream
        )
        if reply == b"OK":
            assert not had
            self.rules.group_set(name, group, options.get("entries_read", -1) >= 0)

    def set_group_id(self) -> None:
        name, group, _ = self.where()
        words: list[Any] = ["XGROUP", "SETID", name, group]
        options: dict[str, Any] = {}
        text = self.position(name, words, options, self.flawed() and group in self.groups_of(name))
        if self.rng.random() < 0.05 and group in self.groups_of(name):
            words[-1] = text = self.rng.choice((b"-", b"+"))
        if "entries_read" in options:
            words += ["ENTRIESREAD", options["entries_read"]]
        reply = self.both(words, lambda: self.ok(self.group(name, group).set_id(text, **options)))
        if reply == b"OK":
            self.rules.group_set(name, group, options.get("entries_read", -1) >= 0)

    def ok(self, _: object) -> bytes:
        return b"OK"

    def destroy_group(self) -> None:
        name, group, _ = self.where()
        if self.client.execute_command("EXISTS", name):  # else Redis says so, and we that there was none
            self.both(["XGROUP", "DESTROY", name, group], lambda: int(self.group(name, group).destroy()))
            self.rules.group_set(name, group, False)
            self.forget_least_delivered(name)

    def forget_least_delivered(self, name: bytes) -> None:
        """Have Redis 8.2 look anew for the least last-delivered ID of the groups.

        It keeps that of a destroyed group, and goes on to call entries behind it referenced.
        Setting a group that has the least one makes it forget; nothing else changes.
        """
        if self.version >= (8, 2):
            for words in (("CREATE", name, "a passing one", "0"), ("SETID", name, "a passing one", "$"),
                          ("DESTROY", name, "a passing one")):  # fmt: skip
                self.client.execute_command("XGROUP", *words)

    def create_consumer(self) -> None:
        name, group, consumer = self.where()
        self.both(["XGROUP", "CREATECONSUMER", name, group, consumer],
                  lambda: int(self.group(name, group).create_consumer(consumer)))  # fmt: skip

    def delete_consumer(self) -> None:
        name, group, consumer = self.where()
        self.both(["XGROUP", "DELCONSUMER", name, group, consumer],
                  lambda: self.group(name, group).delete_consumer(consumer, pending="drop"))  # fmt: skip

    def describe(self) -> None:
        """XINFO GROUPS and XINFO CONSUMERS by what they show in public."""
        name, group, _ = self.where()

        def groups() -> list[Any]:
            keys = (b"name", b"consumers", b"pending", b"last-delivered-id")
            rows = [(info.name, info.consumers, info.pending, id_reply(info.last_delivered_id))
                    for info in self.stream(name).groups()]
            return [[part for pair in zip(keys, row, strict=True) for part in pair] for row in rows]

        if not self.client.execute_command("EXISTS", name):
            self.both(["XINFO", "GROUPS", name], groups)
            return
        assert groups() == [flat[:8] for flat in self.client.execute_command("XINFO", "GROUPS", name)]
        if group not in self.groups_of(name):
            self.both(["XINFO", "CONSUMERS", name, group], lambda: self.group(name, group).consumers())
            return
        listed = [as_dict(flat) for flat in self.client.execute_command("XINFO", "CONSUMERS", name, group)]
        ours = self.group(name, group).consumers()
        assert [(c.name, c.pending) for c in ours] == [(c[b"name"], c[b"pending"]) for c in listed]
        if self.version >= (7, 2):
            for one, other in zip(ours, listed, strict=True):
                now = time.time()
                assert self.near(other[b"idle"], (now - one.seen.timestamp()) * 1000)
                assert (one.active is None) == (other[b"inactive"] < 0)
                inactive = -1 if one.active is None else (now - one.active.timestamp()) * 1000
                assert self.near(other[b"inactive"], inactive)
