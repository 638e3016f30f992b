"""serve: the store for clients of Redis."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
from typing import TYPE_CHECKING

from ...resp.options import Options
from ..arguments import OF_STORE, WRITING, argument, command
from ..readers import whole
from ..status import DONE, USAGE, CommandError
from ..stores import writing

if TYPE_CHECKING:
    from ....store import Store


@command(
    "serve",
    (*OF_STORE, argument("--port", type=whole, default=6379, metavar="N",
              help="where it listens (default: 6379; 0: any)"),
     argument("--bind", default="127.0.0.1", metavar="ADDRESS", help="of this machine's (default: 127.0.0.1)"),
     argument("--unixsocket", metavar="PATH", help="listen on a Unix socket, too"),
     argument("--requirepass", metavar="PASSWORD",
              help="what clients must say (or RAXLOG_PASSWORD in the environment)"),
     argument("--redis-version", choices=("5.0", "7.0", "7.2"), default="7.2",
              help="which Redis takes what DUMP returns (default: 7.2, as 8.4 does)"),
     argument("--maxclients", type=whole, default=10_000, metavar="N",
              help="clients at the same time (default: 10000)"),
     *WRITING),
    """Serves the streams of a store to clients of Redis, in any language: the commands on streams and groups,
MULTI, publish and subscribe, and what clients send besides: keys that expire, strings, small lists. No
Redis clone: hashes, sets and scripts are refused. Other processes may use the store at the same time.
Ends with SIGTERM or Ctrl-C, once what has begun is committed.""",
    "raxlog serve events.rax --port 6380",
)
def _serve(args: argparse.Namespace) -> int:
    password = args.requirepass or os.environ.get("RAXLOG_PASSWORD")
    options = Options(host=args.bind, port=args.port, unix_socket=args.unixsocket, redis_version=args.redis_version,
                      clients=args.maxclients, password=password.encode() if password else None)
    with writing(args, create=True) as store:
        asyncio.run(_run(store, options))
    return DONE


async def _run(store: Store, options: Options) -> None:
    from ...resp.server import serve  # noqa: PLC0415

    loop, stopped = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    try:
        server = await serve(store, options)
    except OSError as error:
        raise CommandError(f"cannot listen on {options.host}:{options.port}: {error.strerror}", USAGE) from None
    print(f"serving {store.path} on {options.host}:{server.port}", file=sys.stderr, flush=True)
    await stopped.wait()
    await server.close()
