"""Random steps on one group, and a process that takes them from its input: for what processes keep warm of a group.

    python group_steps.py STORE     a line with a step in, a line with its result out
"""

from __future__ import annotations

import json
import random
import sys
from typing import Any

import raxlog

CONSUMERS = ["ann", "bob", "cat"]


def draw(rng: random.Random, number: int) -> list[Any]:
    """The step of that number: a name, and what it is about."""
    near = [f"{rng.randint(max(1, number - 60), number + 1)}-0" for _ in range(rng.randint(1, 4))]
    kind = rng.choice(["append"] * 6 + ["read"] * 8 + ["fused"] * 3 + ["ack"] * 5 + ["claim"] * 2 + [
        "autoclaim", "nack", "set_id", "create", "drop", "delete", "trim", "again"])
    return [kind, number, rng.choice(CONSUMERS), rng.randint(1, 5), near]


def perform(store: raxlog.Store, step: list[Any]) -> Any:
    """Perform a step; what came of it, as JSON has it."""
    kind, number, consumer, count, near = step
    stream = store.stream("s")
    group = stream.group("g")
    try:
        match kind:
            case "append":
                return str(stream.append({"n": number}, id=f"{number}-0"))
            case "read":
                return [(str(entry.id), entry.fields, entry.deliveries) for entry in group.read(consumer, count=count)]
            case "fused":
                return [(str(entry.id), entry.deliveries) for entry in group.read(consumer, count=count, ack=near)]
            case "ack":
                return group.ack(near)
            case "claim":
                return [(str(entry.id), entry.deliveries) for entry in group.claim(consumer, near)]
            case "autoclaim":
                return [str(sid) for sid in group.autoclaim_ids(consumer, 0, near[0], count).entries]
            case "nack":
                return group.nack(near)
            case "set_id":
                return group.set_id(near[0])
            case "create":
                return group.create_consumer(consumer)
            case "drop":
                return group.delete_consumer(consumer, pending="drop")
            case "delete":
                return stream.delete(near)
            case "trim":
                return stream.trim(maxlen=40)
            case "again":
                return group.destroy(), str(stream.create_group("g", near[0]).last_delivered_id)
    except raxlog.RaxlogError as error:
        return type(error).__name__


def shown(store: raxlog.Store) -> Any:
    """All of the group that has nothing to do with time."""
    group = store.stream("s").group("g")
    return (
        [(str(row.id), row.consumer, row.deliveries) for row in group.pending_entries()],
        [(each.name, each.pending) for each in group.consumers()],
        str(group.last_delivered_id), group.lag, group.pending().total,
    )


if __name__ == "__main__":
    with raxlog.open(sys.argv[1]) as opened:
        for line in sys.stdin:
            print(json.dumps(perform(opened, json.loads(line))), flush=True)
