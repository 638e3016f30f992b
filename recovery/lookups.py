"""Every key looked up again through LMDB, as readers do: what is there must be found.

    the tree, page by page      a  b  c │ d  e │ f  g …
    LMDB's cursor, in step      a  b  c   d  e   f  g …        a scan sees each record
    LMDB's get                  a  b  c   d  e   f  g …        and a look-up finds it

A flipped bit in a branch page can leave scans right and look-ups wrong, or the other way
round. LMDB may die of damage here, so this runs last, and tells how far it has come.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import lmdb

from .check_records import is_journal
from .findings import Findings
from .page_tree import PageTree


def look_up(tree: PageTree, txn: lmdb.Transaction[Any], find: Findings, start: int,
            came_to: Callable[[int], None]) -> None:
    """Compare the records from leaf no. ``start`` on. ``came_to`` is told each leaf begun."""
    cursor = txn.cursor()
    follows = False  # whether the cursor stands on the record before
    for index in range(start, tree.leaves):
        came_to(index)
        for node in tree.leaf(index):
            key = node.key
            find.step()
            find.counts["looked_up"] += 1
            seen = (cursor.next() if follows else cursor.set_range(key)) and cursor.key() == key
            if not seen:
                find.say("lookup", f"a scan does not come to key {key.hex()}", key=key)
                follows = cursor.set_range(key) and cursor.key() == key
            value = txn.get(key)
            if value is None:
                find.say("lookup", f"key {key.hex()} is there and LMDB does not find it", key=key)
            elif not is_journal(key) and (value != tree.value(node) or (seen and cursor.value() != value)):
                find.say("lookup", f"LMDB finds another value under key {key.hex()}", key=key)
            follows = follows or seen
