"""The store's folder: what is in it, how it is found, and how it is made.

    events.rax/
    ├── CURRENT        one line: the name of the generation folder in force
    ├── 000001/        a generation: LMDB's data.mdb and lock.mdb; log and log-state (log/ring.py)
    └── shared         what its processes tell each other: locks, words, a slot for each (shared_file.py)

A store is built under a temporary name beside its place, gets its first commit, is flushed
file by file and folder by folder, and only then renamed. LMDB alone leaves a window before
its first commit in which a power cut makes a file that no later open accepts; here that
window falls on a folder which no open ever looks at.

Its generations: which data file is in force, and how all processes go over to a new one.

    CURRENT ──► 000001/data.mdb      number 0, kind 06: superseded by 2
                                               │
                000002/data.mdb   ◄────────────┘       in force: it has no such mark

The mark is a record in the last commit of a generation. A process that finds it closes the map and
opens the one that it names. Everything that begins after that commit sees it:

  - a write transaction looks for it right after it has begun, unless the last commit was its
    own process's (then there is no mark), so no commit goes to an orphan
  - a read transaction looks once for each commit it finds: 0.05 µs where nothing has been
    committed since the last read, 0.5 µs more where something has. A read that was under way
    goes on in the old file, which is not written any more

So CURRENT is only where the search begins. Where a process was killed, or the power was cut,
between the mark and the change of CURRENT, the mark leads on; the next opening for writing
finishes the change.

A generation can go once CURRENT is past it and no process has it open, which the locks on
its lock file show (tree.py). It is renamed first: an opening in that moment finds all of it or nothing.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from .. import disk
from ..crash_point import crash_point
from ..errors import CorruptionError, InvalidArgument, NotAStore, ReadOnlyStore, StoreError, StoreFull
from ..format import keys, records
from ..locks.shared_file import SHARED, SLOTS
from ..tree import lmdb_file, tree

CURRENT = "CURRENT"
FIRST_GENERATION = "000001"
MANIFEST = "manifest.json"  # in snapshots only (recovery/snapshot/manifest.py)
DATA = lmdb_file.DATA
LOCK = tree.LOCK
LOG, STATE = "log", "log-state"
MARK = keys.family(0, keys.SUPERSEDED)
BUILDING = ".tmp"
_GONE = ".gone"
_CREATING = ".creating-"
_LEFTOVER = re.compile(r"\.creating-\d+-[0-9a-f]{8}$")
_LOCK_BYTES = 8192  # of LMDB's lock file: its head and the slots of its first 126 readers
_NAME_BYTES = 64  # more than the name of any generation has
_MOST_TRIES = 20
_PASSING = (errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR, errno.EROFS, errno.ENOSPC)  # of any path


def place_of(path: str | os.PathLike[str], what: str = "path") -> Path:
    """The absolute path that an argument names. InvalidArgument where it can name no folder."""
    text = os.fspath(path) if isinstance(path, str | os.PathLike) else None
    try:
        if isinstance(text, str) and "://" not in text and b"\0" not in os.fsencode(text or "\0"):
            return Path(os.path.abspath(text))
    except UnicodeEncodeError:
        pass  # a name that no file can have
    raise InvalidArgument(f"{what}={path!r} must name a directory, by its path on this machine")


def generation(path: Path) -> Path:
    """The generation folder in force. NotAStore, with the reason, where there is none. About 10 µs."""
    return _generation_at_once(path) or _generation_or_why_not(path)


def data_status(path: Path) -> os.stat_result:
    """What the file system says of the data file in force: its size, what is on disk of it. NotAStore, OSError."""
    while True:
        with contextlib.suppress(FileNotFoundError):  # a compaction has put another in its place in this moment
            return os.stat(generation(path) / DATA)


def _generation_at_once(path: Path) -> Path | None:
    """The generation folder of a store with which all is well: each opening asks several times."""
    place = os.fspath(path)
    with contextlib.suppress(OSError, UnicodeDecodeError):  # the long way says what is wrong
        descriptor = os.open(f"{place}/{CURRENT}", os.O_RDONLY | os.O_CLOEXEC)
        try:
            name = os.read(descriptor, _NAME_BYTES).decode("ascii").strip()
        finally:
            os.close(descriptor)
        if name.isdigit() and stat.S_ISREG(os.stat(f"{place}/{name}/{DATA}").st_mode):
            return path / name
    return None


def _generation_or_why_not(path: Path) -> Path:
    try:
        if path.exists() and not path.is_dir():
            raise NotAStore(f"{path} is a file, not a store. A raxlog store is a folder; name another path.")
        if is_vacant(path):
            raise NotAStore(f"there is no store at {path}, and readonly=True or create=False creates none.")
        name = (path / CURRENT).read_text(encoding="ascii").strip()
        if not name.isdigit():
            raise NotAStore(f"the file {CURRENT} in {path} names no generation (it says {name[:40]!r}).")
        folder = path / name
        if not (folder / DATA).is_file():
            if (path / CURRENT).read_text(encoding="ascii").strip() != name:
                return generation(path)  # a compaction has put another in its place in this moment
            raise NotAStore(f"{path} names generation {name}, but {folder / DATA} is not there.")
    except FileNotFoundError:
        raise NotAStore(
            f"{path} is a folder but no raxlog store: it has no file {CURRENT}. " + (
                "It held one: raxlog salvage copies what is there to a new store." if next(path.glob(f"*/{DATA}"), None)
                else "Name an empty or absent path to create a store.")
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        kind = StoreError if disk.cause(error) in _PASSING else NotAStore
        raise kind(f"the store at {path} cannot be read: {error}.") from error
    return folder


def is_snapshot(path: Path) -> bool:
    """True for a snapshot: a store at rest, which is never written and so is read without lock."""
    return (path / MANIFEST).is_file() and not _LEFTOVER.search(path.name)  # nor one that is still being built


def can_register(folder: Path) -> bool:
    """True where a reader can register with LMDB; False where it has to read without lock.

    A reader that is not registered dies when the pages of its read are used again. So it is
    refused beside a process that has the store open: only a store at rest is read without lock,
    and as long as it is (log/checkpoint.py).
    """
    path = folder / LOCK
    try:
        os.close(os.open(path, os.O_RDWR))
        return True
    except FileNotFoundError:
        return os.access(folder, os.W_OK)
    except OSError as error:
        holder = tree.find_holder(folder)
        if holder is not None:
            raise ReadOnlyStore(cannot_register(folder, holder)) from error
        return False


def cannot_register(folder: Path, holder: int | None) -> str:
    """The message for a reader that may not register beside that process, or beside one that is not known."""
    return (
        f"{folder.parent} is open in {f'process {holder}' if holder else 'another process'}, and this process may not "
        f"register as a reader beside it. Read once that has closed it, or read a snapshot; or give this process "
        f"permission to write {LOCK} and {STATE} in {folder}."
    )


def is_vacant(path: Path) -> bool:
    """True where a store may be created: nothing is there, or an empty folder."""
    try:
        with os.scandir(path) as found:
            return not any(found)
    except FileNotFoundError:
        return True
    except OSError:
        return False  # a file, or closed to us: generation() says which


@contextlib.contextmanager
def building(path: Path) -> Iterator[Path]:
    """A new folder beside ``path`` to build in: put_in_place() it, or it is removed at the end.

    The folders above ``path`` are made; what builders that died have left beside it goes. While
    it is built the folder is locked, so that it is not taken for one of those. OSError.
    """
    _make_parents(path.parent)
    clear_leftovers(path.parent)
    place, descriptor = _locked_folder(path)
    try:
        yield place
    finally:
        try:
            disk.remove_tree(place)
        finally:
            os.close(descriptor)


def put_in_place(place: Path, path: Path) -> None:
    """Give the folder that was built its name, once all in it is on disk, and make that durable."""
    crash_point("create.built")
    os.rename(place, path)
    crash_point("create.renamed")
    sync_folder(path.parent)


def discard(path: Path) -> None:
    """Remove a folder in one step: what is left of it if that is broken off is a leftover to clear."""
    doomed = _building_name(path)
    os.rename(path, doomed)
    sync_folder(path.parent)
    disk.remove_tree(doomed)


def _building_name(path: Path) -> Path:
    return path.with_name(f"{path.name}{_CREATING}{os.getpid()}-{os.urandom(4).hex()}")


def _locked_folder(path: Path) -> tuple[Path, int]:
    attempts = _MOST_TRIES
    while True:
        place = _building_name(path)
        descriptor = -1
        try:
            place.mkdir()
            descriptor = os.open(place, os.O_RDONLY)
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.stat(place), os.fstat(descriptor)):
                return place, descriptor
            raise FileNotFoundError(errno.ENOENT, "another process removed it", str(place))
        except BaseException as error:
            # Between mkdir and lock another process took the folder for a leftover: again.
            if descriptor >= 0:
                os.close(descriptor)
            disk.remove_tree(place)
            attempts -= 1
            if not attempts or not isinstance(error, FileNotFoundError | BlockingIOError):
                raise


def _make_parents(folder: Path) -> None:
    """Like mkdir -p, and each new folder's name is flushed to disk."""
    if folder.is_dir():
        return
    _make_parents(folder.parent)
    folder.mkdir(exist_ok=True)
    sync_folder(folder.parent)


def furnish(folder: Path) -> None:
    """Write what a store has beside its first generation."""
    (folder / SHARED).write_bytes(bytes(SLOTS))
    (folder / CURRENT).write_text(FIRST_GENERATION + "\n", encoding="ascii")


def reserve_lock(generation: Path) -> None:
    """Make the lock file of a new generation, on disk already. OSError where there is no room.

    LMDB maps it with holes in it; on a full disk writing to one kills the process.
    """
    file = generation / LOCK
    file.touch()
    disk.allocate(file, 0, _LOCK_BYTES)


def clear_leftovers(folder: Path) -> None:
    """Remove unfinished folders whose builder (or discard()) has died: those that no process holds a lock on."""
    with os.scandir(folder) as entries:
        leftovers = [entry.path for entry in entries if _LEFTOVER.search(entry.name)]
    for leftover in leftovers:
        with contextlib.suppress(OSError):  # alive, or removed by another, or not ours
            descriptor = os.open(leftover, os.O_RDONLY)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                disk.remove_tree(Path(leftover), ignore_errors=False)
            finally:
                os.close(descriptor)


def generation_name(number: int) -> str:
    """The name of a generation's folder."""
    return f"{number:06d}"


def successor(get: Callable[[bytes], Any]) -> str | None:
    """The name of the generation that supersedes this one, by its mark; None if it has none."""
    value = get(MARK)
    if value is None:
        return None
    number = records.unseal(MARK, value)[0]
    if not isinstance(number, int) or not 0 < number < 10**9:
        raise CorruptionError(f"the mark of a superseded generation names generation {number!r}")
    return generation_name(number)


def missing_successor(newer: Path) -> str:
    """What is wrong where the generation that a mark names is not there."""
    return (
        f"{newer}, which supersedes what is here, is not there: it has been removed, or this is a copy by hard links "
        "(cp -al) of a store that has been compacted since. 'raxlog salvage' makes a store of what is here; to copy "
        "one, use 'raxlog snapshot'."
    )


def point_to(path: Path, generation: Path, prepared: bool = False) -> None:
    """Let CURRENT name the generation, durably. Under the writer's lock."""
    if not prepared:
        prepare_pointer(path, generation)
    os.rename(path / (CURRENT + BUILDING), path / CURRENT)
    sync_folder(path)


def prepare_pointer(path: Path, generation: Path) -> None:
    """Write what CURRENT is to say beside it: where the disk is full, this is where it shows."""
    new = path / (CURRENT + BUILDING)
    new.write_text(generation.name + "\n", encoding="ascii")
    sync_file(new)


def other_generations(path: Path, in_force: Path) -> list[Path]:
    """What is left in the store's folder of generations that are not in force."""
    found = []
    with os.scandir(path) as entries:
        for entry in entries:
            stem = entry.name.removesuffix(_GONE).removesuffix(BUILDING)
            if entry.name != in_force.name and (stem.isdigit() or entry.name == CURRENT + BUILDING):
                found.append(Path(entry.path))
    return sorted(found)


def is_untidy(path: Path, in_force: Path) -> bool:
    """Whether a compaction that was killed has left something to finish."""
    return bool(other_generations(path, in_force)) or generation(path) != in_force


def next_number(path: Path, in_force: Path) -> int:
    """A number above that of every generation, also of those that could not be removed."""
    names = [in_force.name, *(leftover.name.partition(".")[0] for leftover in other_generations(path, in_force))]
    return 1 + max(int(name) for name in names if name.isdigit())


def remove_generations(path: Path, in_force: Path) -> list[int]:
    """Remove the leftovers that no process has open; return the processes that have one open.

    Under the writer's lock, with CURRENT durably naming the one in force.
    """
    kept = []
    for leftover in other_generations(path, in_force):
        holder = tree.find_holder(leftover)
        if holder is not None:
            kept.append(holder)
            continue
        # A file that cannot be removed now is tried again by the next call.
        with contextlib.suppress(OSError):
            if leftover.is_dir():
                doomed = leftover if leftover.name.endswith(_GONE) else leftover.with_name(leftover.name + _GONE)
                if doomed != leftover:
                    disk.remove_tree(doomed)
                    os.rename(leftover, doomed)
                disk.remove_tree(doomed, ignore_errors=False)
            else:
                leftover.unlink()
    return kept


def cannot_create(path: Path, error: Exception, what: str = "store") -> StoreError:
    """The error to raise where no store (or snapshot, as ``what`` says) can be made at ``path``."""
    code = disk.cause(error)
    if code in (errno.EACCES, errno.EPERM, errno.EROFS):
        return ReadOnlyStore(f"cannot create a {what} at {path}: nothing may be written there ({error}).")
    if code in disk.FULL:
        return StoreFull(f"cannot create a {what} at {path}: {disk.FULL[code]} ({error}).")
    if code in (errno.EBUSY, errno.EXDEV):
        return StoreError(f"{path} is a mount point ({error}); name a folder inside it.")
    if code in (errno.EEXIST, errno.ENOTDIR):
        return NotAStore(f"cannot create a {what} at {path}: a part of the path is a file ({error}).")
    return StoreError(f"cannot create a {what} at {path}: {error}.")


def sync_file(path: Path) -> None:
    """Flush a file to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_folder(path: Path) -> None:
    """Flush a folder's entries to disk, so that a rename in it survives a power cut."""
    try:
        sync_file(path)
    except PermissionError:
        return  # a folder that may be searched but not read
    except OSError as error:
        if error.errno != errno.EINVAL:  # a file system that flushes no folders
            raise
