"""Stores whose files are replaced by a backup, or whose folder is moved, while they are open: nothing is lost."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import forkserver
import pytest
import raxlog
from children import Child

Say = Callable[[Any], None]
GIT = ["git", "-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "init.defaultBranch=main"]


def names(store: raxlog.Store) -> list[str]:
    return [entry.fields["who"] for entry in store.stream("a").range()]


def elsewhere(work: Callable[[], Any]) -> Any:
    """What another process says when it has done this."""
    with Child(lambda say: say(work())) as child:
        return child.finish()[0]


def made(path: Path, who: str) -> Path:
    """A store with one entry, made by another process."""
    def make() -> str:
        with raxlog.open(path) as store:
            store.stream("a").append({"who": who})
        return "made"

    assert elsewhere(make) == "made"
    return path


def compact(path: Path) -> None:
    program = f"""
import raxlog
with raxlog.open({str(path)!r}) as store:
    store.stream("z").extend([{{"x": "x" * 100}}] * 20_000)
    store.stream("z").trim(maxlen=1)
    store.compact()
"""
    forkserver.run([sys.executable, "-c", program], check=True)  # not forked: that has what is open here


# -- a backup, over an open store ------------------------------------------------------------------


def rename_and_set_times_back(backup: Path, path: Path) -> None:
    """As rsync -a does."""
    for folder in (path / "000001", path):
        before, copy = folder.stat(), backup / folder.relative_to(path)
        for file in copy.iterdir():
            if file.is_file():
                shutil.copy2(file, folder / f".{file.name}.x1")
                os.rename(folder / f".{file.name}.x1", folder / file.name)
        os.utime(folder, ns=(before.st_atime_ns, before.st_mtime_ns))


def extract(backup: Path, path: Path) -> None:
    archive = backup.with_suffix(".tar")
    subprocess.run(["tar", "--format=posix", "-C", backup, "-cf", archive, "."], check=True)
    subprocess.run(["tar", "-C", path, "-xf", archive], check=True)


def copy_over(backup: Path, path: Path) -> None:
    subprocess.run(["cp", "-a", "--remove-destination", f"{backup}/.", path], check=True)


def check_out(backup: Path, path: Path) -> None:
    subprocess.run([*GIT, "init", "-q", backup], check=True)
    subprocess.run([*GIT, "-C", backup, "add", "."], check=True)
    subprocess.run([*GIT, "-C", backup, "commit", "-qm", "x"], check=True)
    subprocess.run([*GIT, f"--git-dir={backup}/.git", f"--work-tree={path}", "checkout", "-qf", "."], check=True)


def save_as_editors_do(backup: Path, path: Path) -> None:
    file = path / "000001" / "log"
    shutil.copy2(file, path / "#log#")
    os.rename(path / "#log#", file)


@pytest.mark.parametrize("many", [1, 300])
@pytest.mark.parametrize("how", [rename_and_set_times_back, extract, copy_over, check_out, save_as_editors_do])
def test_once_a_backup_is_restored_over_an_open_store_no_append_is_acknowledged(
    path: Path, tmp_path: Path, how: Callable[[Path, Path], None], many: int
) -> None:
    made(path, "old")
    shutil.copytree(path, tmp_path / "backup", copy_function=shutil.copy2)
    with raxlog.open(path, durability="relaxed") as store:
        for _ in range(many):
            store.stream("a").append({"who": "new"})
        if many > 1:
            time.sleep(0.1)  # the files have been seen in place, and are not looked at each time
            store.stream("a").append({"who": "new"})
        how(tmp_path / "backup", path)
        for _ in range(3):
            with pytest.raises(raxlog.StoreError, match=r"has been deleted or replaced(.|\n)*raxlog salvage"):
                store.stream("a").append({"who": "after"})
        assert names(store)[-1] == "new"


def test_without_current_nothing_is_written_and_each_error_names_salvage(path: Path, tmp_path: Path) -> None:
    with raxlog.open(path) as store:
        store.stream("a").append({"who": "first"})
        (path / "CURRENT").unlink()
        with pytest.raises(raxlog.StoreError, match=r"CURRENT has been deleted(.|\n)*raxlog salvage"):
            store.stream("a").append({"who": "second"})
    with pytest.raises(raxlog.NotAStore, match="raxlog salvage"):
        raxlog.open(path)
    raxlog.salvage(path, tmp_path / "saved")
    with raxlog.open(tmp_path / "saved") as store:
        assert names(store) == ["first"]


def test_a_folder_that_was_removed_is_a_store_error(path: Path) -> None:
    with raxlog.open(path) as store:
        store.stream("a").append({"who": "first"})
        shutil.rmtree(path)
        for call in (lambda: store.stream("a").append({"who": "second"}), store.compact):
            with pytest.raises(raxlog.StoreError, match="has been deleted"):
                call()  # type: ignore[no-untyped-call]


# -- the folder, moved --------------------------------------------------------------------------------


def move_away(path: Path, link: Path) -> tuple[Path, Path]:
    """Where the open store is then, and the other that has its name."""
    old = path.rename(path.with_name("old"))
    return old, made(path, "other")


def flip_link(path: Path, link: Path) -> tuple[Path, Path]:
    other = made(path.with_name("other"), "other")
    link.with_name("new").symlink_to(other)
    os.rename(link.with_name("new"), link)
    return path, other


def flip_to_a_copy(path: Path, link: Path) -> tuple[Path, Path]:
    """Which has the same ID."""
    other = path.with_name("other")
    shutil.copytree(path, other, copy_function=shutil.copy2)
    link.with_name("new").symlink_to(other)
    os.rename(link.with_name("new"), link)
    return path, other


@pytest.mark.parametrize("readonly", [False, True])
@pytest.mark.parametrize("how", [move_away, flip_link, flip_to_a_copy])
def test_a_process_whose_stores_name_leads_elsewhere_writes_to_neither_and_goes_over_to_no_other(
    path: Path, tmp_path: Path, how: Callable[[Path, Path], tuple[Path, Path]], readonly: bool
) -> None:
    link = tmp_path / "link"
    made(path, "first")
    link.symlink_to(path)
    with raxlog.open(path if how is move_away else link, readonly=readonly) as store:
        old, other = how(path, link)
        there = elsewhere(lambda: names(raxlog.open(other, readonly=True)))
        if not readonly:
            with pytest.raises(raxlog.StoreError, match="deleted or replaced"):
                store.stream("a").append({"who": "second"})
        assert names(store) == ["first"]
        with pytest.raises(raxlog.StoreError):
            store.snapshot(tmp_path / "snapshot")
        compact(old)
        with pytest.raises(raxlog.StoreError, match="is not the store any more that this process has opened"):
            names(store)
    for place, wanted in ((old, ["first"]), (other, there)):
        with raxlog.open(place) as found:
            assert names(found) == wanted


def test_a_folder_that_was_moved_and_came_back_is_the_same_store(path: Path) -> None:
    with raxlog.open(path) as store:
        for who in ("here", "away", "back"):
            if who == "away":
                path.rename(path.with_name("away"))
            elif who == "back":
                path.with_name("away").rename(path)
            store.stream("a").append({"who": who})
        compact(path)
        assert names(store) == ["here", "away", "back"]
    assert raxlog.check(path).ok


@pytest.mark.parametrize("how", [move_away, flip_link])
def test_a_forked_child_opens_no_other_store_under_the_same_name(
    path: Path, tmp_path: Path, how: Callable[[Path, Path], tuple[Path, Path]]
) -> None:
    link = tmp_path / "link"
    made(path, "first")
    link.symlink_to(path)
    with raxlog.open(path if how is move_away else link) as store:
        how(path, link)

        def use() -> str:
            for call in (lambda: names(store), lambda: store.stream("a").append({"who": "child"})):
                with pytest.raises(raxlog.StoreError, match="is not the store any more"):
                    call()
            return "refused"

        assert elsewhere(use) == "refused"


def test_a_forked_child_opens_no_other_store_in_the_same_folder(path: Path) -> None:
    made(path, "first")
    with raxlog.open(path) as store:
        other = made(path.with_name("other"), "other")
        shutil.rmtree(path / "000001")
        shutil.copytree(other, path, dirs_exist_ok=True)

        def use() -> str:
            with pytest.raises(raxlog.StoreError, match="is not the store any more"):
                names(store)
            return "refused"

        assert elsewhere(use) == "refused"


LAYERS = """
import os, subprocess, sys, raxlog
from pathlib import Path
place = Path(sys.argv[1])
for name in ("upper", "work", "all"):
    (place / name).mkdir()
options = f"lowerdir={place}/lower,upperdir={place}/upper,workdir={place}/work"
if subprocess.run(["mount", "-t", "overlay", "overlay", "-o", options, place / "all"]).returncode:
    sys.exit("no layers here")
path = place / "all" / "s.rax"
def write(many):
    program = "import raxlog, sys\\nwith raxlog.open(sys.argv[1]) as store:\\n"
    program += f"    store.stream('a').extend([{{'who': 'x' * 1000}}] * {many})"
    subprocess.run([sys.executable, "-c", program, path], check=True)
with raxlog.open(path, readonly=True) as store:
    for many in (1, 3000):
        write(many)
        try:
            print(len(list(store.stream("a").range())))
        except raxlog.StoreError as error:
            print(type(error).__name__, "open it again" in str(error))
with raxlog.open(path) as store:
    write(1)
    store.stream("a").append({"who": "last"})
    print(len(store.stream("a")), raxlog.check(path).ok)
"""


@pytest.mark.skipif(shutil.which("unshare") is None, reason="layers are mounted in a namespace of their own")
def test_a_reader_of_a_store_in_a_lower_layer_is_told_once_another_process_has_written(tmp_path: Path) -> None:
    """Its files are copied up then, and it has the old ones: nothing is damaged."""
    (tmp_path / "lower").mkdir()
    made(tmp_path / "lower" / "s.rax", "first")
    alone = ["unshare", "-Urm", sys.executable, "-c", LAYERS, tmp_path]
    ran = subprocess.run(alone, capture_output=True, text=True, check=False)
    if "no layers here" in ran.stderr or "unshare" in ran.stderr:
        pytest.skip("layers cannot be mounted here")
    assert ran.stdout.splitlines() == ["StoreError True"] * 2 + ["3004 True"], ran.stderr


# -- opening ------------------------------------------------------------------------------------------


def test_a_store_whose_shared_file_was_deleted_in_use_opens_for_no_other_writer(path: Path) -> None:
    def refusal() -> str:
        try:
            raxlog.open(path).close()
        except raxlog.StoreError as error:
            return str(error)
        return "opened"

    with raxlog.open(path) as store:
        store.stream("a").append({"who": "first"})
        (path / "shared").unlink()
        assert f"{path / 'shared'} has been deleted while process" in elsewhere(refusal)
        assert not (path / "shared").exists()
    assert elsewhere(refusal) == "opened"
    with raxlog.open(path) as store:
        assert names(store) == ["first"]


def test_a_store_at_rest_opens_without_its_shared_file_and_with_an_empty_one(path: Path) -> None:
    made(path, "first")
    for harm in (lambda file: file.unlink(), lambda file: file.write_bytes(b"")):
        harm(path / "shared")
        with raxlog.open(path, readonly=True) as store:
            assert names(store) == ["first"]
        with raxlog.open(path) as store, store.subscribe("x"):
            store.stream("a").append({"who": "first"})
            store.stream("a").trim(maxlen=1)
        assert (path / "shared").stat().st_size >= 4096


def test_the_folder_of_an_open_store_is_locked_as_cleaners_of_tmp_ask_for_it(path: Path) -> None:
    """By systemd-tmpfiles, before it removes what is old."""
    with raxlog.open(path):
        cleaner = os.open(path, os.O_RDONLY)
        with pytest.raises(BlockingIOError):
            fcntl.flock(cleaner, fcntl.LOCK_EX | fcntl.LOCK_NB)
    fcntl.flock(cleaner, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(cleaner)


@pytest.mark.parametrize("options", [{}, {"shards": 2}])
def test_a_snapshot_into_the_stores_own_folder_is_refused(path: Path, options: dict[str, int]) -> None:
    with raxlog.open(path) as store:
        store.stream("a").append({"who": "first"})
        for place in (path / "snapshot", path / "000001" / "snapshot"):
            with pytest.raises(raxlog.StoreError, match="is in the folder of the store"):
                store.snapshot(place, **options)
        assert sorted(file.name for file in path.iterdir()) == ["000001", "CURRENT", "shared"]
