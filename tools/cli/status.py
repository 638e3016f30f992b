"""Exit statuses, and the failure that ends a command with one of them."""

from __future__ import annotations

from ...storage.errors import InvalidArgument, NotInstalled, RaxlogError, StreamError, SubscriptionError

DONE, NO, USAGE, STORE, INTERRUPTED = 0, 1, 2, 3, 130


class CommandError(Exception):
    """Ends a command where there is no RaxlogError to end it: a line and a status."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


def status_of(error: RaxlogError) -> int:
    """The exit status that stands for an error."""
    if isinstance(error, InvalidArgument | NotInstalled):
        return USAGE
    return NO if isinstance(error, StreamError | SubscriptionError) else STORE
