"""A store with a group at work, of which a test may change nothing."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
import raxlog
from raxlog.stream.entries.header import number_of
from raxlog.stream.group.state import groups


def everything(store: raxlog.Store) -> list[Any]:
    facts: list[Any] = [store.streams(), dict(store.state)]
    for name in store.streams():
        stream = store.stream(name)
        facts += [stream.info(), list(stream.range()), stream.groups()]
        for info in stream.groups():
            group = stream.group(info.name)
            facts.append([(row.id, row.consumer, row.deliveries) for row in group.pending_entries("-")])
        with store._env.read() as txn:
            number = number_of(txn, os.fsencode(name))
            assert number is not None
            for state in groups(txn, number):
                facts += [(member.name, member.seen, member.active, member.pending) for member in state.consumers(txn)]
    return facts


@pytest.fixture
def queue(store: raxlog.Store) -> Iterator[raxlog.Store]:
    """Stream s with 1-0 … 6-0; group g has given 1-0 … 4-0 to c, and 1-0 is acknowledged."""
    stream = store.stream("s")
    stream.extend([{"n": n} for n in range(6)], ids=[f"{n + 1}-0" for n in range(6)])
    group = stream.create_group("g", "0")
    group.ack(*[entry.id for entry in group.read("c", count=4)][:1])
    store.state[b"k"] = b"v"
    before = everything(store)
    yield store
    assert everything(store) == before


def g(store: raxlog.Store) -> raxlog.Group:
    return store.stream("s").group("g")
