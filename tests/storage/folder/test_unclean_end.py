"""How a store was left, and what can still be read of it when some of it is damaged."""

from __future__ import annotations

import os
import signal
import struct
import time
from collections.abc import Callable
from io import FileIO
from pathlib import Path
from typing import Any

import lmdb
import pytest
import raxlog
from children import Child
from counting import settle
from raxlog.storage import clocks
from raxlog.storage.format import keys as layout
from raxlog.storage.format import records
from raxlog.storage.locks import ofd_lock, shared_file
from raxlog.storage.locks.shared_file import SHARED, SLOTS
from xxhash import xxh3_64_intdigest

Say = Callable[[Any], None]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store with two streams, of several nodes each, and a group; closed."""
    place = tmp_path / "s.rax"
    with raxlog.open(place) as store:
        for name in ("orders", "mail"):
            ids = [f"{n + 1}-0" for n in range(100)]
            store.stream(name).extend([{"n": n, "x": "y" * 300} for n in range(100)], ids)
        store.stream("orders").create_group("billing", "0").read("w", count=10)
    return place


def opened_and(path: Path, end: Callable[[], Any], **options: Any) -> int:
    """A process that opens the store, appends, and comes to its end in this way; its number."""

    def work(say: Say) -> None:
        store = raxlog.open(path, **options)
        store.stream("mail").append({"by": os.getpid()})
        say(1)
        end()

    with Child(work) as child:
        child.heard()
        child.wait()
        return child.pid


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def restart_the_machine(path: Path) -> None:
    """Let every slot tell of another start of the machine."""
    content = bytearray((path / SHARED).read_bytes())
    for slot in range(SLOTS, len(content), 64):
        if any(content[slot:slot + 64]):
            content[slot + 8:slot + 24] = bytes(range(16))
            struct.pack_into("<Q", content, slot, xxh3_64_intdigest(bytes(content[slot + 8:slot + 64])))
    (path / SHARED).write_bytes(content)


def damage(path: Path, pick: Callable[[bytes], bool]) -> bytes:
    """Flip a bit in the middle of the last value whose key fits; the key."""
    data = path / (path / "CURRENT").read_text().strip() / "data.mdb"
    with lmdb.open(str(data.parent), readonly=True, lock=False) as env, env.begin() as txn:
        key, value = [(bytes(k), bytes(v)) for k, v in txn.cursor() if pick(bytes(k))][-1]
    content = bytearray(data.read_bytes())
    middle = len(value) // 2
    spoiled = value[:middle] + bytes([value[middle] ^ 0x10]) + value[middle + 1 :]
    data.write_bytes(content.replace(value, spoiled))
    return key


def is_node_of(number: int) -> Callable[[bytes], bool]:
    return lambda key: key.startswith(layout.family(number, layout.NODE))


# -- noticed ----------------------------------------------------------------------------------


def test_a_store_that_was_closed_says_so(path: Path) -> None:
    for _ in range(3):
        with raxlog.open(path) as store:
            assert store.last_end == raxlog.LastEnd("clean", (), ())


def test_a_killed_process_is_told_of_once_and_its_entries_are_there(path: Path) -> None:
    pid = opened_and(path, die)
    with raxlog.open(path, readonly=True) as store:
        assert store.last_end == raxlog.LastEnd("killed", (pid,), ()), "who only reads may look, and changes nothing"
    with raxlog.open(path) as store:
        assert store.last_end == raxlog.LastEnd("killed", (pid,), ())
        assert len(store.stream("mail")) == 101
    with raxlog.open(path) as store:
        assert store.last_end.how == "clean"


@pytest.mark.parametrize("without", ["then", "now", "both"])
def test_a_killed_process_is_one_where_the_system_does_not_say_which_start_of_the_machine_it_is(
        path: Path, monkeypatch: pytest.MonkeyPatch, without: str) -> None:
    """No /proc, as in many a chroot: the clocks say it. Not so where they say another time, or nothing is known."""
    def nothing() -> bytes:
        return bytes(16)

    real = shared_file.boot_id
    monkeypatch.setattr(shared_file, "boot_id", real if without == "now" else nothing)
    pid = opened_and(path, die)
    monkeypatch.setattr(shared_file, "boot_id", real if without == "then" else nothing)
    assert shared_file.is_cut([(bytes(24), 1)]), "after a flush that has failed"
    with monkeypatch.context() as patched:
        earlier = time.time_ns()
        patched.setattr(clocks, "boot_ns", lambda: (time.time_ns() - earlier) + 1_000_000_000)
        with raxlog.open(path, readonly=True) as store:
            assert store.last_end.how == "power cut", "the machine has started a second ago"
    with raxlog.open(path) as store:
        assert store.last_end == raxlog.LastEnd("killed", (pid,), ())


def test_the_death_of_one_of_several_is_noticed_beside_the_living(path: Path) -> None:
    def stay(say: Say) -> None:
        with raxlog.open(path) as store:
            say(store.last_end.how)
            signal.pause()

    with Child(stay) as first, Child(stay) as second:
        assert [first.heard(), second.heard()] == ["clean", "clean"]
        first.kill()
        with raxlog.open(path) as store:
            assert store.last_end == raxlog.LastEnd("killed", (first.pid,), ())
        with raxlog.open(path) as store:
            assert store.last_end.how == "clean", "the living have not ended"
        second.kill()
        with raxlog.open(path) as store:
            assert store.last_end == raxlog.LastEnd("killed", (second.pid,), ())
    assert (path / SHARED).stat().st_size <= SLOTS + 3 * 64, "slots are used again"


def test_a_close_in_the_middle_of_an_opening_is_no_kill(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes between the opening's look at the slots, and that at their locks."""
    asked, go = os.pipe()
    is_free, closed = ofd_lock.is_free, []

    def work(say: Say) -> None:
        with raxlog.open(path):
            say("open")
            os.read(asked, 1)
        say("closed")

    def close_before(file: FileIO, start: int, length: int) -> bool:
        if not closed and Path(str(file.name)).name == SHARED and start >= SLOTS:
            os.write(go, b"x")
            closed.append(child.heard())
        return is_free(file, start, length)

    with Child(work) as child:
        assert child.heard() == "open"
        monkeypatch.setattr(ofd_lock, "is_free", close_before)
        with raxlog.open(path, readonly=True) as store:
            assert closed == ["closed"]
            assert store.last_end.how == "clean"
    os.close(asked)
    os.close(go)


def test_a_hundred_kills_leave_one_slot(path: Path) -> None:
    for _ in range(30):
        opened_and(path, die)
    assert (path / SHARED).stat().st_size == SLOTS + 64


def test_a_forked_child_that_ends_leaves_its_parents_slot_alone(path: Path) -> None:
    with raxlog.open(path) as store:

        def work(say: Say) -> None:
            store.stream("mail").append({"by": "child"})
            store.close()

        with Child(work) as child:
            child.finish()
        with Child(lambda say: say(raxlog.open(path).last_end.how)) as other:
            assert other.finish() == ["clean"]  # the parent has it open, and is alive
    with raxlog.open(path) as store:
        assert store.last_end == raxlog.LastEnd("killed", (other.pid,), ()), "it never called close()"


def test_the_end_of_the_machine_is_told_from_a_kill_and_the_newest_records_are_looked_at(path: Path) -> None:
    pid = opened_and(path, die)
    restart_the_machine(path)
    with raxlog.open(path) as store:
        assert store.last_end == raxlog.LastEnd("power cut", (pid,), ())
        assert len(store.stream("mail")) == 101
    with raxlog.open(path) as store:
        assert store.last_end.how == "clean"


def test_after_a_power_cut_a_damaged_newest_record_is_named_and_the_store_opens(path: Path) -> None:
    opened_and(path, die)
    left = (path / SHARED).read_bytes()
    settle(path)
    (path / SHARED).write_bytes(left)
    restart_the_machine(path)
    damage(path, is_node_of(2))
    with raxlog.open(path) as store:
        assert store.last_end.how == "power cut"
        assert len(store.last_end.problems) == 1
        assert "mail" in store.last_end.problems[0]
        assert "checksum" in store.last_end.problems[0]
        assert len(list(store.stream("orders").range())) == 100


@pytest.mark.parametrize("content", [b"\x01" * 64, b"\xff" * 200, b"x", bytes(7)])
def test_a_damaged_file_of_slots_costs_no_more_than_a_look(path: Path, content: bytes) -> None:
    with (path / SHARED).open("r+b") as file:
        file.truncate(SLOTS)
        file.seek(SLOTS)
        file.write(content)
    with raxlog.open(path) as store:
        assert store.last_end.how == ("power cut" if len(content) >= 64 else "clean")
        assert store.last_end.problems == ()
    with raxlog.open(path) as store:
        assert store.last_end.how == "clean"


def test_relaxed_durability_loses_nothing_by_a_kill(path: Path) -> None:
    def work(say: Say) -> None:
        with raxlog.open(path, durability="relaxed") as store:
            while True:
                say(str(store.stream("mail").append({"x": 1})))

    for _ in range(10):
        with Child(work) as child:
            for _ in range(20):
                child.heard()
            child.send(signal.SIGKILL)
            said = child.all_heard()
            child.wait()
        with raxlog.open(path, durability="relaxed") as store:
            assert store.last_end.how == "killed"
            last = store.stream("mail").info().last_generated_id
            assert not said or last >= raxlog.StreamID(said[-1])


# -- damage ------------------------------------------------------------------------------------


def test_a_damaged_node_is_named_and_everything_else_can_be_read_and_written(path: Path) -> None:
    keys = []

    def pick(key: bytes) -> bool:  # the third node of "orders"
        if is_node_of(1)(key):
            keys.append(key)
        return is_node_of(1)(key) and len(keys) == 3

    key = damage(path, pick)
    node = "{}-{}".format(*records.node_id(key))
    with raxlog.open(path) as store:
        orders, mail = store.stream("orders"), store.stream("mail")
        with pytest.raises(raxlog.CorruptionError) as raised:
            list(orders.range())
        assert raised.value.node == node
        assert "orders" in str(raised.value) or "no. 1" in str(raised.value)
        last = records.node_id(keys[1])[0] - 1  # the next node after it is whole, and vouches for the end
        assert [str(e.id) for e in orders.range(end=f"{last}-0")] == [f"{n + 1}-0" for n in range(last)]
        after = list(orders.range("100-0", "+"))
        assert [str(e.id) for e in after] == ["100-0"]
        assert len(orders) == 100
        assert len(list(mail.range())) == 100
        group = orders.group("billing")
        assert len(group.pending_entries(count=100)) == 10
        assert group.ack("1-0", "2-0") == 2
        assert [e.fields["n"] for e in group.read("w", 3, ids="0")] == ["2", "3", "4"]
        orders.append({"more": 1})
        mail.append({"more": 1})
        assert len(orders) == 101
    with raxlog.open(path) as store:
        assert store.stream("orders").get("100-0") is not None


def test_a_damaged_header_closes_its_stream_and_no_other(path: Path) -> None:
    damage(path, lambda key: key == layout.header_key(1))
    with raxlog.open(path) as store:
        with pytest.raises(raxlog.CorruptionError):
            len(store.stream("orders"))
        with pytest.raises(raxlog.CorruptionError):
            store.stream("orders").append({"x": 1})
        assert store.streams() == ["mail", "orders"]
        assert len(store.stream("mail")) == 100
        store.stream("mail").append({"x": 1})
        store.stream("new").append({"x": 1})
