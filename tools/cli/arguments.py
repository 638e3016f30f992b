"""What all commands share: the parser, the options, and how a store is opened.

    reading commands    readonly=True; never create anything
    add, import         create the store, if nothing is at the path; so do bind and sub, which may
                        come before the first message, and create-group --create-stream
    other writing ones  need a store: there is nothing to delete or trim in a new one

Arguments are checked before the store is opened, so that a slip of the pen creates nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import os
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

import raxlog

from ...storage.errors import NoStream
from ...storage.store_map import DURABILITIES
from ...stream.header import shown
from ...stream.names import member_name, name_bytes

if TYPE_CHECKING:
    from raxlog import Group, Store, Stream

DONE, NO, USAGE, STORE, INTERRUPTED = 0, 1, 2, 3, 130


class Failure(Exception):
    """What a command ends with when the reason is no RaxlogError: a line and a status."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class Parser(argparse.ArgumentParser):
    """An argument parser that tells what is wrong in one line, and keeps help texts as written."""

    def __init__(self, *args: Any, **options: Any) -> None:
        # Its own look at the terminal's width would load shutil and three compressors for each command.
        options.setdefault("formatter_class", partial(argparse.RawDescriptionHelpFormatter, width=78))
        super().__init__(*args, **{"allow_abbrev": False} | options)

    def error(self, message: str) -> NoReturn:
        raise Failure(f"{message} (see '{self.prog} --help')", USAGE)


# -- arguments ----------------------------------------------------------------------------


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


Add = Callable[[Any], object]  # adds arguments to a parser, or to a group of its


def argument(*names: str, **options: Any) -> Add:
    """What adds one argument; it is described as add_argument() wants it."""
    return lambda parser: parser.add_argument(*names, **options)


def flag(name: str, meaning: str) -> Add:
    """What adds an option that has no value."""
    return argument(name, action="store_true", help=meaning)


def one_of(*members: Add, required: bool = False) -> Add:
    """What adds arguments of which only one may be given."""
    return lambda parser: _add_all(parser.add_mutually_exclusive_group(required=required), members)


def titled(title: str, *members: Add) -> Add:
    """What adds arguments that stand below a title of their own in the help."""
    return lambda parser: _add_all(parser.add_argument_group(title), members)


def _add_all(parser: Any, members: Iterable[Add]) -> None:
    for add in members:
        add(parser)


OF_STORE = (argument("store", metavar="STORE", help="the store's directory"),)
OF_STREAM = (*OF_STORE, argument("stream", metavar="STREAM", help="the stream's name"))
OF_GROUP = (*OF_STREAM, argument("group", metavar="GROUP", help="the consumer group's name"))
OF_CONSUMER = (*OF_GROUP, argument("consumer", metavar="CONSUMER", help="the consumer's name"))
IDS = argument("ids", metavar="ID", nargs="+", help="the entries' IDs")
JSON = flag("--json", "print JSON: one document, or one line an entry")
WRITING = (
    argument("--durability", choices=DURABILITIES, default="commit",
             help="commit: on disk when the command returns (default); relaxed: a power cut may undo the last commits; "
             "buffered: commits are made behind the appends, and all are on disk when the command returns"),
    argument("--lock-timeout", type=seconds, default=30.0, metavar="SECONDS",
             help="how long to wait for another writer (default: 30)"),
)


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


class Command:
    """One command: what it does, its arguments, and its help, which ends with examples."""

    options: tuple[Add, ...] = (JSON,)

    def __init__(self, run: Callable[[argparse.Namespace], int], arguments: Iterable[Add], description: str,
                 *examples: str) -> None:
        self.run = run
        self.arguments = arguments
        self.description = description
        self.example = "\n".join(examples)

    def parser(self, name: str, summary: str) -> Parser:
        """The command's own parser; ``--help`` of it is the command's documentation."""
        example = "\n".join(f"  {line}" for line in self.example.splitlines())
        parser = Parser(
            prog=f"raxlog {name}",
            description=f"{summary[0].upper()}{summary[1:]}.\n\n{self.description}",
            epilog=f"example:\n{example}",
        )
        _add_all(parser, (*self.arguments, *self.options))
        return parser


class WritingCommand(Command):
    """One that opens the store for writing, and has the options of that."""

    options = (*WRITING, JSON)


# -- opening ------------------------------------------------------------------------------


def reading(args: argparse.Namespace) -> Store:
    """The store at STORE, open for reading."""
    return raxlog.open(args.store, readonly=True)


def writing(args: argparse.Namespace, create: bool = False) -> Store:
    """The store at STORE, open for writing; created only if ``create``."""
    return raxlog.open(args.store, create=create, durability=args.durability, lock_timeout=args.lock_timeout)


def existing(store: Store, name: bytes) -> Stream:
    """A handle on a stream that is there, else NoStream."""
    stream = store.stream(name)
    if not stream.exists():
        raise NoStream(f"there is no stream {shown(name)} in {store.path}; 'raxlog streams' lists those")
    return stream


@contextlib.contextmanager
def stream_of(args: argparse.Namespace, opened: Callable[[argparse.Namespace], Store] = reading) -> Iterator[Stream]:
    """A handle on STREAM, with the store open as long as the block lasts. InvalidName, NoStream."""
    name = stream_name(args)
    with opened(args) as store:
        yield existing(store, name)


@contextlib.contextmanager
def group_of(args: argparse.Namespace, opened: Callable[[argparse.Namespace], Store] = reading) -> Iterator[Group]:
    """The same for GROUP of STREAM. Where there is no such group, NoGroup comes when the handle is used."""
    group = group_name(args)
    with stream_of(args, opened) as stream:
        yield stream.group(group)
