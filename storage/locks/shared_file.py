"""The file ``shared`` in a store's folder: what its processes tell each other, and how each of them left the store.

    0 … 263              mapped    where the line for the writer's lock ends, and words to sleep on (writer_lock.py)
    512 … 519            written   the number of the last commit; sleeping readers of other processes watch for it
    4096 + 64 n          written   slot n, of a process that writes, and locks it
    2^31 - pid … 2^31    locked    the gate: by a process that looks for a slot (ofd_lock.py)
    2^31 + 1             locked    shared, by all that have the store open with readonly=True
    2^32 - pid … 2^32    locked    the writer's lock (writer_lock.py)
    2^33 + n · 2^23 …    locked    place n in the line for it, up to 2^61
    2^62 + owner         locked    by the process of that owner number, which listens live (index/pubsub/leases.py)

It is 4,096 bytes long from the beginning, so that what is mapped is there. None of it is needed once no process is
at work; of what was killed, the slots tell the next opening. Deleted or replaced in use, it is two files, and each
has a lock of its own: so processes write only while it is in place (store_files.py).

The slots say how the store was left: closed, killed, or cut off by the end of the machine.

    +----------+---------+--------+----------+----------+---------+
    | xxh3_64  | boot ID | pid    | since    | boot     | zeros   |      zeros: closed cleanly, free
    +----------+---------+--------+----------+----------+---------+
      8          16        8        8 (ns)     8 (ns)     16             integers little-endian

A process writes its slot when it opens, flushes it, and keeps a lock on its bytes (ofd_lock.py); it
clears it when it closes. So a slot that is filled and not locked is of a process that ended
without closing. Its boot ID says how:

    the boot ID of now     it was killed, or left without close(): what it had committed is there,
                           for the system has kept it; there is nothing to look for
                           Where one of both is not known (no /proc), the clocks say when the machine started
    another boot ID        the machine ended while the store was open: a power cut, or a restart
                           that killed it. The newest records are looked over (engine/environment.py)

The slot of a power cut is cleared once its damage has been inspected: a reader that comes before still
learns of it. After a failed flush a process notes a boot ID of zeros, so that the next opening inspects
as after a power cut.

It costs one flush for each opening, none for a commit. The slot is cleared without one: a power cut
just after a clean close costs an inspection too many.
"""

from __future__ import annotations

import contextlib
import functools
import os
import struct
from collections.abc import Callable, Iterable
from io import FileIO
from pathlib import Path

from xxhash import xxh3_64_intdigest

from .. import clocks, disk
from ..errors import StoreError
from . import ofd_lock

SHARED = "shared"
WAKE = 512
SLOTS = 4096
READERS = ofd_lock.GATE + 1
LEASES = 1 << 62
CLEAN, KILLED, POWER_CUT = "clean", "killed", "power cut"
End = tuple[str, tuple[int, ...], tuple[str, ...]]  # what a LastEnd is made of, once it is asked for

_SLOT = struct.Struct("<Q16sQQ8s16x")
_UNKNOWN_BOOT = bytes(24)
_NEAR = 5_000_000_000  # ns: the same start, by two readings of the clocks


def open_shared(store: Path) -> FileIO:
    """Open it to write. Where it is missing it is made. OSError."""
    file = disk.open_file(store / SHARED)
    if os.fstat(file.fileno()).st_size < SLOTS:
        disk.allocate(store / SHARED, 0, SLOTS)  # a page that has no room on the disk would be a bus error
    return file


class Presence:
    """This process's slot. Without end() it counts as that of a killed process, once the file is closed."""

    found: list[tuple[bytes, int]]

    def __init__(self, file: FileIO, path: Path) -> None:
        self._file = file
        ofd_lock.enter(file, path)  # for the search for a free slot
        self.found, self._cut, free = _left_behind(file)
        self._slot = free[0]
        ofd_lock.take(file, self._slot, _SLOT.size)
        self._note(boot())
        for slot in free[1:-1]:
            self._write(bytes(_SLOT.size), slot)
        ofd_lock.leave(file)
        os.fdatasync(file.fileno())

    def clear_the_cut(self) -> None:
        """Clear the slots of a power cut, once its damage has been inspected."""
        for slot in self._cut:
            self._write(bytes(_SLOT.size), slot)
        self._cut = []

    def doubt(self) -> None:
        """Let the next opening look as after a power cut, however this process ends: a flush has failed."""
        with contextlib.suppress(OSError):
            self._note(_UNKNOWN_BOOT)

    def _note(self, boot: bytes) -> None:
        body = struct.pack("<16sQQ8s16x", boot[:16], os.getpid(), clocks.machine_ns(), boot[16:])
        self._write(struct.pack("<Q", xxh3_64_intdigest(body)) + body, self._slot)

    def _write(self, content: bytes, slot: int) -> None:
        os.pwrite(self._file.fileno(), content, slot)

    def end(self) -> None:
        """Note that the store was closed, and give the slot back."""
        with contextlib.suppress(OSError, ValueError):  # a disk that fails now: then it counts as killed; closed
            self._write(bytes(_SLOT.size), self._slot)
            ofd_lock.give_back(self._file, self._slot, _SLOT.size)


def enter_as_reader(file: FileIO) -> list[tuple[bytes, int]]:
    """Take a reader's lock, in place of a slot, by which writers know that they are not alone; find_left_behind()."""
    with contextlib.suppress(OSError):  # else no other process can have the store open
        ofd_lock.take(file, READERS, 1, shared=True)
    return find_left_behind(file)


def find_left_behind(file: FileIO) -> list[tuple[bytes, int]]:
    """Boot ID and number of each process that did not close the store; changes nothing."""
    return _left_behind(file)[0]


def find_user(path: Path) -> str | None:
    """A process that has the store open at this moment, in words; None if none has, or it cannot be asked."""
    try:
        file = disk.open_file(path / SHARED, os.O_RDONLY)
    except OSError:
        return None
    with file:
        return find_other_user(file)


def open_in_place(path: Path) -> FileIO:
    """Open a file of a generation that all its processes share, or make it. StoreError where it was deleted in use."""
    try:
        return disk.open_file(path, os.O_RDWR)
    except FileNotFoundError:
        user = find_user(path.parent.parent)
        if user is not None:
            raise deleted_in_use(path, user) from None
    return disk.open_file(path)


def deleted_in_use(path: Path, user: str) -> StoreError:
    """The error of an opening that misses a file which other processes use."""
    return StoreError(
        f"{path} has been deleted while {user} has the store open. Opened without it, the store would be damaged. End "
        "every process that has it open, and open it again."
    )


def find_other_user(file: FileIO) -> str | None:
    """A process that has the store open, other than by this open file; None if none has."""
    found = ofd_lock.find(file, SLOTS, READERS + 1 - SLOTS)
    if found is None:
        return None
    slot = os.pread(file.fileno(), _SLOT.size, found[0])
    return f"process {_SLOT.unpack(slot)[2]}" if len(slot) == _SLOT.size else "a process that reads"


def is_cut(found: list[tuple[bytes, int]]) -> bool:
    """Whether the machine, or its disk, failed while one of these had the store open."""
    here = boot()
    return not all(_is_same(other, here) for other, _ in found)


def _is_same(other: bytes, here: bytes) -> bool:
    """Whether both are the same start of the machine. Not if it is not known."""
    if any(other[:16]) and any(here[:16]):
        return other[:16] == here[:16]
    moments = [int.from_bytes(boot[16:], "little") for boot in (other, here)]
    return all(moments) and abs(moments[0] - moments[1]) < _NEAR


def judge(found: list[tuple[bytes, int]], look_over: Callable[[], Iterable[str]]) -> End:
    """What the slots of the dead mean. After a power cut the newest records are looked over for problems."""
    if not found:
        return CLEAN, (), ()
    processes = tuple(pid for _, pid in found)
    if not is_cut(found):
        return KILLED, processes, ()
    return POWER_CUT, processes, tuple(look_over())


def _left_behind(file: FileIO) -> tuple[list[tuple[bytes, int]], list[int], list[int]]:
    """The processes that did not clear their slots; the slots of a power cut; those that may be taken."""
    content = os.pread(file.fileno(), os.fstat(file.fileno()).st_size, SLOTS)
    found: list[tuple[bytes, int]] = []
    cut: list[int] = []
    free: list[int] = []
    for start in range(0, len(content) - _SLOT.size + 1, _SLOT.size):
        slot, raw = SLOTS + start, content[start:start + _SLOT.size]
        if not ofd_lock.is_free(file, slot, 1):
            continue
        if not any(raw):
            free.append(slot)
        else:
            now = os.pread(file.fileno(), _SLOT.size, slot)
            if now != raw:  # it was closed since it was read
                free += [] if any(now) else [slot]
                continue
            checksum, number, pid, _, moment = _SLOT.unpack(raw)
            torn = checksum != xxh3_64_intdigest(raw[8:])
            found.append((_UNKNOWN_BOOT, 0) if torn else (number + moment, pid))
            (cut if is_cut(found[-1:]) else free).append(slot)
    end = SLOTS + len(content) // _SLOT.size * _SLOT.size
    return found, cut, [*free, end]


def boot() -> bytes:
    """Which start of the machine this is: its ID, and when it was by the clocks; of both, zeros where not known."""
    return boot_id() + (clocks.wall_ns() - clocks.boot_ns()).to_bytes(8, "little")


def clock_id() -> int:
    """Which start of the machine and time namespace this is, as a number above 0: a boot clock is of one of each."""
    namespace = b""
    with contextlib.suppress(OSError):  # an old system, or no /proc
        namespace = os.fsencode(os.readlink("/proc/self/ns/time"))
    return xxh3_64_intdigest(boot_id() + namespace) >> 2 | 1


@functools.cache
def boot_id() -> bytes:
    """16 bytes that change with each start of the machine; zeros where they are not known."""
    try:
        text = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")
        return bytes.fromhex(text.replace("-", "").strip())
    except (OSError, ValueError):
        return bytes(16)
