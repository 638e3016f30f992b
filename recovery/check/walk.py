"""One check of a data file, part after part; check.py runs it in a subprocess.

    1. pages      meta pages, both roots, all branch pages, and LMDB's own verifier
    2. records    every record: its pages, its checksum, its key; names and headers
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

from collections.abc import Callable
from contextlib import closing
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import lmdb
from lmdb.verify import VerifyError, verify

from ...index.pubsub import check as pubsub_check
from ...index.subjects import check as subjects_check
from ...storage.errors import NotAStore, RaxlogError, StoreError, UnsupportedFormat
from ...storage.files import directory, generation, meta_pages
from ...storage.files.lmdb_file import Meta, PageFile
from .groups import check_appends, check_groups
from .nodes import check_stream
from .page_tree import FAILURES, PageTree
from .records import Inventory, check_names, check_records, is_journal
from .report import Findings

_TRIES = 5
_MOST_MARKS = 50
# LMDB leaves these two behind, always together, where one transaction puts a long value and
# then a shorter one under the same key. The data is right.
_FALSE_ALARMS = ("neither reachable nor in the freeDB", "!= OVPAGES(")


class StoreWalk:
    """One check of one generation. ``send`` gets every message as a dict."""

    tree: PageTree  # once begin() has found one

    def __init__(self, generation: Path, send: Callable[[dict[str, Any]], None]) -> None:
        self.data = generation / directory.DATA
        self.generation = generation
        self.send = send
        self.find = Findings(send)
        self.is_first = True  # else a walk before has reported the pages
        try:
            self.file = PageFile(self.data)
        except OSError as error:
            raise StoreError(f"{self.data} cannot be read: {error}.") from error
        self.meta: Meta | None = None

    def close(self) -> None:
        self.file.close()

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
        elif (doubt := meta_pages.stable_doubts(self.file)) is not None:
            self.find.problem("lmdb", doubt, page=self.meta.slot)

    def is_cut_off(self) -> bool:
        """Whether the file is shorter than its meta page states: LMDB must not open it then."""
        return self.meta is None or meta_pages.missing_end(self.file, [self.meta]) > 0

    def verify(self) -> None:
        """Run LMDB's own verifier, without its known false alarm. Beside a busy writer it is given up."""
        self.find.begin("pages", 1)
        for _ in range(_TRIES):
            before = [meta.transaction for meta in self.file.metas()]
            try:
                found = [str(problem) for problem in verify(str(self.generation))]  # type: ignore[no-untyped-call]
            except VerifyError as error:
                found = [str(error)]
            except Exception as error:  # its own bugs on damaged pages
                found = [f"the verifier failed: {type(error).__name__}: {error}"]
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
        inventory = check_records(tree, self.file, find)
        if inventory.newer is not None:
            raise UnsupportedFormat(f"{self.generation.parent}: {inventory.newer}")
        if not inventory.sealed:
            if not tree.faults:
                raise NotAStore(f"{self.data} is an LMDB file, but no raxlog store is in it.")
            find.note("no record of raxlog's can be read")
        if find.counts["records"] != meta.entries and not tree.faults:
            find.problem("lmdb", f"{find.counts['records']} records are there, LMDB counts {meta.entries}")
        numbers = check_names(inventory, find)
        find.begin("streams", find.counts["nodes"])
        for number in numbers:
            self._stream(inventory, number)
        self._part("subject", self._subjects)

    def _stream(self, inventory: Inventory, number: int) -> None:
        tree, find, name = self.tree, self.find, inventory.name_of(number)
        header = check_stream(tree, number, name, find)
        self._part("group", partial(check_groups, tree, number, name, header, inventory.doomed, find), stream=name)
        self._part("append", partial(check_appends, tree, number, name, find), stream=name)

    def _subjects(self) -> None:
        """Check the subject index and the durable subscriptions."""
        self.find.begin("subjects", 1)
        for what in chain(subjects_check.problems(self.tree), pubsub_check.problems(self.tree)):
            self.find.problem("subject", what)

    def _part(self, what: str, part: Callable[[], None], **where: Any) -> None:
        """Run a part of the check; an exception is a problem of the kind ``what``."""
        try:
            part()
        except FAILURES as error:
            self.find.error(what, error, **where)

    # -- 5. -----------------------------------------------------------------------------

    def look_up(self, txn: lmdb.Transaction[Any], start: bytes = b"") -> None:
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
                elif not is_journal(key) and (value != tree.value(node) or (seen and cursor.value() != value)):
                    find.problem("lookup", f"LMDB finds another value under key {key.hex()}", key=key)
                follows = follows or seen


def current_generation(path: Path) -> Path:
    """The current generation of a store: the one CURRENT names, or the one its mark leads to."""
    found = directory.generation(path)
    for _ in range(_MOST_MARKS):
        with closing(StoreWalk(found, lambda message: None)) as walk:
            try:
                if not walk.choose_meta(None) or not walk.begin():
                    break
                newer = generation.successor(walk.tree.get)
            except RaxlogError:
                break  # damaged: no other generation is known
        if newer is None or not (path / newer / directory.DATA).is_file():
            break
        found = path / newer
    return found
