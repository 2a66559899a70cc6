"""Runs in, files out: what `mapInArrow` calls where rows are not wanted in Spark, but in tables.

A worker writes the rows itself (`udfs.sink.parquet`); Spark only learns which files there are. A task that is tried
again writes files of other names; who reads them goes by the list, not by what is there."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyarrow import fs
from pyspark.sql.types import StringType, StructField, StructType

from codec.variant.python_values import decode
from udfs.conversation.methods import STREAMS, Streams
from udfs.decode.hand_over import ACCOUNTS, STREAM_QUEUES
from udfs.decode.key_logs import SecretFiles
from udfs.sink.parquet import write_folders
from udfs.tables import tables_of
from udfs.tables.config import Config

OF_ACCOUNTS = StructType([StructField("account", StringType())])  # each as JSON


@dataclass(frozen=True)
class WriteTables:
    """The function for `mapInArrow` over sorted runs -> WRITTEN (`udfs.sink.parquet`). Files go to folders in
    `directory` of a file system that all workers reach: one for each of `tables`, one for
    accounts of captures; `streams`: None where queues that are streams are not wanted; `secrets`: where those of TLS
    are."""

    filesystem: fs.FileSystem
    directory: str
    config: Config
    tables: Collection[str]
    streams: Streams | None
    secrets: SecretFiles | None = None

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return write_folders(self.filesystem, self.directory, self._rows(batches), self._schema)

    def _rows(self, runs: Iterator[pa.RecordBatch]) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Folder, rows for it."""
        for table, _, rows in tables_of(runs, self.config, secrets=self.secrets):
            if table == ACCOUNTS:
                texts = [json.dumps(decode(**each)) for each in rows["arguments"].to_pylist()]
                yield table, pa.RecordBatch.from_arrays([pa.array(texts, pa.string())], OF_ACCOUNTS.names)
            elif table in self.tables:
                yield table, rows
            if self.streams and table == "methods":
                yield STREAM_QUEUES, self.streams.of(rows)

    def _schema(self, folder: str) -> StructType:
        return {ACCOUNTS: OF_ACCOUNTS, STREAM_QUEUES: STREAMS, **self.config.schemas}[folder]
