"""The growth curve: appends, reads and queues by how much is there already, by threads, by processes.

    entries      10,000 ── 100,000 ── 1,000,000 ── …      as far as --entries says
    threads      1 ── 2 ── 4 ── 8 ── 16
    processes    1 ── 2 ── 4 ── 8
"""

from __future__ import annotations

import random
from contextlib import ExitStack
from functools import partial

from ..children import running
from ..peers import SqliteLog, read_hundred, rows
from ..rounds import Figure, Rounds
from .commits import SQLITE, Contenders, by_processes, each, one, sides, threaded
from .queues import GroupQueue, two_calls

AT_ONCE = 10_000


def growth(rounds: Rounds) -> list[Figure]:
    """All contests; a read is one of a hundred entries to dicts, anywhere."""
    return _by_entries(rounds) + _by_callers(rounds)


def _by_entries(rounds: Rounds) -> list[Figure]:
    sizes = [10**power for power in range(4, 8) if 10**power <= rounds.entries] or [rounds.entries]
    readings, chance = rows(AT_ONCE, 3), random.Random(4)
    appends: Contenders = {}
    reads: Contenders = {}
    taken: Contenders = {}
    with ExitStack() as stack:
        for size in sizes:
            sqlite, _, stream, _ = stack.enter_context(sides(rounds, f"growth-{size}"))
            for at in range(0, size, AT_ONCE):
                for log in (sqlite, stream):
                    log.extend(readings[: size - at])
            hundred = read_hundred(stream)
            label = f"raxlog, {size:,}"
            appends[f"{SQLITE}, {size:,}"] = partial(rounds.rate, each(sqlite.append))
            appends[label] = partial(rounds.rate, each(stream.append))
            reads[f"{SQLITE}, {size:,}"] = partial(rounds.rate, one(partial(_somewhere, sqlite, size, chance)))
            reads[label] = partial(rounds.rate, one(hundred))
            taken[label] = partial(rounds.rate, two_calls(GroupQueue(stream.create_group("g"))))
        return (rounds.contest("append, by entries", appends) + rounds.contest("read of 100, by entries", reads)
                + rounds.contest("read + ack of 100, two calls, entries, by entries", taken))


def _somewhere(sqlite: SqliteLog, size: int, chance: random.Random) -> None:
    sqlite.range(chance.randrange(max(1, size - 100)), 100)


def _by_callers(rounds: Rounds) -> list[Figure]:
    with sides(rounds, "growth") as (_, store, stream, _):
        stream.extend(rows(AT_ONCE, 3))
        append, read = each(stream.append), one(read_hundred(stream))
        figures = []
        for name, call in (("append", append), ("read of 100", read)):
            figures += rounds.contest(f"{name}, by threads", {
                f"raxlog, {count}": partial(threaded, rounds, count, call) for count in (1, 2, 4, 8, 16)
            })
        store.close()
        with running("worker", store.path, count=8) as workers:
            for name, work in (("append", "append"), ("read of 100", "read")):
                figures += rounds.contest(f"{name}, by processes", {
                    f"raxlog, {count}": partial(by_processes, rounds, workers[:count], work) for count in (1, 2, 4, 8)
                })
        return figures
