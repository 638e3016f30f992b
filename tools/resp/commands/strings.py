"""Commands on strings."""

from __future__ import annotations

from functools import partial

from ..replies import CommandError
from ..session import Run
from ..table import LOOKS, MAX_INT, WRITES, command, integer, syntax_error
from .keys import time_of

_TIMES = {b"ex": (1000, False), b"px": (1, False), b"exat": (1000, True), b"pxat": (1, True)}
_AGAINST = [{b"nx", b"xx"}, {*_TIMES, b"keepttl", b"persist"}]  # of each one at most


def _options(words: list[bytes], at: int, allowed: set[bytes]) -> tuple[set[bytes], int | None]:
    """The options of SET or GETEX, and the time that they give."""
    flags: set[bytes] = set()
    place = 0
    while at < len(words):
        option = words[at].lower()
        flags.add(option)
        if option in _TIMES and at + 1 < len(words):
            at += 1
            place = at
        elif option not in allowed:
            raise syntax_error()
        at += 1
    if any(len(flags & against) > 1 for against in _AGAINST):
        raise syntax_error()
    return flags, time_of(words, place, *_TIMES[words[place - 1].lower()]) if place else None


@command("set", -3, WRITES)
def _set(run: Run, words: list[bytes]) -> object:
    flags, at = _options(words, 3, {b"nx", b"xx", b"get", b"keepttl"})
    name = run.name(words[1])
    before = run.keys.string_of(name) if b"get" in flags else None
    if flags & {b"nx", b"xx"} and (run.keys.kind(name) == "none") is (b"xx" in flags):
        return before
    run.keys.put(name, words[2], at, b"keepttl" in flags)
    _note_set(run, words[1], at)
    return before if b"get" in flags else "OK"


def _note_set(run: Run, key: bytes, at: int | None = None) -> None:
    run.note("$", "set", key)
    if at is not None:
        run.note("g", "expire", key)


def _setex(run: Run, words: list[bytes], unit: int) -> object:
    at = time_of(words, 2, unit, False)
    run.keys.put(run.name(words[1]), words[3], at)
    _note_set(run, words[1], at)
    return "OK"


command("setex", 4, WRITES)(partial(_setex, unit=1000))
command("psetex", 4, WRITES)(partial(_setex, unit=1))


@command("get", 2, LOOKS)
def _get(run: Run, words: list[bytes]) -> object:
    return run.keys.string_of(run.name(words[1]))


command("getset", 3, WRITES)(lambda run, words: _set(run, [*words, b"get"]))


@command("getdel", 2, WRITES)
def _getdel(run: Run, words: list[bytes]) -> object:
    value = _get(run, words)
    run.keys.delete(run.name(words[1]))
    return value


@command("getex", -2, WRITES)
def _getex(run: Run, words: list[bytes]) -> object:
    flags, at = _options(words, 2, {b"persist"})
    value = _get(run, words)
    if flags and value is not None:
        went = run.keys.expire(run.name(words[1]), at)
        if at is None and went:
            run.note("g", "persist", words[1])
        elif at is not None and run.keys.kind(run.name(words[1])) != "none":
            run.note("g", "expire", words[1])
    return value


command("strlen", 2, LOOKS)(lambda run, words: len(run.keys.string_of(run.name(words[1])) or b""))


@command("append", 3, WRITES)
def _append(run: Run, words: list[bytes]) -> object:
    value = (run.keys.string_of(run.name(words[1])) or b"") + words[2]
    run.keys.put(run.name(words[1]), value, keeps_time=True)
    run.note("$", "append", words[1])
    return len(value)


def _increase(run: Run, words: list[bytes], sign: int) -> object:
    by = integer(words[2]) if len(words) > 2 else 1
    if sign < 0 and by == -MAX_INT - 1:
        raise CommandError("ERR decrement would overflow")
    current = run.keys.string_of(run.name(words[1]))
    value = (0 if current is None else integer(current)) + sign * by
    if not -MAX_INT - 1 <= value <= MAX_INT:
        raise CommandError("ERR increment or decrement would overflow")
    run.keys.put(run.name(words[1]), b"%d" % value, keeps_time=True)
    run.note("$", "incrby", words[1])
    return value


for _name, _arity, _sign in (("incr", 2, 1), ("decr", 2, -1), ("incrby", 3, 1), ("decrby", 3, -1)):
    command(_name, _arity, WRITES)(partial(_increase, sign=_sign))


command("setnx", 3, WRITES)(lambda run, words: int(_set(run, [*words, b"nx"]) == "OK"))


@command("mset", -3, WRITES)
def _mset(run: Run, words: list[bytes]) -> object:
    if len(words) % 2 == 0:
        raise CommandError("ERR wrong number of arguments for 'mset' command")
    for key, value in zip(words[1::2], words[2::2], strict=True):
        run.keys.put(run.name(key), value)
        _note_set(run, key)
    return "OK"


@command("mget", -2, LOOKS)
def _mget(run: Run, words: list[bytes]) -> object:
    names = map(run.name, words[1:])
    return [run.keys.state[name] if run.keys.kind(name) == "string" else None for name in names]
