"""raxlog.crashtest: crash any code that writes files in one folder, and check what is left.

The public name of recovery/crashtest/; ``import raxlog`` does not load it. docs/crash-testing.md
shows how it is used.
"""

from .recovery.crashtest import *  # noqa: F403
from .recovery.crashtest import __all__  # noqa: F401 - names what the star has brought
