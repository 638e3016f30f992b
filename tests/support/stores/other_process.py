"""A second process on the same store, told what to do: calls go down one pipe, results come up another.

    other = OtherProcess(path)
    other.call("insert", "a.*", queue="q")     what Sublist.insert() of the other process answers
    other.call("match", "a.b", "a.c")          what match() of it finds for each: IDs, queues
"""

from __future__ import annotations

import multiprocessing
from pathlib import Path
from typing import Any

import raxlog
from raxlog.index.subjects.handle import Sublist


def _work(path: Path, pipe: Any) -> None:
    with raxlog.open(path, durability="relaxed", encoding=None) as store:
        index = Sublist(store._source)
        while True:
            try:
                name, args, options = pipe.recv()
            except EOFError:
                return
            try:
                if name == "match":
                    found = [index.match(subject) for subject in args]
                    answer = [(one.plain, one.queues) for one in found]
                else:
                    answer = getattr(index, name)(*args, **options)
            except raxlog.RaxlogError as error:
                answer = error
            pipe.send(answer)


class OtherProcess:
    """A forked process with a store and an index of its own; a context manager."""

    def __init__(self, path: Path) -> None:
        context = multiprocessing.get_context("fork")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_close_first, args=(self._pipe, path, theirs), daemon=True)
        self._process.start()
        theirs.close()

    def call(self, name: str, *args: Any, **options: Any) -> Any:
        """Run a method of the other process's Sublist; raise what it raised."""
        self._pipe.send((name, args, options))
        answer = self._pipe.recv()
        if isinstance(answer, Exception):
            raise answer
        return answer

    def close(self) -> None:
        """Let it end."""
        self._pipe.close()
        self._process.join(10)
        self._process.kill()
        self._process.join()


def _close_first(mine: Any, path: Path, theirs: Any) -> None:
    mine.close()
    _work(path, theirs)
