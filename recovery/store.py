"""The store as the face gives it: streams, subjects, and the care of the whole."""

from __future__ import annotations

from ..index import store


class Store(store.Store):
    """An open store. A context manager; safe to share by threads; survives a fork."""

    __slots__ = ()
