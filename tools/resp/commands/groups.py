"""Commands on consumer groups and what is pending in them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any, Literal

from ....storage.errors import NoGroup, NoStream
from ....stream.group.deliver import MOST_DELIVERIES, Delivered
from ....stream.group.group import Group
from ....stream.group.info import Autoclaimed
from ....stream.node.stream_id import MAX64, StreamID, time_at
from ..replies import NIL, CommandError
from ..session import Run
from ..table import READS, WRITES, command, integer, options, syntax_error, text_of
from .arguments import end_of, entries_reply, id_reply, ms_of, parse_ids, start_of, stream_id
from .streams import group_of, has_group, require_group, stream_of

_MODES: dict[bytes, Literal["silent", "fail", "fatal"]] = {b"silent": "silent", b"fail": "fail", b"fatal": "fatal"}
_NO_STREAM = (
    "ERR The XGROUP subcommand requires the key to exist. Note that for CREATE you may want to use the MKSTREAM option "
    "to create an empty stream automatically."
)


# -- XGROUP ------------------------------------------------------------------------------------


def _options(words: list[bytes], at: int, with_stream: bool) -> tuple[bool, int | None]:
    """MKSTREAM and ENTRIESREAD."""
    makes, read = False, None
    while at < len(words):
        option = words[at].lower()
        if with_stream and option == b"mkstream":
            makes = True
        elif option == b"entriesread" and at + 1 < len(words):
            read = integer(words[at + 1])
            if read < -1:
                raise CommandError("ERR value for ENTRIESREAD must be positive or -1")
            at += 1
        else:
            raise CommandError(f"ERR unknown subcommand or wrong number of arguments for '{text_of(words[1])}'. "
                               "Try XGROUP HELP.")
        at += 1
    return makes, read


def _located(run: Run, words: list[bytes], by_group: bool = True) -> Group:
    """The group that an XGROUP is about."""
    if not stream_of(run, words[2]).exists():
        raise CommandError(_NO_STREAM)
    if by_group and not has_group(run, words[2], words[3]):
        raise CommandError(
            f"NOGROUP No such consumer group '{text_of(words[3])}' for key name '{text_of(words[2])}'")
    return group_of(run, words[2], words[3])


@command("xgroup|create", -5, WRITES)
def _xgroup_create(run: Run, words: list[bytes]) -> object:
    makes, read = _options(words, 5, True)
    stream = stream_of(run, words[2])
    if not makes and not stream.exists():
        raise CommandError(_NO_STREAM)
    start = b"$" if words[4] == b"$" else stream_id(words[4])
    stream.create_group(words[3], start, create_stream=makes, entries_read=read)
    run.note("t", "xgroup-create", words[2])
    return "OK"


@command("xgroup|setid", -5, WRITES)
def _xgroup_setid(run: Run, words: list[bytes]) -> object:
    _, read = _options(words, 5, False)
    group = _located(run, words)
    if words[4] not in (b"$", b"-", b"+"):
        stream_id(words[4])
    group.set_id(words[4], entries_read=read)
    run.note("t", "xgroup-setid", words[2])
    return "OK"


@command("xgroup|destroy", 4, WRITES)
def _xgroup_destroy(run: Run, words: list[bytes]) -> object:
    return _noted(run, words, "xgroup-destroy", _located(run, words, by_group=False).destroy())


def _noted(run: Run, words: list[bytes], event: str, is_done: bool) -> int:
    if is_done:
        run.note("t", event, words[2])
    return int(is_done)


@command("xgroup|createconsumer", 5, WRITES)
def _xgroup_createconsumer(run: Run, words: list[bytes]) -> object:
    return _noted(run, words, "xgroup-createconsumer", _located(run, words).create_consumer(words[4]))


@command("xgroup|delconsumer", 5, WRITES)
def _xgroup_delconsumer(run: Run, words: list[bytes]) -> object:
    group = _located(run, words)
    if run.session.server.engine.events.has("t") and any(row.name == words[4] for row in group.consumers()):
        run.note("t", "xgroup-delconsumer", words[2])
    return group.delete_consumer(words[4], pending="drop")


# -- acknowledging, giving back ----------------------------------------------------------------


@command("xack", -4, WRITES)
def _xack(run: Run, words: list[bytes]) -> object:
    try:
        return group_of(run, words[1], words[2]).ack(*map(stream_id, words[3:]))
    except (NoGroup, NoStream):
        return 0
    except CommandError:  # an ID that is none: Redis looks for the group first
        if has_group(run, words[1], words[2]):
            raise
        return 0


@command("xackdel", -6, WRITES)
def _xackdel(run: Run, words: list[bytes]) -> object:
    run.keys.require_stream(run.name(words[1]))
    refs, ids = parse_ids(words, 3)
    if not has_group(run, words[1], words[2]):
        return [-1] * len(ids)
    stream = stream_of(run, words[1])
    before = len(stream)
    results = [int(result) for result in group_of(run, words[1], words[2]).ack_delete(*map(stream_id, ids), refs=refs)]
    if len(stream) < before:
        run.note("t", "xdel", words[1])
    return results


@command("xnack", -7, WRITES)
def _xnack(run: Run, words: list[bytes]) -> object:
    mode = _MODES.get(words[3].lower())
    if mode is None:
        raise CommandError("ERR mode must be SILENT, FAIL, or FATAL")
    if words[4].lower() != b"ids":
        raise CommandError("ERR syntax error, expected IDS keyword")
    number = integer(words[5], "ERR numids must be a positive integer")
    if number <= 0:
        raise CommandError("ERR numids must be a positive integer")
    if number > len(words) - 6:
        raise CommandError("ERR number of IDs doesn't match numids")
    ids = [stream_id(word) for word in words[6 : 6 + number]]
    at, count, force = 6 + number, None, False
    while at < len(words):
        option = words[at].lower()
        if option == b"force":
            force = True
        elif option == b"retrycount" and at + 1 < len(words):
            at += 1
            count = integer(words[at], "ERR Invalid RETRYCOUNT value, must be >= 0")
            if count < 0:
                raise CommandError("ERR Invalid RETRYCOUNT value, must be >= 0")
        else:
            raise CommandError(f"ERR Unrecognized XNACK option '{text_of(words[at])}'")
        at += 1
    require_group(run, words[1], words[2])
    return group_of(run, words[1], words[2]).nack(*ids, mode=mode, deliveries=count, force=force)


# -- claiming ----------------------------------------------------------------------------------


def _min_idle(word: bytes, name: str) -> int:
    return max(0, integer(word, f"ERR Invalid min-idle-time argument for {name}"))


@command("xclaim", -6, WRITES)
def _xclaim(run: Run, words: list[bytes]) -> object:
    require_group(run, words[1], words[2])
    min_idle = _min_idle(words[4], "XCLAIM")
    ids: list[StreamID] = []
    at = 5
    while at < len(words):
        try:
            ids.append(stream_id(words[at]))
        except CommandError:
            break
        at += 1
    idle: float | None = None
    when: datetime | None = None
    count: int | None = None
    last: StreamID | None = None
    force = justid = False
    while at < len(words):
        option, more = words[at].lower(), len(words) - 1 - at
        if option == b"force":
            force = True
        elif option == b"justid":
            justid = True
        elif option in (b"idle", b"time", b"retrycount") and more:
            at += 1
            value = integer(words[at], f"ERR Invalid {text_of(option.upper())} option argument for XCLAIM")
            if option == b"idle":
                idle, when = value / 1000, None
            elif option == b"time":
                when, idle = time_at(value if value >= 0 else MAX64), None  # in the future: now
            else:
                count = min(value, MOST_DELIVERIES) if value >= 0 else None
        elif option == b"lastid" and more:
            at += 1
            last = stream_id(words[at])
        else:
            raise CommandError(f"ERR Unrecognized XCLAIM option '{text_of(words[at])}'")
        at += 1
    group = group_of(run, words[1], words[2])
    claim: Callable[..., Delivered[Any]] = group.claim_ids if justid else group.claim
    claimed = claim(words[3], *ids, min_idle=min_idle / 1000, idle=idle, time=when, deliveries=count, force=force,
                    lastid=last)
    if claimed.consumer_created:
        run.note("t", "xgroup-createconsumer", words[1])
    return [id_reply(entry) if isinstance(entry, StreamID) else entries_reply([entry])[0] for entry in claimed]


def _claimed(word: bytes) -> int:
    count = integer(word, error := "ERR COUNT must be > 0")
    if not 0 < count < 1 << 59:
        raise CommandError(error)
    return count


@command("xautoclaim", -6, WRITES)
def _xautoclaim(run: Run, words: list[bytes]) -> object:
    min_idle = _min_idle(words[4], "XAUTOCLAIM")
    start = start_of(words[5])
    asked = options(words, 6, (b"justid",), {b"count": _claimed})
    require_group(run, words[1], words[2])
    assert start is not None
    group = group_of(run, words[1], words[2])
    claim: Callable[..., Autoclaimed[Any]] = group.autoclaim_ids if b"justid" in asked else group.autoclaim
    done = claim(words[3], min_idle / 1000, start, asked.get(b"count", 100))
    if done.entries.consumer_created:
        run.note("t", "xgroup-createconsumer", words[1])
    rows = [id_reply(entry) if isinstance(entry, StreamID) else entries_reply([entry])[0] for entry in done.entries]
    return [id_reply(done.cursor), rows, [id_reply(sid) for sid in done.deleted]]


@command("xpending", -3, READS)
def _xpending(run: Run, words: list[bytes]) -> object:
    if len(words) == 3:
        require_group(run, words[1], words[2])
        summary = group_of(run, words[1], words[2]).pending()
        if summary.first is None or summary.last is None:
            return [0, None, None, NIL]
        return [summary.total, id_reply(summary.first), id_reply(summary.last),
                [[name, b"%d" % pending] for name, pending in summary.consumers.items()]]
    at, idle = 3, 0
    if not 6 <= len(words) <= 9:
        raise syntax_error()
    if words[3].lower() == b"idle":
        idle = integer(words[4])
        if len(words) < 8:
            raise syntax_error()
        at = 5
    count = integer(words[at + 2])
    start, end = start_of(words[at]), end_of(words[at + 1])
    require_group(run, words[1], words[2])
    if count <= 0:
        return []
    assert start is not None
    assert end is not None
    rows = group_of(run, words[1], words[2]).pending_entries(
        start, end, count, consumer=words[at + 3] if len(words) - at > 3 else None, min_idle=idle / 1000)
    return [[id_reply(row.id), row.consumer or b"", ms_of(row.idle), row.deliveries] for row in rows]
