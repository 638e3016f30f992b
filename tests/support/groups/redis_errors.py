"""Errors of a redis-server by a part of their text, and the exceptions that raxlog raises for the same."""

from __future__ import annotations

from raxlog import (
    CountTooSmall,
    GroupExists,
    IDBelowDeleted,
    IDBelowEntries,
    IDTooSmall,
    IDZero,
    InvalidArgument,
    InvalidFields,
    InvalidStreamID,
    NoGroup,
    NoStream,
    StreamExhausted,
)

STREAM_ERRORS: list[tuple[str, type[Exception]]] = [
    ("equal or smaller than the target stream top item", IDTooSmall),
    # Redis 7.0's words for ms-* when the last sequence of that ms is used up; 7.2 says the above.
    ("Elements are too large to be stored", IDTooSmall),
    ("must be greater than 0-0", IDZero),
    ("exhausted the last possible ID", StreamExhausted),
    ("smaller than the provided max_deleted_entry_id", IDTooSmall),
    ("smaller than current max_deleted_entry_id", IDBelowDeleted),
    ("smaller than the target stream top item", IDBelowEntries),
    ("smaller than the target stream length", CountTooSmall),
    ("entries_added must be positive", InvalidArgument),
    ("Invalid stream ID specified", InvalidStreamID),
    ("invalid start ID for the interval", InvalidStreamID),
    ("invalid end ID for the interval", InvalidStreamID),
    ("MAXLEN argument must be >= 0", InvalidArgument),
    ("LIMIT argument must be >= 0", InvalidArgument),
    ("LIMIT cannot be used without", InvalidArgument),
    ("options at the same time are not compatible", InvalidArgument),
    ("wrong number of arguments", InvalidFields),
    ("no such key", NoStream),
]

GROUP_ERRORS: list[tuple[str, type[Exception]]] = [
    ("BUSYGROUP", GroupExists),
    ("NOGROUP", NoGroup),
    ("ID is meaningless in the context of XREADGROUP", InvalidStreamID),
    ("The > ID can be specified only when calling XREADGROUP", InvalidStreamID),
    ("Unrecognized XCLAIM option", InvalidStreamID),  # an ID that is none is taken for an option
    ("value for ENTRIESREAD must be positive or -1", InvalidArgument),
    ("Invalid min-idle-time argument", InvalidArgument),
    ("option argument for XCLAIM", InvalidArgument),
    ("COUNT must be > 0", InvalidArgument),
    ("timeout is negative", InvalidArgument),
    ("timeout is not an integer", InvalidArgument),
    ("value is not an integer or out of range", InvalidArgument),
    ("syntax error", InvalidArgument),
    *STREAM_ERRORS,
]
# XGROUP on a key that is not there: to create a group on it is NoStream, the rest is NoGroup.
NO_KEY = "The XGROUP subcommand requires the key to exist"


def exception_for(text: str, errors: list[tuple[str, type[Exception]]]) -> type[Exception]:
    """The exception that stands for an error's text."""
    for part, kind in errors:
        if part in text:
            return kind
    raise AssertionError(f"Redis answers with an error of unknown meaning: {text}")
