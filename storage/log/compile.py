"""Compile the spike's kernels beside their sources, and link its folder into the editable build.

    ./build.sh && python storage/log/compile.py        in the project's folder
"""

# mypy: ignore-errors
# (setuptools and Cython come without types)

import shutil
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Distribution, Extension
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parents[2]
NAMES = ("overlay", "log", "room", "log_commits")


def main() -> None:
    copy = ROOT / "build" / "kernels"
    here = copy / "raxlog" / "storage" / "log"
    here.mkdir(parents=True, exist_ok=True)
    (here / "__init__.py").write_text("")
    mine = Path(__file__).parent
    extensions = []
    for name in NAMES:
        lines = [("" if line.endswith("# cimport") else line)
                 for line in (mine / f"{name}.py").read_text().replace("...storage", "raxlog.storage").split("\n")]
        (here / f"{name}.py").write_text("\n".join(lines))
        shutil.copy(mine / f"{name}.pxd", here / f"{name}.pxd")
        extensions.append(Extension(f"raxlog.storage.log.{name}", [str(here / f"{name}.py")],
                                    extra_compile_args=["-O2", "-g0"]))
    made = cythonize(extensions, include_path=[str(copy)], quiet=True, compiler_directives={
        "language_level": 3, "annotation_typing": False, "cdivision": True})
    command = build_ext(Distribution({"ext_modules": made}))
    command.build_lib = str(ROOT / "build" / "log-lib")
    command.build_temp = str(ROOT / "build" / "log-temp")
    command.ensure_finalized()
    command.run()
    for built in (ROOT / "build" / "log-lib" / "raxlog" / "storage" / "log").glob("*.so"):
        shutil.copy(built, mine / (built.name + ".new"))
        (mine / (built.name + ".new")).rename(mine / built.name)
    for build in (ROOT / "build").glob("__editable__*/raxlog/storage"):
        link = build / "log"
        if not link.exists():
            link.symlink_to(mine, target_is_directory=True)


if __name__ == "__main__":
    main()
