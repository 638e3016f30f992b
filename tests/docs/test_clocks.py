"""Each clock is read in one module, storage/clocks.py: a test that moves the time moves all of the product."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# raxlog bench measures other systems beside raxlog, in processes of their own
OUTSIDE = ("tests", "docs", "tools/bench", "build", "storage/clocks.py")
READS = {"time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "clock_gettime",
         "clock_gettime_ns", "now", "utcnow", "today", "uuid1"}
WITHOUT_A_TIME = {"localtime", "gmtime", "ctime", "asctime", "strftime"}  # the time is now, unless one is given
OF = {"time", "datetime", "date", "uuid"}


def readings(source: str) -> list[int]:
    """The lines in which a program reads, names or imports a clock of its own."""
    found = []
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.ImportFrom(module="time" | "uuid", names=names):
                found += [node.lineno for name in names if name.name in READS | WITHOUT_A_TIME | {"*"}]
            case ast.Import(names=names):
                found += [node.lineno for name in names if name.name in OF and name.asname]
            case ast.Call(func=ast.Attribute(value=ast.Name(id="time"), attr=attr), args=args):
                if attr in WITHOUT_A_TIME and len(args) < 1 + (attr == "strftime"):
                    found.append(node.lineno)
            case ast.Attribute(value=ast.Name(id=of) | ast.Attribute(attr=of), attr=attr):
                if of in OF and attr in READS:
                    found.append(node.lineno)
    return found


def test_no_module_but_one_reads_a_clock() -> None:
    if not (ROOT / "pyproject.toml").is_file():
        pytest.skip("the tests were taken out of their repository")
    files = [path for path in ROOT.rglob("*.py")
             if not str(path.relative_to(ROOT)).startswith((".", *OUTSIDE)) and "site-packages" not in path.parts]
    assert len(files) > 200
    assert readings((ROOT / "storage" / "clocks.py").read_text(encoding="utf-8"))
    assert {str(path.relative_to(ROOT)): lines for path in files
            if (lines := readings(path.read_text(encoding="utf-8")))} == {}


@pytest.mark.parametrize("line", [
    "import time\ntime.time()", "import time\nread = time.monotonic", "from time import time_ns",
    "import time as clock", "import datetime\ndatetime.datetime.now()",
    "from datetime import datetime\ndatetime.now(UTC)",
    "import time\ntime.strftime('%H')", "import time\ntime.localtime()", "import uuid\nuuid.uuid1()",
])
def test_a_reading_is_found_however_it_is_written(line: str) -> None:
    assert readings(line)


def test_what_reads_no_clock_is_not_found() -> None:
    assert not readings("import time\ntime.sleep(1)\ntime.localtime(5)\ntime.strftime('%H', time.gmtime(5))")
