"""A model of the disk at a power cut: what has been flushed, and what is pending.

    event      WRITE  WRITE  CREATE  SYNC(file)  WRITE  RENAME   ✂ here
               ─────on disk──  │     ──────────    │      │
                               └───── pending ─────┴──────┘   any of it may be there or not

Data is on disk once a flush of its file that began after the write has ended. Names (creating,
renaming, deleting) are on disk once their folder has been flushed, and those of one folder reach
the disk in order. A rename is one step.

The unit of a write is a sector of 512 bytes. Each pending write is kept as the whole sectors it
touches, as they were in the cache right after it, so a later write without an earlier one
still brings the earlier one's bytes of a shared sector.
"""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from . import recorder
from .recorder import Event

SECTOR = 512


@dataclass(eq=False, slots=True)
class File:
    """A file's bytes: on disk, and as the program sees them."""

    name: str = ""  # the last one it had, for messages
    on_disk: bytearray = field(default_factory=bytearray)
    cache: bytearray = field(default_factory=bytearray)
    careless: bool = False  # its content does not matter: always as in the cache


@dataclass(eq=False, slots=True)
class Folder:
    """A folder's entries: on disk, and as the program sees them."""

    name: str = ""
    on_disk: dict[str, Node] = field(default_factory=dict)
    cache: dict[str, Node] = field(default_factory=dict)


Node = File | Folder | str  # a str is the target of a symbolic link


@dataclass(eq=False, slots=True)
class Change:
    """A pending change of one file: whole sectors, or (data is None) a new size."""

    sequence: int
    file: File
    at: int
    data: bytes | None
    exact_at: int = 0  # what the program wrote, for tears within a sector
    exact: bytes = b""

    def sectors(self) -> int:
        return 0 if self.data is None else -(-len(self.data) // SECTOR)

    def apply(self, content: bytearray, keep: frozenset[int] | None = None) -> None:
        """Apply it to a file's content; only the sectors in ``keep``, if given."""
        if self.data is None:
            resize(content, self.at)
        elif keep is None:
            overlay(content, self.at, self.data)
        else:
            for sector in sorted(keep):
                overlay(content, self.at + sector * SECTOR, self.data[sector * SECTOR : (sector + 1) * SECTOR])


@dataclass(eq=False, slots=True)
class Naming:
    """A pending change of names: ``take`` away and ``give``, in one step."""

    sequence: int
    take: tuple[Folder, str] | None
    give: tuple[Folder, str, Node] | None

    def home(self) -> Folder:
        """The folder whose flush writes it to disk."""
        if self.give is not None:
            return self.give[0]
        assert self.take is not None
        return self.take[0]

    def apply(self, entries: Callable[[Folder], dict[str, Node]]) -> None:
        """Apply it to the entries of folders."""
        if self.take is not None:
            entries(self.take[0]).pop(self.take[1], None)
        if self.give is not None:
            folder, name, node = self.give
            entries(folder)[name] = node


def resize(content: bytearray, size: int) -> None:
    """Cut a content, or lengthen it by zeros."""
    if size < len(content):
        del content[size:]
    else:
        content.extend(bytes(size - len(content)))


def overlay(content: bytearray, at: int, data: bytes) -> None:
    """Write into a content; a gap before it is filled with zeros."""
    if not data:
        return
    if at > len(content):
        content.extend(bytes(at - len(content)))
    content[at : at + len(data)] = data


def walked(folder: Folder, entries: Callable[[Folder], dict[str, Node]], above: str = "") -> Iterator[tuple[str, Node]]:
    """All that is below a folder, with its path."""
    for name, node in entries(folder).items():
        yield above + name, node
        if isinstance(node, Folder):
            yield from walked(node, entries, f"{above}{name}/")


class DiskModel:
    """The state after some events. ``take`` the events in order; look at ``changes`` and ``namings``."""

    def __init__(self, path: str, inode: int, careless: Iterable[str] = ()) -> None:
        """An empty folder: where the log has it, and its inode."""
        self.path = path
        self.careless: tuple[str, ...] = tuple(careless)
        self.root: Folder = Folder(".")
        self.changes: list[Change] = []
        self.namings: list[Naming] = []
        self.unseen: set[str] = set()
        self._inodes: dict[int, File | Folder] = {inode: self.root}

    def _new_file(self, path: str) -> File:
        name = os.path.relpath(path, self.path)
        careless = any(fnmatch.fnmatch(name, one) or fnmatch.fnmatch(os.path.basename(name), one)
                       for one in self.careless)
        return File(name, careless=careless)

    def _place(self, path: str) -> tuple[Folder, str]:
        """The folder (as the program sees it) and the name in it."""
        *above, name = os.path.relpath(path, self.path).split(os.sep)
        folder = self.root
        for part in above:
            inner = folder.cache.get(part)
            if not isinstance(inner, Folder):
                raise ValueError(f"the log names {path}, and {part} is not a folder in it")
            folder = inner
        return folder, name

    def node(self, inode: int) -> File | Folder | None:
        """The file or folder with that inode, as of now."""
        return self._inodes.get(inode)

    def at(self, event: Event) -> File | Folder | None:
        """The file or folder of a RENAME or LINK that was just taken."""
        if event.kind not in (recorder.RENAME, recorder.LINK):
            return None
        folder, name = self._place(os.fsdecode(event.data))
        node = folder.cache.get(name)
        return None if isinstance(node, str) else node

    def names(self) -> dict[int, str]:
        """The present name of every file and folder, by the id() of its node."""
        inner = walked(self.root, lambda folder: folder.cache)
        return {id(self.root): "(folder)"} | {
            id(node): f"{path}/" if isinstance(node, Folder) else path for path, node in inner
        }

    def relative(self, path: str) -> str:
        """A path of the log as one within the folder."""
        return os.path.relpath(path, self.path)

    def take(self, event: Event) -> bool:
        """Take one event. True if a power cut right after it may find something new."""
        kind = event.kind
        if kind == recorder.WRITE:
            return self._write(event)
        if kind == recorder.TRUNCATE:
            return self._truncate(event)
        if kind == recorder.SYNC_END:
            node = self._inodes.get(event.inode)
            if node is not None:
                self._flush(event.at, node)
            return isinstance(node, Folder) or (node is not None and not node.careless)
        if kind == recorder.THROUGH:
            return self._write_through(event.at)
        if kind == recorder.SYNC_ALL_END:
            self._flush(event.at)
            return True
        if kind in (recorder.MAPPED, recorder.UNSEEN):
            how = "a memory map" if kind == recorder.MAPPED else event.data.decode()
            name = os.path.relpath(event.path, self.path) if event.path else "a file"
            self.unseen.add(f"{name} ({how})")
            return False
        if recorder.SIGNS.get(kind) == "name":
            self._name(event)
            return True
        return kind == recorder.ACK

    def _write(self, event: Event) -> bool:
        file = self._inodes.get(event.inode)
        if not isinstance(file, File):
            return False
        overlay(file.cache, event.at, event.data)
        start = event.at - event.at % SECTOR
        end = min(len(file.cache), -(-(event.at + len(event.data)) // SECTOR) * SECTOR)
        return self._pend(Change(event.sequence, file, start, bytes(file.cache[start:end]), event.at, event.data))

    def _pend(self, change: Change) -> bool:
        """Keep a change until it is flushed. A careless file's is on disk at once, and not new: False."""
        if change.file.careless:
            change.apply(change.file.on_disk)
        else:
            self.changes.append(change)
        return not change.file.careless

    def _write_through(self, sequence: int) -> bool:
        """Put a write through to the disk; older pending ones cannot undo it."""
        change = next((each for each in self.changes if each.sequence == sequence), None)
        if change is None:
            return False
        self.changes.remove(change)
        file = change.file
        if any(older.file is file and older.data is None and older.sequence < sequence for older in self.changes):
            # Its size was promised too, and the older writes go with it.
            self._fold(lambda older: older.file is file and older.sequence < sequence)
        start, end = change.at, change.at + len(change.data or b"")
        remaining: list[Change] = []
        for older in self.changes:
            data = older.data
            beside = data is None or older.at + len(data) <= start or older.at >= end
            if older.file is not file or data is None or older.sequence > sequence or beside:
                remaining.append(older)
                continue
            if older.at < start:
                remaining.append(Change(older.sequence, file, older.at, data[: start - older.at]))
            if older.at + len(data) > end:
                remaining.append(Change(older.sequence, file, end, data[end - older.at :]))
        self.changes = remaining
        change.apply(file.on_disk)
        return True

    def _truncate(self, event: Event) -> bool:
        file = self._inodes.get(event.inode)
        if not isinstance(file, File) or len(file.cache) == event.at:
            return False
        resize(file.cache, event.at)
        return self._pend(Change(event.sequence, file, event.at, None))

    def _flush(self, begun: int, of: File | Folder | None = None) -> None:
        """Flush the changes before ``begun``: of one file or folder, or of all."""
        self._fold(lambda change: change.sequence < begun and of in (None, change.file))
        for naming in [each for each in self.namings if each.sequence < begun and of in (None, each.home())]:
            self._settle(naming)

    def _fold(self, chosen: Callable[[Change], bool]) -> None:
        for change in filter(chosen, self.changes):
            change.apply(change.file.on_disk)
        self.changes = [change for change in self.changes if not chosen(change)]

    def _settle(self, naming: Naming) -> None:
        """Flush a naming, and forget older ones of the same names."""
        naming.apply(lambda folder: folder.on_disk)
        touched = [place for place in (naming.take, naming.give and naming.give[:2]) if place]
        remaining = []
        for older in self.namings:
            if older is naming:
                continue
            if older.sequence < naming.sequence:
                if older.take in touched:
                    older.take = None
                if older.give and older.give[:2] in touched:
                    older.give = None
            if older.take or older.give:
                remaining.append(older)
        self.namings = remaining

    def _name(self, event: Event) -> None:
        kind = event.kind
        folder, name = self._place(event.path)
        take: tuple[Folder, str] | None = None
        give: tuple[Folder, str, Node] | None = None
        node: Node | None
        if kind in (recorder.UNLINK, recorder.RMDIR):
            take = (folder, name)
        elif kind == recorder.CREATE:
            node = self._inodes[event.inode] = self._new_file(event.path)
            give = (folder, name, node)
        elif kind == recorder.MKDIR:
            node = self._inodes[event.inode] = Folder(name)
            give = (folder, name, node)
        elif kind == recorder.SYMLINK:
            give = (folder, name, os.fsdecode(event.data))
        else:
            node = folder.cache.get(name)
            if node is None:
                raise ValueError(f"the log renames {event.path}, which was never created")
            if kind == recorder.RENAME:
                take = (folder, name)
                if isinstance(node, File):
                    node.name = os.path.relpath(os.fsdecode(event.data), self.path)
            give = (*self._place(os.fsdecode(event.data)), node)
        naming = Naming(event.sequence, take, give)
        naming.apply(lambda folder: folder.cache)
        self.namings.append(naming)
