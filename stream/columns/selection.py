"""Selection: of a scan's columns those that are asked for, of its rows those for which an expression is true.

    to_arrow(columns=["item"], where=pc.field("qty") > 2)

    projection   id_ms  id_seq  item  qty  price      what there is
    read                        item  qty             what is decoded
    schema                      item                  what comes out, where qty > 2

An expression about id_ms also narrows the range of IDs, as far as Arrow's own rules for partitions know that it is
true nowhere else.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ...storage.errors import InvalidArgument
from ..node.stream_id import MAX64, StreamID, make_id
from .projection import Projection, load

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc

_TOP = (1 << 63) - 1  # the greatest id_ms that is not null
_STEPS = 16  # a range is narrowed to within a 65,536th of it


@dataclass(frozen=True)
class Selection:
    """What selection() has made of columns and an expression."""

    read: Projection
    schema: pa.Schema  # of what comes out
    where: pc.Expression | None
    by_id: bool  # whether the expression is about id_ms

    def reader(self, batches: pa.RecordBatchReader) -> pa.RecordBatchReader:
        """The rows and columns of these batches, which have the schema of ``read``; no batch is empty."""
        if self.where is None and self.schema.equals(self.read.schema):
            return batches
        return load().RecordBatchReader.from_batches(self.schema, self._rows(batches))

    def _rows(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if self.where is None:
                yield batch.select(self.schema.names)
            elif (kept := load().Table.from_batches([batch]).filter(self.where)).num_rows:
                yield from kept.select(self.schema.names).to_batches()

    def window(self, start: StreamID, end: StreamID) -> tuple[StreamID, StreamID]:
        """The part of a range of IDs outside of which the expression is true nowhere."""
        if not self.by_id or start >= end or end.ms > _TOP:
            return start, end
        low = high = start.ms
        most = least = end.ms
        for _ in range(_STEPS):
            middle = (low + most) // 2
            low, most = (low, middle) if self._possible(low, middle) else (min(middle + 1, most), most)
            middle = (high + least + 1) // 2
            high, least = (middle, least) if self._possible(middle, least) else (high, max(middle - 1, high))
        return max(start, make_id(low, 0)), min(end, make_id(least, MAX64))

    def _possible(self, low: int, high: int) -> bool:
        """Whether the expression can be true from one id_ms to another, both included."""
        from pyarrow import dataset, fs  # noqa: PLC0415

        ms = dataset.field("id_ms")
        parts = dataset.FileSystemDataset.from_paths(
            ["-"], self.read.schema, dataset.IpcFileFormat(), fs.LocalFileSystem(), [(ms >= low) & (ms <= high)])
        return next(iter(parts.get_fragments(self.where)), None) is not None


def selection(columns: Projection, names: Sequence[str] | None, where: pc.Expression | None) -> Selection:
    """Which columns of a projection come out, in this order, and which are decoded: also those of the expression.

    InvalidArgument for a name that is not there or there twice, and for an expression that is none of these columns.
    """
    schema = columns.schema
    chosen = list(schema.names) if names is None else _checked(names, schema.names)
    about: set[str] = set()
    if where is not None:
        import pyarrow.compute as pc  # noqa: PLC0415

        if not isinstance(where, pc.Expression):
            raise InvalidArgument("where is a pyarrow.compute.Expression, as in pc.field('qty') > 2, not "
                                  f"{type(where).__name__}")
        if (error := _unbound(schema, where)) is not None:
            raise InvalidArgument(f"where={where} does not fit the columns {', '.join(schema.names)}: "
                                  f"{str(error).splitlines()[0]}")
        by_place = "FieldPath(" in str(where)  # of all columns
        about = {name for place, name in enumerate(schema.names) if by_place or _unbound(schema.remove(place), where)}
    kept = [place for place, name in enumerate(schema.names) if name in about or name in chosen]
    read = replace(columns, schema=load().schema([schema.field(place) for place in kept]),
                   columns=tuple(columns.columns[place] for place in kept))
    by_id = "id_ms" in about and columns.columns[schema.names.index("id_ms")][0] == "id_ms"
    return Selection(read, load().schema([schema.field(name) for name in chosen]), where, by_id)


def _checked(names: Sequence[str], known: Sequence[str]) -> list[str]:
    if isinstance(names, str) or not all(isinstance(name, str) for name in names) or not names:
        raise InvalidArgument(f"columns={names!r} is a list of one or more columns' names")
    for place, name in enumerate(names):
        if name not in known or name in names[:place]:
            what = "is there twice" if name in known else f"is not there; there are {', '.join(known)}"
            raise InvalidArgument(f"columns: {name!r} {what}")
    return list(names)


def _unbound(schema: pa.Schema, where: pc.Expression) -> Any:
    """Why the expression cannot be evaluated over these columns; None if it can."""
    pa = load()
    try:
        schema.empty_table().filter(where)
    except pa.ArrowException as error:
        return error
    return None
