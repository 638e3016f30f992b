"""doctor: can raxlog work here, and how well? Versions, disk, limits, store: ok, warning or wrong."""

from __future__ import annotations

import argparse
import os
import re
import resource
import tempfile
from collections.abc import Iterator
from pathlib import Path

import raxlog

from .....storage import clocks, kernels
from .....storage.errors import RaxlogError
from .....storage.folder import directory
from .....storage.versions import versions
from .... import output
from ... import messages
from ...arguments import argument, command
from ...status import DONE, NO, STORE, CommandError

_STYLES = {"ok": output.GREEN, "warning": output.YELLOW, "wrong": output.RED}
_LOCAL = "ext2 ext3 ext4 xfs btrfs zfs f2fs bcachefs jfs"
_NETWORK = ("nfs nfs4 cifs smb2 smb3 smbfs 9p afs ceph glusterfs lustre gpfs beegfs virtiofs vboxsf prl_fs "
            "fuse.sshfs fuse.glusterfs fuse.s3fs fuse.gcsfuse")
_MEASURE = 0.3  # seconds of flushes
_LITTLE, _TOO_LITTLE = 1 << 30, 64 << 20  # bytes free
_FILES = 256  # open in a program with a few stores, some sockets and libraries
_SLOW, _TOO_FAST = 100, 50_000  # flushes a second


def _finding(what: str, value: str, warning: str = "", wrong: str = "") -> dict[str, str]:
    """What was seen, and, where all is not well, what to do: about what is ``wrong``, or as a ``warning``."""
    state = "wrong" if wrong else "warning" if warning else "ok"
    return {"what": what, "state": state, "value": value, "advice": wrong or warning}


@command(
    "doctor",
    (argument("path", metavar="STORE|FOLDER", nargs="?", default=".",
              help="a store, or a folder that is to hold one (default: .)"),),
    """Examines the kernels, the file system, its free space and the limits of the process, and measures
the disk's flushes for a third of a second. For a STORE it shows how it was left; in a FOLDER it makes
a store and removes it. Each finding is a line with ok, warning or wrong; below is what to do. Exit
status 1 if something is wrong.""",
    "raxlog doctor",
    "raxlog doctor events.rax --json",
)
def _doctor(args: argparse.Namespace) -> int:
    path = Path(args.path)
    if not path.is_dir():
        raise CommandError(f"there is no folder {args.path}; name a store, or the folder where one is to be", STORE)
    found = [_program(), *_disk(path), *_limits()]
    for look in (_flushes, _store if (path / directory.CURRENT).exists() else _trial):
        try:
            found += look(path)
        except RaxlogError as error:
            advice = "'raxlog check' shows what is damaged, 'raxlog salvage' copies the rest"
            found.append(_finding(look.__name__[1:], messages.in_options(str(error)), wrong=advice))
        except OSError as error:
            found.append(_finding(look.__name__[1:], str(error), wrong="see to the permissions and the room"))
    lines = output.table([(finding["state"], finding["what"], output.one_line(finding["value"])) for finding in found])
    marked = [line.replace(finding["state"], output.styled(finding["state"], _STYLES[finding["state"]]), 1)
              for finding, line in zip(found, lines, strict=True)]
    advised: dict[str, list[str]] = {}
    for finding in found:
        advised.setdefault(finding["advice"], []).append(finding["what"])
    below = [f"\n{', '.join(whats)}: {output.one_line(advice)}" for advice, whats in advised.items() if advice]
    ok = not any(finding["state"] == "wrong" for finding in found)
    output.answer(args.json, {"path": os.fsencode(path.absolute()), "ok": ok, "findings": found}, *marked,
                  *below or ["\nnothing is wrong: a store can be used here"])
    return DONE if ok else NO


def _program() -> dict[str, str]:
    stale = kernels.stale()
    slow = "plain Python scans 15 times as slowly: install a wheel, or a C compiler and raxlog again with 'pip -v'"
    return _finding("raxlog", ", ".join(f"{name} {value}" for name, value in versions().items()),
                    slow if kernels.speed() != "compiled" else "",
                    f"{', '.join(stale)} were compiled from other sources: install raxlog again" if stale else "")


def mounted(path: Path, mountinfo: str) -> tuple[str, str, set[str]]:
    """Kind, mount point and options of the file system that ``path`` is on, by the text of /proc/self/mountinfo."""
    found, place = ("unknown", "", set[str]()), os.path.realpath(path)
    for line in mountinfo.splitlines():
        (*_, point, options), (kind, _, more) = line.split(" - ")[0].split()[:6], line.split(" - ")[1].split()
        point = re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), point)  # a space is \040
        if os.path.commonpath([point, place]) == point and len(point) >= len(found[1]):
            found = kind, point, {*options.split(","), *more.split(",")}
    return found


def _disk(path: Path) -> Iterator[dict[str, str]]:
    mounts = Path("/proc/self/mountinfo")
    kind, point, options = mounted(path, mounts.read_text("utf-8", "surrogateescape") if mounts.exists() else "")
    warning = wrong = ""
    if kind in _NETWORK.split():
        wrong = "LMDB's memory map and locks work on a local disk only: move the store to one"
    elif {"nobarrier", "barrier=0"} & options:
        wrong = "it is mounted without barriers: a power cut may damage the store; remount it"
    elif kind in ("tmpfs", "ramfs"):
        warning = "what is here is in memory, and gone after a reboot"
    elif kind == "overlay":
        warning = "what is here goes with the container: mount a volume for the store"
    elif kind not in _LOCAL.split():
        warning = "it is not known to work: LMDB needs the memory maps and locks of a local disk"
    yield _finding("file system", f"{kind}, mounted on {point}", warning, wrong)
    room = os.statvfs(path)
    free = room.f_bavail * room.f_frsize
    advice = "commits fail when it is used up: delete or move something, trim streams, 'raxlog compact'"
    yield _finding("room", f"{free / 1e6:,.0f} MB free", advice if free < _LITTLE else "",
                   advice if free < _TOO_LITTLE else "")


def _limits() -> Iterator[dict[str, str]]:
    for what, number, enough, advice in (
        ("open files", resource.RLIMIT_NOFILE, _FILES, "a store takes about a dozen: 'ulimit -n' raises it"),
        ("address space", resource.RLIMIT_AS, 1 << 62, "a store is mapped as a whole: 'ulimit -v unlimited'"),
        ("file size", resource.RLIMIT_FSIZE, 1 << 62, "commits fail where the data file ends: 'ulimit -f unlimited'"),
    ):
        limit = resource.getrlimit(number)[0]
        low = limit != resource.RLIM_INFINITY and limit < enough
        yield _finding(what, f"{limit:,}" if limit != resource.RLIM_INFINITY else "unlimited", advice if low else "")


def _flushes(path: Path) -> Iterator[dict[str, str]]:
    times: list[float] = []
    with tempfile.TemporaryFile(dir=path) as file:
        os.pwrite(file.fileno(), bytes(4096), 0)
        os.fsync(file.fileno())
        end = clocks.elapsed() + _MEASURE
        while (began := clocks.elapsed()) < end or not times:
            os.pwrite(file.fileno(), bytes(4096), 0)
            os.fdatasync(file.fileno())
            times.append(clocks.elapsed() - began)
    rate, slow = len(times) / sum(times), "each durable commit waits for one: use extend(), or more threads"
    fast = "no disk flushes so fast: a power cut may undo commits"
    yield _finding("flushes", f"{rate:,.0f} a second (4 KB; the slowest took {max(times) * 1e3:,.1f} ms)",
                   slow if rate < _SLOW else fast if rate > _TOO_FAST else "")


def _trial(path: Path) -> Iterator[dict[str, str]]:
    began = clocks.elapsed()
    with (tempfile.TemporaryDirectory(dir=path, prefix="raxlog-doctor-") as folder,
          raxlog.open(Path(folder, "trial.rax")) as store):
        store.stream("trial").append({"a": "b"})
    yield _finding("trial", f"a store made, appended to and removed in {(clocks.elapsed() - began) * 1e3:,.0f} ms")


def _store(path: Path) -> Iterator[dict[str, str]]:
    with raxlog.open(path, readonly=True) as store:
        end, streams = store.last_end, len(store.streams())
        size = directory.data_status(store.path).st_blocks * 512
    note = "" if end.how == "clean" else f"; {output.unclosed(end)}"
    yield _finding("store", f"{output.many(streams, 'stream')}, {size / 1e6:,.1f} MB on disk{note}",
                   wrong="; ".join([*end.problems, "'raxlog check' shows it all"]) if end.problems else "")
