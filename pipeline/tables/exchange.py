"""Pipelines of functions over Arrow batches with shuffles between them: on Spark, or in this process.

    rows.partitioned(one).by_bucket().then(other, SCHEMA).collected()

`partitioned` functions give rows `udfs.pairing.schemas.PARTITIONED`.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, Self

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from codec.errors import WirehareError
from udfs.pairing.schemas import PARTITIONED

Function = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


class ThisProcess:
    """Used instead of a Spark session for work that this process finishes sooner than Spark starts."""

    _interrupted = False
    _worker: int | None = None  # the thread that may be interrupted

    def interruptAll(self) -> None:
        """Cancel the work, as of a session; called from another thread."""
        self._interrupted = True
        if self._worker is not None:  # interpreted kernels run for minutes without checking a flag
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._worker), ctypes.py_object(Interrupted))

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """In the body, `interruptAll` raises Interrupted wherever this thread is."""
        self._worker = threading.get_ident()
        try:
            if self._interrupted:
                raise Interrupted
            yield
        finally:
            self._worker = None


class Interrupted(WirehareError):
    """Work in this process was cancelled by `ThisProcess.interruptAll`."""


class Rows(Protocol):
    """Rows on Spark or in this process."""

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


@dataclass(frozen=True)
class InProcess:
    """Few rows, in this process."""

    rows: Sequence[pa.RecordBatch]

    def then(self, function: Function, schema: StructType | str) -> InProcess:
        return InProcess(list(function(iter(self.rows))))

    def partitioned(self, function: Function) -> InProcess:
        return self.then(function, PARTITIONED)

    def with_rows(self, others: InProcess) -> InProcess:
        return InProcess([*self.rows, *others.rows])

    def by_bucket(self) -> InProcess:
        return InProcess(pa.Table.from_batches(self.rows).sort_by("bucket").to_batches()) if self.rows else self

    def collected(self) -> list[dict[str, Any]]:
        return [row for batch in self.rows for row in batch.to_pylist()]
