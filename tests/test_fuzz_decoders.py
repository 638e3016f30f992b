"""Fuzzing: whatever bytes the decoders get, nothing but raxlog's own errors comes out.

atheris mutates real nodes, blocks, records, IDs and manifests, guided by what the plain Python source runs
through; all that it found worth keeping is then given to the compiled kernels, with many more mutations of it.
"""

from __future__ import annotations

import importlib.util
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from raxlog.storage import kernels

pytestmark = pytest.mark.storm

SECONDS = 3600 if os.environ.get("RAXLOG_LONG") else 10
SEED = int(os.environ.get("RAXLOG_SEED", "7"))
PROGRAM = Path(__file__).with_name("fuzz_decoders.py")


def run(*arguments: str, pure: bool = False) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "RAXLOG_PURE": "1" if pure else "0"}
    path = os.pathsep.join(filter(None, sys.path))
    return subprocess.run([sys.executable, str(PROGRAM), *arguments], capture_output=True, text=True, check=False,
                          env={**environment, "PYTHONPATH": path})


@pytest.fixture
def seeds(tmp_path: Path) -> Path:
    folder = tmp_path / "corpus"
    folder.mkdir()
    made = run("seeds", str(folder))
    assert made.returncode == 0, made.stderr
    assert len(os.listdir(folder)) > 40
    return folder


def test_fuzzed_bytes_raise_only_our_errors_in_the_plain_source(seeds: Path, tmp_path: Path) -> None:
    if importlib.util.find_spec("atheris") is None:
        pytest.skip("missing oracle: atheris")
    done = run("fuzz", str(seeds), f"-max_total_time={SECONDS}", f"-seed={SEED}", "-rss_limit_mb=4096", "-timeout=10",
               "-max_len=8192", f"-artifact_prefix={tmp_path}/", pure=True)
    print(done.stderr[-3000:])
    assert done.returncode == 0, "see above; the input is kept in the file that is named there"
    assert "Done" in done.stderr
    again = run("run", str(seeds))
    assert again.returncode == 0, again.stderr[-3000:]


def test_mutated_bytes_raise_only_our_errors_in_the_compiled_kernels(seeds: Path, tmp_path: Path) -> None:
    rng = random.Random(SEED)
    originals = [path.read_bytes() for path in sorted(seeds.iterdir())]
    folder = tmp_path / "mutated"
    folder.mkdir()
    for number in range(200_000 if os.environ.get("RAXLOG_LONG") else 3000):
        data = bytearray(rng.choice(originals))
        for _ in range(rng.choice((1, 1, 2, 4, 16))):
            how = rng.randrange(4) if len(data) > 1 else 3
            at = rng.randrange(1, len(data)) if len(data) > 1 else 1
            if how == 0:
                data[at] ^= 1 << rng.randrange(8)
            elif how == 1:
                data[at] = rng.choice((0, 1, 0x7F, 0x80, 0xF0, 0xF4, 0xFF))
            elif how == 2:
                del data[at : at + rng.randrange(1, 9)]
            else:
                data[at:at] = rng.choice(originals)[1:][: rng.randrange(1, 33)]
        (folder / str(number)).write_bytes(data)
    done = run("run", str(folder))
    print(f"RAXLOG_SEED={SEED}, kernels: {kernels.speed()}, {done.stdout.strip()}")
    assert done.returncode == 0, done.stderr[-3000:]


def test_the_fuzzer_finds_an_error_that_is_not_ours(seeds: Path) -> None:
    """The control: a decoder that lets an IndexError out is told by the same program."""
    program = PROGRAM.read_text(encoding="utf-8").replace(
        "    def of_record(data: bytes) -> None:\n", "    def of_record(data: bytes) -> None:\n        data[12]\n"
    )
    path = seeds.parent / "fuzz_with_a_bug.py"
    path.write_text(program, encoding="utf-8")
    (seeds / "short").write_bytes(b"\x03short")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run([sys.executable, str(path), "run", str(seeds)], capture_output=True, text=True, check=False,
                          env=environment)
    assert done.returncode != 0
    assert "IndexError" in done.stderr
