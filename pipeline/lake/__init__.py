"""The lake: Delta tables to which each batch of an `ingest` appends; open connections continue in the next batch.

`layout`: what a lake consists of; `opening`: opens, creates and locks it; `log`: the Delta logs, `lake_files`: their
files. Then `ingest_batches`: an ingest and its batches; `arrivals`: which captures are new; `work`: what workers do for
a batch; `journal`: its atomic commit; `lake_tables`: the tables as DataFrames. `confinement`: what all of these may
touch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from pipeline.lake.layout import Options
from pipeline.run.local_processes import LocalProcesses
from pipeline.tables.decoding import PacketFilter, checked_key_logs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pipeline.lake.ingest_batches import Ingest
    from pipeline.lake.log import Log
    from pipeline.lake.work import LakeWork


def ingest(
    spark: SparkSession | Callable[[], SparkSession],
    paths: str | Sequence[str],
    lake: str,
    *,
    payload: bool = False,
    settle: float = 30,
    pair_within: float = 3600,
    forget_after: float = 7 * 24 * 3600,
    late_after: float = 300,
    ports: int | Sequence[int] | None = None,
    hosts: str | Sequence[str] | None = None,
    keylog: str | Sequence[str] | None = None,
    carry_secrets: bool = False,
) -> list[dict[str, Any]]:
    """Append new captures to a lake, which is created if there is none; returns the new rows of its table batches.

    `spark`: the session, or a function that starts one; then local processes decode batches of local captures, and the
    session is started for the first batch that they cannot decode. `payload`, `ports`, `hosts`, `keylog`: as
    for `pipeline.decode`; use the same ones for a lake every time. `carry_secrets`: states of open TLS connections
    include their secrets, so that the next batch can decrypt them.

    Times are in seconds: a capture that changed within `settle` is left for the next time; messages are paired within
    `pair_within`; a connection without a packet for `forget_after` is closed as expired; a capture that ends more
    than `late_after` before the latest packet of the lake is decoded on its own.

    Raises LakeError, PathError, KeyLogError. After any failure the lake is as of its last batch.
    """
    options = Options(settle, pair_within, forget_after, late_after, carry_secrets)
    packet_filter = PacketFilter(ports=ports, hosts=hosts, keylog=keylog)
    with LocalProcesses() as processes:
        start, local = (spark, processes) if callable(spark) else (lambda: spark, None)
        with open_ingest(lake, options, start, local, payload, packet_filter) as ingesting:
            return list(ingesting.batches([paths] if isinstance(paths, str) else paths))


def open_ingest(
    lake: str,
    options: Options,
    start: Callable[[], SparkSession],
    processes: LocalProcesses | None,
    payload: bool,
    packet_filter: PacketFilter,
) -> AbstractContextManager[Ingest]:
    """An ingest into a lake. `start`: starts the session when it is needed; `processes`: decode batches of local
    captures, None: all on Spark. Raises LakeError, KeyLogError."""
    # Imported here: the kernels take a second to load, and reading tables needs none.
    from pipeline.lake.ingest_batches import Ingest

    key_logs = checked_key_logs(packet_filter.get("keylog"))

    def work(log: Log) -> LakeWork:
        from pipeline.lake.work import LakeWork

        return LakeWork(log, start, processes, payload, packet_filter, key_logs, options.carry_secrets)

    return Ingest.into(lake, work, options)
