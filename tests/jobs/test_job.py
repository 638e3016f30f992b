"""Group.job() and wait_result(): what has become of an entry, whatever that is, and at once where it is over."""

from __future__ import annotations

import sys
import threading
import time
from datetime import UTC, datetime, timedelta

import forkserver
import pytest
import raxlog
from raxlog import Result

SOON = 10.0


@pytest.fixture
def group(store: raxlog.Store) -> raxlog.Group:
    return store.stream("jobs").create_group("mail")


def handle(entry: raxlog.Entry) -> str:
    if entry.fields["do"] == "fail":
        raise ValueError("no")
    return "sent"


def test_a_job_is_what_has_become_of_its_entry(store: raxlog.Store, group: raxlog.Group) -> None:
    stream = store.stream("jobs")
    sid = stream.append({"do": "send"})
    assert group.job(sid) == raxlog.Job(sid, "queued")
    before = datetime.now(UTC) - timedelta(milliseconds=1)
    (entry,) = group.read("w")
    running = group.job(str(sid))
    assert (running.status, running.consumer, running.deliveries) == ("running", "w", 1)
    assert running.since is not None
    assert before <= running.since <= datetime.now(UTC)
    group.nack(sid, delay=60)
    retry = group.job(sid)
    assert (retry.status, retry.consumer) == ("retry", None)
    assert retry.due is not None
    assert timedelta(seconds=50) < retry.due - running.since < timedelta(seconds=70)
    group.claim("w", sid)
    group.ack(sid)
    assert group.job(sid) == raxlog.Job(sid, "done")
    group.keep_results({sid: Result(5)}, 60)
    assert group.job(sid) == raxlog.Job(sid, "done", result=Result(5))
    assert group.job("1-1").status == "gone"  # it may have been there once
    assert group.job(entry.id.next()).status == "unknown"
    other = stream.append({"do": "send"})
    stream.delete(other)
    assert group.job(other).status == "gone"
    pending = stream.append({"do": "send"})
    group.read("w")
    stream.delete(pending)
    assert group.job(pending).status == "gone"
    with pytest.raises(raxlog.NoGroup):
        stream.group("mule").job(sid)
    assert raxlog.check(store.path).ok


def test_a_dead_job_is_found_until_its_letter_is_replayed_or_purged(store: raxlog.Store, group: raxlog.Group) -> None:
    stream = store.stream("jobs")
    ids = stream.extend([{"do": "fail"}] * 3)
    group.worker(handle, max_deliveries=1).run(burst=True)
    for sid in ids:
        job = group.job(sid)
        assert (job.status, job.reason, job.deliveries) == ("dead", "failed", 1)
        assert group.wait_result(sid) == job.result == Result(None, "ValueError: no", "dead")
    first, second, _ = group.dead_letters
    group.dead_letters.purge(first.id)
    assert group.job(ids[0]).status == group.wait_result(ids[0]).status == "gone"
    group.dead_letters.replay(second.id)
    assert group.job(ids[1]).status == "gone"
    assert group.job(stream.last_id).status == "queued"
    assert group.job(ids[2]).status == "dead"
    store.close()
    assert raxlog.check(store.path).ok
    with raxlog.open(store.path, readonly=True) as opened:
        assert opened.stream("jobs").group("mail").job(ids[2]).status == "dead"


def test_a_wait_for_a_result_ends_when_none_can_come_any_more(store: raxlog.Store, group: raxlog.Group) -> None:
    stream = store.stream("jobs")
    deleted, acknowledged, dead = stream.extend([{"do": "send"}, {"do": "send"}, {"do": "fail"}])
    answers: dict[str, Result] = {}

    def wait(name: str, sid: raxlog.StreamID) -> None:
        answers[name] = group.wait_result(sid)

    waits = [threading.Thread(target=wait, args=one) for one in
             (("deleted", deleted), ("acknowledged", acknowledged), ("dead", dead))]
    for one in waits:
        one.start()
    time.sleep(0.1)
    assert answers == {}
    stream.delete(deleted)
    group.worker(handle, max_deliveries=1).run(burst=True)
    for one in waits:
        one.join(SOON)
    assert {name: result.status for name, result in answers.items()} == {
        "deleted": "gone", "acknowledged": "not_kept", "dead": "dead"}
    assert group.wait_result("99999999999999-0").status == "unknown"


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_the_command_shows_a_job(store: raxlog.Store, group: raxlog.Group, options: list[str]) -> None:
    def shown(sid: raxlog.StreamID) -> tuple[int, str]:
        command = [sys.executable, "-m", "raxlog", "job", str(store.path), "jobs", "mail", str(sid), *options]
        done = forkserver.run(command, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout

    sid = store.stream("jobs").append({"do": "fail"})
    status, text = shown(sid)
    assert (status, "queued" in text) == (0, True)
    group.worker(handle, max_deliveries=1).run(burst=True)
    status, text = shown(sid)
    assert status == 0
    for part in ("dead", "failed", "ValueError: no"):
        assert part in text
    assert shown(sid.next())[0] == 1
