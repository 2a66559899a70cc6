"""Rows that go through functions over Arrow batches and a shuffle between them: on Spark, or in this process.

    rows.partitioned(one).by_bucket().then(other, SCHEMA).collected()

`partitioned` functions give rows `udfs.pairing.columns.PARTITIONED`.
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
from udfs.pairing.columns import PARTITIONED

Function = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


class ThisProcess:
    """Instead of a Spark session, where work is so little that this process does it sooner."""

    _interrupted = False
    _worker: int | None = None  # the thread that may be interrupted

    def interruptAll(self) -> None:
        """End work as soon as may be: as of a session, from another thread."""
        self._interrupted = True
        if self._worker is not None:  # interpreted kernels take minutes before they come back to a place that could ask
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
    """Work in this process was ended by `ThisProcess.interruptAll`."""


class Rows(Protocol):
    """Rows, wherever they are worked on."""

    def then(self, function: Function, schema: StructType | str) -> Self:
        """What a function makes of them."""
        ...

    def partitioned(self, function: Function) -> Self:
        """The same, of a function that gives PARTITIONED rows."""
        ...

    def with_rows(self, others: Self) -> Self:
        """These and others of the same columns."""
        ...

    def by_bucket(self) -> Self:
        """PARTITIONED rows, those of a bucket one behind another."""
        ...

    def collected(self) -> list[dict[str, Any]]:
        """All of them; runs what was not run yet."""
        ...


@dataclass(frozen=True)
class OnSpark:
    """Rows of Spark, made when they are wanted."""

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
class Here:
    """Few rows, in this process."""

    rows: Sequence[pa.RecordBatch]

    def then(self, function: Function, schema: StructType | str) -> Here:
        return Here(list(function(iter(self.rows))))

    def partitioned(self, function: Function) -> Here:
        return self.then(function, PARTITIONED)

    def with_rows(self, others: Here) -> Here:
        return Here([*self.rows, *others.rows])

    def by_bucket(self) -> Here:
        return Here(pa.Table.from_batches(self.rows).sort_by("bucket").to_batches()) if self.rows else self

    def collected(self) -> list[dict[str, Any]]:
        return [row for batch in self.rows for row in batch.to_pylist()]
