"""Keyspace notifications: what has become of keys, to those that subscribe to it, of all processes on the store.

    CONFIG SET notify-keyspace-events KEA
    XADD s * n 1      __keyspace@0__:s    xadd            __keyevent@0__:xadd    s

They are published in the commit of the change. Only servers note changes, each by its own setting.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from .replies import CommandError

_ALL = "g$lshzxetd"
_LETTERS = _ALL + "nocKEm"
_DATABASE = re.compile(rb"\0db([0-9]+)\0")


class Events:
    """Which of them are published: the setting, and whether there are any."""

    def __init__(self) -> None:
        self._on = ""

    def set(self, letters: str) -> None:
        """Have these be published. CommandError."""
        if not set(letters) <= {*_LETTERS, "A"}:
            raise CommandError("ERR CONFIG SET failed (possibly related to argument 'notify-keyspace-events') - "
                               "Invalid event class character. Use 'Ag$lshzxeKEtmdn'.")
        given = letters.replace("A", _ALL)
        self._on = "".join(letter for letter in _LETTERS if letter in given)

    def __str__(self) -> str:
        """As CONFIG GET shows it."""
        return "A" + "".join(sign for sign in self._on if sign in "KEm") if self._on.startswith(_ALL) else self._on

    def has(self, kind: str) -> bool:
        """Whether changes of this kind are published."""
        return kind in self._on and ("K" in self._on or "E" in self._on)

    def publish(self, kind: str, event: str, name: bytes, publish: Callable[[bytes, bytes], object]) -> None:
        """Publish a change to the key of that name in the store."""
        if self.has(kind):
            found = _DATABASE.match(name)
            database, key = (b"0", name) if found is None else (found[1], name[found.end():])
            if "K" in self._on:
                publish(b"__keyspace@%b__:%b" % (database, key), event.encode())
            if "E" in self._on:
                publish(b"__keyevent@%b__:%b" % (database, event.encode()), key)
