"""Commands whose replies never change: HELP, and what has no meaning here and answers as Redis' default."""

from __future__ import annotations

from ..session import Run
from ..table import COMMANDS, SESSION, command

_HELP = """
XGROUP
CREATE <key> <groupname> <id|$> [option]
    Create a new consumer group. Options are:
    * MKSTREAM
      Create the empty stream if it does not exist.
    * ENTRIESREAD entries_read
      Set the group's entries_read counter (internal use).
CREATECONSUMER <key> <groupname> <consumer>
    Create a new consumer in the specified group.
DELCONSUMER <key> <groupname> <consumer>
    Remove the specified consumer.
DESTROY <key> <groupname>
    Remove the specified group.
SETID <key> <groupname> <id|$> [ENTRIESREAD entries_read]
    Set the current group ID and entries_read counter.

XINFO
CONSUMERS <key> <groupname>
    Show consumers of <groupname>.
GROUPS <key>
    Show the stream consumer groups.
STREAM <key> [FULL [COUNT <count>]
    Show information about the stream.

PUBSUB
CHANNELS [<pattern>]
    Return the currently active channels matching a <pattern> (default: '*').
NUMPAT
    Return number of subscriptions to patterns.
NUMSUB [<channel> ...]
    Return the number of subscribers for the specified channels, excluding
    pattern subscriptions(default: no channels).
SHARDCHANNELS [<pattern>]
    Return the currently active shard level channels matching a <pattern> (default: '*').
SHARDNUMSUB [<shardchannel> ...]
    Return the number of subscribers for the specified shard level channel(s)
"""
_TEXTS = {lines[0]: lines[1:] for lines in (text.strip().split("\n") for text in _HELP.split("\n\n"))}
_FIXED: dict[str, tuple[int, object]] = {
    "client|no-evict": (3, "OK"), "client|no-touch": (3, "OK"), "config|resetstat": (2, "OK"),
    "script|flush": (-2, "OK"), "module|list": (2, []), "slowlog|get": (-2, []), "slowlog|len": (2, 0),
    "slowlog|reset": (2, "OK"),
}


def _enter(name: str, arity: int, reply: object) -> None:
    command(name, arity, SESSION)(lambda run, words: reply)


def _help(run: Run, words: list[bytes]) -> object:
    family = words[0].decode().upper()
    subcommands = [name.decode().partition("|")[2].upper() for name in COMMANDS if
                   name.startswith(words[0].lower() + b"|")]
    return [f"{family} <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
            *_TEXTS.get(family, [name for name in subcommands if name != "HELP"]), "HELP", "    Print this help."]


for _name, (_arity, _reply) in _FIXED.items():
    _enter(_name, _arity, _reply)
for _family in ("xgroup", "xinfo", "pubsub", "object", "client", "config", "script", "debug", "memory", "module",
                "slowlog"):
    command(f"{_family}|help", 2, SESSION)(_help)
