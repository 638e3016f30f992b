"""Streams between Redis and a store by DUMP and RESTORE: entries, nodes, groups, what is pending, times, counters."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import raxlog
import redis
from raxlog import DumpChecksum, InvalidArgument, InvalidDump, NoStream, StreamExists
from raxlog.stream.dump import rdb
from raxlog.stream.dump.crc64 import crc64
from stored_nodes import check_stream, nodes_of

SEED = int(os.environ.get("RAXLOG_SEED", time.time_ns() % 1_000_000_007))
LONG = bool(os.environ.get("RAXLOG_LONG"))
FOOTER = 10
VERSIONS = {15: ("5.0", 9), 19: ("7.0", 10), 21: ("7.2", 11)}


@pytest.fixture(params=[pytest.param(name, marks=pytest.mark.redis) for name in ("redis on this machine", "redis 8.2")])
def server(request: pytest.FixtureRequest) -> Iterator[Any]:
    """A client of an empty server, which hands on replies as they come."""
    newer = request.param == "redis 8.2"
    address = request.getfixturevalue("newer_address" if newer else "redis_address")
    client: Any = redis.Redis(*address, protocol=2)
    client.response_callbacks.clear()
    client.flushall()
    client.config_set("rdbcompression", "no")
    client.config_set("stream-node-max-entries", "100")
    yield client
    client.config_set("rdbcompression", "yes" if newer else "no")  # as the other tests of this server find it
    client.config_set("stream-node-max-entries", "100")
    client.close()


def closed(body: bytes, version: int = 11) -> bytes:
    """A payload of these bytes, with its version and checksum."""
    body += version.to_bytes(2, "little")
    return body + crc64(body).to_bytes(8, "little")


def fill(client: Any, rng: random.Random, entries: int = 300) -> None:
    """A random stream "s" with tombstones, groups, consumers and what is pending."""
    client.config_set("stream-node-max-entries", rng.choice([3, 10, 100]))
    ms = 1
    ids = []
    for number in range(entries):
        ms += rng.choice([0, 1, 1, 70_000])
        sid = f"{ms}-{number}"
        ids.append(sid)
        fields: list[object] = []
        for name in rng.choice([["n"], ["n", "text"], ["5", "other", "n"]]):
            fields += [name, rng.choice([number, "x" * rng.randrange(100), -(1 << 40), "", "007", 1 << 62])]
        client.execute_command("XADD", "s", sid, *fields)
    for name in (b"g", b"12", b"a group with a long name" * 5, b"\xff\0"):
        client.execute_command("XGROUP", "CREATE", "s", name, rng.choice(["0", "$", ids[entries // 2]]))
        client.execute_command("XGROUP", "CREATECONSUMER", "s", name, "idle")
        for _ in range(6):
            consumer = rng.choice([b"", b"w", b"77", b"\0\xfe"])
            count = rng.randrange(1, 60)
            client.execute_command("XREADGROUP", "GROUP", name, consumer, "COUNT", count, "STREAMS", "s", ">")
        client.execute_command("XACK", "s", name, *rng.sample(ids, entries // 5))
        claimed = rng.sample(ids, 20)
        client.execute_command("XCLAIM", "s", name, "77", 0, *claimed, "TIME", 1_600_000_000_000, "RETRYCOUNT", 300)
        client.execute_command("XCLAIM", "s", name, "w", 0, *claimed[:5], "RETRYCOUNT", (1 << 63) - 1, "JUSTID")
    client.execute_command("XDEL", "s", *rng.sample(ids, rng.randrange(1, entries * 2 // 3)))
    if rng.random() < 0.5:
        client.execute_command("XTRIM", "s", "MAXLEN", entries // 4)


def plain(reply: Any) -> Any:
    """A flat reply of names and values as a dict, in all depths."""
    if isinstance(reply, list) and reply and isinstance(reply[0], bytes) and len(reply) % 2 == 0 and reply[0] in (
            b"length", b"name"):
        return {name.decode(): plain(value) for name, value in zip(reply[::2], reply[1::2], strict=True)}
    return [plain(one) for one in reply] if isinstance(reply, list) else reply


def ms_of(time: datetime | None) -> int:
    return -1 if time is None else round(time.timestamp() * 1000)


def full(store: raxlog.Store, name: str, active: bool) -> dict[str, Any]:
    """Our full information in the shape of XINFO STREAM FULL's."""
    info = store.stream(name).full_info(count=0)
    stream = info.stream

    def text(sid: object) -> bytes:
        return str(sid).encode()

    return {
        "length": stream.length, "radix-tree-keys": stream.radix_tree_keys, "radix-tree-nodes": stream.radix_tree_nodes,
        "last-generated-id": text(stream.last_generated_id), "max-deleted-entry-id": text(stream.max_deleted_entry_id),
        "entries-added": stream.entries_added, "recorded-first-entry-id": text(stream.recorded_first_entry_id),
        "entries": [[text(entry.id), [part for pair in entry.pairs for part in pair]] for entry in info.entries],
        "groups": [{
            "name": group.name, "last-delivered-id": text(group.last_delivered_id), "entries-read": group.entries_read,
            "lag": group.redis_lag, "pel-count": group.pending,
            "pending": [[text(one.id), one.consumer, ms_of(one.delivered), one.deliveries]
                        for one in group.pending_entries],
            "consumers": [{
                "name": one.name, "seen-time": ms_of(one.seen),
                **({"active-time": ms_of(one.active)} if active else {}),
                "pel-count": one.pending,
                "pending": [[text(row.id), ms_of(row.delivered), row.deliveries] for row in one.pending_entries],
            } for one in group.consumers],
        } for group in info.groups],
    }


@pytest.mark.parametrize("round_", range(3))
def test_a_stream_of_redis_is_the_same_here_and_there_again(server: Any, store: raxlog.Store, round_: int) -> None:
    print("RAXLOG_SEED =", SEED)
    fill(server, random.Random(SEED + round_))
    theirs, payload = plain(server.execute_command("XINFO", "STREAM", "s", "FULL", "COUNT", 0)), server.dump("s")
    store.restore_stream("s", payload)
    newer = payload[0] == 21
    ours = full(store, "s", newer)
    if not newer:  # Redis 7.0 counts a lag of its own
        for group in (*theirs["groups"], *ours["groups"]):
            del group["lag"]
    assert ours == theirs
    check_stream(store, b"s")

    again = store.stream("s").dump(VERSIONS[payload[0]][0])
    assert again[:-FOOTER] == payload[:-FOOTER]
    server.execute_command("RESTORE", "again", 0, again)
    assert server.dump("again") == payload
    server.config_set("rdbcompression", "yes")  # LZF
    store.restore_stream("packed", server.dump("s"))
    assert store.stream("packed").dump() == store.stream("s").dump()
    assert raxlog.check(store.path).ok


def test_what_was_made_here_redis_takes_with_all_versions(server: Any, store: raxlog.Store) -> None:
    rng = random.Random(SEED)
    stream = store.stream("s")
    stream.extend([{"n": n, "text": "x" * rng.randrange(50)} for n in range(2000)])
    ids = [entry.id for entry in stream]
    stream.create_group("g", "0").read("w", count=500)
    stream.create_group("late", "$")
    stream.delete(*rng.sample(ids, 1200))
    stream.append({"n": "in the tail"})
    for kind, (version, number) in VERSIONS.items():
        if kind == 21 and server.execute_command("INFO", "server").find(b"redis_version:7.0") >= 0:
            continue
        payload = stream.dump(version)
        assert (payload[0], int.from_bytes(payload[-FOOTER:-8], "little")) == (kind, number)
        server.execute_command("RESTORE", "s", 0, payload, "REPLACE")
        theirs = server.execute_command("XRANGE", "s", "-", "+")
        assert theirs == [[str(one.id).encode(), [part for pair in one.pairs for part in pair]] for one in stream]
        pending = server.execute_command("XPENDING", "s", "g", "-", "+", 1000)
        assert [row[0].decode() for row in pending] == [str(row.id) for row in stream.group("g").pending_entries("-")]
        store.restore_stream(f"from {kind}", server.dump("s"))
        copy = store.stream(f"from {kind}")
        assert list(copy) == list(stream)
        assert [node[:2] for node in nodes_of(store, copy.name)] == [node[:2] for node in nodes_of(store, b"s")]
        if kind > 15:
            assert copy.dump("7.0") == stream.dump("7.0")
        copy.append({"n": "more"})
        copy.group("g").read("w")
        assert copy.group("g").lag == 0
    assert raxlog.check(store.path).ok


def test_an_empty_stream_and_the_settings_of_the_store(server: Any, path: Path) -> None:
    server.execute_command("XGROUP", "CREATE", "s", "g", "$", "MKSTREAM")
    with raxlog.open(path, compression="zstd", encoding=None) as store:
        store.restore_stream("s", server.dump("s"))
        assert len(store.stream("s")) == 0
        assert store.stream("s").append({"n": 1}, "5-1") == (5, 1)
        for number in range(300):
            server.execute_command("XADD", "t", f"{number + 1}-0", "n", "text" * 20)
        store.restore_stream("t", server.dump("t"))
        assert {node.head.codec for node in nodes_of(store, b"t")} == {0, 1}  # all but the tail are packed
        server.execute_command("RESTORE", "u", 0, store.stream("t").dump("7.0"))
        assert server.dump("u") == server.dump("t")


def test_remembered_appends_and_released_entries_of_newer_payloads_are_kept(store: raxlog.Store) -> None:
    stream = store.stream("s")
    now = time.time_ns() // 1_000_000
    sids = stream.extend([{"n": n} for n in range(3)], ids=[f"{now}-{n}" for n in range(3)])
    whole = stream.dump()[:-FOOTER]
    assert whole[-1] == 0  # no groups
    ids = [bytes(sid) for sid in sids]
    number, string = rdb.number, rdb.string
    group = b"".join([
        string(b"g"), number(now), number(2), number(3), number(3),
        *(sid + rdb.signed(0 if place else now) + number(place + 4) for place, sid in enumerate(ids)),
        number(1), string(b"w"), rdb.signed(now), rdb.signed(-1), number(1), ids[0],
        number(2), ids[2], ids[1],
    ])
    appends = b"".join([number(200), number(300), number(1), string(b"p"), number(1), string(b"i"), number(now),
                        number(1), number(1), number(0)])
    store.restore_stream("27", closed(b"\x1b" + whole[1:-1] + number(1) + group + appends, 14))
    made = store.stream("27")
    assert made.append({"n": "again"}, producer="p", idempotent_id="i") == sids[1]
    assert made.configure(idempotence_window=200, idempotence_cap=300).to_dict() == {}
    rows = made.group("g").pending_entries("-")
    assert [(row.id, row.consumer, row.deliveries) for row in rows] == [
        (sids[0], b"w", 4), (sids[1], None, 5), (sids[2], None, 6)]
    claimed = made.group("g").read("v", claim_idle=1000)
    assert [entry.id for entry in claimed] == [sids[2], sids[1]]  # in the order of their release
    store.restore_stream("26", closed(b"\x1a" + whole[1:] + appends, 13))
    assert store.stream("26").append({"n": "again"}, producer="p", idempotent_id="i") == sids[1]
    assert raxlog.check(store.path).ok


def test_released_entries_can_be_claimed_at_once_after_the_way_through_redis(server: Any, store: raxlog.Store) -> None:
    stream = store.stream("s")
    sids = stream.extend([{"n": n} for n in range(4)])
    group = stream.create_group("g", "0")
    group.read("w")
    group.nack(sids[1], sids[2], delay=1000)
    server.execute_command("RESTORE", "s", 0, stream.dump("7.0"))
    rows = server.execute_command("XPENDING", "s", "g", "-", "+", 10)
    assert [row[1] for row in rows] == [b"w", b"", b"", b"w"]
    _, entries, _ = server.execute_command("XAUTOCLAIM", "s", "g", "v", 1_000_000, "0")
    assert [sid.decode() for sid, _ in entries] == [str(sid) for sid in sids[1:3]]


def test_replacing_and_transactions(store: raxlog.Store) -> None:
    store.stream("s").append({"n": 1}, "5-0")
    payload = store.stream("s").dump()
    with pytest.raises(StreamExists):
        store.restore_stream("s", payload)
    store.stream("s").append({"n": 2}, "6-0")
    store.restore_stream("s", payload, replace=True)
    assert [str(entry.id) for entry in store.stream("s")] == ["5-0"]
    with store.transaction() as tx:
        tx.stream("s").append({"n": 3}, "7-0")
        tx.restore_stream("t", tx.stream("s").dump())
        tx.stream("t").append({"n": 4}, "8-0")
        with pytest.raises(InvalidDump):
            tx.restore_stream("u", payload[:-1])
    assert [str(entry.id) for entry in store.stream("t")] == ["5-0", "7-0", "8-0"]
    assert store.pipeline().stream("s").dump().restore_stream("u", payload).execute()[1] is None
    assert store.streams() == [b"s", b"t", b"u"]
    for wrong in ("4.0", "", "7", 7, None, "latest"):
        with pytest.raises(InvalidArgument):
            store.stream("s").dump(wrong)  # type: ignore[arg-type]
    with pytest.raises(NoStream):
        store.stream("none").dump()
    assert raxlog.check(store.path).ok


def test_a_damaged_payload_is_refused_and_writes_nothing(
    server: Any, store: raxlog.Store, request: pytest.FixtureRequest
) -> None:
    """As it is, by its checksum; with the checksum made right, by what it says. What is taken is a whole stream."""
    print("RAXLOG_SEED =", SEED)
    rng = random.Random(SEED)
    fill(server, rng, 60)
    payload = server.dump("s")
    for wrong in (b"", b"x", payload[:-1], payload[1:], payload + b"x", payload[:-8] + bytes(8)):
        with pytest.raises(DumpChecksum):
            store.restore_stream("s", wrong)
    for wrong in ("text", None, 5, bytes(20)):
        with pytest.raises(InvalidDump):
            store.restore_stream("s", wrong)  # type: ignore[arg-type]
    newer = request.node.callspec.params["server"] == "redis 8.2"
    many = 2000 if newer and not LONG else 4000  # the older one has the rest
    body, taken = payload[:-FOOTER], []
    for number in range(many):
        made = bytearray(body)
        at = rng.randrange(len(made))
        what = rng.randrange(5)
        if what == 0:
            made[at] ^= 1 << rng.randrange(8)
        elif what == 1:
            made[at] = rng.choice([0, 0xFF, 0x81, 0xC3, rng.randrange(256)])
        elif what == 2:
            del made[at : at + rng.choice([1, 1, 2, 20, len(made)])]
        elif what == 3:
            made[at:at] = rng.choice([b"\0", b"\x81" + b"\xff" * 8, b"\x80\x7f\xff\xff\xff", rng.randbytes(3)])
        else:
            made[at : at + 9] = b"\x81" + rng.choice([b"\xff" * 8, b"\0\0\0\x01" + bytes(4)])
        try:
            store.restore_stream(f"s{number}", closed(bytes(made)))
            taken.append(f"s{number}".encode())
        except InvalidArgument:
            continue
    assert store.streams() == sorted(taken)
    assert len(taken) < many / 2
    for name in taken:
        check_stream(store, name)
        store.stream(name).append({"n": 1}, producer="p")
    assert raxlog.check(store.path).ok


def test_contradictions_are_refused(store: raxlog.Store) -> None:
    stream = store.stream("s")
    stream.extend([{"n": n} for n in range(2)], ids=["5-1", "5-2"])
    stream.create_group("g", "0").read("w")
    body = stream.dump()[:-FOOTER]
    tail = body[body.index(b"\x02\x05\x02\x05\x01\0\0\x02\x01"):]
    head = body[: -len(tail)]
    for wrong in (b"\x03" + tail[1:], b"\x02\x05\x01" + tail[3:], tail[:5] + b"\x06\0" + tail[7:]):
        with pytest.raises(InvalidDump):
            store.restore_stream("t", closed(head + wrong))
    mine = bytes(raxlog.StreamID("5-2"))
    assert body.count(mine) == 2
    for other in ("5-1", "9-1"):
        with pytest.raises(InvalidDump):
            store.restore_stream("t", closed(body[: -len(mine)] + bytes(raxlog.StreamID(other))))
    assert store.streams() == [b"s"]
