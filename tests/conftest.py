"""Shared fixtures: a store, a real redis-server, and the account of oracles that were missing.

A test asks for an outside judge by its fixture (``real_redis``) or by ``require("cc")``. Where
the judge is not on the machine the test is skipped, and the last line of the run names what
was missing; RAXLOG_REQUIRE=redis,java,cc turns such a skip into a failure.
"""

from __future__ import annotations

import gc
import os
import pwd
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import forkserver
import pytest
import raxlog
from hypothesis import HealthCheck, Phase, settings
from raxlog.recovery import subprocess_task
from raxlog.storage.log import ring
from redis_server import redis_server

# What a shell starts in the background ignores Ctrl-C, and so would all that the tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Hundreds of tests start a Python of their own. Without compiled modules they take twice the time.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Stores lie in memory where there is room and no other place was chosen: a flush costs nothing there, and what it would
# have to survive is tested with recorded writes. What fails leaves its folder there, as pytest does elsewhere.
_MEMORY = "/dev/shm"
if not {"TMPDIR", "PYTEST_DEBUG_TEMPROOT"} & os.environ.keys() and os.access(_MEMORY, os.W_OK | os.X_OK) and (
        shutil.disk_usage(_MEMORY).free > 6 << 30):
    os.environ["TMPDIR"] = tempfile.tempdir = _MEMORY

gc.disable()  # until all is loaded: together a tenth of a run's processor time went into looking at modules and tests

_RING = ring.RING
_PROGRAMS = {"redis": "redis-server", "java": "java", "cc": "cc"}

settings.register_profile(
    "raxlog", deadline=None, print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)
settings.register_profile("unshrunk", settings.get_profile("raxlog"),
                          phases=[Phase.explicit, Phase.reuse, Phase.generate])
settings.load_profile("raxlog")


def pytest_xdist_auto_num_workers() -> int:
    """Two more than processors: half of the tests' time is waiting."""
    return len(os.sched_getaffinity(0)) + 2


def missing_oracle(name: str) -> None:
    """Skip the test because the oracle is not here; fail it where it has been required."""
    if name in os.environ.get("RAXLOG_REQUIRE", "").split(","):
        pytest.fail(f"RAXLOG_REQUIRE names {name}, and {_PROGRAMS[name]} is not on this machine")
    pytest.skip(f"missing oracle: {name}")


@pytest.fixture(scope="session")
def require() -> Callable[[str], str]:
    """``require("cc")`` returns the program's path, or skips (or fails) the test."""

    def path_of(name: str) -> str:
        path = shutil.which(_PROGRAMS[name])
        if path is None:
            missing_oracle(name)
        return str(path)

    return path_of


@pytest.fixture(autouse=True)
def forked_readers(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The processes in which check, salvage and snapshots read a store have raxlog loaded, but for started_readers."""
    if "started_readers" not in request.fixturenames:
        monkeypatch.setattr(subprocess_task, "subprocess", forkserver)


@pytest.fixture
def started_readers() -> None:
    """Those processes are interpreters of their own, as a user's are: some tests of each command ask for it."""


@pytest.fixture(scope="session", autouse=True)
def ring_of_users() -> None:
    """The workloads of the crash tests, once loaded, have a smaller one: it is for processes of their own."""
    ring.RING = _RING


# Tests whose subject is bytes, each with its reason: a judge without text, records as they lie, or what is no UTF-8.
_IN_BYTES = [line.split()[0] for line in (Path(__file__).parent / "support" / "in_bytes.txt").read_text().splitlines()]


@pytest.fixture
def store(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[raxlog.Store]:
    """An open store in a fresh folder: as open() makes it, of text, but for the files that in_bytes.txt lists."""
    with raxlog.open(tmp_path / "store.rax", encoding=None if request.path.name in _IN_BYTES else "own") as opened:
        yield opened


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where a store is, or may be made."""
    return tmp_path / "s.rax"


@pytest.fixture(scope="session")
def redis_address(tmp_path_factory: pytest.TempPathFactory, require: Callable[[str], str]) -> Iterator[tuple[str, int]]:
    """Host and port of a redis-server of our own: nodes of 4096/100, DUMPs not compressed."""
    with redis_server(require("redis"), tmp_path_factory.mktemp("redis"), "--rdbcompression", "no",
                      "--stream-node-max-bytes", "4096", "--stream-node-max-entries", "100") as address:
        yield address


@pytest.fixture(scope="session")
def newer_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, int]]:
    """Host and port of a server that RAXLOG_REDIS_82 names."""
    program = os.environ.get("RAXLOG_REDIS_82")
    if not program:
        pytest.skip("missing oracle: redis 8.2 (its path in RAXLOG_REDIS_82)")
    with redis_server(program, tmp_path_factory.mktemp("redis82")) as address:
        yield address


@pytest.fixture
def real_redis(redis_address: tuple[str, int]) -> Iterator[object]:
    """A client on an empty redis-server; replies are bytes."""
    import redis  # noqa: PLC0415 - only needed where the server is

    client = redis.Redis(*redis_address)
    client.flushall()
    yield client
    client.close()


def pytest_collection_finish() -> None:
    """What has been loaded stays to the end: the collector need not look at it, nor a fork copy it."""
    gc.freeze()
    gc.enable()


_missing_here: set[str] = set()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.skipped and isinstance(report.longrepr, tuple) and "missing oracle: " in report.longrepr[2]:
        _missing_here.add(report.longrepr[2].split("missing oracle: ")[1])


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    gc.unfreeze()
    if _missing_here and not hasattr(config, "workerinput"):
        print(f"skipped for want of an oracle: {', '.join(sorted(_missing_here))}", file=sys.stderr)


@pytest.fixture
def nobody() -> int:
    """The number of a user without rights. Only root can take it on, since permission bits do not bind root."""
    if os.getuid() != 0:
        pytest.skip("only root can become another user")
    return pwd.getpwnam("nobody").pw_uid


@pytest.fixture
def public_folder(nobody: int) -> Iterator[Path]:
    """A folder that every user can reach. Not below pytest's own, which any run of it closes again."""
    places = [Path(tempfile.gettempdir()), Path("/tmp")]
    place = next((p for p in places if all(folder.stat().st_mode & 0o001 for folder in (p, *p.parents))), None)
    if place is None:
        pytest.skip("no temporary folder that other users can reach")
    with tempfile.TemporaryDirectory(dir=place) as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)
