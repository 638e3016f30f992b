"""The same random commands to a live redis-server and to a stream of ours: nothing may differ.

Compared are every reply (or what the error means), ranges in both directions, the figures of
XINFO STREAM and, node for node, the bytes of the listpacks. Every test prints its seed when it
fails; RAXLOG_SEED=n replays that one.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import raxlog
import redis_dump
from raxlog import (
    IDTooSmall,
    StreamID,
)
from raxlog.stream.node.decode import last_entry_id
from redis_errors import STREAM_ERRORS, exception_for
from stored_nodes import check_stream, nodes_of

MAX64 = (1 << 64) - 1

GOLDEN_KEY = bytes.fromhex("00000000000003e8 0000000000000005")
GOLDEN_LISTPACK = bytes.fromhex(
    "4a000000 1900 0201 0101 0201 846e616d65 05 83616765 04 0001"
    "0201 0001 0001 83626f62 04 0701 0501"
    "0301 0301 dffb02 82616c 03 dfff02 0501"
    "0001 0301 dffc02 0101 8178 02 c12c02 0601 ff"
)
GOLDEN_PAYLOAD = (
    bytes.fromhex("15 01 10") + GOLDEN_KEY + bytes.fromhex("404a") + GOLDEN_LISTPACK
    + bytes.fromhex("02 43eb01 43e805 43eb00 03 00 0c00") + bytes(8)
)  # fmt: skip


def test_the_golden_payload_is_read_back_to_its_node_and_counters() -> None:
    dumped = redis_dump.parse(GOLDEN_PAYLOAD)
    assert dumped.nodes == [(GOLDEN_KEY, GOLDEN_LISTPACK)]
    assert dumped.length == 2
    assert (dumped.last, dumped.first, dumped.max_deleted) == ((1003, 1), (1000, 5), (1003, 0))
    assert dumped.entries_added == 3


@pytest.mark.parametrize("size", [1, 30, 80, 100])
def test_a_payload_that_is_cut_off_is_refused(size: int) -> None:
    with pytest.raises(ValueError, match=r"ends at|is none of"):
        redis_dump.parse(GOLDEN_PAYLOAD[:size] + bytes(redis_dump.TRAILER))


def test_integers_stand_for_short_strings_in_a_payload() -> None:
    body = bytes.fromhex("0f 01 c0 ff c2 00000080 03 0102")
    dumped = redis_dump.parse(body + bytes(redis_dump.TRAILER))
    assert dumped.nodes == [(b"-1", b"-2147483648")]
    assert (dumped.length, dumped.last, dumped.first) == (3, (1, 2), None)


def test_a_stream_of_ours_has_the_bytes_of_the_golden_vector(store: raxlog.Store) -> None:
    people = store.stream("k", node_max_bytes=4096, node_max_entries=100)
    people.append([("name", "bob"), ("age", 7)], "1000-5")
    people.append([("name", "al"), ("age", -1)], "1003-0")
    people.append([("x", 300)], "1003-1")
    people.delete("1003-0")
    assert [node[:2] for node in nodes_of(store, b"k")] == [(GOLDEN_KEY, GOLDEN_LISTPACK)]


# ------------------------------------------------------------------ what is thrown at both


def integers() -> list[bytes]:
    borders = [0, 63, 64, 127, 128, 4095, 4096, 8191, 8192]
    borders += [(1 << n) + d for n in (15, 23, 31, 63) for d in (-1, 0, 1)]
    signed = [sign * number + d for number in borders for sign in (1, -1) for d in (-1, 0, 1)]
    return [str(number).encode() for number in sorted(set(signed))]


INTEGERS = integers()
NEARLY_INTEGERS = [b"-0", b"+1", b"01", b"1.0", b" 1", b"1 ", b"-", b"", b"00", b"0x1", b"1e3", b"-01", b"\x00"]
LENGTHS = [0, 1, 62, 63, 64, 65, 126, 127, 128, 129, 500, 4093, 4094, 4095, 4096, 4097]
LONG_LENGTHS = [16376, 16377, 16378, 16379, 16382, 16383, 16384, 60_000, 100_000]
NAMES = [b"name", b"age", b"", b"7", b"300", b"-5000", b"\xff\x00\xfe", b"f" * 63, b"f" * 64, b"f" * 200]


@dataclass(frozen=True)
class Profile:
    """How a run mixes its commands."""

    appends: int = 60
    deletes: int = 15
    trims: int = 8
    set_ids: int = 4
    limits: tuple[int, int] = (4096, 100)
    changes_limits: bool = False
    long_values: float = 0.01
    start_ms: int = 0
    step: int = 3


PROFILES = {
    "mixed": Profile(),
    "appending": Profile(appends=200, deletes=0, trims=0, set_ids=1, long_values=0.03),
    "deleting": Profile(appends=40, deletes=45, trims=2, set_ids=2),
    "trimming": Profile(appends=60, deletes=8, trims=35, set_ids=1),
    "three a node": Profile(deletes=25, limits=(4096, 3)),
    "tiny nodes": Profile(deletes=20, trims=20, limits=(60, 0)),
    "limits changing": Profile(deletes=20, trims=15, changes_limits=True),
    "far future": Profile(deletes=15, start_ms=1 << 62, step=1 << 40),
    "the last IDs": Profile(appends=30, deletes=20, start_ms=MAX64 - 40, step=1),
    "counters set": Profile(deletes=20, trims=15, set_ids=25, limits=(4096, 5)),
}
OPERATIONS = 300
CHECK_EVERY = 20


class Commands:
    """Random commands, each as Redis' arguments and as a call of ours."""

    def __init__(self, rng: random.Random, profile: Profile) -> None:
        self.rng = rng
        self.profile = profile
        self.ms = profile.start_ms
        self.seq = 0
        self.used: list[tuple[int, int]] = []
        self.fields = [b"name", b"age"]

    def value(self) -> bytes:
        rng = self.rng
        kind = rng.random()
        if kind < 0.35:
            return rng.choice(INTEGERS)
        if kind < 0.45:
            return rng.choice(NEARLY_INTEGERS)
        if kind < 0.85:
            return rng.randbytes(rng.randrange(40))
        if rng.random() < self.profile.long_values:
            return rng.choice((b"x", b"1", b"\xff")) * rng.choice(LONG_LENGTHS)
        size = rng.choice(LENGTHS) if rng.random() < 0.5 else rng.randrange(300)
        return rng.choice((b"x", b"1", b"\xff")) * size

    def pairs(self) -> list[tuple[bytes, bytes]]:
        rng = self.rng
        if rng.random() < 0.25:
            self.fields = [
                rng.choice(NAMES) if rng.random() < 0.8 else self.value()[:200]
                for _ in range(rng.choice((1, 1, 2, 2, 3, 5, 9, 130)))
            ]
        fields = self.fields
        if len(fields) > 1 and rng.random() < 0.1:  # the master's, in another order or number
            fields = fields[::-1] if rng.random() < 0.5 else fields[:-1]
        return [(name, self.value() if len(fields) < 100 else b"%d" % rng.randrange(200)) for name in fields]

    def any_id(self) -> tuple[int, int]:
        rng = self.rng
        if self.used and rng.random() < 0.8:
            ms, seq = rng.choice(self.used)
            return ms, min(MAX64, max(0, seq + rng.choice((0, 0, 0, 0, 1, -1))))
        return min(MAX64, self.profile.start_ms + rng.randrange(1 + self.profile.step * 400)), rng.randrange(4)

    def old_id(self) -> tuple[int, int]:
        """One of the older IDs, good to trim by."""
        if not self.used:
            return self.any_id()
        return self.used[int(len(self.used) * self.rng.random() ** 0.3 * 0.999)]

    def wrong_id(self) -> bytes:
        return self.rng.choice(
            (b"0-0", b"0", b"1-", b"-1", b"5-*x", b"0x1-0", b"*-1", b"", b"-", b"+", b"$", b"18446744073709551616")
        )

    def new_id(self) -> bytes:
        """What XADD is asked for: mostly greater than the last one, in every form."""
        rng = self.rng
        kind = rng.random()
        if kind < 0.04:
            ms, seq = self.any_id()
            return b"%d-%d" % (ms, seq or 1)
        if kind < 0.08 and self.profile.start_ms >= 1 << 62:
            return b"*"  # the clock is behind, so both go on from the last ID
        if kind < 0.5:
            self.seq += rng.choice((1, 1, 1, 2, 1 << 20, 1 << 40))
        else:
            self.ms = min(MAX64, self.ms + rng.randrange(self.profile.step + 1))
            self.seq = rng.choice((1, 1, 1, 5, 1 << 33, 1 << 63)) if rng.random() < 0.3 else self.seq + 1
        if rng.random() < 0.01:
            self.seq = MAX64
        self.seq = min(self.seq, MAX64)
        if kind < 0.25:
            return b"%d-*" % self.ms
        if kind > 0.9:
            self.ms = min(MAX64, self.ms + 1)
            self.seq = 0
            return b"%d" % self.ms
        return b"%d-%d" % (self.ms, self.seq)

    def strategy(self, length: int) -> tuple[list[Any], dict[str, Any]]:
        """MAXLEN or MINID for a stream of that length, exact or not, with a limit or without."""
        rng = self.rng
        words: list[Any] = []
        options: dict[str, Any] = {}
        approximate = rng.random() < 0.5
        if approximate:
            words.append(b"~")
            options["approximate"] = True
        elif rng.random() < 0.5:
            words.append(b"=")
        if rng.random() < 0.5:
            words.insert(0, b"MAXLEN")
            step = length if rng.random() < 0.1 else max(length // 6, 5)
            most = max(0, length - rng.randrange(1 + step))
            words.append(most)
            options["maxlen"] = most
        else:
            words.insert(0, b"MINID")
            ms, seq = self.old_id()
            text = rng.choice((b"%d-%d" % (ms, seq), b"%d" % ms))
            words.append(text)
            options["minid"] = text
        if approximate and rng.random() < 0.4:
            limit = rng.choice((0, 1, 3, 10, 100, 101, 250, 1000))
            words += [b"LIMIT", limit]
            options["limit"] = limit
        return words, options

    def wrong_strategy(self) -> tuple[list[Any], dict[str, Any]]:
        wrong: list[tuple[list[Any], dict[str, Any]]] = [
            ([b"MAXLEN", 3, b"MINID", b"3-0"], {"maxlen": 3, "minid": "3-0"}),
            ([b"MAXLEN", b"~", -1], {"maxlen": -1, "approximate": True}),
            ([b"MAXLEN", 3, b"LIMIT", 10], {"maxlen": 3, "limit": 10}),
            ([b"MAXLEN", b"~", 3, b"LIMIT", -1], {"maxlen": 3, "approximate": True, "limit": -1}),
            ([b"MINID", b"=", b"3", b"LIMIT", 0], {"minid": "3", "limit": 0}),
            ([b"MINID", b"-"], {"minid": "-"}),
            ([b"MINID", b"~", b"+"], {"minid": "+", "approximate": True}),
            ([b"MINID", b"(1-1"], {"minid": "(1-1"}),
        ]
        return self.rng.choice(wrong)


def as_replied(entry: raxlog.Entry) -> list[Any]:
    """An entry as it stands in a reply."""
    return [str(entry.id).encode(), [part for pair in entry.pairs for part in pair]]


class Duel:
    """One stream in both worlds, and the comparison of everything that can be seen of it."""

    def __init__(self, client: Any, store: raxlog.Store, seed: int, profile: Profile) -> None:
        self.client = client
        self.store = store
        self.name = b"duel"
        self.rng = random.Random(seed)
        self.profile = profile
        self.commands = Commands(self.rng, profile)
        self.limits = profile.limits
        self._configure_redis()
        self.stream = store.stream(
            self.name, node_max_bytes=self.limits[0], node_max_entries=self.limits[1]
        )

    def _configure_redis(self) -> None:
        self.client.config_set("stream-node-max-bytes", self.limits[0])
        self.client.config_set("stream-node-max-entries", self.limits[1])

    def run(self, operations: int) -> None:
        profile = self.profile
        kinds: list[tuple[Callable[[], None], int]] = [
            (self.append, profile.appends), (self.delete, profile.deletes), (self.trim, profile.trims),
            (self.set_id, profile.set_ids), (self.change_limits, 3 if profile.changes_limits else 0),
        ]  # fmt: skip
        for done in range(1, operations + 1):
            self.rng.choices([kind for kind, _ in kinds], [weight for _, weight in kinds])[0]()
            assert len(self.stream) == self.client.xlen(self.name)
            if done % CHECK_EVERY == 0 or done == operations:
                self.compare()
        check_stream(self.store, self.name)

    # -------------------------------------------------------------- one command

    def both(self, words: Iterable[Any], ours: Callable[[], Any]) -> Any:
        """Give one command to both; the common reply. Errors must mean the same."""
        import redis  # noqa: PLC0415 - only where the server is

        words = list(words)
        try:
            theirs: Any = self.client.execute_command(*words)
        except redis.ResponseError as error:
            self.refused(words, str(error), ours)
            return None
        reply = ours()
        if isinstance(reply, StreamID):
            reply = str(reply).encode()
        assert reply == theirs, f"{words}: Redis replies {theirs!r}, we {reply!r}"
        return theirs

    def refused(self, words: list[Any], said: str, ours: Callable[[], Any]) -> None:
        """We must refuse what Redis has refused, for the same reason."""
        expected = exception_for(said, STREAM_ERRORS)
        with pytest.raises(raxlog.RaxlogError) as caught:
            ours()
        assert type(caught.value) is expected, f"{words}: Redis says {said}, we {caught.value!r}"

    def append(self) -> None:
        rng = self.rng
        commands = self.commands
        # One flaw at a time: which of two is told first is nobody's promise.
        flaw = rng.choice(("pairs", "id", "strategy")) if rng.random() < 0.06 else ""
        words: list[Any] = ["XADD", self.name]
        options: dict[str, Any] = {}
        if rng.random() < 0.1:
            words.append(b"NOMKSTREAM")
            options["create"] = False
        if flaw == "strategy" or rng.random() < (0.02 if self.profile.trims == 0 else 0.1):
            length = self.client.xlen(self.name) + 1
            strategy, more = commands.wrong_strategy() if flaw == "strategy" else commands.strategy(length)
            words += strategy
            options.update(more)
        new = commands.wrong_id() if flaw == "id" else commands.new_id()
        words.append(new)
        pairs = [] if flaw == "pairs" else commands.pairs()
        for pair in pairs:
            words += pair
        sid = self.both(words, lambda: self.stream.append(pairs, new, **options))
        if sid is not None:
            ms, _, seq = sid.partition(b"-")
            commands.ms, commands.seq = int(ms), int(seq)
            commands.used.append((int(ms), int(seq)))

    def delete(self) -> None:
        rng = self.rng
        ids = [b"%d-%d" % self.commands.any_id() for _ in range(rng.choice((1, 1, 2, 5, 20)))]
        if self.commands.used and rng.random() < 0.1:  # a whole run of neighbours
            at = rng.randrange(len(self.commands.used))
            ids = [b"%d-%d" % used for used in self.commands.used[at : at + 40]]
        if rng.random() < 0.05 and self.client.exists(self.name):  # without a key Redis looks at no ID
            ids.insert(rng.randrange(len(ids) + 1), rng.choice((b"-", b"+", b"x", b"$", b"1-*")))
        self.both(["XDEL", self.name, *ids], lambda: self.stream.delete(*ids))

    def trim(self) -> None:
        wrong = self.rng.random() < 0.06
        words, options = (
            self.commands.wrong_strategy() if wrong else self.commands.strategy(self.client.xlen(self.name))
        )
        self.both(["XTRIM", self.name, *words], lambda: self.stream.trim(**options))

    def set_id(self) -> None:
        rng = self.rng
        last = self.commands.any_id() if rng.random() < 0.6 else (self.commands.ms, self.commands.seq)
        words: list[Any] = ["XSETID", self.name, b"%d-%d" % last]
        options: dict[str, Any] = {}
        flaw = rng.choice(("id", "added", "deleted")) if rng.random() < 0.1 else ""
        if flaw == "added" or rng.random() < 0.4:
            added = -1 if flaw == "added" else rng.choice((0, rng.randrange(50), 10_000))
            words += [b"ENTRIESADDED", added]
            options["entries_added"] = added
        if flaw == "deleted" or rng.random() < 0.4:
            deleted = min(self.commands.any_id(), last) if rng.random() < 0.9 else (0, 0)
            if flaw == "deleted":
                last, deleted = (1, 0), (1, 1)
                words[2] = b"1-0"
            words += [b"MAXDELETEDID", b"%d-%d" % deleted]
            options["max_deleted_id"] = b"%d-%d" % deleted
        if flaw == "id":
            words[2] = rng.choice((b"-", b"+", b"$", b"1-*"))
        text = words[2]
        call = partial(self.stream.set_id, text, **options)
        if not flaw and self.stream.exists() and last < self.greatest_known():
            with pytest.raises(IDTooSmall):
                call()
            return
        self.both(words, lambda: b"OK" if call() is None else b"")

    def greatest_known(self) -> tuple[int, int]:
        """What XSETID must not go below with us: Redis lets it, and then loses its order.

        Redis 7.0 does not look at the greatest deleted ID at all. From 7.2 on it does, but that ID
        may itself have been set lower while deleted entries with greater ones lie in the last node.
        """
        greatest = tuple(self.stream.info().max_deleted_entry_id)
        last = nodes_of(self.store, self.name)[-1:]
        return max([greatest, *(last_entry_id(node.listpack, *StreamID.from_bytes(node.key)) for node in last)])

    def change_limits(self) -> None:
        if self.stream.exists():
            self.limits = self.rng.choice(((4096, 100), (4096, 3), (300, 0), (0, 20), (2000, 1), (0, 0)))
            self._configure_redis()
            self.stream.configure(node_max_bytes=self.limits[0], node_max_entries=self.limits[1])

    # -------------------------------------------------------------- everything that can be seen

    def compare(self) -> None:
        if not self.client.exists(self.name):
            assert not self.stream.exists()
            return
        for reverse in (False, True):
            self.compare_range(b"-", b"+", None, reverse)
            for _ in range(4):
                self.compare_range(self.edge(), self.edge(), self.rng.choice((None, None, 1, 3, 120)), reverse)
        self.compare_info()
        dumped = redis_dump.parse(self.client.dump(self.name))
        assert [key for key, _ in dumped.nodes] == [node.key for node in nodes_of(self.store, self.name)]
        for theirs, ours in zip(dumped.nodes, nodes_of(self.store, self.name), strict=True):
            assert ours.listpack == theirs[1], f"node {ours.key.hex()}"

    def edge(self) -> bytes:
        ms, seq = self.commands.any_id()
        forms = (b"%d-%d" % (ms, seq), b"(%d-%d" % (ms, seq), b"%d" % ms, b"(%d" % ms, b"-", b"+")
        if self.rng.random() < 0.03:
            return self.rng.choice((b"(-", b"x", b"(0-0", b"(18446744073709551615-18446744073709551615", b"$"))
        return self.rng.choice(forms)

    def compare_range(self, start: bytes, end: bytes, count: int | None, reverse: bool) -> None:
        words = ["XREVRANGE", self.name, end, start] if reverse else ["XRANGE", self.name, start, end]
        if count is not None:
            words += ["COUNT", str(count)]

        self.both(words, lambda: list(map(as_replied, self.stream.range(start, end, count, reverse=reverse))))

    def compare_info(self) -> None:
        flat = self.client.execute_command("XINFO", "STREAM", self.name)
        theirs = dict(zip(flat[::2], flat[1::2], strict=True))
        info = self.stream.info()
        mine: dict[bytes, Any] = {
            b"length": info.length,
            b"radix-tree-keys": info.radix_tree_keys,
            b"radix-tree-nodes": self.stream.full_info().stream.radix_tree_nodes,
            b"last-generated-id": str(info.last_generated_id).encode(),
            b"max-deleted-entry-id": str(info.max_deleted_entry_id).encode(),
            b"entries-added": info.entries_added,
            b"recorded-first-entry-id": str(info.recorded_first_entry_id).encode(),
        }
        assert mine == {key: theirs[key] for key in mine}
        for key, entry in ((b"first-entry", info.first_entry), (b"last-entry", info.last_entry)):
            assert (None if entry is None else as_replied(entry)) == theirs[key]


@pytest.fixture
def plain_redis(real_redis: Any, redis_address: tuple[str, int]) -> Iterator[Any]:
    """The server through a client that hands on replies as they come."""
    import redis  # noqa: PLC0415 - only where the server is

    client = redis.Redis(*redis_address, protocol=2)
    client.response_callbacks.clear()
    yield client
    client.config_set("stream-node-max-bytes", 4096)
    client.config_set("stream-node-max-entries", 100)
    client.close()


def seeds() -> list[int]:
    asked = os.environ.get("RAXLOG_SEED")
    return [int(asked)] if asked else [1]


@pytest.mark.redis
@pytest.mark.parametrize("seed", seeds())
@pytest.mark.parametrize("profile", PROFILES)
def test_a_random_history_leaves_what_it_leaves_in_redis(
    plain_redis: Any, store: raxlog.Store, profile: str, seed: int
) -> None:
    print(f"replay with RAXLOG_SEED={seed}")
    Duel(plain_redis, store, seed, PROFILES[profile]).run(OPERATIONS)
