"""Watching a store: figures for Prometheus, plots, a dashboard in the terminal and a page. The extra raxlog[ui]."""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import sys

from ... import output
from .. import progress
from ..arguments import OF_STORE, OF_STREAM, argument, command, flag
from ..readers import seconds, whole
from ..status import DONE, NO, STORE, USAGE, CommandError
from ..stores import existing, reading

_NICE = 5  # a program that watches gives way to those that are watched


@command(
    "metrics", (*OF_STORE, flag("--consumers", "also the figures of each consumer")),
    """Prints the figures of the store, its streams, schedules and groups in Prometheus' text format. Needs
the extra raxlog[ui]. With --json, prints them in the form of store.status().""",
    "raxlog metrics events.rax",
    "raxlog metrics events.rax --consumers",
)
def _metrics(args: argparse.Namespace) -> None:
    from ...ui.exposition import exposition  # noqa: PLC0415

    with reading(args) as store:
        status = store.status()
    if args.json:
        output.print_json(status.to_dict())
    else:
        output.print_text(exposition(status, args.consumers).removesuffix("\n"))


@command(
    "plot",
    (*OF_STREAM,
     argument("--out", metavar="FILE", help="a picture: .png, .svg or .pdf (default: the terminal)"),
     argument("--seconds", type=seconds, default=30.0, metavar="N",
              help="how long to look (default: 30; Ctrl-C ends it)"),
     argument("--every", type=seconds, default=1.0, metavar="N", help="seconds between two looks (default: 1)")),
    """Looks at the stream for a time, then plots its throughput, and the lag and the delivery latency of
its groups. With --json, prints the samples: time, value (of the stream its rate, of a group its
lag), latency.""",
    "raxlog plot events.rax orders --seconds 60 --out orders.png",
)
def _plot(args: argparse.Namespace) -> None:
    from ...ui import extra, plot  # noqa: PLC0415
    from ...ui.watch import Watch  # noqa: PLC0415

    if args.out is not None:
        extra.require("--out", "matplotlib")
        if not args.out.endswith((".png", ".svg", ".pdf")):
            raise CommandError(f"--out: {args.out!r} does not end with .png, .svg or .pdf", USAGE)
    with reading(args) as store:
        existing(store, args.stream)
    watch = Watch(args.store, keep=int(args.seconds / max(args.every, 0.01)) + 2)
    picture = None
    try:
        with progress.steps(args.store, {}, "TaskProgressColumn") as report, contextlib.suppress(KeyboardInterrupt):
            for looked, passed in plot.record(watch, args.seconds, max(args.every, 0.01)):
                picture = looked
                report("looking", int(passed * 10), int(args.seconds * 10))
        if picture is None or picture.status is None:
            raise CommandError("the store has not been looked at" if picture is None else picture.error, STORE)
        found = plot.series(watch, picture, args.stream)
    finally:
        watch.close()
    if args.out is not None:
        plot.draw(found, args.out)
    if args.json:
        output.print_json([{"name": name, "samples": [each._asdict() for each in samples]} for name, samples in found])
    elif args.out is None:
        columns, lines = shutil.get_terminal_size()
        output.print_text(*plot.charts(found, min(columns, 120), max(3, min(10, (lines - 6) // 3))))


@command(
    "top", OF_STORE,
    """A dashboard in the terminal: what is wrong on top (the oldest pending entries, growing lag, dead
letters), below it all streams and groups, and behind these their consumers, what is pending, and
the entries. It reads and never writes. The last line names the keys. With --json, prints what is
wrong once; exit status 1 if something is.""",
    "raxlog top events.rax",
)
def _top(args: argparse.Namespace) -> int:
    from ...ui import extra, view  # noqa: PLC0415
    from ...ui.watch import Watch  # noqa: PLC0415

    watch = Watch(args.store)
    try:
        if args.json:
            picture = watch.look()
            if picture.status is None:
                raise CommandError(picture.error, STORE)
            wrong = view.view(watch, picture).wrong
            output.print_json([trouble._asdict() for trouble in wrong])
            return NO if wrong else DONE
        if not (sys.stdin.isatty() and sys.stdout.isatty()):
            raise CommandError("top needs a terminal; 'raxlog metrics' prints figures", USAGE)
        extra.require("top", "textual")
        from ...ui.top import Top  # noqa: PLC0415

        os.nice(_NICE)
        Top(watch).run()
    finally:
        watch.close()
    return DONE


@command(
    "web",
    (*OF_STORE,
     argument("--port", type=whole, default=8642, metavar="N", help="where it listens (default: 8642; 0: any)"),
     argument("--bind", default="127.0.0.1", metavar="ADDRESS", help="of this machine's (default: 127.0.0.1)"),
     argument("--host", action="append", default=[], metavar="NAME",
              help="a name under which the page may be opened besides; repeatable"),
     argument("--token", metavar="TOKEN", help="what requests must bear (or RAXLOG_TOKEN in the environment)")),
    """Serves a page that shows the store live: what is wrong, streams and groups, plots of rate, lag and
delivery latency, the entries; and /metrics for Prometheus. It reads and never writes. The address
that is printed bears the token, a new one at each start if none is given; --bind of another address
than loopback's needs one given. Ends with SIGTERM or Ctrl-C.""",
    "raxlog web events.rax",
    "raxlog web events.rax --bind 192.0.2.7 --token 9f86d081884c7d65",
)
def _web(args: argparse.Namespace) -> int:
    from ...ui import extra  # noqa: PLC0415
    from ...ui.watch import Watch  # noqa: PLC0415

    extra.require("the page", "starlette", "uvicorn", "prometheus_client")
    import asyncio  # noqa: PLC0415

    from ...ui import web  # noqa: PLC0415

    allowed = web.access(args.bind, args.token or os.environ.get("RAXLOG_TOKEN"), args.host)
    try:
        bound = web.listen(args.bind, args.port)
    except OSError as error:
        raise CommandError(f"cannot listen on {args.bind}:{args.port}: {error.strerror}; --port names another",
                           USAGE) from None
    host = f"[{args.bind}]" if ":" in args.bind else args.bind
    url = f"http://{host}:{bound.getsockname()[1]}/?token={allowed.token}"
    output.answer(args.json, {"url": url}, url)
    sys.stdout.flush()
    os.nice(_NICE)
    watch = Watch(args.store)
    try:
        asyncio.run(web.serve(watch, bound, allowed))
    finally:
        watch.close()
    return DONE
