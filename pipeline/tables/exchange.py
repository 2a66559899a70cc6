"""Pipelines of functions over Arrow batches with shuffles between them, on Spark or in local processes
(`pipeline.tables.local`).

    rows.partitioned(one).by_bucket().then(other, SCHEMA).collected()

`partitioned` functions give rows `udfs.pairing.schemas.PARTITIONED`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, Self

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from udfs.pairing.schemas import PARTITIONED

Function = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


class Rows(Protocol):
    """Rows on Spark or in local processes."""

    def then(self, function: Function, schema: StructType | str) -> Self:
        """The rows after a function."""
        ...

    def partitioned(self, function: Function) -> Self:
        """The rows after a function that returns PARTITIONED rows."""
        ...

    def with_rows(self, others: Self) -> Self:
        """The union with rows of the same columns."""
        ...

    def by_bucket(self) -> Self:
        """PARTITIONED rows, sorted by bucket."""
        ...

    def collected(self) -> list[dict[str, Any]]:
        """All rows; runs the pipeline."""
        ...


@dataclass(frozen=True)
class OnSpark:
    """Rows on Spark, lazy."""

    rows: DataFrame

    def then(self, function: Function, schema: StructType | str) -> OnSpark:
        return OnSpark(self.rows.mapInArrow(function, schema))

    def partitioned(self, function: Function) -> OnSpark:
        return self.then(function, PARTITIONED)

    def with_rows(self, others: OnSpark) -> OnSpark:
        return OnSpark(self.rows.unionByName(others.rows))

    def by_bucket(self) -> OnSpark:
        return OnSpark(self.rows.repartition("bucket").sortWithinPartitions("bucket"))

    def collected(self) -> list[dict[str, Any]]:
        return [row.asDict() for row in self.rows.collect()]
