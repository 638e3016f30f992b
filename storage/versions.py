"""The versions of raxlog and of what it runs on."""

from __future__ import annotations

import platform

from . import kernels

__version__ = "0.1.0"


def versions() -> dict[str, str]:
    """The versions by name, and whether the kernels run compiled."""
    from .tree.tree import lmdb_version  # noqa: PLC0415 - a program that asks for __version__ loads no LMDB

    return {"version": __version__, "kernels": kernels.speed(), "lmdb": lmdb_version(),
            "python": platform.python_version()}
