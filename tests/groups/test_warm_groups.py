"""What a process keeps warm of a group is true however other processes work on the same group in between."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import group_steps
import pytest
import raxlog

STEPS = 400


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
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other,
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
