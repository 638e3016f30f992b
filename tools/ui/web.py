"""The page: a store in the browser, by starlette and uvicorn, read-only, from one file, live by server-sent events.

    GET /?token=…   sets a cookie and leads to /        GET /events    the view, and one stream or group, as it changes
    GET /           the page                            GET /entries   a page of entries
                                                        GET /metrics   Prometheus' text

Each request must bear the token (the cookie, ``Authorization: Bearer``, or in the address), name in Host an address or
a name of this server, and, where it has an Origin, come from the page itself: so no other site in the same browser can
ask, not even under a name that it lets point here. All texts are made by view.py; the page puts them in as text.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import json
import secrets
import signal
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from importlib import resources
from typing import NamedTuple

import uvicorn
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from ...storage.errors import InvalidArgument, RaxlogError
from .. import output
from . import browser, view
from .exposition import exposition
from .watch import NO_KEY, Key, Picture, Sample, Watch

_ROWS, _WRONG, _ENTRIES, _POINTS, _MOST = 200, 50, 50, 120, 20_000  # what is sent at a time; characters of a value
_AT_REST = 10.0  # seconds after which ages are sent again though nothing has happened
_POLICY = ("default-src 'none'; script-src 'nonce-{0}'; style-src 'nonce-{0}'; connect-src 'self'; img-src data:; "
           "base-uri 'none'; form-action 'none'; frame-ancestors 'none'")

_SAFE = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer",
         "Cross-Origin-Resource-Policy": "same-origin"}  # cookies are sent for pages of other ports of this host, too


class Access(NamedTuple):
    """Who may ask: bearers of the token, under these names in Host; an address too where the server listens on all."""

    token: str
    hosts: frozenset[str]
    any_address: bool

    def refusal(self, headers: Headers, token: str) -> Response | None:
        """The answer to a request that is refused."""
        host = headers.get("host", "")
        name = _host_name(host)
        if name not in self.hosts and not (self.any_address and _is_address(name)):
            return PlainTextResponse("this Host is not served here; --host NAME allows it", 421)
        if headers.get("origin", f"http://{host}") not in (f"http://{host}", f"https://{host}"):
            return PlainTextResponse("requests from other sites are refused", 403)
        kind, _, bearer = headers.get("authorization", "").partition(" ")
        given = token or (bearer if kind.lower() == "bearer" else "")
        if not hmac.compare_digest(given.encode("utf-8", "replace"), self.token.encode()):
            return PlainTextResponse("open the address that 'raxlog web' has printed: it bears the token", 401)
        return None


def access(address: str, token: str | None, names: list[str]) -> Access:
    """Who may ask a server that is bound to ``address``. InvalidArgument without a token, unless that is loopback's."""
    wide = _is_address(address) and ipaddress.ip_address(address).is_unspecified
    loops = address == "localhost" or (_is_address(address) and ipaddress.ip_address(address).is_loopback)
    if not loops and not token:
        raise InvalidArgument(f"the page is for this machine alone, unless it has a token: give --token with "
                              f"--bind {address}, or bind 127.0.0.1")
    hosts = {"127.0.0.1", "localhost", "::1"} if loops else {address}
    return Access(token or secrets.token_urlsafe(24), frozenset(hosts | {name.lower() for name in names}), wide)


def _host_name(host: str) -> str:
    """The name in a Host header, without the port."""
    name = host.partition("]")[0].removeprefix("[") if host.startswith("[") else host.partition(":")[0]
    return name.lower()


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


class Guard:
    """Refuses what may not ask, before anything else looks at it; only reads get through."""

    def __init__(self, app: ASGIApp, allowed: Access) -> None:
        self._app = app
        self._allowed = allowed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        request = Request(scope)
        in_address = request.query_params.get("token", "")
        cookie = f"raxlog-{(scope.get('server') or ('', 0))[1]}"  # cookies are shared by all ports
        refused = self._allowed.refusal(request.headers, in_address or request.cookies.get(cookie, ""))
        if refused is not None:
            await refused(scope, receive, send)
        elif in_address and request.url.path == "/":
            moved = RedirectResponse("/", 303, headers={"Referrer-Policy": "no-referrer"})
            moved.set_cookie(cookie, in_address, httponly=True, samesite="strict")
            await moved(scope, receive, send)
        else:
            await self._app(scope, receive, send)


class Site:
    """The page over a watch. ``ended()`` says when streams of events are to end."""

    def __init__(self, watch: Watch, ended: Callable[[], bool]) -> None:
        self._watch = watch
        self._ended = ended
        self._picture = watch.look()
        self._page = (resources.files(__package__) / "page.html").read_text("utf-8")

    def app(self, allowed: Access) -> ASGIApp:
        """The application, guarded."""
        routes = [Route(f"/{name}", endpoint) for name, endpoint in (
            ("", self._index), ("events", self._events), ("entries", self._entries), ("metrics", self._metrics))]
        return Guard(Starlette(routes=routes), allowed)

    async def look(self) -> None:
        """Look again and again, until it has ended."""
        while not self._ended():
            await asyncio.sleep(self._watch.pause)
            self._picture = await asyncio.to_thread(self._watch.look)

    async def _index(self, _: Request) -> Response:
        nonce = secrets.token_urlsafe(12)
        return Response(self._page.replace("NONCE", nonce), media_type="text/html",
                        headers=_SAFE | {"Content-Security-Policy": _POLICY.format(nonce)})

    async def _metrics(self, request: Request) -> Response:
        status = self._picture.status
        if status is None:
            return PlainTextResponse(output.one_line(self._picture.error), 503)
        return PlainTextResponse(exposition(status, request.query_params.get("consumers") == "1"),
                                 media_type="text/plain; version=0.0.4", headers=_SAFE)

    async def _events(self, request: Request) -> Response:
        return StreamingResponse(self._views(request), media_type="text/event-stream",
                                 headers=_SAFE | {"X-Accel-Buffering": "no"})

    async def _views(self, request: Request) -> AsyncIterator[str]:
        asked = request.query_params
        shown, seen, sent = view.NOTHING, None, -_AT_REST
        moved: tuple[object, ...] = ()
        while not (self._ended() or await request.is_disconnected()):
            picture, now = self._picture, asyncio.get_running_loop().time()
            if picture is not seen:
                seen = picture
                shown = view.view(self._watch, picture, asked.get("order", ""), asked.get("filter", ""), shown)
                before, moved = moved, (shown.basis, [trouble.where for trouble in shown.wrong])
                if moved != before or now - sent >= _AT_REST:
                    sent = now
                    document = self._document(picture, shown, asked.get("stream", ""), asked.get("group", ""))
                    yield f"data: {json.dumps(document)}\n\n"
            await asyncio.sleep(0.5)

    def _document(self, picture: Picture, shown: view.Overview, stream: str, group: str) -> dict[str, object]:
        status = picture.status
        rows = []
        for row in shown.rows[:_ROWS] if status else ():
            key = view.key_of(status, row) if status else NO_KEY
            rows.append((shown.levels.get(key, 0), _named(key), view.cells(self._watch, picture, row)))
        wrong = [(trouble.level, _named(trouble.key), trouble.where, trouble.what) for trouble in shown.wrong[:_WRONG]]
        return {"head": shown.head, "columns": view.COLUMNS, "wrong": wrong, "rows": rows,
                "more": max(0, len(shown.rows) - _ROWS), "chosen": self._chosen(picture, stream, group)}

    def _chosen(self, picture: Picture, stream: str, group: str) -> dict[str, object] | None:
        """The plots, and the consumers of the group, where one is asked for by the text of its name."""
        key = view.named(picture.status, stream, group)
        if key is None or picture.status is None:
            return None
        samples, (stream_found, found) = self._watch.samples(key), picture.find(key)
        plots = [("entries/s", _points(self._watch.samples((key[0], None)), "value"))]
        if found is not None:
            plots += [("lag", _points(samples, "value")), ("delivery latency, s", _points(samples, "latency"))]
        schedules = view.schedules(stream_found, picture.status.time) if stream_found and not found else []
        return {"plots": plots, "consumers": view.consumers(found, picture.status.time) if found else [],
                "schedules": schedules}

    async def _entries(self, request: Request) -> Response:
        asked, store = request.query_params, self._watch.store
        reverse, key = asked.get("reverse") == "1", view.named(self._picture.status, asked.get("stream", ""))
        if store is None or key is None:
            return PlainTextResponse("there is no such stream", 404)
        try:
            start = browser.place(asked.get("from", ""), reverse)
            wanted = browser.matcher(asked.get("subject", ""), asked.get("field", ""))
            page = await asyncio.to_thread(browser.page, store.stream(key[0]), start, reverse=reverse, count=_ENTRIES,
                                           wanted=wanted)
        except RaxlogError as error:
            return PlainTextResponse(output.one_line(str(error)), 400)
        entries = [(str(row.id), output.time_of(row.id), [(name, value[:_MOST]) for name, value in browser.fields(row)],
                    browser.hex_lines(row, 512)) for row in page.entries]
        document = {"entries": entries, "next": page.next and str(page.next), "looked_at": page.looked_at,
                    "damaged": page.damaged}
        return Response(json.dumps(document), media_type="application/json", headers=_SAFE)


def _named(key: Key | None) -> list[str]:
    """The names of a stream and of its group, as the page shows and asks for them."""
    return [output.text(name) for name in key or () if name is not None]


def _points(samples: list[Sample], what: str) -> list[tuple[float, float]]:
    """A series as points: seconds before now, and the value."""
    span = samples[-1].time - samples[0].time if samples else 0.0
    values = view.resampled(samples, _POINTS, what)
    return [(round(span * at / max(1, len(values) - 1) - span, 2), value) for at, value in enumerate(values)]


def listen(address: str, port: int) -> socket.socket:
    """A socket that is bound there. OSError where the port is in use."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    return socket.create_server((address, port), family=family)


class _Server(uvicorn.Server):
    """Uvicorn's, which else raises again, once it has ended, the signal that has ended it."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def serve(watch: Watch, bound: socket.socket, allowed: Access) -> None:
    """Serve the page until SIGINT or SIGTERM."""
    ended = asyncio.Event()
    site = Site(watch, ended.is_set)
    server = _Server(uvicorn.Config(site.app(allowed), log_level="warning", lifespan="off", access_log=False,
                                    server_header=False, timeout_graceful_shutdown=2))

    def end() -> None:
        ended.set()
        server.should_exit = True

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, end)
    looking = asyncio.create_task(site.look())
    await server.serve(sockets=[bound])
    looking.cancel()
