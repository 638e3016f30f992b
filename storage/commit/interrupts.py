"""Interrupts: what an exception leaves of a commit, and how any thread ends it.

An exception can come between any two steps of a thread (Ctrl-C, a signal's handler that raises,
PyThreadState_SetAsyncExc), and again while the first one is dealt with. So nothing depends on the
struck thread's coming to any later step of its own:

  - what it holds (the lead, LMDB's transaction) is held by `with` on C's own locks, or by a
    generator in a `for`: the interpreter itself gives those back, with no step between
  - the state of the lead is in attributes of Commits, and leave() ends it from these alone, in a fresh
    thread, which no signal strikes. Starting that is the first step, in C, of the exception's handler. A
    LockTimeout strikes nothing: its call leaves by itself, and what strikes that is such an exception
  - where that thread is not to be had, or is struck itself, the others do the same: the struck thread's
    own next call, or any call that waits, once the leader has not led for half a second (is_lost())

Whether a commit counts that was struck is asked of the log's end (settle()), for every class of exception.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ..notices import noted
from ..tree import lmdb_errors

if TYPE_CHECKING:
    from .commits import Call, Commits

_LEADERLESS = 0.5  # seconds without a sign of the leader before another takes its place


def leave(commits: Commits, call: Call) -> None:
    """End what an exception has left of a call: its lead, or its place in the queue. By any thread."""
    if commits.env.commits is not commits:
        return  # the parent's, in a forked child
    with commits.mutex:
        if call in commits.queue:
            commits.queue.remove(call)
        call.gone = True
    if commits.leader is call:
        if commits.transaction_thread == call.thread:
            commits.transaction_thread = None
        with commits.leading:
            if commits.leader is call:
                with commits.writing:
                    settle(commits)
                commits.hand_on(call, False)
    commits.pass_on(call)


leave_as_thread: Final = noted(leave)


def is_lost(commits: Commits, call: Call, leader: Call, now: float) -> bool:
    """Whether the leader that a waiting call sees has been struck, and leads no more."""
    silent, since = commits.silent
    if commits.leading.locked():
        commits.silent = (None, 0.0)
    elif leader.thread == call.thread or (leader is silent and now - since > _LEADERLESS):
        return True
    elif leader is not silent:
        commits.silent = (leader, now)
    return False


def settle(commits: Commits, error: BaseException | None = None) -> bool:
    """After an exception, with the transaction ended: does the commit count? Then its calls are done.

    Under the lead and the writer's lock. May be broken off, and run again by any thread.
    """
    store_map = commits.map
    commits.forget_warm()
    commits.open_write = None
    if commits.committing is None:
        return False
    number, calls = commits.committing
    if store_map.log is not None:
        store_map.log.after_large()
    landed = store_map.last_transaction_id() >= number
    if landed:
        for call in calls:
            call.done = True
        commits.wake_readers(number)
    if isinstance(error, lmdb_errors.Error):
        store_map.note_failure(error)
    commits.committing = None
    return landed
