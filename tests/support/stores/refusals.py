"""What a refusal must look like, and that it left the disk as it was."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lmdb
import pytest
import raxlog

MAX = "18446744073709551615"


def dump(path: Path) -> dict[str, Any]:
    """Everything in a store's folder: the files by name, the database by its records."""
    generation = path / (path / "CURRENT").read_text().strip()
    with lmdb.open(str(generation), readonly=True, lock=False, max_dbs=16) as env, env.begin() as txn:
        entries = list(txn.cursor())
    return {"entries": entries, "files": sorted(file.name for file in path.iterdir())}


@contextmanager
def refused(kind: type[raxlog.RaxlogError], *words: str) -> Iterator[None]:
    """The block must raise exactly this, with these words in its message."""
    with pytest.raises(raxlog.RaxlogError) as caught:
        yield
    assert type(caught.value) is kind, repr(caught.value)
    message = str(caught.value)
    assert len(message) < 400
    assert "\n" not in message
    for word in words:
        assert word in message, message


def make_orders(folder: Path) -> Path:
    """A store with one stream, 'orders': 1-1 to 9-1 but for 5-1, which has been deleted."""
    with raxlog.open(folder) as store:
        orders = store.stream("orders")
        orders.extend([{"n": n} for n in range(1, 10)], [f"{n}-1" for n in range(1, 10)])
        orders.delete("5-1")
        store.stream("full").append({"n": 1}, f"{MAX}-{MAX}")
    return folder
