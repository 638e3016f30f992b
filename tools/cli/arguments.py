"""What all commands share: the parser, the options, and how a store is opened.

    reading commands    readonly=True; never create anything
    add, import         create the store, if nothing is at the path; so do bind and sub, which may
                        come before the first message, and create-group --create-stream
    other writing ones  need a store: there is nothing to delete or trim in a new one

Arguments are read and checked before the store is opened, so that a slip of the pen creates nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import os
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import raxlog

from ...storage.engine.open_options import DURABILITIES
from ...storage.errors import NoStream
from ...stream.entries.header import shown
from ...stream.node.names import member_name, name_bytes
from ...stream.node.stream_id import parse_end, parse_id, parse_start

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


class _Read(argparse.Action):
    """Keeps what ``read`` makes of what was typed. What it raises goes on; of a ``type`` argparse would say it anew."""

    def __init__(self, read: Callable[[str], Any], **options: Any) -> None:
        super().__init__(**options)
        self._read = read

    def __call__(self, parser: object, namespace: argparse.Namespace, given: Any, option: str | None = None) -> None:
        if given is not None:  # else it may be left out, and has no default
            given = list(map(self._read, given)) if isinstance(given, list) else self._read(given)
        setattr(namespace, self.dest, given)


def argument(*names: str, **options: Any) -> Add:
    """What adds one argument; it is described as add_argument() wants it, and may have a ``read`` instead of a type."""
    if "read" in options:
        options["action"] = _Read
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


def typed(check: Callable[..., bytes], *more: object) -> Callable[[str], bytes]:
    """What reads an argument as the bytes that were typed, if ``check`` accepts them."""
    return lambda text: check(os.fsencode(text), *more)


stream_name, group_name, consumer_name = typed(name_bytes), typed(member_name, "group"), typed(member_name, "consumer")

OF_STORE = (argument("store", metavar="STORE", help="the store's directory"),)
OF_STREAM = (*OF_STORE, argument("stream", metavar="STREAM", read=stream_name, help="the stream's name"))
OF_GROUP = (*OF_STREAM, argument("group", metavar="GROUP", read=group_name, help="the consumer group's name"))
OF_CONSUMER = (*OF_GROUP, argument("consumer", metavar="CONSUMER", read=consumer_name, help="the consumer's name"))
RANGE = (argument("start", metavar="START", nargs="?", default="-", read=parse_start,
                  help="first ID (default: -, the first)"),
         argument("end", metavar="END", nargs="?", default="+", read=parse_end, help="last ID (default: +, the last)"))
IDS = argument("ids", metavar="ID", nargs="+", read=parse_id, help="the entries' IDs")
JSON = flag("--json", "print JSON: one document, or one line an entry")
WRITING = (
    argument("--durability", choices=DURABILITIES, default="commit",
             help="commit: on disk when the command returns (default); relaxed: a power cut may undo the last commits; "
             "buffered: commits are made behind the appends, and all are on disk when the command returns"),
    argument("--lock-timeout", type=seconds, default=30.0, metavar="SECONDS",
             help="how long to wait for another writer (default: 30)"),
)


# -- commands -----------------------------------------------------------------------------


Run = Callable[[argparse.Namespace], int | None]  # None: DONE


class Command(NamedTuple):
    """One command: what it does, its arguments, and its help, which ends with examples."""

    run: Run
    arguments: Iterable[Add]
    description: str
    example: str

    def parser(self, name: str, summary: str) -> Parser:
        """The command's own parser; ``--help`` of it is the command's documentation."""
        example = "\n".join(f"  {line}" for line in self.example.splitlines())
        parser = Parser(
            prog=f"raxlog {name}",
            description=f"{summary[0].upper()}{summary[1:]}.\n\n{self.description}",
            epilog=f"example:\n{example}",
        )
        _add_all(parser, (*self.arguments, JSON))
        return parser


LOADED: dict[str, Command] = {}  # of the modules that have been imported


def command(name: str, arguments: Iterable[Add], description: str, *examples: str) -> Callable[[Run], Run]:
    """Makes a function the command ``name``; its result is the exit status. Where it is writing(), WRITING belongs."""

    def add(run: Run) -> Run:
        LOADED[name] = Command(run, arguments, description, "\n".join(examples))
        return run

    return add


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
    """A handle on STREAM, with the store open as long as the block lasts. NoStream."""
    with opened(args) as store:
        yield existing(store, args.stream)


@contextlib.contextmanager
def group_of(args: argparse.Namespace, opened: Callable[[argparse.Namespace], Store] = reading) -> Iterator[Group]:
    """The same for GROUP of STREAM. Where there is no such group, NoGroup comes when the handle is used."""
    with stream_of(args, opened) as stream:
        yield stream.group(args.group)
