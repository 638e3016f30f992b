"""Literals of every type: compiled and plain read them alike, and as an oracle in plain Python does."""

from __future__ import annotations

import importlib.util
import math
import os
import pickle
import random
import re
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation
from fractions import Fraction
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import raxlog
from raxlog.stream.node import parse_values

SEED = int(os.environ.get("RAXLOG_SEED", time.time_ns() % 1_000_000_007))
LITERALS = int(os.environ.get("RAXLOG_LITERALS", "20000"))  # 1,000,000 in the long form
SPACE = b" \t\n\v\f\r"
CONTROLS = bytes([*range(0x21), 0x7F])
BITS = {"bigint": 63, "int": 31, "smallint": 15, "tinyint": 7}
TRUE, FALSE = {b"1", b"t", b"true", b"y", b"yes"}, {b"0", b"f", b"false", b"n", b"no"}
NUMBER = re.compile(rb"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?")
EXACTLY = Context(prec=2000, Emax=10**9, Emin=-(10**9), rounding=ROUND_HALF_UP)


def plain() -> ModuleType:
    """The kernel's source, as plain Python."""
    source = Path(parse_values.__file__).parent / "parse_values.py"
    spec = importlib.util.spec_from_file_location("plain_parse_values", source)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def digits(chance: random.Random) -> str:
    edge = chance.choice([1 << 31, 1 << 32, 1 << 63, 1 << 64, 10 ** chance.randint(0, 40), chance.getrandbits(70)])
    return "0" * chance.choice([0, 0, 0, 1, 5, 30]) + str(abs(edge + chance.randint(-2, 2)))


def number(chance: random.Random) -> str:
    text = digits(chance)
    if chance.random() < 0.6:
        at = chance.randint(0, len(text))
        text = text[:at] + "." + text[at:]
    if chance.random() < 0.2:
        exponent = chance.choice([0, 1, 5, 19, 38, 309, 400, 10**7])
        text += f"{chance.choice('eE')}{chance.choice(['', '+', '-'])}{exponent}"
    return chance.choice(["", "", "-", "+"]) + text


def moment(chance: random.Random) -> str:
    text = f"{chance.choice([0, 1, 4, 100, 1969, 1970, 2000, 2024, 2100, 9999]):04}-{chance.randint(0, 13):02}"
    text += f"-{chance.choice([0, 1, 28, 29, 30, 31, 32]):02}"
    if chance.random() < 0.3:  # what is a date only
        year = chance.choice([0, 1, 99, 1582, 1900, 2024, 9999, 10_000, 5_881_580, 5_881_581, 9_999_999, 12_345_678])
        parts = [f"{year:0{chance.choice([1, 4, 4, 4, 5])}}", str(chance.randint(0, 13)), str(chance.randint(0, 32))]
        text = chance.choice(["", "", "+", "-"]) + "-".join(parts[: chance.randint(1, 3)])
        return text + chance.choice(["", "", "", "T", " ", "Tx", " 10:00", "-", "x"])
    if chance.random() < 0.8:
        text += chance.choice(" T") + f"{chance.choice([0, 12, 23, 24]):02}:{chance.choice([0, 59, 60]):02}"
        text += chance.choice(["", f":{chance.choice([0, 59, 60]):02}"])
        text += chance.choice(["", "", ".5", ".123456789", ".000001", "."])
        text += chance.choice(["", "Z", "UTC", "+02", "-0230", "+18:00", "+19:00", " +01:00", "z"])
    return text


def literals(chance: random.Random, many: int) -> Iterator[bytes]:
    """All single bytes; then numbers, times and words at the edges of their types, some of them with a byte changed."""
    yield from (bytes([b]) for b in range(256))
    words = [word.decode() for word in (*TRUE, *FALSE)] + ["nan", "inf", "-Infinity", "+inf", "infinit", "", "5e-324",
                                                          "2.2250738585072011e-308", "1.7976931348623159e308"]
    for _ in range(many):
        kind = chance.random()
        text = (midpoint(chance) if kind < 0.1 else number(chance) if kind < 0.5 else
                moment(chance) if kind < 0.75 else digits(chance) if kind < 0.85
                else "".join(chance.choice([c, c.upper()]) for c in chance.choice(words)))
        raw = bytearray(text.encode())
        if chance.random() < 0.3 and raw:
            at = chance.randrange(len(raw))
            raw[at : at + chance.randint(0, 1)] = bytes([chance.choice([raw[at] ^ 1 << chance.randrange(8),
                                                                       chance.randrange(256)])])
        yield bytes(chance.choice([b"", b"", b" ", b"\t\r"])) + bytes(raw) + bytes(chance.choice([b"", b"", b"\n "]))


def midpoint(chance: random.Random) -> str:
    """A number about as far from one float as from the next."""
    low = struct.unpack("<f", struct.pack("<I", chance.randrange(0x7F800000)))[0]
    high = struct.unpack("<f", struct.pack("<I", struct.unpack("<I", struct.pack("<f", low))[0] + 1))[0]
    middle = EXACTLY.divide(EXACTLY.add(Decimal(low), Decimal(high if high != math.inf else 2.0**128)), 2)
    more = chance.choice(["", "0", "00000000000000000000001"])
    digits, _, exponent = f"{middle:e}".partition("e")
    return f"{chance.choice(['', '-'])}{digits}{'' if '.' in digits else '.'}{more}e{exponent}"


def nearest(text: bytes) -> float:
    """The float that is nearest to a number, by whole numbers only."""
    word = text.decode().strip().lower()
    if "n" in word:
        return float(word)
    digits, _, power = word.partition("e")  # of any size, where Decimal takes 18 digits
    number = Decimal(f"{digits}e{max(-10**9, min(int(power or 0), 10**9))}")
    if number.adjusted() > 60 or number.adjusted() < -60:
        return math.copysign(math.inf if number.adjusted() > 60 and number else 0.0, number)
    exact, bits = abs(Fraction(number)), 0
    for bit in range(30, -1, -1):  # the greatest that is not above
        tried = struct.unpack("<f", struct.pack("<I", bits | 1 << bit))[0]
        bits |= (tried < math.inf and Fraction(tried) <= exact) << bit
    low, high = (struct.unpack("<f", struct.pack("<I", bits + more))[0] for more in (0, 1))
    double = Fraction(low) + Fraction(high if high < math.inf else 2.0**128) - 2 * exact
    return math.copysign(high if double < 0 or (double == 0 and bits & 1) else low, number)


def day(text: bytes) -> int | None:
    """Days since 1970 of what Spark casts to a date, by Python's calendar of a year with the same days."""
    found = re.fullmatch(rb"([+-]?)(\d{4,7})(?:-(\d\d?)(?:-(\d\d?)(?:[ T].*)?)?)?", text.strip(CONTROLS), re.DOTALL)
    if found is None:
        return None
    year = int(found[1] + found[2])
    try:
        same = date(2000 + year % 400, int(found[3] or 1), int(found[4] or 1))
    except ValueError:
        return None
    days = (same - date(1970, 1, 1)).days + (year - same.year) // 400 * 146_097
    return days if -(1 << 31) <= days < 1 << 31 else None


def wanted(text: bytes, kind: str, precision: int, scale: int) -> bool:
    """Whether a text is a value of a type, by rules that share nothing with the kernel."""
    if kind == "date":
        return day(text) is not None
    text = text.strip(SPACE)
    if kind == "boolean":
        return text.lower() in TRUE | FALSE
    if kind in BITS:
        top = 1 << BITS[kind]
        return re.fullmatch(rb"[+-]?[0-9]+", text) is not None and -top <= int(text) < top
    if kind in ("double", "float"):
        return NUMBER.fullmatch(text) is not None or (text.lower().lstrip(b"+-") in (b"nan", b"inf", b"infinity") and (
            text.lower()[1:] if text[:1] in b"+-" and text else text.lower()) in (b"nan", b"inf", b"infinity"))
    if NUMBER.fullmatch(text) is None:
        return False
    try:
        value = Decimal(text.decode())
        if value and value.adjusted() > 60:
            return False
        unscaled = value.quantize(Decimal(1).scaleb(-scale), context=EXACTLY).scaleb(scale, context=EXACTLY)
    except InvalidOperation:
        return False
    return len(str(abs(int(unscaled)))) <= precision


def test_each_kernel_reads_random_literals_of_every_type_as_the_plain_source_and_the_oracle_do() -> None:
    print(f"RAXLOG_SEED={SEED}")
    chance = random.Random(SEED)
    here, there = parse_values.Literal(), plain().Literal()
    taken = dict.fromkeys(("string", "double", "float", "boolean", "timestamp", "date", *BITS, "decimal"), 0)
    for text in literals(chance, LITERALS):
        precision = chance.randint(1, 38)
        scale = chance.choice([0, precision, chance.randint(0, precision)])
        for kind in taken:
            found = here.is_value(text, kind, precision, scale)
            shown = f"{text!r} as {kind}({precision},{scale})"
            assert found == there.is_value(text, kind, precision, scale), shown
            value = here.value_of(text, kind, precision, scale)
            assert repr(value) == repr(there.value_of(text, kind, precision, scale)), shown
            if kind == "date":
                assert value == day(text), shown
            if kind == "float" and found:
                assert repr(value) == repr(nearest(text)), shown
            if kind not in ("string", "timestamp"):
                assert found == wanted(text, kind, precision, scale), shown
            taken[kind] += found
    assert all(many > 50 for many in taken.values()), taken


def test_decimals_at_the_edge_of_each_precision_are_taken_or_refused() -> None:
    reader = parse_values.Literal()
    for precision in range(1, 39):
        for scale in {0, 1, precision // 2, precision}:
            if scale > precision:
                continue
            for unscaled in (10**precision - 1, 10**precision, 10**precision + 1):
                for sign in ("", "-"):
                    shown = f"{unscaled:0{scale + 1}}"
                    text = f"{sign}{shown[: len(shown) - scale]}.{shown[len(shown) - scale:]}".encode()
                    assert reader.is_value(text, "decimal", precision, scale) == (unscaled < 10**precision), text


def test_a_timestamp_with_another_character_in_place_of_any_digit_is_read_as_python_reads_it() -> None:
    reader = parse_values.Literal()
    for whole in (b"2018-05-21T16:10:30Z", b"2016-02-29 00:59:07.474Z", b"1969-12-31T23:00:00.000001Z"):
        for place, digit in enumerate(whole):
            for other in b"0123456789/:x\0\xff" if chr(digit).isdigit() else b"":
                text = whole[:place] + bytes([other]) + whole[place + 1 :]
                try:
                    since = datetime.fromisoformat(text.decode("latin-1")) - datetime(1970, 1, 1, tzinfo=UTC)
                except ValueError:
                    since = None
                value = since and since // timedelta(microseconds=1)
                assert reader.value_of(text, "timestamp", 0, 0) == value, text


_SCAN = """
import pickle, random, sys
import raxlog
from test_literals import columns, rows
with raxlog.open(sys.argv[1], readonly=True) as store:
    table = store.stream("s").to_arrow(schema=columns()).read_all()
def texts(column):  # a time may lie beyond Python's
    kind = {"time": "int64", "date": "int32"}.get(str(column.type)[:4])
    column = column.cast(kind) if kind else column
    return [None if v is None else repr(v) for v in column.to_pylist()]
sys.stdout.buffer.write(pickle.dumps({name: texts(table.column(name)) for name in table.column_names}))
"""


def columns() -> dict[str, str]:
    """A column of each type for one field each."""
    kinds = [*BITS, "double", "float", "boolean", "date", "timestamp", "string", "binary"]
    kinds += [f"decimal({precision},{scale})" for precision in (1, 5, 18, 19, 23, 37, 38) for scale in {0, precision}]
    return {f"f{n}": kind for n, kind in enumerate(kinds)}


def rows(chance: random.Random, many: int) -> list[dict[str, bytes]]:
    found = literals(chance, many * len(columns()))
    return [{name: next(found) for name in columns()} for _ in range(many)]


def test_a_scan_of_random_literals_gives_the_same_columns_compiled_and_plain(tmp_path: Path) -> None:
    print(f"RAXLOG_SEED={SEED}")
    given = rows(random.Random(SEED), max(300, LITERALS // 40))
    with raxlog.open(tmp_path / "s.rax", durability="relaxed") as store:
        store.stream("s").extend(given)
    answers: list[dict[str, list[Any]]] = []
    for pure in ("0", "1"):
        env = {**os.environ, "RAXLOG_PURE": pure, "PYTHONPATH": str(Path(__file__).parent), "RAXLOG_SEED": str(SEED)}
        if pure == "0":
            del env["RAXLOG_PURE"]
        done = subprocess.run([sys.executable, "-c", _SCAN, str(tmp_path / "s.rax")], env=env, capture_output=True,
                              timeout=600, check=False)
        assert done.returncode == 0, done.stderr.decode()
        answers.append(pickle.loads(done.stdout))
    compiled, interpreted = answers
    for name, kind in columns().items():
        assert compiled[name] == interpreted[name], kind
        for row, value in zip(given, compiled[name], strict=True):
            text = row[name].strip(SPACE)
            if kind == "boolean":
                assert value == (str(text.lower() in TRUE) if text.lower() in TRUE | FALSE else None), text
            elif kind == "date":
                assert value == (None if day(row[name]) is None else str(day(row[name]))), row[name]
            elif kind == "float" and value is not None:
                assert value == repr(nearest(text)), text
            elif kind in BITS:
                assert value == (str(int(text)) if wanted(text, kind, 0, 0) else None), text
            elif kind == "double" and value is not None:
                assert value == repr(float(text)) or math.isnan(float(text)), text
            elif kind.startswith("decimal"):
                precision, scale = map(int, kind[8:-1].split(","))
                assert (value is not None) == wanted(text, "decimal", precision, scale), (text, kind)


@pytest.mark.parametrize("text", [b"\x10", b"\x11", b" \x11", b"\x11 ", b"\x001", b"\0\0t"])
def test_control_bytes_are_no_truth_values(text: bytes) -> None:
    assert not parse_values.Literal().is_value(text, "boolean", 0, 0)
