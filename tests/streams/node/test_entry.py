"""Entries: which fields a writer may give, and what a reader gets."""

from __future__ import annotations

import copy
import json
import pickle
from collections import OrderedDict

import pytest
from raxlog import Entry, InvalidFields, StreamID
from raxlog.stream.node import decode
from raxlog.stream.node.entry import flatten_all

# What a caller may give as fields


def test_fields_of_every_allowed_type():
    assert decode.flatten({"ü": "ö", b"b": b"\0\xff", 1: -2, 1.5: float("inf")}) == [
        "ü".encode(), "ö".encode(), b"b", b"\0\xff", b"1", b"-2", b"1.5", b"inf",
    ]  # fmt: skip
    assert decode.flatten([("a", bytearray(b"x")), ["a", memoryview(b"y")]]) == [
        b"a",
        b"x",
        b"a",
        b"y",
    ]
    assert decode.flatten(OrderedDict(a=1)) == [b"a", b"1"]
    assert decode.flatten(pair for pair in [("", "")]) == [b"", b""]


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({}, "at least one"), ([], "at least one"), ({"a": None}, "'a'"), ({"a": True}, "'a'"),
        ({"a": [1]}, "list"), ({None: "a"}, "NoneType"), ({True: 1}, "bool"), ([("a",)], "pairs"),
        ([("a", "b", "c")], "pairs"), (["a", "b"], "pairs"), ("ab", "str"), (b"ab", "bytes"),
        (7, "int"), (None, "NoneType"), ({"a": "\ud800"}, "UTF-8"), ([("ok", 1), "xy"], "no. 1"),
        ({"a": object()}, "object"), ({"a": 1j}, "complex"),
    ],
)  # fmt: skip
def test_fields_that_cannot_be_stored_are_refused_by_name(fields, named):
    with pytest.raises(InvalidFields, match=named):
        decode.flatten(fields)


def test_an_integer_too_long_for_python_to_print_is_refused():
    for fields in ({"a": 10**5000}, {10**5000: "a"}):
        with pytest.raises(InvalidFields, match="too long"):
            decode.flatten(fields)


def test_subclasses_of_numbers_and_text_are_stored_by_value():
    class Level(int):
        def __repr__(self):
            return "<level>"

        __str__ = __repr__

    class Ratio(float):
        __repr__ = __str__ = lambda _: "<ratio>"

    class Name(str):
        __slots__ = ()
        __repr__ = __str__ = lambda _: "<name>"

    class Raw(bytes):
        pass

    flat = decode.flatten({Name("n"): Level(3), Raw(b"r"): Ratio(0.5)})
    assert flat == [b"n", b"3", b"r", b"0.5"]
    assert {type(part) for part in flat} == {bytes}


def test_more_than_one_gibibyte_in_one_entry_is_refused():
    half = bytes(1 << 29)
    assert len(decode.flatten([("", half), ("", half)])) == 4
    with pytest.raises(InvalidFields, match="Elements are too large to be stored"):
        decode.flatten([("", half), ("x", half)])


# What a reader gets


def test_an_entry_tells_id_fields_and_pairs():
    entry = Entry(1, 1, [(b"a", b"1"), (b"b", b"2"), (b"a", b"3")])
    assert entry.id == StreamID("1-1")
    assert type(entry.id) is StreamID
    assert entry.fields == {b"a": b"3", b"b": b"2"}
    assert entry.pairs == [(b"a", b"1"), (b"b", b"2"), (b"a", b"3")]
    sid, fields = entry
    assert (sid, fields) == (entry.id, entry.fields)
    assert repr(Entry(1, 1, [(b"item", b"book")])) == "Entry(1-1, {b'item': b'book'})"
    assert pickle.loads(pickle.dumps(entry)) == entry
    assert entry != Entry(1, 2, entry.pairs)
    assert entry != Entry(1, 1, entry.pairs[::-1])
    assert entry != (entry.id, entry.fields)
    with pytest.raises(TypeError):
        hash(entry)


def test_an_entry_as_text():
    entry = Entry(1, 1, [("ä".encode(), b"\xff")])
    assert entry.decoded("utf-8", "replace").fields == {"ä": "�"}
    with pytest.raises(UnicodeDecodeError):
        entry.decoded("utf-8")


def test_without_arguments_an_entry_is_decoded_as_by_an_open_store():
    entry = Entry(1, 1, [("ä".encode(), b"\xff"), (b"n", b"1")])
    entry.deliveries, entry.idle = 3, 1.5
    text = entry.decoded()
    assert text.pairs == [("ä", "\udcff"), ("n", "1")]
    assert (text.id, text.deliveries, text.idle) == (entry.id, 3, 1.5)
    assert text.decoded() == text.decoded("latin-1") == text  # it is text already
    assert entry.decoded(errors="replace").fields["ä"] == "\ufffd"
    assert entry.decoded("latin-1").fields["n"] == "1"
    assert Entry(1, 1, []).decoded() == Entry(1, 1, [])


def test_an_entry_as_a_dict_goes_through_json():
    for entry in (Entry(5, 1, [(b"a", b"1"), ("ä".encode(), b"\xff"), (b"a", b"2")]), Entry(5, 1, []).decoded()):
        for one in (entry, entry.decoded()):
            told = one.to_dict()
            assert type(told["fields"]) is dict
            assert json.loads(json.dumps(told)) == told
            assert told == {"id": "5-1", "fields": {"a": "2", "ä": "\udcff"} if len(entry) else {}}


def test_a_field_looked_up_in_the_wrong_type_says_so():
    entry = Entry(1, 1, [(b"item", b"book")])
    with pytest.raises(KeyError, match=r"'item': these names are bytes, as b'item' is; open\(encoding=…\)"):
        entry.fields["item"]
    with pytest.raises(KeyError, match=r"b'item': these names are str, as 'item' is"):
        entry.decoded().fields[b"item"]
    for fields, name in ((entry.fields, b"qty"), (entry.decoded().fields, "qty"), (entry.fields, 1),
                         (Entry(1, 1, []).fields, "item")):
        with pytest.raises(KeyError) as raised:
            fields[name]
        assert raised.value.args == (name,)


def test_fields_are_a_dict_in_all_else():
    fields = Entry(1, 1, [(b"item", b"book"), (b"qty", b"2")]).fields
    assert isinstance(fields, dict)
    assert repr(fields) == "{b'item': b'book', b'qty': b'2'}"
    assert fields.get("item") is None
    assert "item" not in fields
    assert type(pickle.loads(pickle.dumps(fields))) is dict
    assert pickle.loads(pickle.dumps(fields)) == copy.deepcopy(fields) == fields
    assert decode.flatten(fields) == [b"item", b"book", b"qty", b"2"]
    assert decode.flatten([*fields.items()]) == decode.flatten(fields)
    flats: list[list[bytes]] = []
    given = iter([fields, fields, {} | fields])
    assert flatten_all(given, flats, 2)
    assert not flatten_all(given, flats, 2)
    assert flats == [[b"item", b"book", b"qty", b"2"]] * 3
