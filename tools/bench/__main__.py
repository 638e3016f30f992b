"""``python -m raxlog.tools.bench``: the same as ``raxlog bench``."""

import sys

from ..cli import main

if __name__ == "__main__":
    sys.exit(main(["bench", *sys.argv[1:]]))
