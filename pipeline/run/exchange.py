"""Pipelines of functions over Arrow batches with shuffles between them, on Spark or in processes of this machine.

    rows.then(one, PARTITIONED).by_bucket().then(other, SCHEMA).collected()

A JVM takes five seconds to start, and each Python worker of Spark two more. Local work needs no JVM; rows that change
the process go through Arrow files.
"""

from __future__ import annotations

import heapq
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar

import pyarrow as pa

from codec.tables import Table
from pipeline.run.local_processes import LocalProcesses
from pipeline.run.session import (
    COMPILED,
    INTERPRETED,
    LEAST_PARTITIONS,
    ONE_PARTITION,
    grouping_settings,
    settings,
)
from udfs.arrow.spill_files import Buckets, SortedFile, column_buckets, read_sorted, write_sorted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Function = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


class Rows(Protocol):
    """Rows on Spark or in local processes."""

    def then(self, function: Function, schema: Table | str) -> Self:
        """The rows that `function` makes of these, with the columns `schema`."""

    def with_rows(self, others: Self) -> Self:
        """The union with rows of the same columns."""

    def by_bucket(self) -> Self:
        """The rows sorted by column `bucket`, a bucket in one task (`udfs.pairing.schemas.PARTITIONED`)."""

    def collected(self) -> list[dict[str, Any]]:
        """All rows; runs the pipeline."""


@dataclass(frozen=True)
class OnSpark:
    """Rows on Spark, lazy."""

    rows: DataFrame

    def then(self, function: Function, schema: Table | str) -> OnSpark:
        from udfs.arrow.spark_schemas import spark_schema

        columns = schema if isinstance(schema, str) else spark_schema(schema)
        return OnSpark(self.rows.mapInArrow(function, columns))

    def with_rows(self, others: OnSpark) -> OnSpark:
        return OnSpark(self.rows.unionByName(others.rows))

    def by_bucket(self) -> OnSpark:
        return OnSpark(self.rows.repartition("bucket").sortWithinPartitions("bucket"))

    def collected(self) -> list[dict[str, Any]]:
        return [row.asDict() for row in self.rows.collect()]


Result = TypeVar("Result")


@dataclass(frozen=True)
class Source:
    """The input of a task: `rows`, or those of some `buckets` of temporary `files`; then `functions` in turn."""

    rows: Sequence[pa.RecordBatch] = ()
    files: Sequence[SortedFile] = ()
    buckets: Sequence[int] = ()
    order: Sequence[str] = ()
    functions: tuple[Function, ...] = ()

    def then(self, function: Function) -> Source:
        return replace(self, functions=(*self.functions, function))

    def __call__(self) -> Iterator[pa.RecordBatch]:
        rows = read_sorted(self.files, self.buckets, self.order) if self.files else iter(self.rows)
        for function in self.functions:
            rows = function(rows)
        return rows


def _write(directory: str, buckets_of: Buckets, order: Sequence[str], source: Source) -> list[SortedFile]:
    return write_sorted(source(), directory, buckets_of, order)


@dataclass(frozen=True)
class Local:
    """Rows in processes of this machine, to be used once; lazy, except that a shuffle computes its input."""

    processes: LocalProcesses
    sources: Sequence[Source]

    def then(self, function: Function, schema: Table | str) -> Local:
        return Local(self.processes, [source.then(function) for source in self.sources])

    def with_rows(self, others: Local) -> Local:
        return Local(self.processes, [*self.sources, *others.sources])

    def by_bucket(self) -> Local:
        return self.shuffled(column_buckets)

    def shuffled(self, buckets_of: Buckets, order: Sequence[str] = ()) -> Local:
        """The rows of each bucket in one task, in this order."""
        write = partial(_write, self.processes.directory, buckets_of, order)
        files = [file for written in self._run(write) for file in written]
        balanced = _balanced(files, self.processes.tasks)
        return Local(self.processes, [Source((), files, buckets, order) for buckets in balanced])

    def collected(self) -> list[dict[str, Any]]:
        return [row for batches in self._run(_all) for each in batches for row in each.to_pylist()]

    def _run(self, function: Callable[[Source], Result]) -> list[Result]:
        results = self.processes.run(function, self.sources)
        for path in {file.path for source in self.sources for file in source.files}:
            os.unlink(path)
        return results


def _all(source: Source) -> list[pa.RecordBatch]:
    return list(source())


def _balanced(files: Sequence[SortedFile], tasks: int) -> list[list[int]]:
    """The buckets of these files in up to `tasks` groups of about the same size, the largest group first."""
    sizes = Counter[int]()
    for file in files:
        for bucket, size in zip(file.buckets, file.sizes, strict=True):
            sizes[bucket] += size
    groups = [(0, number, list[int]()) for number in range(tasks)]
    for bucket, size in sizes.most_common():
        filled, number, buckets = groups[0]
        buckets.append(bucket)
        heapq.heapreplace(groups, (filled + size, number, buckets))
    return [buckets for _, _, buckets in sorted(groups, reverse=True) if buckets]


def task_numbers(spark: SparkSession | LocalProcesses, tasks: int = 1) -> Rows:
    """A row for each task, its number: the input of functions that read their own."""
    if isinstance(spark, LocalProcesses):
        return Local(spark, [Source([pa.record_batch({"id": [number]})]) for number in range(tasks)])
    return OnSpark(spark.range(0, tasks, 1, tasks))


def planned(
    spark: SparkSession | LocalProcesses, *, small: bool = True, one_partition: bool = False, pairing: bool = False
) -> AbstractContextManager[None]:
    """Run the body with Spark settings for few rows (`small`: also runs, which are few and large) or for many;
    `one_partition`: they fit into one; `pairing`: partitions have about the same size. Local processes need none."""
    if isinstance(spark, LocalProcesses):
        return nullcontext()
    plans = {**(INTERPRETED if small else COMPILED), **(ONE_PARTITION if one_partition else {})}
    if pairing and (grouping := grouping_settings(spark)):
        # Much work for a byte: however little there is, all cores pair.
        plans = {**grouping, LEAST_PARTITIONS: grouping["spark.sql.shuffle.partitions"], **plans}
    return settings(spark, plans)
