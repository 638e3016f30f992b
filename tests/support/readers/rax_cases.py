"""What the tests of the rax share: keys worth trying, and a transaction to try them in."""

from __future__ import annotations

import atexit
import functools
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import lmdb
from hypothesis import strategies as st
from rax_in_memory import RaxInMemory
from raxlog.storage.trees.rax import Rax

PREFIXES = [b"p", b"\x00", b"\xff", b"\xff\xff", b"a\xff", b"\x00" * 7 + b"\x01\x30", b"\xfe"]


def stream_id(ms: int, seq: int) -> bytes:
    return ms.to_bytes(8, "big") + seq.to_bytes(8, "big")


words = st.text("ab", max_size=7).map(str.encode)
odd_bytes = st.lists(st.sampled_from([0, 1, 97, 254, 255]), max_size=5).map(bytes)
any_keys = words | odd_bytes
id_parts = st.sampled_from([0, 1, 2, 255, 256, 257, 65535, 65536, 1 << 40, (1 << 64) - 1])
stream_ids = st.builds(stream_id, id_parts, id_parts)


@functools.cache
def environment() -> lmdb.Environment:
    """One LMDB environment for the whole run; every test aborts what it wrote."""
    folder = tempfile.mkdtemp(prefix="rax-")
    atexit.register(shutil.rmtree, folder)
    return lmdb.open(folder, map_size=1 << 28, sync=False, lock=False)


@contextmanager
def writing(buffers: bool = False) -> Iterator[lmdb.Transaction]:
    txn = environment().begin(write=True, buffers=buffers)
    try:
        yield txn
    finally:
        txn.abort()


def filled(txn: lmdb.Transaction, prefix: bytes, keys: Iterable[bytes]) -> Rax:
    rax = Rax(txn, prefix)
    for key in keys:
        rax.insert(key, b"value of " + key)
    return rax


def in_memory(keys: Iterable[bytes], merges: str) -> RaxInMemory:
    oracle = RaxInMemory(merges)
    for key in keys:
        oracle.insert(key, b"value of " + key)
    return oracle
