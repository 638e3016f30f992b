"""Words of a mapped file on which processes sleep and wake each other: futexes.

    byte 0    the last place given out in the line (writer_lock.py), as uint64; 0: the line is empty
         8    64 words, uint32: the process in place n sleeps until word n mod 64 changes

All of it is a hint: a sleep ends by itself. Where the call's number is not known, sleep() looks every 2 ms.
"""

from __future__ import annotations

import mmap
import os
import struct
import sys
from pathlib import Path
from typing import Any

from .. import clocks, disk

_WORDS = 64
_SIZE = 8 + 4 * _WORDS
_NAP = 0.002
_WAIT, _WAKE, _ALL = 0, 1, 0x7FFFFFFF  # from <linux/futex.h>
_CALLS = {"x86_64": 202, "aarch64": 98, "riscv64": 98, "ppc64le": 221, "s390x": 238}
_CALL = _CALLS.get(os.uname().machine) if sys.maxsize > 1 << 32 else None


class TurnWords:
    """The words in the file at ``path``, which is as long as they need."""

    __slots__ = ("_address", "_futex", "_words", "last")

    def __init__(self, path: Path) -> None:
        with disk.open_file(path, os.O_RDWR) as file:  # another than the one with the locks: a map keeps it open
            mapped = mmap.mmap(file.fileno(), _SIZE)
        self.last: memoryview[int] = memoryview(mapped)[:8].cast("Q")  # one native store each: nothing is seen by half
        self._words = memoryview(mapped)[8:].cast("I")
        self._futex: Any = None
        self._address = 0

    def word(self, place: int) -> int:
        """What sleep() wants to know: read it before looking whether there is a reason to sleep."""
        return self._words[place % _WORDS]

    def sleep(self, place: int, word: int, seconds: float) -> bool:
        """Sleep until the word at ``place`` differs from ``word`` (then True), for ``seconds``, or until a signal."""
        if _CALL is None:
            end = clocks.elapsed() + seconds
            while self.word(place) == word and clocks.elapsed() < end:
                clocks.sleep(_NAP)
        else:
            self._call(place, _WAIT, word, struct.pack("qq", int(seconds), int(seconds % 1 * 1e9)))
        return self.word(place) != word

    def wake(self, place: int) -> None:
        """End the sleep in that place. About 3 µs."""
        self._words[place % _WORDS] = self.word(place) + 1 & 0xFFFFFFFF
        if _CALL is not None:
            self._call(place, _WAKE, _ALL, None)

    def _call(self, place: int, what: int, number: int, until: bytes | None) -> None:
        if self._futex is None:
            import ctypes  # noqa: PLC0415 - only a process that waits pays for it

            self._address = ctypes.addressof(ctypes.c_char.from_buffer(self._words))
            call = ctypes.CDLL(None).syscall
            call.argtypes = (ctypes.c_long, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32, ctypes.c_char_p)
            self._futex = call
        self._futex(_CALL, self._address + 4 * (place % _WORDS), what, number, until)
