"""The page: who may ask, what it is given, and every control pressed in a browser."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import forkserver
import httpx
import pytest
from browser_pages import CHROMIUM, browser
from cli_runs import CLI, Run, one_line
from elsewhere import Do
from raxlog.storage.errors import InvalidArgument
from raxlog.tools.ui import web
from raxlog.tools.ui.watch import Watch
from starlette.testclient import TestClient

pytest_plugins = ["cli_fixtures", "elsewhere_fixtures"]

HOSTILE = "</script><img src=x onerror=\"document.title='taken'\">\x1b[31m"
FILL = f"""
orders = store.stream("orders")
for name in ("billing", "shipping"):
    orders.create_group(name, start="0", create_stream=True)
store.bind("orders.>", "orders")
store.publish("orders.eu.new", {{"item": {HOSTILE!r}, "raw": b"\\xff\\0"}})
orders.extend([{{"item": "book", "n": n}} for n in range(100)], ids=[f"2000000000000-{{n}}" for n in range(100)])
store.stream({HOSTILE!r}).append({{{HOSTILE!r}: {HOSTILE!r}}})
store.stream({HOSTILE!r}).create_group({HOSTILE!r}, "0").read({HOSTILE!r})
orders.group("billing").read("anna", count=5)
store.stream("orders.billing.dead").append({{"$dead": "{{}}"}})
"""
TOKEN = "a-token"


@pytest.fixture
def shop(elsewhere: Do, path: Path) -> Path:
    """A store with hostile names and values."""
    elsewhere(FILL)
    return path


@pytest.fixture
def client(shop: Path) -> Iterator[TestClient]:
    """A client that bears the token."""
    watch = Watch(str(shop))
    app = web.Site(watch, lambda: True).app(web.access("127.0.0.1", TOKEN, ["queue.example.org"]))
    yield TestClient(app, base_url="http://127.0.0.1:8642", headers={"Authorization": f"Bearer {TOKEN}"})
    watch.close()


@pytest.fixture
def served(shop: Path) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """The address that ``raxlog web`` prints, and its process."""
    with forkserver.Popen([*CLI, "web", str(shop), "--port", "0"], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          text=True) as child:
        assert child.stdout is not None
        yield child.stdout.readline().strip(), child
        child.kill()


PATHS = ("/", "/events", "/entries?stream=orders", "/metrics", "/nowhere")


@pytest.mark.parametrize("address", PATHS)
def test_a_foreign_host_a_foreign_origin_and_no_token_are_refused(client: TestClient, address: str) -> None:
    for host in ("evil.example", "evil.example:8642", "127.0.0.1.evil.example", "", "localhost.evil", "192.0.2.1",
                 "[::2]", "127.0.0.1@evil.example"):
        assert client.get(address, headers={"Host": host}).status_code == 421, host
    for origin in ("http://evil.example", "null", "http://127.0.0.1:1", "http://localhost:8642", "", "file://"):
        assert client.get(address, headers={"Origin": origin}).status_code == 403, origin
    for given in ("", "Bearer", "Bearer wrong", f"Basic {TOKEN}", "Bearer \xff", f"Bearer {TOKEN}x"):
        assert client.get(address, headers={"Authorization": given.encode("latin-1")}).status_code == 401, given
    assert client.get(address, params={"token": "wrong"}, headers={"Authorization": ""}).status_code == 401


def test_the_token_in_the_address_becomes_a_cookie_of_this_site_and_port(client: TestClient) -> None:
    answer = client.get("/", params={"token": TOKEN}, headers={"Authorization": ""}, follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    cookie = answer.headers["set-cookie"]
    assert cookie.startswith(f"raxlog-8642={TOKEN};")
    assert {"httponly", "samesite=strict"} <= {part.strip().lower() for part in cookie.split(";")}
    assert client.get("/", headers={"Authorization": ""}).status_code == 200
    for host in ("localhost:9000", "127.0.0.1", "[::1]:8642", "queue.example.org", "QUEUE.example.org:80"):
        assert client.get("/", headers={"Host": host, "Origin": f"http://{host}"}).status_code == 200


def test_nothing_but_reading_is_served(client: TestClient) -> None:
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        for address in PATHS[:-1]:
            assert client.request(method, address).status_code == 405
    assert client.head("/").status_code == 200


def test_another_address_than_loopbacks_needs_a_token(raxlog_cli: Run, shop: Path) -> None:
    for address in ("0.0.0.0", "::", "192.0.2.7", "queue.example.org"):
        with pytest.raises(InvalidArgument, match="--token"):
            web.access(address, None, [])
        status, _, err = raxlog_cli("web", str(shop), "--bind", address)
        assert (status, "--token" in one_line(err)) == (2, True)
    wide = web.access("0.0.0.0", TOKEN, ["queue.example.org"])
    for host, refused in (("192.0.2.7:8642", False), ("queue.example.org", False), ("evil.example", True)):
        assert (wide.refusal(httpx.Headers({"host": host}), TOKEN) is not None) == refused  # type: ignore[arg-type]
    assert len(web.access("::1", None, []).token) >= 32
    assert web.access("127.0.0.1", None, []).token != web.access("127.0.0.1", None, []).token


def test_the_page_loads_nothing_from_elsewhere_and_puts_no_text_in_as_html(client: TestClient) -> None:
    answer = client.get("/")
    nonces = set(re.findall(r'nonce="([^"]+)"', answer.text))
    assert len(nonces) == 1
    assert f"script-src 'nonce-{nonces.pop()}'" in answer.headers["content-security-policy"]
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert not re.findall(r"https?://(?!www\.w3\.org/2000/svg)", answer.text)
    assert not re.findall(r"\.innerHTML|insertAdjacentHTML|document\.write|eval\(", answer.text)
    assert client.get("/").text != answer.text  # another nonce each time


@pytest.mark.parametrize("address", ["/", "/events", "/entries?stream=orders", "/metrics"])
def test_a_page_of_another_port_of_this_host_gets_nothing_into_its_own(client: TestClient, address: str) -> None:
    answer = client.get(address)
    assert answer.status_code == 200
    assert answer.headers["cross-origin-resource-policy"] == "same-origin"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["cache-control"] == "no-store"


def test_entries_by_place_subject_and_field(client: TestClient) -> None:
    def asked(**params: str) -> dict[str, object]:
        answer = client.get("/entries", params={"stream": "orders"} | params)
        assert answer.headers["content-type"] == "application/json"
        found: dict[str, object] = answer.json()
        return found

    def ids(**params: str) -> list[str]:
        return [entry[0] for entry in asked(**params)["entries"]]  # type: ignore[attr-defined]

    assert ids(reverse="1")[:2] == ["2000000000000-99", "2000000000000-98"]
    assert asked(reverse="1")["next"] == "2000000000000-49"
    assert ids(**{"from": "2000000000000-98"}) == ["2000000000000-98", "2000000000000-99"]
    assert len(ids(**{"from": "2033-05-18"})) == 50
    assert ids(field="n=17") == ["2000000000000-17"]
    [[_, _, fields, hexed]] = asked(subject="orders.*.new")["entries"]  # type: ignore[misc]
    assert ["item", HOSTILE.replace("\x1b", "\\x1b")] in fields  # type: ignore[has-type]
    assert any("ff 00" in line for line in hexed)  # type: ignore[has-type]
    for params in ({"from": "yesterday"}, {"subject": "a..b"}):
        assert client.get("/entries", params={"stream": "orders"} | params).status_code == 400
    assert client.get("/entries", params={"stream": "nowhere"}).status_code == 404


def test_metrics_are_those_of_the_command(client: TestClient, raxlog_cli: Run, shop: Path) -> None:
    page = client.get("/metrics?consumers=1").text
    _, out, _ = raxlog_cli("metrics", str(shop), "--consumers")
    assert [line for line in page.splitlines() if "_lag" in line] == [
        line for line in out.splitlines() if "_lag" in line]
    assert "raxlog_consumer_pending" in page
    assert "raxlog_consumer_pending" not in client.get("/metrics").text


def views(url: str, **params: str) -> Iterator[dict[str, object]]:
    """The events of a served page."""
    base, token = url.split("?token=")
    with httpx.stream("GET", f"{base}events", params=params, timeout=20,
                      headers={"Authorization": f"Bearer {token}"}) as answer:
        assert answer.status_code == 200
        for line in answer.iter_lines():
            if line.startswith("data: "):
                yield json.loads(line[6:])


def test_events_follow_the_store_and_ctrl_c_ends_it_all(served: tuple[str, subprocess.Popen[str]],
                                                        elsewhere: Do) -> None:
    url, child = served
    assert url.startswith("http://127.0.0.1:")
    coming = views(url, stream="orders", group="billing", order="name", filter="order")
    first = next(coming)
    assert [row[1] for row in first["rows"]] == [  # type: ignore[attr-defined]
        ["orders"], ["orders", "billing"], ["orders", "shipping"], ["orders.billing.dead"]]
    assert any(where == "orders / billing" for _, _, where, _ in first["wrong"])  # type: ignore[attr-defined]
    assert [name for name, _ in first["chosen"]["plots"]] == [  # type: ignore[index]
        "entries/s", "lag", "delivery latency, s"]
    assert first["chosen"]["consumers"][0][1][:2] == ["anna", "5"]  # type: ignore[index]
    elsewhere("orders.append({'n': 1}, id='2000000000001-0')")
    began = time.monotonic()
    assert next(one for one in coming if one["rows"][0][2][1] == "102")  # type: ignore[index]
    assert time.monotonic() - began < 4
    elsewhere("orders.group('billing').configure(max_in_flight=5); orders.schedule('nightly', {'n': 1}, every=86400)")
    after = next(one for one in coming if one["rows"][1][2][-2])  # type: ignore[index]
    assert [row[2][-2] for row in after["rows"][:2]] == [  # type: ignore[index]
        "1 schedule, next in 24h", "5/5 held (full)"]
    about = next(views(url, stream="orders"))["chosen"]
    assert [cells[0] for _, cells in about["schedules"]] == ["nightly"]  # type: ignore[index]
    port = url.split(":")[2].split("/")[0]
    busy = subprocess.run([*CLI, "web", "nowhere.rax", "--port", port], capture_output=True, check=False)
    assert (busy.returncode, "in use" in one_line(busy.stderr)) == (2, True)
    child.send_signal(signal.SIGINT)
    assert child.wait(10) == 0
    assert child.stderr is not None
    assert child.stderr.read() == ""


def test_a_page_over_a_store_that_is_not_there_says_so(tmp_path: Path) -> None:
    watch = Watch(str(tmp_path / "nowhere.rax"))
    site = web.Site(watch, lambda: True)
    client = TestClient(site.app(web.access("127.0.0.1", TOKEN, [])), base_url="http://localhost",
                        headers={"Authorization": f"Bearer {TOKEN}"})
    assert client.get("/").status_code == 200
    assert client.get("/metrics").status_code == 503
    assert client.get("/entries?stream=orders").status_code == 404


def test_without_the_extra_web_says_what_to_install(raxlog_cli: Run, shop: Path,
                                                    monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    status, _, err = raxlog_cli("web", str(shop))
    assert (status, "pip install 'raxlog[ui]'" in one_line(err)) == (2, True)


@pytest.mark.skipif(CHROMIUM is None, reason="missing oracle: chromium")
def test_every_control_of_the_page_in_a_browser(served: tuple[str, subprocess.Popen[str]], tmp_path: Path,
                                                elsewhere: Do) -> None:
    url, child = served
    with browser() as page:
        page.open(url)
        page.until("document.querySelectorAll('#rows tr').length >= 6")
        assert page.run("location.search") == ""  # the token has left the address
        assert "orders / billing" in page.run("at('wrong').innerText")
        for order in ("rate", "lag", "name"):
            page.run(f"at('order').value = '{order}'; at('order').onchange()")
            page.until("events.url.includes('order=' + at('order').value) && events.readyState === 1")
        page.run("at('filter').value = 'shipp'; at('filter').oninput()")
        page.until("document.querySelectorAll('#rows tr').length === 2")
        page.run("at('filter').value = ''; at('filter').oninput()")
        page.until("document.querySelectorAll('#rows tr').length >= 6")
        page.run("[...at('rows').children].find(row => row.innerText.includes('billing')).click()")
        page.until("at('title').textContent === 'orders / billing'")
        page.until("document.querySelectorAll('polyline').length === 3")
        page.until("at('consumers').innerText.includes('anna')")
        page.until("at('entries').children.length === 50")
        page.run("at('next').click()")
        page.until("at('entries').firstChild.innerText.startsWith('2000000000000-49')")
        page.run("at('from').value = '2000000000000-7'; at('browse').requestSubmit()")
        page.until("at('entries').firstChild.innerText.startsWith('2000000000000-7')")
        page.run("at('reverse').click(); at('from').value = ''; at('field').value = 'n=17'")
        page.run("at('browse').requestSubmit()")
        page.until("at('looked').textContent.startsWith('1 of 101')")
        page.run("at('field').value = ''; at('subject').value = 'orders.>'; at('browse').requestSubmit()")
        page.until("at('entries').innerText.includes('$subject=orders.eu.new')")
        for shown in ("item = </script>", "ff 00", "raw="):
            page.run("at('entries').firstChild.click()")
            assert shown in page.run("at('entries').innerText")
        page.run("at('subject').value = 'a..b'; at('browse').requestSubmit()")
        page.until("at('looked').textContent.includes('a..b')")
        page.run("at('close').click()")
        page.until("at('chosen').hidden && at('main').className === ''")
        page.run("press = new KeyboardEvent('keydown', {key: 'Enter'})")
        page.run("at('wrong').querySelector('tr[tabindex]').dispatchEvent(press)")
        page.until("!at('chosen').hidden")
        page.run("[...at('rows').children].find(row => row.innerText.includes('onerror')).click()")
        page.until("at('entries').innerText.includes('onerror')")
        assert page.run("document.images.length") == 0
        assert page.run("document.title") == "raxlog"
        elsewhere("orders.append({'n': 1}, id='2000000000001-0')")
        page.until("at('rows').innerText.includes('102')")
        assert page.run("at('schedules').hidden")
        elsewhere("orders.schedule('nightly', {'n': 1}, every=86400)")
        page.run("[...at('rows').children].find(row => row.firstChild.innerText === 'orders').click()")
        page.until("at('schedules').innerText.includes('nightly') && at('consumers').hidden")
        page.until("at('rows').innerText.includes('1 schedule, next in 24h')")
        page.picture(tmp_path / "page.png")
        assert (tmp_path / "page.png").stat().st_size > 10_000
        child.send_signal(signal.SIGTERM)
        assert child.wait(10) == 0
        page.until("at('head').className === 'lost'")


def test_a_port_is_bound_on_loopback_only_by_itself() -> None:
    with web.listen("127.0.0.1", 0) as bound:
        assert bound.getsockname()[0] == "127.0.0.1"
        assert bound.family == socket.AF_INET
    assert os.environ.get("RAXLOG_TOKEN") is None
