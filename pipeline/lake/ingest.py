"""Captures appended to a lake: `ingest`, for anyone who has a session."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql import SparkSession

from pipeline.lake.options import Options
from pipeline.tables.exchange import ThisProcess

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
    """Append what is new among the captures to a lake, which is made if there is none; rows of its table batches.

    `spark`: the session, or what begins one: then this process does what is little, and the session is only begun for
    more. `payload`, `ports`, `hosts`,
    `keylog`: as for `pipeline.decode`; use the same ones for a lake every time. `carry_secrets`: states of open
    connections hold what decrypts them in the next batch; else what comes then is TLS that nobody can read.

    Times are in seconds: a capture that changed within `settle` is left for the next time; messages are paired within
    `pair_within`; a connection without a packet for `forget_after` is closed as lost sight of; a capture that ends more
    than `late_after` before the latest packet of the lake is decoded for itself.

    Raises LakeError, PathError, KeyLogError; then, and whenever it fails, the lake is as of its last batch.
    """
    # Here, not above: the kernels behind it take a second to load, and tables already written need none.
    from pipeline.lake.ingesting import Ingest

    options = Options(
        pair_ns=_ns(pair_within), forget_ns=_ns(forget_after), late_ns=_ns(late_after), settle_ns=_ns(settle),
        carry_secrets=carry_secrets,
    )  # fmt: skip
    process = ThisProcess() if callable(spark) else None
    work = begins(
        spark,
        process=process,
        payload=payload,
        ports=ports,
        hosts=hosts,
        key_logs=key_logs(keylog),
        carry_secrets=carry_secrets,
    )
    with Ingest.into(lake, work, options) as ingesting:
        return list(ingesting.batches([paths] if isinstance(paths, str) else paths))


def begins(
    spark: SparkSession | Callable[[], SparkSession],
    *,
    process: ThisProcess | None = None,
    payload: bool = False,
    ports: int | Sequence[int] | None = None,
    hosts: str | Sequence[str] | None = None,
    key_logs: tuple[str, ...] = (),
    carry_secrets: bool = False,
) -> Callable[[Log], Work]:
    """What begins the work of an ingest. `process`: what does it where it is little."""

    def begin(log: Log) -> Work:
        from pipeline.lake.work import LakeWork

        start = spark if callable(spark) else lambda: spark
        return LakeWork(start, process, log, payload, {"ports": ports, "hosts": hosts}, key_logs, carry_secrets)

    return begin


def key_logs(paths: str | Sequence[str] | None) -> tuple[str, ...]:
    """Key logs as workers find them. Raises KeyLogError where one is none."""
    from pipeline.decoding.decode import secret_files

    return secret_files((), paths).key_logs


def _ns(seconds: float) -> int:
    return int(seconds * 10**9)
