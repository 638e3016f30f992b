"""What the calls on pending entries do, counted: nodes decoded, records read, commits made."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType

import pytest
import raxlog
from call_shapes import calls_of

ROWS = 1000
NODES = 10  # of 100 entries each
BUCKETS = -(-ROWS // 112)

PENDING = f"""
stream = store.stream("s", node_max_entries={ROWS // NODES}, node_max_bytes=0)
ids = stream.extend([{{"n": n}} for n in range({ROWS})])
group = stream.create_group("g", "0")
group.read("a")
other = stream.create_group("h", "0")
other.read("a")
"""


def test_an_autoclaim_of_what_is_not_due_decodes_no_node(tmp_path: Path) -> None:
    calls = calls_of(PENDING + """
with counted():
    assert group.autoclaim("b", min_idle=3600, count=100) == raxlog.Autoclaimed(raxlog.StreamID(0, 0), [], [])
""", tmp_path)
    assert calls["decode.decode"] == calls["decode.take"] == 0
    assert calls["block.header"] <= 2 * NODES
    assert calls["bucket.Bucket.decode"] <= 2 * BUCKETS


def test_an_autoclaim_decodes_what_it_claims_node_by_node(tmp_path: Path) -> None:
    calls = calls_of(PENDING + f"""
with counted():
    entries = group.autoclaim("b", count={ROWS}).entries
    assert [entry.id for entry in entries] == ids
""", tmp_path)
    assert calls["decode.decode"] == NODES
    assert calls["decode.take"] == ROWS
    assert calls["block.header"] <= 3 * NODES


def test_an_autoclaim_of_ids_decodes_nothing(tmp_path: Path) -> None:
    calls = calls_of(PENDING + f"""
with counted():
    assert group.autoclaim_ids("b", count={ROWS}).entries == ids
""", tmp_path)
    assert calls["decode.take"] == 0


@pytest.mark.parametrize(("count", "min_idle", "commits"), [
    (2500, 0, 2),  # 2,000 rows a commit
    (2000, 0, 1),
    (2500, 3600, 1),  # looks at up to 20,000 in each
])  # fmt: skip
def test_an_autoclaim_goes_in_pieces(tmp_path: Path, count: int, min_idle: int, commits: int) -> None:
    calls = calls_of(f"""
stream = store.stream("s")
ids = stream.extend([{{"n": n}} for n in range(2500)])
group = stream.create_group("g", "0")
group.read("a")
gone = ids[100:200] + ids[2100:2200]
stream.delete(*gone)
group.create_consumer("b")
with counted():
    done = group.autoclaim_ids("b", min_idle={min_idle}, count={count})
assert done.deleted == [sid for sid in gone if {min_idle} or sid < ids[{count} - 1]]
expected = [] if {min_idle} else [sid for sid in ids[:{count}] if sid not in gone]
assert done.entries == expected, (len(done.entries), len(expected))
assert done.cursor == (raxlog.StreamID(0, 0) if {count} == 2500 else ids[{count}])
assert group.pending().total == 2500 - len(done.deleted)
""", tmp_path)
    assert calls["store_files.StoreFiles.acquire"] == commits


def test_an_autoclaim_in_a_transaction_is_whole(tmp_path: Path) -> None:
    calls = calls_of("""
stream = store.stream("s")
stream.extend([{"n": n} for n in range(3000)])
group = stream.create_group("g", "0")
group.read("a")
with counted(), store.transaction() as tx:
    assert len(tx.group("s", "g").autoclaim_ids("b", count=3000).entries) == 3000
""", tmp_path)
    assert calls["store_files.StoreFiles.acquire"] == 1


def test_where_a_later_piece_fails_what_was_claimed_is_returned(tmp_path: Path) -> None:
    with raxlog.open(tmp_path / "s.rax", durability="relaxed") as store:
        stream = store.stream("s")
        ids = stream.extend([{"n": n} for n in range(3000)])
        group = stream.create_group("g", "0")
        group.read("a")

        def destroy_between(frame: FrameType, event: str, _: object) -> None:
            if event == "return" and frame.f_code.co_qualname == "Group._act":
                sys.setprofile(None)
                group.destroy()

        sys.setprofile(destroy_between)
        try:
            done = group.autoclaim("b", count=3000)
        finally:
            sys.setprofile(None)
        assert (done.cursor, [entry.id for entry in done.entries]) == (ids[2000], ids[:2000])
        with pytest.raises(raxlog.NoGroup):
            group.autoclaim("b", start=done.cursor, count=3000)


@pytest.mark.parametrize("refs", ["keepref", "delref", "acked"])
def test_an_ack_delete_reads_each_bucket_and_node_a_few_times(tmp_path: Path, refs: str) -> None:
    calls = calls_of(PENDING + f"""
other.ack(*ids)
with counted():
    assert {{result.name for result in group.ack_delete(*ids[100:900], refs={refs!r})}} == {{"DELETED"}}
assert group.pending().total == 200 and len(stream) == 200
""", tmp_path)
    assert calls["bucket.Bucket.decode"] <= 2 * BUCKETS
    assert calls["block.header"] <= 3 * NODES
    assert calls["decode.take"] == 0


GROUPS = 100


@pytest.mark.parametrize("left", [0, 1])
@pytest.mark.parametrize("refs", ["acked", "delref"])
def test_a_deletion_asks_only_groups_that_can_hold_the_entry(tmp_path: Path, refs: str, left: int) -> None:
    """``left``: entries above the one to be deleted that each group has pending."""
    calls = calls_of(f"""
stream = store.stream("s")
ids = stream.extend([{{"n": n}} for n in range(5)])
with store.transaction() as tx:
    for number in range({GROUPS}):
        tx.stream("s").create_group(f"g{{number}}", ids[4 - {left}])
        tx.group("s", f"g{{number}}").read("a")
group = stream.create_group("g", "0")
group.read("a", 5)
stream.delete_ex(ids[0], refs="delref")   # each group has been read once
group.ack(ids[1])
with counted():
    assert [result.name for result in stream.delete_ex(ids[1], refs={refs!r})] == ["DELETED"]
    assert [result.name for result in group.ack_delete(ids[2], refs={refs!r})] == ["DELETED"]
assert group.pending().total == 2
""", tmp_path)
    assert calls["bucket.Bucket.decode"] <= 5
    assert calls["group_state.GroupState.load"] + calls["group_state.GroupState.from_row"] == 0
    assert calls["records.unseal"] < 20


def test_what_a_group_has_come_to_hold_anew_is_not_deleted(tmp_path: Path) -> None:
    """What groups can hold is known from before: entries delivered anew, claimed and given back count, too."""
    with raxlog.open(tmp_path / "s.rax", durability="relaxed") as store:
        stream = store.stream("s")
        ids = stream.extend([{"n": n} for n in range(6)])
        group, other = stream.create_group("g", ids[3]), stream.create_group("h", "$")
        group.read("a")

        def is_held(sid: raxlog.StreamID) -> bool:
            return stream.delete_ex(sid, refs="acked") == [raxlog.DeleteResult.REFERENCED]

        assert is_held(ids[4])
        other.claim("a", ids[2], force=True)
        assert is_held(ids[2])
        group.nack(ids[1], force=True)
        assert is_held(ids[1])
        group.set_id("0")
        group.read("a")
        assert is_held(ids[0])
        group.ack(*ids)
        assert not is_held(ids[0])
        assert is_held(ids[2])
        other.ack(ids[2])
        assert not is_held(ids[2])
        assert [entry.id for entry in stream.range()] == [ids[1], *ids[3:]]
