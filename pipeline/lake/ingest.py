"""Append captures to a lake: `ingest`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql import SparkSession

from pipeline.lake.layout import Options
from pipeline.tables.processes import LocalProcesses

if TYPE_CHECKING:
    from pipeline.lake.batch import Work
    from pipeline.lake.log import Log


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
    `pair_within`; a connection without a packet for `forget_after` is closed as lost sight of; a capture that ends more
    than `late_after` before the latest packet of the lake is decoded on its own.

    Raises LakeError, PathError, KeyLogError. After any failure the lake is as of its last batch.
    """
    # Imported here: the kernels take a second to load, and reading tables needs none.
    from pipeline.lake.batches import Ingest

    options = Options(
        pair_ns=_ns(pair_within), forget_ns=_ns(forget_after), late_ns=_ns(late_after), settle_ns=_ns(settle),
        carry_secrets=carry_secrets,
    )  # fmt: skip
    processes = LocalProcesses()
    work = work_of(
        spark,
        processes=processes if callable(spark) else None,
        payload=payload,
        ports=ports,
        hosts=hosts,
        key_logs=key_logs(keylog),
        carry_secrets=carry_secrets,
    )
    with processes, Ingest.into(lake, work, options) as ingesting:
        return list(ingesting.batches([paths] if isinstance(paths, str) else paths))


def work_of(
    spark: SparkSession | Callable[[], SparkSession],
    *,
    processes: LocalProcesses | None = None,
    payload: bool = False,
    ports: int | Sequence[int] | None = None,
    hosts: str | Sequence[str] | None = None,
    key_logs: tuple[str, ...] = (),
    carry_secrets: bool = False,
) -> Callable[[Log], Work]:
    """A function that makes the `Work` of an ingest. `processes` decode batches of local captures."""

    def start_work(log: Log) -> Work:
        from pipeline.lake.work import LakeWork

        start = spark if callable(spark) else lambda: spark
        return LakeWork(start, processes, log, payload, {"ports": ports, "hosts": hosts}, key_logs, carry_secrets)

    return start_work


def key_logs(paths: str | Sequence[str] | None) -> tuple[str, ...]:
    """Key logs as absolute paths for workers. Raises KeyLogError."""
    from pipeline.decoding import secret_files

    return secret_files((), paths).key_logs


def _ns(seconds: float) -> int:
    return int(seconds * 10**9)
