"""Pipelines: different calls, queued and then made together: one commit, one flush, a result for each.

    with store.pipeline() as pipe:
        pipe.stream("orders").append({"item": "book"})
        pipe.group("orders", "billing").ack("5-0")
        pipe.publish("orders.new", {"item": "book"})
        sid, acked, reached = pipe.execute()

As redis-py's pipeline with transaction=False, but for the commit they share: a call that is refused costs the
others nothing, and what was not executed is dropped at the end of the ``with``. For all or nothing, and to see
results in between, there is store.transaction().
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from typing import Any, Concatenate, Final, Generic, ParamSpec, Self, TypeVar

from .index.pubsub.pubsub import PubSub
from .storage.handles import made_by_a_call
from .stream.entries.batch import BatchSource, kept
from .stream.entries.session import StoreSource
from .stream.group.group import Group
from .stream.node.arguments import Codec, Compression, Name
from .stream.node.stream_id import IDLike
from .stream.node.typed import Entry, Kind
from .stream.state import State
from .stream.stream import Stream
from .stream.streams import Streams
from .stream.sweep import sweep
from .transaction import CommitScope

H = TypeVar("H")  # a handle, bound to the pipeline's batch
P = ParamSpec("P")


class _Step:
    """A call that is queued, and its outcome."""

    __slots__ = ("error", "function", "result")

    def __init__(self, function: Callable[[], Any]) -> None:
        self.function = function
        self.result: Any = None
        self.error: BaseException | None = None

    def begin(self) -> bool:
        self.result = self.error = None
        return True


class QueuedCalls(Generic[H]):
    """The calls of a handle, queued: each returns the pipeline."""

    __slots__ = ("_handle", "_pipeline")

    def __init__(self, pipeline: Pipeline, handle: H) -> None:
        self._pipeline = pipeline
        self._handle = handle

    def _add(self, function: Callable[[], object]) -> Pipeline:
        """Queue a call on a handle that is bound to the pipeline's batch, as the methods do."""
        return self._pipeline._add(function)


def _queued(method: Callable[Concatenate[H, P], object]) -> Callable[Concatenate[QueuedCalls[H], P], Pipeline]:
    """A method of the handle as one that is queued, of the same parameters and explanation."""

    @wraps(method)
    def queue(self: QueuedCalls[H], /, *args: P.args, **options: P.kwargs) -> Pipeline:
        given: Any = map(kept, args)
        named: Any = {name: kept(value) for name, value in options.items()}
        return self._add(partial(method, self._handle, *given, **named))

    return queue


def _range(stream: Stream, start: IDLike = "-", end: IDLike = "+", count: int | None = None, *,
           reverse: bool = False) -> list[Entry]:
    """The entries of Stream.range(), as a list."""
    return list(stream.range(start, end, count, reverse=reverse))


class QueuedStream(QueuedCalls[Stream[Any]]):
    """The calls of a stream."""

    append: Final = _queued(Stream.append)
    extend: Final = _queued(Stream.extend)
    delete: Final = _queued(Stream.delete)
    delete_ex: Final = _queued(Stream.delete_ex)
    trim: Final = _queued(Stream.trim)
    set_id: Final = _queued(Stream.set_id)
    configure: Final = _queued(Stream.configure)
    create_group: Final = _queued(Stream.create_group)
    cancel_deferred: Final = _queued(Stream.cancel_deferred)
    schedule: Final = _queued(Stream.schedule)
    pause_schedule: Final = _queued(Stream.pause_schedule)
    resume_schedule: Final = _queued(Stream.resume_schedule)
    remove_schedule: Final = _queued(Stream.remove_schedule)
    run_schedule: Final = _queued(Stream.run_schedule)
    range: Final = _queued(_range)
    get: Final = _queued(Stream.get)
    length: Final = _queued(Stream.__len__)
    exists: Final = _queued(Stream.exists)
    count: Final = _queued(Stream.count)
    info: Final = _queued(Stream.info)
    full_info: Final = _queued(Stream.full_info)
    dump: Final = _queued(Stream.dump)
    groups: Final = _queued(Stream.groups)


class QueuedGroup(QueuedCalls[Group]):
    """The calls of a consumer group."""

    read: Final = _queued(Group.read)
    ack: Final = _queued(Group.ack)
    nack: Final = _queued(Group.nack)
    cancel: Final = _queued(Group.cancel)
    configure: Final = _queued(Group.configure)
    ack_delete: Final = _queued(Group.ack_delete)
    renew: Final = _queued(Group.renew)
    claim: Final = _queued(Group.claim)
    autoclaim: Final = _queued(Group.autoclaim)
    autoclaim_ids: Final = _queued(Group.autoclaim_ids)
    claim_ids: Final = _queued(Group.claim_ids)
    pending: Final = _queued(Group.pending)
    pending_entries: Final = _queued(Group.pending_entries)
    consumers: Final = _queued(Group.consumers)
    info: Final = _queued(Group.info)
    set_id: Final = _queued(Group.set_id)
    entries_after: Final = _queued(Group.entries_after)
    create_consumer: Final = _queued(Group.create_consumer)
    delete_consumer: Final = _queued(Group.delete_consumer)
    destroy: Final = _queued(Group.destroy)


class QueuedState(QueuedCalls[State]):
    """The calls of the durable key-value space."""

    get: Final = _queued(State.get)
    set: Final = _queued(State.__setitem__)
    delete: Final = _queued(State.__delitem__)


class Pipeline(QueuedCalls[CommitScope]):
    """Calls that are queued until execute(): made by ``store.pipeline()``. For one thread at a time."""

    __slots__ = ("_batch", "_source", "_steps")

    @made_by_a_call
    def __init__(self, source: StoreSource, streams: Streams, pubsub: PubSub) -> None:
        self._source = source
        self._batch = BatchSource(source)
        self._steps: list[_Step] = []
        self._handle = CommitScope(streams, pubsub, self._batch)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.reset()

    def __len__(self) -> int:
        return len(self._steps)

    def __bool__(self) -> bool:
        return True

    def stream(self, name: Name, *, compression: Compression | None = None, node_max_bytes: int | None = None,
               node_max_entries: int | None = None, codec: Codec | None = None,
               type: Kind = None) -> QueuedStream:
        """The stream of that name; its calls are queued. The options are those of Store.stream(), but retention."""
        stream = self._handle.stream(name, compression=compression, node_max_bytes=node_max_bytes,
                                     node_max_entries=node_max_entries, codec=codec, type=type)
        return QueuedStream(self, stream)

    def group(self, stream: Name, group: Name) -> QueuedGroup:
        """A consumer group of a stream; its calls are queued."""
        return QueuedGroup(self, self._handle.group(stream, group))

    @property
    def state(self) -> QueuedState:
        """The durable key-value space; its calls are queued."""
        return QueuedState(self, self._handle.state)

    publish: Final = _queued(CommitScope.publish)
    bind: Final = _queued(CommitScope.bind)
    unbind: Final = _queued(CommitScope.unbind)
    streams: Final = _queued(CommitScope.streams)
    rename_stream: Final = _queued(CommitScope.rename_stream)
    copy_stream: Final = _queued(CommitScope.copy_stream)
    restore_stream: Final = _queued(CommitScope.restore_stream)
    delete_stream: Final = _queued(CommitScope.delete_stream)
    read: Final = _queued(CommitScope.read)
    read_group: Final = _queued(CommitScope.read_group)

    def _add(self, function: Callable[[], object]) -> Pipeline:
        """Queue a call on a handle that is bound to the pipeline's batch, as the methods do."""
        self._steps.append(_Step(function))
        return self

    def reset(self) -> None:
        """Drop what is queued."""
        self._steps = []

    def execute(self, *, raise_on_error: bool = True) -> list[Any]:  # each of its call's type
        """Run the calls in their order, in one commit; returns their results and leaves the pipeline empty.

        Each call sees the changes of those before it. A call that raises changes nothing. With ``raise_on_error``,
        the first such error is raised, after all other calls have been made; otherwise errors are in the list. An
        error that concerns all calls, such as LockTimeout or StoreFull, is the result of each. Durable when it returns.
        """
        steps, self._steps = self._steps, []
        if not steps:
            return []
        self._batch.commit(steps)
        sweep(self._source)
        for place, step in enumerate(steps):
            if raise_on_error and step.error is not None:
                step.error.add_note(f"by call {place} of the {len(steps)} calls of a pipeline")
                raise step.error
        return [step.result if step.error is None else step.error for step in steps]
