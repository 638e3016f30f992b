"""Where the walks of a check put what they find, and how they tell how far they are.

    walk ── say(problem) ──> Findings ── one JSON line each ──> the process that asked
         ── count(name, by)
         ── step(by)          progress within the part begun last
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from ..storage.errors import CorruptionError
from .page_tree import PageTree
from .report import Problem

_EVERY = 256  # steps between two lines of progress


class Findings:
    """Collects problems and counts of one check. ``tell`` is given each message as a dict."""

    def __init__(self, tell: Callable[[dict[str, Any]], None]) -> None:
        self._tell = tell
        self.tree: PageTree | None = None
        self.counts: Counter[str] = Counter()
        self._part = ""
        self._done = 0
        self._total = 0
        self._told = 0

    def say(self, kind: str, what: str, *, key: bytes | None = None, **where: Any) -> None:
        """Report a problem. ``key`` names the record it is about, from which its page is told."""
        if key is not None and self.tree is not None and where.get("page") is None:
            where["page"] = self.tree.page_of(key)
        self._tell({"problem": vars(Problem(kind, what, **where))})

    def say_error(self, kind: str, error: Exception, *, key: bytes | None = None, **where: Any) -> None:
        """Report what reading raised, with the place it names where the caller knows none."""
        what = str(error) or type(error).__name__
        if isinstance(error, CorruptionError):
            what = error.what
            for name in ("stream", "node", "offset"):
                if where.get(name) is None and getattr(error, name) is not None:
                    where[name] = getattr(error, name)
        self.say(kind, what, key=key, **where)

    def note(self, what: str) -> None:
        """Say what was not looked at, and why."""
        self._tell({"note": what})

    def begin(self, part: str, total: int) -> None:
        """Begin a part of the check, of so many steps."""
        self._part, self._total, self._done, self._told = part, total, 0, 0
        self._tell({"part": part, "done": 0, "total": total})

    def step(self, by: int = 1) -> None:
        """Some steps of the part are done."""
        self._done += by
        if self._done - self._told >= _EVERY:
            self._told = self._done
            self._tell({"part": self._part, "done": self._done, "total": max(self._total, self._done)})

    def end(self) -> None:
        """All counts, told once."""
        self._tell({"counts": dict(self.counts)})
