"""Commands given to a real redis-server and to `raxlog serve`: the same replies, kind by kind, errors to the letter.

Times and memory are masked. The server is Redis 8.2, where RAXLOG_REDIS_82 names one. Left out of the random commands
are those in which that version is wrong: ~ with DELREF or ACKED, XDELEX ACKED once a group was destroyed, and counts of
deliveries near 2^63.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from door import door
from resp_wire import RespWire

SEED = int(os.environ.get("RAXLOG_SEED", time.time_ns() % 1_000_000_007))
LONG = os.environ.get("RAXLOG_LONG") == "1"
TIMES = {b"idle", b"inactive", b"seen-time", b"active-time"}

SCRIPT = """
PING
PING hello
ECHO a
FOO bar baz
XADD
XADD s
XADD s * a
XADD s 1-1 a 1
XADD s 1-1 a 1
XADD s 0-0 a 1
XADD s 0 a 1
XADD s 1-* a 2
XADD s 5 a 3 b 4
XADD s MAXLEN ~ 10 LIMIT 5 6-0 a b
XADD s MAXLEN 10 LIMIT 5 6-0 a b
XADD s MAXLEN -1 6-0 a b
XADD s MAXLEN x 6-0 a b
XADD s MAXLEN 5 MINID 3 6-0 a b
XADD s LIMIT 3 6-0 a b
XADD s LIMIT 0 6-0 a b
XADD s KEEPREF KEEPREF 6-0 a b
XADD nope NOMKSTREAM * a b
XLEN s
XLEN none
XRANGE s - +
XRANGE s - + COUNT 2
XRANGE s - + COUNT 0
XRANGE none - + COUNT 0
XRANGE s (1-1 5
XRANGE s (- 5
XRANGE s x 5
XRANGE s (18446744073709551615-18446744073709551615 +
XRANGE s - (0-0
XREVRANGE s + - COUNT 1
XREVRANGE s + - FOO 1
XREAD STREAMS s 0
XREAD COUNT 1 STREAMS s s 0 1-2
XREAD STREAMS s $
XREAD STREAMS s +
XREAD STREAMS s >
XREAD STREAMS s
XREAD STREAMS s t 0
XREAD BLOCK -1 STREAMS s $
XREAD BLOCK x STREAMS s $
XREAD BLOCK 20 STREAMS s $
XREAD GROUP g c STREAMS s $
XREAD NOACK STREAMS s 0
XGROUP
XGROUP FOO
XGROUP CREATE
XGROUP CREATE none g 0
XGROUP CREATE s g 0
XGROUP CREATE s g 0
XGROUP CREATE s h $ MKSTREAM ENTRIESREAD 3
XGROUP CREATE s i x
XGROUP CREATE s i 0 FOO
XGROUP CREATE s i 0 ENTRIESREAD -2
XGROUP HELP
XINFO HELP
XINFO
XINFO FOO
XREADGROUP GROUP g c STREAMS s >
XREADGROUP GROUP g c COUNT 1 STREAMS s 0
XREADGROUP GROUP g c STREAMS s $
XREADGROUP GROUP none c STREAMS s >
XREADGROUP GROUP g c STREAMS s
XREADGROUP STREAMS s > a b c d
XREADGROUP GROUP g c BLOCK 20 STREAMS s >
XREADGROUP GROUP g c NOACK STREAMS s >
XPENDING s g
XPENDING s none
XPENDING s g - + 10
XPENDING s g IDLE 0 - + 10 c
XPENDING s g - + 0
XPENDING s g - +
XPENDING s g x + 10
XACK s g 1-1 9-9
XACK s none 1-1
XACK s g x
XCLAIM s g d 0 1-2
XCLAIM s g d x 1-2
XCLAIM s g d 0 1-2 JUSTID
XCLAIM s g d 0 1-2 FOO
XCLAIM s g d 0 5-0 IDLE x
XCLAIM s g d 0 9-0 FORCE
XCLAIM s g d 0 1-2 RETRYCOUNT 7 TIME 100 LASTID 3
XAUTOCLAIM s g e 0 0
XAUTOCLAIM s g e 0 0 COUNT 0
XAUTOCLAIM s g e 0 - COUNT 1 JUSTID
XDEL s 5-0
XDEL s x
XDEL none x
XREADGROUP GROUP g e STREAMS s 0
XAUTOCLAIM s g f 0 0
XINFO STREAM s
XINFO STREAM none
XINFO STREAM s FULL
XINFO STREAM s FULL COUNT 1
XINFO STREAM s FOO
XINFO GROUPS s
XINFO GROUPS none
XINFO CONSUMERS s g
XINFO CONSUMERS s none
XINFO CONSUMERS none g
XSETID s 1-1
XSETID s 9-0
XSETID s 9-0 ENTRIESADDED 1
XSETID s 9-0 ENTRIESADDED -1
XSETID s 9-0 MAXDELETEDID 10-0
XSETID s 9-0 ENTRIESADDED 20 MAXDELETEDID 8-0
XSETID s 7-0
XSETID none 1-1
XTRIM s
XTRIM s MAXLEN
XTRIM s MAXLEN 3
XTRIM s FOO 3
XTRIM s MINID x
XTRIM s MINID ~ 3 LIMIT 10
XDELEX s IDS 1 1-1
XDELEX s ACKED IDS 2 1-1 6-0
XDELEX s IDS 0 1
XDELEX s IDS 3 1 2
XDELEX s KEEPREF 1 2
XDELEX s IDS 1 1 2
XACKDEL s g IDS 1 6-0
XACKDEL s g DELREF IDS 1 6-0
XGROUP CREATECONSUMER s g z
XGROUP CREATECONSUMER s g z
XGROUP CREATECONSUMER s none z
XGROUP DELCONSUMER s g z
XGROUP DELCONSUMER s g zz
XGROUP SETID s g 0
XGROUP SETID s g - ENTRIESREAD 1
XGROUP SETID s none 0
XGROUP DESTROY s h
XGROUP DESTROY s h
XGROUP DESTROY none h
TYPE s
TYPE none
EXISTS s none s
DBSIZE
KEYS *
KEYS x*
SCAN 0
RENAME s t
RENAME none t
RENAMENX t u
COPY u v
COPY u v
COPY u v REPLACE
DEL v
UNLINK v
SELECT 1
DBSIZE
SELECT 16
SELECT x
SELECT 0
MULTI
XADD m 1-1 a b
FOO
EXEC
MULTI
XADD m 1-1 a b
XLEN m
XADD m 1-1 a b
XREAD BLOCK 0 STREAMS m $
EXEC
EXEC
DISCARD
MULTI
MULTI
DISCARD
WATCH m
MULTI
XLEN m
EXEC
WATCH m
XADD m 2-1 a b
MULTI
XLEN m
EXEC
CLIENT GETNAME
CLIENT SETNAME x
CLIENT GETNAME
CLIENT SETINFO lib-name foo
CLIENT SETINFO foo foo
CLIENT MAINT_NOTIFICATIONS ON
CONFIG GET stream-node-max-bytes
AUTH foo
AUTH a b c
RESTORE x 0 abc
DUMP none
SET k v
SET k w NX GET
SET k w XX GET
SET k w NX XX
SET k w EX 10 PX 10
SET k w EX 10 KEEPTTL
SET k w EX
SET k w EX 0
SET k w EX x
SET k w PX -5
SET k w EX 9223372036854775
SET k w EXAT 9223372036854775807
SET k w FOO
SET k w EX 100
TTL k
PERSIST k
PERSIST k
TTL k
PTTL none
SET k w EX 100
SET k x KEEPTTL
TTL k
SET k x
TTL k
GET none
GET k x
SETEX k 100 v
SETEX k 0 v
SETEX k x v
PSETEX k 100000 v
TTL k
GETSET k w
TTL k
GETEX k EX 100
GETEX k PERSIST
GETEX k EX 100 PERSIST
GETEX none EX 5
GETDEL k
GETDEL k
SETNX k 10
SETNX k 11
INCR k
DECR k
INCRBY k 9223372036854775807
DECRBY k -9223372036854775808
INCRBY k x
APPEND k x
INCR k
STRLEN k
STRLEN none
MSET a 1 b 2 a 3
MSET a 1 b
MGET a b none s
GET s
SET s v GET
INCR s
APPEND s x
XLEN k
XADD k * f v
XADD k NOMKSTREAM * f v
XRANGE k - +
XREAD STREAMS k 0
XREADGROUP GROUP g c STREAMS k >
XACK k g 1
XGROUP CREATE k g $
XINFO STREAM k
XPENDING k g
XTRIM k MAXLEN 0
XDEL k 1
LPUSH k x
LRANGE k 0 -1
LPOP k
TYPE k
TYPE l
OBJECT ENCODING a
OBJECT ENCODING none
OBJECT FREQ k
OBJECT IDLETIME k
OBJECT REFCOUNT k
OBJECT FOO k
OBJECT ENCODING
RPUSH l a b c
LPUSH l x y
RPUSHX none a
LPUSHX l z
LLEN l
LLEN none
LRANGE l 0 -1
LRANGE l -2 -1
LRANGE l 1 2
LRANGE l 5 2
LRANGE l -100 100
LRANGE l x 2
LPOP l
RPOP l 2
LPOP l 0
LPOP l -1
LPOP l x
LPOP l 1 2
LPOP none
LPOP none 2
RPUSH l a b a c a
LREM l 2 a
LREM l -1 a
LREM l 0 nope
LREM l x a
LRANGE l 0 -1
TYPE l
OBJECT ENCODING l
GET l
XLEN l
COPY l m
RENAME m n
LRANGE n 0 -1
COPY k l
COPY k l REPLACE
GET l
RENAME n s
TYPE s
BLPOP none 0.01
BLPOP none -1
BLPOP none x
BLPOP none s 0
BRPOP s 1
BRPOP l 1
EXPIRE none 10
EXPIRE k 100
EXPIRE k 200 NX
EXPIRE k 200 GT
EXPIRE k 300 LT
EXPIRE k 100 NX XX
EXPIRE k 100 GT LT
EXPIRE k 100 FOO
EXPIRE k x
EXPIRE k 9223372036854775807
PEXPIRE k 9223372036854775807
TTL k
RENAME k kk
TTL kk
COPY kk k
TTL k
TTL none
EXPIREAT kk 1
EXISTS kk
PEXPIREAT k 4000000000000
EXPIRETIME k
PEXPIRETIME k
EXPIRETIME none
EXPIRE k -1
EXISTS k
XADD z 1-1 f v
EXPIRE z 100
TTL z
XADD z 2-1 f v
TTL z
DEL z
XADD z 1-1 f v
TTL z
MULTI
SET k 1
INCR k
LPUSH k v
RPUSH q a
BLPOP q 0
BLPOP q 0
EXPIRE k 100
EXEC
SCAN 0 TYPE list COUNT 100
FLUSHALL FOO
FLUSHALL
DBSIZE
RESET
"""


Both = tuple[RespWire, RespWire]


@pytest.fixture(params=[2, 3])
def both(request: pytest.FixtureRequest, newer_address: tuple[str, int], path: Path) -> Iterator[Both]:
    """A connection to each, in RESP2 or RESP3, empty."""
    with door(path) as address, RespWire(newer_address) as redis, RespWire(address) as ours:
        for wire in (redis, ours):
            wire.ask("HELLO", request.param)
            wire.ask("FLUSHALL")
        redis.ask("CONFIG", "SET", "stream-node-max-entries", "100")
        yield redis, ours


def masked(words: list[str], reply: Any) -> Any:
    """A reply without its times."""
    kind, value = reply
    if words[0] == "TTL" and isinstance(value, int) and value > 0:
        return kind, "left"
    if not isinstance(value, list):
        return reply
    rows = list(value)
    if words[0] == "XPENDING" and len(words) > 3:
        return kind, [(row[0], [*row[1][:2], row[1][3]]) for row in rows]
    if words[0] == "XINFO":
        return kind, without_times(rows)
    return reply


def without_times(rows: list[Any]) -> list[Any]:
    made: list[Any] = []
    for place, one in enumerate(rows):
        is_time = place and rows[place - 1][0] == "$" and rows[place - 1][1] in TIMES
        if is_time or (one[0] == ":" and one[1] > 1_600_000_000_000):
            made.append((":", "time"))
        else:
            made.append((one[0], without_times(one[1])) if isinstance(one[1], list) else one)
    return made


def test_a_script_of_all_commands_and_their_errors(both: Both) -> None:
    redis, ours = both
    for line in SCRIPT.strip().splitlines():
        words = line.split()
        theirs, mine = redis.ask(*words), ours.ask(*words)
        assert masked(words, mine) == masked(words, theirs), line


def random_command(rng: random.Random, step: int) -> list[str]:
    """A command on few streams, groups and consumers; one in eight is malformed."""
    key, group, consumer = rng.choice("aab"), rng.choice("ggh"), rng.choice("cd")

    def sid() -> str:
        return rng.choice([f"{rng.randrange(step + 2)}-{rng.randrange(2)}", str(rng.randrange(step + 2)), "0"])

    def few() -> str:
        return str(rng.randrange(1, 6))

    ids = [sid() for _ in range(rng.randrange(1, 5))]
    string, items = rng.choice("ssssssst"), rng.choice("lllllllt")
    if rng.random() < 0.01:
        string = items = key
    value, option = rng.choice(["1", "x", "-7", ""]), rng.choice(["NX", "XX", "GET", "KEEPTTL", "EX", "PXAT"])
    times = ["500000"] if option == "EX" else ["4000000000000"] if option == "PXAT" else []
    words = rng.choice([
        ["XADD", key, f"{step}-{rng.randrange(3)}", rng.choice(["f", "n"]), rng.choice(["1", "x" * 60, "-7", ""])],
        ["XADD", key, f"{step}-*", "f", "1", "g", str(step)],
        ["XADD", key, "MAXLEN", rng.choice("=~"), str(rng.randrange(40)), f"{step}-0", "f", "v"],
        ["XADD", key, "NOMKSTREAM", "MINID", sid(), f"{step}", "f", "v"],
        ["XLEN", key], ["XRANGE", key, sid(), "+", "COUNT", few()],
        ["XREVRANGE", key, "+", f"({sid()}", "COUNT", few()],
        ["XDEL", key, *ids], ["XDELEX", key, rng.choice(["KEEPREF", "DELREF"]), "IDS", str(len(ids)), *ids],
        ["XTRIM", key, "MAXLEN", str(rng.randrange(60))], ["XTRIM", key, "MINID", "~", sid(), "LIMIT", few()],
        ["XTRIM", key, "MAXLEN", str(rng.randrange(60)), rng.choice(["DELREF", "ACKED"])],
        ["XSETID", key, sid()], ["XGROUP", "CREATE", key, group, rng.choice(["0", "$", sid()]), "MKSTREAM"],
        ["XGROUP", "SETID", key, group, sid()], ["XGROUP", "CREATECONSUMER", key, group, consumer],
        ["XGROUP", "DELCONSUMER", key, group, consumer],
        ["XREADGROUP", "GROUP", group, consumer, "COUNT", few(), "STREAMS", key, ">"],
        ["XREADGROUP", "GROUP", group, consumer, "COUNT", few(), "STREAMS", "a", "b", ">", ">"],
        ["XREADGROUP", "GROUP", group, consumer, "NOACK", "STREAMS", key, ">"],
        ["XREADGROUP", "GROUP", group, consumer, "COUNT", few(), "STREAMS", key, sid()],
        ["XREAD", "COUNT", few(), "STREAMS", "a", "b", sid(), rng.choice([sid(), "+"])],
        ["XACK", key, group, *ids], ["XACKDEL", key, group, "DELREF", "IDS", str(len(ids)), *ids],
        ["XCLAIM", key, group, consumer, "0", *ids, *rng.choice([["JUSTID"], ["FORCE"], ["RETRYCOUNT", few()], []])],
        ["XAUTOCLAIM", key, group, consumer, "0", sid(), "COUNT", few(), *rng.choice([["JUSTID"], []])],
        ["XPENDING", key, group], ["XPENDING", key, group, "-", "+", few(), *rng.choice([[consumer], []])],
        ["XINFO", "STREAM", key], ["XINFO", "STREAM", key, "FULL"], ["XINFO", "GROUPS", key],
        ["XINFO", "CONSUMERS", key, group], ["TYPE", key], ["EXISTS", "a", "b"], ["KEYS", "*"], ["DBSIZE"],
        ["SET", string, value, option, *times], ["SET", string, value], ["GET", string], ["INCRBY", string, few()],
        ["APPEND", string, value], ["GETDEL", string], ["MSET", string, value, "u", few()], ["MGET", *"stlua"],
        ["RPUSH", items, value, few()], ["LPUSH", items, value], [rng.choice(["LPOP", "RPOP"]), items],
        ["LPOP", items, few()], ["LRANGE", items, few(), f"-{few()}"], ["LREM", items, rng.choice("-0")+"1", value],
        ["BLPOP", items, "s", "l", "0.001"], ["LLEN", items], ["TTL", rng.choice("stlab")], ["TYPE", string],
        ["EXPIRE", rng.choice("stlab"), "100000", rng.choice(["NX", "XX", "LT"])], ["PERSIST", rng.choice("stlab")],
        ["PUBLISH", key, value], ["PUBSUB", "NUMSUB", key, "x"], ["PUBSUB", "CHANNELS"],
        ["RENAMENX", *rng.choices("stl", k=2)], ["COPY", *rng.choices("stl", k=2), "REPLACE"],
        *([["DEL", key], ["XGROUP", "DESTROY", key, group], ["RENAME", "a", "b"], ["COPY", "a", "b", "REPLACE"]]
          if rng.random() < 0.2 else []),
    ])  # fmt: skip
    if rng.random() < 0.125:
        at = rng.randrange(1, len(words)) if len(words) > 1 else 0
        change = rng.randrange(3)
        if change == 0:
            del words[max(at, 1):]
        elif change == 1:
            words[at] = rng.choice(["", "-", "+", "$", ">", "x", "-1", "(", "9" * 20, "0x1", "COUNT", "1-2-3"])
        else:
            words.insert(at, rng.choice(["COUNT", "5", "FOO", "~"]))
        words[0] = words[0] or "XLEN"
    return words


def test_random_commands_valid_and_malformed(both: Both) -> None:
    print("RAXLOG_SEED =", SEED)
    rng = random.Random(SEED)
    for step in range(1, 20_000 if LONG else 2500):
        words = random_command(rng, step)
        theirs, mine = redis_and_ours(both, words)
        assert mine == theirs, (step, words)


def redis_and_ours(both: Both, words: list[str]) -> list[Any]:
    replies = [wire.ask(*words) for wire in both]
    for place, reply in enumerate(replies):
        if words[0] == "KEYS" and reply[0] == "*":
            replies[place] = reply[0], sorted(reply[1])
    return [masked(words, reply) for reply in replies]
