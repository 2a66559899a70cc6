"""Context 'peers': connections compared with others of the same client, account or broker.

Times are those of the first packets; a connection is compared with itself and earlier ones.

Context 'refusals': closes with 'access refused', compared with others of the same account on the same broker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.window import WindowSpec

from pipeline.audit.catalogue import ALL_VERSIONS

if TYPE_CHECKING:
    from pipeline.audit.contexts.sources import Sources

SECOND_NS = 10**9
MINUTE_S = 60
SERVER = ("server_ip", "server_port")


def peers(sources: Sources) -> DataFrame:
    """Rows of `sources.connections` with

    speaks_amqp   some connection to the same server and port carries AMQP
    offers_tls    the server and port answered a TLS header with one (1.0)
    refusal       the last earlier connection of the client to that server whose version was refused (asked, answered,
                  opened_ns); `known_versions`: those of earlier connections to the server
    failures      failed logins of the client's address in the window of SEC-06, this one included; `all_failures`
    recent        connections of the client's address in the last minute, this one included
    hosts         addresses that have used the account on that broker so far; `new_host`: the first connection of its
                  address; `all_hosts`
    """
    window_s = sources.parameters.get("SEC-06", {}).get("window_seconds", 0)
    account = ("server_ip", "user")
    first_of_host = (F.row_number().over(in_time(*account, "client_ip")) == 1) & F.col("user").isNotNull()
    refusal = F.when(F.col("refused"), F.struct("asked", "answered", "opened_ns", "known_versions"))
    before = in_time("client_ip", *SERVER).rowsBetween(Window.unboundedPreceding, -1)
    amqp = F.when(F.col("content") == "amqp", 1)
    known = F.when(F.col("asked").isin(*ALL_VERSIONS), F.col("asked"))
    return (
        sources.connections.withColumn("known_versions", F.collect_set(known).over(before))
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


ACCESS_REFUSED = 403
CODES = {"channel.close": "reply_code", "connection.close": "reply_code", "execution.exception": "error_code"}


def refusals(sources: Sources) -> DataFrame | None:
    """Columns: connection_id, version, frame_no, ts_ns, name, user; `refusals`: how many there were in the window of
    SEC-18 up to this one; `all_refusals`."""
    if not any(sources.method_counts[name] for name in CODES):
        return None
    window_s = sources.parameters.get("SEC-18", {}).get("window_seconds", 0)
    code = F.coalesce(
        *(F.expr(f"try_variant_get(arguments, '$.{argument}', 'int')") for argument in sorted(set(CODES.values())))
    )
    own = sources.connections.select("connection_id", "user", "server_ip")
    account = Window.partitionBy("server_ip", "user")
    recent = account.orderBy("ts_ns").rangeBetween(-int(window_s * SECOND_NS), 0)
    return (
        sources.control_methods.filter(F.col("name").isin(list(CODES)) & (code == ACCESS_REFUSED))
        .select("connection_id", "version", "frame_no", "ts_ns", "name")
        .join(own, "connection_id")
        .withColumns({"refusals": F.count("*").over(recent), "all_refusals": F.count("*").over(account)})
    )
