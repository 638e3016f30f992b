"""A sampling profiler by processor time: it looks at the main thread once per tick of CPU time used.

    clock of the thread ──every tick──> SIGPROF ──> the function that runs, and what was spent since

The clock stops while the thread waits, and sampling does not distort the share of short calls, as tracing does. A
tick is the kernel's (some 4 ms), so 1 % takes seconds to show. System time counts for the function that makes the
call; the time of a compiled function, for the next function that is not (RAXLOG_PURE=1 shows each). Linux only.
"""

from __future__ import annotations

import ctypes
import resource
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_THREAD_CLOCK, _TO_THREAD = 3, 4  # CLOCK_THREAD_CPUTIME_ID, SIGEV_THREAD_ID
Key = tuple[str, str]  # module, function


class _SignalEvent(ctypes.Structure):
    _fields_ = (("value", ctypes.c_void_p), ("signal", ctypes.c_int), ("how", ctypes.c_int),
                ("thread", ctypes.c_int), ("_rest", ctypes.c_int * 11))


class Profile:
    """What one contender has used, in seconds."""

    def __init__(self) -> None:
        self.samples = 0
        self.others: float = 0.0  # by other threads of the process
        self.user: Counter[Key] = Counter()
        self.kernel: Counter[Key] = Counter()

    def rows(self, packages: bool = False) -> list[tuple[str, float, float]]:
        """Functions or packages, the most costly first: name, share of all that was seen, the kernel's part of that."""
        spent: Counter[str] = Counter()
        kernel: Counter[str] = Counter()
        for key in self.user | self.kernel:
            module, function = key
            name = ".".join(module.split(".")[:2]) if packages else f"{module}.{function}"
            spent[name] += self.user[key] + self.kernel[key]
            kernel[name] += self.kernel[key]
        total = spent.total() or 1
        return [(name, each / total, kernel[name] / (each or 1)) for name, each in spent.most_common()]


class Sampler:
    """Profiles by the name of what was looked at. For the main thread, which alone runs Python's signal handlers."""

    def __init__(self) -> None:
        self.profiles: dict[str, Profile] = {}

    @contextmanager
    def taking(self, name: str) -> Iterator[None]:
        """Profile the block; a block of the same name adds to it."""
        profile = self.profiles.setdefault(name, Profile())
        last = resource.getrusage(resource.RUSAGE_THREAD)

        def look(number: int, frame: FrameType | None) -> None:
            nonlocal last
            now = resource.getrusage(resource.RUSAGE_THREAD)
            assert frame is not None
            key = frame.f_globals.get("__name__", "?"), frame.f_code.co_qualname
            profile.samples += 1
            profile.user[key] += now.ru_utime - last.ru_utime  # type: ignore[assignment]
            profile.kernel[key] += now.ru_stime - last.ru_stime  # type: ignore[assignment]
            last = now

        system, timer = ctypes.CDLL(None, use_errno=True), ctypes.c_void_p()
        event = _SignalEvent(None, signal.SIGPROF, _TO_THREAD, threading.get_native_id())
        before = signal.signal(signal.SIGPROF, look)
        every = (ctypes.c_long * 4)(0, 100_000, 0, 100_000)  # the kernel makes a tick of it
        assert system.timer_create(_THREAD_CLOCK, ctypes.byref(event), ctypes.byref(timer)) == 0
        began = time.process_time() - time.thread_time()
        try:
            system.timer_settime(timer, 0, every, None)
            yield
        finally:
            system.timer_delete(timer)
            profile.others += max(0.0, time.process_time() - time.thread_time() - began)
            signal.signal(signal.SIGPROF, before)
