"""Commands on the connection and the server, and MULTI."""

from __future__ import annotations

import hmac
import os
import platform
import resource
from functools import partial

from ....storage import clocks
from ..keyspace import MARK, prefix_of
from ..replies import NIL, CommandError
from ..session import Run, Session, is_unchanged
from ..table import COMMANDS, LOOKS, SESSION, WRITES, command, integer, syntax_error, text_of


@command("ping", -1, SESSION)
def _ping(run: Run, words: list[bytes]) -> object:
    if len(words) > 2:
        raise CommandError("ERR wrong number of arguments for 'ping' command")
    if run.session.protocol == 2 and run.session.is_subscribed:
        return [b"pong", words[1] if len(words) == 2 else b""]
    return words[1] if len(words) == 2 else "PONG"


command("echo", 2, SESSION)(lambda run, words: words[1])


@command("time", 1, SESSION)
def _time(run: Run, words: list[bytes]) -> object:
    now = clocks.wall_ns() // 1000
    return [b"%d" % (now // 1_000_000), b"%d" % (now % 1_000_000)]


@command("select", 2, SESSION)
def _select(run: Run, words: list[bytes]) -> object:
    run.session.database = run.session.server.database(words[1])
    return "OK"


@command("quit", -1, SESSION)
def _quit(run: Run, words: list[bytes]) -> object:
    run.session.is_closing = True
    return "OK"


@command("reset", 1, SESSION)
def _reset(run: Run, words: list[bytes]) -> object:
    run.session.reset()
    return "RESET"


@command("auth", -2, SESSION)
def _auth(run: Run, words: list[bytes]) -> object:
    if len(words) > 3:
        raise syntax_error()
    _authenticate(run, words[1] if len(words) == 3 else b"default", words[-1])
    return "OK"


def _authenticate(run: Run, user: bytes, password: bytes) -> None:
    wanted = run.session.server.options.password
    if wanted is None and user == b"default":
        raise CommandError("ERR AUTH <password> called without any password configured for the default user. Are you "
                           "sure your configuration is correct?")
    if wanted is None or user != b"default" or not hmac.compare_digest(password, wanted):
        raise CommandError("WRONGPASS invalid username-password pair or user is disabled.")
    run.session.set_authenticated(True)


@command("hello", -1, SESSION)
def _hello(run: Run, words: list[bytes]) -> object:
    session, protocol, name, at = run.session, run.session.protocol, None, 2
    if len(words) > 1:
        protocol = integer(words[1], "ERR Protocol version is not an integer or out of range")
        if protocol not in (2, 3):
            raise CommandError("NOPROTO unsupported protocol version")
    credentials = None
    while at < len(words):
        option, more = words[at].lower(), len(words) - 1 - at
        if option == b"auth" and more >= 2:
            credentials = words[at + 1], words[at + 2]
            at += 2
        elif option == b"setname" and more:
            name = _client_name(words[at + 1])
            at += 1
        else:
            raise CommandError(f"ERR Syntax error in HELLO option '{text_of(words[at])}'")
        at += 1
    if credentials is not None:
        _authenticate(run, *credentials)
    if not session.is_authenticated:
        raise CommandError("NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO "
                           "<proto> AUTH <user> <pass> option can be used to authenticate the client and select the "
                           "RESP protocol version at the same time")
    session.protocol = protocol
    session.client_name = session.client_name if name is None else name
    return {b"server": b"redis", b"version": session.server.version.encode(), b"proto": protocol, b"id": session.number,
            b"mode": b"standalone", b"role": b"master", b"modules": []}


def _client_name(name: bytes) -> bytes:
    if any(not 33 <= byte <= 126 for byte in name):
        raise CommandError("ERR Client names cannot contain spaces, newlines or special characters.")
    return name


@command("monitor", 1, SESSION)
def _monitor(run: Run, words: list[bytes]) -> object:
    run.session.server.monitors.add(run.session)
    return "OK"


# -- CLIENT, COMMAND, CONFIG, INFO -------------------------------------------------------------


command("client|id", 2, SESSION)(lambda run, words: run.session.number)


@command("client|setname", 3, SESSION)
def _client_setname(run: Run, words: list[bytes]) -> object:
    run.session.client_name = _client_name(words[2])
    return "OK"


command("client|getname", 2, SESSION)(lambda run, words: run.session.client_name or None)


@command("client|setinfo", 4, SESSION)
def _client_setinfo(run: Run, words: list[bytes]) -> object:
    option = words[2].lower()
    if option not in (b"lib-name", b"lib-ver"):
        raise CommandError(f"ERR Unrecognized option '{text_of(words[2])}'")
    if any(not 33 <= byte <= 126 for byte in words[3]):
        raise CommandError(f"ERR {text_of(option)} cannot contain spaces, newlines or special characters.")
    run.session.library[option] = words[3]
    return "OK"


command("client|info", 2, SESSION)(lambda run, words: _line(run.session) + b"\n")


@command("client|list", -2, SESSION)
def _client_list(run: Run, words: list[bytes]) -> object:
    return b"".join(_line(session) + b"\n" for session in run.session.server.sessions.values())


def _line(session: Session) -> bytes:
    library = session.library
    return b"id=%d addr=%b name=%b db=%d flags=%b resp=%d lib-name=%b lib-ver=%b" % (
        session.number, session.peer.encode(), session.client_name, session.database,
        b"b" if session.is_blocked else b"x" if session.queue is not None else b"N", session.protocol,
        library.get(b"lib-name", b""), library.get(b"lib-ver", b""))


@command("command", -1, SESSION)
def command_(run: Run, words: list[bytes]) -> object:
    """COMMAND, COUNT, INFO. Not DOCS: where that is refused redis-cli shows its own."""
    tops = {name.partition(b"|")[0]: command for name, command in COMMANDS.items()}
    option = words[1].lower() if len(words) > 1 else b""
    if option == b"count":
        return len(tops)
    if option not in (b"", b"info"):
        raise CommandError(f"ERR unknown subcommand '{text_of(words[1][:128])}'. Try COMMAND COUNT or COMMAND INFO.")
    names = [word.lower() for word in words[2:]] if option == b"info" else list(tops)
    return [[name, tops[name].arity, [], 1, 1, 1] if name in tops else NIL for name in names]


@command("config|get", -3, SESSION)
def _config_get(run: Run, words: list[bytes]) -> object:
    from ....index.pubsub.glob import glob_matches  # noqa: PLC0415

    settings = run.session.server.settings()
    return {name: value for name, value in settings.items()
            if any(glob_matches(pattern.lower(), name) for pattern in words[2:])}


@command("config|set", -4, WRITES)
def config_set(run: Run, words: list[bytes]) -> object:
    """CONFIG SET: limits of nodes hold for the streams that follow Redis' rule, too, in the nodes they begin."""
    if len(words) % 2:
        raise CommandError("ERR wrong number of arguments for 'config|set' command")
    for name, value in zip(words[2::2], words[3::2], strict=True):
        run.session.server.set(name.lower(), value)
    if any(name.lower().startswith(b"stream-node-max-") for name in words[2::2]):
        for stream in [run.calls.stream(name) for name in run.calls.streams()]:
            if stream.info().node_rule == "redis":
                stream.configure(node_max_bytes=run.session.server.options.node_max_bytes,
                                 node_max_entries=run.session.server.options.node_max_entries)
    return "OK"


@command("info", -1, LOOKS)
def info(run: Run, words: list[bytes]) -> object:
    """INFO: what tools ask for; of the keys only where all is asked for, or Keyspace."""
    server, sessions = run.session.server, list(run.session.server.sessions.values())
    sections: dict[str, dict[str, object]] = {
        "Server": {"redis_version": server.version, "redis_mode": "standalone", "os": platform.system(),
                   "process_id": os.getpid(), "uptime_in_seconds": int(clocks.wall_ns() / 1e9 - server.began)},
        "Clients": {"connected_clients": len(sessions), "maxclients": server.options.clients,
                    "blocked_clients": sum(session.is_blocked for session in sessions)},
        "Memory": {"used_memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10},
        "Persistence": {"loading": 0, "aof_enabled": 1},
        "Stats": {"total_connections_received": server.received, "total_commands_processed": server.answered},
        "Replication": {"role": "master", "connected_slaves": 0},
        "Cluster": {"cluster_enabled": 0},
        "Keyspace": {},
    }
    wanted = {word.decode("latin-1").capitalize() for word in words[1:]}
    if wanted and not wanted & {"All", "Default", "Everything"}:
        sections = {name: figures for name, figures in sections.items() if name in wanted}
    if "Keyspace" in sections:
        for prefix in map(prefix_of, range(server.DATABASES)):
            if count := len(run.keys.names(prefix)):
                database = prefix[len(MARK) : -1].decode() or "0"
                sections["Keyspace"][f"db{database}"] = (
                    f"keys={count},expires={run.keys.how_many_go(prefix)},avg_ttl=0,subexpiry=0")
    return "".join(f"# {name}\r\n" + "".join(f"{key}:{figure}\r\n" for key, figure in figures.items()) + "\r\n"
                   for name, figures in sections.items()).encode()


# -- MULTI -------------------------------------------------------------------------------------


@command("multi", 1, SESSION)
def _multi(run: Run, words: list[bytes]) -> object:
    if run.session.queue is not None:
        raise CommandError("ERR MULTI calls can not be nested")
    run.session.queue = []
    return "OK"


@command("discard", 1, SESSION)
def _discard(run: Run, words: list[bytes]) -> object:
    if run.session.queue is None:
        raise CommandError("ERR DISCARD without MULTI")
    run.session.discard()
    return "OK"


@command("exec", 1, SESSION)
def _exec(run: Run, words: list[bytes]) -> object:
    session = run.session
    queued, watched, is_aborted = session.queue, session.watched, session.is_aborted
    if queued is None:
        raise CommandError("ERR EXEC without MULTI")
    session.discard()
    if is_aborted:
        raise CommandError("EXECABORT Transaction discarded because of previous errors.")
    return run.session.server.engine.execute(session, queued, partial(is_unchanged, watched=watched))


@command("watch", -2, WRITES)
def _watch(run: Run, words: list[bytes]) -> object:
    if run.session.queue is not None:
        raise CommandError("ERR WATCH inside MULTI is not allowed")
    for key in words[1:]:
        name = run.name(key)
        run.session.watched.setdefault(name, run.keys.version(name))
    return "OK"


@command("unwatch", 1, WRITES)
def _unwatch(run: Run, words: list[bytes]) -> object:
    run.session.watched.clear()
    return "OK"
