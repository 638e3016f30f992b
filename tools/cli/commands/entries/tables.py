"""The tables an import reads: Parquet and Arrow files in, one record for each row out.

    id_ms, id_seq          the ID, as in a scan and in an export
    id                     the ID, of a table without these two: text, ms-seq, or its 16 bytes
    the one of --id-field  the ID: such a one, or numbers (milliseconds) or times, of which it is ms-*
    fields                 a map of text or binary: all fields of the entry
    any other              a field, as texts.py writes it; what is null, the entry lacks

Rows are counted from 1, as lines are. Arrow turns columns into texts, some thousand rows at a time.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .....storage.errors import InvalidFields, InvalidStreamID
from .....stream.columns.projection import load
from .....stream.columns.texts import columns_of, plain, storable, texts
from .....stream.node.stream_id import StreamID
from ...status import USAGE, CommandError
from .input_formats import ARROW, Bad, Record

if TYPE_CHECKING:
    import pyarrow as pa

ROWS = 10_000  # of a commit, unless --batch says otherwise
_BYTES = 4 << 20  # of rows that are text at a time
_HALVES = ("id_ms", "id_seq")
_NOTHING = "; nothing has been imported"


@dataclass
class Table:
    """The rows of a file, counted: ``number`` of them and ``taken`` bytes of text have been given out so far.

    CommandError where the file or a column cannot be read.
    """

    kind: str
    file: io.BufferedReader
    name: str
    size: int | None = None  # of the file, where it is one
    id_field: str | None = None
    new_ids: bool = False
    left_out: tuple[str, ...] = ()
    number: int = 0
    taken: int = 0
    position: int = 0  # in the file
    id_hint: str = ""  # what to do about an ID that is wrong

    def records(self, start: int) -> Iterator[Record | Bad]:
        """The records of the rows from number ``start`` on."""
        pa = load()
        try:
            schema, batches, total = self._opened(start)
            id_columns, id_of = self._ids_of(schema)
            kinds = self._kinds(schema, id_columns)
            for whole in batches:
                passed = min(max(start - 1 - self.number, 0), whole.num_rows)
                self.number += passed
                rows = max(1, min(ROWS, _BYTES * whole.num_rows // max(whole.nbytes, 1)))
                for at in range(passed, whole.num_rows, rows):
                    yield from self._records(whole.slice(at, rows), kinds, id_columns, id_of)
                if total:
                    self.position = (self.size or 0) * self.number // total
                elif self.file.seekable():
                    self.position = self.file.tell()
        except (pa.ArrowException, OSError) as error:
            why = str(error).strip().rstrip(".")
            raise CommandError(f"{self.name} cannot be read as {self.kind.title()}: {why}", USAGE) from None

    def _records(self, batch: pa.RecordBatch, kinds: dict[int, pa.DataType], id_columns: list[int],
                 id_of: Callable[..., StreamID | str]) -> Iterator[Record | Bad]:
        ids = [batch.column(at) for at in id_columns]
        if id_of is _of_ms and not load().types.is_integer(ids[0].type):
            ids = [ids[0].cast(load().timestamp("ms"), safe=False).cast(load().int64())]
        given = zip(*(column.to_pylist() for column in ids), strict=True)
        before = self.taken
        flats = self._flats(batch, kinds)
        each, self.taken = (self.taken - before) // batch.num_rows, before
        for flat in flats:
            self.number += 1
            self.taken += each
            if not ids:
                yield self.number, None, flat
            elif None in (halves := next(given)):
                yield Bad(self.number, f"the ID is null{self.id_hint}")
            else:
                try:
                    sid = id_of(*halves)
                except InvalidStreamID as error:
                    yield Bad(self.number, f"{error}{self.id_hint}")
                else:
                    yield self.number, sid, flat

    def _opened(self, start: int) -> tuple[pa.Schema, Iterable[pa.RecordBatch], int]:
        """The schema, the batches from that of row ``start`` or an earlier one on, to which ``number`` is set, and the
        number of rows, if it is known."""
        pa = load()
        if self.kind == ARROW and not self.file.peek(8).startswith(b"ARROW1"):
            stream = pa.ipc.open_stream(self.file)
            return stream.schema, stream, 0
        if not self.file.seekable():
            raise CommandError(f"{self.name} is {self.kind.title()}, which is read from its end: give a file{_NOTHING}",
                               USAGE)
        if self.kind == ARROW:
            file = pa.ipc.open_file(self.file)
            return file.schema, (file.get_batch(at) for at in range(file.num_record_batches)), 0
        from pyarrow import parquet  # noqa: PLC0415

        held = parquet.ParquetFile(self.file)
        groups = list(range(held.num_row_groups))
        while groups and self.number + held.metadata.row_group(groups[0]).num_rows < start:
            self.number += held.metadata.row_group(groups.pop(0)).num_rows
        return held.schema_arrow, held.iter_batches(ROWS, row_groups=groups), held.metadata.num_rows

    def _ids_of(self, schema: pa.Schema) -> tuple[list[int], Callable[..., StreamID | str]]:
        """The columns that hold the ID, and what makes one of their values."""
        types = load().types
        halves = set(_HALVES) <= set(schema.names)
        if self.new_ids:
            return [], StreamID
        if halves and self.id_field is None:
            places = [self._place(schema, half) for half in _HALVES]
            for half, kind in ((half, schema.types[at]) for half, at in zip(_HALVES, places, strict=True)):
                if not types.is_integer(kind):
                    raise self._wrong(half, f"is {kind}, and half of an ID is a whole number: cast it, or leave both "
                                            "halves out with --new-ids")
            self.id_hint = ". IDs are in id_ms and id_seq; --new-ids leaves them out"
            return places, StreamID
        if self.id_field is None and "id" not in schema.names:
            return [], StreamID
        at = self._place(schema, self.id_field or "id")
        kind = storable(schema.types[at])
        if self.id_field is None:
            self.id_hint = ". The ID is in the column id; --new-ids takes that as a field"
        if kind is not None and types.is_string(kind):
            return [at], str
        if kind is not None and types.is_binary(kind):
            return [at], StreamID.from_bytes
        if self.id_field is None:
            return [], StreamID  # the number of a row in its database, say
        if not any(is_such(schema.types[at]) for is_such in (types.is_integer, types.is_timestamp, types.is_date)):
            raise self._wrong(self.id_field, f"is {schema.types[at]}: an ID is made of text (ms-seq), a whole number "
                                             "(milliseconds) or a time")
        return [at], _of_ms

    def _kinds(self, schema: pa.Schema, id_columns: list[int]) -> dict[int, pa.DataType]:
        """The columns that are fields, each with the type that it is written from."""
        for name in self.left_out:
            self._place(schema, name)
        without = {*self.left_out, *(_HALVES if set(_HALVES) <= set(schema.names) else ())}
        kinds = {}
        for at, field in enumerate(schema):
            if at not in id_columns and field.name not in without and not load().types.is_null(field.type):
                kinds[at] = _entry_of(field) or storable(field.type)
                if kinds[at] is None:
                    raise self._wrong(field.name, f"is {field.type}, which no field can hold: cast it to text or a "
                                                  f"number, or leave it out with --leave-out {field.name}")
        if not kinds:
            raise CommandError(f"{self.name} has no column that would be a field{_NOTHING}", USAGE)
        if len(kinds) > 1 and any(_entry_of(schema.field(at)) for at in kinds):
            others = " and ".join(schema.names[at] for at in kinds if not _entry_of(schema.field(at)))
            raise self._wrong("fields", f"is a map of all fields, and beside it there is {others}: leave either out "
                                        "with --leave-out NAME")
        return kinds

    def _flats(self, batch: pa.RecordBatch, kinds: dict[int, pa.DataType]) -> list[list[bytes]]:
        """The fields of each row; not checked, whether an entry can be like that."""
        names, columns = [], []
        is_entry = False
        for at, kind in kinds.items():
            field, column = batch.schema.field(at), batch.column(at)
            is_entry = _entry_of(field) is not None
            try:
                made = texts(plain(column, kind), is_entry)
            except (InvalidFields, load().ArrowException) as error:
                raise self._wrong(field.name, f"cannot be stored, in one of the rows {self.number + 1} to "
                                              f"{self.number + batch.num_rows}: {error}", "") from None
            self.taken += made.nbytes
            names.append(field.name)
            columns.append(made)
        if is_entry:
            rows = columns[0].to_pylist()
            return [[half for pair in row or () if pair[1] is not None for half in pair] for row in rows]
        return list(columns_of(names, columns))

    def _place(self, schema: pa.Schema, name: str) -> int:
        if schema.names.count(name) != 1:
            has = f"{schema.names.count(name)} columns" if name in schema.names else "no column"
            all_names = ", ".join(map(repr, schema.names))
            raise CommandError(f"{self.name} has {has} {name!r}, of {all_names}{_NOTHING}", USAGE)
        return int(schema.names.index(name))

    def _wrong(self, name: str, what: str, behind: str = _NOTHING) -> CommandError:
        return CommandError(f"{self.name}: column {name!r} {what}{behind}", USAGE)


def _of_ms(ms: int) -> str:
    return f"{ms}-*"


def _entry_of(field: pa.Field) -> pa.DataType | None:
    """The type of a map of all fields, if the column is one."""
    pa = load()
    if field.name != "fields" or not pa.types.is_map(field.type):
        return None
    halves = storable(field.type.key_type), storable(field.type.item_type)
    return pa.map_(*halves) if all(half in (pa.string(), pa.binary()) for half in halves) else None
