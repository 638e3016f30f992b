"""Replay: ``python -m raxlog.recovery.crashtest KEPT`` runs the check again on a kept case, in this process.

    kept/
    ├── folder/        what the crash left
    ├── case.pickle    the check and the acks
    └── case.txt       what happened, as text
"""

from __future__ import annotations

import pickle
import shutil
import sys
import tempfile
import traceback
from collections.abc import Sequence
from pathlib import Path

from ...storage.errors import InvalidArgument
from .run.stage import load_main


def replay(kept: str | Path) -> None:
    """Run the check on a copy of a kept case; it may raise as it did then.

    InvalidArgument if ``kept`` is not such a folder. The case is a pickle: replay only your own.
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
    """Print the case and run its check. Returns 0 if it passes now, 1 if it still fails."""
    if len(arguments) != 1:
        print("usage: python -m raxlog.recovery.crashtest KEPT", file=sys.stderr)
        return 2
    text = Path(arguments[0]) / "case.txt"
    if text.is_file():
        print(text.read_text(encoding="utf-8"))
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


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
