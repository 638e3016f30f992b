"""The store's folder: what is in it, how it is found, and how it is made.

    events.rax/
    ├── CURRENT        one line: the name of the generation folder in force
    ├── 000001/        a generation: LMDB's data.mdb and lock.mdb; log and log-state (log_file.py)
    └── shared         what its processes tell each other: locks, words, a slot for each (shared_file.py)

A store is built under a temporary name beside its place, gets its first commit, is flushed
file by file and folder by folder, and only then renamed. LMDB alone leaves a window before
its first commit in which a power cut makes a file that no later open accepts; here that
window falls on a folder which no open ever looks at.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

from .. import clocks, disk
from ..crash_point import crash_point
from ..errors import InvalidArgument, NotAStore, ReadOnlyStore, StoreError, StoreFull
from ..format import records
from ..format.keys import STORE_FORMAT, STORE_KEY
from ..locks.shared_file import SHARED, SLOTS
from ..tree import lmdb_errors, lmdb_file, lock_file
from ..tree.tree import Tree
from . import log_file

CURRENT = "CURRENT"
FIRST_GENERATION = "000001"
MANIFEST = "manifest.json"  # in snapshots only (recovery/snapshot/manifest.py)
DATA = lmdb_file.DATA
LOCK = lock_file.LOCK
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
    and as long as it is (log/rest.py).
    """
    path = folder / LOCK
    try:
        os.close(os.open(path, os.O_RDWR))
        return True
    except FileNotFoundError:
        return os.access(folder, os.W_OK)
    except OSError as error:
        holder = lock_file.holder(folder)
        if holder is not None:
            raise ReadOnlyStore(cannot_register(folder, holder)) from error
        return False


def cannot_register(folder: Path, holder: int | None) -> str:
    """The message for a reader that may not register beside that process, or beside one that is not known."""
    return (
        f"{folder.parent} is open in {f'process {holder}' if holder else 'another process'}, and this process may not "
        f"register as a reader beside it. Read once that has closed it, or read a snapshot; or give this process "
        f"permission to write {LOCK} and {log_file.STATE} in {folder}."
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


def create(path: Path, settings: dict[str, object], room: int = 1 << 62) -> None:
    """Build a new store at ``path``, which may take ``room`` bytes. Two creators at a time leave one whole store.

    ReadOnlyStore where nothing may be written, StoreFull where nothing fits. Cost: about
    ten flushes to disk, once in a store's life.
    """
    path = Path(os.path.realpath(path))  # beside the real place: a rename stays in its file system
    if not path.parent.is_dir():
        raise StoreError(f"{path} cannot be made: there is no folder {path.parent}. Make it first, or see to the name.")
    try:
        with building(path) as place:
            _build(place, settings, room)
            try:
                put_in_place(place, path)
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
                sync_folder(path.parent)  # another creator was first, and its store is whole
    except (OSError, lmdb_errors.Error) as error:
        raise cannot_create(path, error) from error


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


def _build(folder: Path, settings: dict[str, object], room: int) -> None:
    data = folder / FIRST_GENERATION
    data.mkdir()
    reserve_lock(data)
    uuid = os.urandom(16)
    row = [STORE_FORMAT, uuid, clocks.now_ms(), 1, settings, 0]
    with Tree(data, 1 << 20, create=True) as made, made.write() as txn:
        txn.put(STORE_KEY, records.seal(STORE_KEY, row))
        txn.put(log_file.APPLIED, log_file.UNUSED)
        log_file.create(data, uuid, room)
    furnish(folder)
    for file in (data / DATA, folder / SHARED, folder / CURRENT):
        sync_file(file)
    sync_folder(data)
    sync_folder(folder)


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
