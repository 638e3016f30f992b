"""Histories: what clients of a store appended and read, and whether one order of the operations explains all of it.

    process 1   |-- append 1 to a --|        |-- read a: [1] ----|
    process 2            |-- append 2 to a, read b: [] --|
                                                   |-- read a: [] --|   <- too old: 1 was acknowledged before
                                                                           this read began

A stream is a list that only grows, and each value is appended once: so what was read is the stream's order of versions,
as in the list-append histories of Elle (Kingsbury and Alvaro, 2020). Between operations there is an edge where

    ww   the second appended right behind the first, in one stream
    wr   the second read what the first appended
    rw   the first read a stream up to where the second appended next
    rt   the first had ended before the second began

A store is strictly serializable for this history if the edges have no circle. The times of ``rt`` are put in a row of
marks, one for each end, so that there are as many edges as operations, and not their square.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ...storage.errors import InvalidArgument

_MOST_STARTS = 500  # operations of a knot from which the least circle is looked for
_SHOWN = 3  # values of a list in a message


class HistoryError(AssertionError):
    """A history that no order of its operations explains. ``operations`` are those that contradict each other."""

    def __init__(self, message: str, operations: tuple[Operation, ...]) -> None:
        super().__init__(message)
        self.operations = operations


@dataclass(frozen=True, slots=True)
class Operation:
    """One transaction, or one call, of one client.

    ``process``  the client, which does one operation after the other: a process, or a thread of one
    ``begin``    when it was begun, and ``end``, when it had returned, on a clock that all clients share
                 (time.monotonic()); None where it never returned, as in a process that was killed
    ``appends``  by stream, the values that it appended, in order; no value is appended to a stream twice
    ``reads``    by stream, all values that it read, from the stream's beginning on; its own, which it may have appended
                 before, may stand at the end
    """

    process: Hashable
    begin: float
    end: float | None
    appends: Mapping[str, Sequence[Hashable]] = field(default_factory=dict)
    reads: Mapping[str, Sequence[Hashable]] = field(default_factory=dict)

    def __str__(self) -> str:
        until = "and never ended" if self.end is None else f"to {self.end:.6f}"
        done = [f"appended {_shown(values)} to {stream!r}" for stream, values in self.appends.items()]
        done += [f"read {_shown(values)} of {stream!r}" for stream, values in self.reads.items()]
        return f"process {self.process}, from {self.begin:.6f} {until}: {'; '.join(done) or 'did nothing'}"


def check_history(operations: Iterable[Operation]) -> None:
    """HistoryError unless the operations are strictly serializable.

    That is: all that was read can be explained by doing them one after the other, each as a whole, in an order in which
    whatever had ended before another began comes before it. So no acknowledged value is missing from a read that began
    later, no reader goes back, no transaction is seen by half. An operation that never returned has been done if
    another read what it appended, else it is left out.

    The message names the read that is too old, or the shortest circle of operations. InvalidArgument for a value that
    is appended to one stream twice, and for an operation that ends before it begins. Takes a few µs for each operation
    and each value of a read.
    """
    history = _History(list(operations))
    history.require_whole()
    history.require_fresh()
    history.require_order()


class _Stream:
    """One stream's values in order, as far as any operation read it, with the operations that appended them."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.owners: dict[Hashable, int] = {}
        self.reads: list[tuple[int, Sequence[Hashable]]] = []  # without what the reader itself appended
        self.order: Sequence[Hashable] = ()
        self.places: dict[Hashable, int] = {}
        self.unread: list[int] = []  # operations that returned, and whose values no operation has read

    def owner(self, place: int) -> int:
        return self.owners[self.order[place]]


class _History:
    def __init__(self, operations: list[Operation]) -> None:
        self.operations = operations
        self.marks = len(operations)  # the first of the marks, as a node
        self.streams: dict[str, _Stream] = {}
        for number, operation in enumerate(operations):
            if operation.end is not None and operation.end < operation.begin:
                raise InvalidArgument(f"an operation must not end before it begins: {operation}")
            for name, values in operation.appends.items():
                stream = self.stream(name)
                for value in values:
                    if stream.owners.setdefault(value, number) != number or list(values).count(value) > 1:
                        raise InvalidArgument(f"{value!r} is appended to stream {name!r} twice; values must differ")
        for number, operation in enumerate(operations):
            for name, values in operation.reads.items():
                own = list(operation.appends.get(name, ()))
                is_own = own and list(values[-len(own):]) == own
                self.stream(name).reads.append((number, values[: -len(own)] if is_own else values))
        for stream in self.streams.values():
            stream.order = max((values for _, values in stream.reads), key=len, default=())
            stream.places = {value: place for place, value in enumerate(stream.order)}
            stream.unread = [number for number in dict.fromkeys(stream.owners.values())
                             if operations[number].appends[stream.name][-1] not in stream.places
                             and operations[number].end is not None]

    def stream(self, name: str) -> _Stream:
        return self.streams.setdefault(name, _Stream(name))

    def error(self, message: str, *numbers: int) -> HistoryError:
        found = tuple(self.operations[number] for number in numbers)
        return HistoryError("\n".join([message, *(f"  {line}" for line in found)]), found)

    # -- what one stream shows --------------------------------------------------------------------------

    def require_whole(self) -> None:
        """Reads of a stream are beginnings of one list, in which each operation's values stand together."""
        for stream in self.streams.values():
            order = list(stream.order)
            longest = next((number for number, values in stream.reads if values is stream.order), 0)
            for value in order:
                if value not in stream.owners:
                    raise self.error(f"stream {stream.name!r} shows {value!r}, which no operation appended", longest)
            for number, values in stream.reads:
                if list(values) != order[: len(values)]:
                    place = next(n for n, (a, b) in enumerate(zip(values, order, strict=False)) if a != b)
                    raise self.error(f"two reads of stream {stream.name!r} differ at place {place}: {values[place]!r} "
                                     f"and {order[place]!r}", number, longest)
                self._require_no_half(stream, number, len(values))
            self._require_together(stream, longest)

    def _require_no_half(self, stream: _Stream, reader: int, length: int) -> None:
        if not length:
            return
        owner = stream.owner(length - 1)
        values = self.operations[owner].appends[stream.name]
        if stream.order[length - 1] != values[-1] and owner != reader:
            raise self.error(f"a read of stream {stream.name!r} shows one operation by half: it ends with "
                             f"{stream.order[length - 1]!r}", reader, owner)

    def _require_together(self, stream: _Stream, reader: int) -> None:
        place = 0
        while place < len(stream.order):
            owner = stream.owner(place)
            values = list(self.operations[owner].appends[stream.name])
            if list(stream.order[place : place + len(values)]) != values:
                raise self.error(f"stream {stream.name!r} does not show together, or not in order, what one operation "
                                 f"appended: at place {place}", owner, reader)
            place += len(values)

    # -- reads that are too old -------------------------------------------------------------------------

    def require_fresh(self) -> None:
        """No read misses what was acknowledged, or read by another, before it began."""
        for stream in self.streams.values():
            shown: list[tuple[float, int, int]] = []  # when it was shown, up to where, by which operation
            for number in {*stream.owners.values()}:
                operation = self.operations[number]
                values = operation.appends[stream.name]
                if operation.end is not None:
                    place = stream.places.get(values[-1], len(stream.order))
                    shown.append((operation.end, place + 1, number))
            for number, values in stream.reads:
                end = self.operations[number].end
                if end is not None:
                    shown.append((end, len(values), number))
            shown.sort()
            furthest: list[tuple[int, int]] = []
            for _, place, number in shown:
                furthest.append(max(furthest[-1], (place, number)) if furthest else (place, number))
            for number, values in stream.reads:
                before = bisect_left(shown, (self.operations[number].begin, -1, -1))
                if before and furthest[before - 1][0] > len(values):
                    missed = furthest[before - 1][1]
                    verb = "appended" if stream.name in self.operations[missed].appends else "read"
                    raise self.error(f"a read of stream {stream.name!r} is too old: it does not show what was {verb} "
                                     "before it began", number, missed)

    # -- circles ----------------------------------------------------------------------------------------

    def require_order(self) -> None:
        """No circle of edges."""
        edges = self.edges()
        for knot in _knots(edges):
            starts = sorted(number for number in knot if number < self.marks)[:_MOST_STARTS]
            steps = min((self._circle(edges, start, knot) for start in starts), key=len)
            reasons = [self._reason(a, b) for a, b in zip(steps, [*steps[1:], steps[0]], strict=True)]
            lines = [f"  {n + 1}. {self.operations[number]}\n     {reason}"
                     for n, (number, reason) in enumerate(zip(steps, reasons, strict=True))]
            raise HistoryError("\n".join(["no order of these operations explains what they read:", *lines]),
                               tuple(self.operations[number] for number in steps))

    def edges(self) -> list[list[int]]:
        """By operation, and behind them by mark, what must come after it."""
        marks = self.marks
        ended = sorted((operation.end, number) for number, operation in enumerate(self.operations)
                       if operation.end is not None)
        edges: list[list[int]] = [[] for _ in range(marks + len(ended))]
        for place, (_, number) in enumerate(ended):
            edges[number].append(marks + place)
            if place + 1 < len(ended):
                edges[marks + place].append(marks + place + 1)
        for number, operation in enumerate(self.operations):
            before = bisect_left(ended, (operation.begin, -1))
            if before:
                edges[marks + before - 1].append(number)
        for stream in self.streams.values():
            for number, after in self._edges_of(stream):
                if number != after:
                    edges[number].append(after)
        return edges

    @staticmethod
    def _edges_of(stream: _Stream) -> Iterator[tuple[int, int]]:
        length = len(stream.order)
        for place in range(1, length):
            yield stream.owner(place - 1), stream.owner(place)
        for number in stream.unread:
            if length:
                yield stream.owner(length - 1), number
        for number, values in stream.reads:
            if values:
                yield stream.owner(len(values) - 1), number
            following = [stream.owner(len(values))] if len(values) < length else stream.unread
            for after in following:
                yield number, after

    def _circle(self, edges: list[list[int]], start: int, knot: set[int]) -> list[int]:
        """The operations of a shortest way from one back to it. A step to a mark costs nothing (0-1 BFS)."""
        costs, came, queue = {start: 0}, dict[int, int](), deque([start])
        best: tuple[int, int] | None = None
        while queue:
            node = queue.popleft()
            for after in edges[node]:
                cost = costs[node] + (after < self.marks)
                if after == start and (best is None or cost < best[0]):
                    best = cost, node
                elif after in knot and cost < costs.get(after, len(edges)):
                    costs[after], came[after] = cost, node
                    (queue.append if after < self.marks else queue.appendleft)(after)
        assert best is not None, "a node of a knot has a way back to itself"
        way = [best[1]]
        while way[-1] != start:
            way.append(came[way[-1]])
        return [number for number in reversed(way) if number < self.marks]

    def _reason(self, first: int, second: int) -> str:
        """Why the second must come after the first."""
        before, after = self.operations[first], self.operations[second]
        for name, stream in self.streams.items():
            if (first, second) in self._edges_of(stream):
                if name in after.reads and name in before.appends and any(
                        number == second and len(values) and stream.owner(len(values) - 1) == first
                        for number, values in stream.reads):
                    return f"what it appended to {name!r} was read by the next"
                if name in before.reads and name in after.appends:
                    return f"it did not see what the next appended to {name!r}"
                return f"the next appended to {name!r} behind it"
        return "it had ended before the next began"


def _knots(edges: list[list[int]]) -> Iterator[set[int]]:
    """The strongly connected sets of more than one node (Tarjan 1972, without recursion)."""
    index: dict[int, int] = {}
    low: dict[int, int] = {}
    path: list[int] = []
    on_path: set[int] = set()
    for root in range(len(edges)):
        if root in index:
            continue
        work = [(root, iter(edges[root]))]
        while work:
            node, following = work[-1]
            if node not in index:
                index[node] = low[node] = len(index)
                path.append(node)
                on_path.add(node)
            for after in following:
                if after not in index:
                    work.append((after, iter(edges[after])))
                    break
                if after in on_path:
                    low[node] = min(low[node], index[after])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    knot: set[int] = set()
                    while node not in knot:
                        knot.add(path.pop())
                    on_path -= knot
                    if len(knot) > 1:
                        yield knot


def _shown(values: Sequence[Hashable]) -> str:
    if len(values) <= 2 * _SHOWN:
        return repr(list(values))
    first, last = (", ".join(map(repr, some)) for some in (values[:_SHOWN], values[-_SHOWN:]))
    return f"[{first}, … {len(values) - 2 * _SHOWN} more …, {last}]"
