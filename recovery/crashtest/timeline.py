"""The timeline of a recorded run: which file was written, flushed or named, and when a word was said."""

from __future__ import annotations

from typing import Any

from . import recorder
from .child import Run
from .disk import Disk, File, Folder
from .recorder import Event

_SIGNS = {
    recorder.WRITE: "write", recorder.TRUNCATE: "size", recorder.SYNC_END: "flush", recorder.SYNC_ALL_END: "flush",
    recorder.THROUGH: "flush",
    recorder.ACK: "ack", recorder.CREATE: "name", recorder.RENAME: "name", recorder.UNLINK: "name",
    recorder.MKDIR: "name", recorder.RMDIR: "name", recorder.LINK: "name", recorder.SYMLINK: "name",
}


def timeline_of(run: Run, moments: list[int]) -> list[dict[str, Any]]:
    """One row an event that matters: its number, what it is, of which file, and its bytes.

    A file is called what it is called in the end, for most files are renamed into their place.
    """
    disk = Disk(run.folder, run.inode)
    asked = set(moments)
    rows: list[tuple[int, Event, File | Folder | None]] = []
    for index, event in enumerate(run.events, start=1):
        disk.take(event)
        if index in asked and event.kind in _SIGNS:
            rows.append((index, event, disk.node(event.inode) if event.inode else disk.at(event)))
    names = disk.names()
    return [
        {"event": index, "what": _SIGNS[event.kind], "bytes": len(event.data),
         "file": "" if event.kind == recorder.ACK else names.get(id(node), disk.relative(event.path) if event.path
                                                                  else getattr(node, "name", "?"))}
        for index, event, node in rows
    ]

