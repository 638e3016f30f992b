"""The library's messages in the words of the command line.

    lock_timeout='x' must be …            --lock-timeout 'x' must be …
    … Create it with create_group('g').   … 'raxlog create-group' creates it.

The library's messages name the Python call that resolves an error; here they name the option or command.
"""

from __future__ import annotations

import re

_PHRASES = tuple((re.compile(python), here) for python, here in (
    (r"Create both with create_group\(.*\)\.", "'raxlog create-group' creates both."),
    (r"Create it with create_group\(.*\)\.", "'raxlog create-group' creates it."),
    (r"or leave create_stream=False out\.", "or leave --no-create-stream out."),
    (r"Pass exist_ok=True to take it as it is\.", "--exist-ok takes it as it is."),
    (r"Pass no subjects: it is filtered by others, to take it as it is\.",
     "It is filtered by other subjects; without --subject it is taken as it is."),
    (r"Hand them over with to='other', or lose them with pending='drop'\.",
     "Hand them over with --to OTHER, or lose them with --drop."),
    (r"Append with '\*', or with a greater ID\.", "Leave the ID to the clock, or give a greater one."),
    (r"limit cannot be used without approximate=True", "--limit is for --approximate"),
    (r"limit cannot be used without maxlen or minid", "--limit is for --maxlen or --minid"),
    (r"Open it with readonly=True, or see to the permissions\.",
     "Commands that only read may be allowed; else change the permissions."),
    (r"Open it with readonly=True, or make a store of it with 'raxlog restore'",
     "Commands that read may be used on it; 'raxlog restore' makes a store of it"),
    (r", and readonly=True or create=False creates none\.",
     ". 'raxlog add', 'import' or 'create-group' creates one."),
    (r" copied with snapshot\(\)\.", " copied with 'raxlog snapshot'."),
    (r"raise lock_timeout\.", "give a longer --lock-timeout."),
    (r"or raise max_map_size\. ", "or open the store in Python with a greater max_map_size. "),
    (r"option startingOffsets=", "--start "),
    (r"option endingOffsets=", "--end "),
    (r"option asOf", "--as-of"),
    (r"Read the column as map<binary,binary>",
     'Give --columns "id_ms bigint, id_seq bigint, fields map<binary,binary>"'),
    (r"Read the ID as text, by id_column and a schema without its parts",
     'Give --id NAME, for the ID as text, and --columns "fields map<string,binary>"'),
))  # fmt: skip
_OPTIONS = re.compile(
    r"(?<!\S)(batch|claim_idle|deliveries|compression|count|delay|durability|idempotence_cap|idempotence_window|idle|keep|"
    r"limit|lock_timeout|max_deliveries|maxlen|min_idle|minid|mode|node_max_bytes|node_max_entries|refs|shard_bytes|shards|"
    r"time|timeout)"
    r"(?:=|(?=, (?:a number of |[\d.e+]+,)))"
)


def in_options(message: str) -> str:
    """A message of the library, for the command line."""
    for python, here in _PHRASES:
        message = python.sub(lambda _, here=here: here, message)  # type: ignore[misc]
    return _OPTIONS.sub(_option, message)


def _option(found: re.Match[str]) -> str:
    name = "--" + found[1].replace("_", "-")
    return name + " " if found[0].endswith("=") else name
