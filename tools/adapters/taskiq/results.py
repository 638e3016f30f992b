"""The results of tasks, what they have returned or raised, and their progress: kept for a time."""

from __future__ import annotations

import hashlib
import json
import os
from typing import Any, TypeVar

from pydantic import BaseModel

from taskiq import AsyncResultBackend, TaskiqResult
from taskiq.depends.progress_tracker import TaskProgress
from taskiq.exceptions import ResultGetError

from ..stream.jobs.results import Result
from ..stream.node.arguments import duration_ms
from ..stream.node.stream_id import StreamID
from .broker import TaskQueue, opened

T = TypeVar("T")


class RaxlogResultBackend(AsyncResultBackend[T]):
    """A taskiq result backend in a store, which may be that of the broker.

    ``path``        of the store, created if it does not exist
    ``result_ttl``  seconds for which results and progress are kept (default: a day). Each new result deletes up to ten
                    expired ones

    Results belong to the stream taskiq.results, which has no entries, and are kept as JSON. A value that pydantic
    cannot turn into JSON is not kept, and taskiq logs an error. The task's annotation determines the type of a
    restored value, such as a dataclass or a time.
    """

    def __init__(self, path: str | os.PathLike[str], *, result_ttl: float = 86_400.0) -> None:
        duration_ms("result_ttl", result_ttl)
        self._ttl = result_ttl
        self._place = path, "taskiq.results", "results"
        self._queue: TaskQueue | None = None

    async def startup(self) -> None:
        if self._queue is None:
            self._queue = await TaskQueue.open(*self._place)

    async def shutdown(self) -> None:
        queue, self._queue = self._queue, None
        if queue is not None:
            await queue.close()

    async def set_result(self, task_id: str, result: TaskiqResult[T]) -> None:
        await self._keep("result", task_id, result)

    async def is_result_ready(self, task_id: str) -> bool:
        return await self._find("result", task_id) is not None

    async def get_result(self, task_id: str, with_logs: bool = False) -> TaskiqResult[T]:
        """The result of a task. ResultGetError if it does not exist yet, or has expired."""
        found = await self._find("result", task_id)
        if found is None:
            raise ResultGetError
        return TaskiqResult[T].model_validate(found if with_logs else {**found, "log": None})

    async def set_progress(self, task_id: str, progress: TaskProgress[Any]) -> None:
        await self._keep("progress", task_id, progress)

    async def get_progress(self, task_id: str) -> TaskProgress[Any] | None:
        found = await self._find("progress", task_id)
        return None if found is None else TaskProgress[Any].model_validate(found)

    async def _keep(self, what: str, task_id: str, value: BaseModel) -> None:
        await opened(self._queue).group.keep_results({_id(what, task_id): Result(value.model_dump_json())}, self._ttl)

    async def _find(self, what: str, task_id: str) -> Any:
        result = await opened(self._queue).group.wait_result(_id(what, task_id), 0)
        return json.loads(result.value) if result.status == "ok" else None


def _id(what: str, task_id: str) -> StreamID:
    """The ID by which a result is kept; a task's may be any string."""
    return StreamID.from_bytes(hashlib.sha256(f"{what} {task_id}".encode(errors="surrogatepass")).digest()[:16])
