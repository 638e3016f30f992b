"""Power cuts: one run is recorded, and images of what a cut may leave are checked by the thousand.

    events  ──w──w──S──ack──w──w──S──r──S──ack──►        a cut after each of them
              │  │  │   │
              ▼  ▼  ▼   ▼    images.py draws what reached the disk, the check reads it
              …  …  …   …    each content only once for the same number of acks

Each worker, one a processor, gets an equal stretch of the moments. Every moment has a random
generator of its own, so a seed draws the same images for any number of workers.
"""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from ....storage.disk import remove_tree
from ....storage.errors import InvalidArgument
from ..record import images, recorder
from ..record.disk import DiskModel, File, Folder
from ..record.images import Choice, Image, lay_out
from .child import Ack, Checker, Runner, RunResult, ack_of
from .report import Moment
from .stage import ENOUGH, MOST_KEPT, Stage
from .tally import Tally

_PASSES = 6
_BATCH = 8  # images checked at once
_TEARS = 24  # of so many images one more is torn inside a sector
_SHRINK_STEPS = 400
_FOREVER = 1e6  # seconds


@dataclass(frozen=True)
class PowerCut:
    """Cut the power at every moment of one run, and check what the disk may hold then.

    ``images`` is how many different images of the disk to try, if the run has that many. ``ignore`` are
    patterns of files whose content does not matter after a crash: they stay as the program last saw
    them. Needs a C compiler, and Linux. Costs a run, and a check for each image.
    """

    images: int = 5000
    ignore: str | tuple[str, ...] = ()
    name = "power cut"
    needs_recorder = True  # it logs every write

    def __post_init__(self) -> None:
        if self.images < 1:
            raise InvalidArgument(f"images is {self.images}, and must be at least 1")

    @property
    def ignored(self) -> tuple[str, ...]:
        return (self.ignore,) if isinstance(self.ignore, str) else tuple(self.ignore)

    def run(self, stage: Stage, result: Tally) -> None:
        run = stage.undisturbed(result, log=True)
        if run is None:
            return
        acks = [ack_of(event) for event in run.events if event.kind == recorder.ACK]
        result.planned = self.images
        result.timeline, unseen = _timeline_of(run, self.ignored)
        moments = [row.event for row in result.timeline]
        result.notes += [f"not seen by the recorder: {name}" for name in sorted(unseen)]
        found = _Cuts()
        for number in range(_PASSES):
            wanted = self.images - len(found.digests)
            if wanted <= 0 or stage.out_of_time() or found.failed >= ENOUGH:
                break
            fresh = self._one_pass(stage, run, acks, moments, -(-wanted // len(moments)), number, found)
            if not fresh:
                break
        if found.failed >= ENOUGH:
            result.reason = f"ended after {found.failed} failures"
        elif not stage.out_of_time():
            result.planned = min(result.planned, found.cases - found.torn)
        result.cases = found.cases - found.torn
        result.unique = len(found.digests) - found.torn
        result.torn, result.torn_ends = found.torn, dict(sorted(found.torn_ends.items()))
        result.reached = dict(sorted(found.kinds.items()))
        result.failed = found.failed
        if found.unsteady:
            result.notes.append(f"{found.unsteady} images failed only in a process that had checked others before")
        self._keep_failures(stage, result, run, acks, found)
        result.timeline = [replace(row, images=found.at.get(row.event, 0), failed=found.failed_at.get(row.event, 0))
                           for row in result.timeline]

    def _one_pass(self, stage: Stage, run: RunResult, acks: list[Any], moments: list[int], each: int,
                  number: int, found: _Cuts) -> int:
        """Check ``each`` images at every moment. Returns how many of them were new."""
        workers = max(1, min(stage.job.workers, len(moments)))
        stretch = -(-len(moments) // workers)
        known = len(found.digests)
        with contextlib.ExitStack() as children:
            runners = []
            for index, start in enumerate(range(0, len(moments), stretch)):
                worker = _Worker(self, stage, run, acks, stage.scratch / f"image-{index}")
                explore = partial(worker.explore, set(moments[start : start + stretch]), each, number, found.digests)
                runners.append(Runner(explore, worker.scratch, worker.scratch))
                children.callback(runners[-1].kill)
            for runner in runners:
                runner.wait(_FOREVER)
                ended = runner.end()
                if ended.status != 0:
                    raise RuntimeError(f"a worker that builds images {ended.ending()}\n{ended.error}")
                found.add(ended.acks[0])
        return len(found.digests) - known

    def _keep_failures(self, stage: Stage, result: Tally, run: RunResult, acks: list[Any], found: _Cuts) -> None:
        """Keep the first failing images, the very first shrunk."""
        failures = sorted(found.failures, key=lambda failure: (failure[0], len(failure[1].changes)))[:MOST_KEPT]
        worker = _Worker(self, stage, run, acks, stage.scratch / "image-kept")
        result.failed = 0
        for index, (event, choice, acked, message) in enumerate(failures):
            disk = worker.disk_at(event)
            where = f"after event {event} of {len(run.events)}, {choice.describe(disk)}"
            shrunk = ""
            if index == 0:
                choice = worker.shrink(disk, choice, acked)
                shrunk = choice.describe(disk)
            worker.show(images.build(disk, choice))
            stage.fail(result, where, message, worker.place, acks[:acked], event=event, shrunk=shrunk)
        result.failed = found.failed
        worker.checker.close()


@dataclass
class _Cuts:
    """The results of a worker, or of all."""

    cases: int = 0
    failed: int = 0
    torn: int = 0
    unsteady: int = 0
    digests: set[bytes] = field(default_factory=set)
    torn_ends: Counter[str] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)
    at: Counter[int] = field(default_factory=Counter)
    failed_at: Counter[int] = field(default_factory=Counter)
    failures: list[tuple[int, Choice, int, str]] = field(default_factory=list)

    def add(self, other: _Cuts) -> None:
        self.digests |= other.digests
        for name in vars(self).keys() - {"digests"}:
            setattr(self, name, getattr(self, name) + getattr(other, name))


@dataclass(frozen=True, slots=True)
class _Case:
    """An image laid out for its check."""

    event: int
    choice: Choice
    acked: int
    place: Path


class _Worker:
    """Replays the events, and at its moments builds images and checks them."""

    def __init__(self, mode: PowerCut, stage: Stage, run: RunResult, acks: list[Any], scratch: Path) -> None:
        self._mode = mode
        self._stage = stage
        self._run = run
        self.checker = Checker(stage.job.check, stage.job.timeout, acks, watchful=True)
        self.scratch = scratch
        self.place = scratch / "folder"
        self._places = [scratch / f"folder-{number}" for number in range(_BATCH)]
        self._batch: list[_Case] = []
        scratch.mkdir(exist_ok=True)

    def disk_at(self, moment: int) -> DiskModel:
        """The disk after so many events."""
        disk = DiskModel(self._run.folder, self._run.inode, self._mode.ignored)
        for event in self._run.events[:moment]:
            disk.take(event)
        return disk

    def explore(self, moments: set[int], each: int, number: int, known: set[bytes], _: Path, ack: Ack) -> None:
        """As a workload: check up to ``each`` new images at each of the moments, and ack the results."""
        found = _Cuts()
        disk = DiskModel(self._run.folder, self._run.inode, self._mode.ignored)
        acked = 0
        last = max(moments)
        for index, event in enumerate(self._run.events[:last], start=1):
            disk.take(event)
            acked += event.kind == recorder.ACK
            if index not in moments:
                continue
            rng = random.Random(f"{self._stage.job.seed}.{number}.{index}")
            remaining = each
            # Torn sectors are counted separately: a few, in the first pass only.
            tears = 0 if number else each // _TEARS + (rng.random() < each % _TEARS / _TEARS)
            drawn: set[Any] = set()
            for choice in images.choices(disk, rng, each * 3 + 8):
                content = (choice.changes, choice.namings, choice.grown, choice.tear)
                if content in drawn or (choice.tear is not None and not tears):
                    continue
                if number and choice.kind in ("none", "all"):
                    continue  # the fixed ones were tried in the first pass
                drawn.add(content)
                image = images.build(disk, choice)
                digest = image.digest(acked)
                if digest in known or digest in found.digests:
                    continue
                found.digests.add(digest)
                self._try(found, choice, image, index, acked)
                tears -= choice.tear is not None
                remaining -= choice.tear is None
                if remaining <= 0 or self._is_over(found):
                    break
            if self._is_over(found):
                break
        self._check_batch(found)
        self.checker.close()
        ack(found)

    def _is_over(self, found: _Cuts) -> bool:
        return found.failed >= ENOUGH or self._stage.out_of_time()

    def _try(self, found: _Cuts, choice: Choice, image: Image, index: int, acked: int) -> None:
        """Lay an image out, to be checked with others."""
        found.cases += 1
        found.kinds[choice.kind] += 1
        found.at[index] += 1
        found.torn += choice.tear is not None
        place = self._places[found.cases % _BATCH]
        if self.checker.untidy:
            remove_tree(place, ignore_errors=False)
        lay_out(image, place)
        self._batch.append(_Case(index, choice, acked, place))
        if len(self._batch) == _BATCH:
            self._check_batch(found)

    def _check_batch(self, found: _Cuts) -> None:
        batch, self._batch = self._batch, []
        verdicts = self.checker.check_all([(case.place, case.acked) for case in batch])
        for case, message in zip(batch, verdicts, strict=True):
            if message is None:
                continue
            if case.choice.tear is not None:
                found.torn_ends[_end(message)] += 1
            elif self._fails(self.disk_at(case.event), case.choice, case.acked):
                found.failed += 1
                found.failed_at[case.event] += 1
                if len(found.failures) < MOST_KEPT:
                    found.failures.append((case.event, case.choice, case.acked, message))
            else:
                found.unsteady += 1

    def _fails(self, disk: DiskModel, choice: Choice, acked: int) -> bool:
        """Whether an image fails in new files."""
        self.show(images.build(disk, choice))
        return self.checker(self.place, acked) is not None

    def show(self, image: Image) -> None:
        """Write an image into ``place``, in new files."""
        remove_tree(self.place, ignore_errors=False)
        lay_out(image, self.place)

    def shrink(self, disk: DiskModel, choice: Choice, acked: int) -> Choice:
        """A smallest choice that still fails."""
        steps = 0
        progress = True
        while progress and steps < _SHRINK_STEPS:
            progress = False
            for less in images.smaller(choice):
                steps += 1
                if self._fails(disk, less, acked):
                    choice, progress = less, True
                    break
                if steps >= _SHRINK_STEPS:
                    break
        return choice


def _end(message: str) -> str:
    """How the check of an image has failed: an error of raxlog's is a refusal."""
    if message.startswith(("the check ", "stuck:")):
        return "died"
    return "refused" if message.startswith("raxlog.") else "wrong"


def _timeline_of(run: RunResult, ignore: tuple[str, ...]) -> tuple[list[Moment], set[str]]:
    """The moments at which a cut may find something new, and what the recorder did not see."""
    disk = DiskModel(run.folder, run.inode, ignore)
    rows: list[tuple[int, recorder.Event, File | Folder | None]] = []
    for index, event in enumerate(run.events, start=1):
        if disk.take(event):
            rows.append((index, event, disk.node(event.inode) if event.inode else disk.at(event)))
    names = disk.names()
    return [
        Moment(index, recorder.SIGNS[event.kind], len(event.data),
               "" if event.kind == recorder.ACK else names.get(id(node), disk.relative(event.path) if event.path
                                                               else getattr(node, "name", "?")))
        for index, event, node in rows
    ], disk.unseen
