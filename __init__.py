"""raxlog: the Redis Streams data model, durable, embedded, in one directory on disk.

>>> import raxlog
>>> store = raxlog.open("events.rax")                     # doctest: +SKIP
>>> orders = store.stream("orders")                       # doctest: +SKIP
>>> orders.append({"item": "book"})                       # doctest: +SKIP
StreamID('1732185612345-0')
"""

from typing import TYPE_CHECKING, Final

from .storage import kernels
from .storage.versions import __version__

kernels.load_plain_if_asked()  # before any kernel is

if TYPE_CHECKING:
    from .index.pubsub.channels import ChannelMessage, Subscriber
    from .index.pubsub.durable_subscription import DurableSubscription
    from .index.pubsub.glob import glob_matches
    from .index.pubsub.live_subscription import LiveSubscription, LiveSubscriptions, Message
    from .index.pubsub.pubsub import Binding, Reached
    from .index.subjects.subject import matches as subject_matches
    from .pipeline import Pipeline
    from .recovery.check.check import check
    from .recovery.check.report import Report
    from .recovery.salvage.report import SalvageReport
    from .recovery.salvage.salvage import salvage
    from .recovery.snapshot.manifest import Manifest
    from .recovery.snapshot.restore import Verification, restore, verify
    from .status import ConsumerStatus, GroupStatus, ScheduleStatus, Status, StreamStatus
    from .storage.errors import *  # noqa: F403
    from .storage.figures import Compaction, LastEnd, Lost, Reader
    from .storage.wake.stop import Stop
    from .store import Store
    from .stream.entries.retention import Retention
    from .stream.entries.unique import Appended
    from .stream.follow import Follower
    from .stream.group.dead_letters import DeadLetter, DeadLetters
    from .stream.group.delete_policy import DeleteResult
    from .stream.group.group import Group, worker
    from .stream.group.info import Autoclaimed, ConsumerInfo, GroupInfo, Pending, PendingSummary
    from .stream.group.job import Job
    from .stream.info import (
        Configured,
        ConsumerDetail,
        FullInfo,
        GroupDetail,
        Maintenance,
        Part,
        PendingDetail,
        StreamInfo,
    )
    from .stream.jobs.deferred import Deferred
    from .stream.jobs.outcome import Backoff, Cancelled, Counts, Discard, Retry, Snooze, TimeLimit
    from .stream.jobs.results import Result
    from .stream.jobs.schedules import Schedule
    from .stream.jobs.worker import Worker
    from .stream.node.stream_id import StreamID
    from .stream.node.typed import Entry
    from .stream.state import State
    from .stream.stream import Stream
    from .tools.resp.client import redis_client
    from .transaction import Transaction

    open: Final = Store.open
else:
    from .storage.errors import RaxlogError, StoreError  # there to be caught where nothing can be loaded any more

    def __getattr__(name: str) -> object:
        """A name of the face, loaded once it is used: a command that lists streams needs few of them."""
        from importlib import import_module  # noqa: PLC0415
        from operator import attrgetter  # noqa: PLC0415

        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        module = next((module for module, names in _WHERE.items() if name in names.split()), "storage.errors")
        try:
            loaded = import_module(f"{__name__}.{module}")
        except OSError as error:  # of the system, as where no descriptor is free
            raise StoreError(f"{__name__}.{name} cannot be loaded: {error}. See to the limit that is named.") from error
        value = globals()[name] = attrgetter(_RENAMED.get(name, name))(loaded)
        return value

    def __dir__() -> list[str]:
        return __all__


_RENAMED = {"open": "Store.open", "subject_matches": "matches"}
_WHERE = {  # all others are errors
    "index.pubsub.channels": "ChannelMessage Subscriber",
    "index.pubsub.durable_subscription": "DurableSubscription",
    "index.pubsub.glob": "glob_matches",
    "index.pubsub.live_subscription": "LiveSubscription LiveSubscriptions Message",
    "index.pubsub.pubsub": "Binding Reached",
    "index.subjects.subject": "subject_matches",
    "recovery.snapshot.restore": "Verification restore verify",
    "recovery.check.check": "check",
    "recovery.snapshot.manifest": "Manifest",
    "recovery.check.report": "Report",
    "recovery.salvage.salvage": "salvage",
    "recovery.salvage.report": "SalvageReport",
    "status": "ConsumerStatus GroupStatus ScheduleStatus Status StreamStatus",
    "storage.figures": "Compaction LastEnd Lost Reader",
    "store": "Store open",
    "stream.node.entry": "Entry",
    "stream.info": "Configured ConsumerDetail FullInfo GroupDetail Maintenance Part PendingDetail StreamInfo",
    "stream.entries.retention": "Retention",
    "stream.group.group": "Group worker",
    "stream.group.info": "Autoclaimed ConsumerInfo GroupInfo Pending PendingSummary",
    "stream.group.job": "Job",
    "stream.jobs.deferred": "Deferred",
    "stream.jobs.results": "Result",
    "stream.jobs.schedules": "Schedule",
    "stream.entries.unique": "Appended",
    "stream.node.stream_id": "StreamID",
    "stream.group.delete_policy": "DeleteResult",
    "storage.wake.stop": "Stop",
    "stream.stream": "Stream",
    "stream.follow": "Follower",
    "stream.group.dead_letters": "DeadLetter DeadLetters",
    "stream.jobs.outcome": "Backoff Cancelled Counts Discard Retry Snooze TimeLimit",
    "stream.jobs.worker": "Worker",
    "stream.state": "State",
    "pipeline": "Pipeline",
    "tools.resp.client": "redis_client",
    "transaction": "Transaction",
}

__all__ = [  # noqa: F405
    "Appended", "AppendsLost", "Autoclaimed", "Backoff", "Binding", "Cancelled", "ChannelMessage", "Compaction",
    "Configured", "Conflict", "ConsumerBusy", "ConsumerDetail", "ConsumerInfo", "ConsumerStatus", "CorruptionError",
    "CountTooSmall", "Counts", "DeadLetter", "DeadLetters", "Deferred", "DeleteResult", "Discard", "DumpChecksum",
    "DurableSubscription", "Entry", "Follower", "FullInfo", "Group", "GroupDetail", "GroupExists", "GroupInfo",
    "GroupMoved", "GroupStatus", "IDBelowDeleted", "IDBelowEntries", "IDTooSmall", "IDZero", "InvalidArgument",
    "InvalidDump", "InvalidFields", "InvalidName", "InvalidStreamID", "Job", "KeyBusy", "LastEnd", "LiveSubscription",
    "LiveSubscriptions", "LockTimeout", "Lost", "Maintenance", "MalformedValue", "Manifest", "Message", "NoGroup",
    "NoSchedule", "NoStream", "NoSubscription", "NotAStore", "NotInstalled", "NotOwner", "NotUnique", "Part", "Pending",
    "PendingDetail", "PendingSummary", "Pipeline", "RaxlogError", "Reached", "ReadOnlyStore", "Reader", "Report",
    "Result", "Retention", "Retry", "SalvageReport", "Schedule", "ScheduleStatus", "SettingsConflict", "Snooze",
    "State", "Status", "Stop", "Store", "StoreClosed", "StoreError", "StoreFull", "Stream", "StreamError",
    "StreamExhausted", "StreamExists", "StreamID", "StreamInfo", "StreamStatus", "SubjectError", "Subscriber",
    "SubscriptionError", "SubscriptionExists", "TimeLimit", "Transaction", "TransactionError", "UnsupportedFormat",
    "Verification", "Worker", "__version__", "check", "glob_matches", "open", "redis_client", "restore", "salvage",
    "subject_matches", "verify", "worker",
]
