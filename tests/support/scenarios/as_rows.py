"""A script as rows of tables messages and connections, past capture and decoder: many scripts cost one small job.

Only the columns that flows are made of; what RabbitMQ says of dead letters is in the headers.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

from pipeline.tables.dataframes import shaped
from scenarios import truth
from scenarios.script import PORT, Event, Script
from udfs.arrow.spark_schemas import TABLES
from udfs.pairing.schemas import MESSAGE_COLUMNS

PEERS = 1000  # numbers of connections that a script has for itself


def connection_id(script: Script, peer: int) -> int:
    return script.number * PEERS + peer


def tables(spark: SparkSession, scripts: Sequence[Script]) -> tuple[DataFrame, DataFrame]:
    """messages and connections of these scripts."""
    sent = [row for script in scripts for row in messages(script)]
    text = {"headers", "properties"}
    fields = [TABLES["messages"][name] for name in MESSAGE_COLUMNS]
    raw = StructType([StructField(field.name, StringType()) if field.name in text else field for field in fields])
    rows = spark.createDataFrame([tuple(row.get(name) for name in MESSAGE_COLUMNS) for row in sent], raw)
    parsed = rows.withColumns({name: F.parse_json(name) for name in text})
    opened = [row for script in scripts for row in connections(script)]
    names = ("connection_id", "version", "server_ip", "server_port", "vhost")
    raw = StructType([TABLES["connections"][name] for name in names])
    peers = spark.createDataFrame([tuple(row[name] for name in names) for row in opened], raw)
    return shaped(parsed, TABLES["messages"]), shaped(peers, TABLES["connections"])


def connections(script: Script) -> list[dict[str, Any]]:
    found = []
    for number, peer in enumerate(script.peers):
        vhost = peer.vhost if peer.version != "1.0" else f"vhost:{peer.vhost}"
        found.append(
            {
                "connection_id": connection_id(script, number), "version": peer.version, "vhost": vhost,
                "server_ip": script.server.partition(":")[0], "server_port": PORT,
            }
        )  # fmt: skip
    return found


def messages(script: Script) -> list[dict[str, Any]]:
    by_origin = {(row["peer"], row["ts_ns"], row["operation"]): row for row in truth.messages(script)}
    found = []
    for index, event in enumerate(script.events):
        row = by_origin.get((event.peer, event.at, event.kind))
        if row is None or event.message is None:
            continue
        found.append(
            {
                **row, "connection_id": connection_id(script, event.peer), "first_frame_no": index + 1,
                "first_ts_ns": event.at, "last_ts_ns": event.end, "link": event.consumer,
                "body_sha256": hashlib.sha256(event.message.body).hexdigest(), "headers": headers(event),
            }
        )  # fmt: skip
    return found


def headers(event: Event) -> str | None:
    """As JSON."""
    if not event.x_death:
        return None
    entries = [
        {"reason": d.reason, "queue": d.queue, "exchange": d.exchange, "routing-keys": [d.routing_key]}
        for d in event.x_death
    ]
    first = event.x_death[-1]
    death = {"exchange": first.exchange, "queue": first.queue, "reason": first.reason}
    return json.dumps({"x-death": entries, **{f"x-first-death-{name}": value for name, value in death.items()}})
