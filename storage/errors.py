"""Every error raxlog raises on purpose, in one tree.

    RaxlogError
    ├── InvalidArgument (ValueError)    InvalidStreamID, InvalidName, InvalidFields, SubjectError,
    │                                   InvalidDump (DumpChecksum)
    ├── StreamError                     NoStream (KeyError), StreamExists, NoGroup (KeyError), GroupExists,
    │                                   GroupMoved, ConsumerBusy, KeyBusy, NotOwner, Conflict, StreamExhausted,
    │                                   MalformedValue (ValueError),
    │                                   IDTooSmall (IDZero, IDBelowEntries, IDBelowDeleted),
    │                                   CountTooSmall (InvalidArgument), NoSchedule (KeyError)
    ├── SubscriptionError               NoSubscription (KeyError), SubscriptionExists
    ├── StoreError                      NotAStore, UnsupportedFormat, StoreFull, StoreClosed, ReadOnlyStore,
    │                                   SettingsConflict, AppendsLost, LockTimeout (TimeoutError)
    ├── TransactionError
    ├── NotInstalled (ImportError)
    └── CorruptionError

A message says what was wrong, where, and what to do about it. Nothing has been
changed on disk when one of these is raised by a call that writes. (AppendsLost reports
calls before the one that raises it.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .figures import Lost


class RaxlogError(Exception):
    """The base class of every error that raxlog raises on purpose."""


class InvalidArgument(RaxlogError, ValueError):
    """An argument that is never valid, whatever the store holds."""


class InvalidStreamID(InvalidArgument):
    """Text or bytes that are not a stream ID, or an ID that this argument does not allow."""


class InvalidName(InvalidArgument):
    """A name that cannot be stored: of a wrong type, too long for a key or, for a subscription, empty."""


class InvalidFields(InvalidArgument):
    """Fields of an entry that cannot be stored: none, one without a value, of a wrong type, or too large."""


class InvalidDump(InvalidArgument):
    """A payload for restore_stream() that holds no stream, has an unknown type, or contradicts itself."""


class DumpChecksum(InvalidDump):
    """A payload for restore_stream() whose checksum is wrong: the payload is truncated or damaged."""


class SubjectError(InvalidArgument):
    """A subject or pattern that is malformed, cannot be stored, or exceeds a limit of the index."""


class StreamError(RaxlogError):
    """A valid request that the present state of the stream does not allow."""


class NoStream(StreamError, KeyError):
    """The store has no stream of that name."""

    __str__ = Exception.__str__  # KeyError would print the message as a quoted repr


class StreamExists(StreamError):
    """Another stream has that name."""


class NoGroup(StreamError, KeyError):
    """The stream has no consumer group of that name, or does not exist."""

    __str__ = Exception.__str__


class NoSchedule(StreamError, KeyError):
    """The stream has no schedule of that name, or does not exist."""

    __str__ = Exception.__str__


class GroupExists(StreamError):
    """The stream already has a consumer group of that name."""


class GroupMoved(StreamError):
    """The group of a Spark query stands where the query has not left it. Nothing was moved."""


class ConsumerBusy(StreamError):
    """The consumer still has pending entries, and the call refuses to delete such a consumer."""


class KeyBusy(StreamError):
    """An entry to be claimed by its ID is parked: others with the same key are not done. Nothing was claimed."""


class NotOwner(StreamError):
    """Some of the entries given to ack(consumer=) are not pending with this consumer: ``ids``.

    No entry has been acknowledged. A transaction is undone as a whole, even if the error is caught within it.
    """

    def __init__(self, message: str, ids: tuple[tuple[int, int], ...] = ()) -> None:
        super().__init__(message)
        self.ids = ids


class IDTooSmall(StreamError):
    """An ID that is not greater than the last ID of the stream."""


class IDZero(IDTooSmall):
    """The ID 0-0, which no entry can have."""


class IDBelowEntries(IDTooSmall):
    """A last ID for set_id() that is smaller than the newest entry."""


class IDBelowDeleted(IDTooSmall):
    """A last ID for set_id() that is smaller than the greatest ID that was deleted."""


class CountTooSmall(StreamError, InvalidArgument):
    """A count of entries added, for set_id(), that is smaller than the number of entries there are."""


class Conflict(StreamError):
    """The stream's last ID is ``last_id``, not the one that an append named in ``expect_last``."""

    def __init__(self, message: str, last_id: tuple[int, int] = (0, 0)) -> None:
        super().__init__(message)
        self.last_id = last_id


class NotUnique(StreamError):
    """Another entry keeps the unique name that an append or defer() gave: ``id``, None for one that is deferred."""

    def __init__(self, message: str, id: tuple[int, int] | None = None) -> None:
        super().__init__(message)
        self.id = id


class StreamExhausted(StreamError):
    """The stream has used the last possible ID, so no entry can be appended any more."""


class MalformedValue(StreamError, ValueError):
    """A field's value does not have the requested type, or a required field is missing."""


class SubscriptionError(RaxlogError):
    """A valid request that the present subscriptions do not allow."""


class NoSubscription(SubscriptionError, KeyError):
    """No subscription has that ID, or that durable name."""

    __str__ = Exception.__str__


class SubscriptionExists(SubscriptionError):
    """The durable name belongs to a subscription with another pattern, queue, kind or owner."""


class StoreError(RaxlogError):
    """An error of the store as a whole."""


class NotAStore(StoreError):
    """The path exists, but it holds no raxlog store."""


class UnsupportedFormat(StoreError):
    """The store was written in another format than this raxlog reads."""


class StoreFull(StoreError):
    """There was no room for the write, and nothing was written. The message says whether the limit is the disk, a
    quota, a limit of the process or ``max_map_size``. Calls that make the store no larger
    (ack, delete, trim) still work."""


class StoreClosed(StoreError):
    """The store, or its environment, has been closed."""


class ReadOnlyStore(StoreError):
    """A write to a store that is open for reading only, or that is on a read-only medium.

    Also raised for a read by a process that has read permission only, while another process has the store open.
    """


class SettingsConflict(StoreError):
    """A process opened one path twice with different settings."""


class AppendsLost(StoreError):
    """Buffered appends had returned an ID, and their commit failed later; see ``durability`` of open().

    ``lost``     a Lost for each stream: all entries appended since the last commit that succeeded
    ``visible``  True if the flush itself failed: the entries of that commit can be read, and
                 whether they survive a power cut is unknown
    The error of the commit is the ``__cause__``.
    """

    def __init__(self, message: str, lost: tuple[Lost, ...] = (), visible: bool = False) -> None:
        super().__init__(message)
        self.lost = lost
        self.visible = visible


class LockTimeout(StoreError, TimeoutError):
    """Another process or thread held the writer's lock longer than ``lock_timeout``, or was stopped in its opening."""


class TransactionError(RaxlogError):
    """A transaction that is nested, used after its end or by another thread, or bypassed by a write outside it.

    Also a call by what interrupts one of the same thread: a signal's handler, or a finalizer, which the collector of
    garbage runs wherever an object is made.
    """


def closed(store: object) -> StoreClosed:
    """The error of a call to a store, or to a handle of one, that has been closed."""
    return StoreClosed(f"the store {store} has been closed. Open it again.")


def interrupted(store: object) -> TransactionError:
    """The error of a call that has interrupted one of its own thread, which cannot go on before this one has ended."""
    return TransactionError(
        f"this call has interrupted another one of its thread to {store}: a signal's handler or a finalizer (__del__) "
        "makes it. Have it tell a thread, or a loop, to make the call."
    )


class NotInstalled(RaxlogError, ImportError):
    """A package of one of raxlog's extras is not installed; the message names the extra."""


class CorruptionError(RaxlogError):
    """Bytes on disk that fail a check, and are never returned as data.

    ``stream`` is the name (or number) of the stream, ``node`` the master ID of the node,
    ``offset`` the byte within the node's listpack (or within the record); each is None
    where it is not known. The rest of the store stays readable. ``snapshot`` is True if the damage is in
    the manifest, a shard or an increment of a snapshot, which can only be replaced.
    """

    def __init__(self, what: str, *, stream: str | None = None, node: str | None = None,
                 offset: int | None = None, snapshot: bool = False) -> None:
        super().__init__(what)
        self.what = what
        self.stream = stream
        self.node = node
        self.offset = offset
        self.snapshot = snapshot

    def __str__(self) -> str:
        known = (("stream", self.stream), ("node", self.node), ("offset", self.offset))
        places = [f"{kind} {place}" for kind, place in known if place is not None]
        where = f" ({', '.join(places)})" if places else ""
        return f"{self.what}{where}. " + (
            "Put the file back from a copy, or write the snapshot again; 'raxlog verify' names all that is wrong in it."
            if self.snapshot else
            "Run 'raxlog check STORE' for all that is wrong; 'raxlog salvage' brings what is whole into a new store."
        )


for _class in [value for value in vars().values() if isinstance(value, type) and issubclass(value, RaxlogError)]:
    _class.__module__ = "raxlog"  # where users import it from: so tracebacks and pickles name it
