"""check_history: it accepts what one order of the operations explains, and names what none does."""

from __future__ import annotations

import itertools
import os
import random
import time
from collections.abc import Sequence
from contextlib import suppress

import pytest
import raxlog
from raxlog.crashtest import HistoryError, Operation, check_history

SEED = int(os.environ.get("RAXLOG_SEED", time.time_ns() % 1_000_000_007))


def appended(process: int, begin: float, end: float | None, **values: list[int]) -> Operation:
    return Operation(process, begin, end, appends=values)


def read(process: int, begin: float, end: float, **values: list[int]) -> Operation:
    return Operation(process, begin, end, reads=values)


def refused(*operations: Operation) -> HistoryError:
    with pytest.raises(HistoryError) as caught:
        check_history(operations)
    return caught.value


def test_a_history_of_calls_one_after_the_other_is_accepted() -> None:
    check_history([])
    check_history([appended(1, 0, 1, a=[1]), read(1, 2, 3, a=[1]), appended(2, 4, 5, a=[2, 3]),
                   read(1, 6, 7, a=[1, 2, 3])])


def test_a_read_beside_an_append_may_show_it_or_not() -> None:
    for seen in ([], [1]):
        check_history([appended(1, 0, 10, a=[1]), read(2, 1, 9, a=seen)])


def test_a_read_that_misses_what_was_acknowledged_before_it_began_is_named() -> None:
    old, missed = read(2, 2, 3, a=[]), appended(1, 0, 1, a=[1])
    error = refused(missed, old)
    assert error.operations == (old, missed)
    assert "too old" in str(error)
    assert "process 2, from 2.000000 to 3.000000: read [] of 'a'" in str(error)


def test_a_reader_that_goes_back_is_named() -> None:
    first, second = read(2, 2, 3, a=[1, 2]), read(3, 4, 5, a=[1])
    assert refused(appended(1, 0, 9, a=[1]), appended(4, 0, 9, a=[2]), first, second).operations == (second, first)


def test_a_transaction_seen_by_half_is_named() -> None:
    both = appended(1, 0, 9, a=[1, 2])
    half = read(2, 3, 4, a=[1])
    assert refused(both, half, read(2, 5, 6, a=[1, 2])).operations == (half, both)
    assert refused(both, half).operations == (half, both)  # where no read shows the rest


def test_a_transaction_over_two_streams_seen_in_one_of_them_is_a_circle_of_two() -> None:
    both, half = appended(1, 0, 9, a=[1], b=[2]), read(2, 3, 4, a=[1], b=[])
    error = refused(both, half, read(3, 10, 11, a=[1], b=[2]))
    assert sorted(one.process for one in error.operations) == [1, 2]
    assert "did not see what the next appended to 'b'" in str(error)
    assert "what it appended to 'a' was read by the next" in str(error)


def test_write_skew_is_a_circle_that_no_single_stream_shows() -> None:
    one = Operation(1, 0, 9, appends={"a": [1]}, reads={"b": []})
    other = Operation(2, 0, 9, appends={"b": [2]}, reads={"a": []})
    error = refused(one, other, read(3, 10, 11, a=[1], b=[2]))
    assert sorted(one.process for one in error.operations) == [1, 2]


def test_two_readers_that_saw_two_appends_in_opposite_order_are_named() -> None:
    error = refused(appended(1, 0, 9, a=[1]), appended(2, 0, 9, b=[2]),
                    read(3, 1, 8, a=[1], b=[]), read(4, 1, 8, a=[], b=[2]))
    assert len(error.operations) == 4


def test_streams_that_differ_in_two_reads_are_named() -> None:
    writes = [appended(1, 0, 9, a=[1]), appended(2, 0, 9, a=[2])]
    assert "differ at place 0" in str(refused(*writes, read(3, 1, 2, a=[1, 2]), read(4, 1, 2, a=[2])))


def test_a_value_from_nowhere_is_named() -> None:
    assert "7, which no operation appended" in str(refused(read(1, 0, 1, a=[7])))


def test_a_call_that_never_returned_may_have_been_done_or_not_and_stays_done_once_seen() -> None:
    killed = appended(1, 0, None, a=[1])
    check_history([killed, read(2, 5, 6, a=[]), read(2, 7, 8, a=[1])])
    check_history([killed, read(2, 5, 6, a=[])])
    refused(killed, read(2, 5, 6, a=[1]), read(2, 7, 8, a=[]))


def test_a_transaction_may_read_its_own_appends() -> None:
    check_history([appended(1, 0, 1, a=[1]), Operation(2, 2, 3, appends={"a": [2, 3]}, reads={"a": [1, 2, 3]}),
                   Operation(2, 4, 5, appends={"a": [4]}, reads={"a": [1, 2, 3]}), read(1, 6, 7, a=[1, 2, 3, 4])])


def test_a_value_appended_twice_and_an_end_before_the_beginning_are_refused() -> None:
    for operations in ([appended(1, 0, 1, a=[1]), appended(2, 0, 1, a=[1])], [appended(1, 0, 1, a=[1, 1])],
                       [appended(1, 1, 0, a=[1])]):
        with pytest.raises(raxlog.InvalidArgument):
            check_history(operations)


def explained(operations: Sequence[Operation]) -> bool:
    """Whether some order explains the operations: by trying all of them."""
    for order in itertools.permutations(operations):
        if any(b.end is not None and b.end < a.begin for n, a in enumerate(order) for b in order[n + 1 :]):
            continue
        there: dict[str, list[object]] = {}
        for one in order:
            if any(list(values) != there.get(name, []) for name, values in one.reads.items()):
                break
            for name, some in one.appends.items():
                there.setdefault(name, []).extend(some)
        else:
            return True
    return False


def test_random_histories_are_judged_as_by_trying_every_order() -> None:
    """Five operations on two streams, each read at a random moment of a random order, most of them a little wrong."""
    print(f"RAXLOG_SEED={SEED}")
    rng = random.Random(SEED)
    verdicts = []
    for _ in range(1500):
        there: dict[str, list[int]] = {"a": [], "b": []}
        past: list[dict[str, list[int]]] = [{"a": [], "b": []}]
        operations = []
        for number in range(rng.randint(2, 5)):
            begin = number * 2.0 - rng.choice([0, 1, 3, 5])
            shown = past[-1] if rng.random() < 0.7 else rng.choice(past)
            reads = {name: list(shown[name]) for name in rng.sample(["a", "b"], rng.randint(0, 2))}
            appends = {name: [10 * number + n for n in range(rng.randint(1, 2))]
                       for name in rng.sample(["a", "b"], rng.randint(0, 2))}
            for name, values in appends.items():
                there[name] += values
            past.append({name: list(values) for name, values in there.items()})
            operations.append(Operation(number, begin, number * 2.0 + 0.5, appends, reads))
        operations.append(Operation("last", 100, 101, reads={name: list(values) for name, values in there.items()}))
        rng.shuffle(operations)
        wanted = explained(operations)
        found = True
        with suppress(HistoryError):
            check_history(operations)
            found = False
        assert found != wanted, operations
        verdicts.append(wanted)
    assert 200 < sum(verdicts) < 1300


def test_a_history_of_thousands_of_operations_is_judged_in_a_moment() -> None:
    operations = [Operation(n % 7, n, n + 3.5, appends={"a": [n]}) for n in range(5000)]
    operations += [read(8, n + 4.0, n + 4.2, a=list(range(n + 1))) for n in range(0, 5000, 50)]
    check_history(operations)
    operations.append(read(9, 5010, 5011, a=list(range(4999))))
    assert "too old" in str(refused(*operations))
