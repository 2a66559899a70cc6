"""Table methods, as far as one frame tells: its arguments in plain columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import StructType

from udfs.arrow import arrow_type
from udfs.commands import Commands
from udfs.fields import fields
from udfs.parts import METHODS, REQUESTS
from udfs.rows import is_among, is_there, places_where, with_parts


@dataclass(frozen=True)
class Methods:
    """`schema` of the table; `frame_types` of its rows; `named_links`: methods whose argument `name` is that of a link;
    `requests`: methods that may be answered; `commands`: to a transaction coordinator, which may be, too."""

    schema: StructType
    frame_types: tuple[str, ...]
    named_links: tuple[str, ...]
    requests: tuple[str, ...]
    commands: Commands

    def rows(self, frames: pa.RecordBatch, arguments: Mapping[str, pa.Array]) -> tuple[pa.RecordBatch, pa.RecordBatch]:
        """`frames` and fields of their `arguments` (with `name`) -> rows of the table, without replies: those of all
        methods that cannot have one, and the requests."""
        chosen = is_among(frames["frame_type"], *self.frame_types)
        names_link = pa.array(is_among(frames["name"], *self.named_links))
        link_name = pc.if_else(names_link, arguments["name"], pa.scalar(None, pa.string()))
        known = {name: frames[name] for name in frames.schema.names} | {**arguments, "link_name": link_name}
        known |= {"name": frames["name"], "transaction_command": self.commands.of(frames)}
        asks = chosen & (is_among(frames["name"], *self.requests) | is_there(known["transaction_command"]))
        return self._rows(known, places_where(chosen & ~asks)), self._rows(known, places_where(asks))

    def _rows(self, known: Mapping[str, pa.Array], places: pa.Int64Array) -> pa.RecordBatch:
        """The rows at `places`, of columns that are `known`."""
        columns = [
            _taken(known[field.name], places, arrow_type(field.dataType))
            if field.name in known
            else pa.nulls(len(places), arrow_type(field.dataType))
            for field in self.schema.fields
        ]
        return pa.RecordBatch.from_arrays(columns, names=self.schema.names)


def _taken(column: pa.Array, places: pa.Int64Array, kind: pa.DataType) -> pa.Array:
    """The values at `places`, of this type; texts that are coded as words stay so."""
    rows = column.take(places)
    return rows if pa.types.is_dictionary(rows.type) else rows.cast(kind)


@dataclass(frozen=True)
class MethodRows:
    """The function for `mapInArrow` over frames -> rows of one `part`. `arguments`: what is read of theirs, by name and
    type."""

    methods: Methods
    arguments: dict[str, str]
    part: str

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            frames = with_parts(batch)
            rows = self.methods.rows(frames, fields(frames["arguments"], self.arguments))
            yield rows[(METHODS, REQUESTS).index(self.part)]
