"""Values: what a codec stores comes back as it was; objects of a type; what cannot be, is refused and named."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import math
import os
import subprocess
import sys
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, NotRequired, TypedDict

import msgspec
import pyarrow as pa
import pydantic
import pytest
import raxlog
import raxlog.aio
from cli_runs import Run
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from raxlog import InvalidArgument, InvalidFields, MalformedValue, StreamID

pytest_plugins = ["cli_fixtures"]

VALUE = {"item": "book", "qty": 2, "price": 9.5, "paid": True, "tags": ["new", {"a": None}], "due": None, "zip": "01"}

texts = st.text(st.characters(codec="utf-8"), max_size=8)
scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts
nested = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
                      max_leaves=6)
small = st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | st.floats(allow_nan=False) | texts
packed = st.recursive(small | st.binary(max_size=8), lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
    texts | st.integers(-9, 9) | st.binary(max_size=3), inner, max_size=3), max_leaves=6)
VALUES = {"str": st.dictionaries(texts, texts, min_size=1, max_size=4),
          "json": st.dictionaries(texts, nested, max_size=4), "msgpack": st.dictionaries(texts, packed, max_size=4)}


@dataclasses.dataclass
class Line:
    item: str
    qty: int = 1


@dataclasses.dataclass
class Order:
    item: str
    at: datetime
    price: Decimal = Decimal("1.50")
    raw: bytes = b"\xff\x00"
    lines: list[Line] = dataclasses.field(default_factory=list)
    by_day: dict[int, int] = dataclasses.field(default_factory=dict)
    note: str | None = None


class Event(TypedDict):
    item: str
    qty: NotRequired[int]


class Struct(msgspec.Struct, tag="struct"):
    item: str
    at: datetime
    pos: tuple[int, int] = (1, 2)


class Pydantic(pydantic.BaseModel):
    item: str
    at: datetime
    qty: int = pydantic.Field(default=1, alias="Qty")
    lines: list[Line] = []

    @pydantic.computed_field  # type: ignore[prop-decorator]
    @property
    def double(self) -> int:
        return self.qty * 2


NOW = datetime(2026, 5, 4, 3, 2, 1, 123456, tzinfo=UTC)
OBJECTS: list[tuple[Any, Any]] = [
    (Order, Order("book", NOW, lines=[Line("pen", 3)], by_day={3: 1})), (Event, {"item": "book", "qty": 2}),
    (Event, {"item": "book"}), (Struct, Struct("book", NOW)), (Pydantic, Pydantic(item="b", at=NOW, Qty=3)),
]


@pytest.fixture(params=["commit", "buffered"])
def store(tmp_path: Path, request: pytest.FixtureRequest) -> Any:
    with raxlog.open(tmp_path / "a.rax", durability=request.param) as opened:
        yield opened


@settings(max_examples=examples(60), deadline=None)
@given(data=st.data())
def test_what_is_appended_under_a_codec_comes_back_through_every_reading(tmp_path_factory: Any, data: Any) -> None:
    codec = data.draw(st.sampled_from(sorted(VALUES)))
    values = data.draw(st.lists(VALUES[codec], min_size=1, max_size=5))
    encoding = data.draw(st.sampled_from([None, "utf-8", "bytes"]))
    path = tmp_path_factory.mktemp("values") / "a.rax"
    with raxlog.open(path, encoding=encoding, durability="relaxed") as store:
        stream = store.stream("s", codec=codec)
        group = stream.create_group("g", "$", create_stream=True)
        ids = [stream.append(values[0]), *stream.extend(iter(values[1:]))]
        readings = [
            list(stream), list(store.stream("s").range(reverse=True))[::-1], [stream.get(sid) for sid in ids],
            list(stream.follow(0, 0)), group.read("w"), group.claim("w2", *ids), store.read({"s": "0"})["s"],
        ]
        assert stream.codec == codec
    for entries in readings:
        assert [exact(entry.value) for entry in entries] == list(map(exact, values))


def exact(value: Any) -> Any:
    """A value in which 1, 1.0 and True differ, and mappings have no order."""
    if isinstance(value, dict):
        return {(type(key), key): exact(held) for key, held in value.items()}
    return list(map(exact, value)) if isinstance(value, list) else (type(value), value)


@pytest.mark.parametrize("codec", ["json", "msgpack"])
def test_the_note_names_what_is_encoded_and_text_and_numbers_stay_readable(store: Any, codec: str) -> None:
    stream = store.stream("s", codec=codec)
    sid = stream.append(VALUE)
    fields = stream.get(sid).fields
    note = f"${codec}"
    assert next(iter(fields)) == note
    assert json.loads(fields[note]) == ["qty", "price", "paid", "tags", "due"]
    assert (fields["item"], fields["zip"]) == ("book", "01")
    assert "due" not in fields
    if codec == "json":
        assert (fields["qty"], fields["price"], fields["paid"]) == ("2", "9.5", "true")
        table = stream.to_arrow(schema={"item": "string", "qty": "bigint", "paid": "boolean", "due": "bigint"})
        assert table.read_all().to_pylist() == [{"item": "book", "qty": 2, "paid": True, "due": None}]
        assert isinstance(table, pa.RecordBatchReader)
        stream.configure(schema={"qty": "bigint"}, schema_checked=True)
        stream.append({"qty": None})
        with pytest.raises(MalformedValue):
            stream.append({"qty": "many"})


def test_a_stream_keeps_the_codec_of_its_first_entry_and_handles_that_name_none_take_it(tmp_path: Path) -> None:
    path = tmp_path / "a.rax"
    with raxlog.open(path) as store:
        plain, early = store.stream("plain"), store.stream("s")
        assert early.codec == "raw"
        plain.append({"qty": 2})
        store.stream("s").create_group("g", "$", create_stream=True)
        store.stream("s", codec="json").append({"qty": 2})
        assert (early.codec, store.stream("plain", codec="json").codec, early.info().codec) == ("json", "raw", "json")
        early.append({"qty": 3})
        with store.transaction() as tx:
            tx.stream("s").append({"qty": [4]})
            tx.stream("t", codec="msgpack").extend([{"qty": b"5"}])
        with pytest.raises(ZeroDivisionError), store.transaction() as tx:
            tx.stream("u", codec="json").append({"qty": 1 // 0})
        assert store.stream("u").codec == "raw"
        assert store.stream("plain").configure(codec="json").to_dict() == {"codec": "json"}
        assert store.stream("plain").configure(codec="json").to_dict() == {}
    with raxlog.open(path) as store:
        assert [entry.value for entry in store.stream("s")] == [{"qty": 2}, {"qty": 3}, {"qty": [4]}]
        assert [entry.value for entry in store.stream("t")] == [{"qty": b"5"}]
        stream = store.stream("plain")
        stream.append({"qty": 6})
        stream.configure(codec="msgpack")
        stream.append({"qty": 7})
        changed = stream.configure(codec="raw", schema={"qty": "bigint"})
        assert changed.to_dict() == {"codec": "raw", "schema": {"qty": "bigint"}}
        stream.append({"qty": 8})
        assert [entry.value["qty"] for entry in stream] == ["2", 6, 7, "8"]  # each as it was written
        assert stream.codec == "raw"
    assert not raxlog.check(path).problems


def test_what_a_codec_cannot_hold_is_refused_with_nothing_changed(store: Any) -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    bad: dict[str, list[Any]] = {
        "json": [{"a": object()}, {"a": math.nan}, {"a": b"x"}, {"a": {(1, 2): 3}}, {"a": deep}, {1: "a"}, 5, "a=1",
                 {"a": "\ud800"}, {"\ud800": 1}, {"a": ["\ud800"]}, {"a": 10**5000}, Line("x"), iter([("a", "b")])],
        "msgpack": [{"a": object()}, {"a": 1 << 64}, {"a": {(1, 2): 3}}, {"a": deep}, {1: "a"}, {"a": ["\ud800"]}],
        "str": [{"a": 1}, {"a": None}, {"a": b"x"}, {}, {1: "a"}, {"a": "\ud800"}],
    }
    for codec, values in bad.items():
        stream = store.stream(codec, codec=codec)
        for value in values:
            with pytest.raises(InvalidFields):
                stream.append(value)
            with pytest.raises(InvalidFields, match=r"entry no\. 1"):
                stream.extend([{"a": "fine"}, value])
        assert not stream.exists()
    for codec in ("pickle", "", 5, ["json"]):
        with pytest.raises(InvalidArgument, match="codec"):
            store.stream("s", codec=codec)
        with pytest.raises(InvalidArgument, match="codec"):
            store.stream("s").configure(codec=codec)


def test_an_entry_that_cannot_be_decoded_is_named_when_its_value_is_asked_for(store: Any) -> None:
    stream = store.stream("s")
    for pairs in ([("$json", "x"), ("a", "1")], [("$json", "[1]")], [("$json", '["a"]'), ("a", "{")], [("a", b"\xff")],
                  [("$json", '["a"]'), ("a", b"\xff\x00")], [("$msgpack", '["a"]'), ("a", b"\xc1")],
                  [("$json", '["a"]'), ("a", "[" * 100_000)], [("$msgpack", '["a"]'), ("a", b"\x81\x90\x01")]):
        sid = stream.append(pairs)
        entry = stream.get(sid)
        assert entry.pairs == [(name, os.fsdecode(raw)) for name, raw in pairs]
        with pytest.raises(MalformedValue, match=f"{sid}: field"):
            entry.value  # noqa: B018
    fine = store.stream("s", codec="json").append({"a": 1})
    assert next(stream.range(reverse=True)).value == {"a": 1}
    group = stream.create_group("g", fine.prev())
    group.read("w")
    stream.delete(fine)
    with pytest.raises(MalformedValue, match="deleted"):
        store.read_group("g", "w", {"s": "0"})["s"][0].value  # noqa: B018


@pytest.mark.parametrize(("kind", "given_object"), OBJECTS)
@pytest.mark.parametrize("codec", [None, "json", "msgpack"])
def test_objects_of_a_type_come_back_through_every_reading(store: Any, kind: Any, given_object: Any,
                                                           codec: str | None) -> None:
    stream = store.stream("s", codec=codec, type=kind)
    first = stream.append(given_object)
    with store.transaction() as tx:
        second = tx.stream("s", type=kind).append(given_object)
    assert stream.codec == (codec or "json")
    group = stream.create_group("g", 0)
    readings = [list(stream), [stream.get(first), stream.get(second)], list(stream.follow(0, 0)), group.read("w"),
                group.claim("w2", first, second), group.autoclaim("w3").entries]
    for entries in readings:
        assert [entry.value for entry in entries] == [given_object, given_object]
        assert isinstance(entries[0].decoded().value, type(given_object))
    assert isinstance(next(store.stream("s").range()).value, dict)


def test_values_that_are_not_of_the_type_are_refused_or_named(store: Any) -> None:
    for kind in (Line, Event, Struct, Pydantic):
        stream = store.stream(kind.__name__, type=kind)
        for bad in ({"qty": 1}, {"item": 5}, 7, Line(5), None):  # type: ignore[arg-type]
            with pytest.raises(InvalidFields, match=kind.__name__):
                stream.append(bad)
        assert not stream.exists()
    store.stream("s", codec="json").append({"qty": 1})
    with pytest.raises(MalformedValue, match="is not of type Line"):
        next(store.stream("s", type=Line).range()).value  # noqa: B018
    for bad in (5, "Line", lambda: 1):
        with pytest.raises(InvalidArgument, match="is not a type"):
            store.stream("s", type=bad)


def test_a_type_reads_plain_entries_and_published_messages_leniently(store: Any) -> None:
    plain = store.stream("plain")
    plain.append({"item": "book", "qty": 2})
    store.bind("orders.*", "plain")
    store.publish("orders.new", {"item": "pen", "qty": "3"})
    copied = store.stream("copies", codec="json")
    copied.append({"item": "x", "qty": 1})
    copied.append(next(iter(copied)).pairs)
    assert [entry.value for entry in store.stream("plain", type=Line)] == [Line("book", 2), Line("pen", 3)]
    assert [entry.value for entry in plain] == [{"item": "book", "qty": "2"}, {"item": "pen", "qty": "3"}]
    assert [entry.value for entry in copied] == [{"item": "x", "qty": 1}] * 2
    store.bind("json.*", "copies")
    store.publish("json.x", {"item": "y", "qty": 5})
    assert (list(copied)[-1].value, list(copied)[-1].subject) == ({"item": "y", "qty": "5"}, "json.x")
    store.stream("lax", codec="raw", type=Line).append(Line("z", 4))
    assert next(iter(store.stream("lax"))).fields == {"item": "z", "qty": "4"}
    assert next(iter(store.stream("lax", type=Line))).value == Line("z", 4)


def test_workers_and_dead_letters_have_values_and_what_cannot_be_decoded_is_buried_at_once(store: Any) -> None:
    stream = store.stream("jobs", codec="json", type=Line)
    stream.append(Line("kept", 2))
    stream.append([("$json", '["qty"]'), ("item", "bad"), ("qty", "{")])
    stream.append([("item", "x"), ("qty", "many")])
    seen: list[Line] = []

    def handler(entry: raxlog.Entry) -> None:
        seen.append(entry.value)
        if entry.value.qty == 2:
            raise raxlog.Discard("not today")

    group = stream.create_group("g", 0)
    worker = group.worker(handler)
    worker.run(burst=True)
    discarded, *malformed = group.dead_letters
    assert (seen, discarded.entry.value, discarded.reason) == ([Line("kept", 2)], Line("kept", 2), "discarded")
    assert [(letter.reason, letter.deliveries) for letter in malformed] == [("malformed", 1)] * 2
    assert "b'qty'" in malformed[0].error
    assert "is not of type Line" in malformed[1].error
    with pytest.raises(MalformedValue, match=f"{malformed[0].origin}: field"):
        malformed[0].entry.value  # noqa: B018
    before = [entry.pairs for entry in stream]
    assert group.dead_letters.replay() == 3
    assert [entry.pairs for entry in stream] == before * 2
    assert not len(group.dead_letters)


def test_deferred_entries_are_encoded_as_others_are(store: Any) -> None:
    early, late = ({"qty": 1, "tags": [None]}, {"qty": 2})
    stream = store.stream("s", codec="json")
    with pytest.raises(InvalidFields):
        stream.defer({"a": object()}, delay=1)
    assert not stream.exists()
    stream.defer(late, delay=3600)
    assert (stream.codec, next(stream.deferred()).fields) == ("json", {"$json": '["qty"]', "qty": "2"})
    store.stream("s").defer(early, delay=0)
    assert [entry.value for entry in stream] == [early]
    store.stream("t", type=Line).defer(Line("a"), delay=0)
    assert store.stream("t").codec == "json"


def test_tasks_append_and_read_values(tmp_path: Path) -> None:
    async def main() -> None:
        async with raxlog.aio.open(tmp_path / "a.rax") as store:
            stream = store.stream("s", type=Line)
            group = await stream.create_group("g", "$", create_stream=True)
            sid = await stream.append(Line("a", 1))
            await asyncio.gather(stream.extend([Line("b")]), store.stream("s").append({"item": "c", "qty": 3}))
            values = [entry.value async for entry in stream]
            assert sorted(values, key=lambda line: line.item) == [Line("a", 1), Line("b"), Line("c", 3)]
            assert [entry.value for entry in await group.read("w", timeout=1)] == values
            assert (await stream.codec, (await stream.get(sid)).value) == ("json", Line("a", 1))
            assert (await anext(stream.follow(0))).value == Line("a", 1)

    asyncio.run(main())


def test_without_msgspec_the_extra_is_named(tmp_path: Path) -> None:
    program = (
        "import sys; sys.modules['msgspec'] = None\nimport raxlog, dataclasses\n"
        "Line = dataclasses.make_dataclass('Line', [('item', str)])\n"
        f"with raxlog.open({str(tmp_path / 'a.rax')!r}) as store:\n"
        "    store.stream('s', codec='json').append({'a': [1]})\n"
        "    try: store.stream('s', type=Line)\n    except raxlog.NotInstalled as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "raxlog[models]" in done.stdout


def test_the_command_line_decodes_and_encodes(raxlog_cli: Run, tmp_path: Path) -> None:
    path = str(tmp_path / "a.rax")
    assert raxlog_cli("add", path, "s", "qty=1", "--id", "1-0")[0] == 0
    assert raxlog_cli("configure", path, "s", "--codec", "json")[:2] == (0, "codec is now json\n")
    fields = ["qty=2", 'tags=["a"]', "item=book", 'zip="01"', "due=null"]
    assert raxlog_cli("add", path, "s", *fields, "--id", "2-0")[0] == 0
    assert raxlog_cli("add", path, "s", "qty=3", "--raw", "--id", "3-0")[0] == 0
    assert "$json" in raxlog_cli("defer", path, "s", "qty=4", "--delay", "3600")[1]
    assert "$json" not in raxlog_cli("defer", path, "s", "qty=4", "--delay", "3600", "--raw")[1]
    for wrong in (["a=1", "a=2"], [b"a=\xff".decode("utf-8", "surrogateescape")]):
        assert raxlog_cli("add", path, "s", *wrong)[0] == 2
    shown = '2-0\tqty=2\ttags=["a"]\titem=book\tzip=01\tdue=null\n'
    assert raxlog_cli("range", path, "s")[1] == f"1-0\tqty=1\n{shown}3-0\tqty=3\n"
    assert raxlog_cli("get", path, "s", "2-0")[1] == shown
    value = json.loads(raxlog_cli("get", path, "s", "2-0", "--json")[1])["value"]
    assert value == {"qty": 2, "tags": ["a"], "item": "book", "zip": "01", "due": None}
    raw = json.loads(raxlog_cli("range", path, "s", "2", "2", "--json", "--raw")[1])["fields"]
    assert raw == {"$json": '["qty","tags","due"]', "qty": "2", "tags": '["a"]', "item": "book", "zip": "01"}
    with raxlog.open(path) as store:
        store.stream("b", codec="msgpack").append({"b": b"\xff", "n": {1: math.nan}}, "1-0")
        store.stream("b").append([("$json", "x")], "2-0")
    assert raxlog_cli("range", path, "b")[1] == '1-0\tb={"base64": "/w=="}\tn={"1": NaN}\n2-0\t$json=x\n'
    assert "codec" in raxlog_cli("info", path, "s")[1]


def test_an_id_beyond_pythons_time_has_no_datetime() -> None:
    with pytest.raises(OverflowError, match="9999"):
        StreamID.MAX.datetime  # noqa: B018
