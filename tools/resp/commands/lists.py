"""Commands on lists: those that queues are made of."""

from __future__ import annotations

import math
from functools import partial

from ....storage.clocks import now_ms
from ..engine import Block
from ..keyspace import LIST
from ..lists import StoredList
from ..replies import NIL, CommandError
from ..session import Run
from ..table import LOOKS, MAX_INT, WRITES, command, integer


def _push(run: Run, words: list[bytes], left: bool, needs_list: bool = False) -> object:
    items = run.keys.list_of(run.name(words[1]))
    if not needs_list or len(items):
        items.push(words[2:], left)
        run.note("l", "lpush" if left else "rpush", words[1])
    return len(items)


def _pop(run: Run, words: list[bytes], left: bool) -> object:
    if len(words) > 3:
        raise CommandError(f"ERR wrong number of arguments for '{words[0].decode().lower()}' command")
    error = "ERR value is out of range, must be positive"
    count = integer(words[2], error) if len(words) > 2 else 1
    if count < 0:
        raise CommandError(error)
    items = run.keys.list_of(run.name(words[1]))
    if not len(items):
        return None if len(words) == 2 else NIL
    values = _taken(run, words[1], count, left)
    return values if len(words) > 2 else values[0]


def _taken(run: Run, key: bytes, count: int, left: bool) -> list[bytes]:
    items = run.keys.list_of(run.name(key))
    values = items.pop(count, left)
    if values:
        run.note("l", "lpop" if left else "rpop", key)
    _end_empty(run, key, items)
    return values


def _end_empty(run: Run, key: bytes, items: StoredList) -> None:
    if not len(items):
        run.keys.expire(run.name(key), None)
        run.note("g", "del", key)


def _pop_soon(run: Run, words: list[bytes], left: bool) -> object:
    digits = words[-1].lower()
    try:
        seconds = float.fromhex(digits.decode()) if b"0x" in digits else float(digits)
    except ValueError:
        seconds = math.nan
    if math.isnan(seconds) or b"_" in digits or digits.strip() != digits:
        raise CommandError("ERR timeout is not a float or out of range")
    if seconds * 1000 + now_ms() > MAX_INT:
        raise CommandError("ERR timeout is out of range")
    if seconds < 0:
        raise CommandError("ERR timeout is negative")
    names = [(run.name(key), b"") for key in words[1:-1]]
    for key, (name, _) in zip(words[1:-1], names, strict=True):
        if run.is_again and run.keys.kind(name) != "list":
            continue
        if len(run.keys.list_of(name)):
            return [key, _taken(run, key, 1, left)[0]]
    return Block(words, names, None, None, seconds, tuple(LIST + name for name, _ in names)) if run.may_block else NIL


for _name, _left in (("l", True), ("r", False)):
    command(f"{_name}push", -3, WRITES)(partial(_push, left=_left))
    command(f"{_name}pushx", -3, WRITES)(partial(_push, left=_left, needs_list=True))
    command(f"{_name}pop", -2, WRITES)(partial(_pop, left=_left))
    command(f"b{_name}pop", -3, WRITES)(partial(_pop_soon, left=_left))


command("llen", 2, LOOKS)(lambda run, words: len(run.keys.list_of(run.name(words[1]))))


@command("lrange", 4, LOOKS)
def _lrange(run: Run, words: list[bytes]) -> object:
    start, end = integer(words[2]), integer(words[3])
    items = run.keys.list_of(run.name(words[1]))
    return items[start : None if end == -1 else end + 1]


@command("lrem", 4, WRITES)
def _lrem(run: Run, words: list[bytes]) -> object:
    count = integer(words[2])
    items = run.keys.list_of(run.name(words[1]))
    remaining = items[:] if count >= 0 else items[::-1]
    places = [place for place, value in enumerate(remaining) if value == words[3]][: abs(count) or None]
    for place in reversed(places):
        del remaining[place]
    if places:
        items.replace(remaining if count >= 0 else remaining[::-1])
        run.note("l", "lrem", words[1])
        _end_empty(run, words[1], items)
    return len(places)
