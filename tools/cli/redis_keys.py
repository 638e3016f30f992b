"""Keys of Redis into a store and out of it: ``import --rdb``, ``import --redis``, ``export --redis``."""

from __future__ import annotations

import argparse
import contextlib
import mmap
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from ...storage import clocks
from ...storage.errors import RaxlogError
from .. import output
from .progress import progress
from .status import DONE, INTERRUPTED, USAGE, CommandError, status_of
from .stores import reading, writing

if TYPE_CHECKING:
    import redis

    from ..resp.transfer import Transfer


def import_keys(args: argparse.Namespace) -> int:
    """The keys of an RDB file, or of a server."""
    from ...stream.dump import rdb_file  # noqa: PLC0415 - only these commands need it
    from ..resp.transfer import Transfer, rows_of  # noqa: PLC0415

    with contextlib.ExitStack() as stack:
        if args.rdb is not None:
            if args.stream is not None:
                raise CommandError("--rdb takes all keys of the file; give no STREAM", USAGE)
            data = stack.enter_context(_mapped(args.rdb))
            rows, size = rdb_file.rows(data), len(data)
        else:
            rows, size = rows_of(stack.enter_context(_server(args.redis)), args.stream or b"*"), None
        store = stack.enter_context(writing(args, create=True))
        report = stack.enter_context(progress(args.rdb or args.redis, size, "keys"))
        work = Transfer(store, args.replace, report)
        return _run(args, work, lambda: work.take(rows), "imported")


def export_keys(args: argparse.Namespace) -> int:
    """The keys of database 0, to a server."""
    from ..resp.transfer import Transfer  # noqa: PLC0415

    with _server(args.redis) as client, reading(args) as store, progress(args.redis, None, "keys") as report:
        work = Transfer(store, args.force, report)
        return _run(args, work, lambda: work.give(client, args.stream or b"*"), "exported")


def _run(args: argparse.Namespace, work: Transfer, call: Callable[[], None], verb: str) -> int:
    began = clocks.elapsed()
    trouble: CommandError | None = None
    try:
        call()
    except KeyboardInterrupt:
        trouble = CommandError("interrupted; run the same command again to go on", INTERRUPTED)
    except RaxlogError as error:
        trouble = CommandError(str(error), status_of(error))
    took = clocks.elapsed() - began
    words = [f"{output.many(one.total(), 'key', 'keys')} {what}{_shown(one)}"
             for what, one in ((verb, work.done), ("there already", work.kept), ("left out", work.left_out))
             if one or one is work.done]
    output.answer(args.json, {verb: dict(work.done), "kept": dict(work.kept), "left_out": dict(work.left_out),
                              "ok": trouble is None, "seconds": round(took, 6)},
                  f"{'; '.join(words)}; {took:.2f} s")
    if trouble is not None:
        raise trouble
    return DONE


def _shown(counts: Counter[str]) -> str:
    return f" ({', '.join(f'{kind}: {count:,}' for kind, count in sorted(counts.items()))})" if counts else ""


@contextlib.contextmanager
def _mapped(path: str) -> Iterator[mmap.mmap]:
    try:
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            yield data
    except (OSError, ValueError) as error:  # ValueError: it is empty
        raise CommandError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}", USAGE) from None


@contextlib.contextmanager
def _server(url: str) -> Iterator[redis.Redis]:
    from ..resp.transfer import connected  # noqa: PLC0415

    try:
        with connected(url) as client:
            client.ping()
            yield client
    except ValueError as error:  # no URL
        raise CommandError(f"{url}: {error}", USAGE) from None
    except Exception as error:
        if type(error).__module__.partition(".")[0] != "redis":
            raise
        raise CommandError(f"{url}: {error}", USAGE) from None
