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
