"""What Redis calls an error of groups, and the call of ours that must raise its exception.

Each row: a command, a part of the text Redis answers it with, our call, our exception. The
store has a stream k with a group g and its consumer c, to whom 1-0, 2-0 and 3-0 are pending.

XGROUP on a key that is not there is NoStream only for CREATE; a group of a stream that is not
there is no group (NoGroup), as it is for XREADGROUP in Redis too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import raxlog
from raxlog import GroupExists, InvalidArgument, InvalidStreamID, NoGroup, NoStream
from redis_errors import NO_KEY

MAX = "18446744073709551615-18446744073709551615"
X: Any = "x"  # where a number belongs
PAIR = {"f": "v"}
Call = Callable[[raxlog.Store], object]


def k(store: raxlog.Store) -> raxlog.Stream:
    return store.stream("k")


def g(store: raxlog.Store) -> raxlog.Group:
    return store.stream("k").group("g")


def none(store: raxlog.Store) -> raxlog.Stream:
    """A stream that is not there."""
    return store.stream("none")


def no_group(store: raxlog.Store) -> raxlog.Group:
    """A group that is not there."""
    return store.stream("k").group("none")


def no_stream(store: raxlog.Store) -> raxlog.Group:
    """A group of a stream that is not there."""
    return store.stream("none").group("g")


ERRORS: list[tuple[str, str, Call, type[Exception]]] = [
    ("XREAD STREAMS k -", "Invalid stream ID", lambda s: s.read({"k": "-"}), InvalidStreamID),
    ("XREAD STREAMS k >", "The > ID can be", lambda s: s.read({"k": ">"}), InvalidStreamID),
    ("XREAD STREAMS k none 1 1-x", "Invalid stream ID", lambda s: s.read({"k": "1", "none": "1-x"}), InvalidStreamID),
    ("XREAD BLOCK -1 STREAMS k 9", "timeout is negative", lambda s: s.read({"k": "9"}, timeout=-1), InvalidArgument),
    ("XREAD BLOCK x STREAMS k 9", "timeout is not", lambda s: s.read({"k": "9"}, timeout=X), InvalidArgument),
    ("XREAD COUNT x STREAMS k 0", "not an integer", lambda s: s.read({"k": "0"}, count=X), InvalidArgument),
    ("XREADGROUP GROUP none c STREAMS k >", "NOGROUP", lambda s: no_group(s).read("c"), NoGroup),
    ("XREADGROUP GROUP none c STREAMS k 0", "NOGROUP", lambda s: no_group(s).read("c", ids="0"), NoGroup),
    ("XREADGROUP GROUP g c STREAMS none >", "NOGROUP", lambda s: no_stream(s).read("c"), NoGroup),
    ("XREADGROUP GROUP g d STREAMS k none > >", "NOGROUP",
     lambda s: s.read_group("g", "d", {"k": ">", "none": ">"}), NoGroup),
    ("XREADGROUP GROUP g c STREAMS k $", "$ ID is meaningless", lambda s: g(s).read("c", ids="$"), InvalidStreamID),
    ("XREADGROUP GROUP g c STREAMS k +", " ID ", lambda s: g(s).read("c", ids="+"), InvalidStreamID),
    ("XREADGROUP GROUP g c STREAMS k -", "Invalid stream ID", lambda s: g(s).read("c", ids="-"), InvalidStreamID),
    ("XREADGROUP GROUP g c STREAMS k (1-1", "Invalid stream ID", lambda s: g(s).read("c", ids="(1-1"), InvalidStreamID),
    ("XREADGROUP GROUP g c BLOCK -1 STREAMS k >", "negative", lambda s: g(s).read("c", timeout=-1), InvalidArgument),
    ("XREADGROUP GROUP g c COUNT x STREAMS k >", "integer", lambda s: g(s).read("c", count=X), InvalidArgument),
    ("XINFO STREAM none", "no such key", lambda s: none(s).info(), NoStream),
    ("XINFO GROUPS none", "no such key", lambda s: none(s).groups(), NoStream),
    ("XINFO CONSUMERS k none", "NOGROUP", lambda s: no_group(s).consumers(), NoGroup),
    ("XPENDING k none", "NOGROUP", lambda s: no_group(s).pending(), NoGroup),
    ("XPENDING none g", "NOGROUP", lambda s: no_stream(s).pending(), NoGroup),
    ("XPENDING k none - + 9", "NOGROUP", lambda s: no_group(s).pending_entries("-", "+", 9), NoGroup),
    ("XPENDING k g x + 9", "Invalid stream ID", lambda s: g(s).pending_entries("x", "+", 9), InvalidStreamID),
    ("XPENDING k g - $ 9", "Invalid stream ID", lambda s: g(s).pending_entries("-", "$", 9), InvalidStreamID),
    ("XPENDING k none x + 9", "Invalid stream ID", lambda s: no_group(s).pending_entries("x", "+", 9), InvalidStreamID),
    (f"XPENDING k g ({MAX} + 9", "invalid start ID", lambda s: g(s).pending_entries(f"({MAX}", "+", 9),
     InvalidStreamID),
    ("XPENDING k g - (0-0 9", "invalid end ID", lambda s: g(s).pending_entries("-", "(0-0", 9), InvalidStreamID),
    ("XPENDING k g - + x", "not an integer", lambda s: g(s).pending_entries("-", "+", X), InvalidArgument),
    ("XPENDING k g IDLE x - + 9", "not an integer", lambda s: g(s).pending_entries("-", min_idle=X), InvalidArgument),
    ("XGROUP CREATE k g 0", "BUSYGROUP", lambda s: k(s).create_group("g", "0"), GroupExists),
    ("XGROUP CREATE none g 0", NO_KEY, lambda s: none(s).create_group("g", create_stream=False),
     NoStream),
    ("XGROUP CREATE k h -", "Invalid stream ID", lambda s: k(s).create_group("h", "-"), InvalidStreamID),
    ("XGROUP CREATE k h 1-x", "Invalid stream ID", lambda s: k(s).create_group("h", "1-x"), InvalidStreamID),
    ("XGROUP CREATE none h x MKSTREAM", "Invalid stream ID",
     lambda s: none(s).create_group("h", "x", create_stream=True), InvalidStreamID),
    ("XGROUP CREATE k h 0 ENTRIESREAD -2", "must be positive or -1",
     lambda s: k(s).create_group("h", "0", entries_read=-2), InvalidArgument),
    ("XGROUP CREATE k h 0 ENTRIESREAD x", "not an integer",
     lambda s: k(s).create_group("h", "0", entries_read=X), InvalidArgument),
    ("XGROUP SETID k none 0", "NOGROUP", lambda s: no_group(s).set_id("0"), NoGroup),
    ("XGROUP SETID none g 0", NO_KEY, lambda s: no_stream(s).set_id("0"), NoGroup),
    ("XGROUP SETID k g (1-1", "Invalid stream ID", lambda s: g(s).set_id("(1-1"), InvalidStreamID),
    ("XGROUP SETID k g 0 ENTRIESREAD -2", "must be positive or -1",
     lambda s: g(s).set_id("0", entries_read=-2), InvalidArgument),
    ("XGROUP CREATECONSUMER k none c", "NOGROUP", lambda s: no_group(s).create_consumer("c"), NoGroup),
    ("XGROUP CREATECONSUMER none g c", NO_KEY, lambda s: no_stream(s).create_consumer("c"), NoGroup),
    ("XGROUP DELCONSUMER k none c", "NOGROUP", lambda s: no_group(s).delete_consumer("c"), NoGroup),
    ("XGROUP DELCONSUMER none g c", NO_KEY, lambda s: no_stream(s).delete_consumer("c"), NoGroup),
    ("XACK k g 1-0 x", "Invalid stream ID", lambda s: g(s).ack("1-0", "x"), InvalidStreamID),
    ("XCLAIM k none d 0 1-0", "NOGROUP", lambda s: no_group(s).claim("d", "1-0"), NoGroup),
    ("XCLAIM none g d 0 1-0", "NOGROUP", lambda s: no_stream(s).claim("d", "1-0"), NoGroup),
    ("XCLAIM k g d 0 1-0 x", "Unrecognized XCLAIM option", lambda s: g(s).claim("d", "1-0", "x"), InvalidStreamID),
    ("XCLAIM k g d x 1-0", "Invalid min-idle-time", lambda s: g(s).claim("d", "1-0", min_idle=X), InvalidArgument),
    ("XCLAIM k g d 0 1-0 IDLE x", "Invalid IDLE", lambda s: g(s).claim("d", "1-0", idle=X), InvalidArgument),
    ("XCLAIM k g d 0 1-0 TIME x", "Invalid TIME", lambda s: g(s).claim("d", "1-0", time=X), InvalidArgument),
    ("XCLAIM k g d 0 1-0 RETRYCOUNT x", "Invalid RETRYCOUNT",
     lambda s: g(s).claim("d", "1-0", deliveries=X), InvalidArgument),
    ("XCLAIM k g d 0 1-0 RETRYCOUNT 9223372036854775808", "Invalid RETRYCOUNT",
     lambda s: g(s).claim("d", "1-0", deliveries=1 << 63), InvalidArgument),
    ("XCLAIM k g d 0 1-0 LASTID x", "Invalid stream ID", lambda s: g(s).claim("d", "1-0", lastid="x"), InvalidStreamID),
    ("XAUTOCLAIM k none d 0 0", "NOGROUP", lambda s: no_group(s).autoclaim("d"), NoGroup),
    ("XAUTOCLAIM none g d 0 0", "NOGROUP", lambda s: no_stream(s).autoclaim("d"), NoGroup),
    ("XAUTOCLAIM k g d 0 x", "Invalid stream ID", lambda s: g(s).autoclaim("d", start="x"), InvalidStreamID),
    (f"XAUTOCLAIM k g d 0 ({MAX}", "invalid start ID", lambda s: g(s).autoclaim("d", start=f"({MAX}"), InvalidStreamID),
    ("XAUTOCLAIM k g d x 0", "Invalid min-idle-time", lambda s: g(s).autoclaim("d", X), InvalidArgument),
    ("XAUTOCLAIM k g d 0 0 COUNT 0", "COUNT must be > 0", lambda s: g(s).autoclaim("d", count=0), InvalidArgument),
    ("XDELEX k ACKED IDS 2 1-0 x", "Invalid stream ID",
     lambda s: k(s).delete_ex("1-0", "x", refs="acked"), InvalidStreamID),
    ("XDELEX k SOME IDS 1 1-0", "syntax error", lambda s: k(s).delete_ex("1-0", refs="some"), InvalidArgument),
    ("XACKDEL k g IDS 2 1-0 x", "Invalid stream ID", lambda s: g(s).ack_delete("1-0", "x"), InvalidStreamID),
    ("XACKDEL k g SOME IDS 1 1-0", "syntax error", lambda s: g(s).ack_delete("1-0", refs="some"), InvalidArgument),
    ("XTRIM k MAXLEN 1 SOME", "syntax error", lambda s: k(s).trim(maxlen=1, refs="some"), InvalidArgument),
]  # fmt: skip

# Of Redis 8.4 to 8.10, which no test can ask: a command, our call, our exception.
NEWER_ERRORS: list[tuple[str, Call, type[Exception]]] = [
    ("XREADGROUP GROUP g c CLAIM x STREAMS k >", lambda s: g(s).read("c", claim_idle=X), InvalidArgument),
    ("XREADGROUP GROUP g c CLAIM -1 STREAMS k >", lambda s: g(s).read("c", claim_idle=-1), InvalidArgument),
    ("XREAD MAXCOUNT 0 STREAMS k 0", lambda s: s.read({"k": "0"}, total=0), InvalidArgument),
    ("XREAD COUNT 3 MAXCOUNT 2 STREAMS k 0", lambda s: s.read({"k": "0"}, count=3, total=2), InvalidArgument),
    ("XREAD MAXSIZE 0 STREAMS k 0", lambda s: s.read({"k": "0"}, max_bytes=0), InvalidArgument),
    ("XNACK k none FAIL IDS 1 1-0", lambda s: no_group(s).nack("1-0"), NoGroup),
    ("XNACK none g FAIL IDS 1 1-0", lambda s: no_stream(s).nack("1-0"), NoGroup),
    ("XNACK k g SOME IDS 1 1-0", lambda s: g(s).nack("1-0", mode="some"), InvalidArgument),
    ("XNACK k g FAIL IDS 1 1-0 RETRYCOUNT -1", lambda s: g(s).nack("1-0", deliveries=-1), InvalidArgument),
    ("XNACK k g FAIL IDS 2 1-0 x", lambda s: g(s).nack("1-0", "x"), InvalidStreamID),
    ("XADD k IDMP '' i * f v", lambda s: k(s).append(PAIR, producer="", idempotent_id="i"), InvalidArgument),
    ("XADD k IDMP p '' * f v", lambda s: k(s).append(PAIR, producer="p", idempotent_id=""), InvalidArgument),
    ("XADD k IDMP p i 9-9 f v", lambda s: k(s).append(PAIR, "9-9", producer="p", idempotent_id="i"), InvalidArgument),
    ("XADD k IDMPAUTO '' * f v", lambda s: k(s).append(PAIR, producer=""), InvalidArgument),
    ("XCFGSET k IDMP-DURATION 0", lambda s: k(s).configure(idempotence_window=0), InvalidArgument),
    ("XCFGSET k IDMP-DURATION 86401", lambda s: k(s).configure(idempotence_window=86_401), InvalidArgument),
    ("XCFGSET k IDMP-MAXSIZE 10001", lambda s: k(s).configure(idempotence_cap=10_001), InvalidArgument),
]
