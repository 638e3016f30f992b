"""raxlog: the Redis Streams data model, durable, embedded, in one directory on disk.

>>> import raxlog
>>> store = raxlog.open("events.rax")                     # doctest: +SKIP
>>> orders = store.stream("orders")                       # doctest: +SKIP
>>> orders.append({"item": "book"})                       # doctest: +SKIP
StreamID('1732185612345-0')
"""

from .storage import kernels

kernels.load_plain_if_asked()

from .index.glob import glob_matches  # noqa: E402
from .index.subject import matches as subject_matches  # noqa: E402
from .index.transaction import Transaction  # noqa: E402
from .recovery.store import Store, check, restore, salvage, verify  # noqa: E402
from .storage.errors import (  # noqa: E402 - which kernels are loaded is settled above
    ConsumerBusy,
    CorruptionError,
    GroupExists,
    IDTooSmall,
    InvalidArgument,
    InvalidFields,
    InvalidName,
    InvalidStreamID,
    LockTimeout,
    MalformedValue,
    NoGroup,
    NoStream,
    NoSubscription,
    NotAStore,
    NotInstalled,
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
from .stream.stream import Stream  # noqa: E402

__version__ = "0.1.0"

open = Store.open

__all__ = [
    "ConsumerBusy",
    "ConsumerInfo",
    "CorruptionError",
    "DeleteResult",
    "Entry",
    "Group",
    "GroupExists",
    "GroupInfo",
    "IDTooSmall",
    "InvalidArgument",
    "InvalidFields",
    "InvalidName",
    "InvalidStreamID",
    "LockTimeout",
    "MalformedValue",
    "NoGroup",
    "NoStream",
    "NoSubscription",
    "NotAStore",
    "NotInstalled",
    "Pending",
    "PendingSummary",
    "RaxlogError",
    "ReadOnlyStore",
    "SettingsConflict",
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
    "SubscriptionError",
    "SubscriptionExists",
    "Transaction",
    "TransactionError",
    "UnsupportedFormat",
    "__version__",
    "check",
    "glob_matches",
    "open",
    "restore",
    "salvage",
    "subject_matches",
    "verify",
]
