"""The recorder's Python side: compiles it on first use, controls it, and reads its log.

    recorder.c ── cc, once ──► recorder-<hash>.so in the user's cache ── LD_PRELOAD ──► the stage process
    Control    64 bytes shared with every process of the workload: counts, and what to do at the N-th call
    read_log   the records, as Events in the order in which the calls were done

Without a compiler or a shared libc there is no recorder: library() raises NoRecorder with the
reason, and the modes that need it report "not run".
"""

from __future__ import annotations

import hashlib
import mmap
import os
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ....storage.errors import InvalidArgument

# The kinds of records: the same list as in recorder.c.
(CREATE, WRITE, TRUNCATE, RENAME, UNLINK, MKDIR, RMDIR, LINK, SYMLINK, SYNC_BEGIN, SYNC_END, SYNC_ALL_BEGIN,
 SYNC_ALL_END, ACK, MAPPED, UNSEEN) = range(1, 17)
THROUGH = 17  # the end of a write through a descriptor opened with O_DSYNC; made here of its WRITE
SIGNS = {
    WRITE: "write", TRUNCATE: "size", SYNC_END: "flush", SYNC_ALL_END: "flush", THROUGH: "flush", ACK: "ack",
    **dict.fromkeys((CREATE, RENAME, UNLINK, MKDIR, RMDIR, LINK, SYMLINK), "name"),
}  # of what leaves something new on disk, or to be checked

CLASSES = {"create": 1, "write": 2, "size": 4, "rename": 8, "unlink": 16, "name": 32, "sync": 64}
NO_ACTION, KILL, KILL_HALF, FAIL, SHORT, FAIL_AFTER = range(6)

_RECORD = struct.Struct("<IIQQQQII")
_CONTROL = struct.Struct("<QQQIIiIQQQ")
_CONTROL_BYTES = 4096
_SOURCES = ("memory.c", "recorder.c", "turns.c", "turns.h")


class NoRecorder(Exception):
    """There is no recorder on this machine; the message has the reason."""


@dataclass(frozen=True, slots=True)
class Event:
    kind: int
    pid: int
    sequence: int
    inode: int
    at: int  # an offset, a size, or the sequence of what SYNC_END and THROUGH end
    extra: int  # WRITE: 1 where a THROUGH follows; SYNC: 1 where times are flushed too
    path: str
    data: bytes


def read_log(path: Path) -> Iterator[Event]:
    """The records of a log, without one that a kill has cut off."""
    if not path.exists():
        return
    data = path.read_bytes()
    at = 0
    while at + _RECORD.size <= len(data):
        kind, pid, sequence, inode, offset, extra, path_bytes, data_bytes = _RECORD.unpack_from(data, at)
        at += _RECORD.size
        if at + path_bytes + data_bytes > len(data):
            return
        name = os.fsdecode(data[at : at + path_bytes])
        at += path_bytes
        yield Event(kind, pid, sequence, inode, offset, extra, name, data[at : at + data_bytes])
        if kind == WRITE and extra:
            yield Event(THROUGH, pid, sequence, inode, sequence, 0, "", b"")
        at += data_bytes


class Control:
    """Memory shared by the stage and the workload's processes: the count of calls, and the action."""

    def __init__(self, path: Path, *, target: int = 0, action: int = NO_ACTION, error: int = 0,
                 sticky: bool = False, classes: int = 127) -> None:
        self.path = path
        path.write_bytes(bytes(_CONTROL_BYTES))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), _CONTROL_BYTES)
        _CONTROL.pack_into(self._map, 0, 0, target, 0, action, sticky, error, classes, 0, 0, 0)

    def close(self) -> tuple[int, int, str]:
        """Unmap it. Returns the count of calls, how often the action struck, and the class of the last call."""
        calls, _, fired, *_, number, _ = _CONTROL.unpack_from(self._map, 0)
        self._map.close()
        return calls, fired, next((name for name, bit in CLASSES.items() if bit == number), "")


def classes_of(names: tuple[str, ...]) -> int:
    """The bits of some classes of calls, by default all."""
    for name in names:
        if name not in CLASSES:
            raise InvalidArgument(f"{name!r} is not a class of calls; there are {', '.join(CLASSES)}")
    return sum(CLASSES[name] for name in names or CLASSES)


def library() -> Path:
    """The compiled recorder, or NoRecorder. Compiling takes about a second, once."""
    sources = [Path(__file__).with_name(name) for name in _SOURCES]
    text = b"".join(source.read_bytes() for source in sources)
    compiler = next((found for name in (os.environ.get("CC", ""), "cc", "gcc", "clang")
                     if name and (found := shutil.which(name))), None)
    digest = hashlib.sha256(text + os.uname().machine.encode()).hexdigest()[:16]
    for cache in _caches():
        ready = cache / f"recorder-{digest}.so"
        if ready.exists() and ready.stat().st_uid == os.getuid():
            return ready
    if compiler is None:
        raise NoRecorder("no C compiler was found (cc, gcc, clang, or the one named by CC); install one")
    for cache in _caches():
        try:
            return _compile(compiler, sources, cache / f"recorder-{digest}.so")
        except OSError:
            continue  # this folder cannot be written; the temporary one can
    raise NoRecorder("there is no folder in which the compiled recorder could be kept")


def _caches() -> list[Path]:
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return [Path(home) / "raxlog", Path(tempfile.gettempdir()) / f"raxlog-{os.getuid()}"]


def _compile(compiler: str, sources: list[Path], target: Path) -> Path:
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    if target.parent.stat().st_uid != os.getuid():
        raise PermissionError(f"{target.parent} belongs to another user")
    building = target.with_name(f"{target.name}.{os.getpid()}")
    done = subprocess.run(
        [compiler, "-O2", "-shared", "-fPIC", "-o", str(building),
         *(str(one) for one in sources if one.suffix == ".c"), "-ldl", "-lpthread"],
        capture_output=True, text=True, check=False,
    )
    if done.returncode != 0:
        building.unlink(missing_ok=True)
        raise NoRecorder(f"{compiler} cannot compile the recorder: {done.stderr.strip()[:400]}")
    building.replace(target)
    return target
