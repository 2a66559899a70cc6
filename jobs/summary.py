"""Summary of a decode as text tables: captures, connections, messages, errors that peers reported, table sizes.

Reads the written files through Arrow and aggregates them while streaming: memory does not grow with the number of
messages, and no Spark job is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from itertools import pairwise
from operator import itemgetter
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import acero
from pyarrow.dataset import Dataset

from jobs.console import table
from pipeline.text import duration, endpoint_text, size

Row = Mapping[str, Any]
Columns = Mapping[str, Callable[[Row], object]]  # heading -> value
# The summary fits on one screen; the tables have the rest.
MAX_ROWS = 20
TEXT_WIDTH = 60
DIFFERENCE = 10  # characters shown before and after the place where two texts begin to differ
CLOSED = ("connections", "channels", "links")
# What connections carry, by `connections.content`.
CARRIED = {"amqp": "AMQP", "tls": "TLS", "foreign": "other protocols", "none": "without data"}
# Reply codes of the classic versions and 0-10: 200 is success, errors begin with 3 (0-9-1, section 1.1 constants).
FIRST_ERROR = 300
# A close of 1.0 has no code; its text is that of an error.
CLOSED_WITH_ERROR = (pc.field("close_code") >= FIRST_ERROR) | (
    pc.field("close_code").is_null() & pc.field("close_text").is_valid()
)


def summarize(captures: Sequence[Row], tables: Mapping[str, Dataset]) -> dict[str, Any]:
    """Facts for the summary, from the rows of table captures and the files of the written tables. Only the first
    connections are included; facts of tables that were not written are left out."""
    facts: dict[str, Any] = {"captures": sorted(map(capture, captures), key=lambda each: str(each["capture_file"]))}
    if "connections" in tables:
        facts["connections"] = first_connections(tables["connections"])
    if "messages" in tables:
        facts["messages"] = message_groups(tables["messages"])
    facts["closed_with_error"] = close_errors({name: tables[name] for name in CLOSED if name in tables})
    facts["tables"] = {name: rows.count_rows() for name, rows in tables.items()}
    return facts


def summary_text(facts: Mapping[str, Any]) -> str:
    captures = facts["captures"]
    parts = [listed(f"Captures: {len(captures)}", CAPTURES, captures[:MAX_ROWS]) + more(len(captures))]
    if "connections" in facts:
        parts.append(connections_table(facts["connections"]))
        parts.append(without_amqp(captures, facts["connections"]["by_content"]))
    if "messages" in facts:
        groups = facts["messages"]
        parts.append(listed(f"Messages: {sum(row['messages'] for row in groups)}", MESSAGES, groups))
    parts.append(errors_table(facts["closed_with_error"]))
    parts.append(table("Tables written", ("table", "rows"), list(facts["tables"].items())))
    return "\n".join(part for part in parts if part)


def capture(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of table captures, with its map column as a dict."""
    return {**row, "skipped_packets": dict(row["skipped_packets"] or ())}


def listed(title: str, columns: Columns, rows: Sequence[Row]) -> str:
    return table(title, list(columns), [[value(row) for value in columns.values()] for row in rows])


def time_span(first: datetime | None, last: datetime | None) -> str | None:
    return None if first is None or last is None else duration(round((last - first).total_seconds() * 1e9))


def remarks(capture: Mapping[str, Any]) -> str:
    """What reduces the trust in the numbers: damage, truncation, drops, skipped packets."""
    notes = []
    if capture["error"]:
        notes.append("not read, see below" if capture["format"] is None else "damaged, see below")
    if capture["truncated"]:
        notes.append("ends inside a packet")
    if capture["dropped"]:
        notes.append(f"{capture['dropped']} packets dropped while capturing")
    notes += [f"{count} {name}" for name, count in sorted(capture["skipped_packets"].items())]
    return ", ".join(notes)


# What a capture is, and what in it could not be used.
CAPTURES: Columns = {
    "file": lambda row: short(row["capture_file"]),
    "format": itemgetter("format"),
    "size": lambda row: size(max(row["byte_size"] or 0, 0)),
    "packets": itemgetter("packets"),
    "first packet (UTC)": itemgetter("first_ts"),
    "spans": lambda row: time_span(row["first_ts"], row["last_ts"]),
    "remarks": remarks,
}


def client_text(row: Mapping[str, Any]) -> str:
    """The client of a connection: that of the header of the PROXY protocol, if there is one."""
    if row["proxied_client_ip"] is not None:
        return endpoint_text(row["proxied_client_ip"], row["proxied_client_port"])
    return endpoint_text(row["client_ip"], row["client_port"])


def application(row: Mapping[str, Any]) -> str | None:
    """The client's name of itself, and the pod, container or program that it runs in, if the capture says so."""
    process = row["client_process"] or {}
    where = process.get("pod_name") or process.get("container_name") or process.get("name")
    name: str | None = row["client_name"]
    return f"{name} ({where})" if name and where and where != name else name or where


# The ends of a connection, the state it reached, how much it carried.
CONNECTIONS: Columns = {
    "client": client_text,
    "server": lambda row: endpoint_text(row["server_ip"], row["server_port"]),
    "version": lambda row: row["version"] or row["content"],
    "vhost": itemgetter("vhost"),
    "user": itemgetter("user"),
    "application": application,
    "state": itemgetter("state"),
    "frames": lambda row: (row["client_frames"] or 0) + (row["server_frames"] or 0),
    "published": itemgetter("messages_published"),
    "delivered": itemgetter("messages_delivered"),
}
MESSAGES: Columns = {
    "operation": itemgetter("operation"),
    "outcome": itemgetter("outcome"),
    "messages": itemgetter("messages"),
    "bodies": lambda row: size(row["body_bytes"] or 0),
    "settled after (median)": lambda row: duration(row["median_settle_ns"]),
    "(longest)": lambda row: duration(row["longest_settle_ns"]),
}
CONNECTION_COLUMNS = [
    *("client_ip", "client_port", "server_ip", "server_port", "version", "content", "vhost", "user", "client_name"),
    *("proxied_client_ip", "proxied_client_port", "client_process"),
    *("state", "client_frames", "server_frames", "messages_published", "messages_delivered"),
    *("opened_ts", "connection_id"),
]


def first_connections(connections: Dataset) -> dict[str, Any]:
    """The number of connections, also by what they carry, and the first of them: those with AMQP before others."""
    keys = ("content", "opened_ts", "connection_id")
    first = pa.table({name: pa.array([], connections.schema.field(name).type) for name in keys})
    for batch in connections.to_batches(columns=list(keys)):
        first = earliest(pa.concat_tables([first, pa.Table.from_batches([batch])]))
    rows = connections.to_table(CONNECTION_COLUMNS, pc.field("connection_id").isin(first["connection_id"]))
    counts = grouped(connections, ["content"], [("content", "hash_count", None, "connections")])
    return {
        "count": connections.count_rows(),
        "by_content": {row["content"]: row["connections"] for row in counts},
        "first": earliest(rows).to_pylist(),
    }


def earliest(connections: pa.Table) -> pa.Table:
    """The connections that were opened first, at most MAX_ROWS; content 'amqp' sorts before all others."""
    order = [("content", "ascending"), ("opened_ts", "ascending"), ("connection_id", "ascending")]
    return connections.take(pc.select_k_unstable(connections, MAX_ROWS, order))


def connections_table(connections: Mapping[str, Any]) -> str:
    count, by_content = connections["count"], connections["by_content"]
    parts = ", ".join(f"{by_content[name]} {what}" for name, what in CARRIED.items() if name in by_content)
    title = f"Connections: {count}" if by_content.get("amqp") == count else f"Connections: {count} ({parts})"
    return listed(title, CONNECTIONS, connections["first"]) + more(count)


def without_amqp(captures: Sequence[Row], by_content: Mapping[str, int]) -> str:
    """Why there may be no AMQP; empty if there is some."""
    if "amqp" in by_content:
        return ""
    packets = sum(capture["packets"] or 0 for capture in captures)
    filtered = sum(capture["skipped_packets"].get("filtered", 0) for capture in captures)
    if "tls" in by_content:
        why = "to read TLS, give its secrets with --keylog; connections.unread_because says what was missing"
    elif by_content:
        why = "the connections carry other protocols or no data"
    elif filtered:
        why = f"--port, --host, --since or --until left out {filtered} of {packets} packets"
    else:
        why = f"there is no TCP connection in {packets} packets"
    return f"No AMQP was found: {why}.\n"


def message_groups(messages: Dataset) -> list[dict[str, Any]]:
    keys = ["operation", "outcome"]
    measures = [
        ("operation", "hash_count", pc.CountOptions(mode="all"), "messages"),
        ("body_seen", "hash_sum", None, "body_bytes"),
        ("settle_latency_ns", "hash_approximate_median", None, "median_settle_ns"),
        ("settle_latency_ns", "hash_max", None, "longest_settle_ns"),
    ]
    return sorted(grouped(messages, keys, measures), key=lambda row: (row["operation"], row["outcome"] or ""))


def close_errors(tables: Mapping[str, Dataset]) -> list[dict[str, Any]]:
    """Errors with which peers closed connections, channels and links, the most frequent first. The links of a session
    that ended with an error have its text; they are left out."""
    times = [("connection_id", "hash_count", pc.CountOptions(mode="all"), "times")]
    rows = [
        {
            "times": row["times"],
            "closed": name.removesuffix("s"),
            "by": row["close_initiator"],
            "code": row["close_code"],
            "text": row["close_text"],
        }
        for name, table in tables.items()
        if name != "links"
        for row in grouped(table, ["close_initiator", "close_code", "close_text"], times, CLOSED_WITH_ERROR)
    ]
    if "links" in tables:
        texts = {row["text"] for row in rows}
        rows += [
            {"times": row["times"], "closed": "link", "by": None, "code": None, "text": row["error"]}
            for row in grouped(tables["links"], ["error"], times, pc.field("error").is_valid())
            if row["error"] not in texts
        ]
    return sorted(rows, key=lambda row: (-row["times"], row["code"] or 0, row["text"] or ""))


def errors_table(rows: Sequence[Row]) -> str:
    texts = distinguishable([row["text"] for row in rows[:MAX_ROWS]])
    cells = [
        (row["times"], row["closed"], row["by"], row["code"], text)
        for row, text in zip(rows[:MAX_ROWS], texts, strict=True)
    ]
    return table("Closed with an error", ("times", "what", "by", "code", "text"), cells) + more(len(rows))


def distinguishable(texts: Sequence[str | None]) -> list[str]:
    """Texts shortened to the column. A text with the same beginning as another is cut in the middle, so that both
    remain distinguishable."""
    known = sorted({text or "" for text in texts})
    alike = dict.fromkeys(known, 0)  # length of the longest prefix shared with another text
    for one, other in pairwise(known):
        shared = next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), len(one))
        alike[one], alike[other] = max(alike[one], shared), max(alike[other], shared)
    return [clipped(text, alike[text or ""]) for text in texts]


def grouped(
    rows: Dataset, keys: list[str], measures: Sequence[tuple[Any, ...]], where: pc.Expression | None = None
) -> list[dict[str, Any]]:
    """The measures (column, function, its options, name) of each group of rows with equal keys, of those `where` this
    is true; streaming."""
    columns = list(dict.fromkeys([*keys, *(column for column, *_ in measures)]))
    plan = [
        acero.Declaration("scan", acero.ScanNodeOptions(rows, columns=columns)),
        acero.Declaration("project", acero.ProjectNodeOptions([pc.field(name) for name in columns], columns)),
        *([] if where is None else [acero.Declaration("filter", acero.FilterNodeOptions(where))]),
        acero.Declaration("aggregate", acero.AggregateNodeOptions(measures, keys=keys)),
    ]
    groups: list[dict[str, Any]] = acero.Declaration.from_sequence(plan).to_table().to_pylist()
    return groups


def short(uri: str) -> str:
    """The last part of a capture's URI."""
    return clipped(uri.rstrip("/").rpartition("/")[2])


def clipped(text: str | None, alike: int = 0) -> str:
    """Text shortened to the column, keeping what follows its first `alike` characters visible."""
    text = text or ""
    if len(text) <= TEXT_WIDTH:
        return text
    if alike < TEXT_WIDTH - 3 - DIFFERENCE:
        return f"{text[: TEXT_WIDTH - 3]}..."
    begin = text[: TEXT_WIDTH // 3]
    rest = text[alike - DIFFERENCE :]
    room = TEXT_WIDTH - len(begin) - 3
    return f"{begin}...{rest}" if len(rest) <= room else f"{begin}...{rest[: room - 3]}..."


def more(count: int) -> str:
    """A line that counts the rows not shown; empty if all are shown."""
    return f"  ... and {count - MAX_ROWS} more\n" if count > MAX_ROWS else ""
