"""Publish and subscribe: on the channels of the store, which all processes on it share."""

from __future__ import annotations

from functools import partial

from ..replies import Push, Several
from ..session import Run
from ..table import ALONE, WRITES, command


def _change(run: Run, words: list[bytes], verb: str) -> object:
    session = run.session
    if session.subscriber is None and "un" in verb:
        names: list[bytes | None] = [*words[1:]]
        return Several(Push([verb.encode(), name, 0]) for name in names or [None])
    replies = getattr(session.listener(), verb)(*words[1:])
    return Several(Push([verb.encode(), name, count]) for _, name, count in replies)


def _publish(run: Run, words: list[bytes], is_shard: bool) -> object:
    return run.session.server.engine.publish(words[1], words[2], is_shard)


for _letter in ("", "p", "s"):
    command(f"{_letter}subscribe", -2, ALONE)(partial(_change, verb=f"{_letter}subscribe"))
    command(f"{_letter}unsubscribe", -1, ALONE)(partial(_change, verb=f"{_letter}unsubscribe"))
command("publish", 3, WRITES)(partial(_publish, is_shard=False))
command("spublish", 3, WRITES)(partial(_publish, is_shard=True))


def _names(run: Run, words: list[bytes], prefix: str) -> object:
    channels = run.session.server.engine.store.channels
    return (channels.shardchannels if prefix else channels.channels)(words[2] if len(words) > 2 else None)


def _counts(run: Run, words: list[bytes], prefix: str) -> object:
    channels = run.session.server.engine.store.channels
    counts = (channels.shardnumsub if prefix else channels.numsub)(*words[2:])
    return [part for name in words[2:] for part in (name, counts[name])]


for _prefix in ("", "shard"):
    command(f"pubsub|{_prefix}channels", -2, ALONE)(partial(_names, prefix=_prefix))
    command(f"pubsub|{_prefix}numsub", -2, ALONE)(partial(_counts, prefix=_prefix))


@command("pubsub|numpat", 2, ALONE)
def _numpat(run: Run, words: list[bytes]) -> object:
    return run.session.server.engine.store.channels.numpat()
