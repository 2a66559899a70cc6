"""Context 'peers': connections beside others of the same client, account or broker.

Times are those of the first packets; a connection sees itself and those before it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.window import WindowSpec

from pipeline.audit.catalogue import ALL_VERSIONS

if TYPE_CHECKING:
    from pipeline.audit.contexts.registry import Sources

SECOND_NS = 10**9
MINUTE_S = 60
SERVER = ("server_ip", "server_port")


def peers(sources: Sources) -> DataFrame:
    """Rows of `sources.connections` with

    speaks_amqp   AMQP was spoken to the same server and port
    offers_tls    the server and port answered a TLS header with one (1.0)
    refusal       the last connection of the client to that server whose version was refused (asked, answered,
                  opened_ns), before this one; `spoken`: versions of those before it, by whatever program
    failures      failed logins of the client's address in the window of SEC-06, this one included; `all_failures`
    recent        connections of the client's address in the last minute, this one included
    hosts         addresses that have used the account on that broker so far; `new_host`: this one is the first of
                  its address; `all_hosts`
    """
    window_s = sources.parameters.get("SEC-06", {}).get("window_seconds", 0)
    account = ("server_ip", "user")
    first_of_host = (F.row_number().over(in_time(*account, "client_ip")) == 1) & F.col("user").isNotNull()
    refusal = F.when(F.col("refused"), F.struct("asked", "answered", "opened_ns", "spoken"))
    before = in_time("client_ip", *SERVER).rowsBetween(Window.unboundedPreceding, -1)
    amqp = F.when(F.col("content") == "amqp", 1)
    known = F.when(F.col("asked").isin(*ALL_VERSIONS), F.col("asked"))
    return (
        sources.connections.withColumn("spoken", F.collect_set(known).over(before))
        .withColumns(
            {
                "speaks_amqp": F.max(F.col("content") == "amqp").over(Window.partitionBy(*SERVER)),
                "offers_tls": F.max(F.expr("shiftright(c.server_header.code, 24) = 2")).over(
                    Window.partitionBy(*SERVER)
                ),
                "refusal": F.last(refusal, True).over(before),
                "failures": _failures().over(_last(window_s, "client_ip")),
                "all_failures": _failures().over(Window.partitionBy("client_ip")),
                "recent": F.count(amqp).over(_last(MINUTE_S, "client_ip")),
                "new_host": first_of_host,
            }
        )
        .withColumn("hosts", F.sum(F.col("new_host").cast("int")).over(in_time(*account)))
        .withColumn("all_hosts", F.sum(F.col("new_host").cast("int")).over(Window.partitionBy(*account)))
    )


def in_time(*keys: str) -> WindowSpec:
    """Connections of the same `keys` in the order of their first packets."""
    return Window.partitionBy(*keys).orderBy("opened_ns", "connection_id")


def _last(seconds: float, *keys: str) -> WindowSpec:
    return Window.partitionBy(*keys).orderBy("opened_ns").rangeBetween(-int(seconds * SECOND_NS), 0)


def _failures() -> Column:
    return F.count(F.when(F.col("failed_login"), 1))
