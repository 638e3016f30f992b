"""Garbage collection in a task's process, which PySpark keeps for later tasks and collects after each.

    daemon ──fork──> worker    task ─ gc.collect() ─ task ─ gc.collect() ─ …

That full collection visits all that is loaded, some 40,000 objects of pyspark, pyarrow and raxlog,
which never are garbage: 15 ms, and 25 to 50 with cold caches, most of the cost of a small task.
"""

from __future__ import annotations

import gc

_settled = False


def settle() -> None:
    """Exempt what is loaded from collection, and collect later objects less often; once in a process.

    For ``read`` and ``write``, which Spark calls in its workers only: the rows of a commit are many objects, and no
    garbage. (gc.get_freeze_count() would visit all again.)
    """
    global _settled  # noqa: PLW0603 - it is of the process
    if not _settled:
        _settled = True
        gc.freeze()
        gc.set_threshold(50_000)
