"""What check finds, as an object and as JSON.

    Report   ok, path, generation, problems, counts, notes
    Problem  kind   page | checksum | record | name | node | ordinals | header | group | pending |
                    append | subject | lookup | lmdb | process
             what   what is wrong                     meaning   what follows for the store's users
             where  stream, group, node, offset, page: each None where it is not known

A damaged page usually shows several times: as a page, and as what is missing because of it.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

MOST_PROBLEMS = 1000  # kept; the others are counted

MEANINGS = {
    "page": "LMDB may fail on this page or return wrong records; keys behind it may be out of reach",
    "checksum": "reading this record raises CorruptionError; nothing wrong is returned",
    "record": "the record cannot be used",
    "name": "the stream cannot be opened by its name",
    "node": "reading the entries of this node raises CorruptionError; others stay readable",
    "ordinals": "counts, ranks and scans over these entries raise CorruptionError, or entries are gone",
    "header": "the stream's figures are wrong, or entries are gone",
    "group": "the group or one of its consumers cannot be used",
    "pending": "pending entries are lost, or not found by consumer, time or place in line",
    "append": "a repeated append of this producer may be added twice, or taken for a repeated one",
    "subject": "messages may not be routed as they were bound",
    "lookup": "readers may miss this record though it is in the file",
    "lmdb": "LMDB's own structure is damaged: do not write to the store, salvage it",
    "process": "the damage kills a process that reads it: do not open the store, salvage it",
}


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong."""

    kind: str
    what: str
    stream: str | None = None
    group: str | None = None
    node: str | None = None
    offset: int | None = None
    page: int | None = None

    @property
    def meaning(self) -> str:
        """What it means for those who use the store."""
        return MEANINGS[self.kind]

    def as_dict(self) -> dict[str, Any]:
        """All of it, for JSON."""
        return asdict(self) | {"meaning": self.meaning}

    def __str__(self) -> str:
        named = ("stream", "group", "node", "offset", "page")
        places = [f"{name} {getattr(self, name)}" for name in named if getattr(self, name) is not None]
        where = f" ({', '.join(places)})" if places else ""
        return f"{self.kind}: {self.what}{where}"


@dataclass
class Report:
    """What a check has found. ``problems`` holds at most 1,000; counts["problems"] tells all."""

    path: str
    generation: str
    problems: list[Problem] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)  # what was not done, and why
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        """True where nothing is wrong."""
        return not self.problems

    def add(self, problem: Problem) -> None:
        """Keep a problem, or only count it beyond the first 1,000."""
        self.counts["problems"] = self.counts.get("problems", 0) + 1
        if len(self.problems) < MOST_PROBLEMS:
            self.problems.append(problem)

    def take(self, message: dict[str, Any]) -> None:
        """Take in what a walk tells: a problem, a note, its counts, which generation it looks at."""
        if "problem" in message:
            self.add(Problem(**message["problem"]))
        elif "note" in message:
            self.notes.append(message["note"])
        else:
            self.counts |= message.get("counts", {})
            self.generation = message.get("generation", self.generation)

    def as_dict(self) -> dict[str, Any]:
        """The whole report, for JSON."""
        return asdict(self) | {"ok": self.ok, "problems": [problem.as_dict() for problem in self.problems]}

    def __str__(self) -> str:
        if self.ok:
            return f"{self.path}: no problems in {self.counts.get('records', 0):,} records"
        return "\n".join([f"{self.path}: {self.counts['problems']:,} problems", *map(str, self.problems)])
