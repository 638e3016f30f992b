"""Frameworks on `raxlog serve`, unchanged: workers are killed, the server is killed, and every task is done.

RAXLOG_FRAMEWORKS names a Python that has the packages taskiq-redis, faststream[redis] and walrus; RAXLOG_TASKS says how
many tasks. Of each framework three workers run; one of them is killed every second and begun again, the server twice.
"""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

_COMMON = """
import asyncio, os, sys, time, redis
URL, DONE = sys.argv[1], sys.argv[2]
def record(n):
    with open(f"{DONE}/{os.getpid()}", "a") as file:
        file.write(f"{n}\\n")
def again(call):
    while True:
        try:
            return call()
        except (redis.ConnectionError, redis.TimeoutError):
            time.sleep(0.1)
async def sent(make):
    for n in range(int(sys.argv[3])):
        while True:
            try:
                await make(n)
                break
            except Exception:  # of redis-py, or of the framework
                await asyncio.sleep(0.1)
"""
_TASKIQ = _COMMON + """
from taskiq.receiver import Receiver
from taskiq.acks import AcknowledgeType
from taskiq_redis import RedisStreamBroker
broker = RedisStreamBroker(URL, consumer_id="0", idle_timeout=1500, unacknowledged_lock_timeout=2, xread_block=200,
                           xread_count=10)
@broker.task(task_name="work")
async def work(n):
    await asyncio.sleep(0.005)
    record(n)
"""
_FASTSTREAM = _COMMON + """
from faststream import FastStream
from faststream.redis import RedisBroker, StreamSub
def begin():  # FastStream itself would begin behind what has been sent before
    try:
        redis.Redis.from_url(URL).xgroup_create("tasks of faststream", "g", id="0", mkstream=True)
    except redis.ResponseError:
        pass
again(begin)
broker = RedisBroker(URL)
app = FastStream(broker)
"""
_WALRUS = _COMMON + """
import walrus
database = walrus.Database.from_url(URL)
group = database.consumer_group("g", ["tasks of walrus"], consumer=str(os.getpid()))
"""
_PROGRAMS = {  # of each: how tasks are sent, and a worker
    "taskiq": (_TASKIQ + """
async def main():
    await broker.startup()
    await sent(lambda n: work.kiq(n))
    await broker.shutdown()
asyncio.run(main())
""", _TASKIQ + """
async def main():
    broker.is_worker_process = True
    await broker.startup()
    await Receiver(broker, ack_type=AcknowledgeType.WHEN_EXECUTED, max_async_tasks=5).listen(asyncio.Event())
asyncio.run(main())
"""),
    "FastStream": (_FASTSTREAM + """
async def main():
    async with broker:
        await sent(lambda n: broker.publish(n, stream="tasks of faststream"))
asyncio.run(main())
""", _FASTSTREAM + """
name = str(os.getpid())
@broker.subscriber(stream=StreamSub("tasks of faststream", group="g", consumer=name, last_id=">", polling_interval=200,
                                    max_records=5))
@broker.subscriber(stream=StreamSub("tasks of faststream", group="g", consumer=name + "c", min_idle_time=1500))
async def work(n: int):
    await asyncio.sleep(0.005)
    record(n)
asyncio.run(app.run())
"""),
    "walrus": (_WALRUS + """
async def add(n):
    database.xadd("tasks of walrus", {"n": n})
asyncio.run(sent(add))
""", _WALRUS + """
stream = getattr(group, "tasks_of_walrus", None) or group.streams["tasks of walrus"]
again(lambda: group.create(mkstream=True))
while True:
    found = [row for _, rows in again(lambda: group.read(count=10, block=200)) or [] for row in rows]
    found += again(lambda: stream.autoclaim(str(os.getpid()), 1500, count=10))[1]
    for sid, fields in found:
        time.sleep(0.005)
        record(int(fields[b"n"]))
        again(lambda: stream.ack(sid))
"""),
}


@pytest.mark.storm
@pytest.mark.parametrize("name", _PROGRAMS)
def test_every_task_is_done_though_workers_and_the_server_are_killed(name: str, tmp_path: Path) -> None:
    python, tasks, folder = os.environ.get("RAXLOG_FRAMEWORKS"), int(os.environ.get("RAXLOG_TASKS", "300")), tmp_path
    if not python:
        pytest.skip("RAXLOG_FRAMEWORKS names no Python that has the frameworks")
    rng = random.Random(1)
    send, work = _PROGRAMS[name]
    done = folder / f"done by {name}"
    done.mkdir()
    (folder / "send.py").write_text(send)
    (folder / "work.py").write_text(work)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    url = f"redis://127.0.0.1:{port}"
    with ExitStack() as stack, (folder / f"{name}.log").open("w") as log:

        def begin(*words: object) -> subprocess.Popen[bytes]:
            process = subprocess.Popen([str(word) for word in words], stdout=log, stderr=log)
            stack.callback(process.wait)
            stack.callback(process.kill)
            return process

        def serve() -> subprocess.Popen[bytes]:
            return begin(sys.executable, "-m", "raxlog", "serve", folder / f"{name}.rax", "--port", port)

        server = serve()
        time.sleep(1)
        started = time.monotonic()
        sender = begin(python, folder / "send.py", url, done, tasks)
        workers = [begin(python, folder / "work.py", url, done) for _ in range(3)]
        killed = servers = 0
        times: list[int] = []
        while len(set(times)) < tasks and time.monotonic() < started + 120:
            time.sleep(1)
            times = [int(line) for file in done.iterdir() for line in file.read_text().splitlines()]
            if servers < 2 and len(set(times)) > tasks * (servers + 1) // 3:
                server.send_signal(signal.SIGKILL)
                server.wait()
                time.sleep(0.5)
                server = serve()
                servers += 1
            one = rng.randrange(3)
            workers[one].kill()
            workers[one] = begin(python, folder / "work.py", url, done)
            killed += 1
        took = time.monotonic() - started
        print(f"{name}: {len(set(times))} tasks done in {took:.0f} s, {len(times) - len(set(times))} again; "
              f"{killed} kills of workers, {servers} of the server")
        assert sender.wait(10) == 0, (folder / f"{name}.log").read_text()[-2000:]
        assert set(times) == set(range(tasks))
