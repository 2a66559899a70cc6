"""What a decode found, as tables of text: captures, connections, messages, errors that peers reported, and files.

Reads the written files through Arrow: groups are formed as the files stream by, so that a summary of a billion messages
needs no more memory than one of ten, and a small one no Spark job.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import acero
from pyarrow.dataset import Dataset

from jobs.console import table
from pipeline.units import duration, size

# A summary is read on one screen; the tables have the rest.
SHOWN = 20
TEXT_WIDTH = 60
# Reply codes of the classic versions and 0-10: 200 is success, errors begin with 3 (0-9-1, section 1.1 constants).
FIRST_ERROR = 300


def summary(captures: Sequence[Mapping[str, Any]], tables: Mapping[str, Dataset]) -> str:
    """Everything worth a glance, from the rows of table captures and the files of those tables that were written."""
    parts = [captures_found(captures)]
    if "connections" in tables:
        parts.append(connections_found(tables["connections"]))
    if "messages" in tables:
        parts.append(messages_found(tables["messages"]))
    parts.append(errors_found({name: tables[name] for name in ("connections", "channels") if name in tables}))
    counts = [(name, rows.count_rows()) for name, rows in tables.items()]
    parts.append(table("Tables written", ("table", "rows"), counts))
    return "\n".join(part for part in parts if part)


def captures_found(captures: Sequence[Mapping[str, Any]]) -> str:
    """One row a capture: what it is and what in it could not be used."""
    rows = [
        (
            short(row["capture_file"]),
            row["format"],
            size(max(row["byte_size"] or 0, 0)),
            row["packets"],
            row["first_ts"],
            spanned(row["first_ts"], row["last_ts"]),
            remarks(row),
        )
        for row in sorted(captures, key=lambda row: row["capture_file"])
    ]
    columns = ("file", "format", "size", "packets", "first packet (UTC)", "spans", "remarks")
    return table(f"Captures: {len(rows)}", columns, rows[:SHOWN]) + more(len(rows))


def spanned(first: datetime | None, last: datetime | None) -> str | None:
    """The time between two packets."""
    return None if first is None or last is None else duration(round((last - first).total_seconds() * 1e9))


def remarks(capture: Mapping[str, Any]) -> str:
    """What a reader should know before trusting the numbers."""
    notes = ["damaged, see below"] if capture["error"] else []
    if capture["truncated"]:
        notes.append("ends inside a packet")
    if capture["dropped"]:
        notes.append(f"{capture['dropped']} packets dropped while capturing")
    notes += [f"{count} {name}" for name, count in sorted(capture["skipped_packets"] or ())]
    return ", ".join(notes)


CONNECTION_COLUMNS = [
    *("client_ip", "client_port", "server_ip", "server_port", "version", "content", "vhost", "user", "client_name"),
    *("state", "client_frames", "server_frames", "messages_published", "messages_delivered"),
    *("opened_ts", "connection_id"),
]


def connections_found(connections: Dataset) -> str:
    """One row a connection: who spoke to whom, how far it came, how much it carried."""
    rows = connections.to_table(columns=CONNECTION_COLUMNS)
    first = pc.select_k_unstable(rows, SHOWN, [("opened_ts", "ascending"), ("connection_id", "ascending")])
    columns = (
        "client",
        "server",
        "version",
        "vhost",
        "user",
        "application",
        "state",
        "frames",
        "published",
        "delivered",
    )
    cells = [
        (
            endpoint(row["client_ip"], row["client_port"]),
            endpoint(row["server_ip"], row["server_port"]),
            row["version"] or row["content"],
            row["vhost"],
            row["user"],
            row["client_name"],
            row["state"],
            (row["client_frames"] or 0) + (row["server_frames"] or 0),
            row["messages_published"],
            row["messages_delivered"],
        )
        for row in rows.take(first).to_pylist()
    ]
    return table(f"Connections: {len(rows)}", columns, cells) + more(len(rows))


def messages_found(messages: Dataset) -> str:
    """Messages by the way they went and how they ended."""
    keys = ["operation", "outcome"]
    measures = [
        ("operation", "hash_count", pc.CountOptions(mode="all"), "messages"),
        ("body_seen", "hash_sum", None, "octets"),
        ("settle_latency_ns", "hash_approximate_median", None, "median_ns"),
        ("settle_latency_ns", "hash_max", None, "longest_ns"),
    ]
    group = acero.Declaration("aggregate", acero.AggregateNodeOptions(measures, keys=keys))
    rows = streamed(messages, [*keys, "body_seen", "settle_latency_ns"], group)
    cells = [
        (
            row["operation"],
            row["outcome"],
            row["messages"],
            size(row["octets"] or 0),
            duration(row["median_ns"]),
            duration(row["longest_ns"]),
        )
        for row in sorted(rows, key=lambda row: (row["operation"], row["outcome"] or ""))
    ]
    columns = ("operation", "outcome", "messages", "bodies", "settled after (median)", "(longest)")
    return table(f"Messages: {messages.count_rows()}", columns, cells)


def errors_found(closings: Mapping[str, Dataset]) -> str:
    """Reasons that peers gave for closing connections and channels, other than being done; the most frequent first."""
    keys = ["close_initiator", "close_code", "close_text"]
    errors = acero.Declaration("filter", acero.FilterNodeOptions(pc.field("close_code") >= FIRST_ERROR))
    group = acero.Declaration(
        "aggregate", acero.AggregateNodeOptions([("close_code", "hash_count", None, "times")], keys=keys)
    )
    cells = [
        (row["times"], name.removesuffix("s"), row["close_initiator"], row["close_code"], clipped(row["close_text"]))
        for name, rows in closings.items()
        for row in streamed(rows, keys, errors, group)
    ]
    cells.sort(key=lambda cell: (-cell[0], cell[3], cell[4]))
    return table("Closed with an error", ("times", "what", "by", "code", "text"), cells[:SHOWN]) + more(len(cells))


def streamed(rows: Dataset, columns: Sequence[str], *steps: acero.Declaration) -> list[dict[str, Any]]:
    """The rows that come out of `steps` over some columns of files, which are read as they are needed."""
    scan = acero.Declaration("scan", acero.ScanNodeOptions(rows, columns=list(columns)))
    project = acero.Declaration(
        "project", acero.ProjectNodeOptions([pc.field(name) for name in columns], list(columns))
    )
    found: pa.Table = acero.Declaration.from_sequence([scan, project, *steps]).to_table()
    return list(found.to_pylist())


def endpoint(ip: str | None, port: int | None) -> str | None:
    """An address with its port as it is written in URIs."""
    return None if ip is None else f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}"


def short(uri: str) -> str:
    """The last part of a capture's URI."""
    return clipped(uri.rstrip("/").rpartition("/")[2])


def clipped(text: str | None) -> str:
    """Text that fits a column."""
    text = text or ""
    return text if len(text) <= TEXT_WIDTH else f"{text[: TEXT_WIDTH - 3]}..."


def more(count: int) -> str:
    """A line for the rows that are not shown."""
    return f"  ... and {count - SHOWN} more\n" if count > SHOWN else ""
