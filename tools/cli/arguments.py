"""The arguments of commands: how one is declared, those that several share, and the commands loaded."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import takewhile
from typing import Any, NamedTuple, NoReturn

from ...storage.engine.open_options import DURABILITIES
from ...stream.node.stream_id import parse_end, parse_id, parse_start
from ..output import did_you_mean
from .readers import bound, consumer_name, group_name, seconds, stream_name
from .status import USAGE, CommandError


class Parser(argparse.ArgumentParser):
    """An argument parser that reports an error in one line, and keeps help texts as written."""

    def __init__(self, *args: Any, **options: Any) -> None:
        # Without a width argparse asks shutil for the terminal's, which loads three compressors.
        options.setdefault("formatter_class", partial(argparse.RawDescriptionHelpFormatter, width=78))
        super().__init__(*args, **{"allow_abbrev": False} | options)

    def error(self, message: str) -> NoReturn:
        raise CommandError(f"{message} (see '{self.prog} --help')", USAGE)

    def read(self, typed: Sequence[str]) -> argparse.Namespace:
        """The arguments as typed. An unknown option is reported before what is missing."""
        for word in takewhile(lambda word: word != "--", typed):
            option = word.partition("=")[0]
            if option.startswith("--") and " " not in word and option not in self._option_string_actions:
                self.error(f"unknown option {option!r}{did_you_mean(option, self._option_string_actions)}")
        return self.parse_intermixed_args(typed)

    def _check_value(self, action: argparse.Action, value: object) -> None:
        if action.choices is not None and value not in action.choices:
            known = list(map(str, action.choices))
            raise argparse.ArgumentError(
                action, f"invalid choice: {value!r}{did_you_mean(str(value), known)} (choose from {', '.join(known)})")


# -- arguments ----------------------------------------------------------------------------

Add = Callable[[argparse._ActionsContainer], object]  # adds arguments to a parser, or to a group of its


class _Read(argparse.Action):
    """Stores what ``read`` returns. What ``read`` raises is propagated; argparse rewords the error of a ``type``."""

    def __init__(self, read: Callable[[str], Any], **options: Any) -> None:
        super().__init__(**options)
        self._read = read

    def __call__(self, parser: object, namespace: argparse.Namespace, given: Any, option: str | None = None) -> None:
        if given is not None:  # None: optional, left out, without a default
            given = list(map(self._read, given)) if isinstance(given, list) else self._read(given)
        setattr(namespace, self.dest, given)


def argument(*names: str, **options: Any) -> Add:
    """Adds one argument, described as for add_argument(); ``read`` may take the place of ``type``."""
    if "read" in options:
        options["action"] = _Read
    return lambda parser: parser.add_argument(*names, **options)


def flag(name: str, meaning: str) -> Add:
    """Adds an option without a value."""
    return argument(name, action="store_true", help=meaning)


def one_of(*members: Add, required: bool = False) -> Add:
    """Adds arguments of which only one may be given."""
    return lambda parser: _add_all(parser.add_mutually_exclusive_group(required=required), members)


def titled(title: str, *members: Add) -> Add:
    """Adds arguments below a title of their own in the help."""
    return lambda parser: _add_all(parser.add_argument_group(title), members)


def _add_all(parser: argparse._ActionsContainer, members: Iterable[Add]) -> None:
    for add in members:
        add(parser)


OF_STORE = (argument("store", metavar="STORE", help="the store's directory"),)
OF_STREAM = (*OF_STORE, argument("stream", metavar="STREAM", read=stream_name, help="the stream's name"))
OF_GROUP = (*OF_STREAM, argument("group", metavar="GROUP", read=group_name, help="the consumer group's name"))
OF_CONSUMER = (*OF_GROUP, argument("consumer", metavar="CONSUMER", read=consumer_name, help="the consumer's name"))
RANGE = (argument("start", metavar="START", nargs="?", default="-", read=bound(parse_start),
                  help="first ID, or a time (default: -, the first)"),
         argument("end", metavar="END", nargs="?", default="+", read=bound(parse_end),
                  help="last ID, or a time (default: +, the last)"))
IDS = argument("ids", metavar="ID", nargs="+", read=parse_id, help="the entries' IDs")
TIME = flag("--time", "also print the time that an ID holds (UTC)")
JSON = flag("--json", "print JSON: one document, or one line per entry")
RAW = flag("--raw", "fields as stored, whatever the codec")
WRITING = (
    argument("--durability", choices=DURABILITIES, default="commit",
             help="commit: on disk when the command returns (default); relaxed: a power cut may take the last 100 ms; "
             "buffered: appends are committed in the background, and all are on disk when the command returns"),
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


LOADED: dict[str, Command] = {}  # by the modules imported so far


def command(name: str, arguments: Iterable[Add], description: str, *examples: str) -> Callable[[Run], Run]:
    """Makes a function the command ``name``; it returns the exit status. One that calls writing() takes WRITING."""

    def add(run: Run) -> Run:
        LOADED[name] = Command(run, arguments, description, "\n".join(examples))
        return run

    return add
