"""Commands on keys, all of which are streams."""

from __future__ import annotations

from ....index.pubsub.glob import glob_matches
from ....storage.errors import DumpChecksum, InvalidDump, NoStream, StreamExists
from ..replies import CommandError
from ..table import READS, WRITES, Run, command, integer, prefix_of, syntax_error
from .streams import NO_KEY, stream_of

_MARK = prefix_of(1)[:3]  # with which the names of other databases than 0 begin
_EXPIRES = "ERR raxlog has no keys that expire; trim a stream, or configure(retention=) it"


def keys_of(run: Run) -> list[bytes]:
    """The keys of the client's database."""
    prefix = run.name(b"")
    names = [name if isinstance(name, bytes) else name.encode() for name in run.calls.streams()]
    return [name[len(prefix):] for name in names if name.startswith(prefix) and (prefix or not name.startswith(_MARK))]


@command("del", -2, WRITES)
def delete(run: Run, words: list[bytes]) -> object:
    """DEL."""
    return sum(run.calls.delete_stream(run.name(key)) for key in words[1:])


command("unlink", -2, WRITES)(delete)


@command("exists", -2, READS)
def exists(run: Run, words: list[bytes]) -> object:
    """EXISTS."""
    return sum(stream_of(run, key).exists() for key in words[1:])


@command("type", 2, READS)
def type_of(run: Run, words: list[bytes]) -> object:
    """TYPE."""
    return "stream" if stream_of(run, words[1]).exists() else "none"


@command("dbsize", 1, READS)
def dbsize(run: Run, words: list[bytes]) -> object:
    """DBSIZE."""
    return len(keys_of(run))


@command("keys", 2, READS)
def keys(run: Run, words: list[bytes]) -> object:
    """KEYS."""
    return [key for key in keys_of(run) if _matches(words[1], key)]


def _matches(pattern: bytes, key: bytes) -> bool:
    """Whether KEYS shows it: * shows the empty name, too, which the glob does not match."""
    return pattern == b"*" or glob_matches(pattern, key)


@command("scan", -2, READS)
def scan(run: Run, words: list[bytes]) -> object:
    """SCAN: the cursor is the place in the order of the names."""
    cursor = integer(words[1], "ERR invalid cursor")
    pattern, kind, many, at = b"*", b"stream", 10, 2
    while at < len(words):
        option = words[at].lower()
        if at + 1 >= len(words) or option not in (b"match", b"count", b"type"):
            raise syntax_error()
        if option == b"count":
            many = integer(words[at + 1])
            if many < 1:
                raise syntax_error()
        elif option == b"match":
            pattern = words[at + 1]
        else:
            kind = words[at + 1].lower()
        at += 2
    found = keys_of(run)
    some = found[cursor : cursor + many]
    following = cursor + many if cursor + many < len(found) else 0
    return [b"%d" % following, [key for key in some if kind == b"stream" and _matches(pattern, key)]]


@command("rename", 3, WRITES)
def rename(run: Run, words: list[bytes]) -> object:
    """RENAME."""
    return _rename(run, words[1], words[2])


def _rename(run: Run, key: bytes, to: bytes) -> str:
    if not stream_of(run, key).exists():
        raise CommandError(NO_KEY)
    if key != to:
        run.calls.delete_stream(run.name(to))
        run.calls.rename_stream(run.name(key), run.name(to))
    return "OK"


@command("renamenx", 3, WRITES)
def renamenx(run: Run, words: list[bytes]) -> object:
    """RENAMENX."""
    if stream_of(run, words[1]).exists() and stream_of(run, words[2]).exists():
        return 0
    _rename(run, words[1], words[2])
    return 1


@command("copy", -3, WRITES)
def copy(run: Run, words: list[bytes]) -> object:
    """COPY."""
    replaces, database, at = False, run.session.database, 3
    while at < len(words):
        option = words[at].lower()
        if option == b"replace":
            replaces = True
        elif option == b"db" and at + 1 < len(words):
            at += 1
            database = integer(words[at])
            if not 0 <= database < run.server.DATABASES:
                raise CommandError("ERR DB index is out of range")
        else:
            raise syntax_error()
        at += 1
    name, to = run.name(words[1]), prefix_of(database) + words[2]
    if name == to:
        raise CommandError("ERR source and destination objects are the same")
    if not stream_of(run, words[1]).exists():
        return 0
    if replaces:
        run.calls.delete_stream(to)
    try:
        run.calls.copy_stream(name, to)
    except StreamExists:
        return 0
    return 1


@command("dump", 2, READS)
def dump(run: Run, words: list[bytes]) -> object:
    """DUMP."""
    try:
        return stream_of(run, words[1]).dump(run.server.options.redis_version)
    except NoStream:
        return None


@command("restore", -4, WRITES)
def restore(run: Run, words: list[bytes]) -> object:
    """RESTORE."""
    replaces = False
    at = 4
    while at < len(words):
        option = words[at].lower()
        if option == b"replace":
            replaces = True
        elif option in (b"idletime", b"freq") and at + 1 < len(words):
            at += 1
            integer(words[at])
        elif option != b"absttl":
            raise syntax_error()
        at += 1
    if not replaces and stream_of(run, words[1]).exists():
        raise CommandError("BUSYKEY Target key name already exists.")
    ttl = integer(words[2])
    if ttl < 0:
        raise CommandError("ERR Invalid TTL value, must be >= 0")
    if ttl:
        raise CommandError(_EXPIRES)
    try:
        run.calls.restore_stream(run.name(words[1]), words[3], replace=replaces)
    except DumpChecksum:
        raise CommandError("ERR DUMP payload version or checksum are wrong") from None
    except InvalidDump:
        raise CommandError("ERR Bad data format") from None
    return "OK"


@command("flushdb", -1, WRITES)
def flushdb(run: Run, words: list[bytes]) -> object:
    """FLUSHDB."""
    for key in keys_of(run):
        run.calls.delete_stream(run.name(key))
    return "OK"


@command("flushall", -1, WRITES)
def flushall(run: Run, words: list[bytes]) -> object:
    """FLUSHALL."""
    for name in run.calls.streams():
        run.calls.delete_stream(name)
    return "OK"
