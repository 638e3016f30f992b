"""The commands: how many words each takes, where it runs, and its handler.

    @command("xlen", 2, READS)            2 words; -2: at least 2
    def xlen(run: Run, words: list[bytes]) -> object: ...
"""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from .replies import CommandError

if TYPE_CHECKING:
    from ...transaction import Calls
    from .engine import Waiter
    from .server import Server
    from .session import Session

MAX_INT = (1 << 63) - 1
_INTEGER = re.compile(rb"0|-?[1-9][0-9]{0,18}")


class Kind(Enum):
    """Where a command runs."""

    SESSION = 0  # at once, in the loop: it needs no store
    READS = 1
    WRITES = 2


SESSION, READS, WRITES = Kind.SESSION, Kind.READS, Kind.WRITES


class Run(NamedTuple):
    """What a handler works with: the store, within the transaction that the command is a part of, and the client."""

    calls: Calls
    session: Session
    server: Server
    may_block: bool = False  # not in EXEC, nor where a blocked command is tried again
    waiter: Waiter | None = None  # of a command that is tried again

    def name(self, key: bytes) -> bytes:
        """The stream's name for a key of the client's database."""
        return prefix_of(self.session.database) + key


def prefix_of(database: int) -> bytes:
    """What the names of a database's streams begin with: those of 0 are as they are, the others lose 5 of 502 bytes."""
    return b"\0db%d\0" % database if database else b""


class Command(NamedTuple):
    """A command."""

    name: str
    arity: int
    kind: Kind
    handler: Callable[[Run, list[bytes]], object]

    def require_arity(self, words: list[bytes]) -> None:
        """CommandError for a wrong number of words."""
        if len(words) != self.arity and (self.arity > 0 or len(words) < -self.arity):
            raise CommandError(f"ERR wrong number of arguments for '{self.name}' command")


COMMANDS: dict[bytes, Command] = {}

Handler = Callable[[Run, list[bytes]], object]


def command(name: str, arity: int, kind: Kind) -> Callable[[Handler], Handler]:
    """Enter a function as the handler of a command, "xgroup|create" for a subcommand."""

    def enter(handler: Handler) -> Handler:
        COMMANDS[name.encode()] = Command(name, arity, kind, handler)
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
        raise CommandError(f"ERR unknown command '{text_of(words[0][:128])}', with args beginning with: {given}")
    found.require_arity(words)
    return found


def text_of(word: bytes) -> str:
    """Bytes of a client in a message."""
    return word.decode("utf-8", "surrogateescape")


def integer(word: bytes, error: str = "ERR value is not an integer or out of range") -> int:
    """A whole number of 64 bits, as Redis reads it."""
    value = int(word) if _INTEGER.fullmatch(word) else None
    if value is None or not -MAX_INT - 1 <= value <= MAX_INT:
        raise CommandError(error)
    return value


def syntax_error() -> CommandError:
    """The error for words that are not expected."""
    return CommandError("ERR syntax error")
