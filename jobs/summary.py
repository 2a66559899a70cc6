"""What a decode found, as tables of text: captures, connections, messages, errors that peers reported, and files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F

from jobs.console import duration, size, table

# A summary is read on one screen; the tables have the rest.
SHOWN = 20
NAME_WIDTH = 60


def summary(captures: Sequence[Row], tables: Mapping[str, DataFrame]) -> str:
    """Everything worth a glance, from the rows of table captures and those tables that were written."""
    parts = [captures_found(captures)]
    if "connections" in tables:
        parts.append(connections_found(tables["connections"]))
    if "messages" in tables:
        parts.append(messages_found(tables["messages"]))
    if "connections" in tables and "channels" in tables:
        parts.append(errors_found(tables["connections"], tables["channels"]))
    parts.append(files_written(tables))
    return "\n".join(part for part in parts if part)


def captures_found(captures: Sequence[Row]) -> str:
    """One row a capture: what it is and what in it could not be used."""
    rows = [
        (
            short(row.capture_file),
            row.format,
            size(row.byte_size) if row.byte_size is not None else None,
            row.packets,
            row.first_ts,
            f"{(row.last_ts - row.first_ts).total_seconds():.1f} s" if row.first_ts and row.last_ts else None,
            remarks(row),
        )
        for row in sorted(captures, key=lambda row: row.capture_file)
    ]
    columns = ("file", "format", "size", "packets", "first packet (UTC)", "spans", "remarks")
    return table(f"Captures: {len(rows)}", columns, rows[:SHOWN]) + more(len(rows))


def remarks(capture: Row) -> str:
    """What a reader should know before trusting the numbers."""
    notes = ["damaged, see below"] if capture.error else []
    if capture.truncated:
        notes.append("ends inside a packet")
    if capture.dropped:
        notes.append(f"{capture.dropped} packets dropped while capturing")
    notes += [f"{count} {name}" for name, count in sorted((capture.skipped_packets or {}).items())]
    return ", ".join(notes)


def connections_found(connections: DataFrame) -> str:
    """One row a connection: who spoke to whom, how far it came, how much it carried."""
    rows = connections.orderBy("opened_ts", "connection_id").limit(SHOWN).collect()
    columns = ("client", "server", "version", "vhost", "user", "product", "state", "frames", "published", "delivered")
    cells = [
        (
            endpoint(row.client_ip, row.client_port),
            endpoint(row.server_ip, row.server_port),
            row.version or row.content,
            row.vhost,
            row.user,
            row.client_product,
            row.state,
            (row.client_frames or 0) + (row.server_frames or 0),
            row.messages_published,
            row.messages_delivered,
        )
        for row in rows
    ]
    count = connections.count()
    return table(f"Connections: {count}", columns, cells) + more(count)


def messages_found(messages: DataFrame) -> str:
    """Messages by the way they went and how they ended."""
    groups = (
        messages.groupBy("operation", "outcome")
        .agg(
            F.count(F.lit(1)).alias("messages"),
            F.sum("body_seen").alias("octets"),
            F.percentile_approx("settle_latency_ns", 0.5).alias("median_ns"),
            F.max("settle_latency_ns").alias("longest_ns"),
        )
        .orderBy("operation", "outcome")
        .collect()
    )
    columns = ("operation", "outcome", "messages", "bodies", "settled after (median)", "(longest)")
    cells = [
        (
            row.operation,
            row.outcome,
            row.messages,
            size(row.octets or 0),
            duration(row.median_ns),
            duration(row.longest_ns),
        )
        for row in groups
    ]
    return table(f"Messages: {sum(row.messages for row in groups)}", columns, cells)


def errors_found(connections: DataFrame, channels: DataFrame) -> str:
    """Reasons that peers gave for closing, other than being done."""
    both = closings(connections, F.lit("connection")).unionByName(closings(channels, F.lit("channel")))
    rows = both.groupBy("what", "by", "code", "text").count().orderBy(F.desc("count"), "code", "text")
    cells = [(row["count"], row.what, row.by, row.code, clipped(row.text)) for row in rows.limit(SHOWN).collect()]
    return table("Closed with an error", ("times", "what", "by", "code", "text"), cells)


def closings(rows: DataFrame, what: Column) -> DataFrame:
    """The closings with an error among connections or channels: (what, by, code, text)."""
    return rows.filter("close_code >= 300").select(
        what.alias("what"),
        F.col("close_initiator").alias("by"),
        F.col("close_code").alias("code"),
        F.col("close_text").alias("text"),
    )


def files_written(tables: Mapping[str, DataFrame]) -> str:
    """One row a table written, with its number of rows; counted in one job, from the Parquet footers."""
    counts: DataFrame | None = None
    for name, rows in tables.items():
        one = rows.agg(F.count(F.lit(1)).alias("rows")).select(F.lit(name).alias("name"), "rows")
        counts = one if counts is None else counts.union(one)
    found = {row["name"]: row["rows"] for row in counts.collect()} if counts is not None else {}
    return table("Tables written", ("table", "rows"), [(name, found[name]) for name in tables])


def endpoint(ip: str | None, port: int | None) -> str | None:
    """An address with its port as it is written in URIs."""
    return None if ip is None else f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}"


def short(uri: str) -> str:
    """The last part of a capture's URI."""
    return clipped(uri.rstrip("/").rpartition("/")[2])


def clipped(text: str | None) -> str:
    """Text that fits a column."""
    text = text or ""
    return text if len(text) <= NAME_WIDTH else f"{text[: NAME_WIDTH - 3]}..."


def more(count: int) -> str:
    """A line for the rows that are not shown."""
    return f"  ... and {count - SHOWN} more\n" if count > SHOWN else ""
