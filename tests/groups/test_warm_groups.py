"""What a process keeps warm of a group is true however other processes work on the same group in between."""

from __future__ import annotations

import contextlib
import json
import random
import subprocess
import sys
from pathlib import Path

import forkserver
import group_steps
import pytest
import raxlog

STEPS = 250


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_two_processes_in_turns_are_given_what_one_would_be_that_keeps_nothing(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    print("seed", seed)
    cold = tmp_path / "cold.rax"
    for path in (tmp_path / "warm.rax", cold):
        with raxlog.open(path) as store:
            store.stream("s").create_group("g", "0", create_stream=True)
    command = [sys.executable, group_steps.__file__, str(tmp_path / "warm.rax")]
    done = 0
    with (
        raxlog.open(tmp_path / "warm.rax") as store,
        forkserver.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other,
    ):
        assert other.stdin is not None
        assert other.stdout is not None
        for number in range(1, STEPS + 1):
            step = group_steps.draw(rng, number)
            with raxlog.open(cold) as alone:
                expected = json.loads(json.dumps(group_steps.perform(alone, step)))
                state = group_steps.shown(alone)
            if rng.random() < 0.5:
                result = json.loads(json.dumps(group_steps.perform(store, step)))
            else:
                other.stdin.write(json.dumps(step) + "\n")
                other.stdin.flush()
                result = json.loads(other.stdout.readline())
            assert result == expected, step
            assert group_steps.shown(store) == state, step
            done += bool(result)
        other.stdin.close()
    assert done > STEPS // 3
    assert raxlog.check(tmp_path / "warm.rax").ok


def test_a_backlog_is_read_from_its_node_once_and_what_goes_in_between_is_not_delivered(tmp_path: Path) -> None:
    """By this process, by another, in a transaction, and in one that is undone."""
    other = "import raxlog, sys; raxlog.open(sys.argv[1]).stream('s').delete(sys.argv[2])"
    with raxlog.open(tmp_path / "s.rax") as store:
        stream = store.stream("s")
        group = stream.create_group("g")
        ids = stream.extend([{"n": n} for n in range(60)])

        def taken(reader: raxlog.Group = group) -> list[raxlog.StreamID]:
            return [entry.id for entry in reader.read("c", count=1)]

        assert [taken() for _ in range(4)] == [[sid] for sid in ids[:4]]
        stream.delete(ids[4])
        assert taken() == [ids[5]]
        forkserver.run([sys.executable, "-c", other, store.path, str(ids[6])], check=True)
        assert taken() == [ids[7]]
        with store.transaction() as tx:
            tx.stream("s").delete(ids[8])
            assert taken(tx.group("s", "g")) == [ids[9]]
        with contextlib.suppress(KeyError), store.transaction() as tx:
            tx.stream("s").delete(ids[10], ids[11])
            assert taken(tx.group("s", "g")) == [ids[12]]
            raise KeyError
        assert [taken(), taken()] == [[ids[10]], [ids[11]]]
        stream.trim(maxlen=40)
        assert taken() == [ids[20]]
        last = stream.append({"n": 60})
        assert [sid for _ in range(40) for sid in taken()] == [*ids[21:], last]
    assert raxlog.check(tmp_path / "s.rax").ok
