"""The door beside a redis-server that flushes each commit: durable XADDs a second, in turns, and their ratio.

    python tests/support/programs/door_rates.py [SECONDS] [FOLDER]      env RAXLOG_REDIS_82: the redis-server

Both write to the same disk: FOLDER, by default /var/tmp. Clients are threads of one process, so that process takes a
part of the processor's time from both alike.
"""

from __future__ import annotations

import os
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path

_ROUNDS = 5
_XADD = b"*5\r\n$4\r\nXADD\r\n$1\r\ns\r\n$1\r\n*\r\n$4\r\nitem\r\n$64\r\n" + b"x" * 64 + b"\r\n"
_LOADS = {"pipelines of 100, 1 client": (100, 1), "pipelines of 100, 4 clients": (100, 4),
          "one by one, 50 clients": (1, 50)}


def rate(port: int, seconds: float, pipeline: int, clients: int) -> float:
    """Appends a second that are answered."""
    counts = [0] * clients
    end = time.monotonic() + seconds

    def load(number: int) -> None:
        with socket.create_connection(("127.0.0.1", port)) as wire:
            while time.monotonic() < end:
                wire.sendall(_XADD * pipeline)
                answered = 0
                while answered < 2 * pipeline:  # lines
                    answered += wire.recv(1 << 16).count(b"\n")
                counts[number] += pipeline

    threads = [threading.Thread(target=load, args=(number,)) for number in range(clients)]
    started = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts) / (time.monotonic() - started)


def main() -> None:
    """Measure, and print a line for each load."""
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 2.0
    with ExitStack() as stack:
        place = sys.argv[2] if len(sys.argv) > 2 else "/var/tmp"
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=place)))
        with socket.create_server(("127.0.0.1", 0)) as free:
            redis_port = free.getsockname()[1]
        redis = subprocess.Popen(
            [os.environ.get("RAXLOG_REDIS_82", "redis-server"), "--port", str(redis_port), "--dir", str(folder),
             "--save", "", "--appendonly", "yes", "--appendfsync", "always"], stdout=subprocess.DEVNULL)
        stack.callback(redis.wait)
        stack.callback(redis.terminate)
        door = subprocess.Popen([sys.executable, "-m", "raxlog", "serve", str(folder / "store"), "--port", "0"],
                                stderr=subprocess.PIPE, text=True)
        stack.callback(door.wait)
        stack.callback(door.terminate)
        assert door.stderr is not None
        found = re.search(r":(\d+)$", door.stderr.readline())
        assert found is not None
        for name, (pipeline, clients) in _LOADS.items():
            rows = [(rate(redis_port, seconds, pipeline, clients), rate(int(found[1]), seconds, pipeline, clients))
                    for _ in range(_ROUNDS)]
            theirs, ours = (statistics.median(column) for column in zip(*rows, strict=True))
            ratio = statistics.median(mine / real for real, mine in rows)
            print(f"{name:28} redis {theirs:8,.0f}/s   door {ours:8,.0f}/s   {ratio:.2f}")


if __name__ == "__main__":
    main()
