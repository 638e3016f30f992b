"""Commands on streams and their entries."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

from ....storage.errors import NoGroup, NoStream, RaxlogError
from ....stream.entries.idempotent import MAX_CAP, MAX_WINDOW, RedisProducer, set_by_redis
from ....stream.group.group import Group
from ....stream.info import FullInfo, GroupDetail, StreamInfo, count_rax
from ....stream.multi_read import read_group_streams
from ....stream.node.flattened import Flattened
from ....stream.node.stream_id import StreamID, now_ms
from ....stream.node.typed import Entry
from ....stream.stream import Stream
from ..engine import Block
from ..replies import NIL, CommandError, Pairs
from ..session import Run, Session
from ..table import LOOKS, READS, WRITES, at_least, command, integer, options, syntax_error, text_of
from ..whole import id_replies, plain_appends
from .arguments import end_of, entries_reply, entry_reply, id_reply, ms_of, parse_ids, start_of, stream_id, trim_options

NO_KEY = "ERR no such key"


def stream_of(run: Run, key: bytes) -> Stream:
    """A handle on the stream of a key, WRONGTYPE where that is none; a new one gets nodes of the server's size."""
    options, name = run.session.server.options, run.name(key)
    run.keys.require_stream(name)
    return run.keys.stream(name, options.node_max_bytes, options.node_max_entries)


def _xadd_together(run: Run, requests: list[list[bytes]], at: int) -> tuple[bytes, int]:
    """XADDs of one stream with neither ID nor options; none of them where one could be refused."""
    key, flats = requests[at][1], plain_appends(requests, at)
    if len(flats) < 2 or run.session.server.engine.events.has("t"):
        return b"", 0
    try:
        ids = stream_of(run, key).extend(Flattened(flats))
    except RaxlogError:
        if run.session.server.engine.is_spoiled:
            raise
        return b"", 0
    return id_replies(ids), len(ids)


@command("xadd", -5, WRITES, _xadd_together)
def _xadd(run: Run, words: list[bytes]) -> object:
    trim = trim_options(words, adds=True)
    flat = words[trim.at :]
    if trim.id is None or len(flat) < 2 or len(flat) % 2:
        raise CommandError("ERR wrong number of arguments for 'xadd' command")
    if trim.producer is not None and trim.id != "*":
        raise CommandError("ERR syntax error, IDMP/IDMPAUTO can be used only with auto-generated IDs")
    options: dict[str, Any] = {"refs": trim.refs, "create": trim.create, "producer": trim.producer,
                               "idempotent_id": trim.idempotent_id}
    if trim.producer is not None:
        options["producer"] = RedisProducer(trim.producer)
    if trim.maxlen is not None or trim.minid is not None:
        options |= {"maxlen": trim.maxlen, "minid": trim.minid, "approximate": trim.approximate, "limit": trim.limit}
    stream = stream_of(run, words[1])
    before = len(stream) if "maxlen" in options and run.session.server.engine.events.has("t") else None
    sid = stream.append(list(zip(flat[::2], flat[1::2], strict=True)), trim.id, **options)
    if sid is None:
        return None
    run.note("t", "xadd", words[1])
    if before is not None and len(stream) <= before:
        run.note("t", "xtrim", words[1])
    return id_reply(sid)


command("xlen", 2, READS)(lambda run, words: len(stream_of(run, words[1])))
command("xrange", -4, READS)(lambda run, words: _range(run, words, start_of(words[2]), end_of(words[3]), reverse=False))


@command("xrevrange", -4, READS)
def _xrevrange(run: Run, words: list[bytes]) -> object:
    end = end_of(words[2])
    return _range(run, words, start_of(words[3]), end, reverse=True)


def _range(run: Run, words: list[bytes], start: StreamID | None, end: StreamID | None, reverse: bool) -> object:
    count = options(words, 4, (), {b"count": lambda word: max(0, integer(word))}).get(b"count")
    stream = stream_of(run, words[1])
    if count == 0:
        return NIL if stream.exists() else []
    assert start is not None
    assert end is not None
    found = stream.range(start, end, count, reverse=reverse)
    return _while_there(run.session, found) if run.is_long else entries_reply(found)


def _while_there(session: Session, entries: Iterable[Entry]) -> Iterator[object]:
    for entry in entries:
        if session.is_gone:
            raise CommandError("ERR the client has gone")
        yield entry_reply(entry)


@command("xdel", -3, WRITES)
def _xdel(run: Run, words: list[bytes]) -> object:
    stream = stream_of(run, words[1])
    gone = stream.delete(*map(stream_id, words[2:])) if stream.exists() else 0
    if gone:
        run.note("t", "xdel", words[1])
    return gone


@command("xdelex", -5, WRITES)
def _xdelex(run: Run, words: list[bytes]) -> object:
    stream = stream_of(run, words[1])
    refs, ids = parse_ids(words, 2)
    if not stream.exists():
        return [-1] * len(ids)
    results = [int(result) for result in stream.delete_ex(*map(stream_id, ids), refs=refs)]
    if 1 in results:
        run.note("t", "xdel", words[1])
    return results


@command("xtrim", -4, WRITES)
def _xtrim(run: Run, words: list[bytes]) -> object:
    trim = trim_options(words, adds=False)
    gone = stream_of(run, words[1]).trim(maxlen=trim.maxlen, minid=trim.minid, approximate=trim.approximate,
                                         limit=trim.limit, refs=trim.refs)
    if gone:
        run.note("t", "xtrim", words[1])
    return gone


@command("xsetid", -3, WRITES)
def _xsetid(run: Run, words: list[bytes]) -> object:
    last = stream_id(words[2])

    def deleted(word: bytes) -> StreamID:
        if last < (sid := stream_id(word)):
            raise CommandError("ERR The ID specified in XSETID is smaller than the provided max_deleted_entry_id")
        return sid

    added = at_least(0, lambda: CommandError("ERR entries_added must be positive"))
    asked = options(words, 3, (), {b"entriesadded": added, b"maxdeletedid": deleted})
    stream_of(run, words[1]).set_id(last, entries_added=asked.get(b"entriesadded"),
                                    max_deleted_id=asked.get(b"maxdeletedid"))
    run.note("t", "xsetid", words[1])
    return "OK"


@command("xcfgset", -2, WRITES)
def _xcfgset(run: Run, words: list[bytes]) -> object:
    limits = {b"idmp-duration": ("window", MAX_WINDOW, "seconds"), b"idmp-maxsize": ("cap", MAX_CAP, "entries")}
    settings: dict[str, int] = {}
    at = 2
    while at < len(words):
        if words[at].lower() not in limits or at + 1 >= len(words):
            raise syntax_error()
        name, highest, unit = limits[words[at].lower()]
        shown = text_of(words[at].upper())
        if name in settings:
            raise CommandError(f"ERR {shown} specified multiple times")
        settings[name] = integer(words[at + 1])
        if not 1 <= settings[name] <= highest:
            raise CommandError(f"ERR {shown} must be between 1 and {highest} {unit}")
        at += 2
    if not settings:
        raise CommandError("ERR At least one parameter must be specified")
    if not stream_of(run, words[1]).exists():
        raise CommandError(NO_KEY)
    assert run.keys.batch is not None
    run.keys.batch.submit(partial(set_by_redis, run.name(words[1]), settings.get("window"), settings.get("cap")))
    return "OK"


# -- reading several ---------------------------------------------------------------------------


command("xread", -4, READS)(lambda run, words: _read(run, words, in_group=False))
command("xreadgroup", -7, WRITES)(lambda run, words: _read(run, words, in_group=True))


def _read(run: Run, words: list[bytes], in_group: bool) -> object:
    name = "xreadgroup" if in_group else "xread"
    numbers: dict[str, int] = {}
    block: int | None = None
    claim: int | None = None
    group = consumer = None
    noack = False
    at, streams = 1, 0
    while at < len(words):
        option, more = words[at].lower(), len(words) - 1 - at
        if option == b"block" and more:
            block = integer(words[at + 1], "ERR timeout is not an integer or out of range")
            if block < 0:
                raise CommandError("ERR timeout is negative")
            at += 1
        elif option in (b"count", b"maxcount", b"maxsize") and more:
            numbers[option.decode()] = max(0, integer(words[at + 1]))
            at += 1
        elif option == b"streams" and more:
            streams = at + 1
            if (len(words) - streams) % 2:
                kinds = "an ID or '>'" if in_group else "an ID, '+', or '$'"
                raise CommandError(f"ERR Unbalanced '{name}' list of streams: for each stream key {kinds} must be "
                                   "specified.")
            break
        elif option == b"group" and more >= 2:
            if not in_group:
                raise CommandError("ERR The GROUP option is only supported by XREADGROUP. You called XREAD instead.")
            group, consumer = words[at + 1], words[at + 2]
            at += 2
        elif option == b"noack":
            if not in_group:
                raise CommandError("ERR The NOACK option is only supported by XREADGROUP. You called XREAD instead.")
            noack = True
        elif option == b"claim" and more and in_group:
            claim = integer(words[at + 1], "ERR min-idle-time is not an integer or out of range")
            if claim < 0:
                raise CommandError("ERR min-idle-time must be a positive integer")
            at += 1
        else:
            raise syntax_error()
        at += 1
    if not streams:
        raise syntax_error()
    if in_group and group is None:
        raise CommandError("ERR Missing GROUP option for XREADGROUP")
    half = (len(words) - streams) // 2
    asked = list(zip(words[streams : streams + half], words[streams + half :], strict=True))
    limits: dict[str, Any] = {"count": numbers.get("count") or None, "total": numbers.get("maxcount") or None,
                              "max_bytes": numbers.get("maxsize") or None}
    if group is not None and consumer is not None:
        found, pairs = _read_group(run, group, consumer, asked, limits, noack, claim)
    else:
        pairs = [(run.name(key), _behind(run, key, word)) for key, word in asked]
        found = run.calls.read(pairs, **limits).pairs
    cut = len(run.name(b""))
    if found:
        return Pairs([(key[cut:], _entries(entries, claim)) for key, entries in found])
    if block is None or not (run.may_block or run.is_again) or (in_group and any(word != b">" for _, word in asked)):
        return NIL
    if run.is_again:
        return NIL
    again = words[: streams + half] + [sid for _, sid in pairs]
    return Block(again, pairs, group, None if claim is None else claim / 1000, block / 1000)


def _behind(run: Run, key: bytes, word: bytes) -> bytes:
    """The ID behind which a stream is read. WRONGTYPE, but where it is waited for."""
    if not run.is_again:
        run.keys.require_stream(run.name(key))
    if word == b"$":
        return id_reply(stream_of(run, key).last_id)
    if word == b"+":
        last = next(iter(stream_of(run, key).range(count=1, reverse=True)), None)
        return b"+" if last is None else id_reply(last.id.prev())
    if word == b">":
        raise CommandError("ERR The > ID can be specified only when calling XREADGROUP using the GROUP <group> "
                           "<consumer> option.")
    return id_reply(stream_id(word))


def _read_group(run: Run, group: bytes, consumer: bytes, asked: list[tuple[bytes, bytes]], limits: dict[str, Any],
                noack: bool, claim: int | None) -> tuple[list[tuple[bytes, list[Entry]]], list[tuple[bytes, bytes]]]:
    try:
        pairs = [(run.name(key), _after(word)) for key, word in asked]
        assert run.keys.batch is not None
        found = read_group_streams(
            run.keys.batch, group, consumer, pairs, limits["count"], 0, limits["total"], limits["max_bytes"], noack,
            None if claim is None else claim / 1000, None, None, None, keeps_gone=True)
    except (CommandError, NoGroup, NoStream):
        for key, word in asked:  # of several errors the one that Redis finds first
            require_group(run, key, group, " in XREADGROUP with GROUP option")
            _after(word)
        raise
    for name in found.consumers_created:
        run.keys.note("t", "xgroup-createconsumer", name)
    return found.pairs, pairs


def _after(word: bytes) -> bytes:
    """The ID that XREADGROUP reads after."""
    if word in (b"$", b"+"):
        shown = word.decode()
        raise CommandError(
            f"ERR The {shown} ID is meaningless in the context of XREADGROUP: you want to read the history of this "
            f"consumer by specifying a proper ID, or use the > ID to get new messages. The {shown} ID would just "
            "return an empty result set.")
    return word if word == b">" else id_reply(stream_id(word))


def group_of(run: Run, key: bytes, group: bytes) -> Group:
    """A handle on a group. WRONGTYPE."""
    run.keys.require_stream(run.name(key))
    return run.calls.group(run.name(key), group)


def has_group(run: Run, key: bytes, group: bytes) -> bool:
    """Whether there is such a group; the others of the stream are not looked at."""
    try:
        group_of(run, key, group).info()
    except (NoGroup, NoStream):
        return False
    return True


def require_group(run: Run, key: bytes, group: bytes, where: str = "") -> None:
    """NOGROUP where there is no such group."""
    if not has_group(run, key, group):
        raise CommandError(f"NOGROUP No such key '{text_of(key)}' or consumer group '{text_of(group)}'{where}")


def _entries(entries: list[Entry], claim: int | None) -> list[object]:
    if claim is None:
        return entries_reply(entries)
    rows = []
    for entry in entries:
        was_claimed = (entry.deliveries or 1) > 1 or entry.idle is not None
        before = [ms_of(entry.idle or 0.0), (entry.deliveries or 1) - 1] if was_claimed else [0, 0]
        rows.append([*entry_reply(entry), *before])
    return list(rows)


# -- XINFO -------------------------------------------------------------------------------------


@command("xinfo|stream", -3, LOOKS)
def _xinfo_stream(run: Run, words: list[bytes]) -> object:
    stream = stream_of(run, words[2])
    full, count = False, 10
    if len(words) > 3:
        full = words[3].lower() == b"full"
        if not full or len(words) == 5 or len(words) > 6 or (len(words) == 6 and words[4].lower() != b"count"):
            raise CommandError("ERR unknown subcommand or wrong number of arguments for 'STREAM'. Try XINFO HELP."
                               if stream.exists() else NO_KEY)
        if len(words) == 6:
            count = integer(words[5])
            count = 10 if count < 0 else count
    found: StreamInfo | FullInfo = stream.full_info(count) if full else stream.info()
    figures = found.stream if isinstance(found, FullInfo) else found
    reply: dict[bytes, object] = {
        b"length": figures.length,
        b"radix-tree-keys": figures.radix_tree_keys,
        b"radix-tree-nodes": figures.radix_tree_nodes or count_rax(stream),
        b"last-generated-id": id_reply(figures.last_generated_id),
        b"max-deleted-entry-id": id_reply(figures.max_deleted_entry_id),
        b"entries-added": figures.entries_added,
        b"recorded-first-entry-id": id_reply(figures.recorded_first_entry_id),
    }
    if isinstance(found, FullInfo):
        return reply | {b"entries": entries_reply(found.entries), b"groups": list(map(_group_reply, found.groups))}
    ends = {b"first-entry": figures.first_entry, b"last-entry": figures.last_entry}
    return reply | {b"groups": figures.groups} | {
        name: None if entry is None else entry_reply(entry) for name, entry in ends.items()}


def _group_reply(group: GroupDetail) -> dict[bytes, object]:
    return {
        b"name": group.name,
        b"last-delivered-id": id_reply(group.last_delivered_id),
        b"entries-read": group.entries_read,
        b"lag": group.redis_lag,
        b"pel-count": group.pending,
        b"pending": [[id_reply(entry.id), entry.consumer or b"", ms_of(entry.delivered or 0.0), entry.deliveries]
                     for entry in group.pending_entries],
        b"consumers": [{
            b"name": consumer.name, b"seen-time": ms_of(consumer.seen), b"active-time": ms_of(consumer.active),
            b"pel-count": consumer.pending,
            b"pending": [[id_reply(row.id), ms_of(row.delivered), row.deliveries] for row in consumer.pending_entries],
        } for consumer in group.consumers],
    }


@command("xinfo|groups", 3, READS)
def _xinfo_groups(run: Run, words: list[bytes]) -> object:
    return [{
        b"name": row.name, b"consumers": row.consumers, b"pending": row.pending,
        b"last-delivered-id": id_reply(row.last_delivered_id), b"entries-read": row.entries_read, b"lag": row.redis_lag,
    } for row in stream_of(run, words[2]).groups()]


@command("xinfo|consumers", 4, READS)
def _xinfo_consumers(run: Run, words: list[bytes]) -> object:
    if not stream_of(run, words[2]).exists():
        raise CommandError(NO_KEY)
    try:
        consumers = group_of(run, words[2], words[3]).consumers()
    except KeyError:
        raise CommandError(
            f"NOGROUP No such consumer group '{text_of(words[3])}' for key name '{text_of(words[2])}'") from None
    now = now_ms()
    return [{b"name": row.name, b"pending": row.pending, b"idle": max(0, now - ms_of(row.seen)),
             b"inactive": -1 if row.active is None else max(0, now - ms_of(row.active))} for row in consumers]
