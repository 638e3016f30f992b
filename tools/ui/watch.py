"""A watch: looks at a store again and again, and keeps what has changed.

    look ── Store.status(the one before) ── Picture ── status, rates, and what the samples so far show
      │ nothing is there, or another store is: closed, and opened anew by the next look

A sample is added where a figure has changed, so a store at rest costs next to nothing; of the streams and groups that
have moved last so many are kept that memory is bounded.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from pathlib import Path
from typing import NamedTuple

from ...status import GroupStatus, Status, StreamStatus
from ...storage.engine.open_options import BYTES
from ...storage.errors import RaxlogError
from ...store import Store
from ...stream.node.arguments import Text

SAMPLES = 240  # four minutes, where a look is cheap
_SERIES = 2000  # streams and groups
_STALE = 60.0  # seconds after which a series that does not move may go
_EVERY = 1.0  # seconds between two looks, where a look is cheap
_BUSY, _IDLE = 50, 300  # a look takes no more than one part in so many of a core
_PLAUSIBLE = 1e9  # seconds; a longer wait means that the stream's IDs are no times

Key = tuple[Text, Text | None]  # a stream, or one of its groups
NO_KEY: Key = ("", None)


class Sample(NamedTuple):
    """A moment. Of a stream ``value`` is its rate; of a group its lag, and ``latency`` in seconds."""

    time: float
    value: float
    latency: float = 0.0


class Picture(NamedTuple):
    """What a look has found. Without a status ``error`` says why."""

    status: Status | None
    error: str
    rates: dict[Text, float]  # of streams that have moved since the look before; 0 of all others

    def find(self, key: Key) -> tuple[StreamStatus | None, GroupStatus | None]:
        """The stream of a key, and its group, as far as they are there."""
        streams = self.status.streams if self.status else ()
        stream = next((row for row in streams if row.name == key[0]), None)
        return stream, next((group for group in (stream.groups if stream else ()) if group.name == key[1]), None)


class Watch:
    """The watch over the store at a path, for threads to share. ``store`` is open for reading while there is one."""

    def __init__(self, path: str, keep: int = SAMPLES) -> None:
        self.path = path
        self._keep = keep  # samples of a series
        self.store: Store | None = None
        self.pause: float = _EVERY  # seconds until the next look is due
        self._place: tuple[int, int] | None = None
        self._lock = threading.Lock()
        self._status: Status | None = None
        self._rates: dict[Text, float] = {}
        self._series: dict[Key, deque[Sample]] = {}

    def look(self) -> Picture:
        """Look at the store now. Raises nothing that a store can cause."""
        began = time.thread_time()
        error = ""
        with self._lock:
            before = self._status
            try:
                self._follow()
                assert self.store is not None
                self._note(self.store.status(self._status))
            except (RaxlogError, OSError) as problem:
                error = str(problem)
                self._forget()
            moved = before is None or self._status is None or before.commit != self._status.commit
            self.pause = max(_EVERY, (time.thread_time() - began) * (_BUSY if moved else _IDLE))
            return Picture(self._status, error, self._rates)

    def samples(self, key: Key) -> list[Sample]:
        """The samples of a stream, a group, or (NO_KEY) of the whole store, the last one as of the last look."""
        with self._lock:
            kept = list(self._series.get(key, ()))
            now = self._status.time.timestamp() if self._status is not None else 0.0
            if kept and kept[-1].time < now:
                kept.append(kept[-1]._replace(time=now))
            return kept

    def close(self) -> None:
        """Close the store."""
        with self._lock:
            self._forget()

    def _follow(self) -> None:
        """Open the store, or the one that is in its place by now."""
        try:
            found = Path(self.path).stat()
            place = found.st_dev, found.st_ino
        except FileNotFoundError:
            place = None  # open() says what is missing
        if self.store is None or place != self._place:
            self._forget()
            self.store = Store.open(self.path, readonly=True, encoding=BYTES)
            self._place = place

    def _forget(self) -> None:
        if self.store is not None:
            self.store.close()
        self.store = self._status = None
        self._rates, self._series = {}, {}

    def _note(self, status: Status) -> None:
        before, self._status = self._status, status
        at = status.time.timestamp()
        if before is None:
            self._rates = {}
        elif before.commit == status.commit:
            self._rates = dict.fromkeys((name for name, rate in self._rates.items() if rate), 0.0)
        else:
            now = status.rates(before)
            self._rates = {name: rate for name, rate in now.items() if rate or self._rates.get(name)}
        if before is not None:
            for name, rate in self._rates.items():
                self._add((name, None), Sample(at, rate))
            self._add(NO_KEY, Sample(at, sum(self._rates.values())))
        groups = {} if before is None else {(stream.name, group.name): group for stream in before.streams
                                            for group in stream.groups}
        for stream in status.streams:
            for group in stream.groups:
                key = stream.name, group.name
                if group.lag or group is not groups.get(key):
                    self._add(key, Sample(at, group.lag, _latency(group, groups.get(key))))

    def _add(self, key: Key, sample: Sample) -> None:
        kept = self._series.pop(key, None)
        if kept is None:
            kept = deque(maxlen=self._keep)
            if len(self._series) >= _SERIES:
                oldest = next(iter(self._series))
                if sample.time - self._series[oldest][-1].time < _STALE:
                    return  # more move than can be kept
                del self._series[oldest]
        self._series[key] = kept
        if len(kept) > 1 and kept[-1][1:] == kept[-2][1:] == sample[1:]:
            kept.pop()  # a line between two points that are level
        kept.append(sample)


def _latency(group: GroupStatus, before: GroupStatus | None) -> float:
    """How long entries of a group wait for their delivery now: the first that still does, or the last that did."""
    late = group.waiting if group.waiting < _PLAUSIBLE else 0.0
    if before is not None and before.last_delivered_id != group.last_delivered_id:
        when = max((row.active.timestamp() for row in group.consumers if row.active is not None), default=0.0)
        waited = when - group.last_delivered_id.ms / 1000
        if waited < _PLAUSIBLE:
            late = max(late, waited)
    return max(0.0, late)
