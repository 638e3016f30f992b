"""The wheel: it carries all that the program reads at run time, and runs from an environment that has only it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest
import raxlog
from raxlog.storage.kernels import KERNELS

ROOT = Path(__file__).resolve().parents[3]
pytest.importorskip("setuptools")
pytest.importorskip("Cython")
if not (ROOT / "setup.py").is_file():
    pytest.skip("the tests were taken out of their repository", allow_module_level=True)

_READ = {".py", ".pxd", ".c", ".html", ".typed"}  # endings of files of the product
_LEFT_OUT = {"tests", "docs", "build", "dist", "setup.py"}


def product() -> set[str]:
    """The product's files, by their paths in the repository."""
    found = set()
    for folder, folders, names in os.walk(ROOT):
        folders[:] = [name for name in folders if name not in _LEFT_OUT and not name.startswith((".", "__"))
                      and not name.endswith(".egg-info")]
        found |= {os.path.relpath(os.path.join(folder, name), ROOT) for name in names
                  if os.path.splitext(name)[1] in _READ and name not in _LEFT_OUT}
    kernels = {name.split(".", 1)[1].replace(".", "/") + ".c" for name in KERNELS}
    return {name for name in found if not name.endswith(".c") or name not in kernels}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel without compiled kernels, built from a copy."""
    copy, out = tmp_path_factory.mktemp("copy"), tmp_path_factory.mktemp("wheel")
    for name in {*product(), "setup.py", "pyproject.toml", "README.md", "LICENSE"}:
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, copy / name)
    quiet = ["-q", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([sys.executable, "-m", "pip", "wheel", *quiet, "-w", out, copy],
                   env={**os.environ, "RAXLOG_NO_COMPILE": "1"}, check=True, capture_output=True, timeout=300)
    return next(out.glob("*.whl"))


def test_the_wheel_carries_each_file_of_the_product(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        carried = {os.path.basename(name): name for name in archive.namelist()}
        whole = set(archive.namelist())
    missing = [name for name in product() if f"raxlog/{name}" not in whole and os.path.basename(name) not in carried]
    assert missing == []
    types = {name for name in product() if name.endswith(".pxd")}
    assert {f"raxlog/{name}" for name in types} <= whole


def test_the_doctor_finds_an_installed_wheel_in_order_plain_and_compiled(wheel: Path, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "env"], check=True, timeout=120)
    room = next((tmp_path / "env" / "lib").glob("python*")) / "site-packages"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(room)
    (room / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")  # not what its own .pth files name
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "RAXLOG_PURE")}

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([tmp_path / "env/bin/python", "-m", "raxlog", *words], cwd=tmp_path, env=env, text=True,
                              capture_output=True, timeout=120, check=False)

    version = run("--version")
    assert (version.returncode, version.stderr) == (0, "")
    assert "kernels: plain" in version.stdout
    doctor = run("doctor")
    assert doctor.returncode == 0, doctor.stdout + doctor.stderr

    # Found by their names: below a plain editable install lie the environment's compiled modules as well.
    here = Path(raxlog.__file__).parent
    modules = [here.joinpath(*name.split(".")[1:]) for name in KERNELS]
    compiled = [path for module in modules for end in EXTENSION_SUFFIXES if (path := module.with_suffix(end)).is_file()]
    if len(compiled) < len(KERNELS):
        pytest.skip("the kernels are not compiled here")
    for path in compiled:
        shutil.copy(path, room / "raxlog" / path.relative_to(here))
    assert "kernels: compiled" in run("--version").stdout
    doctor = run("doctor")
    assert doctor.returncode == 0, doctor.stdout + doctor.stderr
