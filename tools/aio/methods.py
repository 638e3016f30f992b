"""Methods: the plain ones of Store, Stream, Group and State as awaitable ones, with their types and docstrings.

    append = joined(Stream.append)      part of the next commit        await stream.append(…)
    get = reading(Stream.get)           in the lane of reads           await stream.get(…)
    trim = apart(Stream.trim)           in the lane of other calls     await stream.trim(…)
    last_id = Property(…)                                              await stream.last_id
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial, wraps
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, Self, TypeVar, overload

from .threads import Threads

H = TypeVar("H")  # the plain handle
P = ParamSpec("P")
T = TypeVar("T")


class Awaitable(Protocol[H]):
    """A handle of a loop: the plain one, and the same bound to the batch."""

    _threads: Threads
    _plain: H
    _batched: H



def joined(method: Callable[Concatenate[H, P], T]) -> Callable[Concatenate[Awaitable[H], P], Coroutine[Any, Any, T]]:
    """A method that writes, as a part of the next commit: what goes in pieces elsewhere is one commit here."""

    @wraps(method)
    async def call(self: Awaitable[H], /, *args: P.args, **options: P.kwargs) -> T:
        given: Any = map(_kept, args)
        kept: Any = {name: _kept(value) for name, value in options.items()}
        return await self._threads.write(partial(method, self._batched, *given, **kept))

    return call


def _kept(argument: Any) -> Any:
    """The argument, an iterator as a list: the call may be applied twice."""
    return list(argument) if hasattr(argument, "__next__") else argument


def reading(method: Callable[Concatenate[H, P], T]) -> Callable[Concatenate[Awaitable[H], P], Coroutine[Any, Any, T]]:
    """A method that reads and does not wait."""

    @wraps(method)
    async def call(self: Awaitable[H], /, *args: P.args, **options: P.kwargs) -> T:
        return await self._threads.read(partial(method, self._plain, *args, **options))

    return call


def apart(method: Callable[Concatenate[H, P], T]) -> Callable[Concatenate[Awaitable[H], P], Coroutine[Any, Any, T]]:
    """A method with commits of its own, or that takes long."""

    @wraps(method)
    async def call(self: Awaitable[H], /, *args: P.args, **options: P.kwargs) -> T:
        return await self._threads.do(partial(method, self._plain, *args, **options))

    return call


class Property(Generic[H, T]):
    """A property that reads: ``await stream.last_id``. Explained as the plain one of the same name."""

    def __init__(self, read: Callable[[H], T]) -> None:
        self._read = read

    @overload
    def __get__(self, handle: None, owner: object) -> Self: ...

    @overload
    def __get__(self, handle: Awaitable[H], owner: object) -> asyncio.Future[T]: ...

    def __get__(self, handle: Awaitable[H] | None, owner: object) -> Self | asyncio.Future[T]:
        return self if handle is None else handle._threads.read(partial(self._read, handle._plain))
