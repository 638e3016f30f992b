"""raxlog.taskiq: taskiq's own programs on a store, whichever of their workers is killed."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import pytest
import raxlog
from raxlog.taskiq import RaxlogBroker, RaxlogResultBackend
from taskiq import SmartRetryMiddleware, TaskiqDepends, TaskiqMessage, TaskiqMiddleware
from taskiq.api import run_receiver_task
from taskiq.depends.progress_tracker import ProgressTracker, TaskState
from taskiq.exceptions import ResultGetError, SendTaskError

DOCS = Path(__file__).parents[2] / "docs"
SOON = 20.0  # seconds: far more than any of this takes


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "s.rax"


def with_results(path: Path, ttl: float = 60.0, **options: Any) -> RaxlogBroker:
    return RaxlogBroker(path, **options).with_result_backend(RaxlogResultBackend(path, result_ttl=ttl))


@contextlib.asynccontextmanager
async def receiving(broker: RaxlogBroker, **options: Any) -> AsyncIterator[None]:
    """A worker in this process, from startup to shutdown."""
    await broker.startup()
    receiver = asyncio.create_task(run_receiver_task(broker, **options))
    try:
        yield
    finally:
        receiver.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await receiver
        await broker.shutdown()


async def until(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + SOON
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


def left(path: Path) -> tuple[int, int]:
    """Entries of the queue, and pending ones."""
    with raxlog.open(path) as store:
        stream = store.stream("taskiq")
        return len(stream), stream.group("workers").pending().total


@dataclasses.dataclass
class Order:
    item: str
    at: datetime


def test_tasks_run_and_their_results_come_back_as_they_were(path: Path) -> None:
    broker = with_results(path)
    ordered = Order("bøok", datetime(2026, 1, 1, tzinfo=UTC))

    @broker.task
    async def add_one(value: int) -> int:
        return value + 1

    @broker.task
    def order() -> Order:
        return ordered

    @broker.task
    async def fail() -> None:
        raise ValueError("no")

    @broker.task
    async def work(progress: Annotated[ProgressTracker[str], TaskiqDepends()]) -> None:
        await progress.set_progress(TaskState.STARTED, "50 %")

    @broker.task
    async def refuse() -> object:
        return object()

    async def main() -> None:
        async with receiving(broker):
            tasks = [await add_one.kiq(n) for n in range(300)]
            assert [(await task.wait_result(0.01, SOON)).return_value for task in tasks] == list(range(1, 301))
            assert (await (await order.kiq()).wait_result(0.01, SOON)).return_value == ordered
            failed = await (await fail.kiq()).wait_result(0.01, SOON)
            assert failed.is_err
            assert isinstance(failed.error, ValueError)
            assert str(failed.error) == "no"
            task = await work.kicker().with_task_id("ä" * 5_000).kiq()
            await task.wait_result(0.01, SOON)
            assert await broker.result_backend.get_progress("another") is None
            progress = await task.get_progress()
            assert (progress.state, progress.meta) == ("STARTED", "50 %")
            task = await refuse.kiq()
            await until(lambda: left(path) == (0, 0))
            assert not await task.is_ready()
            with pytest.raises(ResultGetError):
                await task.get_result()

    asyncio.run(main())
    assert raxlog.check(path).ok
    with raxlog.open(path) as store:
        assert store.stream("taskiq").group("workers").consumers() == []


def test_delayed_tasks_and_retries_come_later(path: Path) -> None:
    broker = with_results(path).with_middlewares(SmartRetryMiddleware(default_retry_count=3, default_delay=0.2))
    runs: list[float] = []

    @broker.task(retry_on_error=True)
    async def once_more() -> int:
        runs.append(time.monotonic())
        if len(runs) < 2:
            raise ValueError("not yet")
        return 5

    @broker.task(delay=0.2)
    async def later() -> float:
        return time.time()

    async def main() -> None:
        async with receiving(broker):
            assert (await (await once_more.kiq()).wait_result(0.01, SOON)).return_value == 5
            assert runs[1] - runs[0] >= 0.2
            began = time.time()
            result = await (await later.kiq()).wait_result(0.01, SOON)
            assert result.return_value - began >= 0.2
            at_once = await later.kicker().with_labels(delay=None).kiq()
            assert (await at_once.wait_result(0.01, SOON)).return_value
            for wrong in ("soon", -1, float("nan")):
                with pytest.raises(SendTaskError):
                    await later.kicker().with_labels(delay=wrong).kiq()

    asyncio.run(main())
    assert left(path) == (0, 0)


def test_what_waits_behind_a_long_task_is_run_by_another_worker_and_the_rest_given_back(path: Path) -> None:
    ran: list[tuple[str, int]] = []
    brokers = {name: RaxlogBroker(path) for name in ("busy", "idle")}
    ends = asyncio.Event()

    def task_of(name: str, broker: RaxlogBroker) -> Any:
        async def work(n: int) -> None:
            ran.append((name, n))
            if n == 500:
                await ends.wait()

        return broker.register_task(work, "work")

    tasks = {name: task_of(name, broker) for name, broker in brokers.items()}

    async def main() -> None:
        async with receiving(brokers["busy"], max_async_tasks=1):
            for n in range(700):
                await tasks["busy"].kiq(n)
            await until(lambda: ("busy", 500) in ran)
            async with receiving(brokers["idle"]):
                await until(lambda: len(ran) == 700)
                for n in range(700, 800):
                    await tasks["idle"].kiq(n)
        ends.set()
        async with receiving(brokers["idle"]):
            await until(lambda: left(path) == (0, 0))

    asyncio.run(main())
    counts = Counter(n for _, n in ran)
    assert set(counts) == set(range(800))
    assert max(counts.values()) <= 2


def test_what_taskiq_never_acknowledges_comes_again_and_at_last_is_a_dead_letter(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("asyncio"), "disabled", True)  # pytest keeps what is logged, with the message
    broker = RaxlogBroker(path, lease=0.5, max_deliveries=1)
    ran: list[int] = []

    class Refuses(TaskiqMiddleware):
        def pre_execute(self, message: TaskiqMessage) -> TaskiqMessage:
            if message.args == [7]:
                raise RuntimeError("refused")
            return message

    broker.add_middlewares(Refuses())

    @broker.task
    async def work(n: int) -> None:
        ran.append(n)

    async def main() -> None:
        async with receiving(broker):
            await work.kiq(7)
            with raxlog.open(path) as store:
                letters = store.stream("taskiq").group("workers").dead_letters
                for n in range(100, 500):  # taskiq refers to a message until it has others
                    await work.kiq(n)
                    if list(letters):
                        break
                    await asyncio.sleep(0.05)
                (letter,) = letters
                assert (letter.reason, letter.deliveries) == ("exhausted", 2)
                assert '"args":[7]' in letter.entry.fields["data"].replace(" ", "")
            await until(lambda: left(path) == (0, 0))

    asyncio.run(main())
    assert 7 not in ran
    assert len(ran) == len(set(ran)) > 5


def test_results_expire_and_leave_nothing_behind(path: Path) -> None:
    async def main() -> None:
        broker = with_results(path, ttl=0.05)

        @broker.task
        async def add_one(value: int) -> int:
            return value + 1

        async with receiving(broker):
            for n in range(100):
                task = await add_one.kiq(n)
                await asyncio.sleep(0.003)
            await until(lambda: left(path) == (0, 0))
            await asyncio.sleep(0.06)
            assert not await task.is_ready()

    asyncio.run(main())
    report = raxlog.check(path)
    assert report.ok
    assert report.counts["results"] < 50


TASKS = """
import asyncio, os, time
from raxlog.taskiq import RaxlogBroker, RaxlogResultBackend

broker = RaxlogBroker("s.rax", lease=0.6).with_result_backend(RaxlogResultBackend("s.rax"))

def note(what):
    with open("ran", "a") as file:
        file.write(f"{what} {os.getpid()}\\n")

@broker.task
async def short(n: int) -> int:
    note(n)
    return n

@broker.task
async def hang_once() -> None:
    note("hang")
    if not os.path.exists("hung"):
        open("hung", "w").close()
        await asyncio.sleep(1000)

@broker.task
async def block() -> None:
    note("block")
    time.sleep(1.5)   # the loop stands still for longer than the lease

@broker.task
def long() -> None:
    note("long")
    time.sleep(1.5)
"""


@contextlib.contextmanager
def workers(folder: Path, *options: str, loop: str = "uvloop") -> Iterator[subprocess.Popen[bytes]]:
    """taskiq's own workers, ended as by Ctrl-C."""
    code = "import sys, runpy; sys.modules['uvloop'] = None; runpy.run_module('taskiq', run_name='__main__')"
    module = ["-m", "taskiq"] if loop == "uvloop" else ["-c", code]
    with open(folder / "log", "ab") as log:
        worker = subprocess.Popen([sys.executable, *module, "worker", "tasks:broker", *options], cwd=folder,
                                  stdout=log, stderr=log, start_new_session=True)
    try:
        yield worker
        if worker.poll() is None:
            worker.send_signal(signal.SIGTERM)
        assert worker.wait(SOON) == 0
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(worker.pid, signal.SIGKILL)
        worker.wait()


def test_the_tasks_of_a_worker_that_is_killed_are_done_by_others(tmp_path: Path) -> None:
    (tmp_path / "tasks.py").write_text(TASKS)
    send = ("import asyncio, tasks\n"
            "async def main():\n"
            "    await tasks.broker.startup()\n"
            "    for task in (tasks.hang_once, tasks.block, tasks.long):\n"
            "        await task.kiq()\n"
            "    await asyncio.gather(*(tasks.short.kiq(n) for n in range(200)))\n"
            "    await tasks.broker.shutdown()\n"
            "asyncio.run(main())\n")
    ran = tmp_path / "ran"

    def lines() -> list[list[str]]:
        return [line.split() for line in ran.read_text().splitlines()] if ran.exists() else []

    subprocess.run([sys.executable, "-c", send], cwd=tmp_path, check=True)
    with workers(tmp_path, "--workers", "2"):
        async def main() -> None:
            await until((tmp_path / "hung").exists)
            (killed,) = {int(pid) for what, pid in lines() if what == "hang"}
            os.kill(killed, signal.SIGKILL)
            await until(lambda: left(tmp_path / "s.rax") == (0, 0))

        asyncio.run(main())
    counts = Counter(what for what, _ in lines())
    killed = next(pid for what, pid in lines() if what == "hang")
    assert set(counts) == {"hang", "block", "long", *map(str, range(200))}
    assert counts["hang"] == 2
    for what in ("block", "long"):  # once, or by the killed one before
        assert [pid for one, pid in lines() if one == what and pid != killed][1:] == []
    assert raxlog.check(tmp_path / "s.rax").ok


@pytest.mark.parametrize(("loop", "number"), [("asyncio", signal.SIGTERM), ("uvloop", signal.SIGINT)])
def test_a_signal_ends_workers_that_are_idle_and_those_that_run_once_their_tasks_are_done(
    tmp_path: Path, loop: str, number: signal.Signals
) -> None:
    (tmp_path / "tasks.py").write_text(TASKS + """
@broker.task
async def slow() -> int:
    note("slow")
    await asyncio.sleep(1)
    note("done")
""")
    log, ran = tmp_path / "log", tmp_path / "ran"
    with workers(tmp_path, "--workers", "2", loop=loop) as worker:
        asyncio.run(until(lambda: log.exists() and log.read_text().count("Listening started") == 2))
        time.sleep(2.5)  # so that nothing is left to do
        began = time.monotonic()
        worker.send_signal(number)
        assert worker.wait(SOON) == 0
        assert time.monotonic() - began < 4  # taskiq itself looks every second
    code = ("import asyncio, tasks\nasync def main():\n    await tasks.broker.startup()\n"
            "    await tasks.slow.kiq()\n    await tasks.broker.shutdown()\nasyncio.run(main())\n")
    with workers(tmp_path, "--workers", "1", loop=loop) as worker:
        subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True)
        asyncio.run(until(lambda: ran.exists() and "slow" in ran.read_text()))
        worker.send_signal(number)
        assert worker.wait(SOON) == 0
    assert "done" in ran.read_text()
    assert left(tmp_path / "s.rax") == (0, 0)


def test_a_task_whose_letter_is_refused_holds_up_no_other(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    broker = with_results(path, lease=0.5, max_deliveries=1)

    @broker.task
    async def add_one(value: int) -> int:
        return value + 1

    async def main() -> None:
        await broker.startup()
        with raxlog.open(path) as store:
            store.stream("taskiq.workers.dead").append({"n": 1})  # which is no dead letter
            await add_one.kiq(1)
            group = store.stream("taskiq").group("workers")
            (entry,) = group.read("gone")  # and is killed
        async with receiving(broker):
            await until(lambda: f"{entry.id} stays pending" in caplog.text)
            assert (await (await add_one.kiq(2)).wait_result(0.01, SOON)).return_value == 3
        assert left(path)[0] == 1

    asyncio.run(main())


def test_the_example_of_the_page_runs_as_it_stands(tmp_path: Path) -> None:
    page = (DOCS / "taskiq.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```python\n(.*?)```", page, re.S)
    command, program, printed = re.findall(r"```text\n\$ taskiq worker (.*) &\n\$ python (.*)\n(.*)\n```", page)[0]
    assert command.startswith("tasks:broker ")
    (tmp_path / program).write_text(example)
    with workers(tmp_path, *command.split()[1:]):
        run = subprocess.run([sys.executable, program], cwd=tmp_path, stdout=subprocess.PIPE, text=True, timeout=SOON,
                             check=True)
    assert run.stdout == printed + "\n"


def test_bad_input_is_refused(path: Path) -> None:
    for wrong in ({"lease": 0.4}, {"lease": float("nan")}, {"max_deliveries": 0}):
        with pytest.raises(raxlog.InvalidArgument):
            RaxlogBroker(path, **wrong)
    with pytest.raises(raxlog.InvalidArgument):
        RaxlogResultBackend(path, result_ttl=-1)
    with pytest.raises(raxlog.StoreClosed, match="startup"):
        RaxlogBroker(path).listen()
    with pytest.raises(raxlog.StoreClosed, match="startup"):
        asyncio.run(RaxlogResultBackend[int](path).is_result_ready("x"))
    assert not path.exists()


def test_without_taskiq_the_extra_is_named() -> None:
    code = "import sys; sys.modules['taskiq'] = None\nimport raxlog.taskiq"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "raxlog.NotInstalled: taskiq cannot be imported" in run.stderr
    assert "pip install 'raxlog[taskiq]'" in run.stderr


def test_a_listener_at_rest_takes_out_what_is_gone_and_stays_at_rest(path: Path) -> None:
    async def main() -> None:
        broker = RaxlogBroker(path, lease=0.5)

        @broker.task
        async def task() -> None:
            """Does nothing."""

        with raxlog.open(path) as store:
            async with receiving(broker):
                group = store.stream("taskiq").group("workers")
                store.stream("taskiq").append({"data": "x"})
                group.read("died", 1)
                store.stream("taskiq").trim(maxlen=0)
                used, began = time.process_time(), time.monotonic()
                await until(lambda: group.info().gone or group.info().pending == 0)
                await asyncio.sleep(1)
                assert time.process_time() - used < 0.3 + (time.monotonic() - began) / 5
                assert group.pending().total == 0

    asyncio.run(main())
