"""The programs and commands of the pages run, and print what the pages show."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest
import raxlog
import raxlog.aio
from page_runs import blocks, matches, run_page
from raxlog.storage import clocks
from raxlog.stream.group.job import Status
from spark_scans import spark_home

pytestmark = pytest.mark.docs
DOCS = Path(__file__).resolve().parents[2] / "docs"
NEEDS = {  # modules without which a page cannot be run
    "tutorial": ["duckdb", "pyarrow"],
    "howto/duckdb-and-polars": ["duckdb", "polars", "pyarrow"],
    "howto/fastapi": ["fastapi", "httpx", "uvicorn"],
    "howto/log-collector": ["duckdb", "pyarrow"],
    "howto/servers-and-forks": ["gunicorn", "flask", "httpx"],
    "howto/nightly-report": ["matplotlib", "pyspark"],
    "howto/watching": ["matplotlib", "prometheus_client"],
}
SLOW = {"tutorial": pytest.mark.storm, "howto/nightly-report": pytest.mark.spark,
        "howto/crash-test-a-consumer": pytest.mark.storm}
COMMANDS = ("XACK", "XACKDEL", "XADD", "XAUTOCLAIM", "XCFGSET", "XCLAIM", "XDEL", "XDELEX", "XGROUP", "XINFO", "XLEN",
            "XNACK", "XPENDING", "XRANGE", "XREAD", "XREADGROUP", "XREVRANGE", "XSETID", "XTRIM")  # up to Redis 8.10
PAGES = [DOCS / "tutorial.md", *sorted((DOCS / "howto").glob("*.md")), *sorted((DOCS / "coming-from").glob("*.md")),
         DOCS / "operations.md", DOCS / "reference" / "limits.md"]
NAMES = [str(page.relative_to(DOCS).with_suffix("")) for page in PAGES if page.exists()]


@pytest.mark.parametrize("name", [pytest.param(name, marks=SLOW.get(name, ())) for name in NAMES])
def test_what_a_page_shows_is_what_happens(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in NEEDS.get(name, ()):
        pytest.importorskip(module)
    monkeypatch.chdir(tmp_path)
    if "pyspark" in NEEDS.get(name, ()):
        monkeypatch.setenv("SPARK_HOME", spark_home())
    monkeypatch.setattr(clocks, "monotonic", clocks.monotonic)  # a page may move it
    assert run_page(DOCS / f"{name}.md", tmp_path) > 0


def test_the_backup_program_goes_on_after_a_kill_a_restore_and_damage_and_creates_no_store(tmp_path: Path) -> None:
    program = next(block.text for block in blocks(DOCS / "howto" / "backup.md") if block.about == "file: backup.py")
    (tmp_path / "backup.py").write_text(program, encoding="utf-8")
    shop, backups = tmp_path / "shop.rax", tmp_path / "backups"

    def run(source: str = "shop.rax") -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "backup.py", source, "backups"]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    assert "NotAStore" in run("shpo.rax").stderr
    assert not (tmp_path / "shpo.rax").exists()
    with raxlog.open(shop) as store:
        store.stream("orders").append({"item": "book"})
    assert run().stdout == "full snapshot, 0 problems\n"
    last = max(backups.iterdir())
    (backups / f"{last.name}.creating-99999-0123abcd").mkdir()  # as a run that was killed leaves it
    assert run().stdout == "increment snapshot, 0 problems\n"
    last = max(backups.glob("*/manifest.json")).parent
    (last / "digest").write_bytes(b"damaged")
    assert run().stdout == "full snapshot, 0 problems\n"
    shop.rename(tmp_path / "shop.rax.old")
    raxlog.restore(max(backups.glob("*/manifest.json")).parent, shop)
    assert run().stdout == "full snapshot, 0 problems\n"
    assert run().stdout == "increment snapshot, 0 problems\n"


def test_output_is_compared_line_by_line() -> None:
    assert matches("a … c\n1732185612345-0\n", "a b c\n1999999999999-12\n")
    assert matches("first\n…\nlast", "first\n2\n3\nlast\n")
    assert not matches("first\nlast", "first\n2\nlast\n")
    assert not matches("2 entries", "3 entries")
    assert matches("", "")
    assert not matches("", "something")


def test_the_picture_of_the_comparison_is_that_of_its_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(DOCS))
    plot = importlib.import_module("plot")
    rows = plot.ratios((DOCS / "comparison.md").read_text(encoding="utf-8"))
    assert len(rows) == 7
    assert plot.drawn(rows) == (DOCS / "comparison.svg").read_text(encoding="utf-8"), "run: python docs/plot.py"


def test_the_drawings_are_what_their_program_draws_and_name_each_state_of_a_job(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(DOCS))
    drawings = importlib.import_module("drawings")
    for name in drawings.DRAWINGS:
        svg = (DOCS / "pictures" / name).read_text(encoding="utf-8")
        assert drawings.drawn(name) == svg, "run: python docs/drawings.py"
        assert any(f"pictures/{name}" in page.read_text(encoding="utf-8") for page in DOCS.rglob("*.md"))
    svg, page = (DOCS / "pictures" / "job-states.svg"), (DOCS / "jobs.md")
    for status in get_args(Status):
        assert f">{status}</text>" in svg.read_text(encoding="utf-8")
        assert f"\n| `{status}` |" in page.read_text(encoding="utf-8")


def test_the_pictures_of_the_command_line_are_what_it_shows(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(str(DOCS))
    importlib.import_module("pictures").main(tmp_path)
    now, drawn = ({name: re.findall("<text[^>]*>([^<]*)<", (folder / name).read_text(encoding="utf-8"))
                   for name in ("session.svg", "doctor.svg")} for folder in (tmp_path, DOCS / "pictures"))
    sizes = r"\d[\d,]*&#160;(bytes|on)"
    assert [re.sub(sizes, "", text) for text in now["session.svg"]] == [
        re.sub(sizes, "", text) for text in drawn["session.svg"]], "run: python docs/pictures.py"
    rows = [{row[1] for text in texts if (row := re.match(r"(?:&#160;)+(\w.*?)(?:&#160;){2,}", text))}
            for texts in (now["doctor.svg"], drawn["doctor.svg"])]
    assert rows[0] == rows[1], "run: python docs/pictures.py"
    assert len(rows[0]) == 8


def test_every_command_of_redis_streams_is_in_the_table() -> None:
    page = (DOCS / "coming-from" / "redis-streams.md").read_text(encoding="utf-8")
    assert [name for name in COMMANDS if not re.search(rf"^\| `{name}[ `]", page, re.M)] == []


def test_what_is_not_run_is_an_installation_or_needs_a_cluster() -> None:
    for page in DOCS.rglob("*.md"):
        for block in blocks(page):
            lines = block.text.splitlines()
            if block.language == "sh" and page.name not in ("tour.md", "spark.md"):  # test_readme.py runs the tour
                assert all(re.match(r"python3 -m venv|\. |pip install", line) for line in lines), page
            assert block.language or page.name.startswith("format"), f"{page}:{block.line}: a block of no language"
