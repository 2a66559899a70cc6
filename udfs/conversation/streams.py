"""Streams of RabbitMQ: queues that keep what they hand out, so that each reader gets every message."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import LongType, StringType, StructField, StructType

from udfs.arrow.fields import fields, inside, values_of
from udfs.arrow.rows import is_among, is_there, places_where, truth_of, with_parts

OF_METHODS = ("connection_id", "name", "arguments")
STREAMS = StructType([StructField("connection_id", LongType()), StructField("queue", StringType())])


@dataclass(frozen=True)
class Streams:
    """The function for `mapInArrow` over methods (OF_METHODS) -> STREAMS, queues that are streams. `tells`: name of a
    method -> the argument among its `arguments` that tells so, and the value that this must have (None: any)."""

    tells: dict[str, tuple[str, str | None]]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if batch.num_rows:
                yield self.of(with_parts(batch))

    def of(self, methods: pa.RecordBatch) -> pa.RecordBatch:
        """Rows of OF_METHODS -> STREAMS."""
        named = places_where(is_among(methods["name"], *self.tells))
        methods = methods.select(OF_METHODS).take(named)
        if not methods.num_rows:
            return pa.RecordBatch.from_arrays([pa.nulls(0, pa.int64()), pa.nulls(0, pa.string())], names=STREAMS.names)
        found = [self._told(methods, name, *told) for name, told in self.tells.items()]
        whole = pa.Table.from_batches(found).combine_chunks()
        return pa.RecordBatch.from_arrays([whole[name].combine_chunks() for name in whole.column_names], STREAMS.names)

    def _told(self, methods: pa.RecordBatch, name: str, argument: str, value: str | None) -> pa.RecordBatch:
        chosen = places_where(is_among(methods["name"], name))
        said = values_of(methods["arguments"].take(chosen))
        queues = fields(said, {"queue": "string"})["queue"]
        told = fields(inside(said, "arguments"), {argument: "variant" if value is None else "string"})[argument]
        tells = is_there(told) if value is None else truth_of(pc.equal(told, value))
        at = places_where(tells & truth_of(pc.not_equal(queues, "")))
        connections = methods["connection_id"].take(chosen).take(at)
        return pa.RecordBatch.from_arrays([connections.cast(pa.int64()), queues.take(at)], names=STREAMS.names)
