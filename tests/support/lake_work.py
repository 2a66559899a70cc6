"""Batches of a lake decoded in this process, without Spark; captures cut into rotated ones."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import decoding
import pyarrow as pa
import pyarrow.compute as pc
from pcap_files import records
from pyspark.sql import SparkSession

from pipeline.lake.arrivals import Arrival
from pipeline.lake.ingest_batches import Ingest
from pipeline.lake.layout import Options
from pipeline.lake.log import Log
from pipeline.lake.work import LakeWork
from udfs.sink.writers import EndConnections, WriteBatch
from udfs.source.capture_bytes import locate
from udfs.source.sources import in_run_order

TASKS = 2


class LocalWork(LakeWork):
    """Decodes as Spark's workers do, flows distributed over TASKS of them; pairs no messages."""

    def __init__(self, log: Log, key_logs: tuple[str, ...] = (), carry_secrets: bool = False) -> None:
        super().__init__(log, no_session, None, True, {}, key_logs, carry_secrets)

    def _decoded(self, writer: WriteBatch, arrivals: Sequence[Arrival]) -> list[dict[str, Any]]:
        tasks = (writer(iter(self._runs(arrivals, task))) for task in range(TASKS))
        return [row for filed in tasks for batch in filed for row in batch.to_pylist()]

    def _ended(self, writer: WriteBatch, connections: int) -> list[dict[str, Any]]:
        end = EndConnections(writer, TASKS)
        tasks = (end(iter([pa.record_batch({"id": [task]})])) for task in range(TASKS))
        return [row for filed in tasks for batch in filed for row in batch.to_pylist()]

    def flows(self, *_: object) -> None:
        return None

    def _runs(self, arrivals: Sequence[Arrival], task: int) -> list[pa.RecordBatch]:
        """Runs of a task, as Spark hands them over."""
        if not arrivals:
            return []
        read = {arrival.file.name: arrival.read for arrival in arrivals if arrival.read}
        paths = [Path(locate(arrival.file.uri).path) for arrival in arrivals]
        runs = decoding.runs(paths, packetsRead=json.dumps(read))
        tasks = [0 if flow is None else sum(flow) % TASKS for flow in runs["flow"].to_pylist()]
        return in_run_order(runs.filter(pc.equal(pa.array(tasks, pa.int64()), task)), 64)


def no_session() -> SparkSession:
    raise AssertionError("no work of a batch is for Spark")


def rotated(capture: Path, directory: Path, number: int) -> Iterator[Path]:
    """The capture in so many files, one after the other."""
    header, packets = records(capture)
    directory.mkdir(exist_ok=True)
    for piece in range(number):
        first, end = (len(packets) * at // number for at in (piece, piece + 1))
        path = directory / f"{capture.stem}-{piece:04}.pcap"
        path.write_bytes(header + b"".join(packets[first:end]))
        yield path


def moved_in_time(capture: Path, to: Path, seconds: int) -> Path:
    """The capture with all packets so much later."""
    header, packets = records(capture)
    for index, record in enumerate(packets):
        stamp = int.from_bytes(record[:4], "little") + seconds
        packets[index] = stamp.to_bytes(4, "little") + record[4:]
    to.write_bytes(header + b"".join(packets))
    return to


def main(lake: str, captures: str) -> None:
    """Take all captures, one a batch."""
    with Ingest.into(lake, LocalWork, Options(settle=0, batch_bytes=1)) as ingest:
        for _ in ingest.batches([captures]):
            pass


if __name__ == "__main__":
    main(*sys.argv[1:])
