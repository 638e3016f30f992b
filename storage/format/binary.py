"""Bytes that every commit puts together. The kernels have this in C (binary.pxd), and make no object for a number.

Here these are functions of Python's own in C, by other names; so the twins take the same arguments.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from operator import concat, itemgetter
from typing import Any

flipped: Callable[[bytes], bytes] = itemgetter(slice(None, None, -1))  # a checksum comes big-endian
blank: Callable[[int], bytearray] = bytearray  # of so many bytes, to be filled in
joined: Callable[[bytes, bytes | bytearray], bytes] = concat  # type: ignore[assignment]  # of any sequences
one_number = struct.Struct("<Q").pack
six_numbers = struct.Struct("<6Q").pack
# Into a bytearray, from a place on. The front of a raw block (records.py):
put_front: Callable[..., Any] = struct.Struct("<BBQIIIIH").pack_into
# The head of a record of the log (log/ring.py), and those of its changes: what deletes, what puts, a delta.
put_record_head: Callable[..., Any] = struct.Struct("<QIQII").pack_into
put_delete: Callable[..., Any] = struct.Struct("<BH").pack_into
put_put: Callable[..., Any] = struct.Struct("<BHI").pack_into
put_delta: Callable[..., Any] = struct.Struct("<BHII").pack_into
put_checksum: Callable[..., Any] = struct.Struct("<Q").pack_into
