"""Routing: subjects, and the interest in them.

    orders                     a token, and how many subscriptions end with it
    ├── *
    │   └── new    2
    └── >          1  and 3 in queues
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from .....index.pubsub.leases import owner_of
from .....index.subjects import subject as subjects
from .....index.subjects.subscription import BINDING, DURABLE, LIVE, STREAM_OPTION
from .....storage.errors import NoSubscription
from .....store import Store
from .... import output
from ...arguments import OF_STORE, argument, command
from ...readers import typed
from ...status import DONE, NO
from ...stores import reading

_KINDS = {BINDING: "binding", DURABLE: "durable", LIVE: "live"}


@dataclass
class _Token:
    plain: int = 0
    queued: int = 0
    below: dict[bytes, _Token] = field(default_factory=dict)


@command(
    "subjects",
    (*OF_STORE,
     argument("within", metavar="PATTERN", nargs="?", default=">", read=typed(subjects.pattern),
              help="only subjects that overlap this pattern")),
    """Prints a tree of tokens. Each subject has the number of its plain subscriptions, bindings included,
and of the members of its queues. Exit status 1 if there is none.""",
    "raxlog subjects events.rax",
    "raxlog subjects events.rax 'orders.eu.*' --json",
)
def _subjects(args: argparse.Namespace) -> int:
    with reading(args) as store:
        found = store.subjects.patterns(args.within)
    root = _Token()
    for subject in found:
        branch = root
        for token in subjects.tokens(subject.subject):
            branch = branch.below.setdefault(token, _Token())
        branch.plain, branch.queued = subject.plain, subject.queued
    output.answer(
        args.json,
        {"subjects": [subject.to_dict() for subject in found]},
        *(line for token, branch in sorted(root.below.items()) for line in _drawn(token, branch, "", "")),
    )
    return DONE if found else NO


def _drawn(token: bytes, branch: _Token, first: str, rest: str) -> Iterator[str]:
    counts = [str(branch.plain)] if branch.plain else []
    if branch.queued:
        counts.append(f"{branch.queued} in queues")
    yield f"{first}{output.text(token)}" + (f"    {' and '.join(counts)}" if counts else "")
    below = sorted(branch.below.items())
    for place, (name, child) in enumerate(below):
        last = place == len(below) - 1
        yield from _drawn(name, child, rest + ("└── " if last else "├── "), rest + ("    " if last else "│   "))


@command(
    "interest", (*OF_STORE, argument("subject", metavar="SUBJECT", read=typed(subjects.literal),
                         help="the subject, without wildcards")),
    """Prints a line for each binding, durable and live subscription that a message to the subject would
reach; of those with a queue, one member receives it. Exit status 1 if there is none.""",
    "raxlog interest events.rax orders.eu.new",
)
def _interest(args: argparse.Namespace) -> int:
    with reading(args) as store:
        rows = _interested(store, args.subject)
    cells = [(str(row["id"]), row["kind"], output.text(row["subject"]),
              "-" if row["queue"] is None else output.text(row["queue"]), _where(row)) for row in rows]
    output.answer(args.json, {"interest": rows}, *output.table(cells, head=("id", "kind", "subject", "queue", "to")))
    return DONE if rows else NO


def _interested(store: Store, subject: bytes) -> list[dict[str, Any]]:
    rows = []
    owners = store.listeners()
    found = store.subjects.match(subject)
    numbers = [*found.plain, *(member.id for group in found.queues.values() for member in group)]
    for number in sorted(numbers):
        try:
            record = store.subjects.get(number)
        except NoSubscription:
            continue  # it ended after the match
        row: dict[str, Any] = {
            "id": record.id, "kind": _KINDS[record.kind], "subject": record.subject, "queue": record.queue,
        }
        owner = owner_of(os.fsencode(record.owner))
        if record.kind == LIVE:
            if owner is None or owner not in owners:
                continue  # its process has died, or no publish would count it
            row["pid"] = owners[owner]
        elif STREAM_OPTION not in record.options:
            continue
        elif record.kind == BINDING:
            row["stream"] = record.options[STREAM_OPTION]
        else:
            row["durable"] = record.name
        rows.append(row)
    return rows


def _where(row: dict[str, Any]) -> str:
    for what in ("stream", "durable"):
        if what in row:
            return f"{what} {output.text(row[what])}"
    return f"process {row['pid']}"
