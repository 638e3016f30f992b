"""Commands that save, or load what is saved: all is on disk already, so they close the store and open it again."""

from __future__ import annotations

from functools import partial

from ....storage import clocks
from ..session import Run
from ..table import ALONE, SESSION, command


def _reopen(run: Run, words: list[bytes], reply: str) -> object:
    run.session.server.engine.reopen(list(run.session.server.sessions.values()))
    return reply


for _name, _arity, _reply in (
    ("save", 1, "OK"), ("bgsave", -1, "Background saving started"), ("debug|reload", -2, "OK"),
    ("debug|loadaof", 2, "OK"), ("bgrewriteaof", 1, "Background append only file rewriting started"),
):
    command(_name, _arity, ALONE)(partial(_reopen, reply=_reply))


@command("lastsave", 1, SESSION)
def lastsave(run: Run, words: list[bytes]) -> object:
    """LASTSAVE: now."""
    return int(clocks.wall_ns() / 1e9)
