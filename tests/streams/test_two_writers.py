"""Two processes that change one stream in turn: each goes on from what the other has left, whatever that was.

What a process keeps of a stream it follows where another has only appended, and reads anew where there was more to it.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import raxlog
from elsewhere import writing
from stored_nodes import check_stream

STEPS = 250
SIZES = [1, 40, 1500]


@pytest.mark.parametrize("seed", range(6))
def test_each_goes_on_from_what_the_other_has_left(path: Path, seed: int) -> None:
    chance = random.Random(seed)
    rows: list[tuple[int, int]] = []  # number of the ID, size of the value
    number = 0
    most = chance.choice([0, 3, 20])
    with (raxlog.open(path, encoding="utf-8", durability="relaxed", node_max_entries=most) as store,
          writing(path) as elsewhere):
        names = {"store": store, "raxlog": raxlog}
        for step in range(STEPS):
            kind = chance.choice(["append"] * 12 + ["extend"] * 3 + ["delete last", "delete"] * 2 + [
                "trim", "set_id", "group", "replace", "rename", "refused", "all"])
            new = [(number + 1 + each, chance.choice(SIZES)) for each in range(chance.randint(1, 5))]
            if kind in ("append", "extend"):
                rows += new[:1] if kind == "append" else new
                number = rows[-1][0]
                statements = "store.stream('q').extend({}, {})".format(
                    *([{"v": "x" * size} for _, size in new], [f"{n}-0" for n, _ in new]) if kind == "extend"
                    else ([{"v": "x" * new[0][1]}], [f"{number}-0"]))
            elif kind in ("delete last", "delete") and rows:
                gone = rows.pop() if kind == "delete last" else rows.pop(chance.randrange(len(rows)))
                statements = f"store.stream('q').delete('{gone[0]}-0')"
            elif kind == "trim":
                rows = rows[-30:]
                statements = "store.stream('q').trim(maxlen=30)"
            elif kind == "set_id" and number:
                number += chance.randint(0, 3)
                statements = f"store.stream('q').set_id('{number}-0')"
            elif kind == "group" and number:
                statements = f"store.stream('q').create_group('g{step}')"
            elif kind == "replace":
                rows, number = new[:1], new[0][0]
                statements = ("store.delete_stream('q'); "
                              f"store.stream('q').append({{'v': 'x' * {new[0][1]}}}, '{number}-0')")
            elif kind == "rename" and number:
                statements = "store.rename_stream('q', 'p'); store.rename_stream('p', 'q')"
            elif kind == "all" and number:
                rows = []
                statements = "store.stream('q').trim(maxlen=0)"
            else:
                statements = "assert store.stream('q').delete('18446744073709551615-0') == 0"
            if chance.random() < 0.5:
                elsewhere(statements)
            else:
                exec(statements, names)
            found = [(entry.id.ms, len(entry.fields["v"])) for entry in store.stream("q").range()]
            assert (found, store.stream("q").last_id.ms) == (rows, number), (step, kind)
            if step % 10 == 0:
                check_stream(store, b"q")
        check_stream(store, b"q")
