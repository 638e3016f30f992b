"""Dead letters: each is that of the group which it names, whatever other groups, and programs, have in its stream."""

from __future__ import annotations

import contextlib
import json
import random
from collections import Counter
from typing import Any

import pytest
import raxlog
from cli_runs import Run, one_line

pytest_plugins = ["cli_fixtures"]

WHOLE = {"id": "5-0", "stream": "jobs", "group": "mail", "consumer": "w", "deliveries": 1, "reason": "failed",
         "error": "E: no", "traceback": ""}
MALFORMED = [
    b"", b"{", b"\xff", b"[]", b"5", b"null", b'"text"', b"{}", b"[" * 100_000, b'{"id": ' + b"9" * 5000 + b"}",
    *(json.dumps({**WHOLE, **wrong}).encode() for wrong in (
        {"id": "x"}, {"id": "0-0"}, {"id": 5}, {"id": f"{1 << 64}-0"}, {"id": "-"}, {"id": "5-0-0"},
        {"deliveries": "1"}, {"deliveries": -1}, {"deliveries": 1 << 64}, {"deliveries": None},
        {"deliveries": True}, {"stream": None}, {"group": ["mail"]},
        {"reason": 7}, {"error": {}}, {"traceback": 1}, {"consumer": None})),
]


def give_up(entry: raxlog.Entry) -> None:
    raise raxlog.Discard("no")


def given_up(store: raxlog.Store, stream: str, group: str, *numbers: int) -> raxlog.Group:
    """A group all of whose entries are dead letters."""
    made = store.stream(stream).create_group(group, "0", create_stream=True, exist_ok=True)
    store.stream(stream).extend([{"n": n} for n in numbers])
    made.worker(give_up).run(burst=True)
    return made


def numbers(letters: Any) -> list[int]:
    return [int(letter.entry.fields["n"]) for letter in letters]


def test_two_groups_whose_letters_have_one_stream_see_and_move_only_their_own(store: raxlog.Store) -> None:
    one, two = given_up(store, "a", "b.c", 1, 2), given_up(store, "a.b", "c", 3, 4, 5)
    assert one.dead_letters.name == two.dead_letters.name == "a.b.c.dead"
    assert (numbers(one.dead_letters), numbers(two.dead_letters)) == ([1, 2], [3, 4, 5])
    assert (len(one.dead_letters), len(two.dead_letters)) == (2, 3)
    mine, other = next(iter(one.dead_letters)), next(iter(two.dead_letters))
    assert one.dead_letters.get(mine.id) == mine
    assert one.dead_letters.get(other.id) is None
    assert one.dead_letters.replay(other.id) == one.dead_letters.purge(other.id) == 0
    assert two.dead_letters.purge(where=lambda letter: letter.entry.fields["n"] in ("1", "3")) == 1
    assert one.dead_letters.replay() == 2
    assert [entry.fields["n"] for entry in store.stream("a")] == ["1", "2"] * 2
    assert len(store.stream("a.b")) == 3
    assert one.dead_letters.purge() == 0
    assert numbers(two.dead_letters) == [4, 5]
    assert two.dead_letters.purge() == 2
    assert len(store.stream("a.b.c.dead")) == 0
    assert raxlog.check(store.path).ok


def test_groups_whose_names_are_no_text_have_their_own_letters_in_one_stream(store: raxlog.Store) -> None:
    ends = [b"\xff", rb"\xff", rb"\udcff", "\N{LATIN SMALL LETTER Y WITH DIAERESIS}".encode(), b"\0", rb"\0", b"%s",
            b"\"", b"\xed\xb3\xbf"]
    store.stream("a").append({"n": 1})
    groups = [store.stream("a").create_group(b"g" * 500 + end, "0") for end in ends]
    for group in groups:
        group.worker(give_up).run(burst=True)
    assert len({group.dead_letters.name for group in groups}) == 1  # the names are cut off there
    for group in groups:
        assert (numbers(group.dead_letters), len(group.dead_letters)) == ([1], 1), group
        assert group.dead_letters.purge() == 1


def test_the_commands_and_the_status_show_each_group_its_own_letters(store: raxlog.Store, raxlog_cli: Run) -> None:
    given_up(store, "a", "b.c", 1, 2)
    given_up(store, "a.b", "c", 3)
    found = {(one.name, group.name): group.dead_letters for one in store.status().streams for group in one.groups}
    assert found == {("a", "b.c"): 2, ("a.b", "c"): 1}
    path = str(store.path)
    store.close()
    for arguments, many in (("a b.c", 2), ("a.b c", 1)):
        status, out, _ = raxlog_cli("dlq", "list", path, *arguments.split(), "--json")
        assert (status, len(out.splitlines())) == (0, many)
    _, metrics, _ = raxlog_cli("metrics", path)
    shown = dict(line.rsplit(" ", 1) for line in metrics.splitlines() if line.startswith("raxlog_group_dead_letters{"))
    assert sorted(map(float, shown.values())) == [1, 2]
    assert raxlog_cli("dlq", "purge", path, "a.b", "c")[1] == "1 dead letter deleted\n"
    assert raxlog_cli("dlq", "purge", path, "a", "b.c")[1] == "2 dead letters deleted\n"


def test_counts_stay_right_while_letters_come_and_go(store: raxlog.Store) -> None:
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    chance = random.Random(seed)
    groups = {(stream, group): store.stream(stream).create_group(group, "0", create_stream=True)
              for stream, group in (("a", "b.c"), ("a.b", "c"))}
    for n in range(60):
        (stream, name), group = chance.choice(list(groups.items()))
        match chance.randrange(5):
            case 0 | 1 | 2:
                given_up(store, stream, name, *range(n, n + chance.randrange(4)))
            case 3:
                group.dead_letters.purge(where=lambda _: chance.randrange(3) == 0)
            case _:
                with contextlib.suppress(KeyError), store.transaction() as tx:  # it is undone, and is not counted
                    letters = tx.group(stream, name).dead_letters
                    letters.purge(where=lambda _: chance.randrange(3) == 0)
                    assert len(letters) == len(list(letters))
                    tx.stream("a.b.c.dead").append({"$dead": "{}"})
                    assert len(letters) == len(list(letters))
                    raise KeyError
        shown = {(one.name, each.name): each.dead_letters for one in store.status().streams for each in one.groups}
        for (stream, name), group in groups.items():
            many = len(list(group.dead_letters))
            assert len(group.dead_letters) == shown[stream, name] == many


def test_a_malformed_letter_is_shown_as_such_and_can_be_purged_and_not_replayed(
    store: raxlog.Store, raxlog_cli: Run
) -> None:
    group = given_up(store, "jobs", "mail", 1)
    letters = store.stream("jobs.mail.dead")
    ids = letters.extend([{"$dead": wrong, "n": 7} for wrong in MALFORMED] + [{"n": 8}])
    found = list(group.dead_letters)
    assert len(group.dead_letters) == len(found) == len(ids) + 1
    assert numbers(found) == [1] + [7] * len(MALFORMED) + [8]
    for letter in found[1:]:
        assert (letter.reason, letter.deliveries, letter.origin) == ("malformed", 0, raxlog.StreamID.MIN)
        assert letter.error.startswith("the letter is malformed: ")
        assert group.dead_letters.get(letter.id) == letter
    assert group.dead_letters.replay(ids[0]) == 0
    assert group.dead_letters.replay() == 1
    assert Counter(entry.fields["n"] for entry in store.stream("jobs")) == {"1": 2}
    assert group.dead_letters.purge(ids[0]) == 1
    store.close()
    path = str(store.path)
    status, out, _ = raxlog_cli("dlq", "list", path, "jobs", "mail", "--reason", "malformed")
    assert (status, out.count("the letter is malformed")) == (0, len(ids) - 1)
    assert raxlog_cli("dlq", "show", path, "jobs", "mail")[0] == 0
    assert raxlog_cli("dlq", "purge", path, "jobs", "mail")[:2] == (0, f"{len(ids) - 1} dead letters deleted\n")


@pytest.mark.parametrize(("named", "is_shown"), [
    ({"stream": "a.b", "group": "c"}, (False, True)), ({"stream": "a", "group": "b.c"}, (True, False)),
    ({"stream": "x", "group": "y"}, (False, False)), ({"stream": "a"}, (True, True)), ({}, (True, True))])
def test_a_malformed_letter_that_names_a_group_is_left_alone_by_the_others(
    store: raxlog.Store, named: dict[str, str], is_shown: tuple[bool, bool]
) -> None:
    groups = [given_up(store, "a", "b.c"), given_up(store, "a.b", "c")]
    store.stream("a.b.c.dead").append({"$dead": json.dumps({"id": "x", **named})})
    assert tuple(len(group.dead_letters) == 1 for group in groups) == is_shown
    assert [group.dead_letters.purge() for group in groups] == [is_shown[0], is_shown[1] and not is_shown[0]]


def test_a_stream_that_holds_no_dead_letters_is_refused_and_left_as_it_is(
    store: raxlog.Store, raxlog_cli: Run
) -> None:
    store.stream("jobs.mail.dead").extend([{"n": 1}, {"$dead": "{}"}])
    store.stream("orders").append({"n": 1})
    group = store.stream("jobs").create_group("mail", "0", create_stream=True)
    letters = group.dead_letters
    for call in (lambda: list(letters), lambda: len(letters), lambda: letters.get("1-0"), letters.replay,
                 letters.purge, lambda: letters.purge("1-0"), lambda: group.worker(print, dead_letters="orders")):
        with pytest.raises(raxlog.InvalidArgument, match=r"holds no dead letters.*\$dead"):
            call()
    assert store.status().streams[0].groups[0].dead_letters == 0
    assert (len(store.stream("jobs.mail.dead")), len(store.stream("orders"))) == (2, 1)
    store.close()
    status, _, err = raxlog_cli("dlq", "purge", str(store.path), "jobs", "mail")
    assert (status, "holds no dead letters" in one_line(err)) == (2, True)


def test_letters_of_several_groups_can_be_in_one_stream_that_is_named(store: raxlog.Store) -> None:
    for name in ("a", "b"):
        group = store.stream("jobs").create_group(name, "0", create_stream=True)
        store.stream("jobs").append({"n": 1})
        group.worker(give_up, dead_letters="jobs.a.dead").run(burst=True)
    assert len(store.stream("jobs.a.dead")) == 3
    assert len(store.stream("jobs").group("a").dead_letters) == 1
