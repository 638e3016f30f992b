"""Literals: the text of a value, read as a number, a truth value or a time.

    type         what it may look like                             examples
    -----------  ------------------------------------------------  -------------------------------
    bigint, int, sign, digits; within the type's range             7  -1  +1  007
    smallint, tinyint
    double,      sign, digits, point, exponent; inf, nan           12.5  .5  1e-3  Infinity  NaN
    float
    decimal      the same without inf and nan; rounded half up     12.345 -> 12.35 as decimal(5,2)
                 to the scale; malformed if it has more digits     1234.5 is not a decimal(5,2)
    boolean      1 t true y yes / 0 f false n no, in any case      TRUE
    date         as Spark's cast: year, month, day; behind a       2018-05-21  2018-5  2018
                 T or a space, anything                            2018-05-21T16:10
    timestamp    milliseconds since 1970, or a date and time of    1526919030474
                 ISO 8601; UTC, or the zone asked for,
                 unless it says otherwise; beyond    2018-05-21T16:10:30.474Z
                 the microsecond digits are cut off                2018-05-21 18:10+02:00  2018-05-21

White space of ASCII (of a date, any control character) at either end is passed over; a text that is then
empty is malformed, as where Spark's casts would round (12.5 as a bigint): it would lose something.

The results are the same, bit for bit, compiled and not: doubles and floats are read correctly rounded.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation

SOURCE_HASH = ""

GOOD, BAD = 1, -1
TOP = (1 << 63) - 1
PLAIN = 15  # characters whose digits are a double
MOST_MS = TOP // 1000  # its microseconds are an int64

_EXACTLY = Context(prec=200, rounding=ROUND_HALF_UP)
_NAMED = {b"nan", b"inf", b"infinity"}
_BITS = {"bigint": 63, "int": 31, "smallint": 15, "tinyint": 7}
_SINGLE = struct.Struct("<f")
NONE = 1 << 30  # no part of a date
ERAS, ERA = 25_000, 146_097  # of 400 years; days of one
# Truth values as big-endian numbers of a 1 and their bytes, in lower case: 1 t true y yes, 0 f false n no.
ONE, T, TRUE, Y, YES = 0x131, 0x174, 0x174727565, 0x179, 0x1796573
ZERO, F, FALSE, N, NO = 0x130, 0x166, 0x166616C7365, 0x16E, 0x16E6F


class Literal:
    """Reads one text after the other; the last value is in ``number``, ``real`` or ``big``.

    Every method takes the text's place in ``p`` and answers GOOD or BAD.
    """

    __slots__ = ("big", "digits", "exponent", "local", "negative", "number", "real", "start", "stop", "word")

    local: Callable[[int], int] | None  # from µs of a local time to UTC, for times without a zone; None: they are UTC
    number: int  # an int64
    real: float
    big: int | None  # an unscaled decimal of more than 18 digits
    start: int  # the text without white space
    stop: int
    # what scan() has found: the digits without the point, and where that was
    negative: bool
    digits: int  # significant ones; at most 19 of them are in word
    word: int
    exponent: int

    def __init__(self, local: Callable[[int], int] | None = None) -> None:
        self.local = local

    def is_value(self, text: bytes, kind: str, precision: int, scale: int) -> bool:
        """Whether a field's value becomes one of a column of this type."""
        return self.value_of(text, kind, precision, scale) is not None

    def value_of(self, text: bytes, kind: str, precision: int, scale: int) -> object:
        """What a column of this type holds of a field's value: a date in days, a time in µs. None if it is none."""
        size = len(text)
        if kind == "string":
            return text.decode() if is_utf8(text, 0, size) else None
        if kind == "double":
            return self.real if self.read_double(text, 0, size) == GOOD else None
        if kind == "float":
            return self.real if self.read_float(text, 0, size) == GOOD else None
        if kind == "decimal":
            if self.read_decimal(text, 0, size, precision, scale) == BAD:
                return None
            return Decimal(self.number if self.big is None else self.big).scaleb(-scale, context=_EXACTLY)
        if kind == "boolean":
            return self.number > 0 if self.read_boolean(text, 0, size) == GOOD else None
        if kind == "date":
            return self.number if self.read_date(text, 0, size) == GOOD else None
        if kind in ("timestamp", "timestamp_ntz"):
            if self.read_timestamp(text, 0, size, kind == "timestamp_ntz") == GOOD:
                return self.number
            if self.read_integer(text, 0, size) != GOOD or self.number < -MOST_MS or self.number > MOST_MS:
                return None
            return self.number * 1000 if text == b"%d" % self.number else None  # as a listpack holds integers
        if kind == "binary":
            return text
        most = (1 << _BITS[kind]) - 1
        if self.read_integer(text, 0, size) != GOOD or self.number > most or self.number < -1 - most:
            return None
        return self.number

    def trim(self, p: bytes, pos: int, size: int) -> bool:
        """Find the text between white space; False if there is none."""
        end = pos + size
        while pos < end and (p[pos] == 0x20 or 0x09 <= p[pos] <= 0x0D):
            pos += 1
        while end > pos and (p[end - 1] == 0x20 or 0x09 <= p[end - 1] <= 0x0D):
            end -= 1
        self.start = pos
        self.stop = end
        return pos < end

    def read_integer(self, p: bytes, pos: int, size: int) -> int:
        """A bigint, into ``number``."""
        if not self.trim(p, pos, size):
            return BAD
        at = self.start
        stop = self.stop
        negative = p[at] == 0x2D
        if negative or p[at] == 0x2B:
            at += 1
        if at == stop:
            return BAD
        while at < stop - 1 and p[at] == 0x30:
            at += 1
        if stop - at > 19:
            return BAD
        word = 0
        while at < stop:
            b = p[at]
            if b < 0x30 or b > 0x39:
                return BAD
            word = word * 10 + (b - 0x30)  # 19 digits cannot pass 2**64
            at += 1
        if not negative:
            self.number = word if word <= TOP else 0
            return GOOD if word <= TOP else BAD
        if word > TOP:
            self.number = -TOP - 1
            return GOOD if word == TOP + 1 else BAD
        self.number = word
        self.number = -self.number
        return GOOD

    def scan(self, p: bytes) -> bool:
        """Read sign, digits, point and exponent between start and stop; False if it is not a number."""
        at = self.start
        stop = self.stop
        self.negative = p[at] == 0x2D
        if self.negative or p[at] == 0x2B:
            at += 1
        word = 0
        digits = 0
        seen = 0
        point = -1
        exponent = 0
        while at < stop:
            b = p[at]
            if 0x30 <= b <= 0x39:
                seen += 1
                if digits or b != 0x30:
                    digits += 1
                    if digits <= 19:
                        word = word * 10 + (b - 0x30)
                if point >= 0:
                    exponent -= 1
            elif b == 0x2E and point < 0:
                point = at
            else:
                break
            at += 1
        if not seen:
            return False
        if at < stop:
            if p[at] != 0x65 and p[at] != 0x45:  # e, E
                return False
            at += 1
            minus = at < stop and p[at] == 0x2D
            if minus or (at < stop and p[at] == 0x2B):
                at += 1
            if at == stop:
                return False
            written = 0
            while at < stop:
                b = p[at]
                if b < 0x30 or b > 0x39:
                    return False
                if written < 1000000:  # beyond that it is the same for all types
                    written = written * 10 + (b - 0x30)
                at += 1
            exponent += -written if minus else written
        self.word = word
        self.digits = digits
        self.exponent = exponent
        return True

    def plain(self, p: bytes, pos: int, size: int) -> bool:
        """scan() of digits, with a point among them or not: 12.5, as most are. False for any other text."""
        if size > PLAIN or size < 1:
            return False
        stop = pos + size
        self.negative = size > 1 and p[pos] == 0x2D
        if self.negative:
            pos += 1
        first = pos
        word = 0
        while pos < stop:
            digit = p[pos] - 0x30
            if digit < 0 or digit > 9:
                break
            word = word * 10 + digit
            pos += 1
        point = stop - 1
        if pos < stop and pos > first and p[pos] == 0x2E:
            point = pos
            pos += 1
            while pos < stop:
                digit = p[pos] - 0x30
                if digit < 0 or digit > 9:
                    break
                word = word * 10 + digit
                pos += 1
        self.word = word
        self.exponent = point - (stop - 1)
        return pos == stop

    def read_double(self, p: bytes, pos: int, size: int) -> int:
        """A double, into ``real``."""
        if self.plain(p, pos, size):
            power = 1.0
            while self.exponent < 0:
                power *= 10.0
                self.exponent += 1
            real = float(self.word) / power  # both are doubles without error, so one operation rounds correctly
            self.real = -real if self.negative else real
            return GOOD
        if not self.trim(p, pos, size):
            return BAD
        text = p[self.start : self.stop].lower()
        if not self.scan(p) and (text[1:] if text[:1] in (b"-", b"+") else text) not in _NAMED:
            return BAD
        self.real = float(text)
        return GOOD

    def read_float(self, p: bytes, pos: int, size: int) -> int:
        """A float, into ``real``."""
        if self.read_double(p, pos, size) == BAD:
            return BAD
        real = self.real
        near = single(real)
        # As far on the other side of the double there is a float, too: its digits say which of them is nearer.
        if near != real and single(2.0 * real - near) == 2.0 * real - near:
            exact = Decimal(p[pos : pos + size].decode())
            if exact != Decimal(real):
                near = single(math.nextafter(real, math.inf if exact > Decimal(real) else -math.inf))
        self.real = near
        return GOOD

    def read_decimal(self, p: bytes, pos: int, size: int, precision: int, scale: int) -> int:
        """A decimal: its digits without the point, into ``number``, or ``big`` if there are many."""
        if self.plain(p, pos, size) and 0 <= self.exponent + scale <= 3:
            self.big = None
            word = self.word
            shift = self.exponent + scale
            while shift > 0:
                word *= 10
                shift -= 1
            return self.fits(word, precision)
        if not self.trim(p, pos, size) or not self.scan(p):
            return BAD
        self.big = None
        shift = self.exponent + scale  # how many zeros the digits need to get to the scale
        digits = self.digits
        if digits <= 18 and shift >= -18 and digits + shift <= 18:
            word = self.word
            if shift >= 0:
                while shift > 0:
                    word *= 10
                    shift -= 1
            else:
                while shift < -1:
                    word //= 10
                    shift += 1
                word = (word + 5) // 10
            return self.fits(word, precision)
        return self.long_decimal(p[self.start : self.stop], precision, scale)

    def fits(self, word: int, precision: int) -> int:
        """Take an unsigned number of up to 18 digits if the precision allows it."""
        limit = 1
        while precision > 0 and limit <= word:
            limit *= 10
            precision -= 1
        if word >= limit:
            return BAD
        self.number = word
        if self.negative:
            self.number = -self.number
        return GOOD

    def scaled(self, value: int, precision: int, scale: int) -> int:
        """read_decimal() of a whole number."""
        self.big = None
        if -1000000000 < value < 1000000000 and scale <= 9:
            self.negative = value < 0
            word = -value if value < 0 else value
            while scale > 0:
                word *= 10
                scale -= 1
            return self.fits(word, precision)
        return self.long_decimal(b"%d" % value, precision, scale)

    def long_decimal(self, text: bytes, precision: int, scale: int) -> int:
        """read_decimal() of many digits, by Python's own arithmetic."""
        try:
            number = Decimal(text.decode())
            if number and number.adjusted() > 40:
                return BAD
            unscaled = int(number.quantize(Decimal(1).scaleb(-scale), context=_EXACTLY).scaleb(scale, context=_EXACTLY))
        except (InvalidOperation, ValueError):
            return BAD
        if len(str(abs(unscaled))) > precision:  # 10**precision would be a C double here
            return BAD
        self.big = unscaled
        return GOOD

    def read_boolean(self, p: bytes, pos: int, size: int) -> int:
        """A truth value, into ``number``."""
        if not self.trim(p, pos, size):
            return BAD
        if self.stop - self.start > 5:
            return BAD
        word = 1  # so that a zero byte counts
        at = self.start
        while at < self.stop:
            b = p[at]
            word = word << 8 | (b | 0x20 if 0x41 <= b <= 0x5A else b)  # capitals as small letters
            at += 1
        if word in (TRUE, ONE, T, YES, Y):
            self.number = 1
            return GOOD
        self.number = 0
        return GOOD if word in (FALSE, ZERO, F, NO, N) else BAD

    def read_date(self, p: bytes, pos: int, size: int) -> int:
        """Days since 1970, into ``number``, as Spark's cast of a text to a date: yyyy[-[m]m[-[d]d]], at most 32 bits.

        A year may have a sign, and seven digits. Behind a whole date and a T or a space comes anything.
        """
        stop = pos + size
        while pos < stop and (p[pos] <= 0x20 or p[pos] == 0x7F):
            pos += 1
        while stop > pos and (p[stop - 1] <= 0x20 or p[stop - 1] == 0x7F):
            stop -= 1
        self.stop = stop
        negative = pos < stop and p[pos] == 0x2D
        if negative or (pos < stop and p[pos] == 0x2B):
            pos += 1
        month = day = 1
        year = self.part(p, pos, 4, 7)
        if self.start < stop:
            month = self.part(p, self.start + 1, 1, 2) if p[self.start] == 0x2D else 0
            if self.start < stop and month > 0:
                day = self.part(p, self.start + 1, 1, 2) if p[self.start] == 0x2D else 0
                if self.start < stop and p[self.start] != 0x20 and p[self.start] != 0x54:  # T
                    return BAD
        if year == NONE or month < 1 or month > 12 or day < 1 or day > days_in(year, month):
            return BAD
        if negative:
            year = -year
        self.number = days_before(year + ERAS * 400, month, day) - ERAS * ERA  # of a year greater than 0
        return GOOD if -2147483648 <= self.number <= 2147483647 else BAD

    def part(self, p: bytes, at: int, least: int, most: int) -> int:
        """A number of so many digits, NONE if there is none such; ``start`` is behind them."""
        first = at
        number = 0
        while at < self.stop and at - first <= most and 0x30 <= p[at] <= 0x39:
            number = number * 10 + (p[at] - 0x30)
            at += 1
        self.start = at
        return number if least <= at - first <= most else NONE

    def pair(self, p: bytes, at: int) -> int:
        """Two digits at ``at``, -1 if they are not there."""
        if at + 2 > self.stop:
            return -1
        tens = p[at] - 0x30
        ones = p[at + 1] - 0x30
        if tens < 0 or tens > 9 or ones < 0 or ones > 9:
            return -1
        return tens * 10 + ones

    def read_timestamp(self, p: bytes, pos: int, size: int, naive: bool) -> int:
        """Microseconds since 1970, into ``number``, from a date and time of ISO 8601. ``naive`` ignores ``local``."""
        if self.plain_timestamp(p, pos, size):
            return GOOD
        if not self.trim(p, pos, size):
            return BAD
        at = self.start
        stop = self.stop
        if stop - at < 10 or p[at + 4] != 0x2D or p[at + 7] != 0x2D:
            return BAD
        century = self.pair(p, at)
        years = self.pair(p, at + 2)
        month = self.pair(p, at + 5)
        day = self.pair(p, at + 8)
        year = century * 100 + years
        if century < 0 or years < 0 or year < 1 or month < 1 or month > 12 or day < 1:
            return BAD
        if day > days_in(year, month):
            return BAD
        zoned = False
        hour = minute = second = micros = offset = 0
        at += 10
        if at < stop:
            if p[at] != 0x20 and p[at] != 0x54:  # T
                return BAD
            hour = self.pair(p, at + 1)
            if at + 3 >= stop or p[at + 3] != 0x3A:
                return BAD
            minute = self.pair(p, at + 4)
            at += 6
            if at < stop and p[at] == 0x3A:
                second = self.pair(p, at + 1)
                at += 3
                if at < stop and p[at] == 0x2E:
                    at += 1
                    first = at
                    while at < stop and 0x30 <= p[at] <= 0x39:
                        if at - first < 6:
                            micros = micros * 10 + (p[at] - 0x30)
                        at += 1
                    if at == first:
                        return BAD
                    count = at - first
                    while count < 6:
                        micros *= 10
                        count += 1
            if hour < 0 or hour > 23 or minute < 0 or minute > 59 or second < 0 or second > 59:
                return BAD
            if at < stop and p[at] == 0x20:
                at += 1
                if at == stop or p[at] == 0x20:
                    return BAD
            if at < stop:
                offset = self.zone(p, at)
                if offset < -2000:
                    return BAD
                zoned = True
        seconds = days_before(year, month, day) * 86400
        seconds += hour * 3600 + (minute - offset) * 60 + second
        self.number = seconds * 1000000 + micros
        if not (zoned or naive) and self.local is not None:
            self.number = self.local(self.number)
        return GOOD

    def plain_timestamp(self, p: bytes, pos: int, size: int) -> bool:
        """read_timestamp() of 2018-05-21T16:10:30.474Z, as most are: 3 digits of a fraction, or 6, or none."""
        if size not in (20, 24, 27) or p[pos + size - 1] != 0x5A:
            return False
        if p[pos + 4] != 0x2D or p[pos + 7] != 0x2D or p[pos + 13] != 0x3A or p[pos + 16] != 0x3A:
            return False
        if p[pos + 10] != 0x54 and p[pos + 10] != 0x20:
            return False
        century = two(p, pos)
        year = two(p, pos + 2)
        if century > 99 or year > 99:
            return False
        year += century * 100
        month = two(p, pos + 5)
        day = two(p, pos + 8)
        hour = two(p, pos + 11)
        minute = two(p, pos + 14)
        second = two(p, pos + 17)
        if year < 1 or month < 1 or month > 12 or day < 1 or day > days_in(year, month):
            return False
        if hour > 23 or minute > 59 or second > 59:
            return False
        micros = 0
        if size > 20:
            if p[pos + 19] != 0x2E:
                return False
            at = pos + 20
            while at < pos + size - 1:
                digit = p[at] - 0x30
                if digit < 0 or digit > 9:
                    return False
                micros = micros * 10 + digit
                at += 1
            if size == 24:
                micros *= 1000
        seconds = days_before(year, month, day) * 86400
        seconds += hour * 3600 + minute * 60 + second
        self.number = seconds * 1000000 + micros
        return True

    def zone(self, p: bytes, at: int) -> int:
        """Minutes east of UTC of what ends the text: Z, UTC, +02, +0200, +02:00; -9999 if nothing such."""
        stop = self.stop
        if stop - at == 1 and p[at] == 0x5A:
            return 0
        if stop - at == 3 and p[at : at + 3] == b"UTC":
            return 0
        if p[at] != 0x2B and p[at] != 0x2D:
            return -9999
        hours = self.pair(p, at + 1)
        minutes = 0
        after = at + 3
        if after < stop:
            if p[after] == 0x3A:
                after += 1
            minutes = self.pair(p, after)
            after += 2
        if hours < 0 or hours > 18 or minutes < 0 or minutes > 59 or after != stop:
            return -9999
        offset = hours * 60 + minutes
        return -offset if p[at] == 0x2D else offset


def is_ascii(p: bytes, pos: int) -> bool:  # cimport
    """Are the 8 bytes at ``pos`` below 128?"""
    return p[pos : pos + 8].isascii()


def single(value: float) -> float:  # cimport
    """The float that is nearest to a double."""
    try:
        rounded: float = _SINGLE.unpack(_SINGLE.pack(value))[0]
    except OverflowError:
        return math.copysign(math.inf, value)
    return rounded


def two(p: bytes, pos: int) -> int:
    """Two digits as a number; NONE if they are none."""
    tens = p[pos] - 0x30
    ones = p[pos + 1] - 0x30
    if tens < 0 or tens > 9 or ones < 0 or ones > 9:
        return NONE
    return tens * 10 + ones


def days_in(year: int, month: int) -> int:
    """How many days a month has."""
    if month == 2:
        return 29 if year % 4 == 0 and (year % 100 != 0 or year % 400 == 0) else 28
    return 30 if month in (4, 6, 9, 11) else 31


def days_before(year: int, month: int, day: int) -> int:
    """Days from 1970-01-01 to a date of the Gregorian calendar, year 1 to 9999.

    Years are taken to begin in March, so that the leap day is the last of its year.
    """
    if month <= 2:
        year -= 1
        month += 9
    else:
        month -= 3
    return year * 365 + year // 4 - year // 100 + year // 400 + (153 * month + 2) // 5 + day - 719469


def is_utf8(p: bytes, pos: int, size: int) -> bool:
    """Are these bytes text in UTF-8, as RFC 3629 has it: no surrogates, no overlong forms?"""
    end = pos + size
    while end - pos >= 8 and is_ascii(p, pos):
        pos += 8
    while pos < end:
        b = p[pos]
        pos += 1
        if b < 0x80:
            continue
        if b < 0xC2 or b > 0xF4:
            return False
        more = 1 if b < 0xE0 else 2 if b < 0xF0 else 3
        if pos + more > end:
            return False
        low = 0xA0 if b == 0xE0 else 0x90 if b == 0xF0 else 0x80
        high = 0x9F if b == 0xED else 0x8F if b == 0xF4 else 0xBF
        if p[pos] < low or p[pos] > high:  # only the first of those that follow is ever restricted more
            return False
        pos += 1
        more -= 1
        while more > 0:
            if p[pos] < 0x80 or p[pos] > 0xBF:
                return False
            pos += 1
            more -= 1
    return True
