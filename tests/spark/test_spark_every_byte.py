"""Every byte by Spark: what it scans of a store of text and of one of bytes, and what it writes into one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import raxlog
from spark_scans import reading

pytestmark = pytest.mark.spark

pytest_plugins = ["spark_session"]

EVERY_BYTE = bytes(range(256))
TEXT = bytes(range(128)).decode() + "größe ☃ \U0001f600"
ENTRIES = [  # a name and a value that are no UTF-8, a value of the one kind and of the other
    [(EVERY_BYTE, EVERY_BYTE), (b"n", b"v")],
    [(b"raw", EVERY_BYTE), (b"text", TEXT.encode())],
    [(b"raw", TEXT.encode()), (b"text", EVERY_BYTE)],
]


def kept(path: Path, stream: str) -> list[dict[bytes, bytes]]:
    """What raxlog reads there, as it is stored."""
    with raxlog.open(path, encoding="bytes") as store:
        return [dict(entry.pairs) for entry in store.stream(stream)]


@pytest.mark.parametrize("encoding", ["utf-8", None], ids=["text", "bytes"])
def test_every_byte_is_scanned_and_written_as_it_is(spark: Any, path: Path, encoding: Any) -> None:
    with raxlog.open(path, encoding=encoding) as store:
        store.stream("orders").extend(ENTRIES, ["1-0", "2-0", "3-0"])
    schema = "id_ms bigint, raw binary, text string, fields map<binary,binary>"
    frame = reading(spark, path).schema(schema).load().coalesce(1)
    rows = frame.selectExpr("id_ms", "raw", "text", "map_entries(fields) pairs").collect()

    assert [[(bytes(name), bytes(value)) for name, value in row.pairs] for row in rows] == ENTRIES
    assert [(row.id_ms, row.raw, row.text) for row in rows] == [
        (1, None, None), (2, EVERY_BYTE, TEXT), (3, TEXT.encode(), None)]  # what is not UTF-8 is no string

    def save(columns: Any, stream: str) -> None:
        columns.write.format("raxlog").options(path=str(path), stream=stream).mode("append").save()

    save(frame.select("fields"), "maps")
    assert kept(path, "maps") == [dict(pairs) for pairs in ENTRIES]
    save(frame.select("raw", "text").where("raw is not null"), "columns")
    assert kept(path, "columns") == [{b"raw": EVERY_BYTE, b"text": TEXT.encode()}, {b"raw": TEXT.encode()}]
    with raxlog.open(path) as store:  # as it was made, a name and a value are text or bytes
        wanted = EVERY_BYTE.decode(errors="surrogateescape") if encoding else EVERY_BYTE
        assert next(iter(store.stream("maps"))).pairs[0] == (wanted, wanted)
