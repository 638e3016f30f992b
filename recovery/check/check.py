"""check: verify every invariant of a store, in a process of its own.

    check(path)
      └─ subprocess: walk all of it   ── problems, counts ──> Report
           │ dies in LMDB                                      a problem, with the signal
           └─ subprocess: the rest, after the page that killed the first      … and so on

The walks read raw pages and cannot die; only opening LMDB and the look-ups through it can, so one
bad page hides nothing but itself. The messages, each a dict:

    {"generation": "000001"}                          the generation that is checked
    {"opened": true}                                  LMDB has opened it and pins its state
    {"part": "records", "done": 512, "total": 807}    progress
    {"problem": {…}}   {"note": "…"}   {"counts": {…}}
    {"page": 17, "next": "…"}                         look-ups begin a leaf page; the next page's first key

A walk goes through the data file part after part:

    1. pages      meta pages, both roots, all branch pages, and LMDB's own verifier
    2. records    every record: its pages, its checksum, its key; names and headers; what the log holds besides
    3. streams    nodes, ordinals, groups, pending entries, idempotent appends
    4. subjects   bindings and subscriptions
    5. look-ups   every key again, through LMDB, as readers do it

    the tree, page by page      a  b  c │ d  e │ f  g …
    LMDB's cursor, in step      a  b  c   d  e   f  g …        a scan sees each record
    LMDB's get                  a  b  c   d  e   f  g …        and a look-up finds it

Parts 1 to 4 read raw pages, which cannot kill a process. A read transaction pins one state for
as long as the check takes: no page of it is reused by a live writer. A flipped bit in a branch
page can leave scans right and look-ups wrong, or the other way round. LMDB may die of damage
there, so part 5 runs last and reports how far it has come.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from ...index.pubsub import check as pubsub_check
from ...index.subjects import check as subjects_check
from ...storage import clocks
from ...storage.engine import registry
from ...storage.errors import CorruptionError, NotAStore, RaxlogError, ReadOnlyStore, StoreError, UnsupportedFormat
from ...storage.folder import directory
from ...storage.log.log import Log
from ...storage.log.ring import APPLIED_KEY, unseal_applied
from ...storage.log.transaction import View
from ...storage.tree import lmdb_errors, lmdb_file
from ...storage.tree.lmdb_file import Meta, PageFile
from ...storage.tree.tree import Tree, verify
from ...storage.trees.rax import RaxTransaction, ReadTransaction
from ...stream.entries.write_buffer import WriteBuffer
from ..subprocess_task import Progress, SubprocessTask
from .groups import check_appends, check_deferred, check_groups, check_results, check_unique
from .nodes import check_stream
from .page_tree import FAILURES, PageTree
from .records import Inventory, check_names, check_records
from .report import Findings, Problem, Report, Taken

_MOST_DEATHS = 64
_TRIES = 50
_VERIFY_TRIES = 5
_MOST_MARKS = 50
# LMDB leaves these two behind, always together, where one transaction puts a long value and
# then a shorter one under the same key. The data is right.
_FALSE_ALARMS = ("neither reachable nor in the freeDB", "!= OVPAGES(")


def check(path: str | os.PathLike[str], progress: Progress | None = None) -> Report:
    """Check every invariant of the store at ``path``; the report has ``.ok``, ``.problems`` and ``.counts``.

    Each problem says what is wrong, what it means, and where: stream, group, node, offset, page.
    ``progress(part, done, total)`` is called now and then; the parts are "pages", "records",
    "streams", "subjects" and "look-ups". The check changes and creates nothing and works in a process
    of its own. It may run while others write: it holds one state until it ends, and pages freed in
    that time are reused only afterwards. About a second for a million small entries.

    Damage is reported, never raised, and cannot kill the caller. NotAStore,
    UnsupportedFormat, ReadOnlyStore (another process writes, and this one may not register as a
    reader), StoreError (the file cannot be read), CorruptionError (it is empty).
    """
    store = directory.place_of(path)
    with lmdb_errors.translated(store):
        return _check(store, progress)


def _check(store: Path, progress: Progress | None) -> Report:
    env = registry.opened(store)
    if env is not None and env.options.durability == "buffered" and not env.readonly:
        env.attached(WriteBuffer).flush()
    directory.generation(store)  # NotAStore, with the reason
    began = clocks.elapsed()
    taken = Taken(str(store))
    job: dict[str, Any] = {"path": str(store), "mode": "walk", "start": ""}
    for _ in range(_MOST_DEATHS):
        rest = _run_job(job, taken, progress)
        if rest is None:
            break
        job = rest
    else:
        taken.report.notes.append(f"the check was given up after {_MOST_DEATHS} deaths")
    return replace(taken.report, seconds=round(clocks.elapsed() - began, 3))


def _run_job(job: dict[str, Any], taken: Taken, progress: Progress | None) -> dict[str, Any] | None:
    """Run one subprocess. Returns the job of the next one if this one was killed, else None."""
    opened = False
    last: dict[str, Any] = {}
    part = "opening"
    with SubprocessTask(perform, job) as task:
        for (message,) in task:
            if "part" in message:
                part = message["part"]
                if progress is not None:
                    progress(part, message["done"], message["total"])
            elif "next" in message:
                last = message
            elif "counts" in message and job["mode"] == "look-ups":
                counts = taken.report.counts
                counts["looked_up"] = counts.get("looked_up", 0) + message["counts"].get("looked_up", 0)
            else:
                taken.take(message)
            opened = opened or "opened" in message
        if isinstance(task.error, RaxlogError):
            raise task.error
        failure = task.failure
    if failure is None:
        return None
    where = f" at page {last['page']}" if last else ""
    taken.add(Problem("process", f"the process that read it {failure} during {part}{where}", page=last.get("page")))
    if last and last["next"] is not None:
        return job | {"mode": "look-ups", "start": last["next"]}
    if last or job["mode"] == "raw" or opened:
        return None
    return job | {"mode": "raw"}


# -- in the subprocess ------------------------------------------------------------------------


def perform(send: Callable[[dict[str, Any]], None], path: str, mode: str, start: str) -> None:
    """Check in this process. RaxlogError where there is nothing to check.

    ``mode`` is "walk" (everything), "raw" (all that needs no LMDB) or "look-ups" (those alone, from the
    leaf of the key ``start`` on, in hex).
    """
    store = Path(path)
    missed: list[Path] = []
    current = current_generation(store, missed.append)
    send({"generation": current.name})
    with closing(StoreWalk(current, send)) as walk:
        if walk.file.size == 0:
            raise CorruptionError(f"the data file {current / directory.DATA} is empty")
        walk.choose_meta(None)
        for newer in missed:
            walk.find.problem("record", directory.missing_successor(newer), key=directory.MARK)
        if mode == "raw" or walk.is_cut_off():
            if walk.is_cut_off() and walk.meta is not None:
                walk.find.problem("lmdb", f"the data file is cut off: it has {walk.file.size} bytes, and "
                                  f"{(walk.meta.last_page + 1) * walk.file.page_size} belong to it")
            _walk_raw(walk)
            return
        try:
            tree = _open_tree(current, store)
        except lmdb_errors.Error as error:
            refusal = lmdb_errors.cannot_open(store, error)
            if isinstance(refusal, ReadOnlyStore):
                raise refusal from error
            _walk_raw(walk, f"LMDB cannot open the file: {error}")
            return
        with tree:
            _walk_with_lmdb(walk, tree, mode, start)


def _open_tree(current: Path, store: Path) -> Tree:
    """Open a generation for reading; nothing is created. Without lock where it is a snapshot or has none."""
    has_lock = (current / directory.LOCK).exists() and not directory.is_snapshot(store)
    size = (current / directory.DATA).stat().st_size
    locks = "lmdb" if has_lock and directory.can_register(current) else "none"
    return Tree(current, max(size, 1 << 20), locks=locks, readonly=True)


def _walk_raw(walk: StoreWalk, why: str = "") -> None:
    """All but the look-ups; ``why`` is the problem that forbids them."""
    if why:
        walk.find.problem("lmdb", why)
    if walk.begin():
        walk.verify()
        with walk.begin_read(walk.tree, False):
            walk.walk()
    walk.find.note("no look-ups through LMDB were made")
    walk.find.end()


def _walk_with_lmdb(walk: StoreWalk, tree: Tree, mode: str, start: str) -> None:
    for _ in range(_TRIES):
        try:
            txn = walk.begin_read(tree, tree.locks != "none")
        except lmdb_errors.MapResizedError:
            tree.set_size(0)
            continue
        except lmdb_errors.Error as error:
            _walk_raw(walk, f"LMDB cannot begin to read: {error}")
            return
        with txn:
            snapshot = txn.lmdb() if isinstance(txn, View) else txn
            if not walk.choose_meta(snapshot.id()):
                continue  # two commits since then have replaced its meta page
            walk.send({"opened": True})
            walk.is_first = mode == "walk"
            if walk.begin():
                if walk.is_first:
                    walk.verify()
                    walk.walk()
                    walk.find.end()  # the look-ups may kill the process
                try:
                    walk.look_up(snapshot, bytes.fromhex(start))
                except lmdb_errors.Error as error:
                    walk.find.problem("lookup", f"LMDB fails: {error}")
                    walk.find.note("the look-ups through LMDB did not come to their end")
            walk.find.end()
            return
    raise StoreError(f"{walk.generation.parent} is written to so fast that no state of it could be held. Try again.")


class StoreWalk:
    """One check of one generation. ``send`` gets every message as a dict."""

    tree: PageTree  # once begin() has found one

    def __init__(self, current: Path, send: Callable[[dict[str, Any]], None]) -> None:
        self.data: Path = current / directory.DATA
        self.generation = current
        self.send = send
        self.find: Findings = Findings(send)
        self.is_first = True  # else a walk before has reported the pages
        try:
            self.file: PageFile = PageFile(self.data)
        except OSError as error:
            raise StoreError(f"{self.data} cannot be read: {error}.") from error
        self.meta: Meta | None = None
        self.log: Log | None = None
        self.view: View | None = None  # of a store with a log

    def close(self) -> None:
        if self.log is not None:
            self.log.close()
        self.file.close()

    # -- the log ------------------------------------------------------------------------

    def begin_read(self, real: Any, shares: bool) -> Any:
        """A state of LMDB's, or of raw pages, that is held with what the log has besides, where there is one."""
        if self.log is None:
            with real.begin() as raw:
                if raw.get(APPLIED_KEY) is not None or (self.generation / directory.LOG).exists():
                    self.log = self._entered(real, shares)
        if self.log is None:
            return real.begin()
        self.view = self.log.begin()
        return self.view

    def _entered(self, real: Any, shares: bool) -> Log | None:
        try:
            return Log(self.generation, real, readonly=True, shares=shares)
        except (CorruptionError, NotAStore) as error:
            if self.is_first:
                self.find.problem("log", str(error))
            try:
                return Log(self.generation, real, readonly=True, shares=False, rescues=True)
            except (CorruptionError, NotAStore):
                return None  # nothing of it can be read

    def _logged(self) -> dict[bytes, bytes | None]:
        """What the log holds that the file does not."""
        if self.view is None:
            return {}
        applied, *_ = unseal_applied(self.view.lmdb().get(APPLIED_KEY))
        return dict(self.view.overlay.changes(applied, self.view.upto))

    # -- 1. pages -----------------------------------------------------------------------

    def choose_meta(self, transaction: int | None) -> bool:
        """Use the meta page of a transaction, or the newest one. False if it has been replaced."""
        metas = self.file.metas()
        if transaction is not None:
            metas = [meta for meta in metas if meta.transaction == transaction]
            if not metas:
                return False
        self.meta = metas[0] if metas else None
        return True

    def begin(self) -> bool:
        """Read the tree's branch pages. False if there is no tree to read."""
        find = self.find
        if self.meta is None:
            if self.file.version() not in (None, 1):
                raise UnsupportedFormat(
                    f"{self.data} is of LMDB's data format {self.file.version()}; this raxlog reads format 1."
                )
            find.problem("lmdb", "neither meta page can be read: nothing leads to the records", page=0)
            return False
        if self.is_first:
            self._compare_metas()
        used = (self.meta.last_page + 1) * self.file.page_size
        if self.file.size < used:
            find.note(f"the file has {self.file.size:,} bytes, LMDB counts {used:,}")
        self.tree = find.tree = PageTree(self.file, self.meta.root, self.meta.last_page)
        find.counts["pages"] = self.meta.last_page + 1
        for fault in self.tree.faults if self.is_first else ():
            high = "the last" if fault.high is None else f"before {fault.high.hex()}"
            hidden = f"; keys from {fault.low.hex() or 'the first'} to {high} are out of reach"
            find.problem("page", f"page {fault.page} {fault.what}{hidden if fault.hides else ''}", page=fault.page)
        return True

    def _compare_metas(self) -> None:
        """Report a missing second meta page, and one that LMDB would wrongly prefer."""
        assert self.meta is not None
        if len(self.file.metas()) < 2:
            self.find.problem("lmdb", "one of the two meta pages is damaged: LMDB refuses the file",
                          page=1 - self.meta.slot)
        elif (doubt := lmdb_file.stable_doubts(self.file)) is not None:
            self.find.problem("lmdb", doubt, page=self.meta.slot)

    def is_cut_off(self) -> bool:
        """Whether the file is shorter than its meta page states: LMDB must not open it then."""
        return self.meta is None or lmdb_file.missing_end(self.file, [self.meta]) > 0

    def verify(self) -> None:
        """Run LMDB's own verifier, without its known false alarm. Beside a busy writer it is given up."""
        self.find.begin("pages", 1)
        for _ in range(_VERIFY_TRIES):
            before = [meta.transaction for meta in self.file.metas()]
            found = verify(self.generation)
            serious = [problem for problem in found if not any(alarm in problem for alarm in _FALSE_ALARMS)]
            if not serious or [meta.transaction for meta in self.file.metas()] == before:
                for problem in serious:
                    self.find.problem("lmdb", problem)
                return
        self.find.note("LMDB's own verifier was not run: the store is being written to")

    # -- 2. to 4. -----------------------------------------------------------------------

    def walk(self) -> None:
        """Check all records, then all streams and subjects."""
        tree, find, meta = self.tree, self.find, self.meta
        assert meta is not None
        find.begin("records", meta.entries)
        logged = self._logged()
        inventory = check_records(tree, self.file, find, logged)
        if inventory.newer is not None:
            raise UnsupportedFormat(f"{self.generation.parent}: {inventory.newer}")
        if not inventory.sealed:
            if not tree.faults:
                raise NotAStore(f"{self.data} is an LMDB file, but no raxlog store is in it.")
            find.note("no record of raxlog's can be read")
        if find.counts["records"] != meta.entries and not tree.faults:
            find.problem("lmdb", f"{find.counts['records']} records are there, LMDB counts {meta.entries}")
        find.counts["records"] += sum(value is not None for value in logged.values())
        find.counts["records"] -= sum(tree.get(key) is not None for key in logged)
        numbers = check_names(inventory, find)
        find.begin("streams", find.counts["nodes"])
        sees: RaxTransaction = tree
        if self.view is not None:
            sees = View(self.log, tree, self.view.overlay, False)
        for number in numbers:
            self._stream(sees, inventory, number)
        self._part("subject", partial(self._subjects, sees))

    def _stream(self, tree: RaxTransaction, inventory: Inventory, number: int) -> None:
        find, name = self.find, inventory.name_of(number)
        header = check_stream(tree, number, name, find)
        self._part("group", partial(check_groups, tree, number, name, header, inventory.doomed, find), stream=name)
        self._part("append", partial(check_appends, tree, number, name, find), stream=name)
        self._part("deferred", partial(check_deferred, tree, number, name, header, find), stream=name)
        self._part("result", partial(check_results, tree, number, name, find), stream=name)
        self._part("unique", partial(check_unique, tree, number, name, find), stream=name)

    def _subjects(self, tree: RaxTransaction) -> None:
        """Check the subject index and the durable subscriptions."""
        self.find.begin("subjects", 1)
        for what in chain(subjects_check.problems(tree), pubsub_check.problems(tree)):
            self.find.problem("subject", what)

    def _part(self, what: str, part: Callable[[], None], **where: Any) -> None:
        """Run a part of the check; an exception is a problem of the kind ``what``."""
        try:
            part()
        except FAILURES as error:
            self.find.error(what, error, **where)

    # -- 5. -----------------------------------------------------------------------------

    def look_up(self, txn: ReadTransaction, start: bytes = b"") -> None:
        """Look every key up through LMDB, from the leaf of the key ``start`` on."""
        assert self.meta is not None
        tree, find = self.tree, self.find
        find.begin("look-ups", self.meta.entries)
        cursor = txn.cursor()
        follows = False  # whether the cursor is on the record before
        for index in range(tree.leaf_index(start), tree.leaves):
            following = tree.low_at(index + 1)
            self.send({"page": tree.page_at(index), "next": None if following is None else following.hex()})
            for node in tree.leaf(index):
                key = node.key
                find.step()
                find.counts["looked_up"] += 1
                seen = (cursor.next() if follows else cursor.set_range(key)) and cursor.key() == key
                if not seen:
                    find.problem("lookup", f"a scan does not come to key {key.hex()}", key=key)
                    follows = cursor.set_range(key) and cursor.key() == key
                value = txn.get(key)
                if value is None:
                    find.problem("lookup", f"key {key.hex()} is there and LMDB does not find it", key=key)
                elif value != tree.value(node) or (seen and cursor.value() != value):
                    find.problem("lookup", f"LMDB finds another value under key {key.hex()}", key=key)
                follows = follows or seen


def current_generation(path: Path, miss: Callable[[Path], object] = bool) -> Path:
    """The current generation of a store: the one CURRENT names, or the one its mark leads to, if that is there."""
    found = directory.generation(path)
    for _ in range(_MOST_MARKS):
        with closing(StoreWalk(found, lambda message: None)) as walk:
            try:
                if not walk.choose_meta(None) or not walk.begin():
                    break
                newer = directory.successor(walk.tree.get)
            except RaxlogError:
                break  # damaged: no other generation is known
        if newer is None:
            break
        if not (path / newer / directory.DATA).is_file():
            miss(path / newer)
            break
        found = path / newer
    return found
