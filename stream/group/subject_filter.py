"""Subject filters: a group that delivers only what was published under certain subjects.

    stream     a.1   b.1   a.2   b.2   b.3  |  a.3        a group with subjects ["a.*"]
    read       a.1         a.2              |  a.3        delivered, and pending
               passed over: b.1, b.2, b.3                 never delivered, never pending

The group's last delivered ID moves over what it passes, so nothing is read twice. An entry that was
appended without a subject is passed over, too.

The layer above, when it is loaded, registers with use() the rules by which patterns match subjects.
The patterns themselves are part of the group's record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ...storage.errors import InvalidArgument
from ...storage.trees.rax import RaxTransaction
from ..entries.header import StreamHeader
from ..entries.range_read import read_now
from ..node.arguments import Text
from ..node.entry import Entry
from ..node.stream_id import make_id

ID = tuple[int, int]
Matcher = Callable[[bytes], bool]
Check = Callable[[Text | Iterable[Text]], list[bytes]]

AT_ONCE = 20_000  # entries looked at in one write transaction, found or not
CHUNK = 500

_rules: list[tuple[Check, Callable[[list[bytes]], Matcher]]] = []


def use(check: Check, matcher: Callable[[list[bytes]], Matcher]) -> None:
    """Register the rules for subjects: how patterns are checked, and how they are matched."""
    _rules[:] = [(check, matcher)]


def checked_subjects(given: Text | Iterable[Text]) -> list[bytes]:
    """Patterns as they are stored. Raises what the rules raise for an invalid one."""
    return _ruled()[0](given)


def matcher_of(subjects: list[bytes]) -> Callable[[Entry], bool]:
    """The function that decides whether an entry is for a group with these patterns."""
    matches = _ruled()[1](subjects)

    def takes(entry: Entry) -> bool:
        subject = entry.subject
        return subject is not None and matches(subject)

    return takes


def _ruled() -> tuple[Check, Callable[[list[bytes]], Matcher]]:
    if not _rules:
        raise InvalidArgument("a group filtered by subject needs raxlog.index; open the store with raxlog.open()")
    return _rules[0]


def read_matching(txn: RaxTransaction, number: int, header: StreamHeader, last: ID, matches: Callable[[Entry], bool],
                  count: int | None, takes: Callable[[Entry], bool] | None,
                  chunk: int) -> tuple[list[Entry], list[ID]]:
    """Entries behind ``last`` that match, and the IDs of all passed, these included. Reads ``chunk`` at a time.

    ``takes`` may end the read before an entry, as in deliver.read_new().
    """
    found: list[Entry] = []
    passed: list[ID] = []
    start = make_id(*last).next()
    while len(passed) < AT_ONCE:
        some = read_now(txn, number, header, start, chunk)
        for entry in some:
            if matches(entry):
                if len(found) == count or (takes is not None and not takes(entry)):
                    return found, passed
                found.append(entry)
            passed.append(entry.id)
        if len(some) < chunk:
            return found, passed
        start = some[-1].id.next()
    return found, passed


def lag(txn: RaxTransaction, number: int, header: StreamHeader, last: ID, subjects: list[bytes]) -> int:
    """Live entries behind ``last`` that match: exact, by looking at each of them. About 1 µs each."""
    if last >= header.last:
        return 0
    matches = matcher_of(subjects)
    start = make_id(*last).next()
    count = 0
    while True:
        some = read_now(txn, number, header, start, CHUNK)
        count += sum(map(matches, some))
        if len(some) < CHUNK or some[-1].id >= header.last:
            return count
        start = some[-1].id.next()
