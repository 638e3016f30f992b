"""Following a stream: every entry once, in order, whoever appends it and however often the follower begins anew."""

from __future__ import annotations

import random
import sys
import threading
import time

import forkserver
import pytest
import raxlog

APPEND = """
import random, sys, time
import raxlog
path, seed, many = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
chance = random.Random(seed)
with raxlog.open(path) as store:
    stream = store.stream("orders")
    n = 0
    while n < many:
        some = min(chance.choice((1, 1, 2, 30, 400)), many - n)
        stream.extend([{"n": n + i} for i in range(some)])
        n += some
        if chance.random() < 0.2:
            time.sleep(chance.random() / 100)
"""


def numbers(entries):
    return [int(entry.fields["n"]) for entry in entries]


def test_entries_of_another_process_come_once_in_order_however_often_it_is_begun_anew(store):
    seed, many = random.randrange(1 << 30), 6_000
    print(f"seed {seed}")
    chance = random.Random(seed)
    orders = store.stream("orders")
    orders.append({"n": -1})
    follower = orders.follow("$", timeout=20)
    with forkserver.Popen([sys.executable, "-c", APPEND, str(store.path), str(seed), str(many)]) as writer:
        found = []
        while len(found) < many:
            for entry in follower:
                found.append(entry)
                if len(found) == many or chance.random() < 0.01:
                    break
            follower = orders.follow(follower.after, timeout=20)
    assert writer.returncode == 0
    assert numbers(found) == list(range(many))
    assert [entry.id for entry in found] == sorted({entry.id for entry in found})
    assert next(orders.follow(found[-2].id)).id == found[-1].id


def test_it_ends_after_a_time_without_entries_and_may_go_on(store):
    orders = store.stream("orders")  # which is not there yet
    follower = orders.follow(timeout=0.05)
    began = time.monotonic()
    assert list(follower) == []
    assert 0.04 < time.monotonic() - began < 2
    first, second = orders.extend([{"n": 1}, {"n": 2}])
    assert numbers(follower) == [1, 2]
    assert follower.after == second
    assert numbers(orders.follow("0", 0)) == [1, 2]
    assert numbers(orders.follow(first, 0)) == [2]
    assert list(orders.follow(raxlog.StreamID.MAX, 0)) == []


def test_a_stop_ends_a_wait_and_closing_the_store_raises(store):
    stop = raxlog.Stop()
    threading.Timer(0.1, stop.set).start()
    assert list(store.stream("orders").follow(stop=stop)) == []
    follower = store.stream("orders").follow()
    threading.Timer(0.1, store.close).start()
    with pytest.raises(raxlog.StoreClosed):
        next(follower)


def test_of_a_stream_created_again_all_entries_come_and_of_one_set_back_those_behind(store):
    orders = store.stream("orders")
    orders.append({"n": 1}, "5-0")
    follower = orders.follow("0", 0)
    assert numbers(follower) == [1]
    store.delete_stream("orders")
    assert numbers(follower) == []
    orders.append({"n": 2}, "1-0")
    assert numbers(follower) == [2]
    orders.append({"n": 3}, "9-0")
    assert numbers(follower) == [3]
    orders.delete("9-0")
    orders.set_id("9-5", max_deleted_id="1-0")
    assert numbers(follower) == []
    store.delete_stream("orders")
    orders.append({"n": 4}, "20-0")  # beyond what it was: not seen before either
    assert numbers(follower) == [4]


def test_a_stream_set_back_is_followed_from_there(store):
    orders = store.stream("orders")
    orders.append({"n": 1}, "5-0")
    orders.set_id("50-0")
    follower = orders.follow("0", 0)
    assert numbers(follower) == [1]
    assert follower.after == raxlog.StreamID(50, 0)
    orders.set_id("5-0")
    assert numbers(follower) == []
    orders.append({"n": 2}, "6-0")
    assert numbers(follower) == [2]


def test_deleted_entries_are_passed_over_and_waited_behind(store):
    orders = store.stream("orders")
    ids = orders.extend([{"n": n} for n in range(1_000)])
    orders.delete(*ids[500:])
    follower = orders.follow("0", 0.2)
    used = time.process_time()
    assert numbers(follower) == list(range(500))
    assert time.process_time() - used < 0.15  # it slept
    assert follower.after == ids[-1]


def test_an_exception_at_any_bytecode_loses_nothing_behind_the_position(store):
    orders = store.stream("orders")
    ids = orders.extend([{"n": n} for n in range(3)])
    number = 0
    while True:
        number += 1
        left = number

        def trace(frame, event, _):
            nonlocal left
            if event == "call" and not frame.f_code.co_filename.endswith(("follow.py", "range_read.py")):
                return None
            frame.f_trace_opcodes = True
            if event == "opcode":
                left -= 1
                if left == 0:
                    raise KeyboardInterrupt
            return trace

        follower = orders.follow("0", 0)
        found = []
        sys.settrace(trace)
        try:
            for entry in follower:
                found.append(entry.id)
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(None)
        begun = follower.after
        returned = [sid for sid in ids if sid <= begun]
        assert found in (returned, returned[:-1])
        assert [entry.id for entry in follower] == [sid for sid in ids if sid > begun]
        if left > 0:
            break
    assert number > 100


def test_what_makes_no_sense_is_refused(store):
    orders = store.stream("orders")
    for timeout in (-1, float("nan"), "1", True):
        with pytest.raises(raxlog.InvalidArgument, match="timeout"):
            orders.follow(timeout=timeout)
    with pytest.raises(raxlog.InvalidStreamID):
        orders.follow("x")
    with store.transaction() as tx, pytest.raises(raxlog.TransactionError, match="follow outside it"):
        tx.stream("orders").follow()
    with store.transaction(), pytest.raises(raxlog.TransactionError):
        next(orders.follow())
