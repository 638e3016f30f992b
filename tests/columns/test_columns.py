"""The decoder: listpacks straight into Arrow's buffers, beside what range() makes of them.

CI runs every test with the compiled kernels and once more with the plain ones.
"""

from __future__ import annotations

import json
import math
import random
import struct
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Any

import pyarrow as pa
import pytest
import raxlog
from arrow_cases import VALUES, column_of, entries_of, node_of, some_nodes, table_of
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from raxlog.stream.columns.arrow import Tally, batches, projection
from raxlog.stream.columns.decoder import Decoder
from raxlog.stream.node.decode import decode
from raxlog.stream.node.stream_id import MAX64, StreamID, make_id

TEXT_NAMES = {"id_ms": "bigint", "id_seq": "bigint", "fields": "map<binary,binary>"}
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def as_rows(table: pa.Table) -> list[tuple[int, int, dict[bytes, bytes]]]:
    return [(row["id_ms"], row["id_seq"], dict(row["fields"])) for row in table.to_pylist()]


@pytest.mark.parametrize("seed", range(6))
def test_maps_hold_what_range_reads_whatever_the_entries(seed: int) -> None:
    nodes = some_nodes(seed, 6, 40)
    expected = [(ms, seq, dict(pairs)) for ms, seq, pairs in entries_of(nodes)]
    for size in (65_536, 7, 1):
        table = table_of(nodes, TEXT_NAMES, batch_size=size)
        assert as_rows(table) == expected
        for keys, pairs in zip(table.column("fields").to_pylist(), expected, strict=True):
            assert len(keys) == len(pairs[2]), "a name stands twice in a map"


@pytest.mark.parametrize("seed", range(6))
def test_columns_hold_the_last_value_of_their_field_and_null_without_one(seed: int) -> None:
    nodes = some_nodes(seed, 6, 40)
    names = ["price", "7", "größe", "n" * 70, "never", "item", ""]
    table = table_of(nodes, dict.fromkeys(names, "binary"), batch_size=50)
    expected = [dict(pairs) for _, _, pairs in entries_of(nodes)]
    for name in names:
        assert table.column(name).to_pylist() == [fields.get(name.encode()) for fields in expected]


@pytest.mark.parametrize("seed", range(4))
def test_any_window_of_ids_holds_what_range_reads_there(seed: int) -> None:
    nodes = some_nodes(seed, 5, 20)
    chance = random.Random(seed)
    ids = [make_id(ms, seq) for ms, seq, _ in entries_of(nodes)]
    edges = [StreamID.MIN, StreamID.MAX, *ids, *(sid.next() for sid in ids), *(sid.prev() for sid in ids)]
    for _ in range(40):
        start, end = chance.choice(edges), chance.choice(edges)
        rows = as_rows(table_of(nodes, TEXT_NAMES, start=start, end=end, batch_size=9))
        assert rows == [(ms, seq, dict(pairs)) for ms, seq, pairs in entries_of(nodes, start, end)]


@settings(max_examples=examples(60))
@given(st.lists(st.tuples(st.lists(st.tuples(st.binary(max_size=3), st.binary(max_size=70)), min_size=1, max_size=4),
                          st.booleans()), min_size=1, max_size=12), st.integers(1, 5))
def test_no_entries_make_the_decoder_differ(rows: list[tuple[list[tuple[bytes, bytes]], bool]], size: int) -> None:
    entries = [(1 + place // 3, place % 3, pairs) for place, (pairs, _) in enumerate(rows)]
    dead = [(ms, seq) for (ms, seq, _), (_, gone) in zip(entries, rows, strict=True) if gone]
    node = node_of(entries, dead)
    assert as_rows(table_of([node], TEXT_NAMES, batch_size=size)) == [
        (ms, seq, dict(pairs)) for ms, seq, pairs in entries_of([node])
    ]


def test_many_names_that_occur_twice_leave_one_pair_each() -> None:
    pairs = [(b"%d" % (place % 9), b"%d" % place) for place in range(32)]
    many = [(b"n%d" % (place % 30_000), b"%d" % place) for place in range(40_000)]
    entries = [(1, 1, [(b"x", b"y")]), (1, 2, pairs), (1, 3, pairs[::-1]), (1, 4, many)]
    nodes = [node_of(entries), node_of([(2, 1, pairs)])]
    assert as_rows(table_of(nodes, TEXT_NAMES)) == [(ms, seq, dict(got)) for ms, seq, got in entries_of(nodes)]


# -- IDs ----------------------------------------------------------------------------------


def test_ids_come_as_numbers_as_text_as_bytes_and_as_a_time() -> None:
    ids = [(0, 1), (1526919030474, 55), (2**53, 7), (2**62, 2**63 - 1)]
    nodes = [node_of([(ms, seq, [(b"a", b"b")])]) for ms, seq in ids]
    schema = {"id_ms": "bigint", "id_seq": "bigint"}
    table = table_of(nodes, schema, id_column="id")
    assert table.column("id").to_pylist() == [f"{ms}-{seq}" for ms, seq in ids]
    assert list(zip(table.column("id_ms").to_pylist(), table.column("id_seq").to_pylist(), strict=True)) == ids
    packed = table_of(nodes, schema | {"key": "binary"}, id_column="key").column("key").to_pylist()
    assert packed == [bytes(make_id(*sid)) for sid in ids]
    times = table_of(nodes[:2], schema, timestamp_column="at").column("at").to_pylist()
    assert times == [EPOCH + timedelta(milliseconds=ms) for ms, _ in ids[:2]]


def test_ids_are_right_where_their_differences_are_negative_or_pass_64_bits() -> None:
    most = (1 << 64) - 1
    for ids in ([(5, most), (6, 0), (7, 3), (most, most)], [(0, 1), (0, most), (1 << 63, 0)],
                [(9, 300), (9, 427), (9, 428), (10, 2), (137, 299), (5000, 301), (1 << 40, 300)]):
        nodes = [node_of([(ms, seq, [(b"n", b"%d" % seq)]) for ms, seq in ids])]
        table = table_of(nodes, {"id": "binary", "n": "string"}, id_column="id", batch_size=2)
        assert table.column("id").to_pylist() == [bytes(make_id(*sid)) for sid in ids]
        assert table.column("n").to_pylist() == [str(seq) for _, seq in ids]


def test_numbers_of_every_length_come_as_their_digits() -> None:
    numbers = sorted({10**power + more for power in range(20) for more in (-1, 0, 1)} | {(1 << 63) - 1, 1 << 63, MAX64})
    rows = [(number, 1, [(b"v", b"%d" % number), (b"w", b"%d" % -number)]) for number in numbers]
    table = table_of([node_of(rows)], {"id": "string", "fields": "map<string,binary>"}, id_column="id")
    assert table.column("id").to_pylist() == [f"{number}-1" for number in numbers]
    assert [dict(row) for row in table.column("fields").to_pylist()] == [
        {"v": b"%d" % number, "w": b"%d" % -number} for number in numbers
    ]


def test_a_part_of_an_id_beyond_a_bigint_is_null_or_an_error_by_the_mode() -> None:
    ids = [(1, 2**63), (2**63, 1), (2**64 - 1, 2**64 - 1)]
    nodes = [node_of([(ms, seq, [(b"a", b"b")])]) for ms, seq in ids]
    schema = {"id_ms": "bigint", "id_seq": "bigint", "id": "string", "_corrupt_record": "string"}
    tally = Tally()
    table = table_of(nodes, schema, id_column="id", tally=tally)
    assert table.column("id_ms").to_pylist() == [1, None, None]
    assert table.column("id_seq").to_pylist() == [None, 1, None]
    assert table.column("id").to_pylist() == [f"{ms}-{seq}" for ms, seq in ids]
    told = [json.loads(text) for text in table.column("_corrupt_record").to_pylist()]
    assert told == [{"id": f"{ms}-{seq}", "fields": {"a": "b"}} for ms, seq in ids]
    assert (tally.rows, tally.malformed) == (3, 3)
    with pytest.raises(raxlog.MalformedValue, match="stream mail: entry 1-9223372036854775808: its ID"):
        table_of(nodes, schema, id_column="id", mode="FAILFAST", stream="mail")


# -- values of a type ---------------------------------------------------------------------


@settings(max_examples=examples(60))
@given(st.lists(st.one_of(st.integers(-2**70, 2**70).map(str),
                          st.from_regex(r"[ ]?[-+]?0*[0-9]{0,21}[ x]?", fullmatch=True)), min_size=1, max_size=20))
def test_a_bigint_and_an_int_are_what_the_digits_say_if_they_fit(texts: list[str]) -> None:
    def read(text: str, bits: int) -> int | None:
        try:
            number = int(text)
        except ValueError:
            return None
        return number if -(2 ** (bits - 1)) <= number < 2 ** (bits - 1) else None

    values = [text.encode() for text in texts]
    assert column_of(values, "bigint") == [read(text, 64) for text in texts]
    assert column_of(values, "int") == [read(text, 32) for text in texts]


@settings(max_examples=examples(60))
@given(st.lists(st.one_of(st.floats().map(repr), st.integers().map(str), st.decimals(allow_nan=False).map(str),
                          st.from_regex(r"[-+]?[0-9]{0,25}\.?[0-9]{0,25}([eE][-+]?[0-9]{0,3})?", fullmatch=True)),
                min_size=1, max_size=20))
def test_a_double_is_rounded_as_python_rounds_it(texts: list[str]) -> None:
    def bits(number: float | None) -> bytes | None:
        return None if number is None else struct.pack("<d", float("nan") if math.isnan(number) else number)

    def read(text: str) -> float | None:
        try:
            return float(text) if "_" not in text else None
        except ValueError:
            return None

    got = column_of([text.encode() for text in texts], "double")
    assert [bits(number) for number in got] == [bits(read(text)) for text in texts]


def test_a_double_may_be_named_but_not_be_anything_python_takes() -> None:
    good = [b"inf", b"-Infinity", b"+INF", b" 1.5\t"]
    bad = [b"1_0", b"0x10", b"1.5f", b".", b"e5", b"--1", b"1e", b"nan1", b""]
    assert column_of(good + bad, "double") == [math.inf, -math.inf, math.inf, 1.5, *[None] * 9]
    assert repr(column_of([b"NaN", b"-nan"], "double")) == "[nan, nan]"


@settings(max_examples=examples(60))
@given(st.lists(st.one_of(st.decimals(allow_nan=False, allow_infinity=False).map(str),
                          st.integers(-10**40, 10**40).map(str), st.integers(-2**63, 2**63 - 1).map(str),
                          st.from_regex(r"[-+]?[0-9]{0,22}\.[0-9]{0,22}(e-?[0-9]{1,2})?", fullmatch=True)),
                min_size=1, max_size=12),
       st.sampled_from([(1, 0), (5, 2), (10, 0), (18, 9), (18, 18), (19, 4), (38, 0), (38, 10), (38, 38)]))
def test_a_decimal_is_rounded_half_up_and_null_if_it_has_too_many_digits(texts: list[str], size: tuple[int, int]
                                                                         ) -> None:
    precision, scale = size
    context = Context(prec=400, rounding=ROUND_HALF_UP, Emin=-999999, Emax=999999)

    def read(text: str) -> Decimal | None:
        try:
            number = Decimal(text)
        except ArithmeticError:
            return None
        if number and number.adjusted() > 100:
            return None
        number = number.quantize(Decimal(1).scaleb(-scale), context=context)
        return number if abs(number.scaleb(scale, context=context)) < 10**precision else None

    values = [text.encode() for text in texts]
    assert column_of(values, f"decimal({precision},{scale})") == [read(text) for text in texts]


def test_a_decimal_is_not_everything_that_python_takes() -> None:
    values = [b"1_0", b"inf", b"nan", b"", b"0x1", b"1e999999999", b"-1e-999999999", b"0e99999", b"12.345", b"-12.345"]
    expected = [*[None] * 6, Decimal("0.00"), Decimal("0.00"), Decimal("12.35"), Decimal("-12.35")]
    assert column_of(values, "decimal(6,2)") == expected


def test_a_boolean_is_what_spark_takes_for_one() -> None:
    yes = [b"1", b"t", b"true", b"Y", b"YES", b" True "]
    no = [b"0", b"f", b"False", b"n", b"NO", b"\tfalse\n"]
    bad = [b"2", b"-1", b"on", b"truee", b"", b"t\x12ue", b"\xf4", b"01", b"tru"]
    assert column_of([*yes, *no, *bad], "boolean") == [True] * 6 + [False] * 6 + [None] * 9


@settings(max_examples=examples(60))
@given(st.lists(st.datetimes(), min_size=1, max_size=10), st.integers(-18 * 60, 18 * 60))
def test_a_timestamp_of_iso_8601_is_the_moment_it_names(moments: list[datetime], offset: int) -> None:
    texts = []
    zone = f"{'-' if offset < 0 else '+'}{abs(offset) // 60:02}:{abs(offset) % 60:02}"
    for moment in moments:
        texts += [f"{moment.isoformat()}Z", moment.isoformat(" ", "seconds"), f"{moment.isoformat()}{zone}",
                  moment.date().isoformat(), moment.isoformat("T", "minutes") + zone.replace(":", "")]
    nodes = [node_of([(1, place, [(b"v", text.encode())])]) for place, text in enumerate(texts, 1)]
    got = table_of(nodes, {"v": "timestamp"}).column("v").cast(pa.int64()).to_pylist()
    expected = []
    for moment in moments:
        micros = (moment - EPOCH.replace(tzinfo=None)) // timedelta(microseconds=1)
        second, minute, day = 10**6, 60 * 10**6, 86400 * 10**6
        expected += [micros, micros // second * second, micros - offset * minute, micros // day * day,
                     micros // minute * minute - offset * minute]
    assert got == expected


def test_a_timestamp_may_be_milliseconds_and_must_be_a_date_there_is() -> None:
    good = {b"1526919030474": 1526919030474000, b"-1": -1000, b"0": 0, b"2000-02-29": 951782400000000,
            b"1970-01-01 00:00:00.1234567 UTC": 123456, b"0001-01-01": -62135596800000000, b"2018": 2018000}
    bad = [b"", b"02018", b"2018-02-29", b"2018-13-01", b"2018-00-01", b"2018-01-00", b"2018-01-01T24:00",
           b"2018-01-01T1:00", b"2018-01-01T10", b"2018-01-01T10:60", b"2018-01-01T10:00:60", b"2018-01-01T10:00:00.",
           b"2018-01-01T10:00  Z", b"2018-01-01T10:00+1", b"2018-01-01T10:00+19:00", b"2018-01-01T10:00CET",
           b"0000-01-01", b"9223372036854775807", b"2018/01/01", b"2018-01-01x", b"2018-01-01T", b"2018-01-01T10:0",
           b"2018-1-1"]  # fmt: skip
    nodes = [node_of([(1, place, [(b"v", text)])]) for place, text in enumerate([*good, *bad], 1)]
    got = table_of(nodes, {"v": "timestamp"}).column("v").cast(pa.int64()).to_pylist()
    assert got == [*good.values(), *[None] * len(bad)]


@given(st.binary(max_size=12))
def test_a_string_is_text_in_utf8_or_malformed(value: bytes) -> None:
    try:
        expected = value.decode()
    except UnicodeDecodeError:
        expected = None
    assert column_of([value], "string") == [expected]
    assert column_of([value], "binary") == [value]


def test_every_value_is_read_in_every_type_or_told() -> None:
    tally = Tally()
    types = ["string", "bigint", "int", "double", "boolean", "timestamp", "decimal(20,3)"]
    schema = {f"v{place}": kind for place, kind in enumerate(types)} | {"_corrupt_record": "string"}
    nodes = [node_of([(1, place, [(b"v%d" % column, value) for column in range(len(types))])])
             for place, value in enumerate(VALUES, 1)]
    table = table_of(nodes, schema, tally=tally)
    told = table.column("_corrupt_record").to_pylist()
    assert table.num_rows == tally.rows == len(VALUES)
    assert tally.malformed == sum(text is not None for text in told)
    for place, (value, text) in enumerate(zip(VALUES, told, strict=True)):
        row = table.slice(place, 1).to_pylist()[0]
        missing = any(row[name] is None for name in schema if name.startswith("v"))
        assert (text is not None) == missing, value
        if text is not None:
            assert json.loads(text)["fields"]["v0"] == value.decode("utf-8", "backslashreplace")


@pytest.mark.parametrize("kind", ["bigint", "int", "double", "boolean", "timestamp", "decimal(20,3)"])
@pytest.mark.parametrize("value", [b"", b" \t", b"\x00", b"1\x00", b"\x1f1"])
def test_a_text_without_a_value_is_malformed(kind: str, value: bytes) -> None:
    tally = Tally()
    table = table_of([node_of([(1, 1, [(b"v", value)])])], {"v": kind, "_corrupt_record": "string"}, tally=tally)
    assert table.column("v").to_pylist() == [None]
    assert table.column("_corrupt_record").to_pylist() != [None]
    assert tally.malformed == 1


@pytest.mark.parametrize(("zone", "text", "utc"), [
    ("Europe/Berlin", "2020-07-01 12:00", "2020-07-01 10:00"), ("Europe/Berlin", "2020-01-01", "2019-12-31 23:00"),
    ("Europe/Berlin", "2020-07-01 12:00Z", "2020-07-01 12:00"), ("UTC", "2020-07-01 12:00+01", "2020-07-01 11:00"),
    ("Europe/Berlin", "2020-10-25 02:30", "2020-10-25 00:30"),
    ("Europe/Berlin", "2020-03-29 02:30", "2020-03-29 01:30"),
    ("-05:30", "2020-07-01 12:00", "2020-07-01 17:30"), ("UTC", "2020-07-01 12:00", "2020-07-01 12:00"),
])  # fmt: skip
def test_a_time_without_a_zone_is_one_of_the_zone_asked_for(zone: str, text: str, utc: str) -> None:
    columns = replace(projection({"at": "timestamp"}), zone=zone)
    batch, = batches([node_of([(1, 1, [(b"at", text.encode())])])], columns)
    assert batch.column(0).to_pylist() == [datetime.fromisoformat(utc).replace(tzinfo=UTC)]


@pytest.mark.parametrize(("text", "read"), [
    ("2020-07-01 12:00", "2020-07-01 12:00"), ("2020-07-01 12:00+02:00", "2020-07-01 10:00"),
    ("2020-07-01", "2020-07-01"),
])  # fmt: skip
def test_a_time_of_no_zone_is_read_as_it_is_written_whatever_the_zone(text: str, read: str) -> None:
    schema = {"at": "timestamp_ntz", "id": "timestamp_ntz"}
    columns = replace(projection(schema, timestamp_column="id"), zone="Asia/Tokyo")
    batch, = batches([node_of([(1593604800000, 1, [(b"at", text.encode())])])], columns)
    assert batch.column(0).to_pylist() == [datetime.fromisoformat(read)]
    assert batch.column(1).to_pylist() == [datetime(2020, 7, 1, 12)]


def test_failfast_names_stream_entry_field_and_value() -> None:
    nodes = [node_of([(1, 1, [(b"qty", b"3")]), (1, 2, [(b"qty", b"many")])])]
    told = r"stream orders: entry 1-2: field b'qty' is b'many', which is not of type bigint"
    with pytest.raises(raxlog.MalformedValue, match=told):
        table_of(nodes, {"qty": "bigint"}, mode="failfast", stream="orders")
    with pytest.raises(raxlog.MalformedValue, match=r"not of type decimal\(5,2\)"):
        table_of(nodes, {"qty": "decimal(5,2)"}, mode="FAILFAST")
    assert table_of(nodes, {"qty": "bigint"}).column("qty").to_pylist() == [3, None]


def test_a_map_of_text_is_null_where_a_name_or_value_is_no_text() -> None:
    pairs = [(b"a", b"1"), (b"a", b"\xff"), (b"\xff", b"1"), (b"a", b"2")]
    nodes = [node_of([(1, place, [pair]) for place, pair in enumerate(pairs, 1)]), node_of([(2, 1, [(b"\xfe", b"1")])])]
    tally = Tally()
    assert table_of(nodes, tally=tally).column("fields").to_pylist() == [
        [("a", b"1")], [("a", b"\xff")], None, [("a", b"2")], None]  # fmt: skip
    assert tally.malformed == 2
    texts = table_of(nodes, {"fields": "map<string,string>"}).column("fields").to_pylist()
    assert texts == [[("a", "1")], None, None, [("a", "2")], None]
    with pytest.raises(raxlog.MalformedValue, match="entry 1-3: its fields are not a map of text"):
        table_of(nodes, mode="FAILFAST")


def test_a_column_that_allows_no_nulls_is_an_error_where_there_is_one() -> None:
    schema = pa.schema([pa.field("a", pa.int64(), nullable=False)])
    nodes = [node_of([(1, 1, [(b"a", b"1")]), (1, 2, [(b"b", b"1")])])]
    assert table_of(nodes, schema, end=StreamID("1-1")).column("a").to_pylist() == [1]
    with pytest.raises(raxlog.MalformedValue, match="1 of 2 entries have no value for column 'a'"):
        table_of(nodes, schema)


# -- batches, and damage ------------------------------------------------------------------


def test_a_batch_ends_early_where_its_entries_are_large() -> None:
    value = b"x" * (9 << 20)
    nodes = [node_of([(place, 1, [(b"v", value)])]) for place in range(1, 17)]
    made = list(batches(nodes, projection({"v": "binary"})))
    assert [batch.num_rows for batch in made] == [8, 8]
    assert all(batch.column(0)[7].as_py() == value for batch in made)


def test_a_batch_outlives_the_decoder_and_the_bytes_it_was_made_of() -> None:
    def made() -> list[pa.RecordBatch]:
        return list(batches(some_nodes(1, 4, 30), projection(TEXT_NAMES), batch_size=16))

    assert as_rows(pa.Table.from_batches(made())) == as_rows(table_of(some_nodes(1, 4, 30), TEXT_NAMES))


@pytest.mark.parametrize("seed", range(3))
def test_any_changed_byte_gives_what_range_gives_or_the_same_error(seed: int) -> None:
    (master, listpack), = some_nodes(seed, 1, 6)
    chance = random.Random(seed)
    for at in sorted(chance.sample(range(len(listpack)), min(len(listpack), 700))):
        changed = bytearray(listpack)
        changed[at] ^= 1 << chance.randrange(8)
        hurt = bytes(changed)
        try:
            entries = [(e.ms, e.seq, dict(e.pairs)) for e in decode(hurt, *master, *StreamID.MIN, *StreamID.MAX)]
        except raxlog.CorruptionError as error:
            told = error.what, error.offset, f"{master[0]}-{master[1]}"
            with pytest.raises(raxlog.CorruptionError) as caught:
                table_of([(master, hurt)], TEXT_NAMES)
            assert (caught.value.what, caught.value.offset, caught.value.node) == told
        else:
            table = table_of([(master, hurt)], {"id": "binary"} | TEXT_NAMES, id_column="id")
            assert [(*StreamID.from_bytes(row["id"]), dict(row["fields"])) for row in table.to_pylist()] == entries


@pytest.mark.parametrize("names", [[b"item", b"qty"], [b"item", b"qty", b"7"], [b"n" * 70]])
def test_any_changed_byte_behind_a_node_of_the_same_names_gives_what_range_gives_or_the_same_error(
        names: list[bytes]) -> None:
    rows = [[(name, b"%d" % n) for name in names] for n in range(3)]
    before = node_of([(1, n, row) for n, row in enumerate(rows)])
    master, listpack = node_of([(2, n, row) for n, row in enumerate(rows)])
    for at in range(6, len(listpack)):
        for bit in range(8):
            changed = bytes([*listpack[:at], listpack[at] ^ 1 << bit, *listpack[at + 1 :]])
            nodes = [before, (master, changed)]
            try:
                entries = [(ms, seq, dict(pairs)) for ms, seq, pairs in entries_of(nodes)]
            except raxlog.CorruptionError as error:
                told = error.what, error.offset
                with pytest.raises(raxlog.CorruptionError) as caught:
                    table_of(nodes, TEXT_NAMES)
                assert (caught.value.what, caught.value.offset) == told
            else:
                table = table_of(nodes, {"id": "binary"} | TEXT_NAMES, id_column="id")
                assert [(*StreamID.from_bytes(row["id"]), dict(row["fields"])) for row in table.to_pylist()] == entries


@pytest.mark.parametrize("seed", range(3))
def test_a_listpack_cut_off_or_made_up_is_never_read_past_its_end(seed: int) -> None:
    (master, listpack), = some_nodes(seed, 1, 8)
    chance = random.Random(seed)
    for size in sorted(chance.sample(range(len(listpack)), min(len(listpack), 700))):
        body = listpack[6:size] if size > 6 else b""
        framed = (7 + len(body)).to_bytes(4, "little") + listpack[4:6] + body + b"\xff"
        junk = chance.randbytes(size)
        made_up = (7 + size).to_bytes(4, "little") + b"\xff\xff" + junk + b"\xff"
        for hurt in (listpack[:size], framed, made_up):
            decoder = Decoder([("map", b"", 0, 0), ("double", b"price", 0, 0)], 100, False)
            try:
                done = decoder.add(hurt, *master)
                while not done:
                    decoder.take()
                    done = decoder.fill()
            except raxlog.CorruptionError:
                pass
            else:
                decode(hurt, *master, *StreamID.MIN, *StreamID.MAX)


def test_rows_before_the_damage_are_whole() -> None:
    good = some_nodes(1, 3, 10)
    bad = ((10**6, 1), good[0][1][:-1] + b"\x00")
    seen: list[pa.RecordBatch] = []
    with pytest.raises(raxlog.CorruptionError, match="node 1000000-1"):
        seen.extend(batches([*good, bad], projection(TEXT_NAMES), stream="orders"))
    assert as_rows(pa.Table.from_batches(seen)) == as_rows(table_of(good, TEXT_NAMES))


def test_damaged_nodes_are_passed_over_and_told_if_that_is_asked_for() -> None:
    good = some_nodes(1, 3, 10)
    told = raxlog.CorruptionError("a node's block fails its checksum", stream="'orders'", node="1-1", offset=0)
    nodes = [((1, 1), told), *good, ((10**6, 1), b"\x07\x00\x00\x00\x00\x00\x00")]
    tally = Tally()
    schema = {**TEXT_NAMES, "_corrupt_record": "string"}
    with pytest.warns(UserWarning, match="passed over: a"):
        table = table_of(nodes, schema, skip_damaged=True, tally=tally, batch_size=4)
    rows = table.to_pylist()
    assert (rows[0]["id_ms"], rows[0]["id_seq"], rows[0]["fields"]) == (1, 1, None)
    assert rows[0]["_corrupt_record"] == str(told)
    assert "node 1000000-1" in rows[-1]["_corrupt_record"]
    assert as_rows(table.slice(1, table.num_rows - 2)) == as_rows(table_of(good, TEXT_NAMES))
    with pytest.warns(UserWarning, match="passed over: a"):
        assert as_rows(table_of(nodes, TEXT_NAMES, skip_damaged=True)) == as_rows(table_of(good, TEXT_NAMES))
    assert len(tally.damaged) == 2


@pytest.mark.parametrize("seed", range(4))
def test_a_folded_name_has_the_last_value_of_any_case_and_an_exact_one_its_own(seed: int) -> None:
    chance = random.Random(seed)
    names = [bytes(chance.choice([b, b ^ 0x20 if chr(b).isalpha() and b < 128 else b]) for b in name)
             for name in (b"item", b"qty", "größe".encode(), b"7") for _ in range(3)]
    nodes = some_nodes(seed, 6, 40, names)
    schema = dict.fromkeys(["ITEM", "Qty", "größe", "7", "never"], "binary")
    columns = projection(schema)
    exact = b"Qty"
    table = pa.Table.from_batches(batches(nodes, replace(columns, folded=frozenset(
        name.encode() for name in schema if name.encode() != exact)), batch_size=50))
    for name in schema:
        raw = name.encode()
        wanted = [[value for given, value in pairs if given == raw or (raw != exact and given.lower() == raw.lower())]
                  for _, _, pairs in entries_of(nodes)]
        assert table.column(name).to_pylist() == [found[-1] if found else None for found in wanted], name


LEAVES = st.one_of(st.none(), st.integers(-130, 130), st.booleans(), st.floats(width=16, allow_nan=False),
                   st.text(max_size=4))


@settings(max_examples=examples(50), deadline=None)
@given(st.lists(st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
    st.sampled_from("abc"), inner, max_size=3), max_leaves=8), min_size=1, max_size=20))
def test_nested_columns_hold_what_json_has_if_all_of_it_is_of_its_type(values: list[Any]) -> None:
    kind = pa.struct([("a", pa.int8()), ("b", pa.list_(pa.string())), ("c", pa.map_(pa.string(), pa.float64()))])

    def model(value: Any) -> Any:
        if not isinstance(value, dict):
            raise ValueError
        a, b, c = (value.get(name) for name in "abc")
        good = (a is None or (type(a) is int and -128 <= a <= 127), b is None or (
            type(b) is list and all(each is None or type(each) is str for each in b)), c is None or (
            type(c) is dict and all(each is None or type(each) in (int, float) for each in c.values())))
        if not all(good):
            raise ValueError
        return {"a": a, "b": b, "c": None if c is None else list(c.items())}

    wanted = []
    for value in values:
        try:
            wanted.append(model(value))
        except ValueError:
            wanted.append(None)
    tally = Tally()
    nodes = [node_of([(1, place, [(b"v", json.dumps(value).encode())]) for place, value in enumerate(values, 1)])]
    found = table_of(nodes, pa.schema([("v", kind)]), tally=tally, batch_size=7).column("v").to_pylist()
    assert found == wanted
    assert tally.malformed == wanted.count(None)


@pytest.mark.parametrize("text", [b"", b"null", b"[1", b"\xff", b'["\\ud800"]', b"[" * 100_000, b"7", b"[[]]",
                                  b"[" + b"9" * 5000 + b"]", b"\xff\xfe[\0]\0"])
def test_what_is_no_json_of_the_type_is_malformed(text: bytes) -> None:
    column = pa.list_(pa.string())
    assert column_of([text], column) == [None]
    with pytest.raises(raxlog.MalformedValue, match="not of type list<item: string>"):
        column_of([text], column, mode="FAILFAST")
