"""Workloads for tests of the crash tester: right ones, and each again with one bug planted in it.

    notes      plain files: write a temporary one, flush, rename, flush the folder
    ledger     sqlite3, a table and a counter that must agree
    pair       two files that must agree: no file system promises that, so it needs an order

Functions of a module of their own, for they run in other processes.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from raxlog.crashtest import crash_point

Ack = Callable[[Any], None]


# -- notes: a file replaced as a whole -------------------------------------------------------


def flush_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def _replace(folder: Path, name: str, data: bytes, *, flush: bool = True, named: bool = True) -> None:
    with (folder / f"{name}.new").open("wb") as file:
        file.write(data)
        file.flush()
        crash_point("notes.written")
        if flush:
            os.fsync(file.fileno())
    crash_point("notes.flushed")
    os.rename(folder / f"{name}.new", folder / name)
    crash_point("notes.renamed")
    if named:
        flush_folder(folder)


def _note(n: int) -> bytes:
    return b"%d:" % n + bytes([65 + n % 26]) * (n * 701 % 3000)


def write_notes(folder: Path, ack: Ack) -> None:
    for n in range(1, 13):
        _replace(folder, "note", _note(n))
        ack(n)


def write_notes_unflushed(folder: Path, ack: Ack) -> None:
    for n in range(1, 13):
        _replace(folder, "note", _note(n), flush=False)
        ack(n)


def write_notes_folder_unflushed(folder: Path, ack: Ack) -> None:
    for n in range(1, 13):
        _replace(folder, "note", _note(n), named=False)
        ack(n)


def write_notes_in_place(folder: Path, ack: Ack) -> None:
    for n in range(1, 13):
        with (folder / "note").open("wb") as file:
            file.write(_note(n))
            crash_point("notes.written")
            file.flush()
            os.fsync(file.fileno())
        flush_folder(folder)
        ack(n)


def write_notes_acknowledged_early(folder: Path, ack: Ack) -> None:
    for n in range(1, 13):
        ack(n)
        _replace(folder, "note", _note(n))


def check_notes(folder: Path, acks: list[int]) -> None:
    said = acks[-1] if acks else 0
    path = folder / "note"
    data = path.read_bytes() if path.exists() else b""
    number = data.partition(b":")[0]
    n = int(number) if number.isdigit() else 0
    assert data == (_note(n) if n else b""), f"the note is there by half: {data[:20]!r}, {len(data)} bytes"
    assert said <= n <= said + 1, f"note {n} is there, {said} was promised"


# -- ledger: sqlite3 -------------------------------------------------------------------------


def _book(folder: Path, *, synchronous: str = "FULL") -> sqlite3.Connection:
    book = sqlite3.connect(folder / "book.db", isolation_level=None)
    book.execute(f"pragma synchronous = {synchronous}")
    return book


def _keep_book(folder: Path, ack: Ack, *, synchronous: str = "EXTRA", split: bool = False) -> None:
    book = _book(folder, synchronous=synchronous)
    book.execute("begin")
    book.execute("create table if not exists entry (n integer, what blob)")
    book.execute("create table if not exists total (n integer)")
    book.execute("insert into total values (0)")
    book.execute("commit")
    for n in range(1, 9):
        book.execute("begin")
        crash_point("book.begun")
        book.execute("insert into entry values (?, ?)", (n, bytes([n]) * 900))
        if split:
            book.execute("commit")
            book.execute("begin")
        book.execute("update total set n = ?", (n,))
        book.execute("commit")
        ack(n)
    book.close()


def keep_book(folder: Path, ack: Ack) -> None:
    _keep_book(folder, ack, synchronous="EXTRA")


def keep_book_full(folder: Path, ack: Ack) -> None:
    """SQLite's default does not flush the folder after it has deleted the journal, as its manual says."""
    _keep_book(folder, ack, synchronous="FULL")


def keep_book_unflushed(folder: Path, ack: Ack) -> None:
    _keep_book(folder, ack, synchronous="OFF")


def keep_book_split(folder: Path, ack: Ack) -> None:
    _keep_book(folder, ack, split=True)


def check_book(folder: Path, acks: list[int]) -> None:
    said = acks[-1] if acks else 0
    if not (folder / "book.db").exists():
        assert not said, f"the book is gone, and {said} was promised"
        return
    book = _book(folder)
    try:
        if not book.execute("select count(*) from sqlite_master").fetchone()[0]:
            assert not said, f"the book is empty, and {said} was promised"
            return
        total = book.execute("select n from total").fetchone()[0]
        entries = book.execute("select n, what from entry order by n").fetchall()
        assert entries == [(n, bytes([n]) * 900) for n in range(1, total + 1)], f"total {total}, {len(entries)} entries"
        assert said <= total <= said + 1, f"{total} are there, {said} was promised"
        assert book.execute("pragma integrity_check").fetchone()[0] == "ok"
    finally:
        book.close()


# -- processes, threads, endings -------------------------------------------------------------


def write_with_children(folder: Path, ack: Ack) -> None:
    """Three processes, each with a file of its own."""
    pids = []
    for who in range(3):
        pid = os.fork()
        if pid == 0:
            place = folder / str(who)
            place.mkdir()
            flush_folder(folder)
            for n in range(1, 9):
                _replace(place, "note", _note(n))
                ack((who, n))
            os._exit(0)
        pids.append(pid)
    for pid in pids:
        os.waitpid(pid, 0)


def check_children(folder: Path, acks: list[tuple[int, int]]) -> None:
    for who in range(3):
        said = [n for one, n in acks if one == who]
        if said:
            check_notes(folder / str(who), said)


def end_badly(folder: Path, ack: Ack) -> None:
    (folder / "x").write_text("x")
    raise RuntimeError("as it was planned")


def write_nothing(folder: Path, ack: Ack) -> None:
    ack(1)


def content_with_all(folder: Path, acks: list[Any]) -> None:
    """A check that never complains."""


def die_of_it(folder: Path, acks: list[Any]) -> None:
    """A check that the data kills, once there is some."""
    if acks:
        os.abort()


def hang_on_it(folder: Path, acks: list[Any]) -> None:
    if acks:
        time.sleep(3600)


def never_mind_errors(folder: Path, ack: Ack) -> None:
    """Says it is written whatever the system has said."""
    for n in range(1, 5):
        with contextlib.suppress(OSError):
            _replace(folder, "note", _note(n))
        ack(n)


def write_on(folder: Path, ack: Ack) -> None:
    """Goes on where the last life of the folder has ended, for ever."""
    path = folder / "note"
    n = int(path.read_bytes().partition(b":")[0]) if path.exists() else 0
    if n:
        ack(n)  # the last life may have ended before it could; and this one may, after its first note
    while True:
        n += 1
        _replace(folder, "note", _note(n))
        ack(n)


def write_on_early(folder: Path, ack: Ack) -> None:
    path = folder / "note"
    n = int(path.read_bytes().partition(b":")[0]) if path.exists() else 0
    while True:
        n += 1
        ack(n)
        _replace(folder, "note", _note(n))


def write_every_way(folder: Path, ack: Ack) -> None:
    """Every kind of call the recorder knows, so that the images can be compared with the folder."""
    descriptor = os.open(folder / "a", os.O_RDWR | os.O_CREAT, 0o644)
    os.write(descriptor, b"one" * 100)
    os.pwrite(descriptor, b"two", 50)
    os.writev(descriptor, [b"three", b"four" * 300])
    os.pwritev(descriptor, [b"5", b"66"], 2000)
    twin = os.dup(descriptor)
    os.lseek(twin, 0, os.SEEK_END)
    os.write(twin, b"by the twin")
    os.ftruncate(descriptor, 1900)
    os.posix_fallocate(descriptor, 0, 5000)
    os.close(twin)
    os.close(descriptor)
    with (folder / "a").open("ab") as file:
        file.write(b"appended")
    os.truncate(folder / "a", 4000)
    os.mkdir(folder / "d")
    with (folder / "d" / "b").open("w") as text:
        text.write("text" * 1000)
    os.rename(folder / "d" / "b", folder / "b")
    os.link(folder / "b", folder / "d" / "c")
    os.symlink("b", folder / "s")
    (folder / "gone").write_text("x")
    os.unlink(folder / "gone")
    os.mkdir(folder / "away")
    os.rmdir(folder / "away")
    with (folder / "b").open("rb") as source, (folder / "copy").open("wb") as target:
        os.sendfile(target.fileno(), source.fileno(), 0, 3000)
    through = os.open(folder / "through", os.O_WRONLY | os.O_CREAT | os.O_DSYNC, 0o644)
    os.write(through, b"t" * 1500)
    os.close(through)
    here = os.getcwd()
    os.chdir(folder)  # names relative to the working folder, and to a descriptor
    with open("relative", "wb") as file:
        file.write(b"r")
    top = os.open("d", os.O_RDONLY)
    other = os.open("at", os.O_WRONLY | os.O_CREAT, 0o644, dir_fd=top)
    os.write(other, b"at")
    os.close(other)
    os.rename("at", "there", src_dir_fd=top, dst_dir_fd=top)
    os.close(top)
    os.chdir(here)
    os.sync()
    ack("done")


def check_every_way(folder: Path, acks: list[Any]) -> None:
    if not acks:
        return
    a = bytearray(b"one" * 100)
    a[50:53] = b"two"
    a += b"three" + b"four" * 300
    a += bytes(2000 - len(a)) + b"566" + b"by the twin"
    a = a[:1900] + bytes(3100) + b"appended"
    assert (folder / "a").read_bytes() == a[:4000]
    text = b"text" * 1000
    assert (folder / "b").read_bytes() == (folder / "d" / "c").read_bytes() == (folder / "s").read_bytes() == text
    assert (folder / "copy").read_bytes() == text[:3000]
    assert (folder / "through").read_bytes() == b"t" * 1500
    assert (folder / "relative").read_bytes() == b"r"
    assert (folder / "d" / "there").read_bytes() == b"at"
    assert sorted(os.listdir(folder)) == ["a", "b", "copy", "d", "relative", "s", "through"]
    assert sorted(os.listdir(folder / "d")) == ["c", "there"]
