"""The versions of raxlog and of what it runs on."""

from __future__ import annotations

import platform

from .. import __version__
from . import kernels
from .tree.tree import lmdb_version


def versions() -> dict[str, str]:
    """The versions by name, and whether the kernels run compiled."""
    return {"version": __version__, "kernels": kernels.speed(), "lmdb": lmdb_version(),
            "python": platform.python_version()}
