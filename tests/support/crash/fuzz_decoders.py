"""The decoders under fuzzed bytes, guided by coverage: run by test_fuzz_decoders.py as a program of its own.

    python fuzz_decoders.py seeds FOLDER            write real nodes, blocks, records, IDs, a manifest as seeds
    python fuzz_decoders.py fuzz FOLDER -max_total_time=10 …       libFuzzer's options
    python fuzz_decoders.py run FOLDER              every file once, no fuzzing: for the compiled kernels

The first byte of an input names the decoder. Where a checksum stands before a decoder the input
is tried as it is and again with the checksum made right, so that what is behind it is reached.
Only raxlog's own errors may come out.
"""

# ruff: noqa: PLC0415 - atheris looks into what is imported after it

from __future__ import annotations

import contextlib
import hashlib
import os
import struct
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

KEY = bytes(7) + b"\x01" + b"\x03" + bytes(16)


def decoders() -> list[Callable[[bytes], object]]:
    """The decoders, by number. Imported here, so that atheris can look into them first."""
    from raxlog.recovery.snapshot import manifest
    from raxlog.storage.errors import RaxlogError
    from raxlog.storage.format import records
    from raxlog.stream.node import decode, listpack, stream_id
    from raxlog.stream.pel import bucket
    from xxhash import xxh3_64_hexdigest, xxh3_64_intdigest

    def framed(data: bytes) -> bytes:
        """With a size and an end mark that fit, else hardly anything gets past them."""
        body = data[6:] if len(data) > 6 else b""
        return struct.pack("<I", len(body) + 7) + data[4:6].ljust(2, b"\0") + body + b"\xff"

    def of_listpack(data: bytes) -> None:
        for lp in (data, framed(data)):
            with contextlib.suppress(RaxlogError):
                count = listpack.validate(lp)
                assert len(list(elements(lp))) == count
            with contextlib.suppress(RaxlogError):
                list(elements(lp))

    def elements(lp: bytes) -> list[bytes]:
        """Every element, walked forwards; a walk over bytes that have not been validated must end too."""
        found = []
        at = listpack.first(lp)
        while at >= 0:
            found.append(listpack.get(lp, at))
            at = listpack.next(lp, at)
            assert len(found) <= len(lp)
        return found

    def of_node(data: bytes) -> None:
        ms, seq = struct.unpack(">QQ", data[:16].ljust(16, b"\0"))
        for lp in (data[16:], framed(data[16:])):
            for act in (
                lambda lp=lp: decode.validate_node(lp, ms, seq),
                lambda lp=lp: decode.decode(lp, ms, seq, 0, 0, 2**64 - 1, 2**64 - 1),
                lambda lp=lp: decode.decode(lp, ms, seq, 0, 0, 2**64 - 1, 2**64 - 1, 5, True),
                lambda lp=lp: decode.live_ids(lp, ms, seq, 0, 0, 2**64 - 1, 2**64 - 1),
                lambda lp=lp: decode.live_before(lp, ms, seq, min(ms + 1, 2**64 - 1), 0),
                lambda lp=lp: decode.counts(lp),
                lambda lp=lp: decode.last_entry_id(lp, ms, seq),
                lambda lp=lp: decode.compact(lp, ms, seq),
                lambda lp=lp: decode.mark_deleted(lp, ms, seq, [(ms, seq)]),
            ):
                with contextlib.suppress(RaxlogError):
                    act()

    def of_block(data: bytes) -> None:
        right = struct.pack("<Q", xxh3_64_intdigest(data[8:], xxh3_64_intdigest(KEY))) + data[8:]
        for value in (data, right):
            with contextlib.suppress(RaxlogError):
                head = records.block_header(KEY, value)
                if head.raw_size < 1 << 20:
                    records.listpack_of(KEY, value, head)

    def of_record(data: bytes) -> None:
        with contextlib.suppress(RaxlogError):
            records.unseal(KEY, data)

    def of_bucket(data: bytes) -> None:
        with contextlib.suppress(RaxlogError):
            bucket.Bucket.decode(KEY, data)

    def of_id(data: bytes) -> None:
        for text in (data, data.decode("latin-1"), data.decode(errors="replace")):
            for parse in (stream_id.parse_id, stream_id.parse_start, stream_id.parse_end, stream_id.parse_new_id,
                          stream_id.StreamID):
                with contextlib.suppress(RaxlogError):
                    parse(text)
        try:
            made = stream_id.parse_id(data)
        except RaxlogError:
            return
        assert stream_id.parse_id(str(made)) == made == stream_id.StreamID.from_bytes(bytes(made))

    def of_manifest(data: bytes) -> None:
        tail = len(b',\n "checksum": "0123456789abcdef"\n}\n')
        body = data[:-tail]
        right = body + b',\n "checksum": "' + xxh3_64_hexdigest(body).encode() + b'"\n}\n'
        for value in (data, right):
            try:
                made = manifest.decode(value, "a manifest")
            except RaxlogError:
                continue
            assert manifest.decode(manifest.encode(made), "again") == made

    return [of_listpack, of_node, of_block, of_record, of_bucket, of_id, of_manifest]


def one_input() -> Callable[[bytes], None]:
    known = decoders()

    def take(data: bytes) -> None:
        if data:
            known[data[0] % len(known)](data[1:])

    return take


def write_seeds(folder: Path) -> None:
    """Real bytes, of every kind of decoder."""
    import raxlog
    from raxlog.storage.format import keys, records
    from raxlog.storage.trees.rax import Rax

    def seed(kind: int, data: bytes) -> None:
        (folder / hashlib.sha1(bytes([kind]) + data).hexdigest()).write_bytes(bytes([kind]) + data)

    with tempfile.TemporaryDirectory() as scratch:
        with raxlog.open(Path(scratch, "s.rax"), encoding=None) as store:
            stream = store.stream("s", node_max_entries=5)
            other = store.stream("z", compression="zstd", node_max_entries=4)
            stream.extend([{"n": n, "text": "word " * (n % 7), f"field {n % 3}": -n * 10**n} for n in range(23)])
            other.extend([{"n": n, "text": "word " * 50} for n in range(23)])
            stream.create_group("g", "0").read("c", count=9)
            stream.delete(*[entry.id for entry in list(stream.range())[3:6]])
            made = store.snapshot(Path(scratch, "snapshot"))
            assert made.streams
            with store._env.read() as txn:
                for number in (1, 2):
                    prefix = keys.family(number, keys.NODE)
                    for key, value in Rax(txn, prefix).items():
                        head = records.block_header(prefix + key, value)
                        raw = records.listpack_of(prefix + key, value, head)
                        seed(0, raw)
                        seed(1, key + raw)
                        seed(2, value)
                for number in (1, 2):
                    for _, value in Rax(txn, number.to_bytes(8, "big")).items():
                        if len(value) < 400:
                            seed(3, value)
                            seed(4, value)
        seed(6, Path(scratch, "snapshot", "manifest.json").read_bytes())
    for text in (b"0-0", b"1-1", b"-", b"+", b"$", b"*", b"(5-3", b"18446744073709551615-18446744073709551615", b"7-*"):
        seed(5, text)


def main() -> int:
    what, folder = sys.argv[1], Path(sys.argv[2])
    if what == "seeds":
        write_seeds(folder)
        return 0
    if what == "run":
        take = one_input()
        for entry in sorted(folder.iterdir()):
            take(entry.read_bytes())
        print(f"{len(os.listdir(folder))} inputs")
        return 0
    import atheris

    with atheris.instrument_imports(include=["raxlog"]):
        take = one_input()
    atheris.Setup([sys.argv[0], *sys.argv[3:], str(folder)], take)
    atheris.Fuzz()
    return 0


if __name__ == "__main__":
    sys.exit(main())
