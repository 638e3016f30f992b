"""Text: a store keeps its encoding, what comes out goes in unchanged, and no byte is lost on any way through it."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import forkserver
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import raxlog
import raxlog.aio
from door import door

EVERY_BYTE = bytes(range(256))
TEXT = EVERY_BYTE.decode("utf-8", "surrogateescape")
BOTH = pytest.mark.parametrize(("encoding", "every"), [("utf-8", TEXT), (None, EVERY_BYTE)], ids=["text", "bytes"])


def command(*words: str | bytes | Path, given: bytes = b"") -> bytes:
    """What a command prints."""
    done = forkserver.run([sys.executable, "-m", "raxlog", *words], input=given, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


@pytest.mark.parametrize(("made", "opened", "kind"), [
    ({}, {}, str), ({"encoding": "utf-8"}, {}, str), ({"encoding": None}, {}, bytes),
    ({}, {"encoding": "bytes"}, bytes), ({"encoding": "bytes"}, {}, str),
    ({"encoding": None}, {"encoding": "utf-8"}, str),
    ({}, {"encoding": None}, bytes),
])
def test_a_store_keeps_the_encoding_it_was_made_with_and_a_call_may_ask_for_another(
    path: Path, made: dict[str, None], opened: dict[str, None], kind: type,
) -> None:
    with raxlog.open(path, **made) as store:
        store.stream("s").append({"n": "v"})
    with raxlog.open(path, **opened) as store:
        [entry] = store.stream("s").range()
        assert {type(one) for pair in entry.pairs for one in pair} == {kind}
        assert [type(name) for name in store.streams()] == [kind]


def test_two_handles_of_one_process_have_each_their_own(path: Path) -> None:
    with raxlog.open(path) as text, raxlog.open(path, encoding="bytes") as raw:
        sid = text.stream("s").append({"n": b"\xff"})
        assert dict(raw.stream("s").get(sid).fields) == {b"n": b"\xff"}
        assert dict(text.stream("s").get(sid).fields) == {"n": "\udcff"}


def test_compaction_snapshot_and_restore_keep_it(path: Path, tmp_path: Path) -> None:
    for encoding in ("utf-8", None):
        place = path.with_name(f"{encoding}.rax")
        with raxlog.open(place, encoding=encoding) as store:
            store.stream("s").append({"n": "v"})
            store.compact()
            store.snapshot(tmp_path / f"{encoding}.snapshot")
        raxlog.restore(tmp_path / f"{encoding}.snapshot", tmp_path / f"{encoding}.back")
        for one in (place, tmp_path / f"{encoding}.back"):
            with raxlog.open(one) as store:
                assert store.streams() == ["s" if encoding else b"s"]


@pytest.mark.parametrize("encoding", ["latin-1", "utf8", "", 7])
def test_another_encoding_is_refused_and_makes_no_store(path: Path, encoding: object) -> None:
    with pytest.raises(raxlog.InvalidArgument, match="None gives bytes"):
        raxlog.open(path, encoding=encoding)  # type: ignore[arg-type]
    assert not path.exists()


def test_whatever_has_a_name_has_it_as_text(path: Path) -> None:
    with raxlog.open(path) as store:
        stream = store.stream(EVERY_BYTE)
        group = stream.create_group(EVERY_BYTE, subjects="a.>")
        deferred = stream.defer({EVERY_BYTE: EVERY_BYTE}, delay=60)
        names = [stream.name, group.name, group.stream, group.info().name, stream.info().name, *store.streams(),
                 *deferred.pairs[0]]
        assert names == [TEXT] * len(names)
        assert group.subjects == ["a.>"]
        assert type(group.dead_letters.name) is str
        with store.transaction() as tx:
            assert tx.streams_between("") == [TEXT]


def test_what_comes_out_goes_in_unchanged(path: Path) -> None:
    with raxlog.open(path) as store, raxlog.open(path, encoding="bytes") as raw:
        stream = store.stream(TEXT)
        first = stream.append({EVERY_BYTE: EVERY_BYTE}, producer=TEXT, idempotent_id=TEXT)
        [entry] = stream.range()
        assert entry.pairs == [(TEXT, TEXT)]
        assert raw.stream(EVERY_BYTE).append(
            {"other": "1"}, producer=EVERY_BYTE, idempotent_id=EVERY_BYTE) == first  # the same producer, the same ID
        again = stream.append(entry.fields, producer="hashed")
        assert raw.stream(EVERY_BYTE).append({EVERY_BYTE: EVERY_BYTE}, producer="hashed") == again
        assert raw.stream(EVERY_BYTE).get(again).pairs == [(EVERY_BYTE, EVERY_BYTE)]
        store.state[TEXT] = b"v"
        assert raw.state[EVERY_BYTE] == b"v"
        group = stream.create_group(TEXT)
        assert [one.pairs for one in group.read(TEXT)] == [[(TEXT, TEXT)]] * 2
        assert [one.name for one in raw.stream(EVERY_BYTE).group(EVERY_BYTE).consumers()] == [EVERY_BYTE]


def test_other_lone_surrogates_are_refused_and_change_nothing(path: Path) -> None:
    with raxlog.open(path) as store:
        stream = store.stream("s")
        for wrong in ("\ud800", "\udc00", "a\udfffb"):
            for fields in ({"n": wrong}, {wrong: "v"}):
                with pytest.raises(raxlog.InvalidFields, match="is not UTF-8"):
                    stream.append(fields)
            for call in (lambda wrong=wrong: store.stream(wrong), lambda wrong=wrong: stream.group(wrong)):
                with pytest.raises(raxlog.InvalidName, match="cannot be stored"):
                    call()
        assert len(stream) == 0


@BOTH
def test_every_byte_goes_through_workers_dead_letters_and_replays(path: Path, encoding: Any, every: Any) -> None:
    with raxlog.open(path, encoding=encoding) as store:
        stream = store.stream(EVERY_BYTE)
        group = stream.create_group(EVERY_BYTE)
        sid = stream.append({EVERY_BYTE: EVERY_BYTE})
        seen = []

        def fail(entry: raxlog.Entry) -> None:
            seen.append(entry.pairs)
            raise ValueError(entry.pairs[0][0])

        group.worker(fail, name=EVERY_BYTE, max_deliveries=1).run(burst=True)
        [letter] = group.dead_letters
        assert (letter.entry.pairs, letter.entry.id) == ([(every, every)], sid)
        assert group.dead_letters.replay() == 1

        async def handle(entry: raxlog.Entry) -> None:
            seen.append(entry.pairs)

        async def work() -> None:
            async with await raxlog.aio.open(path) as other:
                await other.stream(EVERY_BYTE).group(EVERY_BYTE).worker(handle).run(burst=True)

        asyncio.run(work())
        assert seen == [[(every, every)]] * 2


@BOTH
def test_every_byte_goes_out_by_commands_and_the_door_and_comes_in_again(
    path: Path, tmp_path: Path, encoding: Any, every: Any
) -> None:
    name = EVERY_BYTE[1:]  # a command's words hold no NUL
    entries = [("1-1", [(EVERY_BYTE, EVERY_BYTE), (EVERY_BYTE, b"again"), (b"n", b"v")]), ("2-1", [(b"v", EVERY_BYTE)])]
    with raxlog.open(path, encoding=encoding) as store:
        store.stream(name).extend([pairs for _, pairs in entries], [sid for sid, _ in entries])
        assert [pairs[0][1] for pairs in (entry.pairs for entry in store.stream(name))] == [every, every]

    def kept(store: str) -> list[tuple[str, list[tuple[bytes, bytes]]]]:
        with raxlog.open(tmp_path / store, encoding="bytes") as there:
            assert there.streams() == [name]
            return [(str(entry.id), entry.pairs) for entry in there.stream(name)]

    command("import", tmp_path / "lines.rax", name, "--format", "entries", given=command("range", path, name, "--json"))
    assert kept("lines.rax") == entries
    csv = tmp_path / "a.csv"
    command("export", path, name, csv, "2", "--columns", "v binary", "--id", "id")
    command("import", tmp_path / "csv.rax", name, csv, "--format", "csv", "--id-field", "id")
    assert kept("csv.rax") == entries[1:]
    for file in ("a.parquet", "a.arrow"):
        command("export", path, name, tmp_path / file, "--columns", "v binary, fields map<binary,binary>")
    read: list[Any] = [pq.read_table(tmp_path / "a.parquet"), pa.ipc.open_file(tmp_path / "a.arrow").read_all()]
    for table in read:
        assert table.column("v").to_pylist() == [None, EVERY_BYTE]
        assert [dict(row) for row in table.column("fields").to_pylist()] == [dict(pairs) for _, pairs in entries]
    with door(tmp_path / "other.rax") as (host, port):
        url = f"redis://{host}:{port}"
        command("export", path, "--redis", url)
        command("import", tmp_path / "redis.rax", "--redis", url)
    assert kept("other.rax") == kept("redis.rax") == entries


@BOTH
def test_the_door_gives_and_takes_every_byte_to_and_from_groups(path: Path, encoding: Any, every: Any) -> None:
    with raxlog.open(path, encoding=encoding) as store, raxlog.redis_client(store) as client:
        sid = client.xadd(EVERY_BYTE, {EVERY_BYTE: EVERY_BYTE})
        client.xgroup_create(EVERY_BYTE, EVERY_BYTE, "0")
        assert client.xreadgroup(EVERY_BYTE, EVERY_BYTE, {EVERY_BYTE: ">"}) == [
            [EVERY_BYTE, [(sid, {EVERY_BYTE: EVERY_BYTE})]]]
        [held] = store.stream(EVERY_BYTE).group(EVERY_BYTE).pending_entries()
        assert (store.streams(), held.consumer) == ([every], every)
        [entry] = store.stream(EVERY_BYTE).group(EVERY_BYTE).read(EVERY_BYTE, ids="0")
        assert entry.pairs == [(every, every)]


def test_commands_and_the_door_show_it_as_they_do_bytes(path: Path) -> None:
    with raxlog.open(path) as store:
        store.stream("s").append({"n": EVERY_BYTE}, "1-1")
    shown = json.loads(command("range", path, "s", "--json"))
    assert shown["fields"] != {"n": TEXT}  # never a lone surrogate
    with raxlog.open(path) as store, raxlog.redis_client(store) as client:
        assert client.xrange("s") == [(b"1-1", {b"n": EVERY_BYTE})]
        client.xadd("s", {EVERY_BYTE: EVERY_BYTE}, id="2-1")
        assert store.stream("s").get("2-1").pairs == [(TEXT, TEXT)]
        store.restore_stream("again", store.stream("s").dump())
        assert [entry.pairs for entry in store.stream("again").range()] == [[("n", TEXT)], [(TEXT, TEXT)]]


def test_a_store_that_a_command_makes_is_of_text(path: Path) -> None:
    forkserver.run([sys.executable, "-m", "raxlog", "add", path, "s", "n=v"], check=True, capture_output=True)
    with raxlog.open(path) as store:
        [entry] = store.stream("s").range()
        assert entry.pairs == [("n", "v")]


HANDLER = """
import pathlib
def handle(entry):
    pathlib.Path("seen").write_text(entry.fields["to"] + entry.id.__class__.__name__)
"""


def test_raxlog_worker_hands_over_the_types_that_a_program_sees(path: Path) -> None:
    with raxlog.open(path) as store:
        store.stream("mail").append({"to": "a@b"})
        store.stream("mail").create_group("send")
    (path.parent / "shop.py").write_text(HANDLER, encoding="utf-8")
    done = forkserver.run([sys.executable, "-m", "raxlog", "worker", "shop:handle", path, "mail", "send", "--burst"],
                          cwd=path.parent, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (path.parent / "seen").read_text(encoding="utf-8") == "a@bStreamID"
