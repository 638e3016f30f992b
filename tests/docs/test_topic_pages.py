"""The Python of the pages that explain one topic each runs; what a page takes as given is set up here."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import raxlog
from page_runs import blocks, run_page
from spark_scans import spark_home

pytestmark = pytest.mark.docs
DOCS = Path(__file__).resolve().parents[2] / "docs"
OPEN = 'import raxlog\nstore = raxlog.open("events.rax")\n'
ORDERS = OPEN + 'store.stream("orders").extend({"item": "book", "qty": n} for n in range(10))\n'
LATER = """
import threading
def later(action, *arguments):      # so that a loop over what comes ends
    threading.Timer(0.3, action, arguments).start()
"""
BEFORE = {
    "asyncio": {
        1: 'store = await raxlog.aio.open("events.rax")\n',
        2: """import signal
class smtp:
    @staticmethod
    async def send(to):
        print(to)
await store.stream("mail").create_group("senders", "$", create_stream=True)
asyncio.get_running_loop().call_later(0.3, lambda: worker.stop())
""",
        3: 'store = await raxlog.aio.open("events.rax")\nbilling = store.stream("orders").group("billing")\n'
           'await store.stream("orders").append({"item": "pen"})\n',
    },
    "check-and-salvage": {0: ORDERS + "store.close()\n"},
    "jobs": {
        3: OPEN + 'mail = store.stream("mail").group("senders")\n',
        4: "store.close()\n",
        6: "from raxlog.crashtest import crash_point\nLEASE = 1\n",
    },
    "publish-subscribe": {
        0: ORDERS + LATER + "later(lambda: billing.close())\n",
        2: 'subscription = store.subscribe("orders.>")\nhandle, stop = print, raxlog.Stop()\n'
           "later(subscription.close)\n",
        3: 'other = store.subscribe("news")\n',
        4: "later(lambda: client.close())\n",
        5: "screen.close()\n",
    },
    "retention": {
        0: ORDERS + 'store.stream("events").append({"n": 1})\nstore.stream("jobs").append({"n": 1})\n',
        1: 'account = store.stream("account")\nreplay = lambda stream: sum(1 for _ in stream)\n',
    },
    "snapshots": {0: ORDERS},
}
INSTEAD = {
    "asyncio": {"timeout=5": "timeout=0.1", "orders.follow()": "orders.follow(timeout=0.1)"},
    "jobs": {"worker.run()": "worker.run(burst=True)"},
    "publish-subscribe": {"10_000": "10", "timeout=1.0": "timeout=0.1"},
    "snapshots": {"s3://bucket/events": "cut", "/var/cache/events": "cache"},
}


@pytest.mark.parametrize("name", BEFORE)
def test_the_python_of_a_topic_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "backups").mkdir()
    assert run_page(DOCS / f"{name}.md", tmp_path, BEFORE[name], INSTEAD.get(name)) > 0


@pytest.mark.storm
def test_the_python_of_crash_testing_runs(
    require: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page's functions are put into modules, as it says they must be; with smaller numbers."""
    require("cc")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    broken, fixed, exploring, plugin, living, paying, paying_once, history = (
        block.text for block in blocks(DOCS / "crash-testing.md") if block.language == "python")
    (tmp_path / "shop_billing.py").write_text(f"{broken}\n\n{fixed}".replace("range(1, 13)", "range(1, 4)"),
                                              encoding="utf-8")
    for wanted, less in (("images=5000", "images=40"), ("rounds=200", "rounds=2"), ("images=2000", "images=20"),
                         ("rounds=50", "rounds=1"), ("most=500", "most=5"),
                         ('KillAt.system_call("all")', "KillAt.system_call([20, 40])")):
        assert wanted in exploring + plugin + living
        exploring, plugin, living = (text.replace(wanted, less) for text in (exploring, plugin, living))
    imports = "from shop_billing import check, workload\n"
    exec(imports + exploring)
    (tmp_path / "test_shop.py").write_text(f"import pytest\n{imports}{plugin}", encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--crash-budget", "5", "test_shop.py",
               "--basetemp", str(tmp_path / "temporary")]  # else it closes the common one for other users
    assert "1 passed" in subprocess.run(command, check=True, capture_output=True, text=True).stdout
    exec(history)
    module, call = living.split("\n\n\n")
    counts = "\n\ndef check(folder, acks):\n    with raxlog.open(folder / 'shop.rax') as store:\n" \
             "        assert len(store.stream('orders')) >= max(acks, default=0)\n"
    (tmp_path / "shop_living.py").write_text(f"import raxlog\n{module}\n{counts}", encoding="utf-8")
    names: dict[str, object] = {}
    exec("from raxlog.crashtest import Interrupts, explore\nfrom shop_living import check, workload\n"
         f"report = {call}", names)
    assert getattr(names["report"], "passed", False)
    (tmp_path / "shop_paying.py").write_text(f"{paying}\n\n{paying_once}", encoding="utf-8")
    exec("from raxlog.crashtest import Schedules, explore\nfrom shop_paying import check, first, prepare, second\n"
         "report = explore([first, second], check, modes=[Schedules(20, prepare=prepare)])", names)
    assert getattr(names["report"], "passed", False)


@pytest.mark.spark
def test_the_python_of_spark_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pyspark = pytest.importorskip("pyspark")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    monkeypatch.setenv("SPARK_HOME", spark_home())
    before = {
        0: ORDERS + 'store.snapshot("backup.rax")\n',
        2: "query.awaitTermination()\ndf = orders.drop('id_ms')\n",
        3: 'history = spark.sql("select timestamp_millis(id) at, id n from range(30)")\n',
        4: 'rows = spark.readStream.format("raxlog").schema("item string").option("path", "events.rax")'
           '.option("stream", "orders").option("startingOffsets", "earliest").load()\n',
    }
    options = '{"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false", ' \
              '"spark.sql.shuffle.partitions": "2"}'
    instead = {"session()": f'session("local[2]", {options})',
               '"checkpointLocation", "checkpoint").start()':
               '"checkpointLocation", "checkpoint2").trigger(availableNow=True).start().awaitTermination()'}
    assert run_page(DOCS / "spark.md", tmp_path, before, instead) == 5
    with raxlog.open("events.rax") as store:
        assert [len(store.stream(name)) for name in ("orders", "copy", "history")] == [20, 20, 30]
    [sql] = (block.text for block in blocks(DOCS / "spark.md") if block.language == "sql")
    create, insert, select = sql.replace("/data/events.rax", str(tmp_path / "events.rax")).split(";")[:3]
    spark = pyspark.sql.SparkSession.getActiveSession()
    assert spark is not None
    try:
        spark.sql(create)
        spark.sql(insert)
        assert [tuple(row) for row in spark.sql(select).collect()] == [("book", 7)]
    finally:  # the tests that follow begin a Java with settings of their own
        spark.stop()
        pyspark.SparkContext._gateway.shutdown()
        pyspark.SparkContext._gateway = pyspark.SparkContext._jvm = None
