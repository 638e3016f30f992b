"""The ring: live messages on their way from the publishing process to those with subscriptions.

    1D 0…41   [kind, ms, name, payload, owners, chosen, ids]      a message
    1D 0…42   …
    1D FF*8   [next number, first number, bytes]             the ring's state

    publisher    one row, in the commit that also appends to bound streams; oldest rows out
    each process reads from where it was, once for all its subscriptions; then waits for more

A row is not a promise. It stays for 60 seconds at most, and no longer than there is room for:
4,096 messages or 64 MB. A process that falls farther behind finds the first number greater than
its own and knows how many it has missed: live is at most once. Messages that must not be missed
belong into a stream, by a binding or a durable subscription.

Rows are removed by the next publish, so a store without publishers keeps its last ones.
The numbers begin with 1 and are never used twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

from ...storage.format import keys, records
from ...storage.log.transaction import WriteTransaction
from ...storage.trees.rax import RaxTransaction, family_rows

SUBJECT, CHANNEL, SHARD = 0, 1, 2  # kinds of messages

MOST_MESSAGES = 4096
MOST_BYTES = 64 << 20
MOST_MS = 60_000
_TRIM_AT_ONCE = 64  # old rows removed by one publish: what it adds, and 63 of those before

ROWS = keys.family(0, keys.LIVE_MESSAGE)
STATE_KEY = ROWS + b"\xff" * 8
_WARM = (STATE_KEY,)  # no stream's name, as bytes would be


class LiveMessage(NamedTuple):
    """One message as stored in the ring."""

    kind: int
    ms: int  # when it was published
    name: bytes  # the subject or channel
    payload: list[bytes]  # [name, value, …] of a subject's fields; [message] of a channel's
    owners: list[int]  # the processes with targets
    chosen: list[int]  # the IDs of the subscriptions chosen in their queues
    ids: Sequence[bytes] = ()  # [stream, ID, …] of its entries in bound streams


@dataclass(slots=True)
class _RingState:
    """The ring's state in a write transaction: kept warm, written once before the commit."""

    epoch: int
    next: int
    first: int
    bytes: int

    def flush(self, txn: WriteTransaction) -> None:
        if txn.dirty.pop(STATE_KEY, None) is not None:
            txn.put(STATE_KEY, records.seal(STATE_KEY, [self.next, self.first, self.bytes]))


def position(txn: RaxTransaction) -> tuple[int, int]:
    """(the number of the next message, the number of the oldest one kept). One record."""
    value = txn.get(STATE_KEY)
    if value is None:
        return 1, 1
    row = records.unseal(STATE_KEY, value)
    return row[0], row[1]


def next_number(txn: WriteTransaction) -> int:
    """The number the next message will have, inside a write transaction."""
    return _state(txn).next


def _state(txn: WriteTransaction) -> _RingState:
    state: _RingState | None = txn.warm.get(_WARM)
    if state is None or state.epoch != txn.epoch:
        value = txn.get(STATE_KEY)
        row = [1, 1, 0] if value is None else records.unseal(STATE_KEY, value)
        state = txn.warm[_WARM] = _RingState(txn.epoch, *row)
    return state


def _key(number: int) -> bytes:
    return ROWS + number.to_bytes(8, "big")


def put(txn: WriteTransaction, message: LiveMessage) -> None:
    """Add a message, and remove what is too old or too much."""
    state = _state(txn)
    txn.changes += 1
    txn.dirty[STATE_KEY] = state
    key = _key(state.next)
    value = records.seal(key, message if message.ids else message[:6])
    txn.put(key, value)
    state.next += 1
    state.bytes += len(value)
    for _ in range(_TRIM_AT_ONCE):
        count = state.next - state.first
        if count <= 1:
            break
        oldest = _key(state.first)
        oldest_value = txn.get(oldest)
        if oldest_value is not None:
            if (count <= MOST_MESSAGES and state.bytes <= MOST_BYTES
                    and records.unseal(oldest, oldest_value)[1] >= message.ms - MOST_MS):
                break
            txn.delete(oldest)
            state.bytes -= len(oldest_value)
        state.first += 1


def messages(txn: RaxTransaction, start: int, limit: int) -> list[tuple[int, LiveMessage]]:
    """Messages from number ``start`` on, at most so many, with their numbers."""
    found: list[tuple[int, LiveMessage]] = []
    for key, value in islice(family_rows(txn, ROWS, _key(start)), limit):
        if key == STATE_KEY:
            break
        found.append((int.from_bytes(key[len(ROWS):], "big"), message(key, value)))
    return found


def message(key: bytes, value: bytes) -> LiveMessage:
    """The message of a row. CorruptionError; TypeError where the row has too few elements."""
    return LiveMessage(*records.unseal(key, value)[:len(LiveMessage._fields)])
