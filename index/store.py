"""A store with subjects: streams, and what is published into them by subject."""

from __future__ import annotations

from ..stream import store


class Store(store.Store):
    """A store of streams that also routes messages by subject."""

    __slots__ = ()
