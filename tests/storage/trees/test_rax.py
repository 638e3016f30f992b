"""The rax over LMDB's keys, beside a sorted dict and two raxes in memory."""

from __future__ import annotations

import pytest
from examples import examples
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from rax_cases import PREFIXES, any_keys, environment, filled, stream_ids, writing
from rax_in_memory import RaxInMemory, without_cuts
from raxlog.storage.errors import InvalidArgument
from raxlog.storage.trees.rax import Rax

OPERATORS = (">", ">=", "<", "<=", "=", "^", "$")


@pytest.fixture
def txn():
    with writing() as txn:
        yield txn


def neighbours_of(prefix: bytes) -> dict[bytes, bytes]:
    """Records as near to the family as can be without belonging to it."""
    near = [prefix[:-1], prefix[:-1] + bytes([max(prefix[-1] - 1, 0)]) + b"\xff" * 20]
    if prefix[-1] < 255:
        near += [prefix[:-1] + bytes([prefix[-1] + 1]), prefix[:-1] + b"\xff\xff\xff"]
    return {key: b"not ours" for key in near if key and not key.startswith(prefix)}


def sought(model: dict[bytes, bytes], op: str, key: bytes) -> bytes | None:
    keys = sorted(model)
    if op in "^$":
        return (keys[0] if op == "^" else keys[-1]) if keys else None
    if op == "=":
        return key if key in model else None
    if op[0] == ">":
        return next((k for k in keys if k > key or (k == key and op == ">=")), None)
    return next((k for k in reversed(keys) if k < key or (k == key and op == "<=")), None)


class RaxBesideADict(RuleBasedStateMachine):
    """Every operation on the rax, a dict, and the two raxes in memory, compared throughout."""

    key_strategy = any_keys

    def __init__(self) -> None:
        super().__init__()
        self.txn = None

    @precondition(lambda self: self.txn is None)
    @rule(prefix=st.sampled_from(PREFIXES), buffers=st.booleans())
    def begin(self, prefix, buffers):
        self.txn = environment().begin(write=True, buffers=buffers)
        self.outside = neighbours_of(prefix)
        for key, value in self.outside.items():
            self.txn.put(key, value)
        self.prefix = prefix
        self.rax = Rax(self.txn, prefix)
        self.model = {}
        self.whole, self.redis = RaxInMemory("all"), RaxInMemory("redis")

    def teardown(self):
        if self.txn is not None:
            self.txn.abort()

    def key(self, data):
        known = st.sampled_from(sorted(self.model)) if self.model else st.nothing()
        return data.draw(type(self).key_strategy | known, label="key")

    @precondition(lambda self: self.txn is not None)
    @rule(data=st.data(), value=st.binary(max_size=4))
    def insert(self, data, value):
        key = self.key(data)
        assert self.rax.insert(key, value) == self.model.get(key)
        self.model[key] = value
        self.whole.insert(key, value)
        self.redis.insert(key, value)

    @precondition(lambda self: self.txn is not None)
    @rule(data=st.data(), value=st.binary(max_size=4))
    def try_insert(self, data, value):
        key = self.key(data)
        assert self.rax.try_insert(key, value) == (key not in self.model)
        if key not in self.model:
            self.model[key] = value
            self.whole.insert(key, value)
            self.redis.insert(key, value)

    @precondition(lambda self: self.txn is not None)
    @rule(data=st.data())
    def remove(self, data):
        key = self.key(data)
        assert self.rax.remove(key) == self.model.pop(key, None)
        self.whole.remove(key)
        self.redis.remove(key)

    @precondition(lambda self: self.txn is not None)
    @rule(data=st.data())
    def find(self, data):
        key = self.key(data)
        assert self.rax.find(key) == self.model.get(key) == self.whole.find(key)
        assert (key in self.rax) == (key in self.model)

    @precondition(lambda self: self.txn is not None)
    @rule(data=st.data(), op=st.sampled_from(OPERATORS))
    def seek_and_step(self, data, op):
        key = self.key(data)
        keys = sorted(self.model)
        it = self.rax.iterator()
        expected = sought(self.model, op, key)
        assert it.seek(op, key) == (expected is not None) != it.eof
        if expected is None:
            assert (it.key(), it.value()) == (b"", b"")
            assert not it.next()
            assert not it.prev()
            return
        at = keys.index(expected)
        assert (it.key(), it.value()) == (expected, self.model[expected])
        for forward in data.draw(st.lists(st.booleans(), max_size=8), label="steps"):
            at += 1 if forward else -1
            moved = it.next() if forward else it.prev()
            assert moved == (0 <= at < len(keys)) != it.eof
            if it.eof:
                assert it.key() == (keys[-1] if forward else keys[0])
                assert not it.next()
                assert not it.prev()
                return
            assert (it.key(), it.value()) == (keys[at], self.model[keys[at]])

    @precondition(lambda self: self.txn is not None)
    @rule(data=st.data())
    def neighbours(self, data):
        key = self.key(data)

        def item(op):
            found = sought(self.model, op, key)
            return None if found is None else (found, self.model[found])

        assert self.rax.floor(key) == item("<=")
        assert self.rax.first() == item("^")
        assert self.rax.last() == item("$")
        in_order = sorted(self.model.items())
        assert list(self.rax.items()) == in_order
        assert list(self.rax.items(key)) == [i for i in in_order if i[0] >= key]

    @precondition(lambda self: self.txn is not None)
    @invariant()
    def the_nodes_are_those_of_the_rax_in_memory(self):
        nodes = list(self.rax.nodes())
        assert nodes == list(self.whole.nodes())
        assert len(nodes) == self.rax.numnodes == self.whole.numnodes
        assert self.rax.numele == self.whole.numele == len(self.model)

    @precondition(lambda self: self.txn is not None)
    @invariant()
    def redis_nodes_differ_only_in_chains_left_cut(self):
        nodes = list(self.rax.nodes())
        kept = list(self.redis.nodes())
        assert len(kept) == self.redis.numnodes >= len(nodes)
        assert without_cuts(kept) == nodes

    @precondition(lambda self: self.txn is not None)
    @invariant()
    def nothing_outside_the_prefix_is_touched(self):
        stored = {bytes(k): bytes(v) for k, v in self.txn.cursor()}
        inside = {self.prefix + k: v for k, v in self.model.items()}
        assert stored == self.outside | inside


class RaxOfStreamIDs(RaxBesideADict):
    """Keys of one length: here Redis' own nodes are met exactly, after removes too."""

    key_strategy = stream_ids

    @precondition(lambda self: self.txn is not None)
    @invariant()
    def the_nodes_are_those_of_redis(self):
        assert list(self.rax.nodes()) == list(self.redis.nodes())
        assert self.rax.numnodes == self.redis.numnodes


class TestRaxBesideADict(RaxBesideADict.TestCase):
    settings = settings(max_examples=examples(90), stateful_step_count=40, deadline=None)


class TestRaxOfStreamIDs(RaxOfStreamIDs.TestCase):
    settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)


@pytest.mark.parametrize("prefix", PREFIXES)
def test_keys_as_long_as_lmdb_allows_are_found_and_longer_ones_refused(txn, prefix):
    rax = Rax(txn, prefix)
    room = 511 - len(prefix)
    longest = b"\xff" * room
    rax.insert(longest, b"longest")
    assert rax.try_insert(longest[:-1], b"shorter")
    assert rax.find(longest) == b"longest"
    assert rax.last() == rax.floor(longest) == rax.floor(longest + b"\xff") == (longest, b"longest")
    it = rax.iterator()
    assert not it.seek(">", longest)
    assert it.seek("<", longest + b"x")
    assert it.key() == longest
    assert it.prev()
    assert it.key() == longest[:-1]
    assert rax.numnodes == len(list(rax.nodes())) == 3
    too_long = longest + b"x"
    assert rax.find(too_long) is None
    assert too_long not in rax
    assert rax.remove(too_long) is None
    for insert in (rax.insert, rax.try_insert):
        with pytest.raises(InvalidArgument, match=rf"{room + 1} bytes .* up to {room} "):
            insert(too_long, b"")
    assert rax.numele == 2


@pytest.mark.parametrize("prefix", [b"", b"x" * 512])
def test_a_prefix_must_have_1_to_511_bytes(txn, prefix):
    with pytest.raises(InvalidArgument, match=f"this one has {len(prefix)}"):
        Rax(txn, prefix)


def test_a_seek_by_an_unknown_operator_leaves_the_iterator_where_it_was(txn):
    it = filled(txn, b"p", [b"a", b"b"]).iterator()
    assert it.eof
    assert it.seek("^")
    for op in ("", "==", "=>", "!", "a"):
        with pytest.raises(InvalidArgument, match="cannot seek"):
            it.seek(op, b"b")
    assert it.key() == b"a"
    assert it.next()


def test_an_iterator_goes_on_behind_an_element_just_removed_after_seeking_again(txn):
    keys = [b"%03d" % n for n in range(300)]
    rax = filled(txn, b"p", keys)
    it = rax.iterator()
    met = []
    more = it.seek("^")
    while more:
        met.append(it.key())
        value = it.value()
        rax.remove(it.key())
        assert (it.key(), it.value()) == (met[-1], value)
        more = it.seek(">", it.key())
    assert met == keys
    assert rax.numele == 0


def test_an_iterator_takes_so_many_elements_up_to_a_key_and_stays_within_its_rax(txn):
    filled(txn, b"o", [b"9"])
    keys = [b"%03d" % n for n in range(30)]
    rax = filled(txn, b"p", keys)
    filled(txn, b"q", [b"0"])
    it = rax.iterator()
    for start, most, stop in [(0, 5, b"999"), (0, 100, b"999"), (7, 100, b"012"), (7, 100, b"0125"), (29, 3, b"029"),
                              (3, 0, b"999"), (5, 3, b"002")]:
        assert it.seek("=", keys[start])
        expected = [(b"p" + key, b"value of " + key) for key in keys[start:] if key <= stop][:most]
        assert it.take(most, stop) == expected
        assert it.eof
    assert not it.seek(">", b"999")
    assert it.take(5, b"\xff") == []


def test_values_are_copies_that_outlive_their_transaction():
    with writing(buffers=True) as txn:
        rax = filled(txn, b"p", [b"a", b"b"])
        it = rax.iterator()
        it.seek("$")
        got = [rax.find(b"a"), rax.insert(b"a", b"new"), it.value(), *rax.first(), *rax.last()]
        got += [part for item in rax.items() for part in item] + [rax.remove(b"a")]
    assert all(type(each) is bytes for each in got)
    assert got[:3] == [b"value of a", b"value of a", b"value of b"]
