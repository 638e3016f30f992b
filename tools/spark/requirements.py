"""The requirements of the source: pyspark, pyarrow, Java; and how to install what is missing."""

from __future__ import annotations

import importlib.util
import os
import shutil

from ...storage.errors import NotInstalled

EXTRA = "pip install 'raxlog[spark]'"


def require() -> None:
    """NotInstalled, naming the extra, where pyspark or pyarrow is missing."""
    missing = [name for name in ("pyspark", "pyarrow") if importlib.util.find_spec(name) is None]
    if missing:
        raise NotInstalled(f"{' and '.join(missing)} cannot be imported; the Spark source needs it: {EXTRA}")


def pyspark_version() -> tuple[int, ...]:
    """The installed pyspark's version, as in (4, 2)."""
    from pyspark import __version__  # noqa: PLC0415 - it may be missing

    return tuple(int(number) for number in __version__.split(".")[:2])


def require_pyspark(what: str, *least: int) -> None:
    """NotInstalled where pyspark is older than ``what`` needs."""
    if pyspark_version() < least:
        needed, here = (".".join(map(str, version)) for version in (least, pyspark_version()))
        raise NotInstalled(f"{what} needs pyspark {needed} or newer, and this is {here}: pip install -U pyspark")


def require_java() -> None:
    """NotInstalled, with what to do, where no Java runtime is found."""
    home = os.environ.get("JAVA_HOME")
    if home and os.access(os.path.join(home, "bin", "java"), os.X_OK):
        return
    if shutil.which("java") is None:
        raise NotInstalled(
            "Spark needs Java 17 or newer, and there is no 'java' on this machine. Install it (Debian, Ubuntu: apt "
            "install openjdk-17-jre-headless; macOS: brew install openjdk@17) or set JAVA_HOME to its folder"
        )
