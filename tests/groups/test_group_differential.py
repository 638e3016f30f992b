"""The same random group operations to a live redis-server and to a store of ours.

Run against the redis-server on the machine (Debian's is 7.0.15) and, with the deletion policies
of Redis 8.2, against the binary that RAXLOG_REDIS_82 names. Compared are every reply, and again
and again all entries, groups, consumers and pending lists (redis_groups.py); the lag is compared
with a count over the entries, always. RAXLOG_SEED=n replays a run.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import raxlog
from group_commands import Profile
from group_deliveries import Run
from group_errors import ERRORS, NEWER_ERRORS, Call
from redis_errors import GROUP_ERRORS, NO_KEY, exception_for
from redis_groups import answer

OPERATIONS = 4000 if os.environ.get("RAXLOG_LONG") else 500
COMPARE_EVERY = 10

PROFILES = {
    "mixed": Profile(),
    "deleting": Profile({"delete": 25, "trim": 6}),
    "trimming": Profile({"trim": 20, "read_new": 12}, node_entries=4),
    "claiming": Profile({"claim": 40, "autoclaim": 25, "delete": 12}),
    "long lists": Profile(
        {"append": 60, "acknowledge": 3, "delete_stream": 0, "destroy_group": 0, "delete": 15}, node_entries=100
    ),
    "nodes of our own": Profile({"trim": 8}, node_entries=None),
    "groups come and go": Profile({"create_group": 15, "destroy_group": 8, "delete_consumer": 8, "delete_stream": 3}),
    "counters set by hand": Profile({"set_group_id": 10, "set_stream_id": 10, "delete": 12}, by_hand=True),
    "in transactions": Profile(transactions=True),
    "a millisecond each": Profile(paused=True, node_entries=5),
}
NEW_COMMANDS = {"delete_ex": 12, "acknowledge_and_delete": 10}
NEWER = {
    "policies": Profile({**NEW_COMMANDS, "trim": 8}, policies=True),
    "policies, tiny nodes": Profile({**NEW_COMMANDS, "trim": 12, "delete": 12}, policies=True, node_entries=3),
    "policies in transactions": Profile({**NEW_COMMANDS, "trim": 8}, policies=True, transactions=True),
    "policies and counters by hand": Profile(
        {**NEW_COMMANDS, "trim": 8, "set_group_id": 8, "set_stream_id": 8}, policies=True, by_hand=True
    ),
}


def seeds() -> list[int]:
    asked = os.environ.get("RAXLOG_SEED")
    return [int(asked)] if asked else [1]


@pytest.fixture(params=["redis on this machine", "redis 8.2"])
def plain_redis(request: pytest.FixtureRequest) -> Iterator[Any]:
    """An empty server, through a client that hands on replies as they come."""
    import redis  # noqa: PLC0415 - only needed where the server is

    newer = request.param == "redis 8.2"
    address = request.getfixturevalue("newer_address" if newer else "redis_address")
    client = redis.Redis(*address, protocol=2)
    client.response_callbacks.clear()
    client.flushall()
    yield client
    client.config_set("stream-node-max-entries", 100)
    client.close()


@pytest.mark.redis
@pytest.mark.parametrize("seed", seeds())
@pytest.mark.parametrize("profile", [*PROFILES, *NEWER])
def test_random_group_operations_do_what_they_do_in_redis(
    plain_redis: Any, tmp_path: Path, profile: str, seed: int
) -> None:
    print(f"replay with RAXLOG_SEED={seed}")
    run = Run(plain_redis, tmp_path / "store.rax", seed, {**PROFILES, **NEWER}[profile])
    if profile in NEWER and run.version < (8, 2):
        run.close()
        pytest.skip("XDELEX, XACKDEL and the policies came with Redis 8.2")
    many = OPERATIONS // 2 if profile in PROFILES and run.version >= (8, 2) else OPERATIONS  # older ones have the rest
    try:
        run.run(many, COMPARE_EVERY)
    except BaseException:
        print("the last commands:", *run.given, sep="\n    ")
        raise
    finally:
        run.close()
    assert run.counters_compared
    if not (run.profile.by_hand or run.profile.policies):  # else little is left that Redis can know
        assert run.lags_compared


# Where Redis 8 and 7.0 differ, and 8 cannot be had, its answers (8.2.3): entries-read of a group
# created at 0 on entries 1-0 to 5-0, after what was done.
COUNTED_IN_REDIS_8: dict[str, tuple[list[str], int | None]] = {
    "read to the end": (["read 2", "read 3"], 5),
    "trimmed past the group": (["read 1", "trim 4", "read 1"], 4),
    "deleted before the group": (["read 3", "delete 1", "read 1"], 4),
    "the last delivered deleted": (["read 2", "delete 2", "read 1"], None),
    "the next deleted": (["read 2", "delete 3", "read 1"], None),
    "the next deleted, read to the end": (["read 2", "delete 3", "read 2"], 5),
    "set above what was added": (["set 99"], 5),
}


@pytest.mark.parametrize("case", COUNTED_IN_REDIS_8)
def test_entries_read_counts_by_the_rule_of_redis_8(store: raxlog.Store, case: str) -> None:
    stream = store.stream("k")
    stream.extend([{"f": "v"}] * 5, ["1-0", "2-0", "3-0", "4-0", "5-0"])
    group = stream.create_group("g", "0")
    steps, expected = COUNTED_IN_REDIS_8[case]
    for step in steps:
        what, number = step.split()
        if what == "read":
            group.read("c", int(number))
        elif what == "delete":
            stream.delete(number)
        elif what == "trim":
            stream.trim(minid=number)
        else:
            group.set_id("5", entries_read=int(number))
    assert group.info().entries_read == expected


@pytest.mark.redis
@pytest.mark.parametrize(("command", "text", "call", "expected"), ERRORS, ids=[row[0] for row in ERRORS])
def test_what_is_an_error_in_redis_has_its_exception_and_changes_nothing(
    plain_redis: Any, with_pending: raxlog.Store, command: str, text: str, call: Call, expected: type[Exception]
) -> None:
    ask = partial(answer, plain_redis)
    for words in ("XADD k 1-0 f v", "XADD k 2-0 f v", "XADD k 3-0 f v", "XGROUP CREATE k g 0",
                  "XREADGROUP GROUP g c STREAMS k >"):  # fmt: skip
        assert ask(words.split())[1] is None
    _, refusal = ask(command.split())
    assert refusal is not None, f"Redis takes {command}"
    if "unknown command" in refusal:
        pytest.skip("a command of Redis 8.2")
    assert text in refusal
    assert text == NO_KEY or exception_for(refusal, GROUP_ERRORS) is expected
    refuses(with_pending, call, expected)


@pytest.mark.parametrize(("command", "call", "expected"), NEWER_ERRORS, ids=[row[0] for row in NEWER_ERRORS])
def test_errors_of_commands_that_no_server_here_has_yet_have_their_exceptions(
    with_pending: raxlog.Store, command: str, call: Call, expected: type[Exception]
) -> None:
    refuses(with_pending, call, expected)


@pytest.fixture
def with_pending(store: raxlog.Store) -> raxlog.Store:
    """Stream k of three entries, all of them pending with consumer c of group g."""
    stream = store.stream("k")
    stream.extend([{"f": "v"}] * 3, ["1-0", "2-0", "3-0"])
    stream.create_group("g", "0").read("c")
    return store


def refuses(store: raxlog.Store, call: Call, expected: type[Exception]) -> None:
    """Assert that a call raises just that exception and changes nothing."""

    def everything() -> list[object]:
        stream = store.stream("k")
        group = stream.group("g")
        return [store.streams(), list(stream), stream.groups(), group.pending(), [c.name for c in group.consumers()]]

    before = everything()
    with pytest.raises(raxlog.RaxlogError) as caught:
        call(store)
    assert type(caught.value) is expected
    assert everything() == before
