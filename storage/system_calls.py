"""The system calls of each commit. The kernels have them in C (system_calls.pxd), by libc's names, as Python has.

Here these are functions of Python's own, by other names: the twins take the same arguments. Each takes a descriptor,
which its caller knows to be open. OSError, of the class that the system's error has.
"""

from __future__ import annotations

import fcntl
import os

set_lock = fcntl.fcntl  # SET and what question() has prepared (locks/ofd_lock.py); BlockingIOError where others have it
seek = os.lseek
write_at = os.pwrite
