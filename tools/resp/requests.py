"""Requests: what clients send, cut out of the bytes as they come.

    *2\\r\\n $4\\r\\nXLEN\\r\\n $1\\r\\ns\\r\\n     an array of bulk strings
    XLEN s\\r\\n                             a line of words, some of them quoted (a person with telnet)

What is no request is answered with Redis' words, and ends the connection. So does a line of HTTP, without an answer:
any page in a browser can send one, with more lines of its own choice behind it. And so does a first line that begins
with no command: that of another protocol (TLS, SMTP, PROXY), in which a stranger may have a say.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from ...storage.errors import RaxlogError
from .whole import cut

_MOST_WORDS = (1 << 31) - 1  # as in Redis; what they take counts against the limit
_MOST_WORDS_UNKNOWN = 10  # and of a client that has not said its password
_WORD = 16  # bytes that a word takes at least
_AT_ONCE = 256  # small requests
_LONGEST_LINE = 1 << 16
_LONGEST_UNKNOWN = 1 << 14
_ESCAPES = {ord("n"): 10, ord("r"): 13, ord("t"): 9, ord("b"): 8, ord("a"): 7}
_HEX = b"0123456789abcdefABCDEF"
_SPACES = b" \t\n\r\v\f\0"
FOREIGN = {b"post", b"host:"}  # first words, as no command has


class ProtocolError(RaxlogError):
    """Bytes that are no request."""


class ForeignRequest(ProtocolError):
    """A request of HTTP: what Redis takes for one (FOREIGN), in a line also its usual forms."""


class RequestParser:
    """The requests of one client. ``limit``: the most bytes of one; ``is_command`` is asked of the first line."""

    def __init__(self, limit: int, is_command: Callable[[bytes], bool] = bool) -> None:
        self._limit = limit
        self._is_command = is_command
        self._data = bytearray()
        self._at = 0
        self._ready: deque[list[bytes]] = deque()  # requests that have been cut out
        self._words: list[bytes] = []
        self._wanted = 0  # words of the array that has begun
        self._size = -1  # of the bulk string whose line has come
        self._taken = 0  # bytes of the request
        self.is_trusted = True

    @property
    def held(self) -> int:
        """Bytes that have come and are not cut out."""
        return len(self._data) + self._taken - (self._size + _WORD if self._size >= 0 else 0)

    def feed(self, data: bytes) -> None:
        """Bytes have come."""
        self._data += data

    def next(self) -> list[bytes] | None:
        """The next request, which is never empty; None where it is not whole. ProtocolError."""
        if self._ready:
            return self._ready.popleft()
        while True:
            if not self._wanted:
                words = self._begin()
                if words is None:
                    return None
                if words:
                    return words
                continue
            while len(self._words) < self._wanted:
                if not self._word():
                    return None
            words, self._words, self._wanted, self._taken = self._words, [], 0, 0
            return words

    def _begin(self) -> list[bytes] | None:
        """The words of a line, none where an array has begun, or nothing is in the line."""
        if self._at >= len(self._data):
            self._data.clear()
            self._at = 0
            return None
        if words := self._whole():
            return words
        if self._data[self._at] != ord("*"):
            end = self._data.find(b"\n", self._at)
            if end < 0:
                self._require_short("inline request")
                return None
            line = bytes(self._data[self._at : end]).removesuffix(b"\r")
            self._forget(end + 1)
            words = split_words(line)
            name = words[0].lower() if words else b""
            if name == b"post" or name.startswith(b"host:") or (len(words) == 3 and words[2].startswith(b"HTTP/")):
                raise ForeignRequest
            if words and not self._is_command(words[0]):
                raise ProtocolError("the first line is no command")
            self._is_command = bool if words else self._is_command
            return words
        line_ = self._line("mbulk count string")
        if line_ is None:
            return None
        count = _number(line_[1:])
        if count is None or count > _MOST_WORDS:
            raise ProtocolError("invalid multibulk length")
        if not self.is_trusted and count > _MOST_WORDS_UNKNOWN:
            raise ProtocolError("unauthenticated multibulk length")
        self._wanted = max(0, count)
        return []

    def _whole(self) -> list[bytes]:
        """The words of a small request that has come whole, with those behind it kept for later. Else none."""
        if not self.is_trusted:
            return []
        found, end = cut(self._data, self._at, _AT_ONCE, self._limit)
        if not found:
            return []
        self._forget(end)
        self._ready.extend(found)
        return self._ready.popleft()

    def _word(self) -> bool:
        if self._size < 0:
            line = self._line("bulk count string")
            if line is None:
                return False
            if line[:1] != b"$":
                raise ProtocolError(f"expected '$', got '{chr(line[0]) if line else ' '}'")
            size = _number(line[1:])
            if size is None or size < 0 or size > self._limit:
                raise ProtocolError("invalid bulk length")
            if not self.is_trusted and size > _LONGEST_UNKNOWN:
                raise ProtocolError("unauthenticated bulk length")
            self._taken += size + _WORD
            if self._taken > self._limit:
                raise ProtocolError("too big request")
            self._size = size
        end = self._at + self._size
        if len(self._data) < end + 2:
            return False
        with memoryview(self._data) as view:
            self._words.append(bytes(view[self._at : end]))
        self._forget(end + 2)
        self._size = -1
        return True

    def _line(self, what: str) -> bytes | None:
        end = self._data.find(b"\r", self._at)
        if end < 0 or end + 1 >= len(self._data):
            self._require_short(what)
            return None
        line = bytes(self._data[self._at : end])
        self._forget(end + 2)
        return line

    def _require_short(self, what: str) -> None:
        if len(self._data) - self._at > _LONGEST_LINE:
            raise ProtocolError(f"too big {what}")

    def _forget(self, at: int) -> None:
        self._at = at
        if at > 1 << 16:
            del self._data[:at]
            self._at = 0


def _number(text: bytes) -> int | None:
    digits = text.removeprefix(b"-")
    if not digits.isdigit() or len(digits) > 19 or (digits[:1] == b"0" and len(text) > 1):
        return None
    return int(text)


def split_words(line: bytes) -> list[bytes]:
    """The words of a line: "…" with escapes, '…' without. ProtocolError where a quote is left open."""
    words: list[bytes] = []
    at = 0
    while True:
        while at < len(line) and line[at] in _SPACES:
            at += 1
        if at >= len(line):
            return words
        word = bytearray()
        quote = 0
        while at < len(line):
            byte = line[at]
            if not quote and byte in _SPACES:
                break
            if quote and byte == quote:
                if at + 1 < len(line) and line[at + 1] not in _SPACES:
                    raise ProtocolError("unbalanced quotes in request")
                quote = -1
                at += 1
                break
            if not quote and byte in b"\"'":
                quote = byte
            elif quote == ord('"') and byte == ord("\\") and at + 1 < len(line):
                code = line[at + 2 : at + 4]
                if line[at + 1] == ord("x") and len(code) == 2 and all(map(_HEX.__contains__, code)):
                    word.append(int(code, 16))
                    at += 3
                else:
                    at += 1
                    word.append(_ESCAPES.get(line[at], line[at]))
            elif quote == ord("'") and line[at : at + 2] == b"\\'":
                at += 1
                word.append(line[at])
            else:
                word.append(byte)
            at += 1
        if quote > 0:
            raise ProtocolError("unbalanced quotes in request")
        words.append(bytes(word))
