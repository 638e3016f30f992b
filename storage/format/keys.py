"""The key layout: which bytes lead to which record, all in one LMDB database.

    number (8)   kind (1)   rest                                  family
    ----------   --------   ------------------------------------  ------------------------
    0            01                                               the store's own record
    0            02         name                                  a stream's name -> number
    0            03         number (8)  [group (4)]               a deleted stream or group, being swept
    0            04         the user's key                        durable state (tx.state)
    0            05         9                                     up to where the log is in this state (log/ring.py)
    0            06                                               the generation that supersedes this one
    0            10                                               the subject index: generation, counts
    0            11         subscription (8)                      a subscription
    0            12         subject  00  [first ID (8)]           the subscribers to a literal subject
    0            13         pattern  00  [first ID (8)]           the subscribers to a pattern with wildcards
    0            14         size (1)  owner  subscription (8)     the subscriptions of an owner
    0            15         name                                  a durable subscription's name -> its ID
    0            16         size (1)  queue  subscription (8)     the members of a queue group
    0            17         shape                                 how many patterns have their wildcards there
    0            18         size (1)  account  pattern  00  size (1)  route  queue
                                                                  remote interest, by account and subject
    0            19         size (1)  route  size (1)  account  pattern  00  queue
                                                                  the same, by the route it came from
    0            1A                                               how many rows of remote interest there are
    0            1C         c s p q, name or anchor … owner (8)   the subscribers to a channel or glob
    0            1D         running number (8)                    a live message on its way; FF * 8: the ring's state
    0            1E         owner (8)  [a row of 1C]              a process with live subscriptions; its channels
    n            20         level (1)  index (8)                  deleted ordinals, counted
    n            21         ordinal (8)                           every 64th leaf -> its master ID
    n            22         name                                  a group's name -> number
    n            23         group (4)  name                       a consumer's name -> number
    n            24         producer (16)  idempotent ID (16)     what idempotent appends remember
    n            25         producer (16)  ms (8)  seq (8)        the same, oldest first
    n            26         due (8)  running no. (8)              a deferred entry
    n            27         name                                  a result
    n            28         expires (8)  name                     the same, first to expire first
    n            29         name                                  a schedule
    n            2a         unique name (16)                      which entry has a unique name
    n            30         ms (8)  seq (8)                       a node: the block of a listpack
    n            31                                               the stream's header
    n            32         group (4)                             a consumer group
    n            33         group (4)  consumer (4)               a consumer
    n            34         group (4)  ms (8)  seq (8)            a bucket of pending entries
    n            35         group (4)  consumer (4)  bucket (16)  how many of it are the consumer's
    n            36         group (4)  time (8)  bucket (16)      its oldest delivery
    n            37         group (4)  due (8)  running no. (8)   a released entry's ID
    n            38         group (4)  key (16)                   how many entries hold a key, how many are parked
    n            38         group (4)  key (16)  ms (8)  seq (8)  a parked entry

All integers in keys are big-endian, so that byte order is numeric order.

The kind bytes are chosen so that what one append touches is adjacent: the tail node is
the last key of kind 30 and the header follows it at once, on the same leaf page of LMDB's
B+tree. Records that are touched now and then (deleted ordinals, the ordinal index) sort in
front of the nodes. Numbers are given out once and never used again.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

FORMAT = 1  # of every record and block
STORE_FORMAT = 5  # of the store, said in its own record: any other is refused

STORE = 0x01
NAME = 0x02
DOOMED = 0x03
STATE = 0x04
LOG = 0x05
SUPERSEDED = 0x06
SUBJECTS = 0x10
SUBSCRIPTION = 0x11
LITERAL = 0x12
WILDCARD = 0x13
SUBSCRIPTION_BY_OWNER = 0x14
SUBSCRIPTION_BY_NAME = 0x15
SUBSCRIPTION_BY_QUEUE = 0x16
SHAPE = 0x17
REMOTE = 0x18
REMOTE_BY_ROUTE = 0x19
REMOTE_COUNT = 0x1A
CHANNEL = 0x1C
LIVE_MESSAGE = 0x1D
OWNER = 0x1E
DEAD = 0x20
ORDINAL = 0x21
GROUP_NAME = 0x22
CONSUMER_NAME = 0x23
IDEMPOTENT = 0x24
IDEMPOTENT_AGE = 0x25
DEFERRED = 0x26
RESULT = 0x27
RESULT_AGE = 0x28
SCHEDULE = 0x29
UNIQUE = 0x2A
NODE = 0x30
HEADER = 0x31
GROUP = 0x32
CONSUMER = 0x33
PENDING = 0x34
PENDING_BY_CONSUMER = 0x35
PENDING_BY_TIME = 0x36
RELEASED = 0x37
KEY = 0x38
# Kinds of which no row is so long that LMDB gives it a page of its own: a bucket's length is bounded for that.
SMALL = frozenset(bytes([kind]) for kind in (PENDING, PENDING_BY_CONSUMER, PENDING_BY_TIME, RELEASED, KEY))
GROUP_KINDS = (CONSUMER_NAME, CONSUMER, PENDING, PENDING_BY_CONSUMER, PENDING_BY_TIME, RELEASED, KEY)

MAX_KEY = 511  # LMDB's own limit, fixed when it was compiled
MAX_NAME = MAX_KEY - 9  # a stream's name shares its key with the number and the kind

MAX_INLINE_NAME = 400  # of groups and consumers; longer ones lie under their hash

# The prefix shared by all keys of one kind: of one stream (number, kind), of one group of a stream (…, group).
family: Callable[[int, int], bytes] = struct.Struct(">QB").pack
group_family: Callable[[int, int, int], bytes] = struct.Struct(">QBI").pack


def header_key(number: int) -> bytes:
    """The key of a stream's header record."""
    return family(number, HEADER)


def name_suffix(name: bytes) -> bytes:
    """A group's or consumer's name as it ends a key: itself, or its SHA-256 where too long.

    The first byte distinguishes the two. The record led to holds the whole name.
    """
    return b"\0" + name if len(name) <= MAX_INLINE_NAME else b"\1" + sha256(name)


def sha256(name: bytes) -> bytes:
    """The part of a key in place of something that is too long for it: 32 bytes."""
    import hashlib  # noqa: PLC0415 - hardly any name is so long

    return hashlib.sha256(name).digest()


def stream_span(number: int) -> tuple[bytes, bytes]:
    """All keys of a stream: from the first (inclusive) to the second (exclusive)."""
    return number.to_bytes(8, "big"), (number + 1).to_bytes(8, "big")


def doomed_spans(suffix: bytes) -> list[tuple[bytes, bytes]]:
    """The key ranges (first, behind last) of a DOOMED key's stream, or of its one group."""
    number = int.from_bytes(suffix[:8], "big")
    if len(suffix) == 8:
        return [stream_span(number)]
    group = int.from_bytes(suffix[8:], "big")
    return [(group_family(number, kind, group), group_family(number, kind, group + 1)) for kind in GROUP_KINDS]


STORE_KEY = family(0, STORE)
NAMES = family(0, NAME)
DOOMED_STREAMS = family(0, DOOMED)
