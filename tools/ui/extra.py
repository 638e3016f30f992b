"""The extra raxlog[ui]: what of it a command needs, and the message where that is missing."""

from __future__ import annotations

import importlib

from ...storage.errors import NotInstalled


def require(what: str, *packages: str) -> None:
    """NotInstalled where one of these packages is missing: ``what`` needs it."""
    for name in packages:
        try:
            importlib.import_module(name)
        except ImportError as error:
            package = name.partition(".")[0].replace("_", "-")
            raise NotInstalled(f"{what} needs {package}: pip install 'raxlog[ui]'") from error
