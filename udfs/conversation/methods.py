"""Rows of table methods, without replies; commands to transaction coordinators; queues that are streams."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import LongType, StringType, StructField, StructType

from udfs.arrow.fields import Fields, fields, inside, values_of
from udfs.arrow.rows import is_among, is_there, one_of, picked, places_where, taken, truth_of, with_parts
from udfs.arrow.types import arrow_schema, bound

# Columns that are filled from the reply.
REPLY = ("reply_frame_no", "reply_name", "reply_latency_ns")


@dataclass(frozen=True)
class Methods:
    """`schema` of the table; `frame_types` of its rows; `named_links`: methods whose argument `name` is that of a link;
    `requests`: methods that may be answered; `commands`: to transaction coordinators, which may be answered, too."""

    schema: StructType
    frame_types: tuple[str, ...]
    named_links: tuple[str, ...]
    requests: tuple[str, ...]
    commands: Commands

    def rows(self, frames: pa.RecordBatch, arguments: Mapping[str, pa.Array]) -> tuple[pa.RecordBatch, pa.RecordBatch]:
        """`frames` and fields of their `arguments` (with `name`) -> rows of methods without reply, and of requests."""
        chosen = is_among(frames["frame_type"], *self.frame_types)
        names_link = pa.array(is_among(frames["name"], *self.named_links))
        link_name = pc.if_else(names_link, arguments["name"], pa.scalar(None, pa.string()))
        known = {name: frames[name] for name in frames.schema.names} | {**arguments, "link_name": link_name}
        known |= {"name": frames["name"], "transaction_command": self.commands.of(frames)}
        requests = chosen & (is_among(frames["name"], *self.requests) | is_there(known["transaction_command"]))
        return self._rows(known, places_where(chosen & ~requests)), self._rows(known, places_where(requests))

    def _rows(self, known: Mapping[str, pa.Array], places: pa.Int64Array) -> pa.RecordBatch:
        """The rows at `places`, of columns that are `known`."""
        columns = {name: taken(known[name], places) for name in self.schema.names if name not in REPLY}
        return bound(columns, arrow_schema(self.schema), REPLY)


@dataclass(frozen=True)
class Commands:
    """Commands to a transaction coordinator of 1.0: transfers whose body is one (4.2, 4.5). `carriers`: names of frames
    that may carry one; `types`: of bodies that are one."""

    carriers: tuple[str, ...]
    types: tuple[str, ...]

    def of(self, frames: pa.RecordBatch) -> pa.StringArray:
        """The command in each of `frames` (with `name`, `properties`), or null."""
        carries = is_among(frames["name"], *self.carriers)
        if not carries.any():
            return pa.nulls(frames.num_rows, pa.string())
        bodies = inside(values_of(frames["properties"]).taken(np.flatnonzero(carries)), "body")
        kinds = fields(bodies, {"type": "string"})["type"]
        kinds = pc.if_else(one_of(kinds, self.types), kinds, pa.scalar(None, pa.string()))
        return picked(kinds, np.where(carries, np.cumsum(carries) - 1, -1))


METHOD_COLUMNS = ("connection_id", "name", "arguments")
# Method -> the argument that implies the type of a queue, and that type (None: the value of the argument).
QueueTypes = Mapping[str, tuple[str, str | None]]
STREAMS = StructType([StructField("connection_id", LongType()), StructField("queue", StringType())])


@dataclass(frozen=True)
class Streams:
    """The function for `mapInArrow` over methods (METHOD_COLUMNS) -> STREAMS, queues that are streams; `types_by` as
    for `queue_types`."""

    types_by: QueueTypes

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if batch.num_rows:
                yield self.of(with_parts(batch))

    def of(self, methods: pa.RecordBatch) -> pa.RecordBatch:
        """Rows of METHOD_COLUMNS -> STREAMS."""
        chosen = places_where(is_among(methods["name"], *self.types_by))
        if not len(chosen):
            return pa.RecordBatch.from_arrays([pa.nulls(0, pa.int64()), pa.nulls(0, pa.string())], names=STREAMS.names)
        types = queue_types(methods, chosen, self.types_by, passive=True)
        queues = fields(values_of(methods["arguments"].take(chosen)), {"queue": "string"})["queue"]
        at = places_where(is_among(types, "stream") & truth_of(pc.not_equal(queues, "")))
        connections = methods["connection_id"].take(chosen.take(at)).cast(pa.int64())
        return pa.RecordBatch.from_arrays([connections, queues.take(at)], names=STREAMS.names)


def queue_types(frames: pa.RecordBatch, chosen: pa.Int64Array, types_by: QueueTypes, passive: bool) -> pa.Array:
    """The types of queues that arguments of `chosen` rows imply; `passive`: those of passive declarations, too."""
    found, names = pa.nulls(len(chosen), pa.string()), frames["name"].take(chosen)
    for name, (argument, implied_type) in types_by.items():
        at = np.flatnonzero(is_among(names, name))
        if len(at):
            values = values_of(frames["arguments"].take(chosen.take(pa.array(at))))
            declared = Fields(values, {"passive": "boolean"}, ("arguments",))
            kind = "string" if implied_type is None else "variant"
            types = fields(declared.inside("arguments"), {argument: kind})[argument]
            if implied_type is not None:
                types = pc.if_else(is_there(types), implied_type, None)
            if not passive:  # such a declaration changes nothing
                types = pc.if_else(truth_of(declared.column("passive")), None, types)
            mask = np.zeros(len(chosen), bool)
            mask[at] = True
            found = pc.replace_with_mask(found, pa.array(mask), types.cast(pa.string()))
    return found
