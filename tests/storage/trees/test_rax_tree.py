"""The tree of the rax: Redis' own nodes, from a rax in memory and from a live server."""

from __future__ import annotations

import random

import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from rax_cases import any_keys, filled, in_memory, stream_id, stream_ids, writing
from raxlog.storage.trees.rax import Rax


@pytest.fixture
def txn():
    with writing() as txn:
        yield txn


@settings(max_examples=examples(200), deadline=None)
@given(keys=st.lists(any_keys | stream_ids, max_size=40))
def test_after_inserts_alone_every_node_is_as_redis_builds_it(keys):
    with writing() as txn:
        rax = filled(txn, b"p", keys)
        oracle = in_memory(keys, merges="redis")
        assert list(rax.nodes()) == list(oracle.nodes())
        assert rax.numnodes == oracle.numnodes


@pytest.mark.parametrize(
    ("keys", "removed", "in_redis", "here"),
    [
        ([b"foo", b"foobar"], b"foo", [b"foo", b"bar", b""], [b"foobar", b""]),
        ([b"f", b"fo", b"foo"], b"fo", [b"f", b"o", b"o", b""], [b"f", b"oo", b""]),
        (
            [b"foo", b"foobar", b"footer"],
            b"footer",
            [b"foo", b"b", b"ar", b""],
            [b"foo", b"bar", b""],
        ),
    ],
    ids=["A: the key's node is compressed", "B: a key heads the chain", "C: the branch is a key"],
)
def test_redis_leaves_a_chain_cut_in_three_cases_and_we_do_not(txn, keys, removed, in_redis, here):
    oracle = in_memory(keys, merges="redis")
    rax = filled(txn, b"p", keys)
    assert list(rax.nodes()) == list(oracle.nodes())
    oracle.remove(removed)
    rax.remove(removed)
    assert [node[1] for node in oracle.nodes()] == in_redis
    assert [node.label for node in rax.nodes()] == here


def test_show_draws_the_tree_as_raxshow_does(txn):
    rax = Rax(txn, b"p")
    assert rax.show() == "[]"
    rax.insert(b"foo", b"1")
    assert rax.show() == '"foo" -> []=1 bytes'
    rax.insert(b"foobar", b"12")
    assert rax.show() == '"foo" -> "bar"=1 bytes -> []=2 bytes'
    rax.insert(b"footer", b"123")
    assert rax.show().splitlines() == [
        '"foo" -> [bt]=1 bytes',
        '        `-(b) "ar" -> []=2 bytes',
        '        `-(t) "er" -> []=3 bytes',
    ]
    rax.remove(b"foo")
    rax.insert(b"a", b"")
    rax.insert(b"\xff\\", b"")
    assert rax.show().splitlines() == [
        "[af\\xff]",
        " `-(a) []=0 bytes",
        ' `-(f) "oo" -> [bt]',
        '                `-(b) "ar" -> []=2 bytes',
        '                `-(t) "er" -> []=3 bytes',
        " `-(\\xff) [\\x5c] -> []=0 bytes",
    ]


@pytest.fixture
def one_entry_redis(real_redis):
    """A Redis in which every stream entry is a listpack, and so a key of the rax, of its own."""
    was = real_redis.config_get("stream-node-max-entries")["stream-node-max-entries"]
    real_redis.config_set("stream-node-max-entries", 1)
    yield real_redis
    real_redis.config_set("stream-node-max-entries", was)


SHAPES = {
    "one millisecond": [(7, seq) for seq in range(600)],
    "a burst across 255, 256 and 65536": [
        (1_700_000_000_000, seq) for seq in [*range(250, 260), *range(65530, 65540)]
    ],
    "steps of 1 ms": [(1_700_000_000_000 + n, 0) for n in range(600)],
    "steps of 3 ms with bursts": [
        (1_700_000_000_000 + 3 * (n // 4), n % 4) for n in range(600)
    ],
    "steps of 400 ms": [(1_700_000_000_000 + 400 * n, 0) for n in range(300)],
    "jumps that double": [(1 << n, n % 3) for n in range(64)],
    "the least and the greatest": [(0, 1), (0, 2), (1, 0), ((1 << 64) - 1, (1 << 64) - 1)],
    "one alone": [(5, 5)],
}


@pytest.mark.redis
@pytest.mark.parametrize("shape", SHAPES)
def test_redis_counts_as_many_nodes_as_we_do(one_entry_redis, txn, shape):
    rng = random.Random(shape)
    ids = SHAPES[shape]
    rax = Rax(txn, b"\x00" * 7 + b"\x01\x30")
    one_entry_redis.delete("s")

    def agree():
        info = one_entry_redis.xinfo_stream("s")
        assert info["radix-tree-keys"] == rax.numele
        assert info["radix-tree-nodes"] == rax.numnodes

    for n, (ms, seq) in enumerate(ids):
        one_entry_redis.xadd("s", {"f": "v"}, id=f"{ms}-{seq}")
        rax.insert(stream_id(ms, seq), b"")
        if n < 40 or n % 50 == 0:
            agree()
    agree()
    for n, (ms, seq) in enumerate(rng.sample(ids, len(ids))):  # down to the empty rax
        assert one_entry_redis.xdel("s", f"{ms}-{seq}") == 1
        assert rax.remove(stream_id(ms, seq)) == b""
        if n % 7 == 0 or n + 40 > len(ids):
            agree()
    assert rax.numnodes == 1


@pytest.mark.redis
@pytest.mark.parametrize("seed", range(4))
def test_redis_counts_as_many_nodes_for_random_ids_appended_and_deleted(one_entry_redis, txn, seed):
    rng = random.Random(seed)
    rax = Rax(txn, b"p")
    one_entry_redis.delete("s")
    ms, seq, alive = 0, 0, []
    for _ in range(500):
        if alive and rng.random() < 0.3:
            gone = alive.pop(rng.randrange(len(alive)))
            one_entry_redis.xdel("s", "{}-{}".format(*gone))
            rax.remove(stream_id(*gone))
        else:
            if rng.random() < 0.5:
                seq += rng.choice([1, 1, 255, 256])
            else:
                ms, seq = ms + 1 + int(rng.expovariate(1) * 10 ** rng.randrange(12)), 0
            one_entry_redis.xadd("s", {"f": "v"}, id=f"{ms}-{seq + 1}")
            alive.append((ms, seq + 1))
            rax.insert(stream_id(ms, seq + 1), b"")
            seq += 1
        info = one_entry_redis.xinfo_stream("s")
        assert info["radix-tree-nodes"] == rax.numnodes
