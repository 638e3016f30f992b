"""Snapshots as backups: restored, verified, and removed but for the newest.

    monday (full)  <──  tuesday  <──  wednesday        increments, each with its parent's id
    restore(wednesday, "events.rax")                    monday's copy, tuesday's changes, wednesday's

A restored store equals the copied one record for record, except for its UUID: both stores may be
written from here on, and increments or the checkpoints of a Spark query, which identify a store by its
UUID, must not confuse them. The first snapshot of a restored store is therefore a full one.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from ...storage.errors import CorruptionError, RaxlogError, StoreError
from ...storage.figures import Figures
from ...storage.folder import directory
from ...storage.format import keys, records
from ...storage.log.ring import APPLIED_KEY, UNUSED, create_log
from ...storage.tree import lmdb_errors
from ...storage.tree.lmdb_errors import translated
from ...storage.tree.tree import Tree
from ..subprocess_task import Progress
from . import manifest
from .digest import DIGEST, read_digest
from .full import DATA, created_folder, flush_folder, store_row, verify_records
from .incremental import CHANGES, read_changes
from .location import LocalFolder, local_path, location_of, required_local
from .manifest import FileSums, Manifest

_BATCH = 10_000  # changes applied in one transaction
_SPARE = 64 << 20


@dataclass(frozen=True, slots=True)
class Verification(Figures):
    """The result of verify(). Each problem names the file and the place in it."""

    _also = ("ok",)

    snapshot: str
    kind: str | None  # None: the manifest cannot be read
    files: int
    bytes: int
    problems: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """True if every byte is unchanged."""
        return not self.problems


def restore(snapshot: str | os.PathLike[str], destination: str | os.PathLike[str], *,
            progress: Progress | None = None) -> Manifest:
    """Make a store at ``destination`` from a snapshot, or from an increment and the snapshots it is based on.

    The store equals the copied one, record for record, but has a UUID of its own. Every byte read is
    verified, and the result is compared with the digest of the snapshot. Costs the copy and a walk
    over the result. Returns the manifest of the snapshot.

    StoreError if the destination exists, if a parent is missing, and for a set of shards;
    CorruptionError if a byte of the snapshots is wrong; NotAStore, UnsupportedFormat,
    StoreFull, ReadOnlyStore: nothing is left behind.
    """
    new = required_local(destination, "a store is")
    links = chain(required_local(snapshot, "what is restored from is"))
    progress = progress or (lambda *_: None)
    with translated(new), created_folder(new, "store") as place:
        generation = place / directory.FIRST_GENERATION
        generation.mkdir()
        base, made = links[0]
        records.require_format(made.store_format, base)
        sums = made.sums(DATA)
        with (generation / directory.DATA).open("wb") as copy:
            for chunk, problem in manifest.chunks_of(LocalFolder(base), DATA, sums):
                if problem:
                    raise CorruptionError(f"{base}: {problem}")
                copy.write(chunk)
                progress("copy", copy.tell(), sums.bytes)
        directory.reserve_lock(generation)
        directory.furnish(place)
        encoding = _apply(place, links, progress)
        flush_folder(place)
    return links[-1][1]._shown(encoding)


def chain(source: Path) -> list[tuple[Path, Manifest]]:
    """The snapshots that lead to ``source``: a full one first, ``source`` last.

    A parent is looked for beside its increment: under the name it had, then by its id.
    """
    links = [(source, manifest.read(source))]
    while links[0][1].kind != "full":
        path, made = links[0]
        if made.kind == "shards" or made.parent is None:
            raise StoreError(f"{path} is a set of shards, which is for reading. Restore from a full snapshot.")
        parent = _parent(path, made)
        if parent is None or any(parent[1].id == link[1].id for link in links):
            raise StoreError(
                f"the increment {path} builds on the snapshot {made.parent_name!r} (id {made.parent}), which is not "
                f"in {path.absolute().parent}. Put it there."
            )
        links.insert(0, parent)
    return links


def _parent(path: Path, made: Manifest) -> tuple[Path, Manifest] | None:
    beside = path.resolve().parent
    named = beside / (made.parent_name or "")
    if directory.is_snapshot(named):
        found = manifest.read(named)  # a damaged parent is an error of its own, not a missing one
        if found.id == made.parent:
            return named, found
    return next((one for one in _snapshots_in(beside) if one[1].id == made.parent), None)


def _snapshots_in(beside: Path) -> Iterator[tuple[Path, Manifest]]:
    """The snapshots in a folder with a readable manifest, by name."""
    for path in sorted(beside.iterdir()):
        if directory.is_snapshot(path):
            with contextlib.suppress(RaxlogError):
                yield path, manifest.read(path)


def _apply(place: Path, links: list[tuple[Path, Manifest]], progress: Progress) -> str | None:
    """Make of the copy of the first a store that equals the last; returns its encoding."""
    generation = place / directory.FIRST_GENERATION
    room = (generation / directory.DATA).stat().st_size + 3 * sum(made.changed_bytes for _, made in links) + _SPARE
    # Nothing else uses this file yet, so it is flushed once, at the end.
    try:
        with Tree(generation, room, sync=False) as opened:
            for path, made in links[1:]:
                manifest.require(LocalFolder(path), made, CHANGES, DIGEST)
                _apply_changes(opened, path / CHANGES, made, progress)
            source, made = links[-1]
            manifest.require(LocalFolder(source), made, DIGEST)
            _require_equal(opened, source, made, progress)
            with opened.write() as txn:
                row = store_row(txn)
                row[1] = os.urandom(16)
                txn.put(keys.STORE_KEY, records.seal(keys.STORE_KEY, row))
                txn.put(APPLIED_KEY, UNUSED)
                create_log(generation, row[1], 1 << 62)
        return None if row[4]["encoding"] is None else str(row[4]["encoding"])
    except lmdb_errors.Error as error:
        raise lmdb_errors.translate_error(place, error) from error


def _apply_changes(opened: Tree, changes: Path, made: Manifest, progress: Progress) -> None:
    rows, done, total = read_changes(changes), 0, made.changed + made.gone
    while done < total:
        before = done
        with opened.write() as txn:
            for key, value in islice(rows, _BATCH):
                if value is None:
                    txn.delete(key)
                else:
                    txn.put(key, value)
                done += 1
        progress("apply", done, total)
        if done == before:
            raise CorruptionError(f"increment {changes} has {done} changes, its manifest states {total}", snapshot=True)


def _require_equal(opened: Tree, source: Path, made: Manifest, progress: Progress) -> None:
    wanted = read_digest(source / DIGEST)

    def compare(key: bytes, value: bytes) -> None:
        if next(wanted, None) != (key, bytes(value[:8])):
            raise CorruptionError(f"what {source} restores to differs from its digest at {key.hex()}", snapshot=True)

    with opened.begin(buffers=True) as txn:
        verify_records(txn, compare, progress, made.records)
    if next(wanted, None) is not None:
        raise CorruptionError(f"what {source} restores to has fewer records than its digest", snapshot=True)


def verify(snapshot: str | os.PathLike[str], *, progress: Progress | None = None) -> Verification:
    """Compare every byte of a snapshot, and of the snapshots it is based on, with its checksums.

    ``snapshot`` may be the URL of a set of shards. Damage is listed in ``.problems``; NotAStore
    and UnsupportedFormat are raised. Reads everything once, at the speed of the disk.
    """
    local = local_path(snapshot)
    progress = progress or (lambda *_: None)
    place = location_of(snapshot)
    try:
        made = manifest.read(snapshot)
    except CorruptionError as error:
        return Verification(place.url, None, 0, 0, (error.what,))
    links, problems = [(place, made)], []
    if local is not None and made.kind == "increment":
        try:
            links = [(location_of(path), link) for path, link in chain(local)]
        except RaxlogError as error:
            problems.append(getattr(error, "what", str(error)))
    total, done, files = sum(link.bytes for _, link in links), 0, 0
    for where, link in links:
        wanted = link.files | {shard.path: FileSums(shard.bytes, 0, (shard.sum,)) for shard in link.shards}
        for name, sums in wanted.items():
            read = done
            for chunk, problem in manifest.chunks_of(where, name, sums):
                problems += [problem] if problem else []
                read += len(chunk)
                progress("verify", read, total)
            done += sums.bytes
            files += 1
            progress("verify", done, total)
    return Verification(place.url, made.kind, files, done, tuple(problems))


def keep_last(beside: Path, last: Manifest, keep: int) -> list[Path]:
    """Remove all but the newest ``keep`` snapshots of a store in a folder. Returns those removed.

    ``last``, the one just made, stays, and what a kept increment builds on. Only readable snapshots of that
    store are removed.
    """
    directory.clear_leftovers(beside)  # of an interrupted removal
    found: dict[str, tuple[Path, Manifest]] = {}
    for path, made in _snapshots_in(beside):
        if made.store == last.store and not path.is_symlink():
            found[made.id] = (path, made)
    newest = sorted(found.values(), key=lambda item: (item[1].created, item[0].name), reverse=True)
    kept: set[str] = set()
    for made in (last, *(made for _, made in newest[:keep])):
        link: Manifest | None = made
        while link is not None and link.id not in kept:
            kept.add(link.id)
            parent = found.get(link.parent or "")
            link = None if parent is None else parent[1]
    removed = []
    for path, made in newest:
        if made.id not in kept:
            directory.discard(path)
            removed.append(path)
    return removed
