"""raxlog: the Redis Streams data model, durable, embedded, in one directory on disk.

>>> import raxlog
>>> store = raxlog.open("events.rax")                     # doctest: +SKIP
>>> orders = store.stream("orders")                       # doctest: +SKIP
>>> orders.append({"item": "book"})                       # doctest: +SKIP
StreamID('1732185612345-0')
"""

from typing import TYPE_CHECKING

from .storage import kernels

kernels.load_plain_if_asked()  # before any kernel is

if TYPE_CHECKING:
    from .index.binding import Binding
    from .index.channels import ChannelMessage, Subscriber
    from .index.durable import DurableSubscription
    from .index.glob import glob_matches
    from .index.listening import LiveSubscription, LiveSubscriptions, Message
    from .index.publish import Reached, Transaction
    from .index.subject import matches as subject_matches
    from .recovery.backup import Verification, restore, verify
    from .recovery.check import check
    from .recovery.manifest import Manifest
    from .recovery.report import Report
    from .recovery.salvage import salvage
    from .recovery.salvage_report import SalvageReport
    from .recovery.store import Store
    from .storage.errors import (
        AppendsLost,
        ConsumerBusy,
        CorruptionError,
        GroupExists,
        IDTooSmall,
        InvalidArgument,
        InvalidFields,
        InvalidName,
        InvalidStreamID,
        LockTimeout,
        Lost,
        MalformedValue,
        NoGroup,
        NoStream,
        NoSubscription,
        NotAStore,
        NotInstalled,
        NotOwner,
        RaxlogError,
        ReadOnlyStore,
        SettingsConflict,
        StoreClosed,
        StoreError,
        StoreFull,
        StreamError,
        StreamExhausted,
        StreamExists,
        SubjectError,
        SubscriptionError,
        SubscriptionExists,
        TransactionError,
        UnsupportedFormat,
    )
    from .stream.entry import Entry
    from .stream.full_info import ConsumerDetail, FullInfo, GroupDetail, PendingDetail
    from .stream.group import Group
    from .stream.group_info import ConsumerInfo, GroupInfo, Pending, PendingSummary
    from .stream.id import StreamID
    from .stream.info import StreamInfo
    from .stream.references import DeleteResult
    from .stream.stop import Stop
    from .stream.stream import Stream
    from .stream.transaction import State

    open = Store.open
else:

    def __getattr__(name: str) -> object:
        """A name of the face, loaded once it is used: a command that lists streams needs few of them."""
        from importlib import import_module  # noqa: PLC0415
        from operator import attrgetter  # noqa: PLC0415

        module = next((module for module, names in _WHERE.items() if name in names.split()), None)
        if module is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = attrgetter(_RENAMED.get(name, name))(import_module(f"{__name__}.{module}"))
        return value

    def __dir__() -> list[str]:
        return __all__


_RENAMED = {"open": "Store.open", "subject_matches": "matches"}
_WHERE = {
    "index.binding": "Binding",
    "index.channels": "ChannelMessage Subscriber",
    "index.durable": "DurableSubscription",
    "index.glob": "glob_matches",
    "index.listening": "LiveSubscription LiveSubscriptions Message",
    "index.publish": "Reached Transaction",
    "index.subject": "subject_matches",
    "recovery.backup": "Verification restore verify",
    "recovery.check": "check",
    "recovery.manifest": "Manifest",
    "recovery.report": "Report",
    "recovery.salvage": "salvage",
    "recovery.salvage_report": "SalvageReport",
    "recovery.store": "Store open",
    "storage.errors": (
        "AppendsLost ConsumerBusy CorruptionError GroupExists IDTooSmall InvalidArgument InvalidFields "
        "InvalidName InvalidStreamID LockTimeout Lost MalformedValue NoGroup NoStream NoSubscription "
        "NotAStore NotInstalled NotOwner RaxlogError ReadOnlyStore SettingsConflict StoreClosed StoreError "
        "StoreFull StreamError StreamExhausted StreamExists SubjectError SubscriptionError SubscriptionExists "
        "TransactionError UnsupportedFormat"
    ),
    "stream.entry": "Entry",
    "stream.full_info": "ConsumerDetail FullInfo GroupDetail PendingDetail",
    "stream.group": "Group",
    "stream.group_info": "ConsumerInfo GroupInfo Pending PendingSummary",
    "stream.id": "StreamID",
    "stream.info": "StreamInfo",
    "stream.references": "DeleteResult",
    "stream.stop": "Stop",
    "stream.stream": "Stream",
    "stream.transaction": "State",
}

__version__ = "0.1.0"

__all__ = [
    "AppendsLost",
    "Binding",
    "ChannelMessage",
    "ConsumerBusy",
    "ConsumerDetail",
    "ConsumerInfo",
    "CorruptionError",
    "DeleteResult",
    "DurableSubscription",
    "Entry",
    "FullInfo",
    "Group",
    "GroupDetail",
    "GroupExists",
    "GroupInfo",
    "IDTooSmall",
    "InvalidArgument",
    "InvalidFields",
    "InvalidName",
    "InvalidStreamID",
    "LiveSubscription",
    "LiveSubscriptions",
    "LockTimeout",
    "Lost",
    "MalformedValue",
    "Manifest",
    "Message",
    "NoGroup",
    "NoStream",
    "NoSubscription",
    "NotAStore",
    "NotInstalled",
    "NotOwner",
    "Pending",
    "PendingDetail",
    "PendingSummary",
    "RaxlogError",
    "Reached",
    "ReadOnlyStore",
    "Report",
    "SalvageReport",
    "SettingsConflict",
    "State",
    "Stop",
    "Store",
    "StoreClosed",
    "StoreError",
    "StoreFull",
    "Stream",
    "StreamError",
    "StreamExhausted",
    "StreamExists",
    "StreamID",
    "StreamInfo",
    "SubjectError",
    "Subscriber",
    "SubscriptionError",
    "SubscriptionExists",
    "Transaction",
    "TransactionError",
    "UnsupportedFormat",
    "Verification",
    "__version__",
    "check",
    "glob_matches",
    "open",
    "restore",
    "salvage",
    "subject_matches",
    "verify",
]
