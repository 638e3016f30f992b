"""raxlog: the Redis Streams data model, durable, embedded, in one directory on disk.

>>> import raxlog
>>> store = raxlog.open("events.rax")                     # doctest: +SKIP
>>> orders = store.stream("orders")                       # doctest: +SKIP
>>> orders.append({"item": "book"})                       # doctest: +SKIP
StreamID('1732185612345-0')
"""

from typing import TYPE_CHECKING

from .storage import kernels

kernels.load_plain_if_asked()

from .index.binding import Binding  # noqa: E402
from .index.glob import glob_matches  # noqa: E402
from .index.publish import Reached  # noqa: E402
from .index.subject import matches as subject_matches  # noqa: E402
from .index.transaction import Transaction  # noqa: E402
from .recovery.store import Store  # noqa: E402
from .storage.errors import (  # noqa: E402 - which kernels are loaded is settled above
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
from .stream.entry import Entry  # noqa: E402
from .stream.group import Group  # noqa: E402
from .stream.group_info import ConsumerInfo, GroupInfo, Pending, PendingSummary  # noqa: E402
from .stream.id import StreamID  # noqa: E402
from .stream.info import StreamInfo  # noqa: E402
from .stream.references import DeleteResult  # noqa: E402
from .stream.stop import Stop  # noqa: E402
from .stream.stream import Stream  # noqa: E402
from .stream.transaction import State  # noqa: E402

if TYPE_CHECKING:
    from .index.channels import ChannelMessage, Subscriber
    from .index.durable import DurableSubscription
    from .index.listening import LiveSubscription, Message
    from .recovery.backup import Verification, restore, verify
    from .recovery.check import check
    from .recovery.manifest import Manifest
    from .recovery.report import Report
    from .recovery.salvage import salvage
    from .recovery.salvage_report import SalvageReport
    from .stream.full_info import ConsumerDetail, FullInfo, GroupDetail, PendingDetail
else:

    def __getattr__(name: str) -> object:
        """What few programs name, loaded for those that do."""
        from importlib import import_module  # noqa: PLC0415

        module = _LATER.get(name)
        if module is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f"{__name__}.{module}"), name)


_LATER = {
    "ChannelMessage": "index.channels",
    "ConsumerDetail": "stream.full_info",
    "DurableSubscription": "index.durable",
    "FullInfo": "stream.full_info",
    "GroupDetail": "stream.full_info",
    "LiveSubscription": "index.listening",
    "Manifest": "recovery.manifest",
    "Message": "index.listening",
    "PendingDetail": "stream.full_info",
    "Report": "recovery.report",
    "SalvageReport": "recovery.salvage_report",
    "Subscriber": "index.channels",
    "Verification": "recovery.backup",
    "check": "recovery.check",
    "restore": "recovery.backup",
    "salvage": "recovery.salvage",
    "verify": "recovery.backup",
}

__version__ = "0.1.0"

open = Store.open

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
