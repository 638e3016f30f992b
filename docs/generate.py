"""The reference pages that are made from the program itself: ``python docs/generate.py`` writes them.

    reference/cli.md            raxlog --help: all commands, with a link to each
    reference/cli/NAME.md       the help of one command
    reference/errors.md         the tree of exceptions, with their docstrings
    reference/spark-options.md  the options of the Spark source

    site/llms.txt               the index, for programs that read documentation

tests/docs/test_pages.py compares the files with what this makes.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
from collections.abc import Callable
from dataclasses import fields
from functools import partial
from pathlib import Path

import raxlog
from raxlog.tools import cli

DOCS = Path(__file__).parent
_ABOUT = """\
> Redis Streams in a directory: durable, embedded, without a server. A Python library (Linux, Python 3.11 and
> newer) and a command line. Streams, consumer groups, workers with retries and dead letters, transactions,
> publish and subscribe, snapshots, Arrow and Spark. `import raxlog; store = raxlog.open("events.rax")`.

Durations are seconds. A write is on disk when the call returns. Fields are bytes unless the store is opened
with `encoding="utf-8"`. One machine only; any number of its processes may open the same store.
"""


def help_of(*command: str) -> str:
    """What ``raxlog COMMAND --help`` prints."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        cli.main([*command, "--help"])
    return printed.getvalue().rstrip()


def cli_page() -> str:
    """The command line: its commands in the groups of ``raxlog --help``, and what that says beside them."""
    parts = ["# Command line", "",
             "A page for each command shows its help, as `raxlog COMMAND --help` prints it.",
             "[The command line](../command-line.md) explains what all commands have in common. `docs/generate.py`",
             "writes these pages.", ""]
    others = []
    for part in help_of().split("\n\n"):
        title, *rows = part.splitlines()
        names = [words[1] for row in rows if (words := re.match(r"  (\S+) {2,}", row)) and words[1] in cli.COMMANDS]
        if names:
            parts += [f"## {title[0].upper()}{title[1:].rstrip(':')}", "", "| command | what |", "|---|---|",
                      *(f"| [{name}](cli/{name}.md) | {cli.COMMANDS[name][1]} |" for name in names), ""]
        else:
            others.append(part)
    return "\n".join([*parts, "## raxlog --help", "", "```text", "\n\n".join(others), "```", ""])


def command_page(name: str) -> str:
    """The help of one command."""
    return "\n".join([f"# raxlog {name}", "", "```text", help_of(name), "```", "",
                      "[All commands](../cli.md)", ""])


def errors_page() -> str:
    """All exceptions, the general ones before those derived from them."""
    parts = ["# Errors", "",
             "Every error that raxlog raises on purpose is a `RaxlogError`. Its message says what was wrong, where,",
             "and what to do. If a call that writes raises one, it has changed nothing on disk. The only exception is",
             "`AppendsLost`, which reports earlier calls. `docs/generate.py` writes this page from the classes.", ""]

    def tree(kind: type[BaseException], depth: int) -> None:
        also = [base.__name__ for base in kind.__bases__ if base.__module__ == "builtins" and base is not Exception]
        more = f", also a `{also[0]}`" if also else ""
        meaning = re.sub(r"(\w)\n+ *(?=``\w+`` {2,}|The )", r"\1.\n", kind.__doc__ or "")
        meaning = re.sub(r"^ *(``\w+``) {2,}", r"\1: ", meaning, flags=re.M)  # a table of its attributes
        meaning = " ".join(meaning.replace("``", "`").split())
        parts.append(f"{'  ' * depth}- **`{kind.__name__}`**{more}: {meaning}")
        for below in sorted(kind.__subclasses__(), key=lambda one: order.get(one, -1)):
            if below in order:  # a module of the tools may be loaded, with classes of its own
                tree(below, depth + 1)

    classes = vars(__import__("raxlog.storage.errors", fromlist=["errors"])).values()
    order = {one: place for place, one in enumerate(classes) if isinstance(one, type)}
    tree(raxlog.RaxlogError, 0)
    handlers = "`raxlog.Retry`, `raxlog.Snooze`, `raxlog.Discard`"
    parts += ["", f"A worker's handler may raise {handlers}, which decide what happens to its",
              "entry and are not errors. `raxlog.TimeLimit` is raised in a handler that takes too long, and",
              "`raxlog.Cancelled` in one whose entry has been cancelled. See [jobs](../jobs.md).", "",
              "On the command line an error is one line on stderr. The exit status is 1 if the answer is no (no such",
              "stream, group or entry), 2 for wrong usage, and 3 if the store cannot be opened, read or written.", ""]
    return "\n".join(parts)


def spark_page() -> str:
    """The options of the Spark source: those of a load, a readStream, a save."""
    from raxlog.tools.spark import options  # noqa: PLC0415

    defaults = {name: made.default for made in fields(options.Options) for name in made.metadata}
    parts = ["# Options of the Spark source", "",
             "These are all options of `format(\"raxlog\")`, with the values that they accept and where they may be",
             "given. Names are case-insensitive. [Spark](../spark.md) explains their meanings. Written by",
             "`docs/generate.py`.", "",
             "| option | value | default | reading | readStream | writing |", "|---|---|---|---|---|---|"]
    for name, option in options.OPTIONS.items():
        default = defaults.get(name)
        shown = "" if default is None else str(default).lower() if isinstance(default, bool) else str(default)
        shown = "required" if name == "path" else shown and f"`{shown}`"
        uses = " | ".join("yes" if use in option.uses else "" for use in (options.READ, options.FOLLOW, options.WRITE))
        parts.append(f"| `{name}` | {option.what.replace('|', chr(92) + '|')} | {shown} | {uses} |")
    return "\n".join([*parts, ""])


def llms_page() -> str:
    """The index by llmstxt.org's form: a heading, what it is, and lists of links to the Markdown pages."""
    parts = ["# raxlog", "", *_ABOUT.splitlines(), ""]
    for line in (DOCS / "index.md").read_text(encoding="utf-8").splitlines():
        row = re.match(r"\| \[([^]]+)\]\(([^)]+)\) \|(?:.*\|)? ([^|]+) \|$", line)
        if line.startswith("## "):
            parts += [line, ""]
        elif row:
            parts.append(f"- [{row[1]}]({os.path.normpath('docs/' + row[2])}): {row[3]}")
        elif parts[-1].startswith("- "):
            parts.append("")
    return "\n".join(parts) + "\n"


PAGES: dict[str, Callable[[], str]] = {
    "reference/cli.md": cli_page, "reference/errors.md": errors_page, "reference/spark-options.md": spark_page,
    "site/llms.txt": llms_page,
    **{f"reference/cli/{name}.md": partial(command_page, name) for name in cli.COMMANDS},
}

if __name__ == "__main__":
    os.environ.pop("COLUMNS", None)
    (DOCS / "reference" / "cli").mkdir(exist_ok=True)
    for old in (DOCS / "reference" / "cli").glob("*.md"):
        old.unlink()
    for page, text in PAGES.items():
        (DOCS / page).write_text(text(), encoding="utf-8")
