"""Context 'refusals': closes that say 'access refused', beside the others of the same account on the same broker."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pipeline.audit.contexts.registry import Sources

ACCESS_REFUSED = 403
CODES = {"channel.close": "reply_code", "connection.close": "reply_code", "execution.exception": "error_code"}
SECOND_NS = 10**9


def refusals(sources: Sources) -> DataFrame | None:
    """Columns: connection_id, version, frame_no, ts_ns, name, user; `refusals`: how many there were in the window of
    SEC-18 up to this one; `all_refusals`."""
    if not any(sources.said[name] for name in CODES):
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
