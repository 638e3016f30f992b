"""The journal: one flush a commit, and nothing acknowledged is lost with the second one left out.

A power cut is made by hand here: a copy of the data file gets back the meta pages of one or two
commits before, as they are on a disk that was told to flush only once. What a disk can do besides
(part of the pages, torn records) is in test_power_cut.py.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import lmdb
import pytest
import raxlog
from counting import JOURNAL_ALONE
from raxlog.storage.commit import journal

METAS = 8192

pytestmark = pytest.mark.skipif(not journal.is_supported(), reason="commits flush twice on this system")


def data_of(path: Path) -> Path:
    return path / "000001" / "data.mdb"


def metas_of(path: Path) -> bytes:
    with data_of(path).open("rb") as file:
        return file.read(METAS)


def cut(store: Path, metas: bytes, to: Path) -> Path:
    """What a power cut leaves that kept all of the file but the newest meta pages."""
    shutil.copytree(store, to)
    (to / "000001" / "lock.mdb").unlink()
    with data_of(to).open("r+b") as file:
        file.write(metas)
    return to


def numbers(path: Path) -> list[int]:
    with raxlog.open(path) as store:
        return [int(entry.fields[b"n"]) for entry in store.stream("s").range()]


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_commits_whose_meta_pages_a_power_cut_took_are_there_again(tmp_path: Path, lost: int) -> None:
    with raxlog.open(tmp_path / "s.rax") as store:
        metas = []
        for n in range(40):
            store.stream("s").append({"n": n})
            metas.append(metas_of(store.path))
        image = cut(store.path, metas[-1 - lost], tmp_path / "image.rax")
    assert numbers(image) == list(range(40))
    assert numbers(image) == list(range(40))


def test_every_kind_of_change_comes_back(tmp_path: Path) -> None:
    with raxlog.open(tmp_path / "s.rax") as store:
        events = store.stream("s")
        ids = events.extend([{"n": n} for n in range(500)])
        group = events.create_group("g", "0")
        steps: list[Callable[[], object]] = [
            lambda: events.append({"n": 500}),
            lambda: group.read("w", count=200),
            lambda: group.ack(*ids[:150]),
            lambda: events.delete(*ids[100:130]),
            lambda: events.trim(maxlen=300),
            lambda: store.state.__setitem__(b"k", b"v"),
            lambda: store.rename_stream("s", "t"),
            lambda: store.stream("u").append({"a": 1}),
            lambda: store.delete_stream("u"),
        ]
        before = metas_of(store.path)
        for number, step in enumerate(steps):
            step()
            image = cut(store.path, before, tmp_path / f"image{number}.rax")
            before = metas_of(store.path)
            with raxlog.open(image) as again:
                assert told(again) == told(store)


def told(store: raxlog.Store) -> object:
    """All that a user can see of a store."""
    return [
        (
            name,
            [(entry.id, entry.pairs) for entry in store.stream(name).range()],
            store.stream(name).info(),
            [(g.name, g.last_delivered_id, g.pending, g.lag) for g in store.stream(name).groups()],
            [
                (p.id, p.consumer, p.deliveries)
                for g in store.stream(name).groups()
                for p in store.stream(name).group(g.name).pending("-", "+", 1000)
            ],
        )
        for name in store.streams()
    ] + [dict(store.state)]


@JOURNAL_ALONE
def test_a_commit_too_large_for_the_journal_has_its_meta_page_flushed(tmp_path: Path) -> None:
    traced = tmp_path / "trace.txt"
    if shutil.which("strace") is None:
        pytest.skip("no strace")
    code = """
        import sys, raxlog
        with raxlog.open(sys.argv[1]) as store:
            store.stream("s").append({"n": 0})
            open(sys.argv[1] + ".small", "w").close()
            store.stream("s").append({"n": 1})
            open(sys.argv[1] + ".large", "w").close()
            store.stream("s").append({"n": 2, "much": bytes(100_000)})
            open(sys.argv[1] + ".end", "w").close()
    """
    child = subprocess.run(
        ["strace", "-f", "-o", str(traced), "-e", "trace=fdatasync,fsync,msync,openat", sys.executable, "-c",
         textwrap.dedent(code), str(tmp_path / "s.rax")], check=False, capture_output=True, text=True,
    )
    if "ptrace" in child.stderr:
        pytest.skip("tracing is not permitted here")
    assert child.returncode == 0, child.stderr
    lines = traced.read_text().splitlines()
    marks = [next(i for i, line in enumerate(lines) if f"s.rax.{mark}" in line) for mark in ("small", "large", "end")]
    flushes = [sum("sync(" in line for line in lines[a:b]) for a, b in pairwise(marks)]
    assert flushes == [1, 2]


@JOURNAL_ALONE
def test_a_record_whose_commit_failed_is_void(tmp_path: Path) -> None:
    """The disk takes the record and then not the pages: the append is refused, and stays refused."""
    code = """
        import resource, signal, sys, raxlog
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        store = raxlog.open(sys.argv[1])
        events = store.stream("s")
        for n in range(100):
            events.append({"n": n, "text": "x" * 900})
        resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, resource.RLIM_INFINITY))
        refused = 0
        for n in range(100, 200):
            try:
                events.append({"n": n, "text": "x" * 900})
            except raxlog.RaxlogError:
                refused += 1
                break
        print(n, refused)
        sys.stdout.flush()
        import os
        os._exit(0)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code), str(tmp_path / "s.rax")],
                          check=True, capture_output=True, text=True)
    n, refused = map(int, done.stdout.split())
    assert refused == 1
    assert numbers(tmp_path / "s.rax") == list(range(n))


@JOURNAL_ALONE
def test_a_reader_after_a_power_cut_brings_all_back_too(tmp_path: Path) -> None:
    with raxlog.open(tmp_path / "s.rax") as store:
        before = appended(store, 10)
        image = cut(store.path, before, tmp_path / "image.rax")
        assert metas_of(store.path) != before
    for _ in range(2):
        with raxlog.open(image, readonly=True) as reader:
            assert len(reader.stream("s")) == 10
    assert numbers(image) == list(range(10))


@JOURNAL_ALONE
def test_a_reader_that_may_not_write_sees_the_older_state_and_changes_nothing(tmp_path: Path, nobody: int) -> None:
    with raxlog.open(tmp_path / "s.rax") as store:
        before = appended(store, 10)
        image = cut(store.path, before, tmp_path / "image.rax")
    content = data_of(image).read_bytes()
    code = """
        import encodings.ascii, logging, os, sys  # what is read once the user is another
        import raxlog.store
        os.setgid(int(sys.argv[2])); os.setuid(int(sys.argv[2]))
        with raxlog.open(sys.argv[1], readonly=True) as reader:
            print(len(reader.stream("s")))
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code), str(image), str(nobody)],
                          check=True, capture_output=True, text=True)
    assert done.stdout.split() == ["9"]
    assert data_of(image).read_bytes() == content
    assert numbers(image) == list(range(10))


def appended(store: raxlog.Store, count: int) -> bytes:
    """So many appends, each read so that it is a transaction of LMDB's; the meta pages before the last."""
    for n in range(count):
        before = metas_of(store.path)
        store.stream("s").append({"n": n})
        assert len(store.stream("s")) == n + 1
    return before


@JOURNAL_ALONE
def test_a_record_that_is_damaged_or_of_another_file_is_not_applied(tmp_path: Path) -> None:
    with raxlog.open(tmp_path / "s.rax") as store, raxlog.open(tmp_path / "other.rax") as other:
        before = appended(store, 10)
        appended(other, 10)
        place = data_of(store.path).read_bytes().index(b"raxlog journal") // 4096 * 4096 + 4096
        images = []
        for at in (0, 9, 17, 25, 60):
            image = cut(store.path, before, tmp_path / f"image{at}.rax")
            damage(image, lambda slots, at=at: flipped(slots, at), place)
            images.append(image)
        foreign = data_of(other.path).read_bytes()[place : place + 4 * 65536]
        image = cut(store.path, before, tmp_path / "foreign.rax")
        damage(image, lambda _: foreign, place)
        images.append(image)
    for image in images:
        assert numbers(image) == list(range(9))


def damage(path: Path, change: Callable[[bytes], bytes], place: int) -> None:
    with data_of(path).open("r+b") as file:
        file.seek(place)
        slots = file.read(4 * 65536)
        file.seek(place)
        file.write(change(slots))


def flipped(slots: bytes, at: int) -> bytes:
    """One bit flipped at the same place of all four slots."""
    changed = bytearray(slots)
    for slot in range(4):
        changed[slot * 65536 + at] ^= 4
    return bytes(changed)


def test_a_compacted_copy_of_the_file_gets_a_journal_of_its_own(tmp_path: Path) -> None:
    with raxlog.open(tmp_path / "s.rax") as store:
        for n in range(2000):
            store.stream("s").append({"n": n})
        store.stream("s").trim(maxlen=10)
    copy = tmp_path / "copy.rax"
    shutil.copytree(tmp_path / "s.rax", copy)
    data_of(copy).unlink()
    env = lmdb.open(str(tmp_path / "s.rax" / "000001"), readonly=True, map_size=1 << 30)
    env.copy(str(copy / "000001"), compact=True)
    env.close()
    with raxlog.open(copy) as again:
        before = metas_of(copy)
        again.stream("s").append({"n": 2000})
        image = cut(copy, before, tmp_path / "image.rax")
    assert numbers(image) == list(range(1990, 2001))


@pytest.mark.parametrize("options", [{"durability": "relaxed"}, {"uses_journal": False}])
def test_without_a_journal_nothing_but_lmdb_writes_to_the_file(tmp_path: Path, options: dict[str, object]) -> None:
    with raxlog.open(tmp_path / "s.rax", **options) as store:  # type: ignore[arg-type]
        store.stream("s").append({"n": 0})
        assert b"raxlog journal" not in data_of(store.path).read_bytes()
    assert numbers(tmp_path / "s.rax") == [0]


def test_records_of_a_power_cut_count_for_a_store_opened_without_a_journal_too(tmp_path: Path) -> None:
    with raxlog.open(tmp_path / "s.rax") as store:
        for n in range(10):
            before = metas_of(store.path)
            store.stream("s").append({"n": n})
        images = [cut(store.path, before, tmp_path / f"image{i}.rax") for i in range(2)]
    for image, options in zip(images, [{"durability": "relaxed"}, {"uses_journal": False}], strict=True):
        with raxlog.open(image, **options) as store:  # type: ignore[arg-type]
            assert len(store.stream("s")) == 10


def test_two_settings_of_the_journal_for_one_path_are_a_conflict(tmp_path: Path) -> None:
    with raxlog.open(tmp_path / "s.rax"), pytest.raises(raxlog.SettingsConflict, match="uses_journal"):
        raxlog.open(tmp_path / "s.rax", uses_journal=False)


def test_a_store_with_no_room_for_a_journal_works_without(tmp_path: Path) -> None:
    with raxlog.open(tmp_path / "s.rax", max_map_size=128 << 10) as store:
        store.stream("s").append({"n": 0})
    assert numbers(tmp_path / "s.rax") == [0]
    assert os.path.getsize(data_of(tmp_path / "s.rax")) < 1 << 20


