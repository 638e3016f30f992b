"""The demo's input: a file that is named, else real text found on this machine.

    1  the history of the git repository here: an event for each file a commit changed
    2  the lines of the files it tracks                               until there are
    3  the lines of Python's own library                              100,000 events
    4  the texts of the licences in /usr/share/common-licenses

Nothing is made up. ``taken`` lists what came from where.
"""

from __future__ import annotations

import io
import os
import subprocess
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from .... import output
from ...status import USAGE, CommandError
from ..entries import input_formats

Pairs = list[tuple[bytes, bytes]]

_COMMIT = "\x1e%H%x1f%aI%x1f%an%x1f%s"  # separates commits and fields in git's output
_LICENCES = Path("/usr/share/common-licenses")


@dataclass
class DemoInput:
    """The events, and where they were taken from."""

    events: list[Pairs] = field(default_factory=list)
    taken: list[str] = field(default_factory=list)

    def take(self, found: Iterator[Pairs], limit: int, what: str, nouns: str = "lines") -> None:
        """Take events until there are ``limit``; note how many there were of what."""
        before = len(self.events)
        self.events.extend(islice(found, limit - before))
        if len(self.events) > before:
            self.taken.append(f"{len(self.events) - before:,} {nouns} of {what}")


def read_file(path: str, limit: int) -> DemoInput:
    """The first ``limit`` events of a file in any format that import knows. CommandError if none."""
    found = DemoInput()
    try:
        with open(path, "rb") as file:
            kind = input_formats.guess(path, file)
            if kind in input_formats.TABLES:
                raise CommandError(f"{path} is a table ({kind}); the demo reads text", USAGE)
            delimiter = "\t" if path.lower().endswith(".tsv") else ","
            records = input_formats.records(kind, input_formats.Lines(file), delimiter=delimiter)
            found.take(_good(path, input_formats.each(records)), limit, f"{path} ({kind})", "events")
    except OSError as error:
        raise CommandError(f"{path} cannot be read: {error.strerror}", USAGE) from None
    if not found.events:
        raise CommandError(f"{path} has nothing in it to import", USAGE)
    return found


def read_what_is_here(limit: int) -> DemoInput:
    """Up to ``limit`` real events of this machine."""
    found = DemoInput()
    found.take(_history(), limit, "the git history here", "file changes")
    tracked = [Path(os.fsdecode(name)) for name in _git("ls-files", "-z").split(b"\0") if name]
    found.take(_lines_of(tracked), limit, "the files tracked by git here")
    library = Path(sysconfig.get_path("stdlib"))
    found.take(_lines_of(sorted(library.glob("*.py"))), limit, f"Python's library ({library})")
    found.take(_lines_of(sorted(library.glob("*/*.py"))), limit, "its packages")
    if _LICENCES.is_dir():
        found.take(_lines_of(sorted(_LICENCES.iterdir())), limit, f"the licences in {_LICENCES}")
    if not found.events:
        raise CommandError("there is no text here to take; name a file", USAGE)
    return found


def _good(path: str, records: Iterator[input_formats.Record | input_formats.Bad]) -> Iterator[Pairs]:
    for record in records:
        if isinstance(record, input_formats.Bad):
            raise CommandError(f"{path}:{record.line}: {output.one_line(record.what)}", USAGE)
        yield list(zip(record[2][::2], record[2][1::2], strict=True))


def _git(*arguments: str) -> bytes:
    """The output of git; empty where there is no git, or no repository."""
    command = ["git", "-c", "core.quotePath=false", *arguments]
    try:
        return subprocess.run(command, capture_output=True, timeout=5, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return b""


def _history() -> Iterator[Pairs]:
    log = _git("log", "--reverse", "--numstat", "--max-count=20000", f"--format={_COMMIT}")
    for commit in log.split(b"\x1e")[1:]:
        head, _, changes = commit.partition(b"\n")
        number, date, author, subject = head.split(b"\x1f", 3)
        for change in changes.splitlines():
            added, tab, rest = change.partition(b"\t")
            removed, _, name = rest.partition(b"\t")
            if tab:
                yield [
                    (b"commit", number), (b"time", date), (b"author", author),
                    (b"subject", subject), (b"file", name), (b"added", added), (b"removed", removed),
                ]  # fmt: skip


def _lines_of(files: list[Path]) -> Iterator[Pairs]:
    for path in files:
        try:
            content = path.read_bytes()
        except OSError:
            continue  # a folder, a dangling link, a file without permission
        if b"\0" in content[:8192]:
            continue  # no text
        name = str(path).encode("utf-8", "surrogateescape")
        for number, line in enumerate(io.BytesIO(content), 1):
            yield [(b"file", name), (b"line", b"%d" % number), (b"text", line.rstrip(b"\r\n"))]
