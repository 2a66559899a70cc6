"""Small tables written by hand, as a decode would write them, and findings about them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from tables_support import arrow_rows

from codec.tables import ALL_TABLES, FINDINGS, STRING, TABLES, VARIANT, table_of
from codec.variant.python_values import decode
from pipeline.audit.catalogue import catalogue
from udfs.arrow.spark_schemas import spark_schema
from udfs.arrow.types import arrow_schema
from udfs.sink.parquet import ParquetFiles

BEGIN = datetime(2026, 11, 20, 2, 0, 0)
END = datetime(2026, 11, 20, 2, 1, 20)
BEGIN_NS = 1_795_140_000_000_000_000  # date -u -d '2026-11-20 02:00:00' +%s
HOSTILE_QUEUE = "<script>alert(1)</script>\u202egnp"
MS = 1_000_000


def connection(number: int, product: str | None, **columns: Any) -> dict[str, Any]:
    return {
        "connection_id": number, "client_ip": "10.0.0.7", "client_port": 50000 + number, "server_ip": "10.0.0.2",
        "server_port": 5672, "content": "amqp", "version": "0-9-1", "version_known": True, "state": "closed",
        "tls": {"mode": "none"}, "vhost": "/", "user": "guest", "mechanism": "PLAIN", "client_product": product,
        "client_version": "1.4", "server_product": "RabbitMQ", "frame_max": 131072, "client_frame_max": 131072,
        "server_frame_max": 0, "heartbeat_s": 60, "client_heartbeat_s": 60, "server_heartbeat_s": 60,
        "tcp_end": "fin", "tcp_end_by": "client", "client_max_silence_ns": 30 * 10**9,
        "server_max_silence_ns": 30 * 10**9, "messages_published": 10, "messages_delivered": 4, "opened_ts": BEGIN,
        "closed_ts": END, "limits": [], **columns,
    }  # fmt: skip


def message(number: int, operation: str, outcome: str, latency_ms: int | None = None, **columns: Any) -> dict[str, Any]:
    at = BEGIN_NS + number * 10**9
    return {
        "connection_id": 1, "channel": 1, "channel_incarnation": 1, "first_frame_no": number, "operation": operation,
        "outcome": outcome, "ts_ns": at, "ts": BEGIN, "queue": HOSTILE_QUEUE, "exchange": "", "routing_key": "orders",
        "body_captured": 100, "redelivered": False,
        "settle_latency_ns": None if latency_ms is None else latency_ms * MS, **columns,
    }  # fmt: skip


ROWS: dict[str, list[dict[str, Any]]] = {
    "captures": [
        {"capture_file": "file:///c/a.pcap", "format": "pcap", "packets": 100, "byte_size": 9000, "first_ts": BEGIN,
         "last_ts": END, "dropped": 0, "truncated": False, "skipped_packets": {"udp": 3, "arp": 12}},
        {"capture_file": "file:///c/b.pcap", "format": "pcap", "packets": 7, "byte_size": 700, "first_ts": BEGIN,
         "last_ts": BEGIN, "dropped": 2, "truncated": True, "skipped_packets": {}, "error": "ends inside a record"},
    ],
    "streams": [
        {"connection_id": number, "sender": sender, "payload_bytes": 1000, "frame_bytes": 900, "skipped_bytes": 100,
         "tls_bytes": 0, "foreign_bytes": 0, "tail_bytes": 0, "missing_bytes": 50, "retransmitted_bytes": 0}
        for number in (1, 2, 3) for sender in ("client", "server")
    ],
    "connections": [
        connection(1, "pika"),
        connection(2, "pika", heartbeat_s=10, client_max_silence_ns=21 * 10**9, limits=["table_depth"]),
        connection(3, None, version="1.0", user=None, mechanism="ANONYMOUS", tls={"mode": "implicit",
                   "tls_version": "1.2"}, close_code=None, close_text="amqp:not-found", close_initiator="server"),
    ],
    "channels": [
        {"connection_id": 1, "channel": 1, "channel_incarnation": 1, "mode": "confirm", "unsettled": 5, "published": 10,
         "delivered": 4, "prefetch_count": 10},
        {"connection_id": 2, "channel": 1, "channel_incarnation": 1, "unsettled": 0, "close_code": 404, "close_text":
         "NOT_FOUND", "close_initiator": "server"},
        {"connection_id": 2, "channel": 1, "channel_incarnation": 2, "unsettled": 0, "close_code": 200,
         "close_text": "bye", "close_initiator": "client"},
    ],
    "links": [],
    "message_flows": [],
    "methods": [
        {"connection_id": 1, "frame_no": number, "name": "queue.declare", "sender": "client", "channel": 1,
         "reply_latency_ns": number * MS} for number in (1, 2, 3)
    ] + [{"connection_id": 1, "frame_no": 9, "name": "basic.return", "sender": "server", "channel": 1,
          "reply_code": 312, "reply_text": "NO_ROUTE", "exchange": "orders"}],
    "messages": [
        *(message(number, "publish", "confirmed", number) for number in range(1, 11)),
        message(20, "deliver", "acked", 40), message(21, "deliver", "unsettled"), message(79, "deliver", "unsettled"),
    ],
    "frames": [
        {"connection_id": 1, "frame_no": 1, "status": "ok", "size": 20, "frame_type": "method"},
        {"connection_id": 1, "frame_no": 2, "status": "malformed", "size": 8, "frame_type": "method",
         "error": "octets are left"},
    ],
}  # fmt: skip


def finding(rule_id: str, severity: str, number: int = 1, **columns: Any) -> dict[str, Any]:
    return {
        "rule_id": rule_id, "severity": severity, "scope": "connection", "category": "naming", "offender": "client",
        "connection_id": number, "channel": 1, "channel_incarnation": 1, "frame_no": 5, "packet_no": 17, "ts": BEGIN,
        "capture_file": "file:///c/a.pcap", "summary": f"{rule_id} is broken.", "reference": "section 1",
        "occurrences": 1, **columns,
    }  # fmt: skip


FOUND = [
    finding("NM-03", "violation", evidence={"queue": HOSTILE_QUEUE, "observed": "amq."}, occurrences=3),
    finding("NM-03", "warning", 2, evidence={"queue": "amq.gen-L4UN2ZLAFhHoeMkDYyv3mg"},
            reservation="bytes are missing"),
    *(finding("SEC-01", "warning", number, category="security", evidence={}) for number in (1, 2, 3)),
    finding("CAP-01", "info", 3, evidence={"observed": 50}),
]  # fmt: skip


def found(spark: SparkSession) -> DataFrame:
    """The findings."""
    return arrow_rows(spark, FOUND, spark_schema(FINDINGS))


def counted(table: pa.Table) -> Counter[str]:
    """The rows of table findings, in any order."""
    assert table.schema.names == list(FINDINGS.names)
    rows = [{**row, "evidence": decode(**row["evidence"])} for row in table.to_pylist()]
    return Counter(json.dumps(row, sort_keys=True, default=str) for row in rows)


def write_table(directory: Path, name: str, rows: Iterable[Mapping[str, Any]]) -> None:
    """A table below `directory`, as DuckDB writes it: null where a row does not name a column."""
    schema = ALL_TABLES[name]
    variants = [column.name for column in schema if column.type == VARIANT]
    raw = table_of(name, *((c.name, STRING if c.name in variants else c.type) for c in schema))
    given = [
        {
            column: json.dumps(row[column]) if column in variants and column in row else row.get(column)
            for column in schema.names
        }
        for row in rows
    ]
    written = pa.Table.from_pylist(given, arrow_schema(raw))  # noqa: F841
    columns = ", ".join(f"{c}::JSON::VARIANT AS {c}" if c in variants else f'"{c}"' for c in schema.names)
    (directory / name).mkdir(parents=True)
    duckdb.sql(f"COPY (SELECT {columns} FROM written) TO '{directory / name / 'part-0.parquet'}'")


def write_tables(directory: Path, tables: Mapping[str, Iterable[Mapping[str, Any]]] = ROWS) -> Path:
    """The tables under `directory`; those without rows are empty."""
    for name in TABLES:
        write_table(directory, name, tables.get(name, ()))
    return directory


def only(folder: Path, *groups: str) -> Path:
    """Settings for an audit with only the rules of these groups: an audit with all of them takes 20 s of CPU."""
    path = folder / "audit.toml"
    others = sorted({rule.partition("-")[0] for rule in catalogue()} - {*groups})
    path.write_text(f"disable = {others}\n")
    return path


def by_connection(files: Mapping[str, Sequence[str]], folder: Path, parts: int) -> dict[str, list[str]]:
    """Files of tables written anew: the rows of a connection are in one of `parts` files, others in the first."""
    spread: dict[str, list[str]] = {}
    for name, paths in files.items():
        rows = pa.concat_tables([pq.read_table(path) for path in paths])
        spread[name] = []
        for part in range(parts):
            of_part = rows.slice(0, None if part == 0 else 0)
            if "connection_id" in rows.schema.names:
                of_part = rows.filter(
                    pa.array([row % parts == part for row in rows["connection_id"].to_pylist()], pa.bool_())
                )
            file = ParquetFiles(pyarrow.fs.LocalFileSystem(), str(folder / name / str(part)), TABLES[name])
            for batch in of_part.to_batches():
                file.write(batch)
            file.close(arrow_schema(TABLES[name]))
            spread[name] += sorted(map(str, (folder / name / str(part)).iterdir()))
    return spread
