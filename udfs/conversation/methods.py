"""Table methods, as far as one frame tells: its arguments in plain columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import StructType

from udfs.arrow.bound import bound
from udfs.arrow.rows import is_among, is_there, places_where
from udfs.arrow.types import arrow_schema
from udfs.conversation.commands import Commands

# Columns that the reply fills.
REPLY = ("reply_frame_no", "reply_name", "reply_latency_ns")


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
        columns = {name: known[name].take(places) for name in self.schema.names if name not in REPLY}
        return bound(columns, arrow_schema(self.schema), REPLY)
