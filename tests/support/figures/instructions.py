"""Whether a call takes more machine instructions than it did when the figures beside this program were kept.

    python tests/support/figures/instructions.py             counts, prints both; status 1 where one is 3 % above
    python tests/support/figures/instructions.py --keep      writes instructions.json

    append, group read of 1, ack of 1, and the three together; needs compiled kernels, and valgrind

The same build of Python executes the same instructions to within some tenths of a percent. On another build, without
valgrind or on plain kernels, figures are only printed. Who moves a kept figure says in the commit which, and why.
"""

from __future__ import annotations

import hashlib
import json
import platform
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Mapping
from pathlib import Path

from raxlog.storage import kernels
from raxlog.storage.errors import NotInstalled
from raxlog.tools.bench.cases.instructions import HANDOVER, costs_of

KEPT = Path(__file__).with_suffix(".json")
MORE = 0.03
TIMES = 7  # of which the median counts: by the clock an ack in a store of its own takes up to 2 % less
MEMORY = Path("/dev/shm")
ROOM = 1 << 30  # bytes that seven stores and callgrind's files have more than enough of


def build() -> dict[str, str]:
    """What figures depend on."""
    configured = hashlib.sha256(str(sysconfig.get_config_var("CONFIG_ARGS")).encode()).hexdigest()[:16]
    return {"python": sys.version, "configured": configured,
            "compiler": platform.python_compiler(), "machine": platform.machine(), "kernels": kernels.speed()}


def counted() -> dict[str, int]:
    """The instructions of one call of each. NotInstalled: no valgrind."""
    in_memory = MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > ROOM
    with tempfile.TemporaryDirectory(dir=MEMORY if in_memory else None) as folder:
        costs = costs_of("raxlog", HANDOVER * TIMES, Path(folder), traced=False)
    return {call: round(instructions) for call, (instructions,) in costs.items()}


def above(found: Mapping[str, int], kept: Mapping[str, int]) -> list[str]:
    """The calls that take more than they may."""
    return [call for call, figure in found.items() if figure > kept[call] * (1 + MORE)]


def main() -> int:
    """Count, compare, print; or keep."""
    try:
        found = counted()
    except NotInstalled as error:
        print(error)
        return "--keep" in sys.argv[1:]
    here = build()
    if "--keep" in sys.argv[1:]:
        if here["kernels"] != "compiled":
            sys.exit(f"figures are kept of compiled kernels only, and these are {here['kernels']}")
        KEPT.write_text(json.dumps({"build": here, "instructions": found}, indent=2) + "\n")
    kept = json.loads(KEPT.read_text()) if KEPT.is_file() else {"build": {}, "instructions": {}}
    for call, figure in found.items():
        was = kept["instructions"].get(call)
        print(f"{call:10}{figure:>10,} instructions" + (f", kept {was:>10,}  {figure / was - 1:+.1%}" if was else ""))
    if kept["build"] != here:
        differ = [f"{name}: {value}" for name, value in here.items() if kept["build"].get(name) != value]
        print(f"not compared, the kept figures are of another build; here {'; '.join(differ)}")
        return 0
    if more := above(found, kept["instructions"]):
        print(f"more than {MORE:.0%} above the kept figure: {', '.join(more)}")
    return bool(more)


if __name__ == "__main__":
    sys.exit(main())
