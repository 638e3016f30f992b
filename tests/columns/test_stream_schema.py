"""The schema that a stream keeps: what scans read by it, what an append is refused for, how long it stays."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import raxlog
from cli_runs import Run
from hypothesis import example, given
from hypothesis import strategies as st
from second_reader import read_store

pytest_plugins = ["cli_fixtures"]

SCHEMA = {"qty": "bigint", "price": "decimal(10,2)", "at": "timestamp", "größe": "string"}
KINDS = ("string", "binary", "bigint", "int", "smallint", "tinyint", "double", "float", "boolean", "date", "timestamp",
         "timestamp_ntz", "decimal(5,2)")


@pytest.fixture(params=["commit", "buffered"])
def path(tmp_path: Path, request: pytest.FixtureRequest) -> tuple[Path, dict[str, Any]]:
    options = {} if request.param == "commit" else {"durability": "buffered"}
    with raxlog.open(tmp_path / "a.rax", **options) as store:
        store.stream("orders").append({"qty": 7, "price": "1.5", "note": "n"}, "1-1")
    return tmp_path / "a.rax", options


def test_a_schema_stays_with_the_stream_and_names_the_columns_of_scans(path: tuple[Path, dict[str, Any]]) -> None:
    with raxlog.open(path[0], **path[1]) as store:
        stream = store.stream("orders")
        assert stream.schema == {} == stream.info().schema
        assert stream.configure(schema=SCHEMA).to_dict() == {"schema": SCHEMA}
        assert stream.configure(schema=SCHEMA, schema_checked=False).to_dict() == {}
    with raxlog.open(path[0], **path[1]) as store:
        stream = store.stream("orders")
        stream.append({"größe": "xl", "qty": "many"}, "2-0")
        info = stream.info()
        assert (stream.schema, info.schema, info.schema_checked) == (SCHEMA, SCHEMA, False)
        table = stream.to_arrow().read_all()
        assert table.schema == pa.schema([
            ("id_ms", pa.int64()), ("id_seq", pa.int64()), ("qty", pa.int64()), ("price", pa.decimal128(10, 2)),
            ("at", pa.timestamp("us", "UTC")), ("größe", pa.string()),
        ])
        assert table["qty"].to_pylist() == [7, None]
        assert table["größe"].to_pylist() == [None, "xl"]
        assert stream.to_arrow(schema={"qty": "string"}).read_all()["qty"].to_pylist() == ["7", "many"]
        assert stream.configure(schema={}).to_dict() == {"schema": {}}
        assert stream.to_arrow().schema.names == ["id_ms", "id_seq", "fields"]
        assert stream.info().to_dict()["schema"] == {}


def _append_two(stream: raxlog.Stream, first: dict[str, Any], second: dict[str, Any]) -> None:
    stream.append(first)
    stream.append(second)


def test_an_append_that_breaks_a_checked_schema_changes_nothing(path: tuple[Path, dict[str, Any]]) -> None:
    with raxlog.open(path[0], **path[1]) as store:
        stream = store.stream("orders")
        changed = stream.configure(schema=SCHEMA, schema_checked=True)
        assert changed.to_dict() == {"schema": SCHEMA, "schema_checked": True}
        added = stream.info().entries_added
        for wrong, field in (({"qty": "x"}, "'qty' is bigint"), ({"qty": 1, "price": "1e9"}, r"decimal\(10,2\)"),
                             ([("at", 5), ("at", "noon")], "'at' is timestamp"), ({"größe": b"\xff"}, "string")):
            with pytest.raises(raxlog.MalformedValue, match=field) as refused:
                stream.append(wrong)
            assert "'orders'" in str(refused.value)
        with pytest.raises(raxlog.MalformedValue, match="entry 2: field 'qty'"):
            stream.extend([{"qty": 1}, {"other": b"\xff"}, {"qty": ""}])
        with pytest.raises(raxlog.MalformedValue, match="entry 1: field 'qty'"):
            stream.extend([{"qty": 1}, {"qty": ""}], ["5-1", "5-2"])
        with pytest.raises(raxlog.MalformedValue, match="qty"), store.transaction() as tx:
            _append_two(tx.stream("orders"), {"qty": 2}, {"qty": "2.5"})
        assert (len(stream), stream.info().entries_added) == (1, added)
        stream.extend([{"qty": -5, "at": 1526919030474}, {"at": "2018-05-21T16:10:30Z", "more": b"\xff"}])
        assert stream.configure(schema={}).to_dict() == {"schema": {}, "schema_checked": False}
        stream.append({"qty": "x"})
        store.flush()
        assert len(stream) == 4


def test_another_process_keeps_to_a_schema_set_while_it_writes(tmp_path: Path) -> None:
    with raxlog.open(tmp_path / "a.rax", durability="buffered") as here:
        stream = here.stream("orders")
        stream.append({"qty": "x"})
        stream.configure(schema={"qty": "int"}, schema_checked=True)  # waits for the append, and follows it
        with pytest.raises(raxlog.MalformedValue):
            stream.append({"qty": "x"})
        assert len(stream) == 1


@pytest.mark.parametrize(("given", "what"), [
    ({"schema": {"id_ms": "bigint"}}, "'id_ms'"), ({"schema": {"fields": "string"}}, "'fields'"),
    ({"schema": {7: "bigint"}}, "7"), ({"schema": {"a\ud800": "bigint"}}, "cannot be stored"),
    ({"schema": {"qty": "bigintt"}}, "'bigintt'"), ({"schema": {"qty": 5}}, "'qty'"),
    ({"schema": {"qty": "decimal(39)"}}, "38"), ({"schema": {"qty": "map<string,string>"}}, "unknown type"),
    ({"schema": ["qty"]}, "mapping"), ({"schema_checked": 1}, "True or False"), ({"schema_checked": True}, "no schema"),
])  # fmt: skip
def test_a_wrong_schema_is_refused(path: tuple[Path, dict[str, Any]], given: dict[str, Any], what: str) -> None:
    with raxlog.open(path[0], **path[1]) as store:
        with pytest.raises(raxlog.InvalidArgument, match=what):
            store.stream("orders").configure(**given)
        assert store.stream("orders").schema == {}


@given(st.one_of(
    st.from_regex(r"\s?[-+]?[0-9]{0,21}(\.[0-9]{0,4})?([eE][-+]?[0-9]{1,3})?\s?", fullmatch=True).map(str.encode),
    st.sampled_from([b"true", b"NO", b"1", b"nan", b"-inf", b"", b" ", b"\x00", b"\xff", "größe".encode()]),
    st.datetimes().map(lambda at: at.isoformat().encode()), st.integers(-(1 << 64), 1 << 64).map(b"%d".__mod__),
    st.binary(max_size=12),
))
@example(b"9223372036854775")
@example(b"9223372036854776")
@example(b"2147483648")
def test_a_value_is_refused_if_and_only_if_a_scan_would_find_it_malformed(tmp_path_factory: Any, value: bytes) -> None:
    with raxlog.open(tmp_path_factory.mktemp("s") / "a.rax", durability="relaxed") as store:
        for kind in KINDS:
            free, bound = store.stream(f"free {kind}"), store.stream(f"bound {kind}")
            free.append({"v": value})
            bound.append({"else": ""})
            bound.configure(schema={"v": kind}, schema_checked=True)
            try:
                bound.append({"v": value})
                refused = False
            except raxlog.MalformedValue:
                refused = True
            assert refused == (free.to_arrow(schema={"v": kind}).read_all()["v"].null_count == 1), kind


def test_header_snapshot_and_salvage_keep_the_schema(path: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    with raxlog.open(path[0], **path[1]) as store:
        store.stream("orders").configure(schema=SCHEMA, schema_checked=True)
        store.stream("plain").append({"a": 1})
        store.snapshot(tmp_path / "whole.rax")
        store.snapshot(tmp_path / "shards.rax", shards=2)
    for made in ("whole.rax", "shards.rax"):
        kept = json.loads((tmp_path / made / "manifest.json").read_bytes())["streams"]
        assert [stream["schema"] for stream in kept] == [SCHEMA, {}]
    raxlog.restore(tmp_path / "whole.rax", tmp_path / "restored.rax")
    raxlog.salvage(path[0], tmp_path / "salvaged.rax")
    for name in ("restored.rax", "salvaged.rax"):
        with raxlog.open(tmp_path / name, readonly=True) as store:
            assert (store.stream("orders").schema, store.stream("orders").info().schema_checked) == (SCHEMA, True)
    streams = read_store(path[0]).streams
    assert (streams[b"orders"].schema, streams[b"plain"].schema) == ([True, SCHEMA], None)


def test_the_command_line_sets_shows_and_exports_by_a_schema(raxlog_cli: Run, tmp_path: Path) -> None:
    path = str(tmp_path / "a.rax")
    assert raxlog_cli("add", path, "orders", "qty=7", "price=1.5")[0] == 0
    schema = ("--schema", "qty bigint, price decimal(10,2)")
    assert raxlog_cli("configure", path, "orders", *schema, "--schema-checked")[0] == 0
    figures = json.loads(raxlog_cli("info", path, "orders", "--json")[1])
    assert figures["schema"] == {"qty": "bigint", "price": "decimal(10,2)"}
    assert figures["schema_checked"] is True
    assert "price decimal(10,2)" in raxlog_cli("info", path, "orders")[1]
    status, _, error = raxlog_cli("add", path, "orders", "qty=x")
    assert status == 1
    assert "qty" in error
    for file in ("out.parquet", "out.csv"):
        assert raxlog_cli("export", path, "orders", file)[0] == 0
    assert pq.read_table("out.parquet").schema.names == ["id_ms", "id_seq", "qty", "price"]
    assert raxlog_cli("configure", path, "orders", "--schema", "")[0] == 0
    assert pq.read_schema("out.parquet").field("price").type == pa.decimal128(10, 2)
