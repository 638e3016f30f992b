"""`raxlog serve` over a store that is damaged, and payloads that are: errors, and nothing written."""

from __future__ import annotations

import os
import random
import sys
import time
from pathlib import Path

import forkserver
import raxlog
from door import door
from raxlog.stream.dump.crc64 import crc64
from resp_wire import RespWire

SEED = int(os.environ.get("RAXLOG_SEED", time.time_ns() % 1_000_000_007))


def test_what_is_damaged_is_an_error_and_the_rest_is_served(path: Path) -> None:
    with raxlog.open(path) as store:
        for name in ("whole", "broken"):
            store.stream(name).extend({"text": f"{name} {number:05}"} for number in range(5000))
    (file,) = path.glob("*/data.mdb")
    data = file.read_bytes()
    file.write_bytes(data.replace(b"broken 02500", b"broken 02x00"))
    with door(path) as address, RespWire(address) as wire:
        for words in (["XRANGE", "broken", "-", "+"], ["XRANGE", "broken", "-", "+", "COUNT", 999], ["DUMP", "broken"]):
            kind, text = wire.ask(*words)
            if words[-1] != 999:
                assert kind == "-"
                assert "checksum" in text
        assert len(wire.ask("XRANGE", "whole", "-", "+")[1]) == 5000
        assert wire.ask("XADD", "whole", "*", "n", 1)[0] == "$"
        assert len(wire.ask("XREVRANGE", "broken", "+", "-", "COUNT", 100)[1]) == 100
    for size in (0, 100, 5000):
        file.write_bytes(data[:size])
        refused = forkserver.run([sys.executable, "-m", "raxlog", "serve", str(path), "--port", "0"],
                                 capture_output=True, text=True, check=False, timeout=30)
        assert refused.returncode not in (0, 1)
        assert refused.stderr.startswith("raxlog: ")
        assert len(refused.stderr.splitlines()) == 1


def test_payloads_that_are_cut_flipped_or_made_up_are_refused_or_whole(path: Path) -> None:
    print("RAXLOG_SEED =", SEED)
    rng = random.Random(SEED)
    with door(path) as address, RespWire(address) as wire:
        for number in range(1, 300):
            wire.ask("XADD", "s", f"{number}-0", "n", number, "text", "x" * rng.randrange(40))
        wire.ask("XGROUP", "CREATE", "s", "g", "0")
        wire.ask("XREADGROUP", "GROUP", "g", "c", "COUNT", 50, "STREAMS", "s", ">")
        wire.ask("XACK", "s", "g", "7-0")
        payload = wire.ask("DUMP", "s")[1]
        taken = 0
        for _ in range(300):
            bad = bytearray(payload)
            if rng.random() < 0.2:
                del bad[rng.randrange(len(bad)):]
            else:
                for _ in range(rng.randrange(1, 4)):
                    bad[rng.randrange(len(bad) - 8)] = rng.choice([0, 1, 127, 128, 255, rng.randrange(256)])
            if rng.random() < 0.8:  # its checksum is right
                bad[-8:] = crc64(bytes(bad[:-8]), 0).to_bytes(8, "little")
            if wire.ask("RESTORE", "bad", 0, bytes(bad))[0] == "-":
                assert wire.ask("EXISTS", "bad") == (":", 0)
            else:
                taken += 1
                assert wire.ask("XINFO", "STREAM", "bad", "FULL", "COUNT", 0)[0] == "*"
                assert wire.ask("XRANGE", "bad", "-", "+")[0] == "*"
                assert wire.ask("DEL", "bad") == (":", 1)
        assert wire.ask("RESTORE", "good", 0, payload) == ("+", "OK")
        assert wire.ask("DUMP", "good")[1] == payload
    print(taken, "of 300 were whole")
    assert taken < 200
    assert raxlog.check(path).ok
