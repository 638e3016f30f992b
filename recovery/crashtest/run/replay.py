"""Replay: the check is run again on a kept case, in this process, where a debugger can follow it.

    kept/
    ├── folder/        what the crash left
    ├── case.pickle    the check and the words that had been said
    └── case.txt       what happened, for people
"""

from __future__ import annotations

import pickle
import shutil
import sys
import tempfile
import traceback
from collections.abc import Sequence
from pathlib import Path

from ....storage.errors import InvalidArgument
from .stage import load_main


def replay(kept: str | Path) -> None:
    """Run the check on a copy of a kept case; it raises what it raised then, or nothing more.

    InvalidArgument where ``kept`` is no such folder. The case is a pickle: replay only your own.
    """
    place = Path(kept)
    if not (place / "case.pickle").is_file():
        raise InvalidArgument(f"{place} holds no kept case: the file case.pickle is not there")
    main_path, path, packed = pickle.loads((place / "case.pickle").read_bytes())
    sys.path.extend(one for one in path if one not in sys.path)
    load_main(main_path)
    check, acks = pickle.loads(packed)
    with tempfile.TemporaryDirectory(prefix="raxlog-replay-") as scratch:
        folder = Path(scratch) / "folder"
        shutil.copytree(place / "folder", folder, symlinks=True)
        check(folder, acks)


def main(arguments: Sequence[str]) -> int:
    """The command: print the case, run its check; 0 where it passes now, 1 where it still fails."""
    if len(arguments) != 1:
        print("usage: python -m raxlog.recovery.crashtest KEPT", file=sys.stderr)
        return 2
    told = Path(arguments[0]) / "case.txt"
    if told.is_file():
        print(told.read_text(encoding="utf-8"))
    try:
        replay(arguments[0])
    except InvalidArgument as error:
        print(error, file=sys.stderr)
        return 2
    except Exception:
        traceback.print_exc()
        return 1
    print("the check passes now")
    return 0
