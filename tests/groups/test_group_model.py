"""Groups, pending entries, transactions and state beside plain dicts, with crashes in between.

Every rule acts on the store, or in the transaction that is open, and on the model; both must
answer the same. Crashes are an exception inside a transaction, and a forked child that opens
the store, works on it and is killed in the middle of a transaction: what it had committed
stays, the rest never was. The clock is the model's.
"""

from __future__ import annotations

import copy
import os
import shutil
import signal
import sys
import tempfile
import threading
import traceback
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import raxlog
from examples import examples
from group_moves import (
    CONSUMERS,
    GROUPS,
    STREAMS,
    GroupMoves,
    Place,
    consumers,
    counts,
    group_names,
    highs,
    idles,
    lows,
    moves,
    seconds,
    streams,
)
from groups_in_memory import Shared, World, outcome
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule
from raxlog import NoGroup, StreamID, TransactionError
from raxlog.storage.log import ring
from raxlog.stream import stream as stream_module
from raxlog.stream.entries.header import number_of
from raxlog.stream.group import deliver as group_read_module
from raxlog.stream.group import group as group_module
from raxlog.stream.group.state import groups
from raxlog.stream.pel.pending_check import problems
from stored_nodes import check_stream


class Undo(Exception):
    """What a user's code may raise in the middle of a transaction."""


class GroupsBesideDicts(GroupMoves):
    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.world = World(now=1_700_000_000_000)
        self.before = None
        self.acting = True
        self.clock = pytest.MonkeyPatch()
        for module in (group_module, group_read_module, stream_module):
            self.clock.setattr(module, "now_ms", lambda: self.world.now)

    @initialize(entries=st.integers(0, 9), read=st.integers(0, 5), cap=st.sampled_from([1, 2, 100]))
    def open_store(self, entries: int, read: int, cap: int) -> None:
        """Most begin with something to do."""
        self.open()
        for name in STREAMS if entries else []:
            self.extend(name, entries, False)
            self.configure(name, 100, cap)
            for group in GROUPS:
                self.create_group(name, group, "first", False, False)
                self.read(name, group, CONSUMERS[0], read, None, [])

    def open(self) -> None:
        self.store = raxlog.open(self.folder / "store.rax", durability="relaxed", node_max_entries=3, encoding=None)
        self.open_transaction = ExitStack()
        self.tx = None

    def teardown(self) -> None:
        try:
            if hasattr(self, "store"):
                if self.tx is not None:
                    self.undo()
                self.compare()
                self.check_what_lies_beneath()
                self.store.close()
        finally:
            self.clock.undo()
            shutil.rmtree(self.folder)

    # -- transactions -------------------------------------------------------------------

    @precondition(lambda self: self.tx is None)
    @rule()
    def begin(self) -> None:
        self.before = copy.deepcopy(self.world)
        self.tx = self.open_transaction.enter_context(self.store.transaction())

    @precondition(lambda self: self.tx is not None)
    @rule()
    def commit(self) -> None:
        ended = self.tx
        self.open_transaction.close()
        self.ended(kept=True)
        for use in (lambda: ended.stream(b"s"), lambda: ended.state, ended.__enter__):
            with pytest.raises(TransactionError, match=r"ended|used once"):
                use()

    @precondition(lambda self: self.tx is not None)
    @rule()
    def undo(self) -> None:
        handle = self.tx.stream(STREAMS[0])
        with pytest.raises(Undo), self.open_transaction.pop_all():
            raise Undo
        self.ended(kept=False)
        with pytest.raises(TransactionError, match="ended"):
            handle.append({"n": 1})
        self.compare()

    @precondition(lambda self: self.tx is not None)
    @rule(elsewhere=st.booleans())
    def misuse(self, elsewhere: bool) -> None:
        """By another thread, or by this one past the transaction; nothing comes of it."""
        store, tx = self.store, self.tx
        past = [
            lambda: store.stream(b"s").append({"n": 1}),
            lambda: store.stream(b"s").group(b"g").read(b"a"),
            lambda: store.state.__setitem__(b"k", b"v"),
            lambda: store.delete_stream(b"s"),
            lambda: store.transaction().__enter__(),
            store.close,
        ]
        handles = tx.stream(b"s"), tx.group(b"s", b"g"), tx.state
        within = [
            lambda: handles[0].append({"n": 1}), lambda: len(handles[0]), lambda: list(handles[0].range()),
            lambda: handles[1].read(b"a"), handles[1].pending, lambda: handles[2].get(b"k"),
            lambda: tx.stream(b"s"), lambda: tx.__exit__(None, None, None),
        ]  # fmt: skip
        said: list[Any] = []
        if elsewhere:
            thread = threading.Thread(target=lambda: said.extend(outcome(call) for call in within))
            thread.start()
            thread.join()
        else:
            said = [outcome(call) for call in past]
        assert set(said) == {TransactionError}

    @precondition(lambda self: self.before is not None)
    @rule()
    def look_past_the_transaction(self) -> None:
        """Others go on seeing what was before it."""
        assert self.before is not None
        self.before.now = self.world.now
        self.compare(self.store, self.before)

    # -- crashes ------------------------------------------------------------------------

    @precondition(lambda self: self.tx is None)
    @rule(done=st.lists(moves, max_size=3), lost=st.lists(moves, max_size=4), closed=st.booleans(), anew=st.booleans())
    def a_child_works_and_is_killed(self, done: list[Any], lost: list[Any], closed: bool, anew: bool) -> None:
        """``closed``: nobody else has the store open meanwhile. ``anew``: the child opens it itself."""
        if closed:
            self.store.close()
        pid = os.fork()
        if pid == 0:
            try:
                if anew or closed:
                    self.open()
                self.run(done)
                self.begin()
                for move in lost:
                    if self.tx is not None:  # half a call ends the transaction
                        self.run([move])
                os.kill(os.getpid(), signal.SIGKILL)
            except BaseException:
                traceback.print_exc(file=sys.stderr)
            finally:
                os._exit(1)
        assert os.WIFSIGNALED(os.waitpid(pid, 0)[1]), "the child and its model differ; see above"
        self.acting = False
        self.run(done)
        self.acting = True
        if closed:
            self.open()
        self.seen_on_disk()
        self.compare()

    def run(self, some_moves: list[Any]) -> None:
        for name, arguments in some_moves:
            getattr(self, name)(**arguments)

    @precondition(lambda self: self.tx is None)
    @rule()
    def close_and_reopen(self) -> None:
        everything = self.everything()
        self.store.close()
        self.open()
        assert self.everything() == everything
        self.seen_on_disk()
        self.compare()

    def seen_on_disk(self) -> None:
        """What only the memory of a process that is gone knew of seen-times was less than five seconds."""
        back = self.world.back[0]
        for name, stream in self.world.streams.items():
            for group, state in stream.groups.items():
                for row in self.store.stream(name).group(group).consumers():
                    member = state.members[row.name]
                    there = round(row.seen.timestamp() * 1000)
                    assert member.seen - 5000 - back < there <= member.last_seen() + back, f"{row}, not {member}"
                    # Of what was tried in a transaction that was undone only the memory of this process may know.
                    member.seen, member.tried = min(member.seen, there), Shared([there])

    # -- the store's own ----------------------------------------------------------------

    @precondition(lambda self: self.tx is None)
    @rule(old=streams, new=streams)
    def rename(self, old: bytes, new: bytes) -> None:
        self.both(lambda: self.world.rename(old, new), lambda: self.store.rename_stream(old, new))

    @precondition(lambda self: self.tx is None)
    @rule(name=streams, sure=st.sampled_from([True, False, False]))
    def delete_stream(self, name: bytes, sure: bool) -> None:
        if sure:
            self.both(lambda: self.world.delete_stream(name), lambda: self.store.delete_stream(name))

    # -- looking ------------------------------------------------------------------------

    @rule(name=streams, group=group_names, owner=st.none() | consumers, first=lows, last=highs, count=counts,
          min_idle=st.none() | idles)
    def ask_what_is_pending(self, name: bytes, group: bytes, owner: bytes | None, first: Place, last: Place,
                            count: int | None, min_idle: int | None) -> None:
        start, end = self.sid(name, first, group), self.sid(name, last, group)

        def expected() -> Any:
            pel = self.world.group(name, group)[1].pel
            rows = [
                (sid, held.owner, None if held.owner is None else max(0, self.world.now - held.time) / 1000, held.count)
                for sid, held in sorted(pel.items())
                if start <= sid <= end and owner in (None, held.owner)
                and (held.owner is None or max(0, self.world.now - held.time) >= (min_idle or 0))
            ]
            return rows[:count]

        self.both(expected, lambda: [
            (row.id, row.consumer, row.idle, row.deliveries) for row in self.group(name, group).pending_entries(
                StreamID(*start), StreamID(*end), count, consumer=owner, min_idle=seconds(min_idle))])

    @rule()
    def look_at_everything(self) -> None:
        self.compare()

    @invariant()
    def groups_and_counts_agree(self) -> None:
        if hasattr(self, "store"):
            self.compare_groups(self.tx or self.store, self.world)

    def compare(self, face: Any = None, world: World | None = None) -> None:
        """Everything the model knows, as it is seen from there."""
        face, world = face or self.tx or self.store, world or self.world
        assert dict(face.state) == world.state
        assert len(face.state) == len(world.state)
        if face is self.store:
            assert self.store.streams() == sorted(world.streams)
        self.compare_groups(face, world)
        for name, stream in world.streams.items():
            handle = face.stream(name)
            assert [(entry.id, entry.pairs) for entry in handle.range()] == list(stream.entries.items())
            assert handle.last_id == stream.last
            for group, state in stream.groups.items():
                rows = [(row.id, row.consumer, row.deliveries) for row in handle.group(group).pending_entries("-")]
                assert rows == [(sid, held.owner, held.count) for sid, held in sorted(state.pel.items())]
                idles_there = [row.idle for row in handle.group(group).pending_entries("-")]
                assert idles_there == [None if held.owner is None else max(0, world.now - held.time) / 1000
                                       for _, held in sorted(state.pel.items())]
                found = [(row.name, row.pending, row.seen.timestamp(), row.active and row.active.timestamp())
                         for row in handle.group(group).consumers()]
                members = [
                    (who, len(state.owned(who)),
                     pytest.approx(member.last_seen() / 1000, abs=world.back[0] / 1000),
                     None if member.active is None else member.active / 1000)
                    for who, member in sorted(state.members.items())
                ]
                assert found == members, f"the consumers are {found}, in the model {members}"
                owned = {who: len(state.owned(who)) for who in sorted(state.members) if state.owned(who)}
                ends = (min(state.pel), max(state.pel)) if state.pel else (None, None)
                assert handle.group(group).pending() == raxlog.PendingSummary(len(state.pel), *ends, owned)

    def compare_groups(self, face: Any, world: World) -> None:
        for name in STREAMS:
            handle = face.stream(name)
            if name not in world.streams:
                assert outcome(handle.groups) is raxlog.NoStream
                assert outcome(lambda handle=handle: handle.group(GROUPS[0]).lag) is NoGroup
                continue
            stream = world.streams[name]
            assert len(handle) == len(stream.entries)
            found = [(row.name, row.consumers, row.pending, row.last_delivered_id, row.lag, row.gone)
                     for row in handle.groups()]
            assert found == [
                (group, len(state.members), len(state.pel), state.last, len(stream.behind(state.last)), state.gone)
                for group, state in sorted(stream.groups.items())
            ]

    def everything(self) -> list[Any]:
        """What the store tells of itself: also what the model does not know."""
        found: list[Any] = [dict(self.store.state)]
        for name in self.store.streams():
            handle = self.store.stream(name)
            found += [name, handle.info(), handle.groups()]
        return found

    def check_what_lies_beneath(self) -> None:
        """Nodes, pending lists with their indexes and counts; and that nothing is left of what is gone."""
        self.store.close()
        self.open()
        for name in STREAMS:
            check_stream(self.store, name)
            with self.store._env.read() as txn:
                number = number_of(txn, name)
                for state in [] if number is None else list(groups(txn, number)):
                    found, totals = problems(txn, state.number, state.group)
                    assert found == []
                    assert sum(totals.values()) == state.pending
                    assert all(totals[member.number] == member.pending for member in state.consumers(txn))
        for name in list(self.world.streams):
            self.store.delete_stream(name)
        for key in self.world.state:
            del self.store.state[key]
        with self.store._env.read() as txn:
            left = [key.hex() for key, _ in txn.cursor() if key != ring.APPLIED_KEY]
        assert left == ["000000000000000001"]


TestGroupsBesideDicts = GroupsBesideDicts.TestCase
TestGroupsBesideDicts.settings = settings(max_examples=examples(50, 3000), stateful_step_count=60)
