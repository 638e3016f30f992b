"""How a command opens its store.

    reading commands    readonly=True; never create anything
    add, import         create the store, if nothing is at the path; so do bind, sub and
                        create-group, which may come before the first message
    other writing ones  need a store: there is nothing to delete or trim in a new one

Arguments are read and checked before the store is opened, so that a mistyped one creates nothing.
"""

from __future__ import annotations

import contextlib
from argparse import Namespace
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import raxlog

from ...storage.engine.open_options import BYTES, OWN
from ...storage.errors import NoStream
from ...stream.entries.header import shown
from ..output import did_you_mean, text

if TYPE_CHECKING:
    from raxlog import Group, Store, Stream


def reading(args: Namespace) -> Store:
    """The store at STORE, open for reading."""
    return raxlog.open(args.store, readonly=True, encoding=BYTES)


def writing(args: Namespace, create: bool = False, in_bytes: bool = True) -> Store:
    """The store at STORE, open for writing; created only if ``create``. Commands work in bytes."""
    return raxlog.open(args.store, create=create, durability=args.durability, lock_timeout=args.lock_timeout,
                       encoding=BYTES if in_bytes else OWN)


def existing(store: Store, name: bytes) -> Stream:
    """A handle on a stream that exists, else NoStream."""
    stream = store.stream(name)
    if not stream.exists():
        near = did_you_mean(text(name), map(text, store.streams())) or ";"
        raise NoStream(f"there is no stream {shown(name)} in {store.path}{near} 'raxlog streams' lists them")
    return stream


@contextlib.contextmanager
def stream_of(args: Namespace, opened: Callable[[Namespace], Store] = reading) -> Iterator[Stream]:
    """A handle on STREAM, with the store open as long as the block lasts. NoStream."""
    with opened(args) as store:
        yield existing(store, args.stream)


@contextlib.contextmanager
def group_of(args: Namespace, opened: Callable[[Namespace], Store] = reading) -> Iterator[Group]:
    """The same for GROUP of STREAM. Where the group is missing, using the handle raises NoGroup."""
    with stream_of(args, opened) as stream:
        yield stream.group(args.group)
