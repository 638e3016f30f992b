"""What all commands share: the parser, the options, and how a store is opened.

    reading commands    readonly=True; never create anything
    add, import         create the store, if nothing is at the path; so do bind and sub, which may
                        come before the first message, and create-group --create-stream
    other writing ones  need a store: there is nothing to delete or trim in a new one

Arguments are checked before the store is opened, so that a slip of the pen creates nothing.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NoReturn

from ...recovery.store import Store
from ...storage.errors import NoStream
from ...storage.store_map import DURABILITIES
from ...stream.group import Group
from ...stream.header import shown
from ...stream.names import member_name, name_bytes
from ...stream.stream import Stream

DONE, NO, USAGE, STORE, INTERRUPTED = 0, 1, 2, 3, 130


class Failure(Exception):
    """What a command ends with when the reason is no RaxlogError: a line and a status."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class Parser(argparse.ArgumentParser):
    """An argument parser that tells what is wrong in one line, and keeps help texts as written."""

    def __init__(self, *args: Any, **options: Any) -> None:
        options.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(*args, **{"allow_abbrev": False} | options)

    def error(self, message: str) -> NoReturn:
        raise Failure(f"{message} (see '{self.prog} --help')", USAGE)


# -- arguments ----------------------------------------------------------------------------


def add_json(parser: argparse.ArgumentParser) -> None:
    """The option every command has."""
    parser.add_argument("--json", action="store_true", help="print JSON: one document, or one line an entry")


def add_store(parser: argparse.ArgumentParser, stream: bool = True) -> None:
    """STORE, and STREAM for the commands about one stream."""
    parser.add_argument("store", metavar="STORE", help="the store's directory")
    if stream:
        parser.add_argument("stream", metavar="STREAM", help="the stream's name")


def add_group(parser: argparse.ArgumentParser, consumer: bool = False) -> None:
    """STORE, STREAM and GROUP, and CONSUMER for the commands about one of them."""
    add_store(parser)
    parser.add_argument("group", metavar="GROUP", help="the consumer group's name")
    if consumer:
        parser.add_argument("consumer", metavar="CONSUMER", help="the consumer's name")


def add_ids(parser: argparse.ArgumentParser) -> None:
    """ID …, for the commands about certain entries."""
    parser.add_argument("ids", metavar="ID", nargs="+", help="the entries' IDs")


def add_writing(parser: argparse.ArgumentParser) -> None:
    """The options of opening a store for writing."""
    parser.add_argument(
        "--durability", choices=DURABILITIES, default="commit",
        help="commit: on disk when the command returns (default); relaxed: a power cut may undo the last commits; "
        "buffered: commits are made behind the appends, and all are on disk when the command returns",
    )
    parser.add_argument(
        "--lock-timeout", type=seconds, default=30.0, metavar="SECONDS",
        help="how long to wait for another writer (default: 30)"
    )


def whole(text: str) -> int:
    """A whole number >= 0."""
    return _at_least(text, 0)


def positive(text: str) -> int:
    """A whole number >= 1."""
    return _at_least(text, 1)


def _at_least(text: str, least: int) -> int:
    try:
        number = int(text)
    except ValueError:
        number = least - 1
    if number < least:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number >= {least}")
    return number


def seconds(text: str) -> float:
    """A number of seconds >= 0."""
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not number >= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds >= 0")
    return number


def stream_name(args: argparse.Namespace) -> bytes:
    """The stream's name as the bytes that were typed. InvalidName if it cannot be stored."""
    return name_bytes(os.fsencode(args.stream))


def group_name(args: argparse.Namespace) -> bytes:
    """The group's name as the bytes that were typed. InvalidName if it cannot be stored."""
    return member_name(os.fsencode(args.group), "group")


def consumer_name(text: str) -> bytes:
    """A consumer's name as the bytes that were typed. InvalidName if it cannot be stored."""
    return member_name(os.fsencode(text), "consumer")


# -- commands -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Command:
    """One command: its help, its arguments, and what it does."""

    run: Callable[[argparse.Namespace], int]
    arguments: Callable[[Parser], None]
    description: str
    example: str
    options: ClassVar[tuple[Callable[[Parser], None], ...]] = (add_json,)

    def parser(self, name: str, summary: str) -> Parser:
        """The command's own parser; ``--help`` of it is the command's documentation."""
        example = self.example.strip("\n")
        parser = Parser(
            prog=f"raxlog {name}",
            description=f"{summary[0].upper()}{summary[1:]}.\n\n{self.description.strip()}",
            epilog=f"example:\n{example}",
        )
        self.arguments(parser)
        for add in self.options:
            add(parser)
        return parser


class WritingCommand(Command):
    """A command that opens the store for writing, and has the options of that."""

    options = (add_writing, add_json)


# -- opening ------------------------------------------------------------------------------


def reading(args: argparse.Namespace) -> Store:
    """The store at STORE, open for reading."""
    return Store.open(args.store, readonly=True)


def writing(args: argparse.Namespace, create: bool = False) -> Store:
    """The store at STORE, open for writing; created only if ``create``."""
    return Store.open(args.store, create=create, durability=args.durability, lock_timeout=args.lock_timeout)


def existing(store: Store, name: bytes) -> Stream:
    """A handle on a stream that is there, else NoStream."""
    stream = store.stream(name)
    if not stream.exists():
        raise NoStream(f"there is no stream {shown(name)} in {store.path}; 'raxlog streams' lists those")
    return stream


def existing_group(store: Store, name: bytes, group: bytes) -> Group:
    """A handle on a group of a stream that is there, else NoStream; else, when used, NoGroup."""
    return existing(store, name).group(group)
