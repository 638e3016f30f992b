"""The store as the face gives it: streams, subjects, and the care of the whole."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from .index import store
from .storage.errors import InvalidArgument
from .stream.node.clock import whole

if TYPE_CHECKING:
    from .recovery.snapshot.manifest import Manifest
    from .storage.engine.reader_table import Reader
    from .storage.files.presence import LastEnd
    from .storage.lifecycle.compaction import Compaction


class Store(store.Store):
    """An open store. A context manager; safe to share by threads; survives a fork."""

    __slots__ = ()

    @property
    def last_end(self) -> LastEnd:
        """How the store was left by those who had it open before: ``how`` is "clean", "killed" or
        "power cut". The first who opens it for writing after that is told, and nobody else.

        A kill (or a process that left without close()) has lost nothing. After a power cut the
        newest records of up to 100 streams were looked at when it was opened; ``problems`` names
        those that are damaged, which reading would name too. All else can be read.
        """
        self._require_open()
        return self._env.last_end

    def snapshot(self, destination: str | os.PathLike[str], *, incremental_to: str | os.PathLike[str] | None = None,
                 shards: int | None = None, shard_bytes: int | None = None, keep: int | None = None,
                 progress: Callable[[str, int, int], None] | None = None) -> Manifest:
        """Copy one consistent state of the store to ``destination``, while writers go on.

        ``incremental_to``  an earlier snapshot of this store: only what has changed since is written
        ``shards``          cut each stream into so many ranges of IDs with even counts of entries,
                            one compressed file each; ``destination`` may be a URL then (fsspec)
        ``shard_bytes``     the same, by about so many bytes of a stream's nodes a shard
        ``keep``            afterwards remove this store's snapshots beside ``destination`` but for
                            the newest ``keep`` and what those build on
        ``progress``        called with what is being done ("copy", "check", "sum", "cut", "upload"),
                            how much of it, and of how much

        Without the first three the snapshot is a store at rest: open it with readonly=True. It
        holds everything that was committed when the call began, and no half of a transaction. A
        process of its own does the work: writers never wait for it; the pages they replace
        meanwhile are not used again before its end. Reads the store once (an increment too, which
        only writes less), about a second for a gigabyte in memory, and 0.2 s besides.

        StoreError (something is at the destination, which is left alone), ReadOnlyStore, StoreFull,
        NotAStore (no snapshot is at ``incremental_to``), CorruptionError (a record of the store is
        damaged: no snapshot is made of it), InvalidArgument, NotInstalled: nothing is left behind.
        """
        from .recovery.snapshot import full, incremental, restore  # noqa: PLC0415
        from .recovery.snapshot import shards as cutting  # noqa: PLC0415
        from .recovery.snapshot.location import local_path  # noqa: PLC0415

        self._require_open()
        for name, value in (("shards", shards), ("shard_bytes", shard_bytes), ("keep", keep)):
            whole(name, value, 1, none="")
        if shards is not None and shard_bytes is not None:
            raise InvalidArgument("give shards or shard_bytes, not both")
        cut = shards is not None or shard_bytes is not None
        place = local_path(destination)
        if cut and incremental_to is not None:
            raise InvalidArgument("an increment cannot be cut into shards; make the one or the other")
        if place is None and (not cut or keep is not None):
            raise InvalidArgument(f"{destination} is a URL, which only shards can be written to, and without keep")
        if self._env.options.durability != "commit" and not self._env.commits.in_own_transaction():
            self.flush()
        if cut:
            made = cutting.make(self.path, destination, shards, shard_bytes, progress)
        elif incremental_to is not None:
            made = incremental.make(self.path, Path(destination), Path(incremental_to), progress)
        else:
            made = full.make(self.path, Path(destination), progress)
        if keep is not None and place is not None:
            restore.keep_last(place.absolute().parent, made.store, keep)
        return made

    def readers(self) -> list[Reader]:
        """The reads that are open at this moment, in all processes, the furthest behind first.

        The file cannot use again what was written since the oldest of them began: its ``lag``,
        in commits. raxlog's own calls read in short transactions, so a lag of more than a few
        commits tells of a process that was stopped in the middle of a read.
        """
        from .storage.engine import reader_table  # noqa: PLC0415

        self._require_open()
        return reader_table.readers(self._env)

    def compact(self, progress: Callable[[str, int, int], None] | None = None) -> Compaction:
        """Write the data file anew, without the room of what was deleted, and go over to it.

        ``progress``   called with the step ("copying", "copied", "flushed", "named", "prepared",
                       "marked", "switched", "cleared"), bytes copied and bytes in all; it must not
                       use the store. A thread of its own calls it while LMDB copies

        Writers wait meanwhile, in all processes, about a second for a gigabyte in memory; readers
        go on. Other processes go over with their next transaction. The old file goes once no
        process has it open: ``held_by`` names those that still have. Needs room on the disk
        for the new file beside the old one. A signal's handler runs after the copy, not within
        it. Where that would be no smaller nothing is done: the
        generation is the one before, and ``bytes_after`` equals ``bytes_before``.

        LockTimeout, StoreFull, CorruptionError, ReadOnlyStore, TransactionError: nothing has
        changed. A kill or a power cut at any moment leaves the store as it was or compacted.
        """
        from .storage.lifecycle import compaction  # noqa: PLC0415

        self._require_open()
        if self._source.buffer is not None:
            self._source.buffer.flush()
        return compaction.compact(self._env, self._source.lock_timeout, progress)
