"""salvage: copy all that is whole from a damaged store into a new one.

    source ── raw pages ──> the newest state's records (pages.py)
                              ├─ streams: nodes as they are, counts recomputed (streams.py)
                              ├─ groups, pending entries, idempotent appends (groups.py)
                              └─ state, subjects: record for record
                            ──> destination, under a temporary name ── checked ── renamed

The damaged file is never opened by LMDB and never written to. All runs in a subprocess.
"""

from __future__ import annotations

import os
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...storage import clocks
from ...storage.errors import CorruptionError, NotAStore, StoreError, UnsupportedFormat
from ...storage.folder import directory
from ...storage.format import keys, records
from ...storage.log.log import Log
from ...storage.log.ring import APPLIED_KEY, UNUSED, create_log, unseal_applied
from ...storage.tree import lmdb_errors
from ...storage.tree.lmdb_errors import translated
from ...storage.tree.lmdb_file import PageFile
from ...storage.tree.tree import Tree, find_holder
from ...storage.trees.rax import RaxTransaction, family_rows
from ...stream.entries.header import NodeLimits, shown
from .. import subprocess_task
from ..check.check import StoreWalk, current_generation
from ..check.records import STREAM_KINDS, SUBJECT_KINDS
from ..check.report import Taken
from ..snapshot.full import created_folder, flush_folder
from ..subprocess_task import Progress
from .groups import GroupsBuilder
from .pages import GatheredRecords, gather
from .report import Loss, SalvageReport
from .streams import StreamBuilder

_LIVE = (keys.CHANNEL, keys.LIVE_MESSAGE, keys.OWNER)  # of processes that have the old store open
_SPARE = 64 << 20


def salvage(source: str | os.PathLike[str], destination: str | os.PathLike[str],
            progress: Progress | None = None, *, doubtful: bool = False) -> SalvageReport:
    """Copy everything intact from a damaged store into a new one at ``destination``.

    Works with flipped bits and overwritten pages anywhere, with a truncated file, and without
    CURRENT, lock file or meta pages. IDs, names, groups, pending entries and state stay as they
    were; ``.lost`` lists the losses, with ID ranges. Nothing trimmed, acknowledged or deleted
    comes back: a record that may be an old copy is left out and reported, unless
    ``doubtful=True``; a stream without a name becomes "recovered-<number>".
    ``progress(part, done, total)`` is called now and then. The new store passes check().

    The source is never written to. NotAStore (the source is not a raxlog store), StoreError (the
    destination exists; the source is in use, or cannot be read), UnsupportedFormat, StoreFull,
    ReadOnlyStore: nothing is left at the destination then.
    """
    old, new = directory.place_of(source, "source"), directory.place_of(destination, "destination")
    with translated(old):
        return _salvage(old, new, progress, doubtful)


def _salvage(old: Path, new: Path, progress: Progress | None, doubtful: bool) -> SalvageReport:
    if not old.is_dir():
        raise NotAStore(f"{old} is a file, not a store." if old.exists() else f"there is no store at {old}.")
    if old == new or old in new.parents:
        raise StoreError(f"{new} is in the damaged store; name a destination outside of it.")
    began = clocks.elapsed()
    with created_folder(new, "store") as place:
        arguments = {"source": str(old), "place": str(place), "doubtful": doubtful}
        report: SalvageReport = subprocess_task.run(rescue, arguments, progress)
    return replace(report, destination=str(new), seconds=round(clocks.elapsed() - began, 3))


# -- in the subprocess ----------------------------------------------------------------------


def rescue(progress: Progress, source: str, place: str, doubtful: bool = False) -> SalvageReport:
    """Build the new store in the folder ``place``."""
    report = SalvageReport(source, place)
    found = _generation(Path(source), report)
    _require_rest(found)
    try:
        file = PageFile(found / directory.DATA)
    except OSError as error:
        raise StoreError(f"{found / directory.DATA} cannot be read: {error}.") from error
    with file:
        progress("gather", 0, file.pages)
        gathered = gather(file, doubtful)
        _require_ours(gathered, file, found)
        _take_log(gathered, found, report)
        progress("gather", file.pages, file.pages)
        _build(gathered, Path(place), file.size, report, progress)
        report.damaged_pages.update(sorted(gathered.damaged.items()))
        report.notes.extend(gathered.notes)
        if gathered.doubtful:
            report.lost.append(Loss("records whose age is unknown: left out", entries=gathered.doubtful))
    flush_folder(Path(place))
    _check(Path(place), report)
    return replace(report, generation=found.name)


def _generation(path: Path, report: SalvageReport) -> Path:
    """The generation to salvage: the current one, or if CURRENT is lost the newest with any records."""
    try:
        return current_generation(path)
    except NotAStore as error:
        found = sorted((each for each in path.iterdir() if each.name.isdigit() and (each / directory.DATA).is_file()),
                       key=lambda each: -int(each.name))
        if not found:
            raise NotAStore(f"{path} holds no generation of a store: {error}") from None
        if len(found) > 1:
            found = [entry for entry in found if _holds_records(entry)] or found
        report.notes.append(f"{directory.CURRENT} is lost or wrong; generation {found[0].name} was taken")
        return found[0]


def _holds_records(found: Path) -> bool:
    with PageFile(found / directory.DATA) as file:
        return bool(gather(file).sealed)


def _require_rest(found: Path) -> None:
    holder = find_holder(found)
    if holder is not None:
        raise StoreError(
            f"{found.parent} is open in process {holder}: close it there first. A store in use is copied with "
            "snapshot()."
        )


def _require_ours(gathered: GatheredRecords, file: PageFile, found: Path) -> None:
    if file.version() not in (None, 1):
        raise UnsupportedFormat(
            f"{found / directory.DATA} is of LMDB's data format {file.version()}, and format 1 is read here."
        )
    if not gathered.sealed:
        raise NotAStore(f"in {found / directory.DATA} there is no record of raxlog's.")
    value = gathered.get(keys.STORE_KEY)
    if value is not None:
        records.store_row(value, found.parent)


def _take_log(gathered: GatheredRecords, found: Path, report: SalvageReport) -> None:
    """Take what the log has and the data file has not, as far as both are sound."""
    if gathered.get(APPLIED_KEY) is None and not (found / directory.LOG).exists():
        return
    try:
        log = Log(found, gathered, readonly=True, shares=False, rescues=True)
    except (CorruptionError, NotAStore, OSError) as error:
        report.lost.append(Loss(f"what only the log held: {error}"))
        return
    with closing(log), log.begin() as view:
        lost = gathered.take_changes(view.overlay.changes(unseal_applied(gathered.get(APPLIED_KEY))[0], view.upto))
        if lost:
            report.lost.append(Loss(f"{lost} changes of the log to records that are damaged"))
        if log.damage is not None:
            report.lost.append(Loss(log.damage.what))


def _build(gathered: GatheredRecords, place: Path, size: int, report: SalvageReport, progress: Progress) -> None:
    new = place / directory.FIRST_GENERATION
    new.mkdir()
    directory.reserve_lock(new)
    try:
        # Nothing else uses this file yet, so it is flushed once, at the end.
        with Tree(new, 4 * size + _SPARE, create=True, sync=False) as opened:
            _Builder(gathered, opened, report, progress).run(new)
    except lmdb_errors.Error as error:
        raise lmdb_errors.translate_error(place, error) from error
    directory.furnish(place)


class _Builder:
    """Builds the new store, in a transaction for each stream."""

    def __init__(self, gathered: GatheredRecords, opened: Tree, report: SalvageReport, progress: Progress) -> None:
        self._gathered = gathered
        self._opened = opened
        self._report = report
        self._progress = progress
        self._names = {row[0]: suffix for suffix, row in gathered.rows(keys.NAMES)}
        self._headers = {
            number: row[0]
            for number in gathered.numbers()
            for _, row in gathered.rows(keys.header_key(number))
            if not gathered.was_deleted(row[0])
        }
        self._doomed = {suffix for suffix, _ in gathered.rows(keys.DOOMED_STREAMS)}

    def run(self, new: Path) -> None:
        """Build the streams one by one, then the store's own records, and its log in the folder ``new``."""
        swept = {int.from_bytes(suffix, "big") for suffix in self._doomed if len(suffix) == 8}
        numbers = sorted({*self._gathered.numbers(), *self._names} - swept)
        taken: set[bytes] = set()
        for done, number in enumerate(numbers):
            self._progress("streams", done, len(numbers))
            name = self._name(number, taken)
            if name is not None:
                taken.add(name)
                self._stream(number, name)
        self._progress("streams", len(numbers), len(numbers))
        with self._opened.write() as txn:
            uuid = os.urandom(16)
            self._store(txn, uuid, max([0, *numbers, *swept]) + 1)
            txn.put(APPLIED_KEY, UNUSED)
            create_log(new, uuid, 1 << 62)

    def _name(self, number: int, taken: set[bytes]) -> bytes | None:
        name: bytes | None = self._headers.get(number, self._names.get(number))
        if name is not None:
            if name not in taken:
                return name
            self._report.lost.append(Loss(f"stream no. {number}: another one has its name too", shown(name)))
            return None
        count = sum(1 for _ in family_rows(self._gathered, number.to_bytes(8, "big")))
        hidden = self._gathered.is_hidden
        lost_both = hidden(keys.header_key(number)) and hidden(keys.NAMES, keys.DOOMED_STREAMS)
        sure = self._gathered.is_sure and not hidden(keys.DOOMED_STREAMS + number.to_bytes(8, "big"))
        if not lost_both or not (sure or self._gathered.with_doubtful):
            self._report.lost.append(Loss(
                f"{count} records of stream no. {number}, which has neither name nor header: perhaps it was deleted"
                + ("; salvage with doubtful=True copies them" if lost_both else "")
            ))
            return None
        name = b"recovered-%d" % number
        self._report.lost.append(Loss(f"name of stream no. {number}: it is {shown(name)} now", shown(name)))
        return name

    def _stream(self, number: int, name: bytes) -> None:
        with self._opened.write() as txn:
            stream = StreamBuilder(self._gathered, txn, number, name)
            stream.copy_nodes()
            ours = number.to_bytes(8, "big")
            doomed = {suffix for suffix in self._doomed if len(suffix) == 12 and suffix.startswith(ours)}
            groups = GroupsBuilder(self._gathered, txn, stream, doomed)
            groups.build()
            remembered = groups.build_appends()
            deferred, results = stream.copy_deferred(), stream.copy_results()
            stream.copy_unique()
            for key, value in family_rows(self._gathered, ours):
                if key[8] not in STREAM_KINDS:  # those have been rebuilt
                    txn.put(key, value)
            stream.write_header()
        self._report.lost.extend(stream.lost)
        self._report.streams[name.decode("utf-8", "backslashreplace")] = {
            "entries": stream.entries, "nodes": stream.nodes, "groups": groups.groups, "pending": groups.pending,
            "remembered": remembered, "deferred": deferred, "results": results,
            "lost_entries": sum(loss.entries or 0 for loss in stream.lost if loss.what == "entries"),
        }

    def _store(self, txn: RaxTransaction, uuid: bytes, above: int) -> None:
        settings: dict[str, Any] = {"limits": list(NodeLimits()), "encoding": "utf-8"}
        created = clocks.now_ms()
        value = self._gathered.get(keys.STORE_KEY)
        if value is None:
            self._report.lost.append(Loss("the store's own record: its settings are those of a new store"))
        else:
            row = records.unseal(keys.STORE_KEY, value)
            created, settings, above = row[2], row[4], max(above, row[3])
        copied = 0
        for kind in (keys.STATE, *SUBJECT_KINDS):
            if kind in _LIVE:
                continue
            prefix = keys.family(0, kind)
            for key, kept in family_rows(self._gathered, prefix):
                txn.put(key, kept)
                copied += kind == keys.STATE
        families = (("state", keys.STATE, keys.STATE), ("subjects", SUBJECT_KINDS[0], SUBJECT_KINDS[-1]))
        for what, first, last in families:
            if self._gathered.is_hidden(keys.family(0, first), keys.family(0, last + 1)):
                self._report.lost.append(Loss(f"{what}, perhaps: a damaged page held some"))
        self._report.counts["state"] = copied
        row = [keys.STORE_FORMAT, uuid, created, above, settings, copied]
        txn.put(keys.STORE_KEY, records.seal(keys.STORE_KEY, row))
        if self._gathered.is_hidden(keys.NAMES, keys.DOOMED_STREAMS):
            self._report.notes.append("a damaged page held names of streams: a stream without entries may be gone")


def _check(place: Path, report: SalvageReport) -> None:
    """Check the new store, but for the look-ups."""
    taken = Taken(str(place))
    with closing(StoreWalk(place / directory.FIRST_GENERATION, taken.take)) as walk:
        walk.choose_meta(None)
        if walk.begin():
            walk.walk()
            walk.find.end()
    made = taken.report
    report.counts.update(made.counts | {"problems": made.counts.get("problems", 0)})
    if made.problems:
        report.notes.append(
            f"the new store has {made.counts['problems']} problems of its own, the first: {made.problems[0].what}"
        )
