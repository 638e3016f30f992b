"""The system calls of each commit. The kernels have them in C (system_calls.pxd), by libc's names, as Python has.

Here these are functions of Python's own, by other names: the twins take the same arguments. Each takes a descriptor,
which its caller knows to be open. OSError, of the class that the system's error has.
"""

from __future__ import annotations

import fcntl
import os
import struct
from typing import Any

set_lock = fcntl.fcntl  # SET and what question() has prepared (locks/ofd_lock.py); BlockingIOError where others have it
seek = os.lseek
write_at = os.pwrite

_syscall: list[Any] = []


def futex(call: int, address: int, what: int, number: int, seconds: float) -> None:
    """Sleep while the word at ``address`` is ``number``, but no longer; or wake so many. ``call``: its number here."""
    if not _syscall:
        import ctypes  # noqa: PLC0415 - only a process that waits pays for it

        found = ctypes.CDLL(None).syscall
        found.argtypes = (ctypes.c_long, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32, ctypes.c_char_p)
        _syscall.append(found)
    _syscall[0](call, address, what, number, struct.pack("qq", int(seconds), int(seconds % 1 * 1e9)))


def address_of(view: memoryview[int]) -> int:
    """Where what it shows lies in memory."""
    import ctypes  # noqa: PLC0415 - as above

    return ctypes.addressof(ctypes.c_char.from_buffer(view))
