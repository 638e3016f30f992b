"""Laying out: an image becomes files in a folder, written over what the image before has left there.

    there before          the image                then
    data.mdb  320 KB      data.mdb  316 KB         the same file, written over and cut
    lock.mdb              ·                        removed
    ·                     CURRENT                  made

New pages cost more than the bytes in them, so a file that is there is used again. One that
has a second name, or is something else than it should be, is made anew.
"""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path

from ...storage.disk import remove_tree
from .images import Content, Image


def lay_out(image: Image, place: Path) -> None:
    """Let ``place`` hold the image and nothing else. OSError where there is no room for it.

    Whatever else has files of it open sees them change: remove it first where that may be.
    """
    top = str(place)
    _remove_others(top, "", image)
    for path, content in image.files.items():
        target = f"{top}/{path}"
        if content is None:
            with contextlib.suppress(FileExistsError):
                os.mkdir(target)
        elif isinstance(content, str):
            with contextlib.suppress(FileExistsError):
                os.symlink(content, target)
        else:
            _write(target, content)


def _remove_others(top: str, inner: str, image: Image) -> None:
    """Remove what the image does not have, or has as something else."""
    try:
        with os.scandir(f"{top}/{inner}") as entries:
            present = [(entry.name, entry.path, entry.is_dir(follow_symlinks=False),
                        entry.is_file(follow_symlinks=False)) for entry in entries]
    except FileNotFoundError:
        os.mkdir(top)
        return
    absent = ""
    for name, path, is_folder, is_file in present:
        wanted = image.files.get(inner + name, absent)
        if is_folder and wanted is None:
            _remove_others(top, f"{inner}{name}/", image)
        elif is_folder:
            remove_tree(Path(path), ignore_errors=False)
        elif not is_file or wanted is None or isinstance(wanted, str):
            os.unlink(path)


def _write(target: str, content: Content) -> None:
    flags = os.O_WRONLY | os.O_CREAT
    descriptor = os.open(target, flags, 0o644)
    about = os.fstat(descriptor)
    if about.st_nlink > 1:
        os.close(descriptor)
        os.unlink(target)
        descriptor = os.open(target, flags | os.O_EXCL, 0o644)
    try:
        if about.st_size > len(content):
            os.ftruncate(descriptor, len(content))
        if os.write(descriptor, content) != len(content):
            raise OSError(errno.ENOSPC, "no room for an image", target)
    finally:
        os.close(descriptor)
