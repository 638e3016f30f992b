"""Kernels: the modules that may run compiled, which of them do, and from which source.

    stream/node/decode.py   one source   ->  plain Python, as it is
    stream/node/decode.pxd  its C types  ->  stream/node.cpython-311-….so, if a compiler was found

A kernel with C types is a loop over bytes, ten to twenty times as fast compiled. One without is
compiled Python: about a tenth faster, and none is compiled for less.

Both speeds do the same, and a .so beside the .py is what Python imports by itself. A compiled
kernel carries the hash of the source it was made from, so that an edited source with an old
.so beside it is noticed. The environment variable RAXLOG_PURE=1 chooses the plain source.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType

KERNELS = (
    "raxlog.storage.format.records",
    "raxlog.storage.tree.changed_pages",
    "raxlog.storage.locks.writer_lock",
    "raxlog.storage.folder.store_files",
    "raxlog.storage.commit.commits",
    "raxlog.storage.log.ring",
    "raxlog.storage.log.transaction",
    "raxlog.storage.log.cursor",
    "raxlog.storage.log.log",
    "raxlog.stream.entries.header",
    "raxlog.stream.entries.writer",
    "raxlog.stream.entries.range_read",
    "raxlog.stream.columns.scan",
    "raxlog.stream.pel.bucket",
    "raxlog.stream.pel.pending_list",
    "raxlog.stream.group.state",
    "raxlog.stream.group.deliver",
    "raxlog.stream.node.listpack",
    "raxlog.stream.node.entry",
    "raxlog.stream.node.packed_ids",
    "raxlog.stream.node.decode",
    "raxlog.stream.node.flattened",
    "raxlog.stream.node.builder",
    "raxlog.stream.dump.crc64",
    "raxlog.index.pubsub.glob",
    "raxlog.index.subjects.subject",
    "raxlog.stream.node.parse_values",
    "raxlog.stream.columns.column_buffers",
    "raxlog.stream.columns.decoder",
    "raxlog.tools.resp.whole",
    "raxlog.tools.cli.commands.entries.text_rows",
)


class _PlainFinder:
    """Finds the kernels, and nothing else, as the source files they are."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name not in KERNELS:
            return None
        for folder in path or ():
            source = Path(folder, name.rpartition(".")[2] + ".py")
            if source.is_file():
                loader = SourceFileLoader(name, str(source))
                return spec_from_file_location(name, source, loader=loader)
        return None


def load_plain_if_asked() -> None:
    """With RAXLOG_PURE=1 in the environment, let every kernel be imported as plain Python.

    To be called before the first kernel is imported. Any other value, or none, changes nothing.
    """
    if os.environ.get("RAXLOG_PURE") == "1" and _PlainFinder not in sys.meta_path:
        sys.meta_path.insert(0, _PlainFinder)


def speed() -> str:
    """ "compiled", "plain Python", or "mixed: ..." with the names of the plain ones."""
    plain = [name for name in KERNELS if not _is_compiled(import_module(name))]
    if not plain:
        return "compiled"
    if len(plain) == len(KERNELS):
        return "plain Python"
    return f"mixed: plain Python are {', '.join(plain)}"


def stale() -> list[str]:
    """The compiled kernels with a newer source beside them. Compile them again."""
    old = []
    for name in KERNELS:
        module = import_module(name)
        if _is_compiled(module):
            source = Path(str(module.__file__)).with_name(name.rpartition(".")[2] + ".py")
            if source.is_file() and source_hash(source) != module.SOURCE_HASH:
                old.append(name)
    return old


def source_hash(source: Path) -> str:
    """SHA-256 over a kernel's .py, its .pxd and those it is compiled with: what the compiled form depends on."""
    import hashlib  # noqa: PLC0415 - only a check for stale kernels needs it

    digest = hashlib.sha256(source.read_bytes())
    for types in types_of(source):
        digest.update(types.read_bytes())
    return digest.hexdigest()


def types_of(source: Path) -> list[Path]:
    """A kernel's .pxd, where it has one, and those that it cimports, and so on: in one order."""
    import re  # noqa: PLC0415

    found: list[Path] = []
    wanted = [source.with_suffix(".pxd")]
    for types in wanted:
        if types not in found and types.is_file():
            found.append(types)
            for up, name in re.findall(r"^from (\.+)([\w.]+) cimport", types.read_text(encoding="utf-8"), re.MULTILINE):
                wanted.append(types.parents[len(up) - 1].joinpath(*name.split(".")).with_suffix(".pxd"))
    return found


def _is_compiled(module: ModuleType) -> bool:
    return not str(module.__file__).endswith(".py")
