"""`import --rdb`, `import --redis` and `export --redis`: keys of a real Redis, there and back."""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import forkserver
import pytest
import raxlog
import redis
from redis_server import redis_server

SEED = int(os.environ.get("RAXLOG_SEED", time.time_ns() % 1_000_000_007))


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Any]:
    """A redis-server of the test's own, its folder at hand."""
    program = os.environ.get("RAXLOG_REDIS_82")
    if not program:
        pytest.skip("missing oracle: redis 8.2 (its path in RAXLOG_REDIS_82)")
    folder = tmp_path / "redis"
    folder.mkdir()
    with redis_server(program, folder) as address:
        client = redis.Redis(*address)
        client.config_set("stream-node-max-entries", 20)
        yield client
        client.close()


def raxlog_cli(*words: object, status: int = 0) -> Any:
    """What a command prints as JSON; its error where that is expected."""
    ended = forkserver.run([sys.executable, "-m", "raxlog", *map(str, words), *([] if status else ["--json"])],
                           capture_output=True, text=True, check=False, timeout=120)
    assert ended.returncode == status, ended.stderr
    return ended.stderr if status else json.loads(ended.stdout)


def fill(client: Any, rng: random.Random) -> None:
    """Streams with groups, pending and deleted entries; strings and lists of all forms; what cannot be kept."""
    for number in range(12):
        name = f"stream {number}"
        ids = [client.xadd(name, {"n": rng.randrange(1 << rng.randrange(1, 60)), "text": rng.choice("ab") * rng.choice(
            [1, 60, 3000])}) for _ in range(rng.choice([1, 15, 100]))]
        for group in range(rng.randrange(3)):
            client.xgroup_create(name, f"g{group}", id=rng.choice(["0", "$", ids[len(ids) // 2]]))
            for consumer in range(rng.randrange(3)):
                client.xreadgroup(f"g{group}", f"c{consumer}", {name: ">"}, count=rng.choice([1, 30]))
            client.xack(name, f"g{group}", *rng.sample(ids, rng.randrange(1, len(ids) + 1)))
        for sid in rng.sample(ids, rng.randrange(len(ids) + 1)):
            client.xdel(name, sid)
    client.xgroup_create("empty", "g", mkstream=True)
    client.mset({"text": "t", "number": 123, "negative": -70_000, "large": "ab" * 20_000, b"\xff\0": b"\0\xff", "": ""})
    client.rpush("list", "a", -1, "x" * 300, 1 << 40)
    client.rpush("long list", *range(2000), "y" * 9000)
    client.set("goes", "v", ex=1000)
    client.expire("stream 3", 2000)
    client.hset("hash", mapping={"f": "v" * 100})
    client.hset("large hash", mapping={f"f{n}": "v" * 100 for n in range(600)})
    client.hset("hash that goes", "f", "v")
    client.hexpire("hash that goes", 1000, "f")
    client.sadd("set", "a", "b")
    client.sadd("numbers", 1, 2, 3)
    client.sadd("large set", *(f"m{n}" for n in range(600)))
    client.zadd("sorted", {"a": 1.5, "b": -2})
    client.zadd("large sorted", {f"m{n}": n / 3 for n in range(600)})
    client.function_load("#!lua name=l\nredis.register_function('f', function() return 1 end)")
    client.select(3)
    client.xadd("stream of three", {"n": 1})
    client.set("string of three", "v")
    client.select(0)


def dumps(client: Any) -> dict[bytes, tuple[object, bool]]:
    """Streams, strings and lists of a server, and whether they go."""
    shown: dict[bytes, tuple[object, bool]] = {}
    for name in client.keys("*"):
        kind = client.type(name)
        if kind in (b"stream", b"string", b"list"):
            value = client.lrange(name, 0, -1) if kind == b"list" else client.dump(name)
            shown[name] = value, client.ttl(name) > 0
    return shown


def test_all_that_a_file_holds_comes_back_to_a_server_byte_for_byte(server: Any, path: Path, tmp_path: Path) -> None:
    print("RAXLOG_SEED =", SEED)
    fill(server, random.Random(SEED))
    server.save()
    before = dumps(server)
    url = "redis://{host}:{port}/0".format(**server.connection_pool.connection_kwargs)
    answer = raxlog_cli("import", path, "--rdb", tmp_path / "redis" / "dump.rdb")
    assert answer["imported"] == {"stream": 14, "string": 8, "list": 2}
    assert answer["left_out"] == {"hash": 3, "set": 3, "sorted set": 2}
    assert raxlog_cli("import", path, "--rdb", tmp_path / "redis" / "dump.rdb")["kept"] == answer["imported"]
    assert raxlog.check(path).ok
    with raxlog.open(path) as store:
        assert store.state[b"negative"] == b"-70000"
        assert len(store.stream(b"\0db3\0stream of three")) == 1
    server.flushall()
    assert raxlog_cli("export", path, "--redis", url)["exported"] == {"stream": 13, "string": 7, "list": 2}
    assert dumps(server) == before
    assert raxlog_cli("export", path, "stream 1*", "--redis", url)["kept"] == {"stream": 3}
    # from server to store, one pattern, and over what is there
    other = tmp_path / "other.rax"
    assert raxlog_cli("import", other, "--redis", url)["imported"] == {"stream": 13, "string": 7, "list": 2}
    server.xadd("stream 1", {"new": 1})
    server.set("text", "changed")
    assert raxlog_cli("import", other, "--redis", url, "stream 1")["kept"] == {"stream": 1}
    assert raxlog_cli("import", other, "--redis", url, "--replace", "*1")["imported"] == {"stream": 2}
    with raxlog.open(other) as store:
        server.config_set("rdbcompression", "no")
        assert store.stream("stream 1").dump()[:-10] == server.dump("stream 1")[:-10]  # version and checksum
        assert store.state[b"text"] == b"t"
    assert raxlog.check(other).ok
    raxlog_cli("export", other, "--redis", url, "--force")
    assert server.get("text") == b"t"


def test_a_file_or_a_server_that_is_none_changes_nothing(server: Any, path: Path, tmp_path: Path) -> None:
    server.xadd("s", {"n": 1})
    server.save()
    whole = (tmp_path / "redis" / "dump.rdb").read_bytes()
    rng = random.Random(SEED)
    for _ in range(6):
        at = rng.randrange(len(whole))
        damaged = rng.choice([whole[:at], whole[:at] + bytes([whole[at] ^ 1 << rng.randrange(8)]) + whole[at + 1:]])
        (tmp_path / "damaged.rdb").write_bytes(damaged)
        assert "raxlog: " in raxlog_cli("import", path, "--rdb", tmp_path / "damaged.rdb", status=2)
        if path.exists():
            with raxlog.open(path) as store:
                assert store.streams() == []
    unsummed, unknown = whole[:-9] + b"\0\1a\1b", b"\x63\1k"  # as Redis writes it with rdbchecksum no
    (tmp_path / "damaged.rdb").write_bytes(unsummed + unknown + b"\xff" + bytes(8))
    assert "raxlog: " in raxlog_cli("import", path, "--rdb", tmp_path / "damaged.rdb", status=2)
    with raxlog.open(path) as store:
        assert (store.streams(), dict(store.state)) == ([], {})
    (tmp_path / "unsummed.rdb").write_bytes(unsummed + b"\xff" + bytes(8))
    other = tmp_path / "other.rax"
    assert raxlog_cli("import", other, "--rdb", tmp_path / "unsummed.rdb")["imported"] == {"stream": 1, "string": 1}
    assert "No such file" in raxlog_cli("import", path, "--rdb", tmp_path / "none", status=2)
    assert "redis://127.0.0.1:1" in raxlog_cli("import", path, "--redis", "redis://127.0.0.1:1", status=2)
    assert "nonsense" in raxlog_cli("export", path, "--redis", "nonsense", status=2)
    assert "STREAM" in raxlog_cli("import", path, status=2)
