"""Fuzzing: whatever bytes the decoders get, nothing but raxlog's own errors comes out.

atheris mutates real nodes, blocks, records, IDs and manifests, guided by what the plain Python source runs
through; all that it found worth keeping is then given to the compiled kernels, with many more mutations of it.
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import crash_parts
import pytest
import raxlog
import zstandard
from raxlog.storage import kernels
from raxlog.storage.format import records
from xxhash import xxh3_64_intdigest

pytestmark = pytest.mark.storm

SECONDS = 30
SEED = int(os.environ.get("RAXLOG_SEED", "7"))


@pytest.fixture
def seeds(tmp_path: Path) -> Path:
    return crash_parts.write_seeds(tmp_path / "corpus")


def test_fuzzed_bytes_raise_only_our_errors_in_the_plain_source(seeds: Path, tmp_path: Path) -> None:
    if importlib.util.find_spec("atheris") is None:
        pytest.skip("missing oracle: atheris")
    assert crash_parts.fuzz(SECONDS, SEED, seeds, tmp_path / "found").tried > 1000


def test_mutated_bytes_raise_only_our_errors_in_the_compiled_kernels(seeds: Path, tmp_path: Path) -> None:
    print(f"RAXLOG_SEED={SEED}, kernels: {kernels.speed()}")
    assert crash_parts.mutations(3000, SEED, seeds, tmp_path / "mutated").failed == 0


def test_a_frame_that_states_a_size_of_its_own_is_damage_and_takes_no_such_memory() -> None:
    """Found by the long run: behind a checksum that is right, the decompressor believed the frame's own size."""
    key = records.node_key(1, 3, 1)
    sealed = records.encode_block(key, bytes(400), 1, 4, 4, records.ZSTD)
    frame = bytearray(zstandard.ZstdCompressor().compress(bytes(400)))
    body = sealed[8 : records.HEADER_SIZE]
    for size in (0, 399, 1 << 40, (1 << 62) + 7):
        # A frame's head with a content size of 8 bytes, and the blocks of the right one behind it.
        stated = frame[:4] + bytes([0xE0]) + size.to_bytes(8, "little") + frame[-4:]
        tail = body + bytes(stated)
        value = xxh3_64_intdigest(tail, xxh3_64_intdigest(key)).to_bytes(8, "little") + tail
        with pytest.raises(raxlog.CorruptionError, match="zstd frame"):
            records.open_block(key, value)[1]


def test_the_fuzzer_finds_an_error_that_is_not_ours(seeds: Path) -> None:
    """The control: a decoder that lets an IndexError out is told by the same program."""
    program = crash_parts.FUZZER.read_text(encoding="utf-8").replace(
        "    def of_record(data: bytes) -> None:\n", "    def of_record(data: bytes) -> None:\n        data[12]\n"
    )
    path = seeds.parent / "fuzz_with_a_bug.py"
    path.write_text(program, encoding="utf-8")
    (seeds / "short").write_bytes(b"\x03short")
    done = crash_parts.fuzzer("run", str(seeds), program=path)
    assert done.returncode != 0
    assert "IndexError" in done.stderr
