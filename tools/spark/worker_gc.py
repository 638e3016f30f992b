"""The process of a task: PySpark keeps it for the tasks to come, and tidies up after each.

    daemon ──fork──> worker    task ─ gc.collect() ─ task ─ gc.collect() ─ …

That full collection goes through all that is loaded, some 40,000 objects of pyspark, pyarrow
and raxlog, which never are garbage: 15 ms, and 25 to 50 where other work has taken the caches.
It is most of what a task costs that reads little.
"""

from __future__ import annotations

import gc

_settled = False


def settle() -> None:
    """Take what is loaded out of the collector's sight, once in a process; nothing at any later call.

    What the process makes from now on is collected as ever. For ``read`` of a reader, which Spark
    calls in its workers only. (To ask gc.get_freeze_count() would be to go through all of it again.)
    """
    global _settled  # noqa: PLW0603 - it is of the process
    if not _settled:
        _settled = True
        gc.freeze()
