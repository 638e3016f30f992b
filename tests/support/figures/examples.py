"""How many examples hypothesis draws for a model: each run draws others, and the long form many more."""

from __future__ import annotations

import os


def examples(usual: int, long: int | None = None) -> int:
    """``usual``, or a third of it on the plain sources, which the compiled ones' run has been before; ``long`` (ten
    times as many, if it is not given) with RAXLOG_LONG=1."""
    if os.environ.get("RAXLOG_LONG"):
        return long or 10 * usual
    return max(usual // 3, 10) if os.environ.get("RAXLOG_PURE") == "1" else usual
