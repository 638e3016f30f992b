"""Run the check of a kept case again: ``python -m raxlog.recovery.crashtest FOLDER``."""

from __future__ import annotations

import sys

from .run.replay import main

sys.exit(main(sys.argv[1:]))
