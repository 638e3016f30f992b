"""The pictures of 'Watching a queue': ``python docs/watching_pictures.py`` makes a busy store and takes them.

    top.svg  top-wide.svg  top-group.svg  top-entries.svg    raxlog top, by textual's own screenshots
    plot.svg                                                 raxlog plot
    page.png                                                 raxlog web, where Chromium is

Traffic is random, so no two runs draw the same.
"""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS.parent / "tests" / "support" / "programs"))

from browser_pages import CHROMIUM, browser  # noqa: E402
from raxlog.tools.ui.top import Top  # noqa: E402
from raxlog.tools.ui.watch import Watch  # noqa: E402

SHOP = """
import random, sys, time, raxlog
with raxlog.open(sys.argv[1], encoding="utf-8", durability="relaxed") as store:
    orders, mail, payments = map(store.stream, ("orders", "mail", "payments"))
    for stream, groups in ((orders, ("billing", "shipping", "audit")), (mail, ("senders",)), (payments, ("ledger",))):
        for group in groups:
            stream.create_group(group, start="0")
    past = int((time.time() - 840) * 1000)
    payments.extend([{"amount": str(n)} for n in range(40)], ids=[f"{past + n * 100}-0" for n in range(40)])
    payments.group("ledger").read("nightly", count=6)
    store.stream("mail.senders.dead").extend([{"$dead": '{"reason": "failed"}', "to": "x@example.org"}] * 3)
    mail.defer({"to": "ben@example.org"}, delay=3600)
    store.bind("orders.>", "orders")
    chance, n = random.Random(1), 0
    while True:
        for _ in range(chance.randrange(1, 6)):
            item, country = chance.choice(["book", "atlas", "globe"]), chance.choice(["eu", "us"])
            store.publish(f"orders.{country}.new", {"item": item, "qty": str(chance.randrange(9) + 1)})
        if n % 7 == 0:
            mail.append({"to": "ann@example.org"})
        for stream, group, name in ((orders, "billing", f"anna-{n % 2}"), (orders, "audit", "log"),
                                    (mail, "senders", "smtp")):
            taken = stream.group(group).read(name, count=20)
            stream.group(group).ack(*[entry.id for entry in taken])
        if n % 3 == 0:
            orders.group("shipping").read("ben", count=2)
        n += 1
        time.sleep(0.03 + 0.05 * (n % 100 > 50))
"""


async def take(path: str, target: Path, seconds: float) -> None:
    """The pictures of the terminal, after so many seconds of watching."""
    for name, size, keys in (("top", (80, 24), ""), ("top-wide", (200, 50), ""),
                             ("top-group", (80, 24), "down down down enter"), ("top-entries", (80, 24), "e")):
        watch = Watch(path)
        app = Top(watch)
        async with app.run_test(size=size) as pilot:
            await pilot.pause(seconds)
            await pilot.press("home", *keys.split())
            await pilot.pause(1.5)
            text = app.export_screenshot(title=f"raxlog top {Path(path).name}")
        watch.close()
        text = re.sub(r"\s+@font-face \{.*?\}", "", text, flags=re.S).replace(path, "/srv/shop.rax")
        (target / f"{name}.svg").write_text(text, encoding="utf-8")


def web(path: str, target: Path, seconds: float) -> None:
    """The picture of the page."""
    words = [sys.executable, "-m", "raxlog", "web", path, "--port", "0"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as served:
        try:
            assert served.stdout is not None
            url = served.stdout.readline().strip()
            with browser() as page:
                page.open(url, 1280, 800)
                page.until("typeof at === 'function' && at('rows').children.length > 6")
                time.sleep(seconds)
                page.run("[...at('rows').children].find(row => row.innerText.includes('shipping')).click()")
                page.until("at('entries').children.length && document.querySelectorAll('polyline').length == 3")
                page.run(f"at('head').textContent = at('head').textContent.replace({path!r}, '/srv/shop.rax')")
                page.picture(target / "page.png")
        finally:
            served.terminate()


def main(target: Path, seconds: float) -> None:
    """Take all of them into a folder."""
    with tempfile.TemporaryDirectory(prefix="raxlog-pictures-") as folder:
        path = str(Path(folder, "shop.rax"))
        with subprocess.Popen([sys.executable, "-c", SHOP, path]) as shop:
            try:
                time.sleep(1)
                asyncio.run(take(path, target, seconds))
                subprocess.run([sys.executable, "-m", "raxlog", "plot", path, "orders", "--seconds", str(seconds),
                                "--out", str(target / "plot.svg")], check=True)
                if CHROMIUM is not None:
                    web(path, target, seconds)
            finally:
                shop.kill()


if __name__ == "__main__":
    os.environ["COLUMNS"] = "80"
    main(DOCS / "pictures", 20)
