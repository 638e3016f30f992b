"""The model of the ring: all states that writers, readers, openings and checkpoints can reach in a small log.

    python tests/storage/log/ring_model.py      how many states each cast has, and what each fault leads to

docs/ring-model.md draws its states, and says which function of the product each step stands for, what the bounds are,
and what is left out. In short:

    element     a commit: eight times its number, 4 where it is durable, and its kind: MARK (of a compaction), 1 or 2
                (its size in the ring), LARGE (not in the ring)
    chain       a tuple of elements: all that was committed up to somewhere. It stands for the checksum there, for the
                position, and for the state that results
    record      where it begins (LSN), the chain behind it, whether it says that all before it was on disk
    cell        one unit of the ring: what the disk holds for certain, then what was written since, the last of which is
                what processes read
    tree        LMDB's state: the chain up to P, where the record begins that ends there, what it lacks (nothing)
    actor       a thread of a process: where it is in its call, and what it has there

Each step function has a state and an actor, and yields what may come of it. Steps that touch nothing which others may
change in between are one step.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Iterator
from functools import lru_cache
from itertools import product
from typing import Any, NamedTuple

RING = 5  # units; a record of two that does not fit behind the others leaves one at the end unused
MOST = 2  # units: a larger transaction goes to LMDB at once
MARK, LARGE = 0, 3  # kinds beside the sizes
FAULTS = (
    "END moves first", "END moves before the disk has it", "a checkpoint passes over", "APPLIED after the snapshot",
    "an orphan is left", "a failed commit is left", "O_DSYNC alone", "an opening does not flush",
    "leaving does not flush", "a copy goes before its mark is void",
)

Chain = tuple[int, ...]
Record = tuple[int, Chain, bool]  # LSN, chain behind it, all before was on disk
Content = tuple[Record, int] | None  # which unit of which record
Cell = tuple[Content, ...]
Step = tuple[str, "State"]


class Broken(Exception):
    """A property does not hold: which, and how."""


class Tree(NamedTuple):
    """What LMDB holds."""

    chain: Chain
    start: int  # the LSN of the record that ends at P; P, where there is none
    lacks: Chain = ()  # what it passes over


class Generation(NamedTuple):
    """A data file, its log, and the words that all processes share."""

    cells: tuple[Cell, ...]
    tree: Tree
    end: int
    applied: int
    flushed: int
    kept: int
    large: int
    known: bool  # the words are of this store
    checking: int  # the actor that has the checkpoint's lock, with LMDB's write transaction


class Process(NamedTuple):
    """What one process has followed."""

    where: str  # out, entering, inside
    generation: int
    chain: Chain
    floor: int  # how many of them the overlay does not have
    following: int  # the actor that has the mutex


class State(NamedTuple):
    """All that there is, and below what only the properties know."""

    generations: tuple[Generation, ...]
    current: tuple[int, ...]  # the generation that CURRENT names: on disk, then what processes read
    writing: int  # the actor that has the writer's lock
    processes: tuple[Process, ...]
    actors: tuple[tuple[Any, ...], ...]
    history: Chain  # what counts
    acknowledged: int  # how many of them calls have returned for
    safe: int  # how many of them a power cut must leave
    shown: int  # how many of them a read has shown
    failed: frozenset[int]  # commits that have raised
    number: int  # of the next commit
    left: tuple[int, ...]  # kills, power cuts, errors of the disk, entries that are still to come


class Actor(NamedTuple):
    """One of a cast: what it does, in which process, how often."""

    name: str
    role: str  # writer, reader, checkpointer, opener, compactor
    process: int
    times: int = 1
    kind: int = 1
    durable: bool = True


NONE = -1
OUT = Process("out", 0, (), 0, NONE)
KILLS, CUTS, ERRORS, ENTRIES = range(4)


@lru_cache(None)
def place(chain: Chain, kind: int) -> tuple[int, int]:
    """Where a record of this kind begins behind a chain, and where it ends."""
    at = position(chain)
    if kind == LARGE:
        return at, at + 1
    size = kind or 1
    if at % RING + size > RING:
        at += RING - at % RING
    return at, at + size


@lru_cache(None)
def position(chain: Chain) -> int:
    """The LSN at the end of a chain."""
    return place(chain[:-1], chain[-1] % 4)[1] if chain else 0


def size_of(chain: Chain) -> int:
    """The units of the last record of a chain."""
    return chain[-1] % 4 or 1


def record_at(cells: tuple[Cell, ...], at: int, lsn: int, chain: Chain) -> Record | None:
    """The record of this LSN there, if it is whole, and comes behind this chain."""
    head = cells[at][-1]
    if head is None or head[1] or head[0][0] != lsn or head[0][1][:-1] != chain:
        return None
    whole = all(cells[at + part][-1] == (head[0], part) for part in range(size_of(head[0][1])))
    return head[0] if whole else None


def next_record(cells: tuple[Cell, ...], chain: Chain) -> Record | None:
    """The record behind a chain."""
    at = position(chain)
    beside = at % RING
    return record_at(cells, beside, at, chain) or record_at(cells, 0, at + RING - beside, chain)


def followed(cells: tuple[Cell, ...], chain: Chain, end: float = float("inf")) -> Chain:
    """The chain up to there, or as far as it goes."""
    while position(chain) < end:
        record = next_record(cells, chain)
        if record is None:
            break
        chain = record[1]
    return chain


def flushed(cells: tuple[Cell, ...]) -> tuple[Cell, ...]:
    """After a flush of the file."""
    return tuple(cell[-1:] for cell in cells)


def written(cells: tuple[Cell, ...], at: int, content: Content) -> tuple[Cell, ...]:
    """After a write of one unit, which no flush has followed yet."""
    return (*cells[:at], (*(old for old in cells[at] if old != content), content), *cells[at + 1 :])


def replaced(many: tuple[Any, ...], at: int, one: Any) -> tuple[Any, ...]:
    """A tuple with another member in one place."""
    return (*many[:at], one, *many[at + 1 :])


class Model:
    """One cast, its bounds, and the fault that is built in, if one is."""

    def __init__(self, name: str, actors: list[Actor], *, kills: int = 0, cuts: int = 0, errors: int = 0,
                 entries: int = 0, fault: str = "") -> None:
        self.name = name
        self.cast = actors
        self.fault = fault
        self.bounds = (kills, cuts, errors, entries)
        self.met: set[str] = set()
        self.states = self.steps = 0
        self.readers = [at for at, one in enumerate(actors) if one.role == "reader"]  # which are alike

    def first(self) -> State:
        """A new store, in which all are that are no openers."""
        empty = Generation(((None,),) * RING, Tree((), 0), 0, 0, 0, 0, 0, True, NONE)
        processes = [OUT] * (1 + max(one.process for one in self.cast))
        for one in self.cast:
            if one.role != "opener":
                processes[one.process] = OUT._replace(where="inside")
        actors = tuple(("out" if one.role == "opener" else "idle", one.times) for one in self.cast)
        return State((empty,), (0,), NONE, tuple(processes), actors, (), 0, 0, 0, frozenset(), 1, self.bounds)

    # -- the search ---------------------------------------------------------------------

    def run(self) -> None:
        """All states, nearest first. Broken, with the shortest way to where a property does not hold."""
        collecting = gc.isenabled()
        gc.disable()  # a million tuples, none of them in a circle
        try:
            self.search()
        finally:
            if collecting:
                gc.enable()

    def search(self) -> None:
        """The same."""
        first = self.first()
        came: dict[State, tuple[State, str] | None] = {first: None}
        level = [first]
        while level:
            further = []
            for state in level:
                try:
                    for step, after in self.after(state):
                        self.steps += 1
                        if after not in came:
                            came[after] = state, step
                            further.append(after)
                except Broken as broken:
                    way = []
                    at = came[state]
                    while at is not None:
                        way.append(at[1])
                        at = came[at[0]]
                    self.states = len(came)
                    way = [*way[::-1], f"and for {broken.args[1]} it does not hold"]
                    raise Broken(broken.args[0], way) from None
            level = further
        self.states = len(came)

    def after(self, state: State) -> Iterator[Step]:
        """All steps that can follow."""
        for at, one in enumerate(self.cast):
            local = state.actors[at]
            step = getattr(self, "step_" + local[0])
            for does, after in step(state, at, one, *local[1:]):
                yield f"{one.name}: {does}", self.ordered(after)
        if state.left[KILLS]:
            for at, process in enumerate(state.processes):
                own = [one for one in self.cast if one.process == at]
                if process.where != "out" and own[0].role != "reader":  # whose end changes nothing for others
                    names = ", ".join(one.name for one in own)
                    yield f"SIGKILL strikes the process of {names}", self.ordered(self.killed(state, at))
        if state.left[CUTS]:
            yield from ((does, self.ordered(after)) for does, after in self.cut(state))

    def ordered(self, state: State) -> State:
        """The same, without what makes no difference: two readers may have changed places; no power cut may come."""
        if state.safe and not state.left[CUTS]:
            state = state._replace(safe=0)
        if len(self.readers) < 2:
            return state
        first, second = self.readers
        if hash(state.actors[first]) <= hash(state.actors[second]):
            return state
        actors = replaced(state.actors, first, state.actors[second])
        home = self.cast[first].process
        process = state.processes[home]
        if process.following != NONE:
            process = process._replace(following=first + second - process.following)
            state = state._replace(processes=replaced(state.processes, home, process))
        return state._replace(actors=replaced(actors, second, state.actors[first]))

    def stay(self, state: State, at: int, *local: Any, process: Process | None = None, words: dict[str, Any] | None
             = None, **other: Any) -> State:
        """After a step of an actor: where it is then, and what it has changed."""
        home = self.cast[at].process
        if process is not None:
            other["processes"] = replaced(state.processes, home, process)
        if words:
            here = state.processes[home].generation
            if "cells" in words and not state.left[CUTS]:
                words["cells"] = flushed(words["cells"])
            changed = state.generations[here]._replace(**words)
            other["generations"] = replaced(state.generations, here, changed)
        return state._replace(actors=replaced(state.actors, at, local), **other)

    def home(self, state: State, at: int) -> tuple[Process, Generation]:
        """The process of an actor, and the generation that it has open."""
        process = state.processes[self.cast[at].process]
        return process, state.generations[process.generation]

    # -- properties -----------------------------------------------------------------------

    def show(self, state: State, view: Chain, acknowledged: int, shown: int, name: str) -> State:
        """A read returns a view: what does it have to show, and what must it not?"""
        if any(one in state.failed for one in view) or view != state.history[: len(view)]:
            missed = [one for one in state.history[: len(view)] if one not in view]
            if not missed:
                raise Broken("no opening shows what was never committed", name)
            raise Broken("acknowledged is visible", name)
        if len(view) < acknowledged:
            raise Broken("acknowledged is visible", name)
        if len(view) < shown:
            raise Broken("no reader goes back", name)
        safe = max([state.safe, *(at + 1 for at, one in enumerate(view) if one & 4)])
        return state._replace(shown=max(state.shown, len(view)), safe=safe)

    def refuse(self, name: str) -> Broken:
        """An error where nothing is damaged."""
        return Broken("no sound store is refused", name)

    # -- crashes --------------------------------------------------------------------------

    def killed(self, state: State, home: int) -> State:
        """A process ends: its locks are free, and LMDB has nothing of its transaction. The words stay."""
        own = [at for at, one in enumerate(self.cast) if one.process == home]
        comes = state.left[ENTRIES] or self.cast[own[0]].role == "opener"
        actors = tuple(("out", comes and local[1]) if at in own else local for at, local in enumerate(state.actors))
        generations = tuple(each._replace(checking=NONE) if each.checking in own else each
                            for each in state.generations)
        if any(state.actors[at][0] == "half" for at in own):
            self.met.add("a record in part")
        return state._replace(actors=actors, generations=generations, processes=replaced(state.processes, home, OUT),
                              writing=NONE if state.writing in own else state.writing,
                              left=self.less(state, KILLS))

    def cut(self, state: State) -> Iterator[Step]:
        """All processes end. Of each unit any content is there that it has had since the last flush; so of CURRENT.

        The words are what they were, or zeros. (What they were before says less, of a log that says more.)
        """
        every = [cell for each in state.generations for cell in each.cells]
        actors = tuple(("out", local[1]) for local in state.actors)
        base = state._replace(
            writing=NONE, processes=(OUT,) * len(state.processes), actors=actors, left=self.less(state, CUTS),
            history=state.history[: state.safe], acknowledged=min(state.acknowledged, state.safe),
            shown=min(state.shown, state.safe))
        for cells in product(*every):
            lost = [str(at) for at, cell in enumerate(every) if cell[-1] != cells[at]]
            for known in (True, False):
                generations = []
                for at, each in enumerate(state.generations):
                    disk = tuple((one,) for one in cells[at * RING : at * RING + RING])
                    each = each._replace(cells=disk, checking=NONE)
                    if not known:
                        each = each._replace(end=0, applied=0, flushed=0, kept=0, large=0, known=False)
                    generations.append(each)
                for named in state.current:
                    if lost:
                        self.met.add("a power cut takes a record")
                    does = f"the power is cut; lost: {'units ' + ', '.join(lost) if lost else 'nothing'}"
                    yield does + ("" if known else ", and the words"), base._replace(
                        generations=tuple(generations), current=(named,))

    def less(self, state: State, what: int) -> tuple[int, ...]:
        """One less of a kind is still to come."""
        return replaced(state.left, what, state.left[what] - 1)

    # -- entering -------------------------------------------------------------------------

    def step_out(self, state: State, at: int, one: Actor, n: int) -> Iterator[Step]:
        """An opening: of CURRENT's generation."""
        if state.processes[one.process].where != "out" or (one.role == "opener" and not n):
            return
        if one.role != "opener":
            if not state.left[ENTRIES]:
                return
            state = state._replace(left=self.less(state, ENTRIES))
        process = OUT._replace(where="waiting", generation=state.current[-1])
        yield "opens the store", self.stay(state, at, "enter", n - (one.role == "opener"), state.acknowledged,
                                           state.shown, process=process)

    def step_enter(self, state: State, at: int, one: Actor, n: int, acknowledged: int, shown: int) -> Iterator[Step]:
        """One enters at a time: beside others, or as the first."""
        process, here = self.home(state, at)
        others = [each.where for each in state.processes if each.generation == process.generation]
        if "entering" in others:
            return
        if "inside" in others:
            yield "enters beside others", self.stay(
                state, at, "snapshot", n, "orphan", acknowledged, shown, process=process._replace(where="inside"))
            return
        chain = followed(here.cells, here.tree.chain)
        self.require_sound(here, chain, one.name)
        goes = "recover" if len(chain) > len(here.tree.chain) else "words"
        yield "enters as the first, and follows the chain to its end", self.stay(
            state, at, goes, n, chain, acknowledged, shown, process=process._replace(where="entering"))

    def require_sound(self, here: Generation, chain: Chain, name: str) -> None:
        """Whether the chain is as long as all signs say. Broken: it would be refused."""
        at, tree = position(chain), here.tree
        if here.known and min(here.flushed, here.end) > at:
            raise self.refuse(name)
        if at == position(tree.chain) and tree.start < at:
            behind = tree.chain[:-1] if tree.chain[-1] % 4 == LARGE else tree.chain
            if record_at(here.cells, tree.start % RING, tree.start, behind[:-1]) is None:
                raise self.refuse(name)
        head = here.cells[at % RING][-1]
        if head is not None and head[0][0] == at:
            self.met.add("an opening finds a record in part")
        for unit, cell in enumerate(here.cells):
            head = cell[-1]
            is_next = head is not None and not unit and head[0][0] == at + RING - at % RING
            if head is not None and not head[1] and head[0][0] > at and head[0][2] and not is_next:
                raise self.refuse(name)

    def step_recover(self, state: State, at: int, one: Actor, n: int, chain: Chain, *musts: int) -> Iterator[Step]:
        """What is shown must not go with the power."""
        _, here = self.home(state, at)
        words = {} if self.fault == "an opening does not flush" else {"cells": flushed(here.cells)}
        yield "flushes the log", self.stay(state, at, "words", n, chain, *musts, words=words)

    def step_words(self, state: State, at: int, one: Actor, n: int, chain: Chain, *musts: int) -> Iterator[Step]:
        """END before the others."""
        yield "sets END", self.stay(state, at, "inside", n, chain, *musts, words={"end": position(chain)})

    def step_inside(self, state: State, at: int, one: Actor, n: int, chain: Chain, acknowledged: int,
                    shown: int) -> Iterator[Step]:
        """It is inside, and shows all that it has found."""
        process, here = self.home(state, at)
        superseded = chain[-1:] and chain[-1] % 4 == MARK  # what counts may have gone on elsewhere
        if not superseded:
            if chain[: len(state.history)] != state.history:
                self.show(state, chain, acknowledged, shown, one.name)
                raise Broken("acknowledged is visible", one.name)
            if len(chain) > len(state.history):
                self.met.add("the first to enter takes in what did not count")
            state = self.show(state._replace(history=chain, safe=len(chain)), chain, acknowledged, shown, one.name)
        words = {"flushed": position(chain), "applied": position(here.tree.chain), "kept": here.tree.start,
                 "large": 0, "known": True}
        state = self.entered(state, one)
        process = process._replace(where="inside", chain=chain, floor=len(here.tree.chain))
        state = self.stay(state, at, "idle", n, process=process, words=words)
        yield "sets the other words, is inside, and shows what is there", (
            self.over(state, at, one, n, acknowledged, shown) if superseded else state)

    def entered(self, state: State, one: Actor) -> State:
        """The other threads of its process begin."""
        return state._replace(actors=tuple(
            ("idle", local[1]) if local[0] == "out" and other.process == one.process else local
            for other, local in zip(self.cast, state.actors, strict=True)))

    def step_orphan(self, state: State, at: int, one: Actor, n: int) -> Iterator[Step]:
        """A record behind END, and no writer at work: its call was killed."""
        process, here = self.home(state, at)
        state = self.entered(state, one)
        if next_record(here.cells, process.chain) is None:
            yield "finds nothing behind END, and has opened the store", self.stay(state, at, "idle", n)
        elif state.writing != NONE:
            yield "finds a record behind END, and gives it up to the writer", self.stay(state, at, "idle", n)
        else:
            chain = self.caught_up(here, process.chain, one.name)
            process = process._replace(chain=chain, floor=max(process.floor, len(here.tree.chain)))
            if next_record(here.cells, chain) is None:
                yield "finds that the record behind END counts by now", self.stay(state, at, "idle", n, process=process)
            else:
                yield "takes the writer's lock, to count the record behind END", self.stay(
                    state, at, "take", n, process=process, writing=at)

    def caught_up(self, here: Generation, chain: Chain, name: str) -> Chain:
        """What one that has the writer's lock has followed then."""
        if position(chain) < position(here.tree.chain):
            chain = here.tree.chain
        end = max(here.end, here.flushed)
        chain = followed(here.cells, chain, end)
        if position(chain) < end:
            raise self.refuse(name)
        return chain

    def step_take(self, state: State, at: int, one: Actor, n: int) -> Iterator[Step]:
        """What is shown from now on must not go with the power."""
        _, here = self.home(state, at)
        yield "flushes the log", self.stay(state, at, "count", n, words={"cells": flushed(here.cells)})

    def step_count(self, state: State, at: int, one: Actor, n: int) -> Iterator[Step]:
        """It counts for all."""
        process, here = self.home(state, at)
        record = next_record(here.cells, process.chain)
        if record is None or next_record(here.cells, record[1]) is not None:
            raise self.refuse(one.name)
        self.met.add("an orphan is taken in")
        chain = record[1]
        view = chain if chain[-1] % 4 != MARK else state.history
        yield "moves END and FLUSHED behind the record of a killed call", self.stay(
            state, at, "idle", n, process=process._replace(chain=chain), writing=NONE, history=view,
            safe=state.safe if view is state.history else len(view),
            words={"end": position(chain), "flushed": position(chain)})

    def step_over(self, state: State, at: int, one: Actor, n: int, *musts: int) -> Iterator[Step]:
        """Once no other thread of its process reads: all go over together."""
        process, _ = self.home(state, at)
        busy = [local for other, local in zip(self.cast, state.actors, strict=True) if other.process == one.process
                and local[0] not in ("idle", "over")]
        if process.generation and not busy and process.where == "inside":
            yield "begins its read again", self.stay(state, at, "snapshot", n, "idle", *musts)
        elif not process.generation and not busy:
            yield "goes over to what the mark names", self.over(state, at, one, n, *musts)

    def over(self, state: State, at: int, one: Actor, n: int, *musts: int) -> State:
        """Leave a generation whose mark has been found, for the one it names."""
        process, here = self.home(state, at)
        words = {}
        if one.role != "reader" and self.fault != "leaving does not flush":
            words = {"cells": flushed(here.cells), "flushed": max(here.flushed, here.end)}
        if len(state.generations) == 1:
            raise self.refuse(one.name)
        self.met.add("a process goes over to the file of a compaction")
        process = OUT._replace(where="waiting", generation=1)
        return self.stay(self.stay(state, at, "enter", n, *musts, words=words), at, "enter", n, *musts, process=process)

    # -- reading --------------------------------------------------------------------------

    def step_idle(self, state: State, at: int, one: Actor, n: int) -> Iterator[Step]:
        """Between two calls."""
        if state.processes[one.process].where != "inside":
            return
        if one.role == "opener":
            yield "closes the store", self.stay(state, at, "out", n, process=OUT)
        elif not n:
            return
        elif one.role == "reader":
            yield from self.step_snapshot(state, at, one, n - 1, "idle", state.acknowledged, state.shown)
        elif one.role == "checkpointer":
            yield from self.step_begin(state, at, one, n - 1, 0)
        else:
            yield from self.lock(state, at, one, n)

    def step_snapshot(self, state: State, at: int, one: Actor, n: int, then: str, *musts: int) -> Iterator[Step]:
        """First LMDB's snapshot, with the P that it has."""
        _, here = self.home(state, at)
        yield "begins a read, with LMDB's snapshot", self.stay(state, at, "end", n, then, *musts, here.tree)

    def step_end(self, state: State, at: int, one: Actor, n: int, then: str, acknowledged: int, shown: int,
                 tree: Tree) -> Iterator[Step]:
        """Then END."""
        _, here = self.home(state, at)
        applied = tree.chain
        if self.fault == "APPLIED after the snapshot":
            applied = next(state.history[:many] for many in range(len(state.history) + 1)
                           if position(state.history[:many]) == here.applied)
        end = max(here.end, here.flushed)
        yield "reads END", self.stay(state, at, "follow", n, then, acknowledged, shown, tree, applied, end)

    def step_follow(self, state: State, at: int, one: Actor, n: int, then: str, acknowledged: int, shown: int,
                    tree: Tree, applied: Chain, end: int) -> Iterator[Step]:
        """Then the records up to there, each looked at once; and the view is made."""
        process, here = self.home(state, at)
        if process.following not in (NONE, at):
            return
        chain, floor = process.chain, process.floor
        if process.following == NONE and position(applied) > position(chain):
            chain, floor = applied, len(applied)
        aim = max(end, position(applied))
        moved = len(applied) < floor
        if not moved and position(chain) < aim:
            record = next_record(here.cells, chain)
            moved = record is None
            if record is not None:
                chain = record[1]
        if moved:
            if tree == here.tree and end == max(here.end, here.flushed) and state.writing == here.checking == NONE:
                raise self.refuse(one.name)
            self.met.add("a read finds the ring used again, or another's snapshot newer")
            yield "finds no record there any more, and begins again", self.stay(
                state, at, "snapshot", n, then, acknowledged, shown,
                process=process._replace(chain=chain, floor=floor, following=NONE))
        elif position(chain) < aim:
            yield "takes a record in", self.stay(
                state, at, "follow", n, then, acknowledged, shown, tree, applied, end,
                process=process._replace(chain=chain, floor=floor, following=at))
        else:
            if floor < len(applied) <= len(chain):
                floor = len(applied)
            process = process._replace(chain=chain, floor=floor, following=NONE)
            view = tuple(each for each in tree.chain if each not in tree.lacks)
            view += tuple(each for each in chain[floor:] if each not in tree.chain)
            if tree != here.tree:
                self.met.add("a checkpoint under a reader")
            state = self.stay(state, at, then, n, process=process)
            if view and view[-1] % 4 == MARK:
                yield "finds the mark of a compaction", self.stay(state, at, "over", n, acknowledged, shown)
            else:
                yield "has its view", self.show(state, view, acknowledged, shown, one.name)

    # -- committing -----------------------------------------------------------------------

    def lock(self, state: State, at: int, one: Actor, n: int) -> Iterator[Step]:
        """The writer's lock, and what others have written since. For a compaction, the copy, too."""
        process, here = self.home(state, at)
        if state.writing != NONE:
            return
        if here.large:
            if here.checking == NONE:
                words: dict[str, Any] = {"large": 0}
                at_tree = position(here.tree.chain)
                if at_tree > here.end:
                    words |= {"end": at_tree, "flushed": at_tree, "applied": at_tree, "kept": here.tree.start}
                    self.met.add("a large transaction counts after its call was killed")
                yield "finds that a large transaction was broken off", self.stay(state, at, "idle", n, words=words)
            return
        chain = self.caught_up(here, process.chain, one.name)
        if chain and chain[-1] % 4 == MARK:
            yield "finds the mark of a compaction", self.stay(
                state, at, "over", n, state.acknowledged, state.shown)
            return
        if one.role == "compactor" and process.generation == 0 and len(state.generations) == 2:
            yield from self.tidy(state, at, n, process._replace(chain=chain), here)
            return
        kind = one.kind
        other: dict[str, Any] = {}
        if one.role == "compactor":
            if process.generation:
                return  # once is enough
            kind = MARK
            copy = Generation(((None,),) * RING, Tree(chain, position(chain)), 0, 0, 0, 0, 0, False, NONE)
            other["generations"] = (here, copy)
        element = 8 * state.number + 4 * one.durable + kind
        yield "takes the writer's lock" + (", and has the copy on disk" if other else ""), self.stay(
            state, at, "place", n - 1, element, process=process._replace(chain=chain), writing=at,
            number=state.number + 1, **other)

    def tidy(self, state: State, at: int, n: int, process: Process, here: Generation) -> Iterator[Step]:
        """Under the writer's lock: a copy that a killed compaction has left goes, but no mark that names it stays."""
        cells = here.cells
        orphan = next_record(cells, process.chain)
        if self.fault != "a copy goes before its mark is void":
            if orphan is not None:
                cells = written(cells, orphan[0] % RING, None)
            cells = flushed(cells)
        self.met.add("what a compaction has left is removed")
        state = self.stay(state, at, "idle", n, process=process, words={"cells": cells})
        yield "removes the copy that a killed compaction has left", state._replace(generations=state.generations[:1])

    def step_place(self, state: State, at: int, one: Actor, n: int, element: int) -> Iterator[Step]:
        """Where the record goes, whether there is room; and its first unit."""
        process, here = self.home(state, at)
        kind = element % 4
        if kind == LARGE:
            yield from self.step_begin(state, at, one, n, element)
            return
        lsn, end = place(process.chain, kind)
        if lsn > position(process.chain):
            orphan = next_record(here.cells, process.chain)
            if orphan is not None and self.fault != "an orphan is left":
                self.met.add("an orphan is struck out")
                yield "strikes out what a killed call has left behind END", self.stay(
                    state, at, "strike", n, element, words={"cells": written(here.cells, orphan[0] % RING, None)})
                return
        if end - here.kept > RING:
            self.met.add("a commit waits for a checkpoint")
            yield from self.step_begin(state, at, one, n, element)
            return
        if lsn >= RING:
            self.met.add("a lap")
        record = lsn, (*process.chain, element), here.flushed >= position(process.chain)
        if self.fault == "END moves first":
            yield "moves END before it writes", self.stay(
                state, at, "late", n, record, words={"end": end}, history=(*state.history, element))
        else:
            yield from self.step_late(state, at, one, n, record)

    def step_late(self, state: State, at: int, one: Actor, n: int, record: Record) -> Iterator[Step]:
        """The first unit of the record."""
        _, here = self.home(state, at)
        goes = "half" if size_of(record[1]) == 2 else "written"
        yield "writes its record" + (", the first unit" if goes == "half" else ""), self.stay(
            state, at, goes, n, record, words={"cells": written(here.cells, record[0] % RING, (record, 0))})

    def step_strike(self, state: State, at: int, one: Actor, n: int, element: int) -> Iterator[Step]:
        """What is void must stay so."""
        _, here = self.home(state, at)
        yield "flushes the log", self.stay(state, at, "place", n, element, words={"cells": flushed(here.cells)})

    def step_half(self, state: State, at: int, one: Actor, n: int, record: Record) -> Iterator[Step]:
        """A record of two units is written in two steps."""
        _, here = self.home(state, at)
        yield "writes the second unit", self.stay(
            state, at, "written", n, record, words={"cells": written(here.cells, record[0] % RING + 1, (record, 1))})
        yield from self.fails(state, at, n, record)

    def fails(self, state: State, at: int, n: int, record: Record) -> Iterator[Step]:
        """The disk returns an error."""
        if state.left[ERRORS]:
            _, here = self.home(state, at)
            cells = here.cells
            if self.fault != "a failed commit is left":
                cells = written(cells, record[0] % RING, None)
            yield "is given an error, and makes the record void", self.stay(
                state, at, "fail", n, record, left=self.less(state, ERRORS), words={"cells": cells})

    def step_fail(self, state: State, at: int, one: Actor, n: int, record: Record) -> Iterator[Step]:
        """The call raises: what it wanted to commit must never be shown."""
        _, here = self.home(state, at)
        self.met.add("a commit fails")
        yield "flushes the log, and raises", self.stay(
            state, at, "idle", n, words={"cells": flushed(here.cells)}, writing=NONE,
            failed=state.failed | {record[1][-1]})

    def step_written(self, state: State, at: int, one: Actor, n: int, record: Record) -> Iterator[Step]:
        """The write returns: with O_DSYNC its own bytes are on disk, behind what is not flushed yet all are."""
        _, here = self.home(state, at)
        yield from self.fails(state, at, n, record)
        if self.fault == "END moves before the disk has it" and one.durable and here.end < position(record[1]):
            yield "moves END before its write has returned", self.stay(
                state, at, "written", n, record, words={"end": position(record[1])}, history=record[1])
            return
        if not one.durable:
            yield from self.step_move(state, at, one, n, record)
            return
        first = record[0] % RING
        own = range(first, first + size_of(record[1]))
        alone = self.fault == "O_DSYNC alone"
        cells = tuple(cell[-1:] if unit in own or not (record[2] or alone) else cell
                      for unit, cell in enumerate(here.cells))
        yield "has its record on disk" + ("" if record[2] else ", and all before it"), self.stay(
            state, at, "move", n, record, words={"cells": cells})

    def step_move(self, state: State, at: int, one: Actor, n: int, record: Record) -> Iterator[Step]:
        """It counts."""
        process, _ = self.home(state, at)
        chain = record[1]
        history = state.history if chain[-1] % 4 == MARK else chain
        if one.durable:
            yield "moves END", self.stay(state, at, "done", n, chain[-1], process=process._replace(chain=chain),
                                         words={"end": position(chain)}, history=history)
        else:
            state = self.stay(state, at, "idle", n, process=process._replace(chain=chain),
                              words={"end": position(chain)}, history=history)
            yield "moves END, and returns", self.returned(state, at, one, n, chain[-1])

    def step_done(self, state: State, at: int, one: Actor, n: int, element: int) -> Iterator[Step]:
        """FLUSHED behind END: it says of what counts how far it is on disk."""
        process, _ = self.home(state, at)
        state = self.stay(state, at, "idle", n, words={"flushed": position(process.chain)})
        yield "moves FLUSHED, and returns", self.returned(state, at, one, n, element)

    def returned(self, state: State, at: int, one: Actor, n: int, element: int) -> State:
        """The call is over; that of a compaction goes on."""
        if element % 4 == MARK:
            return self.stay(state, at, "begin", n, element)
        many = len(state.history)
        return state._replace(writing=NONE, acknowledged=many, safe=many if one.durable else state.safe)

    # -- checkpoints ----------------------------------------------------------------------

    def step_begin(self, state: State, at: int, one: Actor, n: int, element: int) -> Iterator[Step]:
        """Under the checkpoint's lock, with LMDB's write transaction: all records up to END are taken in."""
        process, here = self.home(state, at)
        if here.checking != NONE or process.following != NONE:
            return
        tree = here.tree
        words: dict[str, Any] = {"applied": max(here.applied, position(tree.chain)), "kept": max(here.kept, tree.start)}
        chain = self.caught_up(here, process.chain, one.name)
        goes = "commit" if here.flushed >= position(chain) else "flush"
        if goes == "commit" and chain == tree.chain and element % 4 != LARGE:
            if element or here._replace(**words) != here:
                yield "looks for what LMDB lacks, and finds nothing", self.checked(
                    self.stay(state, at, "idle", n, words=words), at, n, element)
            return
        yield "begins a checkpoint, and takes in all up to END", self.stay(
            state, at, goes, n, element, chain, process=process._replace(chain=chain),
            words={**words, "checking": at})

    def step_flush(self, state: State, at: int, one: Actor, n: int, element: int, chain: Chain) -> Iterator[Step]:
        """What LMDB is to have must be on disk in the log, too."""
        _, here = self.home(state, at)
        yield "flushes the log", self.stay(
            state, at, "flushed", n, element, chain, here.end, words={"cells": flushed(here.cells)})

    def step_flushed(self, state: State, at: int, one: Actor, n: int, element: int, chain: Chain, end: int
                     ) -> Iterator[Step]:
        """Up to where END was before it."""
        _, here = self.home(state, at)
        words: dict[str, Any] = {"flushed": max(end, here.flushed)}
        if chain == here.tree.chain and element % 4 != LARGE:
            yield "moves FLUSHED", self.checked(self.stay(state, at, "idle", n, words=words), at, n, element)
        else:
            yield "moves FLUSHED", self.stay(state, at, "commit", n, element, chain, words=words)

    def step_commit(self, state: State, at: int, one: Actor, n: int, element: int, chain: Chain) -> Iterator[Step]:
        """LMDB's commit: the changes, and P, at once; with those of a large transaction."""
        _, here = self.home(state, at)
        cells = here.cells
        lacks = here.tree.lacks
        if self.fault == "a checkpoint passes over" and position(chain) < here.end:
            lacks += state.history[len(chain) :]
            chain = state.history
        start = here.tree.start
        if len(chain) > len(here.tree.chain):
            start = place(chain[:-1], chain[-1] % 4)[0]
        history, large = state.history, 0
        if element % 4 == LARGE:
            orphan = next_record(cells, chain)
            if orphan is not None:
                cells = flushed(written(cells, orphan[0] % RING, None))
            large = position(chain) + 1
            chain = history = (*chain, element)
        upto = position(chain)
        if (chain[-1] % 4 == LARGE and start == upto - 1) or upto - start > MOST:
            start = upto
        plain = tuple(each for each in chain if each % 4 != MARK and each not in lacks)
        if plain != history[: len(plain)] or lacks:
            raise Broken("no checkpoint passes over a record", one.name)
        yield f"commits in LMDB, up to {upto}", self.stay(
            state, at, "sealed", n, element, chain, history=history,
            words={"cells": cells, "tree": Tree(chain, start, lacks), "large": large or here.large})

    def step_sealed(self, state: State, at: int, one: Actor, n: int, element: int, chain: Chain) -> Iterator[Step]:
        """APPLIED and KEPT behind the commit: the ring may be used again up to there."""
        _, here = self.home(state, at)
        words: dict[str, Any] = {"applied": position(chain), "kept": here.tree.start}
        if element % 4 == LARGE:
            yield "moves APPLIED and KEPT", self.stay(state, at, "grown", n, element, chain, words=words)
        else:
            words["checking"] = NONE
            yield "moves APPLIED and KEPT", self.checked(self.stay(state, at, "idle", n, words=words), at, n, element)

    def step_grown(self, state: State, at: int, one: Actor, n: int, element: int, chain: Chain) -> Iterator[Step]:
        """A large transaction counts."""
        process, _ = self.home(state, at)
        self.met.add("a large transaction")
        words: dict[str, Any] = {"end": position(chain), "flushed": position(chain), "large": 0, "checking": NONE}
        state = self.stay(state, at, "idle", n, process=process._replace(chain=chain), words=words)
        yield "moves END and FLUSHED, and returns", self.returned(state, at, one._replace(durable=True), n, element)

    def checked(self, state: State, at: int, n: int, element: int) -> State:
        """After a checkpoint: the thread's is over, a commit goes on, a compaction changes CURRENT."""
        _, here = self.home(state, at)
        if here.checking == at:
            state = self.stay(state, at, "idle", n, words={"checking": NONE})
        if not element:
            return state
        return self.stay(state, at, *(("point", n) if element % 4 == MARK else ("place", n, element)))

    # -- the end of a compaction ------------------------------------------------------------

    def step_point(self, state: State, at: int, one: Actor, n: int) -> Iterator[Step]:
        """CURRENT is renamed."""
        yield "lets CURRENT name the copy", self.stay(state, at, "pointed", n, current=(*state.current, 1))

    def step_pointed(self, state: State, at: int, one: Actor, n: int) -> Iterator[Step]:
        """The folder is flushed."""
        self.met.add("a compaction")
        state = self.stay(state, at, "idle", n, current=(1,), writing=NONE)
        yield "flushes the folder, and goes over", self.over(state, at, one, n, state.acknowledged, state.shown)


A = Actor("writer A", "writer", 0, kind=2)
B = Actor("writer B", "writer", 1, durable=False)
CHECKPOINTER = Actor("B's checkpointer", "checkpointer", 1)
READER = Actor("a reader", "reader", 2)
OPENER = Actor("the opener", "opener", 3)
COMPACTOR = Actor("the compactor", "compactor", 4, durable=False)

OTHER = Actor("another compactor", "compactor", 0, durable=False)


def times(actor: Actor, many: int) -> Actor:
    """An actor that does it so often."""
    return actor._replace(times=many)


CASTS: dict[str, tuple[list[Actor], dict[str, int]]] = {
    "reading": ([A, times(B, 2), READER, READER, CHECKPOINTER], {}),
    "a lap": ([times(A, 3), B, READER, times(CHECKPOINTER, 2)], {}),
    "all": ([A, B, READER, OPENER, CHECKPOINTER], {"kills": 1}),
    "kills": ([times(A, 2), times(B, 2), OPENER], {"kills": 2, "errors": 1}),
    "an orphan": ([times(A, 3), B, OPENER], {"kills": 1}),
    "errors": ([times(A, 2), B, OPENER, CHECKPOINTER], {"kills": 1, "errors": 1}),
    "power": ([A, times(B, 2), OPENER, CHECKPOINTER], {"cuts": 1, "entries": 1}),
    "power twice": ([A, B, times(OPENER, 2)], {"cuts": 2, "kills": 1, "entries": 1}),
    "large": ([A._replace(kind=LARGE), B, READER, OPENER, CHECKPOINTER], {"kills": 1}),
    "large, power": ([A._replace(kind=LARGE), B, times(OPENER, 2)], {"kills": 2, "cuts": 1}),
    "compaction": ([B, READER, OPENER, COMPACTOR], {"kills": 1}),
    "compaction, threads": ([B, READER, READER, CHECKPOINTER, COMPACTOR], {}),
    "compaction, power": ([A, OPENER, COMPACTOR], {"kills": 1, "cuts": 1, "entries": 1}),
    "compaction twice": ([COMPACTOR, OTHER, OPENER], {"kills": 1}),
    "compaction twice, power": ([B, COMPACTOR._replace(durable=True), OTHER, OPENER], {"kills": 1, "cuts": 1}),
    # In a minute or more each: not in CI.
    "wide: reading": ([A, times(B, 2), READER, READER, OPENER, times(CHECKPOINTER, 2)], {}),
    "wide: kills": ([times(A, 2), times(B, 2), times(OPENER, 2), CHECKPOINTER], {"kills": 2, "errors": 1}),
    "wide: power": ([times(A, 2), times(B, 2), OPENER, CHECKPOINTER], {"cuts": 1, "kills": 1, "entries": 1}),
    "wide: compaction": ([A, B, OPENER, COMPACTOR], {"kills": 1, "cuts": 1, "entries": 1}),
}


def main(names: list[str]) -> None:
    """Print what each cast has, and what each fault leads to."""
    for name in names or [name for name in CASTS if not name.startswith("wide")]:
        actors, bounds = CASTS[name]
        for fault in ("", *FAULTS):
            began = time.monotonic()
            model = Model(name, actors, fault=fault, **bounds)
            found = "holds"
            try:
                model.run()
            except Broken as broken:
                found = f"{fault!r} breaks: {broken.args[0]}" + "".join(f"\n    {step}" for step in broken.args[1])
            if not fault or found != "holds":
                took = time.monotonic() - began
                print(f"{name}: {model.states:,} states, {model.steps:,} steps, {took:.1f} s: {found}")
            if not fault:
                print("   ", ", ".join(sorted(model.met)))


if __name__ == "__main__":
    main(sys.argv[1:])
