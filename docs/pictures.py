"""The pictures of the command line: ``python docs/pictures.py`` runs a session in a terminal and draws what it shows.

    session.svg    a store, its groups, entries with their times        doctor.svg    raxlog doctor

Both are drawn by rich (``Console.export_svg``) from what the commands have written to a pseudo terminal.
"""

from __future__ import annotations

import fcntl
import os
import re
import struct
import subprocess
import sys
import tempfile
import termios
from contextlib import suppress
from pathlib import Path

import raxlog
from rich.console import Console
from rich.text import Text

DOCS = Path(__file__).parent
COLUMNS = 100
COLOUR = re.compile(r"\x1b\[[\d;]*m")
SESSIONS = {
    "session.svg": ["raxlog info shop.rax", "raxlog range shop.rax orders --time --count 3",
                    "raxlog groups shop.rax orders --time", "raxlog pending shop.rax orders billing"],
    "doctor.svg": ["raxlog doctor shop.rax"],
}


def shown(command: str, folder: str) -> str:
    """What a command writes to a terminal."""
    ours, its = os.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("4H", 40, COLUMNS, 0, 0))
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": str(COLUMNS)}
    words = [sys.executable, "-m", *command.split()]
    with subprocess.Popen(words, cwd=folder, stdin=its, stdout=its, stderr=its, env=environment):
        os.close(its)
        parts = []
        with suppress(OSError):  # EIO at the end
            while part := os.read(ours, 65536):
                parts.append(part)
    os.close(ours)
    text = b"".join(parts).decode().replace("\r\n", "\n").replace(folder, "/srv")
    return "\n".join(with_spaces(line) for line in text.split("\n"))


def with_spaces(line: str) -> str:
    """A line with spaces for its tabs, colours not counted."""
    done = ""
    for part in line.split("\t"):
        done += " " * (8 - len(COLOUR.sub("", done)) % 8) + part if done else part
    return done


def fill(folder: str) -> None:
    """The store that the session looks at."""
    with raxlog.open(Path(folder, "shop.rax"), encoding="utf-8") as store:
        orders = store.stream("orders")
        minute = 1_795_000_000_000  # November 2026
        items = ("book", "atlas", "globe", "map", "compass", "lamp", "chart", "pen", "ink")
        orders.extend([{"item": item, "qty": str(number % 3 + 1)} for number, item in enumerate(items)],
                      ids=[f"{minute + number * 7_331}-0" for number in range(len(items))])
        billing = orders.create_group("billing")
        orders.create_group("shipping")
        taken = billing.read("anna", count=5)
        billing.read("ben", count=2)
        billing.ack(*[entry.id for entry in taken[:3]])
        store.stream("mail").extend([{"to": "ann@example.org"}] * 40, ids=[f"{minute}-{n}" for n in range(40)])


def drawn(name: str, folder: str) -> str:
    """One of the pictures, as SVG."""
    with open(os.devnull, "w", encoding="utf-8") as nothing:
        console = Console(record=True, width=COLUMNS, force_terminal=True, file=nothing)
        for command in SESSIONS[name]:
            console.print(Text(f"$ {command}"))
            console.print(Text.from_ansi(shown(command, folder)))
    text = console.export_svg(title="raxlog", unique_id=name.removesuffix(".svg"))
    return re.sub(r"\s+@font-face \{.*?\}", "", text, flags=re.S)  # of another server


def main(target: Path) -> None:
    """Draw all of them into a folder."""
    with tempfile.TemporaryDirectory(prefix="raxlog-pictures-") as folder:
        fill(folder)
        for name in SESSIONS:
            (target / name).write_text(drawn(name, folder), encoding="utf-8")


if __name__ == "__main__":
    (DOCS / "pictures").mkdir(exist_ok=True)
    main(DOCS / "pictures")
