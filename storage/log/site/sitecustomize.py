"""With this folder on PYTHONPATH every Python process has the log under raxlog: for the project's own tests."""

from raxlog.storage.log import harness

harness.install()
