"""Commands on keys of any kind, and on when they go."""

from __future__ import annotations

from functools import partial

from ....index.pubsub.glob import glob_matches
from ....storage.clocks import now_ms
from ..keyspace import name_of
from ..replies import CommandError
from ..session import Run
from ..table import LOOKS, MAX_INT, WRITES, at_least, command, integer, is_integer, options, syntax_error, text_of
from .streams import NO_KEY, stream_of

_NO_FREQUENCY = ("ERR An LFU maxmemory policy is not selected, access frequency not tracked. Please note that when "
                 "switching between policies at runtime LRU and LFU data will take some time to adjust.")
_SMALL, _EMBEDDED = 8192, 44  # bytes of a list that Redis keeps in one piece, of a string that lies in its object


def keys_of(run: Run) -> list[bytes]:
    """The keys of the client's database."""
    prefix = run.name(b"")
    run.calls.streams()  # CorruptionError where the name of one has vanished
    return [name[len(prefix):] for name in run.keys.names(prefix)]


@command("del", -2, WRITES)
def _delete(run: Run, words: list[bytes]) -> object:
    return sum(run.keys.delete(run.name(key)) for key in words[1:])


command("unlink", -2, WRITES)(_delete)


@command("exists", -2, LOOKS)
def _exists(run: Run, words: list[bytes]) -> object:
    return sum(_is_there(run, key) for key in words[1:])


command("touch", -2, LOOKS)(_exists)


def _is_there(run: Run, key: bytes) -> bool:
    return run.keys.kind(run.name(key)) != "none"


command("type", 2, LOOKS)(lambda run, words: run.keys.kind(run.name(words[1])))
command("dbsize", 1, LOOKS)(lambda run, words: len(keys_of(run)))
command("keys", 2, LOOKS)(lambda run, words: [key for key in keys_of(run) if _matches(words[1], key)])


def _matches(pattern: bytes, key: bytes) -> bool:
    """Whether KEYS shows it: * shows the empty name, too, which the glob does not match."""
    return pattern == b"*" or glob_matches(pattern, key)


@command("scan", -2, LOOKS)
def scan(run: Run, words: list[bytes]) -> object:
    """SCAN: in the order of the names."""
    cursor = integer(words[1], "ERR invalid cursor")
    asked = options(words, 2, (), {b"match": bytes, b"count": at_least(1, syntax_error), b"type": bytes.lower})
    pattern, kind, count = asked.get(b"match", b"*"), asked.get(b"type", b""), asked.get(b"count", 10)
    prefix, server = run.name(b""), run.session.server
    found = run.keys.names(prefix, server.place_of(cursor), count + 1)
    following = server.cursor_at(found.pop()) if len(found) > count else 0
    return [b"%d" % following, [
        name[len(prefix):] for name in found
        if _matches(pattern, name[len(prefix):]) and kind in (b"", run.keys.kind(name).encode())]]


command("rename", 3, WRITES)(lambda run, words: _rename(run, words[1], words[2]))


def _rename(run: Run, key: bytes, to: bytes) -> str:
    if not _is_there(run, key):
        raise CommandError(NO_KEY)
    if key != to:
        run.keys.rename(run.name(key), run.name(to))
        run.note("g", "rename_from", key)
        run.note("g", "rename_to", to)
    return "OK"


@command("renamenx", 3, WRITES)
def _renamenx(run: Run, words: list[bytes]) -> object:
    if _is_there(run, words[1]) and _is_there(run, words[2]):
        return 0
    _rename(run, words[1], words[2])
    return 1


@command("copy", -3, WRITES)
def _copy(run: Run, words: list[bytes]) -> object:
    asked = options(words, 3, (b"replace",), {b"db": run.session.server.database})
    name, to = run.name(words[1]), name_of(asked.get(b"db", run.session.database), words[2])
    if name == to:
        raise CommandError("ERR source and destination objects are the same")
    if not _is_there(run, words[1]) or (b"replace" not in asked and run.keys.kind(to) != "none"):
        return 0
    run.keys.copy(name, to)
    run.keys.note("g", "copy_to", to)
    return 1


@command("dump", 2, LOOKS)
def _dump(run: Run, words: list[bytes]) -> object:
    kind = run.keys.kind(run.name(words[1]))
    if kind in ("string", "list"):
        raise CommandError(f"ERR raxlog dumps streams only, and this is a {kind}")
    return stream_of(run, words[1]).dump(run.session.server.options.redis_version) if kind == "stream" else None


@command("restore", -4, WRITES)
def _restore(run: Run, words: list[bytes]) -> object:
    asked = options(words, 4, (b"replace", b"absttl"), {b"idletime": integer, b"freq": integer})
    if b"replace" not in asked and _is_there(run, words[1]):
        raise CommandError("BUSYKEY Target key name already exists.")
    ttl = integer(words[2])
    if ttl < 0:
        raise CommandError("ERR Invalid TTL value, must be >= 0")
    name = run.name(words[1])
    kind = run.keys.kind(name)
    run.calls.restore_stream(name, words[3], replace=True)
    if kind != "stream":
        run.keys.delete_value(name)
    run.keys.expire(name, None if not ttl else ttl if b"absttl" in asked else now_ms() + ttl)
    run.note("g", "restore", words[1])
    return "OK"


@command("flushdb", -1, WRITES)
def _flushdb(run: Run, words: list[bytes]) -> object:
    if len(words) > 2 or (len(words) == 2 and words[1].lower() not in (b"async", b"sync")):
        raise syntax_error()
    for name in run.keys.names(run.name(b"")):
        run.keys.remove(name)
    return "OK"


@command("flushall", -1, WRITES)
def _flushall(run: Run, words: list[bytes]) -> object:
    _flushdb(run, words)
    for name in run.calls.streams():
        run.calls.delete_stream(name)
    for row in run.keys.state.between(b""):
        del run.keys.state[row]
    return "OK"


# -- when keys go ------------------------------------------------------------------------------


def _expire(run: Run, words: list[bytes], unit: int, is_time: bool) -> object:
    flags = {word.lower() for word in words[3:]}
    if unknown := [word for word in words[3:] if word.lower() not in (b"nx", b"xx", b"gt", b"lt")]:
        raise CommandError(f"ERR Unsupported option {text_of(unknown[0])}")
    if b"nx" in flags and len(flags) > 1:
        raise CommandError("ERR NX and XX, GT or LT options at the same time are not compatible")
    if {b"gt", b"lt"} <= flags:
        raise CommandError("ERR GT and LT options at the same time are not compatible")
    at = time_of(words, 2, unit, is_time, None)
    name = run.name(words[1])
    if not _is_there(run, words[1]):
        return 0
    before = run.keys.goes_at(name)
    if ((b"nx" in flags and before is not None) or (b"xx" in flags and before is None)
            or (b"gt" in flags and (before is None or at <= before))
            or (b"lt" in flags and before is not None and at >= before)):
        return 0
    run.keys.expire(name, at)
    if _is_there(run, words[1]):
        run.note("g", "expire", words[1])
    return 1


def time_of(words: list[bytes], at: int, unit: int, is_time: bool, least: int | None = 1) -> int:
    """The time that a word gives in units of so many ms, as ms since 1970. CommandError."""
    given = integer(words[at])
    base = 0 if is_time else now_ms()
    if (least is not None and given < least) or given * unit < -MAX_INT - 1 or given * unit + base > MAX_INT:
        raise CommandError(f"ERR invalid expire time in '{text_of(words[0].lower())}' command")
    return given * unit + base


def _left(run: Run, words: list[bytes], unit: int, is_time: bool) -> object:
    if not _is_there(run, words[1]):
        return -2
    at = run.keys.goes_at(run.name(words[1]))
    return -1 if at is None else (at - (0 if is_time else now_ms()) + unit // 2) // unit


for _letter, _unit in (("", 1000), ("p", 1)):
    command(f"{_letter}expire", -3, WRITES)(partial(_expire, unit=_unit, is_time=False))
    command(f"{_letter}expireat", -3, WRITES)(partial(_expire, unit=_unit, is_time=True))
    command(f"{_letter}ttl", 2, LOOKS)(partial(_left, unit=_unit, is_time=False))
    command(f"{_letter}expiretime", 2, LOOKS)(partial(_left, unit=_unit, is_time=True))


@command("persist", 2, WRITES)
def _persist(run: Run, words: list[bytes]) -> object:
    goes = run.keys.expire(run.name(words[1]), None)
    if goes:
        run.note("g", "persist", words[1])
    return int(goes)


# -- OBJECT ------------------------------------------------------------------------------------


def _object(run: Run, words: list[bytes]) -> object:
    name, what = run.name(words[2]), words[1].lower()
    kind = run.keys.kind(name)
    if kind == "none":
        return None
    if what == b"freq":
        raise CommandError(_NO_FREQUENCY)
    if what != b"encoding":
        return int(what == b"refcount")
    if kind == "string":
        value = run.keys.state[name]
        return b"int" if is_integer(value) else b"embstr" if len(value) <= _EMBEDDED else b"raw"
    if kind == "list":
        return b"listpack" if sum(map(len, run.keys.list_of(name)[:])) < _SMALL else b"quicklist"
    return b"stream"


for _what in ("encoding", "freq", "idletime", "refcount"):
    command(f"object|{_what}", 3, LOOKS)(_object)


@command("memory|usage", -3, LOOKS)
def memory_usage(run: Run, words: list[bytes]) -> object:
    """MEMORY USAGE: about the bytes of what the key holds, and of its name."""
    options(words, 3, (), {b"samples": at_least(0, syntax_error)})
    name = run.name(words[2])
    kind = run.keys.kind(name)
    if kind == "stream":
        info = run.calls.stream(name).info()
        return len(name) + info.radix_tree_keys * info.node_bytes
    values = [run.keys.state[name]] if kind == "string" else run.keys.list_of(name)[:]
    return None if kind == "none" else len(name) + sum(map(len, values))
