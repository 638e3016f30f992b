"""Reading a store that may not be written: a medium, a user, a folder."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import raxlog
from children import Child
from environment_cases import everything_in, numbers
from raxlog.storage.folder import log_file

UNOWNED = 65534


@pytest.fixture
def read_only_medium(path: Path) -> Iterator[Path]:
    """A store on a file system that is mounted read-only."""
    medium = path.with_name("medium")
    medium.mkdir()
    mount = shutil.which("mount")
    if mount is None or os.geteuid() != 0 or subprocess.run(
        [mount, "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(medium)], capture_output=True, check=False,
    ).returncode:
        pytest.skip("mounting takes root")
    try:
        with raxlog.open(medium / "s.rax") as store:
            store.stream("s").append({"n": 1})
        subprocess.run([mount, "-o", "remount,ro", str(medium)], check=True)
        yield medium / "s.rax"
    finally:
        subprocess.run(["umount", "-l", str(medium)], check=True)


def test_a_store_on_a_read_only_medium_opens_without_lock_and_makes_no_file(read_only_medium: Path) -> None:
    before = everything_in(read_only_medium)
    with raxlog.open(read_only_medium, readonly=True) as store:
        assert numbers(store) == [1]
    assert everything_in(read_only_medium) == before
    with pytest.raises(raxlog.ReadOnlyStore, match="readonly=True"):
        raxlog.open(read_only_medium)
    with pytest.raises(raxlog.ReadOnlyStore):
        raxlog.open(read_only_medium.with_name("new.rax"))


def _as_nobody(work: Callable[[Callable[[Any], None]], None]) -> Child:
    def child(say: Callable[[Any], None]) -> None:
        os.setgroups([])
        os.setgid(UNOWNED)
        os.setuid(UNOWNED)
        work(say)

    return Child(child)


@pytest.fixture
def public_path(public_folder: Path) -> Path:
    """A store in a folder that other users can reach."""
    path = public_folder / "store.rax"
    with raxlog.open(path) as store:
        store.stream("s").append({"n": 1})
    return path


def test_a_user_without_write_permission_reads_what_rests_and_writes_nothing(public_path: Path) -> None:
    before = everything_in(public_path)

    def use(say: Callable[[Any], None]) -> None:
        with raxlog.open(public_path, readonly=True) as store:
            say(numbers(store))
        for path in (public_path, public_path.parent / "new.rax"):
            with pytest.raises(raxlog.ReadOnlyStore):
                raxlog.open(path)

    with _as_nobody(use) as child:
        assert child.finish() == [[1]]
    assert everything_in(public_path) == before


@pytest.mark.parametrize("is_damaged", [False, True])
def test_a_user_without_write_permission_reads_what_a_killed_process_has_left_in_the_log(
    public_path: Path, is_damaged: bool
) -> None:
    """And an error, if its last record is damaged."""
    def commit(say: Callable[[Any], None]) -> None:
        store = raxlog.open(public_path)
        for n in range(2, 20):
            store.stream("s").append({"n": n})
        os.kill(os.getpid(), signal.SIGKILL)

    with Child(commit) as child:
        child.all_heard()
        child.wait()
    state = (public_path / "000001" / log_file.STATE).read_bytes()
    if is_damaged:
        with (public_path / "000001" / log_file.LOG).open("r+b") as file:
            file.seek(log_file.HEADER + int.from_bytes(state[4096:4104], "little") - 1)
            last = file.read(1)[0]
            file.seek(-1, os.SEEK_CUR)
            file.write(bytes([last ^ 1]))

    def use(say: Callable[[Any], None]) -> None:
        try:
            with raxlog.open(public_path, readonly=True) as store:
                say(numbers(store))
        except raxlog.CorruptionError as error:
            say(str(error))

    with _as_nobody(use) as child:
        (seen,) = child.finish()
    assert "damaged at byte" in seen if is_damaged else seen == list(range(1, 20))


def test_a_user_who_cannot_register_as_reader_is_refused_beside_a_writer(public_path: Path) -> None:
    def use(say: Callable[[Any], None]) -> None:
        with pytest.raises(raxlog.ReadOnlyStore, match=f"process {os.getppid()}"):
            raxlog.open(public_path, readonly=True)

    with raxlog.open(public_path), _as_nobody(use) as child:
        child.finish()


def test_a_data_file_that_may_not_be_read_is_told_as_that_and_not_as_one_that_may_not_be_written(
        public_path: Path) -> None:
    def use(say: Callable[[Any], None]) -> None:
        for readonly in (True, False):
            with pytest.raises(raxlog.StoreError) as caught:
                raxlog.open(public_path, readonly=readonly)
            say((type(caught.value).__name__, str(caught.value)))

    for data in public_path.rglob("data.mdb"):
        data.chmod(0o600)
    with _as_nobody(use) as child:
        (kind, told), (other, refused) = child.finish()
    assert (kind, other) == ("StoreError", "ReadOnlyStore")
    assert "cannot be read" in told
    assert "writing" not in told
    assert "permissions" in told
    assert "writing" in refused
    assert str(public_path) in told


def test_a_folder_that_may_not_be_searched_is_a_plain_error(public_path: Path) -> None:
    def use(say: Callable[[Any], None]) -> None:
        for readonly in (True, False):
            with pytest.raises(raxlog.StoreError):
                raxlog.open(public_path, readonly=readonly)

    public_path.chmod(0o700)
    with _as_nobody(use) as child:
        child.finish()
    public_path.chmod(0o755)
    public_path.parent.chmod(0o700)
    with _as_nobody(use) as child:
        child.finish()
