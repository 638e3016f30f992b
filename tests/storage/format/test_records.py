"""Records that are damaged behind a right checksum."""

from __future__ import annotations

import pytest
import raxlog
from raxlog.storage.format import records

KEY = b"\0" * 8 + b"\x01key"


def test_a_record_that_is_no_msgpack_behind_a_right_checksum_is_damage() -> None:
    body = records.FORMAT_BYTE + b"\x94\x01"
    value = records.checksum(body, records.seed_of(KEY))[::-1] + body
    with pytest.raises(raxlog.CorruptionError, match="no msgpack"):
        records.unseal(KEY, value)
