"""The command line: ``raxlog COMMAND STORE …``, one command for each thing a store can do.

    argv ──> __init__.py    finds the command in COMMANDS, loads its module only, prints errors in one line
              └── commands/
                    entries/   add  import_file (input_formats, text_rows, compressed, tables)  range  streams
                               info (node_diagram)
                    groups/    groups  read  pending
                    pubsub/    pub  interest
                    care/      check  doctor  snapshot  compact  crashtest  bench
                    history/   export  scan         with pyarrow and Spark: the extra raxlog[spark]
                    demo/      demo (sample_text, kill_rounds)
                    watching   top  web  plot  metrics        the extra raxlog[ui], by tools/ui
                    completion

    arguments.py   what commands share: the parser, options, the table of loaded commands; readers.py: their values
    stores.py      opening a store              status.py     exit statuses
    progress.py    bars, where the extra raxlog[cli] has brought rich; else a line of text
    messages.py    the library's messages in the words of the command line

``import raxlog`` loads none of this.
"""

from __future__ import annotations

import importlib
import io
import os
import sys
from collections.abc import Sequence
from typing import TextIO

from ...storage.errors import RaxlogError
from ...storage.versions import versions
from .. import output
from .arguments import JSON, LOADED, Parser, flag
from .status import DONE, INTERRUPTED, STORE, USAGE, CommandError, status_of

COMMANDS = {
    "add": ("entries.add", "append one entry"),
    "import": ("entries.import_file", "append the entries of a file: NDJSON, CSV, plain lines, Parquet or Arrow"),
    "export": ("history.export", "write entries to a Parquet, Arrow or CSV file"),
    "range": ("entries.range", "print the entries between two IDs"),
    "tail": ("entries.range", "print the last entries and then new ones"),
    "get": ("entries.range", "print the entry with one ID"),
    "defer": ("entries.deferred", "append an entry at a later time"),
    "deferred": ("entries.deferred", "list the deferred entries, or cancel some"),
    "schedule": ("entries.schedule", "append an entry again and again: set, list, pause, resume, remove, run"),
    "delete": ("entries.add", "delete entries by ID"),
    "trim": ("entries.add", "evict the oldest entries"),
    "streams": ("entries.streams", "list the streams"),
    "info": ("entries.info", "show a store, a stream, its rax or one node"),
    "rename": ("entries.add", "give a stream another name"),
    "delete-stream": ("entries.add", "delete a stream with all its entries"),
    "configure": ("entries.add", "change a stream's settings"),
    "read": ("groups.read", "read new entries in a consumer group, or those after an ID"),
    "ack": ("groups.read", "acknowledge entries that were delivered"),
    "nack": ("groups.pending", "give delivered entries back to the group"),
    "pending": ("groups.pending", "show the entries that were delivered and not acknowledged"),
    "claim": ("groups.pending", "move pending entries to another consumer"),
    "autoclaim": ("groups.pending", "claim entries that have been pending for too long"),
    "groups": ("groups.groups", "list a stream's consumer groups, with their lag"),
    "lag": ("groups.groups", "print how many entries a group has not been delivered yet"),
    "job": ("groups.groups", "print what has become of an entry in a group"),
    "create-group": ("groups.groups", "create a consumer group"),
    "configure-group": ("groups.groups", "limit what a consumer group delivers"),
    "destroy-group": ("groups.groups", "delete a consumer group with its consumers and pending entries"),
    "set-group-id": ("groups.groups", "move a group forward or back"),
    "pause": ("groups.groups", "stop a group's deliveries for a time"),
    "resume": ("groups.groups", "end the pause of a group"),
    "consumers": ("groups.groups", "list a group's consumers"),
    "create-consumer": ("groups.groups", "create a consumer in a group"),
    "delete-consumer": ("groups.groups", "delete a consumer; hand over or drop its pending entries"),
    "worker": ("groups.worker", "run a function for each entry of a group"),
    "cancel": ("groups.worker", "give up entries that wait or run"),
    "dlq": ("groups.worker", "list, replay or delete a group's dead letters"),
    "pub": ("pubsub.pub", "publish a message to a subject, or to a channel"),
    "sub": ("pubsub.pub", "print messages published to matching subjects, or on channels"),
    "unsub": ("pubsub.pub", "remove a durable subscription with its undelivered messages"),
    "bind": ("pubsub.pub", "append messages published to matching subjects to a stream"),
    "unbind": ("pubsub.pub", "end a binding"),
    "bindings": ("pubsub.pub", "list the bindings"),
    "subjects": ("pubsub.interest", "draw the tree of subscribed subjects, with counts"),
    "interest": ("pubsub.interest", "list the subscriptions that a subject reaches"),
    "serve": ("serve", "serve the store to clients of Redis"),
    "top": ("watching", "watch a store in the terminal: what is wrong, streams, groups, entries"),
    "web": ("watching", "serve a page that shows a store live"),
    "plot": ("watching", "plot a stream's throughput, lag and delivery latency"),
    "metrics": ("watching", "print the figures of a store for Prometheus"),
    "check": ("care.check", "check every invariant of a store and report what is wrong"),
    "doctor": ("care.doctor", "examine a machine and its disk, and print what is wrong and what to do"),
    "salvage": ("care.check", "copy everything intact from a damaged store into a new one"),
    "snapshot": ("care.snapshot", "copy one state of a store while it is in use: whole, as an increment, in shards"),
    "restore": ("care.snapshot", "make a store from a snapshot"),
    "verify": ("care.snapshot", "compare every byte of a snapshot with its checksums"),
    "maintain": ("care.compact", "apply the streams' retention"),
    "compact": ("care.compact", "rewrite the data file without the space of deleted entries"),
    "scan": ("history.scan", "run SQL over a stream with Spark"),
    "plan": ("history.scan", "show how a scan would be cut into partitions"),
    "crashtest": ("care.crashtest", "crash a program that writes files, and check what is left"),
    "bench": ("care.bench", "measure the cost of commits, queues and scans, compared with SQLite"),
    "demo": ("demo.demo", "import real text, kill a writer, and show that nothing was lost"),
    "completion": ("completion", "print a completion script for bash, zsh or fish"),
}
_TITLES = {
    "entries": "streams and their entries",
    "groups": "consumer groups and workers",
    "pubsub": "publish and subscribe",
    "watching": "watching a store (the extra raxlog[ui])",
    "history": "a stream as a table (the extra raxlog[spark])",
    "care": "maintenance of a store",
}

_DESCRIPTION = """\
raxlog: the Redis Streams data model, durable, embedded, in one directory on disk.

{}

'raxlog COMMAND --help' explains a command, with an example."""

_EPILOG = """\
exit status:
  0    done
  1    the answer is no: nothing matched, no such entry, stream or group, an ID too small
  2    usage: an unknown option, a wrong ID, fields that cannot be stored, bad input
  3    the store cannot be opened, read or written
  130  interrupted by Ctrl-C

Fields are text if they are UTF-8. Other bytes are shown as \\xNN in plain output (where
a backslash is doubled), and as {"base64": "…"} with --json. IDs are "ms-seq" in both.

example:
  raxlog add events.rax orders item=book qty=2
  raxlog range events.rax orders --json"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status. Never raises for what a user can do wrong."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    while (taken := os.open(os.devnull, os.O_RDWR)) <= 2:  # else a file of the store would take a closed one
        pass
    os.close(taken)
    if sys.stdout is None:
        return _say("standard output is closed", STORE)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal without "…" prints \u2026
    try:
        status = _run(arguments)
        sys.stdout.flush()
    except SystemExit as leaving:  # --help
        return leaving.code if isinstance(leaving.code, int) else USAGE
    except BrokenPipeError:
        _forget(sys.stdout)  # the reader of the output has closed it
        return DONE
    except KeyboardInterrupt:
        return _say("interrupted", INTERRUPTED)
    except CommandError as failure:
        return _say(str(failure), failure.status)
    except RaxlogError as error:
        from . import messages  # noqa: PLC0415

        return _say(messages.in_options(str(error)), status_of(error))
    except OSError as error:
        return _say(str(error), STORE)
    return status


def _run(arguments: list[str]) -> int:
    if arguments and arguments[0] in COMMANDS:
        name, rest = arguments[0], arguments[1:]
        importlib.import_module(f".commands.{COMMANDS[name][0]}", __name__)
        command = LOADED[name]
        return command.run(command.parser(name, COMMANDS[name][1]).read(rest)) or DONE
    if any(not argument.startswith("-") for argument in arguments):
        raise CommandError(_unknown(arguments), USAGE)
    width = max(map(len, COMMANDS)) + 2
    listed: dict[str, list[str]] = {title: [] for title in (*_TITLES.values(), "also")}
    for name, (module, summary) in COMMANDS.items():
        listed[_TITLES.get(module.partition(".")[0], "also")].append(f"  {name:{width}}{summary}")
    blocks = ("\n".join([output.styled(f"{title}:", output.BOLD), *lines]) for title, lines in listed.items())
    parser = Parser(prog="raxlog", description=_DESCRIPTION.format("\n\n".join(blocks)), epilog=_EPILOG,
                    usage="raxlog [--help] [--version] COMMAND STORE …")
    flag("--version", "print the versions, and whether the kernels run compiled or as plain Python")(parser)
    JSON(parser)
    args = parser.read(arguments)
    if args.version:
        text = "raxlog {version} (kernels: {kernels}; LMDB {lmdb}, Python {python})"
        output.answer(args.json, versions(), text.format(**versions()))
        return DONE
    parser.print_help(sys.stderr)
    return USAGE


def _unknown(arguments: list[str]) -> str:
    """The message where the first argument is not a command; it names a command that is like it."""
    name = next(argument for argument in arguments if not argument.startswith("-"))
    if name != arguments[0] and name in COMMANDS:
        return f"options come after the command: raxlog {name} … {arguments[0]}"
    import difflib  # noqa: PLC0415

    word = name.lower().replace("_", "-")
    near = [
        *difflib.get_close_matches(word, COMMANDS, 1),
        *difflib.get_close_matches(word.removeprefix("x"), COMMANDS, 1),  # XADD, XRANGE
        *(command for command in COMMANDS if len(command) > 2 and word.startswith(command)),
    ]
    if os.sep in name or "." in name:
        hint = "the command comes first: raxlog COMMAND STORE …, see 'raxlog --help'"
    elif near:
        hint = f"did you mean {near[0]!r}? 'raxlog --help' lists them all"
    else:
        hint = "'raxlog --help' lists all"
    return f"there is no command {name!r}; {hint}"


def _say(message: str, status: int) -> int:
    """One line on stderr, whatever the message holds, after what was printed before it."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:
        _forget(sys.stdout)
    if sys.stderr is None:
        return status
    try:
        prefix = output.styled("raxlog:", output.RED, sys.stderr)
        print(f"{prefix} {output.one_line(message)}", file=sys.stderr, flush=True)
    except OSError:
        _forget(sys.stderr)
    return status


def _forget(stream: TextIO) -> None:
    """Redirect a stream that has no reader to /dev/null, so that the interpreter's last flush succeeds."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, stream.fileno())
    except OSError:
        stream.close()
    finally:
        os.close(nowhere)
