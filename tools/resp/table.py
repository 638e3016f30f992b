"""The commands: how many words each takes, where it runs, and its handler.

    @command("xlen", 2, READS)            2 words; -2: at least 2
    def xlen(run: Run, words: list[bytes]) -> object: ...
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Mapping
from enum import Enum
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar

from .keyspace import name_of
from .replies import CommandError

if TYPE_CHECKING:
    from ...transaction import CommitScope
    from .keyspace import Keys

MAX_INT = (1 << 63) - 1
_INTEGER = re.compile(rb"0|-?[1-9][0-9]{0,18}")


class Kind(Enum):
    """Where a command runs."""

    SESSION = 0  # at once, in the loop: it needs no store
    READS = 1
    LOOKS = 2  # reads, all of it of one moment
    WRITES = 3
    ALONE = 4  # among the writes, between two commits: not in a MULTI


SESSION, READS, LOOKS, WRITES, ALONE = Kind


class Client(Protocol):
    """A session, as far as one need know it that only has a command run: see Session."""

    database: int
    protocol: int

    def listen_again(self) -> None: ...


C = TypeVar("C", bound=Client)


class Run(NamedTuple, Generic[C]):
    """What a handler works with: the store, within the transaction that the command is a part of, and the client."""

    keys: Keys
    session: C
    may_block: bool = False  # not in EXEC, nor where a blocked command is tried again
    is_again: bool = False  # a blocked command is tried again
    is_long: bool = False  # its reply is encoded where it runs, and may have iterators for arrays

    @property
    def calls(self) -> CommitScope:
        """The calls on streams."""
        return self.keys.calls

    def name(self, key: bytes) -> bytes:
        """The name in the store of a key of the client's database."""
        return name_of(self.session.database, key)

    def note(self, kind: str, event: str, key: bytes) -> None:
        """A change to a key, for those that subscribe to such."""
        self.keys.note(kind, event, self.name(key))


class Command(NamedTuple):
    """A command. ``together``: runs as many from a place on as it can as one: their replies, encoded, and how many."""

    name: str
    arity: int
    kind: Kind
    handler: Handler
    together: Together | None = None


_INSTEAD = {  # of what is refused, with a hint
    "hashes": ("hset hget hmset hmget hgetall hdel hexists hlen hkeys hvals hincrby hsetnx hscan",
               "use SET with one value of all fields, or the fields of an entry, XADD"),
    "sets": ("sadd srem smembers sismember scard spop sinter sunion sdiff sscan srandmember smismember",
             "use a key for each member, SET ... NX"),
    "sorted sets": ("zadd zrem zrange zrangebyscore zscore zcard zcount zincrby zrank zpopmin zpopmax bzpopmin zscan",
                    "use a stream, the IDs of which are the scores, XADD and XRANGE"),
}
COMMANDS: dict[bytes, Command] = {}

Handler = Callable[[Run[Any], list[bytes]], object]  # the session is session.Session
Together = Callable[[Run[Any], list[list[bytes]], int], tuple[bytes, int]]


def command(name: str, arity: int, kind: Kind, together: Together | None = None) -> Callable[[Handler], Handler]:
    """Enter a function as the handler of a command, "xgroup|create" for a subcommand."""

    def enter(handler: Handler) -> Handler:
        COMMANDS[name.encode()] = Command(name, arity, kind, handler, together)
        return handler

    return enter


def find(words: list[bytes]) -> Command:
    """The command of a request. CommandError where there is none, or for a wrong number of words."""
    name = words[0].lower()
    found = COMMANDS.get(name)
    if found is None:
        sub = words[1].lower() if len(words) > 1 else b""
        found = COMMANDS.get(name + b"|" + sub)
        if found is None and COMMANDS.get(name + b"|help") is not None:
            shown = text_of(words[0].upper())
            if len(words) < 2:
                raise CommandError(f"ERR wrong number of arguments for '{text_of(name)}' command")
            raise CommandError(f"ERR unknown subcommand '{text_of(words[1][:128])}'. Try {shown} HELP.")
    if found is None:
        given = ""
        for word in words[1:]:
            if len(given) >= 128:
                break
            given += f"'{text_of(word[: 128 - len(given)])}' "
        hint = next((f"(raxlog serve has no {kind}: {instead})" for kind, (names, instead) in _INSTEAD.items()
                     if name in names.encode().split()), "")
        raise CommandError(f"ERR unknown command '{text_of(words[0][:128])}', with args beginning with: {given}{hint}")
    if len(words) != found.arity and (found.arity > 0 or len(words) < -found.arity):
        raise CommandError(f"ERR wrong number of arguments for '{found.name}' command")
    return found


def is_command(name: bytes) -> bool:
    """Whether there is a command of that name, or subcommands."""
    return any(command.partition(b"|")[0] == name.lower() for command in COMMANDS)


def text_of(word: bytes) -> str:
    """Bytes of a client in a message."""
    return word.decode("utf-8", "surrogateescape")


def integer(word: bytes, error: str = "ERR value is not an integer or out of range") -> int:
    """A whole number of 64 bits, as Redis reads it."""
    if not is_integer(word):
        raise CommandError(error)
    return int(word)


def is_integer(word: bytes) -> bool:
    """Whether it is a whole number of 64 bits, written as Redis would write it."""
    return _INTEGER.fullmatch(word) is not None and -MAX_INT - 1 <= int(word) <= MAX_INT


def options(words: list[bytes], at: int, flags: Container[bytes], values: Mapping[bytes, Callable[[bytes], Any]],
            ) -> dict[bytes, Any]:
    """The options from that place on: flags, and those followed by a value, as it is read. CommandError."""
    found: dict[bytes, Any] = {}
    following = iter(words[at:])
    remaining = len(words) - at
    for word in following:
        remaining -= 1
        option = word.lower()
        if option in values and remaining:
            found[option] = values[option](next(following))
            remaining -= 1
        elif option in flags:
            found[option] = True
        else:
            raise syntax_error()
    return found


def at_least(least: int, error: Callable[[], CommandError]) -> Callable[[bytes], int]:
    """Reads a whole number, not below that one."""

    def read(word: bytes) -> int:
        number = integer(word)
        if number < least:
            raise error()
        return number

    return read


def syntax_error() -> CommandError:
    """The error for words that are not expected."""
    return CommandError("ERR syntax error")
