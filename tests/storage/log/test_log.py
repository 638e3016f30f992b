"""A store with a log: what is wrong with the log is said, and all that was acknowledged is there."""

from __future__ import annotations

import errno
import gc
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import forkserver
import lmdb
import pytest
import raxlog
from children import Child
from raxlog.storage.format import records
from raxlog.storage.locks import ofd_lock
from raxlog.storage.locks.writer_lock import WriterLock
from raxlog.storage.log import checkpoint, log, ring
from raxlog.storage.log import ring as log_ring
from xxhash import xxh3_64_intdigest

RING = 1 << 16
SEED = int(os.environ.get("RAXLOG_SEED", "5"))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store whose log is small."""
    place = tmp_path / "s.rax"
    raxlog.open(place, max_map_size=8 * RING).close()
    return place


@pytest.fixture
def killed(path: Path) -> Path:
    """A store whose log holds forty commits that its data file does not: its process was killed."""
    run(path, "for n in range(40): store.stream('s').append({'n': n, 'x': 'y' * 100}, id=f'{n + 1}-0')\nkill()")
    return path


def run(path: Path, work: str, **options: object) -> str:
    """Run some lines in a process that has the store open; what they print."""
    program = f"""
import os, raxlog, signal
def kill(): os.kill(os.getpid(), signal.SIGKILL)
store = raxlog.open({str(path)!r}, **{options!r})
"""
    ended = forkserver.run([sys.executable, "-c", program + work], stdout=subprocess.PIPE, check=False, timeout=60)
    assert ended.returncode in (0, -signal.SIGKILL)
    return ended.stdout.decode()


def numbers(store: raxlog.Store) -> list[int]:
    return [int(entry.fields["n"]) for entry in store.stream("s").range()]


def log_of(path: Path) -> Path:
    return path / "000001" / log_ring.LOG


def change(file: Path, at: int, content: bytes) -> None:
    with file.open("r+b") as opened:
        opened.seek(at)
        opened.write(content)


def flip(file: Path, at: int) -> None:
    content = file.read_bytes()
    change(file, at, bytes([content[at] ^ 0x10]))


def header(file: Path, at: int, content: bytes) -> None:
    """Change the header of a log, checksum and all."""
    page = bytearray(file.read_bytes()[: log_ring.HEADER])
    page[at : at + len(content)] = content
    change(file, 0, xxh3_64_intdigest(bytes(page[8:])).to_bytes(8, "little") + page[8:])


def test_what_a_killed_process_has_committed_is_there(killed: Path) -> None:
    with raxlog.open(killed) as store:
        assert numbers(store) == list(range(40))
        store.stream("s").append({"n": 40}, id="41-0")
    with raxlog.open(killed, readonly=True) as store:
        assert numbers(store) == list(range(41))


def forget_applied(file: Path) -> None:
    """As where a damaged page leads LMDB past the record that says up to where it has what the log does."""
    with lmdb.open(str(file.parent), create=False) as data, data.begin(write=True) as txn:
        assert txn.delete(log_ring.APPLIED_KEY)


@pytest.mark.parametrize(("spoil", "said"), [
    (lambda file: file.unlink(), "missing"),
    (lambda file: flip(file, 30), "header of the log"),
    (lambda file: flip(file, 0), "header of the log"),
    (lambda file: os.truncate(file, 100), "header of the log"),
    (lambda file: os.truncate(file, log_ring.HEADER + 2 * 4096), "cut off"),
    (lambda file: header(file, 24, (RING * 2).to_bytes(8, "little")), "cut off or lengthened"),
    (lambda file: header(file, 24, bytes(8)), "ring of 0 bytes"),
    (lambda file: header(file, 24, (100).to_bytes(8, "little")), "ring of 100 bytes"),
    (lambda file: header(file, 24, (RING + 1).to_bytes(8, "little")), "ring of 65537 bytes"),
    (lambda file: header(file, 32, bytes(16)), "another store"),
    (lambda file: flip(file, log_ring.HEADER + 60), "acknowledged"),
    (lambda file: flip(file, log_ring.HEADER + 9), "acknowledged"),
    (lambda file: change(file, log_ring.HEADER, bytes(512)), "acknowledged"),
    (lambda file: change(file, log_ring.HEADER + 4096, bytes(512)), "acknowledged"),
    (forget_applied, "knows of no log"),
])
@pytest.mark.parametrize("readonly", [False, True])
def test_a_damaged_log_is_refused(killed: Path, spoil: Callable[[Path], None], said: str, readonly: bool) -> None:
    spoil(log_of(killed))
    with pytest.raises(raxlog.CorruptionError, match=said) as refused:
        raxlog.open(killed, readonly=readonly)
    assert str(log_of(killed)) in str(refused.value)
    assert any(problem.kind == "log" for problem in raxlog.check(killed).problems)


OVER_THE_END = """
log = store._env.map.log
def left(): return log.ring.size - log.pos % log.ring.size
while not 8_000 < left() < 9_000:
    store.stream("s").append({"n": -1, "x": "y" * 100})
log.checkpoints.make(True)
log.checkpoints.making.acquire()  # no more of them
store.delete_stream("s")
lap = log.pos // log.ring.size
places = []
for n in range(60):
    store.stream("s").append({"n": n, "x": "y" * 100}, id=f"{n + 1}-0")
    places.append(log.pos)
last = max(at for at in places if at // log.ring.size == lap)
assert places[-1] // log.ring.size > lap and last != places[0]
print(places[places.index(last) - 1], flush=True)
kill()
"""  # commits on both sides of the ring's end, and where the last one before that begins


@pytest.mark.parametrize("inside", [3, 60])
def test_a_damaged_record_is_seen_by_those_of_the_next_lap_after_a_restart(path: Path, inside: int) -> None:
    place = int(run(path, OVER_THE_END)) % RING
    shared = path / "000001" / log_ring.STATE
    (path.parent / "whole").mkdir()
    shutil.copytree(path, path.parent / "whole" / "s.rax")
    shared.write_bytes(bytes(8192))
    flip(log_of(path), log_ring.HEADER + place + inside)
    for readonly in (True, False):
        with pytest.raises(raxlog.CorruptionError, match=f"damaged at byte {log_ring.HEADER + place}"):
            raxlog.open(path, readonly=readonly)
    with raxlog.open(path.parent / "whole" / "s.rax") as store:
        assert numbers(store) == list(range(60))


def test_a_damaged_record_of_any_length_is_seen_by_those_behind_it_after_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "s.rax"
    start = int(run(path, """
log = store._env.map.log
store.stream("s").append({"n": 0})
start = log.pos
store.stream("s").append({"n": 1, "x": os.urandom(100_000)})
for n in range(2, 30):
    store.stream("s").append({"n": n})
assert not log.checkpoints.made and log.pos < log.ring.size
print(start, flush=True)
kill()"""))
    (path / "000001" / log_ring.STATE).write_bytes(bytes(8192))
    flip(log_of(path), log_ring.HEADER + start + 10)  # its length
    with pytest.raises(raxlog.CorruptionError, match=f"damaged at byte {log_ring.HEADER + start}"):
        raxlog.open(path)


@pytest.mark.parametrize("laps", [1, 3])
def test_a_data_file_that_is_older_than_what_is_left_of_its_log_is_refused_after_a_restart(path: Path,
                                                                                          laps: int) -> None:
    with raxlog.open(path) as store:
        for n in range(100):
            store.stream("s").append({"n": n, "x": "y" * 100})
    data = (path / "000001" / "data.mdb").read_bytes()
    run(path, f"""
end = store._env.map.log.pos + {laps} * {RING} + 20_000
while store._env.map.log.pos < end:
    store.stream("s").append({{"n": 100, "x": "y" * 100}})
kill()""")
    (path / "000001" / "data.mdb").write_bytes(data)
    (path / "000001" / log_ring.STATE).write_bytes(bytes(8192))
    with pytest.raises(raxlog.CorruptionError, match="acknowledged"):
        raxlog.open(path)


@pytest.mark.parametrize("bits", [31, 32, 33, 40, 62])
def test_a_log_goes_on_beyond_each_power_of_two(path: Path, bits: int) -> None:
    start = (1 << bits) - 500
    with lmdb.open(str(path / "000001"), create=False) as data, data.begin(write=True) as txn:
        txn.put(log_ring.APPLIED_KEY, records.seal(log_ring.APPLIED_KEY, [start, 7, start, 7]))
    with raxlog.open(path) as store:
        for n in range(0, 20, 2):
            store.stream("s").append({"n": n})
            run(path, f"store.stream('s').append({{'n': {n + 1}}})\nkill()")
            assert numbers(store) == list(range(n + 2))
        assert store._env.map.log.pos > 1 << bits
    run(path, "for n in range(20, 30): store.stream('s').append({'n': n})\nkill()")
    with raxlog.open(path) as store:
        assert numbers(store) == list(range(30))
        assert store.compact(lambda *_: None) is not None
        assert numbers(store) == list(range(30))
    assert raxlog.check(path).ok


def test_a_log_of_a_newer_format_is_refused(killed: Path) -> None:
    header(log_of(killed), 16, (2).to_bytes(8, "little"))
    with pytest.raises(raxlog.UnsupportedFormat, match="format 2"):
        raxlog.open(killed)


def test_the_log_of_another_store_is_refused(killed: Path, tmp_path: Path) -> None:
    with raxlog.open(tmp_path / "other") as store:
        store.stream("s").append({"n": 7})
    shutil.copy(log_of(tmp_path / "other"), log_of(killed))
    with pytest.raises(raxlog.CorruptionError, match="another store"):
        raxlog.open(killed)


@pytest.mark.parametrize("state", [b"\xff" * 8192, b"", os.urandom(8192)])
def test_what_the_shared_file_says_does_not_count_for_the_first_to_enter(killed: Path, state: bytes) -> None:
    shared = killed / "000001" / log_ring.STATE
    shared.write_bytes(state)
    with raxlog.open(killed) as store:
        assert numbers(store) == list(range(40))
    shared.unlink()
    with raxlog.open(killed) as store:
        assert numbers(store) == list(range(40))


def test_an_end_that_lies_beyond_the_records_is_refused(path: Path) -> None:
    with raxlog.open(path) as store:
        store.stream("s").append({"n": 0})
        content = (path / "000001" / log_ring.STATE).read_bytes()
        end = int.from_bytes(content[4096:4104], "little")
        change(path / "000001" / log_ring.STATE, 4096, (end + 100).to_bytes(8, "little"))
        with pytest.raises(raxlog.CorruptionError, match="said to end"):
            numbers(store)
        with pytest.raises(raxlog.CorruptionError, match="said to end"):
            store.stream("s").append({"n": 1})
        change(path / "000001" / log_ring.STATE, 4096, content[4096:4104])
        store.stream("s").append({"n": 1})
        assert numbers(store) == [0, 1]


@pytest.mark.parametrize("durability", ["commit", "relaxed"])
def test_an_end_that_lies_before_acknowledged_records_hides_none_of_them(path: Path, durability: str) -> None:
    """Three commits before the end. What is on disk shows the end all the same; else one record can be a killed call's,
    and not three."""
    shared = path / "000001" / log_ring.STATE
    with raxlog.open(path, durability=durability) as store:
        inside = store._env.map.log
        places = []
        for n in range(10):
            store.stream("s").append({"n": n})
            places.append(inside.pos)
        if durability == "relaxed":
            with inside.mutex:  # the thread flushes no more
                change(shared, 4096 + 8 * ring.FLUSHED, places[-4].to_bytes(8, "little"))
                inside.checkpoints.flushed = time.monotonic() + 1e6
        change(shared, 4096, places[-4].to_bytes(8, "little"))
        program = f"import raxlog\nstore = raxlog.open({str(path)!r}, durability={durability!r})\n"
        program += "store.stream('s').append({'n': 10})\n"
        ended = forkserver.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
        if durability == "relaxed":
            assert "says that the log ends before it does" in ended.stderr
            with pytest.raises(raxlog.CorruptionError, match="said to end"):
                store.stream("s").append({"n": 10})
        else:
            assert not ended.stderr
        assert numbers(store) == list(range(10 + (durability == "commit")))


@pytest.mark.parametrize("size", [0, log_ring.HEADER, log_ring.HEADER + RING - 1])
def test_a_writer_notices_that_the_log_was_cut_off_in_use_and_saves_what_it_holds(path: Path, size: int) -> None:
    with raxlog.open(path) as store:
        for n in range(40):
            store.stream("s").append({"n": n})
        os.truncate(log_of(path), size)
        for _ in range(2):
            with pytest.raises(raxlog.StoreError, match="cut off while the store is in use"):
                store.stream("s").append({"n": 40})
        assert numbers(store) == list(range(40))
    with pytest.raises(raxlog.CorruptionError, match="log"):
        raxlog.open(path)
    raxlog.salvage(path, path.with_name("saved.rax"))
    with raxlog.open(path.with_name("saved.rax")) as store:
        assert numbers(store) == list(range(40))


@pytest.mark.parametrize("name", [log_ring.LOG, log_ring.STATE])
def test_a_file_that_is_deleted_in_use_is_noticed(path: Path, name: str) -> None:
    with raxlog.open(path) as store:
        store.stream("s").append({"n": 0})
        (path / "000001" / name).unlink()
        with pytest.raises(raxlog.StoreError, match=name):
            store.stream("s").append({"n": 1})


def test_a_record_that_was_lost_brings_nothing_back_when_it_is_written_again(path: Path) -> None:
    """A power cut takes a relaxed record, and leaves the one behind it; the first is written again as it was."""
    work = "store.stream('s').append({'n': %d}, id='%d-0')\n"
    run(path, "store.stream('s').append({'n': 0}, id='1-0')\n")
    before = log_of(path).read_bytes()
    run(path, work % (1, 2) + work % (2, 3) + "kill()", durability="relaxed")
    after = log_of(path).read_bytes()
    first = next(at for at in range(len(after)) if after[at] != before[at])
    change(log_of(path), first, before[first : first + 8])
    with raxlog.open(path) as store:
        assert numbers(store) == [0]
    run(path, work % (1, 2) + "kill()", durability="relaxed")
    with raxlog.open(path) as store:
        assert numbers(store) == [0, 1]


@contextmanager
def read_only(path: Path) -> Iterator[Path]:
    """The same folder on a medium that cannot be written."""
    place = path.parent / "medium"
    place.mkdir()
    if os.geteuid() or subprocess.run(["mount", "--bind", path, place], check=False).returncode:
        pytest.skip("needs to mount")
    try:
        subprocess.run(["mount", "-o", "remount,ro,bind", place], check=True)
        yield place
    finally:
        subprocess.run(["umount", "-l", place], check=True)


def test_a_medium_that_cannot_be_written_shows_what_the_log_holds(killed: Path) -> None:
    with read_only(killed) as place:
        before = {file.name: file.read_bytes() for file in (killed / "000001").iterdir()}
        with raxlog.open(place, readonly=True) as store:
            assert numbers(store) == list(range(40))
        assert {file.name: file.read_bytes() for file in (killed / "000001").iterdir()} == before
        with pytest.raises(raxlog.ReadOnlyStore):
            raxlog.open(place)


def test_a_medium_that_cannot_be_written_shows_that_the_last_record_is_damaged(killed: Path) -> None:
    flip(log_of(killed), last_byte(killed))
    with read_only(killed) as place:
        with pytest.raises(raxlog.CorruptionError, match="damaged at byte"):
            raxlog.open(place, readonly=True)
        found = raxlog.check(place)
        assert not found.ok
        assert "damaged at byte" in str(found.problems)


def last_byte(path: Path) -> int:
    """The last byte of the log's last record, in its file."""
    end = int.from_bytes((path / "000001" / log_ring.STATE).read_bytes()[4096:4104], "little")
    return log_ring.HEADER + (end - 1) % RING


def test_a_reader_beside_a_writer_sees_all_that_was_acknowledged(path: Path) -> None:
    with raxlog.open(path) as store:
        code = f"import raxlog\nwith raxlog.open({str(path)!r}, readonly=True) as s: print(len(s.stream('s')))"
        for n in range(200):
            store.stream("s").append({"n": n, "x": "y" * 500})
            if n % 50 == 49:
                seen = forkserver.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
                assert int(seen.stdout) == n + 1


def test_a_child_and_its_parent_go_on_beside_each_other(path: Path) -> None:
    with raxlog.open(path, durability="relaxed") as store:
        store.stream("s").append({"n": 0})
        child = os.fork()
        if not child:
            for n in range(100):
                store.stream("c").append({"n": n, "x": "y" * 1000})
            store.close()
            os._exit(0)
        for n in range(1, 200):
            store.stream("s").append({"n": n, "x": "y" * 500})
        assert os.waitpid(child, 0)[1] == 0
        assert numbers(store) == list(range(200))
        assert len(store.stream("c")) == 100


def test_a_compacted_store_has_a_log_again(path: Path) -> None:
    with raxlog.open(path) as store:
        for n in range(500):
            store.stream("s").append({"n": n, "x": "y" * 1000})
        store.stream("s").trim(maxlen=5)
        assert store.compact().generation == 2
        store.stream("s").append({"n": 500})
        assert numbers(store) == [495, 496, 497, 498, 499, 500]
    assert (path / "000002" / log_ring.LOG).exists()
    with raxlog.open(path) as store:
        assert numbers(store)[-1] == 500


def test_a_stopped_process_in_a_checkpoint_is_named_after_lock_timeout(path: Path) -> None:
    with raxlog.open(path, lock_timeout=0.5) as store:
        program = f"""
import raxlog, sys, time
store = raxlog.open({str(path)!r})
with store._env.map.log.checkpoints.held(True):
    print(flush=True)
    time.sleep(60)
"""
        with forkserver.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as stopped:
            assert stopped.stdout is not None
            stopped.stdout.readline()
            stopped.send_signal(signal.SIGSTOP)
            before: list[int] = []

            def fill() -> None:
                for n in range(1000):
                    store.stream("s").append({"n": n, "x": "y" * 1000})
                    before.append(n)

            with pytest.raises(raxlog.LockTimeout, match=f"process {stopped.pid}"):
                fill()
            assert numbers(store) == before
            # Nor does a closing wait for it, whatever its lock_timeout.
            run(path, "began = __import__('time').monotonic()\nstore.stream('s').range()\nstore.close()\n"
                      "assert __import__('time').monotonic() - began < 20")
            stopped.send_signal(signal.SIGKILL)
        time.sleep(0.1)
        store.stream("s").append({"n": len(before)})
        assert numbers(store) == [*before, len(before)]


def begin_program(program: str, path: Path) -> subprocess.Popen[bytes]:
    """A process that opens the store in an odd way, and says a line once it is where it is wanted."""
    begun = forkserver.Popen([sys.executable, "-c", program, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                             env={**os.environ, "RAXLOG_PURE": "1"})
    assert begun.stdout is not None
    assert begun.stdout.readline() == b"here\n"
    return begun


STOPS_AS_IT_ENTERS = """
import raxlog, sys, time
from raxlog.storage.log import log
def find_damage(*_):
    print("here", flush=True)
    time.sleep(60)
log.find_damage = find_damage
raxlog.open(sys.argv[1])
"""
FINDS_THE_WAY_SHUT = """
import raxlog, sys
from raxlog.storage.locks import ofd_lock
take = ofd_lock.take
def taken(file, *args, **more):
    try:
        take(file, *args, **more)
    except BlockingIOError:
        if str(file.name).endswith("log-state") and ofd_lock.take is taken:
            ofd_lock.take = take
            print("here", flush=True)
            sys.stdin.readline()
        raise
ofd_lock.take = taken
with raxlog.open(sys.argv[1]) as store:
    store.stream("s").append({"n": 40})
    print("appended", flush=True)
    sys.stdin.readline()
"""


MAKES_THE_WORDS_LATE = """
import raxlog, sys
def stop(frame, event, function):
    callers = frame.f_code.co_name, frame.f_back.f_code.co_name if frame.f_back else ""
    if event == "c_call" and function.__name__ in ("pwrite", "posix_fallocate") and "open_state" in callers:
        sys.setprofile(None)
        print("here", flush=True)
        sys.stdin.readline()
sys.setprofile(stop)
with raxlog.open(sys.argv[1]) as store:
    store.stream("s").append({"n": 41})
"""


def test_two_that_find_the_words_of_all_missing_do_not_undo_what_the_other_writes_there(killed: Path) -> None:
    (killed / "000001" / log_ring.STATE).unlink()
    with begin_program(MAKES_THE_WORDS_LATE, killed) as late, raxlog.open(killed) as store:
        store.stream("s").append({"n": 40})
        late.communicate(b"\n", timeout=60)
        assert late.returncode == 0
        store.stream("s").append({"n": 42})
        assert numbers(store) == list(range(43))


def test_a_process_that_is_killed_as_it_enters_first_leaves_that_to_those_that_wait(killed: Path) -> None:
    """Nothing has written the words yet that all share: the file is new, or has gone with the power."""
    (killed / "000001" / log_ring.STATE).write_bytes(bytes(8192))
    with begin_program(STOPS_AS_IT_ENTERS, killed) as first, begin_program(FINDS_THE_WAY_SHUT, killed) as second:
        assert second.stdin is not None
        assert second.stdout is not None
        first.kill()
        first.wait()
        second.stdin.write(b"\n")
        second.stdin.flush()
        assert second.stdout.readline() == b"appended\n"
        with raxlog.open(killed) as store:
            store.stream("s").append({"n": 41})
            assert numbers(store) == list(range(42))
        second.communicate(b"\n", timeout=60)
        assert second.returncode == 0


def test_a_process_that_was_stopped_as_it_entered_is_named(killed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ofd_lock, "_PATIENCE", 0.5)
    with begin_program(STOPS_AS_IT_ENTERS, killed) as stopped:
        stopped.send_signal(signal.SIGSTOP)
        with pytest.raises(raxlog.LockTimeout, match=f"process {stopped.pid}, which is opening {killed}"):
            raxlog.open(killed)
        stopped.send_signal(signal.SIGKILL)
    with raxlog.open(killed) as store:
        assert numbers(store) == list(range(40))


def test_an_opening_whose_closing_an_exception_has_struck_keeps_no_lock(
    killed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    take, give_back, struck = ofd_lock.take, ofd_lock.give_back, []

    def taken(file: Any, start: int, length: int, **more: bool) -> None:
        if str(file.name) == str(killed / "000001" / log_ring.STATE) and more:  # all has been looked at
            struck.append("take")
            raise KeyboardInterrupt
        take(file, start, length, **more)

    def given_back(file: Any, start: int, length: int) -> None:
        if str(file.name) == str(killed / "000001" / log_ring.STATE):
            struck.append("give_back")
            raise KeyboardInterrupt
        give_back(file, start, length)

    gc.disable()
    try:
        with monkeypatch.context() as patched:
            patched.setattr(ofd_lock, "take", taken)
            patched.setattr(ofd_lock, "give_back", given_back)
            with pytest.raises(KeyboardInterrupt):
                raxlog.open(killed)
        assert struck == ["take", "give_back"]
        monkeypatch.setattr(log, "PATIENCE", 0.5)
        with raxlog.open(killed) as store:
            assert numbers(store) == list(range(40))
    finally:
        gc.enable()


def test_a_relaxed_writer_waits_for_a_checkpoint_before_its_changes_fill_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A delta of some bytes keeps a whole node in memory: the ring alone would let far more come."""
    cap = 1 << 16
    monkeypatch.setattr(log, "MOST_MEMORY", cap)
    with raxlog.open(tmp_path / "large.rax", durability="relaxed") as store:
        ids = store.stream("s").extend([{"n": n, "x": "y" * 100} for n in range(30_000)])
        inside = store._env.map.log
        assert inside is not None
        inside.checkpoints.make(True)
        before, most = inside.waits, 0

        def delete() -> None:
            nonlocal most
            for sid in ids[::20]:
                store.stream("s").delete(sid)
                most = max(most, inside.overlay.memory())

        deleting = threading.Thread(target=delete)
        with inside.checkpoints.making:  # none comes, neither the thread's
            deleting.start()
            deadline = time.monotonic() + 30
            while inside.waits == before:
                assert deleting.is_alive(), "all was deleted without a wait"
                assert time.monotonic() < deadline
                time.sleep(0.01)
            behind = inside.pos - inside.ring.words[ring.APPLIED]
            assert behind < inside.ring.size // 2, f"the ring was full before the memory: {behind}"
        deleting.join()
        assert most < 5 * cap
        assert len(store.stream("s")) == 28_500


def test_a_thread_for_checkpoints_that_an_exception_strikes_as_it_begins_is_followed_by_another(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[object] = []
    starts = checkpoint.start_new_thread

    def strike_the_first(work: Callable[..., object], args: tuple[object, ...]) -> int:
        begun.append(work)
        return starts(work, args) if len(begun) > 1 else 0  # the first ends before its first line

    monkeypatch.setattr(checkpoint, "start_new_thread", strike_the_first)
    with raxlog.open(path, durability="relaxed") as store:
        store.stream("s").append({"n": 1})
        store.stream("s").append({"n": 2})
        words = store._env.map.log.ring.words
        deadline = time.monotonic() + 30
        while words[ring.FLUSHED] < words[ring.END]:  # nothing but the thread writes to disk here
            assert time.monotonic() < deadline, f"{len(begun)} threads were begun, and none flushes"
            time.sleep(0.01)


def test_values_too_large_for_the_ring_do_not_stay_in_memory(path: Path) -> None:
    with raxlog.open(path) as store:
        for n in range(5):
            store.stream("s").append({"n": n, "x": bytes(RING)})
            assert store._env.map.log is not None
            assert store._env.map.log.overlay.memory() < RING
        assert numbers(store) == list(range(5))
        store.stream("s").append({"n": 5})
    run(path, f"store.stream('s').append({{'n': 6, 'x': bytes({RING})}})\nkill()")
    with raxlog.open(path) as store:
        assert numbers(store) == list(range(7))


def test_a_key_that_lmdb_cannot_hold_is_refused_by_its_own_call(path: Path) -> None:
    with raxlog.open(path) as store:
        store.stream("s").append({"n": 0})
        for key in (b"", b"k" * 600):
            with pytest.raises(raxlog.StoreError):
                store._env.commits.submit(lambda txn, key=key: txn.put(key, b""), 10.0)
        store.stream("s").append({"n": 1})
    with raxlog.open(path) as store:
        assert numbers(store) == [0, 1]


def test_an_open_store_that_has_committed_last_keeps_its_streams_warm(path: Path) -> None:
    with raxlog.open(path) as store:
        store.stream("s").append({"n": 0})
        epoch = store._env.commits.epoch
        for n in range(1, 20):
            store.stream("s").append({"n": n})
        assert store._env.commits.epoch == epoch
        run(path, "store.stream('s').append({'n': 20})")
        store.stream("s").append({"n": 21})
        assert store._env.commits.epoch > epoch
        assert numbers(store) == list(range(22))


def test_a_closed_store_leaves_none_of_its_files_open(path: Path) -> None:
    def held() -> list[str]:
        with open("/proc/self/maps", encoding="utf-8") as maps:
            mapped = [line for line in maps if str(path) in line]
        return mapped + [link for fd in os.listdir("/proc/self/fd") if str(path) in (link := link_of(fd))]

    def link_of(fd: str) -> str:
        try:
            return os.readlink(f"/proc/self/fd/{fd}")
        except OSError:
            return ""

    store = raxlog.open(path)
    store.stream("s").append({"n": 0})
    assert held()
    store.close()
    assert held() == []


def test_every_kind_of_change_is_in_the_log(tmp_path: Path) -> None:
    """A copy made after each is as after a kill, or a power cut; the data file has none of it."""
    path = tmp_path / "large.rax"  # its log is so large that no checkpoint is due
    with raxlog.open(path) as store:
        store._env.map.log.every = 1 << 40  # type: ignore[union-attr]  # bytes: no checkpoint comes by itself
        events = store.stream("s")
        ids = events.extend([{"n": n} for n in range(500)])
        group = events.create_group("g", "0")
        steps: list[Callable[[], object]] = [
            lambda: events.append({"n": 500}),
            lambda: group.read("w", count=200),
            lambda: group.ack(*ids[:150]),
            lambda: events.delete(*ids[100:130]),
            lambda: events.trim(maxlen=300),
            lambda: store.state.__setitem__("k", b"v"),
            lambda: store.rename_stream("s", "t"),
            lambda: store.stream("u").append({"a": 1}),
            lambda: store.delete_stream("u"),
        ]
        for number, step in enumerate(steps):
            data = (path / "000001" / "data.mdb").read_bytes()
            step()
            assert (path / "000001" / "data.mdb").read_bytes() == data
            shutil.copytree(path, tmp_path / str(number))
            with raxlog.open(tmp_path / str(number)) as again:
                assert seen(again) == seen(store)


def seen(store: raxlog.Store) -> object:
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
                for p in store.stream(name).group(g.name).pending_entries("-", "+", 1000)
            ],
        )
        for name in store.streams()
    ] + [dict(store.state)]


def test_a_record_whose_commit_failed_is_void(path: Path) -> None:
    """The disk takes no more: the append is refused, and stays refused."""
    code = """
import resource
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
for n in range(100):
    store.stream("s").append({"n": n, "text": "x" * 900})
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))
for n in range(100, 2000):
    try:
        store.stream("s").append({"n": n, "text": "x" * 900})
    except raxlog.StoreFull:
        break
print(n, flush=True)
os._exit(0)
"""
    program = f"import os, raxlog, signal\nstore = raxlog.open({str(path)!r})\n{code}"
    done = forkserver.run([sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=60)
    with raxlog.open(path) as store:
        assert 100 <= int(done.stdout) < 1999
        assert numbers(store) == list(range(int(done.stdout)))
        store.stream("s").append({"n": "more"})


@pytest.mark.parametrize(("length", "other", "is_record"), [
    (100, 0, True), (100, 0x10, False), (100, -2, False), (0, 0, False), (RING, 0, False), (1 << 30, 0, False),
])
def test_what_looks_like_a_later_record_is_one_if_it_fits_and_is_of_a_known_opening_in_this_lap(
    killed: Path, length: int, other: int, is_record: bool
) -> None:
    """Else it is the inside of a torn one, or a sector of it beside one of the lap before."""
    with raxlog.open(killed, readonly=True) as store:
        end = store._env.map.log.pos
    opening = ring.RECORD.unpack_from(log_of(killed).read_bytes(), log_ring.HEADER)[4] | 1
    assert end < RING
    behind = ring.RECORD.pack(1 << 60, length, end + 100, 0, opening + other & 0xFFFFFFFF)
    with_behind(killed, end, behind, is_record)


@pytest.mark.parametrize("all_before_on_disk", [0, 1])
def test_a_record_of_any_opening_that_is_valid_behind_a_torn_one_says_what_was_on_disk(
    killed: Path, all_before_on_disk: int
) -> None:
    """The number in the torn one's head may be any: its end may be a sector of the lap before."""
    with raxlog.open(killed, readonly=True) as store:
        end = store._env.map.log.pos
    torn = ring.RECORD.pack(1 << 60, 1000, end + 100, 0, 0x25252525).ljust(ring.HEAD + 1000, b"%")
    covered = ring.RECORD.pack(0, 3, end + 100 + len(torn), 0, 0x77777776 | all_before_on_disk)[8:] + b"\0\0\0"
    valid = xxh3_64_intdigest(covered, 1 << 60).to_bytes(8, "little") + covered
    with_behind(killed, end, torn + valid, bool(all_before_on_disk))


def with_behind(killed: Path, end: int, behind: bytes, is_record: bool) -> None:
    """Open a store with something 100 bytes behind the end of its log, as after a power cut."""
    (killed / "000001" / log_ring.STATE).write_bytes(bytes(8192))
    change(log_of(killed), log_ring.HEADER + end % RING + 100, behind)
    if is_record:
        with pytest.raises(raxlog.CorruptionError, match="acknowledged there, or behind it"):
            raxlog.open(killed)
        return
    with raxlog.open(killed) as store:
        assert numbers(store) == list(range(40))


@pytest.mark.parametrize("boundary", range(15, 25))
def test_a_head_torn_over_one_of_the_same_place_in_the_lap_before_is_no_record(path: Path, boundary: int) -> None:
    """Records of one size begin at the same places in each lap, and are of the same opening."""
    ends = run(path, f"""
for n in range(20000):
    store.state["n"] = (b"%05d" % n) * 200
    print(store._env.map.log.pos, flush=True)
    if n % 10 == 0:
        store._env.map.log.checkpoints.make(True)  # else what lies behind the end may be what LMDB has not yet
    if store._env.map.log.pos > {2 * RING} + 20_000 and n % 10 == 5:
        kill()""").split()
    end, size = int(ends[-1]), int(ends[-1]) - int(ends[-2])
    (path / "000001" / log_ring.STATE).write_bytes(bytes(8192))
    place = end % RING + size
    stale = log_of(path).read_bytes()[log_ring.HEADER + place :][: ring.HEAD]
    assert ring.RECORD.unpack(stale)[2] == end + size - RING
    assert stale[24] & 1
    new = ring.RECORD.pack(1 << 60, size - ring.HEAD, end + size, 0, 0)[:boundary]
    change(log_of(path), log_ring.HEADER + place, new + stale[boundary:])
    with raxlog.open(path) as store:
        assert store._env.map.log.pos >= end


def test_a_head_of_the_lap_before_in_a_torn_sector_is_no_record(path: Path) -> None:
    """Its position is made of both laps, and behind it lies the one that it had behind it then."""
    end = int(run(path, f"""
for upto in ({RING} + 15_000, {RING} + 20_000):
    while store._env.map.log.pos < upto:
        store.stream("s").append({{"n": 1, "x": "y" * 100}})
    if upto == {RING} + 15_000:
        store._env.map.log.checkpoints.make(True)  # so that the log holds nothing of the lap before any more
print(store._env.map.log.pos, flush=True)
kill()"""))
    (path / "000001" / log_ring.STATE).write_bytes(bytes(8192))
    lap = log_of(path).read_bytes()[log_ring.HEADER:]
    at = 0
    heads = []
    while at + ring.HEAD <= RING and (head := ring.RECORD.unpack_from(lap, at))[2] in (at, RING + at) and head[1]:
        heads.append(at)
        at += ring.HEAD + head[1]
        if at == end % RING:  # on with those of the lap before, which begin somewhere behind
            at = next(place for place in range(at + 1, RING) if int.from_bytes(lap[place + 12 : place + 20], "little")
                      == place and ring.RECORD.unpack_from(lap, place)[1] < 1000)
    stale = [place for place in heads if place > end % RING][3]
    change(log_of(path), log_ring.HEADER + stale + 14, b"\x01\0\0\0\0\0" + b"\x03\x30\0\0\x03\x30\0\0")
    with raxlog.open(path) as store:
        assert store._env.map.log.pos >= end
        assert set(numbers(store)) == {1}


DIES = """
real = os.pwrite
def pwrite(*given):
    real(*given)
    kill()
os.pwrite = pwrite
store.stream("killed").append({"n": 0})
"""  # once its record is in the log, and does not count yet


@pytest.mark.parametrize("durability", ["commit", "relaxed"])
def test_a_record_that_does_not_fit_behind_that_of_a_killed_call_is_the_next_one(path: Path, durability: str) -> None:
    """The ring ends there: the next record goes to its beginning, and what was left before that does not count."""
    with raxlog.open(path, durability=durability) as store:
        log_there = store._env.map.log
        stream = store.stream("s")
        n = 0
        while not 800 < RING - log_there.pos % RING < 2000:
            stream.append({"n": n})
            n += 1
        log_there.checkpoints.make(True)  # else the thread may not have made one, and the next lap has no room
        with log_there.checkpoints.making:  # no other: those that come find the rest in the log
            end = log_there.ring.words[ring.END]
            run(path, DIES)
            assert log_there.ring.words[ring.END] == end, "the killed call counts: the case is none"
            stream.append({"n": n, "text": "x" * 3000})
            assert log_there.pos // RING == end // RING + 1, "the record was not the first of a lap: the case is none"
            stream.append({"n": n + 1})
            run(path, f"""
assert [int(entry.fields["n"]) for entry in store.stream("s").range()] == list(range({n + 2}))
assert store.streams() == ["s"]
os._exit(0)""")


def test_an_exception_between_a_commit_and_its_place_in_the_chain_costs_nothing_after_it(path: Path) -> None:
    """At each bytecode of that step, in the plain source; also of a closing, which is run again."""
    code = f"""
import sys
def strike(name, wanted):
    left = [wanted]
    def trace(frame, event, argument):
        if frame.f_code.co_name != name:
            return None if event == "call" else trace
        frame.f_trace_opcodes = True
        if event == "opcode":
            left[0] -= 1
            if left[0] == 0:
                sys.settrace(None)
                raise KeyboardInterrupt
        return trace
    sys.settrace(trace)
    return left
n = wanted = 0
while wanted == 0 or left[0] <= 0:
    wanted += 1
    left = strike("reach", wanted)
    try:
        store.stream("s").append({{"n": n}}, id=f"{{n + 1}}-0")
    except KeyboardInterrupt:
        pass
    sys.settrace(None)
    assert [int(e.fields["n"]) for e in store.stream("s").range()] == list(range(n + 1))
    n += 1
assert wanted > 10
print(n, flush=True)
wanted = 0
while wanted == 0 or left[0] <= 0:
    wanted += 1
    store = raxlog.open({str(path)!r})
    store.stream("s").append({{"n": n}}, id=f"{{n + 1}}-0")
    n += 1
    left = strike("close_files", wanted)
    try:
        store.close()
    except KeyboardInterrupt:
        pass
    sys.settrace(None)
    store.close()
    with raxlog.open({str(path)!r}) as store:
        assert [int(e.fields["n"]) for e in store.stream("s").range()] == list(range(n))
assert wanted > 40
print(n, flush=True)
os._exit(0)
"""
    program = f"import os, raxlog\nstore = raxlog.open({str(path)!r})\n{code}"
    done = forkserver.run([sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=60,
                          env={**os.environ, "RAXLOG_PURE": "1"})
    with raxlog.open(path) as store:
        assert numbers(store) == list(range(int(done.stdout.split()[-1])))


def test_a_large_transaction_behind_a_killed_call_is_all_that_a_reader_sees(path: Path) -> None:
    """Also a reader whose snapshot of LMDB's was begun before that."""
    with raxlog.open(path) as store:
        stream = store.stream("s")
        for n in range(5):
            stream.append({"n": n})
        program = f"""
import raxlog
store = raxlog.open({str(path)!r})
numbers = lambda: [int(entry.fields["n"]) for entry in store.stream("s").range()]
numbers()
inside = store._env.map.log
begin, before = inside.begin_raw, [inside.begin_raw()]
inside.begin_raw = lambda: before.pop() if before else begin()
print("ready", flush=True)
input()
print(numbers(), store.streams(), flush=True)
"""
        with forkserver.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                              text=True) as reader:
            assert reader.stdin is not None
            assert reader.stdout is not None
            assert reader.stdout.readline() == "ready\n"
            run(path, DIES)
            with store.transaction() as tx:
                for n in range(5, 20):
                    tx.stream("s").append({"n": n, "text": bytes(range(250)) * 20})
            reader.stdin.write("\n")
            reader.stdin.flush()
            assert reader.stdout.readline() == f"{list(range(20))} ['s']\n"


@pytest.mark.parametrize("is_rung", [False, True])
def test_relaxed_commits_are_on_the_disk_a_tenth_of_a_second_later(
    path: Path, monkeypatch: pytest.MonkeyPatch, is_rung: bool
) -> None:
    """Also beside checkpoints, for which the thread is woken earlier."""
    flushed: list[tuple[int, float]] = []
    real = os.fdatasync

    def fdatasync(file: int) -> None:
        real(file)
        flushed.append((file, time.monotonic()))

    monkeypatch.setattr(os, "fdatasync", fdatasync)
    with raxlog.open(path, durability="relaxed") as store:
        inside = store._env.map.log
        assert inside is not None
        late = 0
        for n in range(20):
            time.sleep(0.003 * n)
            store.stream("s").append({"n": n})
            acknowledged = time.monotonic()
            if is_rung:
                time.sleep(0.05)
                inside.checkpoints.bell.release()
            deadline = acknowledged + 10
            while not any(file == inside.ring.file and at > acknowledged for file, at in flushed):
                assert time.monotonic() < deadline
                time.sleep(0.005)
            late += flushed[-1][1] - acknowledged > 0.14
        assert late < 10, f"{late} of 20"  # on a machine that is busy some are


def test_after_a_relaxed_flush_that_failed_nothing_is_written_but_through_a_new_opening(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was the thread's: no call was there to raise it."""
    real = os.fdatasync
    failed = threading.Event()

    def fdatasync(file: int) -> None:
        if not failed.is_set():
            failed.set()
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        real(file)

    with raxlog.open(path, durability="relaxed") as store:
        monkeypatch.setattr(os, "fdatasync", fdatasync)
        store.stream("s").append({"n": 0})
        assert failed.wait(10)
        time.sleep(0.2)
        with pytest.raises(raxlog.StoreError, match=r"a flush of .* has failed .* open it again"):
            store.stream("s").append({"n": "again"})
    with raxlog.open(path) as store:
        assert store.last_end.how == "power cut"
        store.stream("s").append({"n": 1})
        assert numbers(store) == [0, 1]


def test_a_commit_waits_for_the_checkpoint_of_another_process_as_long_as_for_its_lock(path: Path) -> None:
    def hold(say: Callable[[Any], None]) -> None:
        lock = WriterLock(log_of(path).with_name(log_ring.STATE))
        lock.acquire(5)
        say("held")
        time.sleep(60)

    def fill(store: raxlog.Store) -> None:
        for n in range(150):  # more than the ring holds, however it is compressed
            store.stream("s").append({"n": n, "x": random.randbytes(25_000).hex()})

    with raxlog.open(path, lock_timeout=0.3) as store, Child(hold) as child:
        assert child.heard() == "held"
        begun = time.monotonic()
        with pytest.raises(raxlog.LockTimeout):
            fill(store)
        assert time.monotonic() - begun < 10
        there = numbers(store)
        child.kill()
        store.stream("s").append({"n": len(there)})
        assert numbers(store) == list(range(len(there) + 1))


def test_a_record_whose_flush_has_failed_does_not_come_back(path: Path) -> None:
    """The disk has it all the same, although the call has reported that it has not."""
    run(path, """
store.stream("s").append({"n": 0})
real = os.pwrite
def pwrite(file, content, at):
    done = real(file, content, at)
    if b"refused" in content:
        os.pwrite = real
        raise OSError(5, "the disk has failed")
    return done
os.pwrite = pwrite
try:
    store.stream("s").append({"n": "refused"})
except raxlog.StoreError:
    kill()
""")
    with raxlog.open(path) as store:
        assert numbers(store) == [0]
        store.stream("s").append({"n": 1})
        assert numbers(store) == [0, 1]


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_writer_that_dies_in_a_large_transaction_leaves_all_of_it_or_nothing_beside_others(path: Path,
                                                                                          when: str) -> None:
    """It has no record in the log: whether it counts is LMDB's word."""
    with raxlog.open(path) as store:
        store.stream("s").append({"n": 0})
        run(path, f"""
import contextlib
inside = store._env.map.log
tree = inside.checkpoints.tree
@contextlib.contextmanager
def begun(txn):
    with txn:
        yield txn
        if inside.ring.words[3] and {when == 'before'}: kill()
    if inside.ring.words[3]: kill()
class Dying:
    def __getattr__(self, name): return getattr(tree, name)
    def write(self): return begun(tree.write())
inside.checkpoints.tree = Dying()
store.stream("s").extend([{{"n": n, "x": "y" * 3000}} for n in range(1, 21)])
print("it has not died")
""")
        there = list(range(21 if when == "after" else 1))
        store.stream("s").append({"n": len(there)})
        assert numbers(store) == [*there, len(there)]
    with raxlog.open(path) as store:
        assert numbers(store) == [*there, len(there)]
    assert raxlog.check(path).ok


@pytest.mark.parametrize("ceiling", [1 << 16, 1 << 17])
def test_a_store_with_hardly_any_room_works(tmp_path: Path, ceiling: int) -> None:
    with raxlog.open(tmp_path / "s.rax", max_map_size=ceiling) as store:
        for n in range(20):
            store.stream("s").append({"n": n})
    with raxlog.open(tmp_path / "s.rax") as store:
        assert numbers(store) == list(range(20))


BEHIND = """
log, n = store._env.map.log, 150
log.every = 1 << 40  # no more checkpoints
while n < 1000 or not 2_000 < log.pos % log.ring.size < 30_000:  # some laps
    store.stream('s').append({'n': n, 'x': 'y' * 100})
    n += 1
log.checkpoints.make(True)
print(log.pos % log.ring.size, n, flush=True)
for n in range(n, n + 50): store.stream('s').append({'n': n, 'x': 'y' * 100})
kill()"""  # acknowledged commits behind a checkpoint, in the same lap; its place, and how many entries it holds


def with_entries(path: Path) -> bytes:
    """150 entries; the log."""
    with raxlog.open(path) as store:
        for n in range(150):
            store.stream("s").append({"n": n, "x": "y" * 100})
    return log_of(path).read_bytes()


def zeros_from(file: Path, place: int) -> None:
    change(file, log_ring.HEADER + place, bytes(RING - place))


@pytest.mark.parametrize(("how", "shared"), [
    ("zeroed", "kept"), ("zeroed", "lost"), ("older", "kept"), ("older", "lost"),
    ("zeroed from the checkpoint on", "kept"), ("zeroed behind some records", "kept"),
    ("cut off and lengthened", "kept"),
    *((how, shared) for shared in ("kept", "lost") for how in (
        "zeroed from within the last record on", "cut off within the last record and lengthened",
        "its last record overwritten by its older self")),
])
def test_a_log_that_was_zeroed_or_is_an_older_copy_is_refused_after_a_restart(
        path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str, shared: str) -> None:
    older = with_entries(path)
    log_there = log_of(path)
    place, held = map(int, run(path, BEHIND).split())
    monkeypatch.setattr("raxlog.storage.locks.shared_file.boot_id", lambda: b"another start..")
    if how == "zeroed":
        zeros_from(log_there, 0)
    elif how == "older":
        log_there.write_bytes(older)
    elif how.startswith("cut off"):
        os.truncate(log_there, log_ring.HEADER + place + (1000 if how == "cut off and lengthened" else -10))
        os.truncate(log_there, log_ring.HEADER + RING)
    elif how == "its last record overwritten by its older self":  # the head is the present one
        whole, at = log_there.read_bytes(), log_ring.HEADER + place
        log_there.write_bytes(whole[: at - 40] + older[at - 40 :])
    else:
        behind = {"zeroed behind some records": 5_000, "zeroed from within the last record on": -50}
        zeros_from(log_there, place + behind.get(how, 0))
    if shared == "lost":
        (path / "000001" / log_ring.STATE).write_bytes(bytes(8192))
    for readonly in (True, False):
        with pytest.raises(raxlog.CorruptionError, match="raxlog salvage"):
            raxlog.open(path, readonly=readonly)
    assert [problem.kind for problem in raxlog.check(path).problems] == ["log"]
    report = raxlog.salvage(path, tmp_path / "rescued")
    assert any("acknowledged" in str(loss) for loss in report.lost)
    with raxlog.open(tmp_path / "rescued", readonly=True) as store:
        assert numbers(store) == list(range(len(store.stream("s"))))
        assert held <= len(store.stream("s")) < held + 50


LARGE = "store.stream('s').extend([{'n': n, 'x': 'y' * 1000} for n in range(250, 300)])"
NOTHING_BEHIND: dict[str, Callable[[Path], object]] = {
    "fresh": lambda path: path,
    "closed": with_entries,
    "after a large transaction": lambda path: (with_entries(path), run(path, LARGE)),
    "after a record and a large transaction": lambda path: (
        with_entries(path), run(path, f"store.stream('t').append({{'n': 1}})\n{LARGE}\nkill()")),
    "compacted": lambda path: (with_entries(path), run(path, "store.stream('s').trim(maxlen=9)\nstore.compact()")),
    "compacted after a checkpoint": lambda path: (with_entries(path), run(
        path, "store.stream('s').trim(maxlen=9)\nstore._env.map.log.checkpoints.make(True)\nstore.compact()\nkill()")),
    "a record at the ring's end": lambda path: run(path, """
log = store._env.map.log
def left(): return log.ring.size - log.pos % log.ring.size
used = 0
while not 0 < used < 1000:  # a record behind a checkpoint is longer, and may go beyond the end
    while left() > 2_000: store.stream('s').append({'n': -1})
    before = left()
    store.stream('s').append({'x': 'y' * 100})
    used = before - left()
while left() > 3 * used: store.stream('s').append({'x': 'y' * 100})
store.stream('t').append({'n': 1, 'x': 'z' * 10})
kill()"""),
}


@pytest.mark.parametrize("shared", ["kept", "lost"])
@pytest.mark.parametrize("how", NOTHING_BEHIND)
def test_a_log_with_nothing_behind_the_checkpoint_is_none_that_lost_it(path: Path, how: str, shared: str) -> None:
    NOTHING_BEHIND[how](path)
    with raxlog.open(path) as store:  # puts all into LMDB as it closes
        before = [entry.id for entry in store.stream("s").range()]
    (there,) = path.glob("*/log-state")
    if shared == "lost":
        there.write_bytes(bytes(8192))
    for readonly in (True, False):
        with raxlog.open(path, readonly=readonly) as store:
            assert [entry.id for entry in store.stream("s").range()] == before
    assert raxlog.check(path).ok


@pytest.mark.parametrize("durability", ["commit", "relaxed"])
def test_the_record_that_ends_at_the_checkpoint_stays_in_the_ring(path: Path, durability: str) -> None:
    """However often the ring is used again, with records up to the largest, and no checkpoint but where one is due."""
    rng = random.Random(SEED)
    print(f"RAXLOG_SEED={SEED}")
    with raxlog.open(path, durability=durability) as store:
        inside = store._env.map.log
        inside.every = 1 << 40  # only where the ring is full
        for n in range(600):
            store.stream("s").append({"n": n, "x": rng.randbytes(rng.choice([10, 1000, 5000, RING // 3 - 3000]))})
            store.stream("s").trim(maxlen=3)
            with inside.tree.begin() as txn:
                upto, chain, begun = log_ring.unseal_applied(txn.get(log_ring.APPLIED_KEY))
            assert ring.holds(inside.ring, upto, chain, begun), (n, upto, begun)
            assert begun[0] < upto or upto == 0 or inside.ring.words[ring.END] == upto
        assert inside.pos > 20 * RING
