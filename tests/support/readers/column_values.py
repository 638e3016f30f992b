"""What a field's bytes are in a column of each type, as the documents have it: without the decoder.

    value_of(b" +7 ", "int", "UTC")      7
    value_of(b"seven", "int", "UTC")     BAD
"""

from __future__ import annotations

import decimal
import math
import re
import struct
from datetime import MAXYEAR, MINYEAR, UTC, date, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

TOP = (1 << 63) - 1
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
BAD = object()

VALUES = [
    b"", b"0", b"7", b"-1", b"+12", b"007", b" 5 ", b"4096", b"2147483647", b"2147483648", b"-9223372036854775808",
    b"9223372036854775807", b"9223372036854775808", b"12.5", b"-0.125", b"1e3", b".5", b"inf", b"-Infinity", b"NaN",
    b"99999.995", b"book", b"\xff\xfe", "naïve €".encode(), b"true", b"NO", b"x" * 300, b"2018-05-21T16:10:30.474Z",
    b"2018-05-21", b"2018-07-21 18:10:00.1234567+02:00", b"2018-01-21T16:10", b"2018-13-01", b"1526919030474",
]
TYPES = ["string", "binary", "bigint", "int", "double", "boolean", "timestamp", "timestamp_ntz", "decimal(7,2)",
         "decimal(38,10)", "smallint", "tinyint", "float", "date"]
BITS = {"bigint": 63, "int": 31, "smallint": 15, "tinyint": 7}
_IN_400_YEARS = 146_097  # days


def _number(text: bytes, least: int, most: int) -> Any:
    if not re.fullmatch(rb"[+-]?[0-9]+", text):
        return BAD
    return int(text) if least <= int(text) <= most else BAD


def _time(raw: bytes, naive: bool, zone: str) -> Any:
    """Microseconds since 1970. Milliseconds are a number as Python writes it."""
    if re.fullmatch(rb"-?[1-9][0-9]*|0", raw):
        return int(raw) * 1000 if abs(int(raw)) * 1000 <= TOP else BAD
    try:
        made = datetime.fromisoformat(re.sub(r"(\.\d{6})\d+", r"\1", raw.decode().strip()))
    except ValueError:
        return BAD
    if made.tzinfo is None:
        made = made.replace(tzinfo=UTC if naive else ZoneInfo(zone))
    return (made - EPOCH) // timedelta(microseconds=1)


def _date(raw: bytes) -> Any:
    """As Spark casts a text. Days since 1970, where Python has no such year."""
    made = re.fullmatch(rb"([+-]?[0-9]{4,7})(?:-([0-9]{1,2})(?:-([0-9]{1,2})(?:[ T].*)?)?)?", raw.strip())
    if made is None:
        return BAD
    year, month, day = (int(part or 1) for part in made.groups())
    near = year if MINYEAR <= year <= MAXYEAR else 2000 + year % 400
    try:
        found = date(near, month, day)
    except ValueError:
        return BAD
    days = (found - EPOCH.date()).days + (year - near) // 400 * _IN_400_YEARS
    return found if near == year else days if -(1 << 31) <= days < 1 << 31 else BAD


def _single(number: float) -> float:
    try:
        made: float = struct.unpack("<f", struct.pack("<f", number))[0]
    except OverflowError:
        made = math.copysign(math.inf, number)
    return made


def _decimal(text: bytes, digits: int, scale: int) -> Any:
    if not re.fullmatch(rb"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?", text):
        return BAD
    context = decimal.Context(prec=200, rounding=decimal.ROUND_HALF_UP)
    made = decimal.Decimal(text.decode()).quantize(decimal.Decimal(1).scaleb(-scale), context=context)
    return f"{made:f}" if len(made.as_tuple().digits) <= digits else BAD


def value_of(raw: bytes, kind: str, zone: str) -> Any:
    """A field's value in a column of a type, as normal() has it; BAD where it is none."""
    text = raw.strip(b" \t\n\v\f\r")
    if kind == "string":
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return BAD
    if kind == "binary":
        return raw
    if kind in BITS:
        return _number(text, -(1 << BITS[kind]), (1 << BITS[kind]) - 1)
    if kind == "date":
        return _date(raw)
    if kind in ("double", "float"):
        if not re.fullmatch(rb"(?i)[+-]?(([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?|inf|infinity|nan)", text):
            return BAD
        return repr(float(text) if kind == "double" else _single(float(text)))
    if kind == "boolean":
        word = text.lower()
        return True if word in (b"1", b"t", b"true", b"y", b"yes") else (
            False if word in (b"0", b"f", b"false", b"n", b"no") else BAD)
    if kind.startswith("timestamp"):
        return _time(raw, kind == "timestamp_ntz", zone)
    return _decimal(text, *map(int, re.findall(r"\d+", kind)))
