"""Handles: objects that a call of raxlog makes, and no user by its class."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

I = TypeVar("I", bound=Callable[..., None])  # noqa: E741 - an __init__


def _made_by_a_call(self: Any) -> None: ...


def made_by_a_call(init: I) -> I:
    """Keep what an ``__init__`` takes out of help(), signatures and pages: only this package passes it."""
    vars(init)["__wrapped__"] = _made_by_a_call
    init.__doc__ = "Called by raxlog alone: the class says which call makes one."
    return init
