"""Scripts: the three of redis-py's locks, by their SHA-1. No other runs."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from ....storage.clocks import now_ms
from ..replies import CommandError
from ..session import Run
from ..table import SESSION, WRITES, command, integer

_NONE = ("ERR raxlog runs no scripts, but for those of redis-py's locks; use MULTI, EXEC and WATCH, or a transaction "
         "of raxlog in a program beside the server")


def _release(run: Run, name: bytes, words: list[bytes]) -> None:
    run.keys.delete(name)


def _reacquire(run: Run, name: bytes, words: list[bytes]) -> None:
    run.keys.expire(name, now_ms() + integer(words[1]))


def _extend(run: Run, name: bytes, words: list[bytes]) -> bool:
    at = run.keys.goes_at(name)
    if at is not None:
        run.keys.expire(name, (at if words[2] == b"0" else now_ms()) + integer(words[1]))
    return at is not None


_SCRIPTS: dict[bytes, Callable[[Run, bytes, list[bytes]], bool | None]] = {
    b"c3f8721cbb97f72bc19e972846bd7aaf91901658": _release,
    b"1cac51482acf5858da00f6d685d68f886cd6b6b2": _reacquire,
    b"a4e8783852e6b949f9ef3a97212805108459a890": _extend,
}


@command("evalsha", -3, WRITES)
def evalsha(run: Run, words: list[bytes]) -> object:
    """EVALSHA: where the key holds the token, the lock is released, acquired anew or extended."""
    keys = integer(words[2])
    if keys < 0:
        raise CommandError("ERR Number of keys can't be negative")
    if keys > len(words) - 3:
        raise CommandError("ERR Number of keys can't be greater than number of args")
    script = _SCRIPTS.get(words[1].lower())
    if script is None:
        raise CommandError("NOSCRIPT No matching script. Please use EVAL.")
    if len(words) < (5 if script is _release else 6 if script is _reacquire else 7):
        raise CommandError("ERR the script of a lock needs its key, its token and its times")
    name = run.name(words[3])
    return int(run.keys.string_of(name) == words[4] and script(run, name, words[4:]) is not False)


command("eval", -3, WRITES)(lambda run, words: evalsha(run, [words[0], _digest(words[1]), *words[2:]]))
command("script|load", 3, SESSION)(lambda run, words: _digest(words[2]))


def _digest(script: bytes) -> bytes:
    digest = hashlib.sha1(script, usedforsecurity=False).hexdigest().encode()
    if digest not in _SCRIPTS:
        raise CommandError(_NONE)
    return digest


command("script|exists", -3, SESSION)(lambda run, words: [int(word.lower() in _SCRIPTS) for word in words[2:]])
