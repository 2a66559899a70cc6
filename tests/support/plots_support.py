"""Tables of a few rows written by hand, so that a picture's numbers can be counted on fingers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import vl_convert
from pyspark.sql import SparkSession
from tables_support import arrow_rows

from pipeline import TABLES, Tables, plots

Rows = Sequence[Mapping[str, Any]]
SECOND, MILLISECOND = 10**9, 10**6
BEGIN = 1_700_000_000 * SECOND  # 2023-11-14 22:13:20 UTC


def tables_of(spark: SparkSession, **given: Rows) -> Tables:
    """Tables with these rows; a column that a row does not name is null, and so is a table without rows empty."""
    return Tables(
        **{name: arrow_rows(spark, given.get(name, ()), schema) for name, schema in TABLES.items()},
        persisted=(),
        directory=None,
        byte_size=None,
    )


def frame(number: int, at_ns: int, sender: str, name: str | None, **more: Any) -> dict[str, Any]:
    """A complete method frame of connection 1, channel 1, `at_ns` after BEGIN, in a packet of the same number."""
    same = {"connection_id": 1, "frame_no": number, "packet_no": number, "sender": sender}
    moments = {"first_ts_ns": BEGIN + at_ns, "ts_ns": BEGIN + at_ns}
    shape = {"version": "0-9-1", "channel": 1, "frame_type": "method", "name": name, "size": 20, "status": "ok"}
    return {**same, **moments, **shape, **more}


def connection(number: int = 1, **more: Any) -> dict[str, Any]:
    """A connection of 10.0.0.2, from its number on port 40000, to 10.0.0.1:5672."""
    sides = {"client_ip": "10.0.0.2", "client_port": 40000 + number, "server_ip": "10.0.0.1", "server_port": 5672}
    return {"connection_id": number, "version": "0-9-1", "content": "amqp", **sides, **more}


def ts(at_ns: int) -> datetime:
    return datetime.fromtimestamp((BEGIN + at_ns) / SECOND, tz=UTC)


def subtitle(chart: Any) -> list[str]:
    """The lines below the title."""
    return list(chart.to_dict()["title"].get("subtitle", []))


def svg(chart: Any) -> str:
    """The chart as it is drawn, with our theme."""
    return str(vl_convert.vegalite_to_svg(chart.to_dict()))


def points(chart: Any) -> list[dict[str, Any]]:
    """The rows of all layers of a chart, in the order in which they are drawn."""
    found: list[dict[str, Any]] = []

    def gather(spec: Any) -> None:
        if isinstance(spec, dict):
            data = spec.get("data")
            if isinstance(data, dict) and "values" in data:
                found.extend(data["values"])
            elif isinstance(data, dict) and "name" in data:
                found.extend(sets[data["name"]])
            for part in ("layer", "vconcat", "hconcat", "spec"):
                gather(spec.get(part))
        elif isinstance(spec, list):
            for part in spec:
                gather(part)

    specification = chart.to_dict()
    sets = specification.get("datasets", {})
    gather(specification)
    return found


def pictures_with(spark: SparkSession, names: Sequence[str]) -> dict[str, Any]:
    """Every picture that shows names, of connections, queues and routing keys that have these."""
    sides = {"opened_ts": ts(0), "closed_ts": ts(4 * SECOND), "tcp_end": "none"}
    connections = [
        connection(number, client_product=name, close_text=name, close_code=320, close_initiator="server", **sides)
        for number, name in enumerate(names, 1)
    ]
    frames = [
        frame(number, number * SECOND, "client", "queue.declare", arguments={"queue": name, "ticket": 0})
        for number, name in enumerate(names, 1)
    ]
    flows = [
        {"flow_id": n, "queue": name, "publish_ts_ns": BEGIN, "deliver_ts_ns": BEGIN + n, "broker_latency_ns": n + 1}
        for n, name in enumerate(names)
    ]
    messages = [
        {"connection_id": 1, "operation": "deliver", "queue": name, "ts_ns": BEGIN + n * SECOND}
        for n, name in enumerate(names)
    ]
    tables = tables_of(spark, connections=connections, frames=frames, message_flows=flows, messages=messages)
    drawn = {
        "versions": plots.versions(tables), "ladder": plots.ladder(tables), "connections": plots.connections(tables),
        "rates": plots.rates(tables, every="1 second"), "backlog": plots.backlog(tables, every="1 second"),
        "latency": plots.latency(tables, by="queue"),
    }  # fmt: skip
    return {**drawn, "beside each other": drawn["versions"] | drawn["rates"]}
