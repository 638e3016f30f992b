"""Unique names: one entry at a time keeps a name, until it is done, delivered, or a time has passed."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
import raxlog
import raxlog.aio
import raxlog.testing
from examples import examples
from flipped_stores import problems_of
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from raw_records import changed_copy, records_of, resealed
from raxlog.storage.format import keys
from raxlog.stream import stream as stream_module

NAMES = ("a", "b", b"\xff\x00")


class Undone(Exception):
    """Raised to end a transaction without a change."""


@pytest.fixture
def jobs(store: raxlog.Store) -> raxlog.Stream:
    return store.stream("jobs")


@pytest.fixture
def group(jobs: raxlog.Stream) -> raxlog.Group:
    return jobs.create_group("w")


def test_a_name_is_kept_until_every_group_is_done(jobs: raxlog.Stream, group: raxlog.Group) -> None:
    other = jobs.create_group("other")
    first = jobs.append({"n": 1}, unique="invoice-7")
    assert isinstance(first, raxlog.Appended)
    assert first.is_new
    for read in (group, other):
        again = jobs.append({"n": 2}, unique="invoice-7")
        assert (again, again.is_new, len(jobs)) == (first, False, 1)
        [entry] = read.read("c")
        assert jobs.append({"n": 2}, unique="invoice-7") == first
        assert read.ack(entry.id) == 1
    second = jobs.append({"n": 2}, unique="invoice-7")
    assert second.is_new
    assert second > first
    assert jobs.append({"n": 3}, unique="invoice-8").is_new


def test_an_entry_says_its_name_and_shows_it_among_no_fields(jobs: raxlog.Stream, group: raxlog.Group) -> None:
    jobs.append({"n": 1}, unique="invoice-7", until=60)
    jobs.append([("n", 2)], unique=b"\xff")
    jobs.append({"n": 3})
    assert [entry.unique for entry in jobs] == ["invoice-7", "\udcff", None]
    assert [entry.fields for entry in group.read("c", count=9)] == [{"n": "1"}, {"n": "2"}, {"n": "3"}]
    with pytest.raises(raxlog.InvalidFields, match="reserved"):
        jobs.append({"$entry": '{"unique": "x"}', "n": 1})


def test_delivered_ends_once_each_group_has_been_given_the_entry(jobs: raxlog.Stream, group: raxlog.Group) -> None:
    other = jobs.create_group("other")
    jobs.append({"n": 1}, unique="a", until="delivered")
    group.read("c")
    assert not jobs.append({"n": 2}, unique="a").is_new
    other.read("c")
    assert jobs.append({"n": 2}, unique="a").is_new


def test_seconds_pass_whatever_becomes_of_the_entry() -> None:
    with raxlog.testing.clock() as clock, raxlog.testing.store() as store:
        jobs = store.stream("jobs")
        first = jobs.append({"n": 1}, unique="a", until=60)
        jobs.delete(first)
        clock.advance(59.9)
        assert jobs.append({"n": 2}, unique="a", until=60) == first
        assert len(jobs) == 0
        clock.advance(0.2)
        assert jobs.append({"n": 2}, unique="a", until=60).is_new


@pytest.mark.parametrize("end", ["ack", "delete", "trim", "delref", "ack_delete", "dead letter", "destroy", "set_id",
                                 "cancel", "cancel before delivery", "noack", "retention", "give up"])
def test_however_an_entry_ends_its_name_is_free(store: raxlog.Store, jobs: raxlog.Stream, group: raxlog.Group,
                                                end: str) -> None:
    jobs.append({"n": 1}, unique="a")
    if end not in ("cancel before delivery", "noack", "set_id"):
        [entry] = group.read("c")
        assert not jobs.append({"n": 2}, unique="a").is_new
    if end == "ack":
        group.ack(entry.id)
    elif end == "delete":
        jobs.delete(entry.id)
    elif end == "trim":
        jobs.trim(maxlen=0)
    elif end == "delref":
        jobs.delete_ex(entry.id, refs="delref")
    elif end == "ack_delete":
        group.ack_delete(entry.id)
    elif end == "dead letter":
        def handle(entry: raxlog.Entry) -> None:
            raise raxlog.Discard("no")
        group.nack(entry.id)
        group.worker(handle).run(burst=True)
        assert len(group.dead_letters) == 1
    elif end == "give up":
        def fail(entry: raxlog.Entry) -> None:
            raise ValueError("no")
        group.nack(entry.id)
        group.worker(fail, max_deliveries=1, retry=0).run(burst=True)
        assert len(group.dead_letters) == 1
    elif end == "destroy":
        jobs.create_group("another", "$")
        group.destroy()
    elif end == "set_id":
        group.set_id("$")
    elif end == "cancel":
        group.cancel(entry.id)
    elif end == "cancel before delivery":
        group.cancel(jobs.last_id)
    elif end == "noack":
        group.read("c", noack=True)
    elif end == "retention":
        jobs.configure(retention=raxlog.Retention(maxlen=1))
        for n in range(300):
            jobs.append({"n": n, "filler": "x" * 200})
        store.maintain(exact=True)
    assert jobs.append({"n": 2}, unique="a").is_new


def test_a_retry_keeps_its_name(jobs: raxlog.Stream, group: raxlog.Group) -> None:
    first = jobs.append({"n": 1}, unique="a")
    group.read("c")
    group.nack(first, delay=1000)
    assert jobs.append({"n": 2}, unique="a") == first


def test_without_a_group_a_name_is_kept_as_long_as_its_entry_is_there(jobs: raxlog.Stream) -> None:
    first = jobs.append({"n": 1}, unique="a")
    assert jobs.append({"n": 2}, unique="a") == first
    jobs.delete(first)
    assert jobs.append({"n": 2}, unique="a").is_new


def test_raise_names_the_entry_and_changes_nothing(jobs: raxlog.Stream, group: raxlog.Group) -> None:
    first = jobs.append({"n": 1}, unique="a")
    with pytest.raises(raxlog.NotUnique, match="kept by entry") as raised:
        jobs.append({"n": 2}, unique="a", on_conflict="raise")
    assert raised.value.id == first
    assert len(jobs) == 1
    jobs.defer({"n": 1}, delay=1000, unique="b")
    with pytest.raises(raxlog.NotUnique, match="kept by a deferred entry") as raised:
        jobs.defer({"n": 2}, delay=1, unique="b", on_conflict="raise")
    assert raised.value.id is None


def test_replace_takes_the_place_of_what_no_consumer_holds(jobs: raxlog.Stream, group: raxlog.Group) -> None:
    jobs.append({"n": 1}, unique="a")
    second = jobs.append({"n": 2}, unique="a", on_conflict="replace")
    assert second.is_new
    assert [entry.fields["n"] for entry in jobs] == ["2"]
    group.read("c")
    group.nack(second, delay=100)  # it waits for a retry
    third = jobs.append({"n": 3}, unique="a", on_conflict="replace")
    assert [entry.fields["n"] for entry in jobs] == ["3"]
    assert group.pending().total == 0
    group.read("c")
    with pytest.raises(raxlog.NotUnique, match="is working on") as raised:
        jobs.append({"n": 4}, unique="a", on_conflict="replace")
    assert raised.value.id == third
    group.ack(third)
    assert jobs.append({"n": 4}, unique="a", on_conflict="replace").is_new
    assert [entry.fields["n"] for entry in jobs] == ["3", "4"], "what is done is history, and stays"


def test_replacing_a_deferred_entry_is_debouncing() -> None:
    with raxlog.testing.clock() as clock, raxlog.testing.store() as store:
        jobs = store.stream("jobs")
        group = jobs.create_group("w")
        for n in range(5):
            made = jobs.defer({"n": n}, delay=10, unique="user-3", until="delivered", on_conflict="replace")
            assert isinstance(made, raxlog.Deferred)
            assert made.is_new
            clock.advance(6)
            assert not group.read("c", timeout=0)
        clock.advance(5)
        [entry] = group.read("c")
        assert (entry.fields, entry.unique) == ({"n": "4"}, "user-3")
        assert jobs.defer({"n": 9}, delay=10, unique="user-3", until="delivered").is_new


def test_a_deferred_entry_keeps_its_name_from_the_call_to_its_end() -> None:
    with raxlog.testing.clock() as clock, raxlog.testing.store() as store:
        jobs = store.stream("jobs")
        group = jobs.create_group("w")
        first = jobs.defer({"n": 1}, delay=10, unique="a")
        assert isinstance(first, raxlog.Deferred)
        second = jobs.defer({"n": 2}, delay=5, unique="a")
        assert isinstance(second, raxlog.Deferred)
        assert (second.token, second.is_new, second.fields) == (first.token, False, {"n": "1"})
        third = jobs.append({"n": 3}, unique="a")
        assert (third, third.is_new, third.token) == (raxlog.StreamID.MIN, False, first.token)
        clock.advance(11)
        [entry] = group.read("c")
        assert entry.fields == {"n": "1"}
        fourth = jobs.defer({"n": 4}, delay=5, unique="a")
        assert isinstance(fourth, raxlog.Appended)
        assert (fourth, fourth.is_new, fourth.token) == (entry.id, False, None)
        group.ack(entry.id)
        fifth = jobs.defer({"n": 5}, delay=5, unique="a")
        assert isinstance(fifth, raxlog.Deferred)
        assert fifth.is_new
        assert fifth.cancel()
        assert jobs.defer({"n": 6}, delay=0, unique="a").is_new
        [entry] = group.read("c")
        assert not jobs.append({"n": 7}, unique="a").is_new


def test_an_id_that_is_given_again_keeps_no_name_of_before(jobs: raxlog.Stream) -> None:
    first = jobs.append({"n": 1}, "5-1", unique="a")
    jobs.delete_ex(first)
    payload = jobs.dump()
    assert payload
    jobs.append({"n": 2}, "5-2", unique="b")
    jobs.trim(maxlen=0)
    jobs.set_id("5-1")
    jobs.append({"n": 3}, "5-2")
    assert jobs.append({"n": 4}, unique="b").is_new, "5-2 is another entry now"


def test_a_replayed_letter_has_its_name_again_unless_it_is_kept(jobs: raxlog.Stream, group: raxlog.Group) -> None:
    for n in (1, 2):
        jobs.append({"n": n}, unique="a")
        group.cancel(jobs.last_id)
    letters = group.dead_letters
    assert [letter.entry.unique for letter in letters] == ["a", "a"]
    assert letters.replay() == 2
    first, second = list(jobs)[-2:]
    assert jobs.append({"n": 3}, unique="a") == first.id
    group.read("c", count=9)
    group.ack(first.id)
    assert jobs.append({"n": 3}, unique="a").is_new, "the second letter came where the name was kept"
    assert second.unique == "a"


def test_a_renamed_stream_keeps_names_and_a_copy_does(store: raxlog.Store, jobs: raxlog.Stream,
                                                      group: raxlog.Group) -> None:
    first = jobs.append({"n": 1}, unique="a")
    store.copy_stream("jobs", "copy")
    store.rename_stream("jobs", "moved")
    for name in ("copy", "moved"):
        assert store.stream(name).append({"n": 2}, unique="a") == first
    assert store.stream("jobs").append({"n": 2}, unique="a").is_new
    store.delete_stream("copy")
    assert store.stream("copy").append({"n": 2}, unique="a").is_new


def test_a_snapshot_an_export_and_a_restore(store: raxlog.Store, jobs: raxlog.Stream, group: raxlog.Group,
                                            tmp_path: Path) -> None:
    first = jobs.append({"n": 1}, unique="a")
    store.restore_stream("other", jobs.dump())
    assert store.stream("other").append({"n": 2}, unique="a").is_new, "a dump carries entries, and no names"
    store.snapshot(tmp_path / "snap")
    raxlog.restore(tmp_path / "snap", tmp_path / "back.rax")
    with raxlog.open(tmp_path / "back.rax") as back:
        assert back.stream("jobs").append({"n": 2}, unique="a") == first


def test_in_a_transaction_and_a_pipeline(store: raxlog.Store, jobs: raxlog.Stream) -> None:
    with store.transaction() as tx:
        made = [tx.stream("jobs").append({"n": n}, unique="a") for n in range(2)]
        assert [one.is_new for one in made] == [True, False]
    with suppress(Undone), store.transaction() as tx:
        tx.stream("jobs").append({"n": 1}, unique="b")
        raise Undone
    assert jobs.append({"n": 1}, unique="b").is_new
    with store.pipeline() as pipe:
        for _ in range(2):
            pipe.stream("jobs").append({"n": 1}, unique="c")
        answers: list[Any] = pipe.execute()
    assert [one.is_new for one in answers] == [True, False]


def test_in_asyncio(tmp_path: Path) -> None:
    async def main() -> None:
        async with raxlog.aio.open(tmp_path / "store.rax") as store:
            jobs = store.stream("jobs")
            first = await jobs.append({"n": 1}, unique="a")
            again = await jobs.append({"n": 1}, unique="a")
            assert (first.is_new, again.is_new, again == first) == (True, False, True)
            later = await jobs.defer({"n": 1}, delay=100, unique="b")
            assert not isinstance(later, raxlog.Appended)
            assert later.is_new
            assert await later.cancel()
            assert isinstance(await jobs.defer({"n": 1}, delay=100, unique="a"), raxlog.Appended)

    asyncio.run(main())


def test_a_buffered_store_waits_for_the_commit_and_sees_what_is_buffered(tmp_path: Path) -> None:
    with raxlog.open(tmp_path / "store.rax", durability="buffered") as store:
        jobs = store.stream("jobs")
        jobs.append({"n": 0})
        first = jobs.append({"n": 1}, unique="a")
        assert first.is_new
        assert jobs.append({"n": 2}, unique="a") == first
        assert [entry.fields["n"] for entry in jobs] == ["0", "1"]


def test_under_a_codec_and_for_types(store: raxlog.Store) -> None:
    jobs = store.stream("typed", codec="json")
    jobs.append({"n": 1}, unique="a")
    assert not jobs.append({"n": 2}, unique="a").is_new
    [entry] = jobs
    assert (entry.value, entry.unique) == ({"n": 1}, "a")


@pytest.mark.parametrize(("options", "message"), [
    ({"unique": ""}, "it may have 1 to 1024"), ({"unique": "x" * (1 << 20)}, "digest"),
    ({"unique": None, "until": 5}, "need a"),
    ({"on_conflict": "replace"}, "need a"), ({"unique": 1.5j}, "str, bytes"), ({"unique": "a", "until": 0}, "until=0"),
    ({"unique": "a", "until": -1}, "negative"), ({"unique": "a", "until": "never"}, "done, delivered"),
    ({"unique": "a", "until": float("nan")}, "until"), ({"unique": "a", "on_conflict": "drop"}, "skip, replace, raise"),
    ({"unique": "a", "until": None}, "until"), ({"unique": "a", "producer": "p"}, "one of them"),
    ({"unique": "a\ud800"}, "surrogates"), ({"unique": "a", "until": True}, "until"),
], ids=str)
def test_bad_input_changes_nothing(store: raxlog.Store, jobs: raxlog.Stream, options: dict[str, Any],
                                   message: str) -> None:
    with pytest.raises(raxlog.RaxlogError, match=message):
        jobs.append({"n": 1}, **options)
    if "producer" not in options:
        with pytest.raises(raxlog.RaxlogError, match=message):
            jobs.defer({"n": 1}, delay=1, **options)
    assert store.streams() == []


def test_conditions_are_asked_before_and_errors_leave_the_name_free(jobs: raxlog.Stream) -> None:
    assert jobs.append({"n": 1}, create=False, unique="a") is None
    with pytest.raises(raxlog.Conflict):
        jobs.append({"n": 1}, expect_last="5-0", unique="a")
    assert jobs.append({"n": 1}, "5-0", unique="a").is_new
    with pytest.raises(raxlog.IDTooSmall):
        jobs.append({"n": 1}, "4-0", unique="b")
    assert jobs.append({"n": 1}, unique="b").is_new


def test_a_deferred_entry_that_is_cancelled_frees_its_name_also_before_its_time_is_over(jobs: raxlog.Stream) -> None:
    first = jobs.defer({"n": 1}, delay=100, unique="a", until=60)
    assert isinstance(first, raxlog.Deferred)
    assert first.cancel()
    second = jobs.defer({"n": 2}, delay=100, unique="a", until=60)
    assert second.is_new
    assert not jobs.append({"n": 3}, unique="a").is_new


def test_replace_deletes_no_other_entry_that_has_the_id_since(jobs: raxlog.Stream, group: raxlog.Group) -> None:
    jobs.append({"n": 1}, "5-2", unique="a", until=600)
    jobs.trim(maxlen=0)
    jobs.set_id("5-1")
    jobs.append({"n": 2}, "5-2")
    assert jobs.append({"n": 3}, unique="a", on_conflict="replace").is_new
    assert [entry.fields["n"] for entry in jobs] == ["2", "3"]


def test_a_subject_and_a_unique_name_do_not_go_together(store: raxlog.Store, jobs: raxlog.Stream) -> None:
    for call in (lambda: jobs.append([("$subject", "x.y"), ("n", "1")], unique="a"),
                 lambda: jobs.defer([("$subject", "x.y"), ("n", "1")], delay=1, unique="a"),
                 lambda: jobs.schedule("s", [("$subject", "x.y"), ("n", "1")], every=60)):
        with pytest.raises(raxlog.InvalidFields, match="subject"):
            call()
    assert store.streams() == []


@pytest.mark.parametrize("groups", [0, 1])
def test_names_of_entries_that_are_deleted_one_by_one_leave_no_rows(store: raxlog.Store, jobs: raxlog.Stream,
                                                                  groups: int) -> None:
    jobs.append({"n": "stays"})
    if groups:
        jobs.create_group("w")
    for n in range(500):
        jobs.delete(jobs.append({"n": n}, unique=f"name-{n}"))
    assert in_store(store) < 60
    store.maintain()
    assert in_store(store) == 0


def test_a_replace_that_is_refused_changes_nothing_also_in_a_transaction(store: raxlog.Store, jobs: raxlog.Stream,
                                                                       group: raxlog.Group) -> None:
    jobs.append({"n": 1}, "5-1", unique="a")
    jobs.defer({"n": 2}, delay=100, unique="b")
    with store.transaction() as tx:
        inside = tx.stream("jobs")
        for name in "ab":
            with pytest.raises(raxlog.Conflict):
                inside.append({"n": 3}, unique=name, on_conflict="replace", expect_last="1-1")
            with pytest.raises(raxlog.IDTooSmall):
                inside.append({"n": 3}, "4-1", unique=name, on_conflict="replace")
        inside.append({"n": 4})
    assert [entry.fields["n"] for entry in jobs] == ["1", "4"]
    assert [one.fields["n"] for one in jobs.deferred()] == ["2"]
    assert not jobs.append({"n": 5}, unique="a").is_new


def test_a_group_of_other_subjects_keeps_no_name(jobs: raxlog.Stream, group: raxlog.Group) -> None:
    jobs.create_group("filtered", subjects=["x.*"])
    first = jobs.append({"n": 1}, unique="a")
    group.ack(group.read("c")[0].id)
    assert jobs.append({"n": 2}, unique="a", on_conflict="replace").is_new
    assert jobs.get(first) is not None


def test_a_clock_that_was_years_ahead_keeps_no_name(monkeypatch: pytest.MonkeyPatch, jobs: raxlog.Stream) -> None:
    with monkeypatch.context() as ahead:
        now = stream_module.now_ms
        ahead.setattr(stream_module, "now_ms", lambda: now() + 20 * 365 * 86_400_000)
        jobs.append({"n": 1}, unique="a", until=60)
    assert jobs.append({"n": 2}, unique="a", until=60).is_new
    assert not jobs.append({"n": 2}, unique="a", until=60).is_new


def test_with_seconds_what_is_deleted_can_be_replaced_while_a_consumer_holds_it(jobs: raxlog.Stream,
                                                                             group: raxlog.Group) -> None:
    first = jobs.append({"n": 1}, unique="a", until=600)
    group.read("c")
    jobs.delete(first)
    assert jobs.append({"n": 2}, unique="a", on_conflict="replace").is_new


def in_store(store: raxlog.Store) -> int:
    report = raxlog.check(store.path)
    assert report.problems == []
    return int(report.counts.get("unique", 0))


def test_rows_of_free_names_go_with_later_appends_and_in_maintain(store: raxlog.Store, jobs: raxlog.Stream,
                                                                  group: raxlog.Group) -> None:
    kept = [jobs.append({"n": n}, unique=f"kept-{n}") for n in range(50)]
    group.read("holder", count=50)
    for n in range(2_000):
        jobs.append({"n": n}, unique=f"name-{n}")
        group.read("c", noack=True)
    assert 50 <= in_store(store) <= 300, "about twice as many as are kept"
    store.maintain()
    assert in_store(store) == 50
    for n in range(50):
        assert jobs.append({"n": 0}, unique=f"kept-{n}") == kept[n]


@pytest.mark.parametrize("changed", [
    lambda row: row.__setitem__(0, b"another"), lambda row: row.__setitem__(1, "never"),
    lambda row: row.__setitem__(2, b"5"), lambda row: row.pop(),
])
def test_check_finds_what_is_wrong_and_salvage_keeps_names(tmp_path: Path, changed: Any) -> None:
    path = tmp_path / "store.rax"
    with raxlog.open(path) as store:
        first = store.stream("jobs").append({"n": 1}, unique="a")
    raxlog.salvage(path, tmp_path / "saved.rax")
    with raxlog.open(tmp_path / "saved.rax") as saved:
        assert saved.stream("jobs").append({"n": 2}, unique="a") == first
    (key, value), *_ = records_of(path, 1, keys.UNIQUE)
    copy = changed_copy(path, tmp_path / "bad.rax", {key: resealed(key, value, changed)})
    assert [problem["kind"] for problem in problems_of(copy)] == ["unique"]


# -- against a model -------------------------------------------------------------------------------


class AgainstAModel(RuleBasedStateMachine):
    """Two groups, and every way in which an entry can end, against dicts in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.scope = ExitStack()
        self.clock = self.scope.enter_context(raxlog.testing.clock())
        self.store = self.scope.enter_context(raxlog.testing.store(durability="relaxed"))
        self.stream = self.store.stream("jobs")
        self.groups = [self.stream.create_group(name) for name in "xy"]
        self.last = [raxlog.StreamID.MIN, raxlog.StreamID.MIN]
        self.pending: list[dict[raxlog.StreamID, bool]] = [{}, {}]  # whether a consumer holds it
        self.cancelled: list[set[raxlog.StreamID]] = [set(), set()]
        self.live: dict[raxlog.StreamID, int] = {}  # their numbers
        self.holders: dict[Any, tuple[Any, raxlog.StreamID | str, float]] = {}  # until, the ID or token, the end
        self.deferred: dict[str, tuple[float, int, Any]] = {}  # token: due, number, name
        self.free: set[Any] = set()  # names that have been free since their entry came: it may be that they stay so
        self.count = 0

    def teardown(self) -> None:
        with self.scope:
            assert raxlog.check(self.store.path).problems == []

    def is_done(self, sid: raxlog.StreamID, until: str) -> bool:
        return sid not in self.live or all(
            (sid <= last or sid in cancelled) and (until == "delivered" or sid not in pending)
            for last, pending, cancelled in zip(self.last, self.pending, self.cancelled, strict=True))

    def holder(self, name: Any) -> raxlog.StreamID | str | None:
        until, which, end = self.holders.get(name, ("done", "", 0.0))
        if until not in ("done", "delivered"):
            if isinstance(which, str) and which not in self.deferred:
                return None
            return which if self.clock.now().timestamp() < end else None
        is_kept = which in self.deferred if isinstance(which, str) else not self.is_done(which, until)
        if not is_kept:
            self.free.add(name)
        return which if is_kept else None

    def drop(self, sid: raxlog.StreamID) -> None:
        self.live.pop(sid, None)
        for pending in self.pending:
            pending.pop(sid, None)

    def release(self) -> None:
        """What is due is appended, in this order, by the calls that may."""
        now = self.clock.now().timestamp()
        due = sorted((at, n, token) for token, (at, n, _) in self.deferred.items() if at <= now)
        entries = list(self.stream)
        for _, n, token in due:
            [entry] = [entry for entry in entries if entry.fields["n"] == str(n)]
            self.live[entry.id] = n
            name = self.deferred.pop(token)[2]
            until, which, end = self.holders.get(name, (None, None, 0.0))
            if which == token:
                self.holders[name] = until, entry.id, end

    def outcome(self, name: Any, conflict: str) -> tuple[str, raxlog.StreamID | str | None]:
        kept = self.holder(name)
        if kept is None or conflict == "skip":
            return ("new" if kept is None else "kept"), kept
        is_worked_on = kept in self.live and any(pending.get(kept) for pending in self.pending)  # deleted: replaced
        if conflict == "raise" or is_worked_on:
            return "refused", kept
        if isinstance(kept, str):
            self.deferred.pop(kept, None)
        elif not self.is_done(kept, "done"):
            self.drop(kept)
        return "new", kept

    @rule(name=st.sampled_from(NAMES), until=st.sampled_from(["done", "done", "delivered", 5]),
          conflict=st.sampled_from(["skip", "skip", "replace", "raise"]), delay=st.sampled_from([None, None, 0, 3]))
    def make(self, name: Any, until: Any, conflict: Any, delay: Any) -> None:
        if self.holder(name) is not None and name in self.free:
            return  # a group delivers again what was done
        self.count += 1
        fields = {"n": self.count}
        expected, kept = self.outcome(name, conflict)
        try:
            if delay is None:
                made: Any = self.stream.append(fields, unique=name, until=until, on_conflict=conflict)
            else:
                made = self.stream.defer(fields, delay=delay, unique=name, until=until, on_conflict=conflict)
        except raxlog.NotUnique as error:
            said = error.id
            assert (expected, said) == ("refused", None if isinstance(kept, str) else kept)
            return
        assert ("new" if made.is_new else "kept") == expected, kept
        which: Any = made if isinstance(made, raxlog.StreamID) else made.token
        if expected == "kept":
            assert kept == (getattr(made, "token", None) or which)
            return
        self.free.discard(name)
        self.holders[name] = until, which, self.clock.now().timestamp() + (until if isinstance(until, int) else 0)
        if delay is None:
            self.live[made] = self.count
        else:
            self.deferred[which] = self.clock.now().timestamp() + delay, self.count, name
        self.release()

    @rule()
    def append(self) -> None:
        self.count += 1
        self.live[self.stream.append({"n": self.count})] = self.count
        self.release()

    @rule(which=st.integers(0, 1), count=st.integers(1, 3), noack=st.booleans())
    def read(self, which: int, count: int, noack: bool) -> None:
        entries = self.groups[which].read("c", count=count, noack=noack)
        self.release()
        for entry in entries:
            assert entry.id in self.live
            assert entry.id > self.last[which]
            if not noack:
                self.pending[which][entry.id] = True
        behind = [sid for sid in sorted(self.live) if sid > self.last[which] and sid not in self.cancelled[which]]
        assert [entry.id for entry in entries] == behind[:count]
        if entries:
            self.last[which] = entries[-1].id

    @precondition(lambda self: any(self.pending))
    @rule(which=st.integers(0, 1), data=st.data(), how=st.sampled_from(["ack", "nack", "cancel", "ack_delete"]))
    def end(self, which: int, data: st.DataObject, how: str) -> None:
        held = [sid for sid, is_held in self.pending[which].items() if is_held]
        if not held:
            return
        sid, group = data.draw(st.sampled_from(held)), self.groups[which]
        if how == "nack":
            if sid in self.live:
                assert group.nack(sid, delay=1000, consumer="c") == 1
                self.pending[which][sid] = False
            return
        if how == "cancel" and sid not in self.live:
            return
        if how == "ack_delete":
            group.ack_delete(sid)
            self.live.pop(sid, None)
            for pending in self.pending:  # what waits for a retry, and is gone, is taken out by a later read
                if pending.get(sid) is False:
                    self.stream.delete(sid)
        else:
            assert (group.ack if how == "ack" else group.cancel)(sid) == 1
            self.cancelled[which] |= {sid} if how == "cancel" else set()
        del self.pending[which][sid]

    @precondition(lambda self: self.live)
    @rule(which=st.integers(0, 1), data=st.data())
    def cancel(self, which: int, data: st.DataObject) -> None:
        sid = data.draw(st.sampled_from(sorted(self.live)))
        if sid > self.last[which] and sid not in self.cancelled[which]:
            assert self.groups[which].cancel(sid) == 1
            self.cancelled[which].add(sid)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        sid = data.draw(st.sampled_from(sorted(self.live)))
        assert self.stream.delete(sid) == 1
        del self.live[sid]

    @rule(maxlen=st.integers(0, 4))
    def trim(self, maxlen: int) -> None:
        self.stream.trim(maxlen=maxlen)
        for sid in sorted(self.live)[: max(0, len(self.live) - maxlen)]:
            del self.live[sid]

    @rule(which=st.integers(0, 1))
    def destroy(self, which: int) -> None:
        self.groups[which].destroy()
        self.groups[which] = self.stream.create_group("xy"[which])
        self.last[which], self.pending[which], self.cancelled[which] = raxlog.StreamID.MIN, {}, set()

    @rule(which=st.integers(0, 1))
    def to_the_end(self, which: int) -> None:
        self.groups[which].set_id("$")
        self.last[which] = self.stream.last_id

    @rule(which=st.integers(0, 1))
    def from_the_beginning(self, which: int) -> None:
        if not self.pending[which] and not self.cancelled[which]:
            self.groups[which].set_id("0")
            self.last[which] = raxlog.StreamID.MIN

    @rule(seconds=st.sampled_from([1, 4]))
    def pass_time(self, seconds: int) -> None:
        self.clock.advance(seconds)

    @rule()
    def maintain(self) -> None:
        self.store.maintain()

    @invariant()
    def each_name_is_kept_by_the_entry_that_the_model_says(self) -> None:
        for name in NAMES:
            kept = self.holder(name)
            with suppress(Undone), self.store.transaction() as tx:
                made = tx.stream("jobs").append({"n": 0}, unique=name)
                if kept is not None and name in self.free:
                    raise Undone
                assert made.is_new == (kept is None), (name, kept)
                assert kept is None or kept == (made.token or made), name
                raise Undone


TestAgainstAModel = AgainstAModel.TestCase
TestAgainstAModel.settings = settings(max_examples=examples(50), stateful_step_count=40, deadline=None)
