"""raxlog for taskiq: a broker whose queue is a stream, and a result backend. Imported as raxlog.taskiq.

    broker.py    tasks are entries of a stream, worker processes consumers of its group
    results.py   what tasks have returned, and their progress, kept for a time

pyproject.toml gives the folder that name: a taskiq.py at the root would hide taskiq itself from what runs there.
"""

from ..storage.errors import NotInstalled

try:
    from .broker import RaxlogBroker
    from .results import RaxlogResultBackend
except ModuleNotFoundError as error:
    what = f"{error.name} cannot be imported; raxlog.taskiq needs it: pip install 'raxlog[taskiq]'"
    raise NotInstalled(what) from error

__all__ = ["RaxlogBroker", "RaxlogResultBackend"]
