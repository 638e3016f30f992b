"""``python -m raxlog``: the command line without its script."""

import sys

from .tools.cli import main

if __name__ == "__main__":
    sys.exit(main())
