"""Sweep: free the space of streams and groups that have been deleted.

    delete stream, destroy group     one commit: deletes name and record, adds a DOOMED row
    sweep                            deletes the rest, 2,000 keys a commit, and last the DOOMED row

Nothing leads to doomed rows any more, and numbers are never used again, so a crash between
two steps costs nothing but space: the next open() of the store sweeps on.
"""

from __future__ import annotations

import contextlib
from functools import partial

from ..storage.errors import CorruptionError, LockTimeout, StoreFull
from ..storage.format import keys, records
from ..storage.log.cursor import cursor_over
from ..storage.log.transaction import WriteTransaction
from .entries import writer
from .entries.session import Source

_KEYS = 2000  # deleted in one transaction; other writers get in between


def doom_stream(txn: WriteTransaction, name: bytes) -> bool:
    """Delete a stream: name and header go, and the rest is doomed. False if there is none."""
    stream = writer.locate(txn, name)
    if stream is None:
        return False
    doomed = keys.DOOMED_STREAMS + stream.number.to_bytes(8, "big")
    txn.put(doomed, records.seal(doomed, [name]))
    txn.delete(keys.NAMES + name)
    txn.delete(stream.header_key)
    writer.forget(txn, stream)
    return True


def sweep(source: Source) -> None:
    """Delete all that is doomed, a bounded transaction at a time. About 3 µs if nothing is.

    The deletion itself is committed already, so this raises nothing where it cannot write, or a page is damaged.
    """
    with contextlib.suppress(LockTimeout, StoreFull, CorruptionError):  # the next open(), or deletion, sweeps on
        with source.read() as txn:
            doomed = list(cursor_over(txn, keys.DOOMED_STREAMS).iternext(values=False))
        for suffix in doomed:
            while source.submit(partial(_sweep_some, suffix)):
                continue


def _sweep_some(suffix: bytes, txn: WriteTransaction) -> bool:
    """Delete up to _KEYS keys of a doomed stream or group. False once none is left."""
    swept = 0
    for start, stop in keys.doomed_spans(suffix):
        cursor = txn.cursor()
        found = cursor.set_range(start)
        while found and start <= (key := cursor.key()) < stop:  # damage can lead back
            if swept == _KEYS:
                return True
            txn.delete(key)
            found = cursor.set_range(start)
            swept += 1
    txn.delete(keys.DOOMED_STREAMS + suffix)
    return False
