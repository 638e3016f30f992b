"""Images: what may lie on the disk after a power cut at one moment.

    pending at the cut     w1  w2  w3 (8 sectors)  create  rename
    none                   ·   ·   ·               ·       ·
    all                    ×   ×   ×               ×       ×
    prefix                 ×   ×   ·               ×       ·        the first so many, in order
    drop one, only one     ×   ·   ×               ×       ×        all but one write; one write alone
    subset                 ·   ×   ·               ×       ·        any
    torn                   ×   ×   ××·×··×·        ×       ·        one write by some of its sectors
    size only              a file has its new length, with zeros instead of its new bytes
    tear                   one write cut inside a sector: counted separately, disks write sectors whole

Names reach the disk in the order of their changes: a prefix of all, or of each folder's.

Laid out, an image becomes files in a folder, written over the files of the image before, since new
pages cost more than their bytes: the same name is overwritten and cut, others are removed. A file
with a second name or of another type is created again.
"""

from __future__ import annotations

import contextlib
import errno
import os
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import xxhash

from ....storage.disk import remove_tree
from .disk import DiskModel, File, Folder, Node, overlay, resize, walked

Content = bytes | bytearray
Part = frozenset[int] | None  # None: the whole write


@dataclass(frozen=True, slots=True)
class Choice:
    """Which of the pending changes and namings reached the disk."""

    kind: str
    changes: tuple[tuple[int, Part], ...] = ()  # index into disk.changes, which sectors
    namings: tuple[int, ...] = ()  # indexes into disk.namings
    grown: tuple[int, ...] = ()  # changes of which only the length came
    tear: tuple[int, int, bool] | None = None  # change, byte within it, True: what is behind it came

    def describe(self, disk: DiskModel) -> str:
        parts = []
        names = disk.names()
        for index, sectors in self.changes:
            change = disk.changes[index]
            what = f"size {change.at}" if change.data is None else f"{change.exact_at}+{len(change.exact)}"
            if sectors is not None:
                what += f" sectors {_ranges(sorted(sectors))} of {change.sectors()}"
            parts.append(f"{names.get(id(change.file), change.file.name)}@{what}")
        text = f"{self.kind}: {len(self.changes)} of {len(disk.changes)} pending writes"
        if parts:
            text += f" ({', '.join(parts[:4])}{', …' if len(parts) > 4 else ''})"
        if disk.namings:
            text += f", {len(self.namings)} of {len(disk.namings)} pending names"
        if self.tear is not None:
            index, cut, behind = self.tear
            change = disk.changes[index]
            text += (f", {names.get(id(change.file), change.file.name)}@{change.exact_at} torn at its byte {cut}: "
                     f"its {'end' if behind else 'start'} came")
        return text


@dataclass(slots=True)
class Image:
    """A folder's content: paths to bytes, or to None for a folder, or to a link's target."""

    files: dict[str, Content | str | None]

    def digest(self, acked: int) -> bytes:
        """Eight bytes that identify the content and the number of acks."""
        hasher = xxhash.xxh3_64(acked.to_bytes(8, "little"))
        for path in sorted(self.files):
            content = self.files[path]
            hasher.update(path.encode("utf-8", "surrogateescape"))
            if isinstance(content, str):
                content = content.encode()
            hasher.update(b"\0/" if content is None else len(content).to_bytes(8, "little"))
            if content:
                hasher.update(content)
        return hasher.digest()


def build(disk: DiskModel, choice: Choice) -> Image:
    """The folder as it is found after the power cut."""
    entries: dict[Folder, dict[str, Node]] = {}
    for index in choice.namings:
        disk.namings[index].apply(lambda folder: entries.setdefault(folder, dict(folder.on_disk)))
    contents: dict[File, bytearray] = {}

    def content_of(file: File) -> bytearray:
        if file not in contents:
            contents[file] = bytearray(file.on_disk)
        return contents[file]

    for index in choice.grown:
        change = disk.changes[index]
        content = content_of(change.file)
        resize(content, max(len(content), change.at + len(change.data or b"")))
    for index, part in choice.changes:
        change = disk.changes[index]
        change.apply(content_of(change.file), part)
    if choice.tear is not None:
        index, cut, behind = choice.tear
        change = disk.changes[index]
        if behind:
            overlay(content_of(change.file), change.exact_at + cut, change.exact[cut:])
        else:
            overlay(content_of(change.file), change.exact_at, change.exact[:cut])
    image = Image({})

    for path, node in walked(disk.root, lambda folder: entries.get(folder, folder.on_disk)):
        if isinstance(node, File):
            image.files[path] = contents.get(node, node.on_disk)
        else:
            image.files[path] = None if isinstance(node, Folder) else node
    return image


def choices(disk: DiskModel, rng: random.Random, count: int) -> Iterator[Choice]:
    """None, all, and then ``count`` drawn ones."""
    everything = tuple((index, None) for index in range(len(disk.changes)))
    names = tuple(range(len(disk.namings)))
    yield Choice("none")
    yield Choice("all", everything, names)
    if everything and names:
        yield Choice("names only", (), names)
        yield Choice("writes only", everything)
    if not everything and len(names) < 2:
        return
    for _ in range(count):
        yield _drawn(disk, rng, everything, names)


def _drawn(disk: DiskModel, rng: random.Random, everything: tuple[tuple[int, Part], ...],
           names: tuple[int, ...]) -> Choice:
    changes = disk.changes
    came = _some_names(disk, rng, names)
    kind = rng.choice(_KINDS) if changes else "prefix"
    if kind == "prefix":
        ends = sorted({change.sequence for change in changes} | {change.sequence for change in disk.namings})
        end = rng.choice(ends)
        return Choice(
            "prefix", tuple(one for one in everything if changes[one[0]].sequence <= end),
            tuple(index for index in names if disk.namings[index].sequence <= end),
        )
    one = rng.randrange(len(changes))
    if kind == "drop one":
        return Choice(kind, everything[:one] + everything[one + 1 :], came)
    if kind == "only one":
        return Choice(kind, everything[one : one + 1], came)
    if kind == "size only":
        data = {index for index in range(len(changes)) if changes[index].data is not None}
        some = tuple(index for index in sorted(data) if rng.random() < 0.7)
        return Choice(kind, _some(rng, everything), came, grown=some)
    if kind == "torn":
        wide = [index for index, change in enumerate(changes) if change.sectors() > 1]
        if wide:
            torn = rng.choice(wide)
            base = rng.choice((everything[:torn], everything, _some(rng, everything), ()))
            part = _some_sectors(rng, changes[torn].sectors())
            kept = [(index, whole) for index, whole in base if index != torn]
            if part:
                kept.append((torn, part))
            return Choice(kind, tuple(sorted(kept, key=lambda pair: pair[0])), came)
    if kind == "tear" and len(changes[one].exact) > 1:
        # The sectors before (or behind) the torn one came whole: what is cut is inside one.
        size = len(changes[one].exact)
        cut = rng.choice((rng.randrange(1, size), min(size - 1, max(1, rng.randrange(size) & ~7))))
        base = rng.choice((everything[:one], ()))
        return Choice(kind, base, came, tear=(one, cut, rng.random() < 0.5))
    return Choice("subset", _some(rng, everything), came)


_KINDS = ("prefix", "drop one", "only one", "subset", "subset", "torn", "torn", "torn", "size only", "tear")


def _some(rng: random.Random, everything: tuple[tuple[int, Part], ...]) -> tuple[tuple[int, Part], ...]:
    share = rng.choice((0.2, 0.5, 0.8))
    return tuple(one for one in everything if rng.random() < share)


def _some_sectors(rng: random.Random, count: int) -> frozenset[int]:
    how = rng.randrange(4)
    if how == 0:
        return frozenset(range(rng.randrange(1, count)))
    if how == 1:
        return frozenset(range(rng.randrange(1, count), count))
    if how == 2:  # by pages, as a cache writes them
        pages = range(-(-count // 8))
        kept = {page for page in pages if rng.random() < 0.5}
        return frozenset(sector for sector in range(count) if sector // 8 in kept)
    return frozenset(sector for sector in range(count) if rng.random() < 0.5)


def _some_names(disk: DiskModel, rng: random.Random, names: tuple[int, ...]) -> tuple[int, ...]:
    how = rng.randrange(4)
    if how == 0 or not names:
        return ()
    if how == 1:
        return names
    if how == 2:
        return names[: rng.randrange(len(names) + 1)]
    homes: dict[int, list[int]] = {}
    for index in names:
        homes.setdefault(id(disk.namings[index].home()), []).append(index)
    return tuple(sorted(index for own in homes.values() for index in own[: rng.randrange(len(own) + 1)]))


def smaller(choice: Choice) -> Iterator[Choice]:
    """Choices with less in them: halves first, then one thing less."""
    count = len(choice.changes)
    if count > 3:
        yield replace(choice, changes=choice.changes[: count // 2])
        yield replace(choice, changes=choice.changes[count // 2 :])
    for index in range(count):
        yield replace(choice, changes=choice.changes[:index] + choice.changes[index + 1 :])
    for index, (change, part) in enumerate(choice.changes):
        if part is not None and len(part) > 1:
            less = sorted(part)[: len(part) // 2]
            kept = (*choice.changes[:index], (change, frozenset(less)), *choice.changes[index + 1 :])
            yield replace(choice, changes=kept)
    if choice.grown:
        yield replace(choice, grown=())
    if choice.namings:
        yield replace(choice, namings=choice.namings[:-1])


def _ranges(numbers: list[int]) -> str:
    spans: list[list[int]] = []
    for number in numbers:
        if spans and spans[-1][1] == number - 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ",".join(f"{a}" if a == b else f"{a}-{b}" for a, b in spans)


# -- laying out ----------------------------------------------------------------------------


def lay_out(image: Image, place: Path) -> None:
    """Make ``place`` hold the image and nothing else. OSError if there is no room for it.

    Files of it that are still open elsewhere change too: remove it first if there may be any.
    """
    top = str(place)
    _remove_others(top, "", image)
    for path, content in image.files.items():
        target = f"{top}/{path}"
        if content is None:
            with contextlib.suppress(FileExistsError):
                os.mkdir(target)
        elif isinstance(content, str):
            with contextlib.suppress(FileExistsError):
                os.symlink(content, target)
        else:
            _write(target, content)


def _remove_others(top: str, inner: str, image: Image) -> None:
    """Remove what the image does not have, or not of this type."""
    try:
        with os.scandir(f"{top}/{inner}") as entries:
            present = [(entry.name, entry.path, entry.is_dir(follow_symlinks=False),
                        entry.is_file(follow_symlinks=False)) for entry in entries]
    except FileNotFoundError:
        os.mkdir(top)
        return
    absent = ""
    for name, path, is_folder, is_file in present:
        wanted = image.files.get(inner + name, absent)
        if is_folder and wanted is None:
            _remove_others(top, f"{inner}{name}/", image)
        elif is_folder:
            remove_tree(Path(path), ignore_errors=False)
        elif not is_file or wanted is None or isinstance(wanted, str):
            os.unlink(path)


def _write(target: str, content: Content) -> None:
    flags = os.O_WRONLY | os.O_CREAT
    descriptor = os.open(target, flags, 0o644)
    about = os.fstat(descriptor)
    if about.st_nlink > 1:
        os.close(descriptor)
        os.unlink(target)
        descriptor = os.open(target, flags | os.O_EXCL, 0o644)
    try:
        if about.st_size > len(content):
            os.ftruncate(descriptor, len(content))
        if os.write(descriptor, content) != len(content):
            raise OSError(errno.ENOSPC, "no room for an image", target)
    finally:
        os.close(descriptor)
