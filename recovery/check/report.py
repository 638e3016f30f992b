"""What check finds: reported by its walk, and collected as an object and as JSON.

    walk ── problem(…) ──> Findings ── one message each ──> Report, in the calling process
         ── step(by)       progress within the part begun last

    Report   ok, path, generation, problems, counts, notes
    Problem  kind   log | page | checksum | record | name | node | ordinals | header | group | pending |
                    append | subject | lookup | lmdb | process
             what   what is wrong                     meaning   what follows for the store's users
             where  stream, group, node, offset, page: each None if unknown

A damaged page usually causes several problems: its own, and one for each thing it hides.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from ...storage.errors import CorruptionError
from ...storage.figures import Figures
from .page_tree import PageTree

_EVERY = 256  # steps from one progress message to the next
MOST_PROBLEMS = 1000  # kept; the others are counted

MEANINGS = {
    "log": "what was acknowledged last is not all there: the store is not opened; salvage takes what is sound",
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
    "deferred": "deferred entries are lost, or hold up the stream's readers",
    "result": "results are lost, or stay for ever",
    "subject": "messages may not be routed as they were bound",
    "lookup": "readers may miss this record though it is in the file",
    "lmdb": "LMDB's own structure is damaged: do not write to the store, salvage it",
    "process": "the damage kills a process that reads it: do not open the store, salvage it",
}


@dataclass(frozen=True, slots=True)
class Problem(Figures):
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
        """What it means for the store's users."""
        return MEANINGS[self.kind]

    def to_dict(self) -> dict[str, object]:
        return Figures.to_dict(self) | {"meaning": self.meaning}

    def __str__(self) -> str:
        named = ("stream", "group", "node", "offset", "page")
        places = [f"{name} {getattr(self, name)}" for name in named if getattr(self, name) is not None]
        where = f" ({', '.join(places)})" if places else ""
        return f"{self.kind}: {self.what}{where}"


@dataclass(frozen=True, slots=True)
class Report(Figures):
    """The result of a check. ``problems`` holds at most 1,000; counts["problems"] is their number."""

    _also = ("ok",)

    path: str
    generation: str
    problems: list[Problem] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)  # what was not done, and why
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        return not self.problems

    def __str__(self) -> str:
        if self.ok:
            return f"{self.path}: no problems in {self.counts.get('records', 0):,} records"
        return "\n".join([f"{self.path}: {self.counts['problems']:,} problems", *map(str, self.problems)])


class Taken:
    """What comes from walks, taken into a report."""

    def __init__(self, path: str) -> None:
        self.report = Report(path, "")

    def add(self, problem: Problem) -> None:
        """Keep a problem, or only count it beyond the first 1,000."""
        counts, problems = self.report.counts, self.report.problems
        counts["problems"] = counts.get("problems", 0) + 1
        if len(problems) < MOST_PROBLEMS:
            problems.append(problem)

    def take(self, message: dict[str, Any]) -> None:
        """Add a message of a walk: a problem, a note, its counts, its generation."""
        if "problem" in message:
            self.add(Problem(**message["problem"]))
        elif "note" in message:
            self.report.notes.append(message["note"])
        else:
            self.report.counts.update(message.get("counts", {}))
            self.report = replace(self.report, generation=message.get("generation", self.report.generation))


class Findings:
    """Collects problems and counts of one check. ``send`` gets each message as a dict."""

    def __init__(self, send: Callable[[dict[str, Any]], None]) -> None:
        self._send = send
        self.tree: PageTree | None = None
        self.counts: Counter[str] = Counter()
        self._part = ""
        self._done = 0
        self._total = 0
        self._reported = 0

    def problem(self, kind: str, what: str, *, key: bytes | None = None, **where: Any) -> None:
        """Report a problem. The page is that of ``key``, the key of the record concerned."""
        if key is not None and self.tree is not None and where.get("page") is None:
            where["page"] = self.tree.page_of(key)
        self._send({"problem": Figures.to_dict(Problem(kind, what, **where))})

    def error(self, kind: str, error: Exception, *, key: bytes | None = None, **where: Any) -> None:
        """Report an exception as a problem, at the place it names where ``where`` names none."""
        what = str(error) or type(error).__name__
        if isinstance(error, CorruptionError):
            what = error.what
            for name in ("stream", "node", "offset"):
                if where.get(name) is None and getattr(error, name) is not None:
                    where[name] = getattr(error, name)
        self.problem(kind, what, key=key, **where)

    def note(self, what: str) -> None:
        """Report what was not checked, and why."""
        self._send({"note": what})

    def begin(self, part: str, total: int) -> None:
        """Begin a part of the check that has ``total`` steps."""
        self._part, self._total, self._done, self._reported = part, total, 0, 0
        self._send({"part": part, "done": 0, "total": total})

    def step(self, by: int = 1) -> None:
        """Count steps of the part as done."""
        self._done += by
        if self._done - self._reported >= _EVERY:
            self._reported = self._done
            self._send({"part": self._part, "done": self._done, "total": max(self._total, self._done)})

    def end(self) -> None:
        self._send({"counts": dict(self.counts)})
