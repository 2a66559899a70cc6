"""Summary of a decode as text tables: captures, connections, messages, errors that peers reported, table sizes.

DuckDB counts in this process (`pipeline.explore.duckdb_tables`): memory does not grow with the number of messages, and
no Spark job is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from itertools import pairwise
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from jobs.terminal.console import table
from pipeline.output.formatting import duration, endpoint_text, size

if TYPE_CHECKING:
    from pipeline.explore.duckdb_tables import Session

Row = Mapping[str, Any]
Columns = Mapping[str, Callable[[Row], object]]  # heading -> value
# The summary fits on one screen; the tables have the rest.
MAX_ROWS = 20
TEXT_WIDTH = 60
DIFFERENCE = 10  # characters shown before and after where two texts begin to differ
# What connections carry, by `connections.content`.
CARRIED = {"amqp": "AMQP", "tls": "TLS", "foreign": "other protocols", "none": "without data"}
# How TCP ended a connection that was not closed -> what the column of its state says.
ENDS = {"rst": "reset", "fin": "ended"}
# Errors begin with 3, 200 is success (0-9-1, section 1.1 constants). A close of 1.0 has no code, its text is an error.
CLOSED_WITH_ERROR = "close_code >= 300 OR (close_code IS NULL AND close_text IS NOT NULL)"
MESSAGE_GROUPS = """
    SELECT operation, outcome, count(*) AS messages, sum(body_captured) AS body_bytes,
        approx_quantile(settle_latency_ns, 0.5) AS median_settle_ns, max(settle_latency_ns) AS longest_settle_ns
    FROM messages GROUP BY operation, outcome ORDER BY operation, coalesce(outcome, '')
"""
# Errors of links, with the sender of the first detach (or end) that gives the same reason on the channel.
LINK_ERRORS = """
    WITH reasons AS (
        SELECT connection_id, channel, arg_min(sender, frame_no) AS sender,
            CAST(arguments.error.condition AS VARCHAR)
                || coalesce(': ' || CAST(arguments.error.description AS VARCHAR), '') AS reason
        FROM methods WHERE name IN ('detach', 'end') AND arguments.error IS NOT NULL GROUP BY ALL)
    SELECT count(*) AS times, 'link' AS closed, if(error = 'basic.cancel by the server', 'server', sender) AS "by",
        NULL AS code, error AS text
    FROM links LEFT JOIN reasons
        ON reasons.connection_id = links.connection_id AND reasons.channel = links.channel AND reason = error
    WHERE error IS NOT NULL GROUP BY ALL
"""


def summarize(captures: Sequence[Row], session: Session, tables: Collection[str]) -> dict[str, Any]:
    """Facts for the summary, from the rows of table captures and the written `tables`. Only the first connections are
    included; facts of tables that were not written are left out."""
    facts: dict[str, Any] = {"captures": sorted(map(capture, captures), key=lambda each: str(each["capture_file"]))}
    if "connections" in tables:
        facts["connections"] = first_connections(session)
    if "messages" in tables:
        facts["messages"] = session.rows(MESSAGE_GROUPS)
    facts["closed_with_error"] = close_errors(session)
    facts["tables"] = {name: session.rows(f"SELECT count(*) AS n FROM {name}")[0]["n"] for name in tables}
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
    """A table without the columns in which no row has a value."""
    cells = {name: [value(row) for row in rows] for name, value in columns.items()}
    filled = {name: values for name, values in cells.items() if any(value not in (None, "") for value in values)}
    return table(title, list(filled), list(zip(*filled.values(), strict=True)))


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
    "duration": lambda row: time_span(row["first_ts"], row["last_ts"]),
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


def state_text(row: Mapping[str, Any]) -> str:
    """The state that a connection reached; of one that TCP ended before it was closed also how, and by whom."""
    if row["state"] == "closed" or row["tcp_end"] not in ENDS:
        return str(row["state"])
    by = f" by {row['tcp_end_by']}" if row["tcp_end_by"] else ""
    return f"{row['state']}, {ENDS[row['tcp_end']]}{by}"


# The ends of a connection, the state it reached, how much it carried.
CONNECTIONS: Columns = {
    "client": client_text,
    "server": lambda row: endpoint_text(row["server_ip"], row["server_port"]),
    "version": lambda row: row["version"] or row["content"],
    "vhost": itemgetter("vhost"),
    "user": itemgetter("user"),
    "application": application,
    "state": state_text,
    "frames": lambda row: (row["client_frames"] or 0) + (row["server_frames"] or 0),
    "published": itemgetter("messages_published"),
    "delivered": itemgetter("messages_delivered"),
}
MESSAGES: Columns = {
    "operation": itemgetter("operation"),
    "outcome": itemgetter("outcome"),
    "messages": itemgetter("messages"),
    "body bytes": lambda row: size(row["body_bytes"] or 0),
    "median settle time": lambda row: duration(row["median_settle_ns"]),
    "longest settle time": lambda row: duration(row["longest_settle_ns"]),
}
CONNECTION_COLUMNS = [
    *("client_ip", "client_port", "server_ip", "server_port", "version", "content", "vhost", "user", "client_name"),
    *("proxied_client_ip", "proxied_client_port", "client_process"),
    *("state", "tcp_end", "tcp_end_by", "client_frames", "server_frames"),
    *("messages_published", "messages_delivered"),
    *("opened_ts", "connection_id"),
]


def first_connections(session: Session) -> dict[str, Any]:
    """The number of connections, also by what they carry, and those that were opened first; content 'amqp' sorts before
    all others."""
    counts = session.rows("SELECT content, count(*) AS n FROM connections GROUP BY content")
    order = "content, opened_ts NULLS LAST, connection_id"
    columns = ", ".join(f'"{name}"' for name in CONNECTION_COLUMNS)
    return {
        "count": sum(row["n"] for row in counts),
        "by_content": {row["content"]: row["n"] for row in counts},
        "first": session.rows(f"SELECT {columns} FROM connections ORDER BY {order} LIMIT {MAX_ROWS}"),
    }


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
        why = "to read TLS, give its secrets with --keylog; connections.undecoded_reason says what was missing"
    elif by_content:
        why = "the connections carry other protocols or no data"
    elif filtered:
        why = f"--port, --host, --since or --until left out {filtered} of {packets} packets"
    else:
        why = f"there is no TCP connection in {packets} packets"
    return f"No AMQP was found: {why}.\n"


def close_errors(session: Session) -> list[dict[str, Any]]:
    """Errors with which peers closed connections, channels and links, the most frequent first. The links of a session
    that ended with an error have its text; they are left out."""
    rows = [
        row
        for name in ("connections", "channels")
        for row in session.rows(
            f"SELECT count(*) AS times, '{name.removesuffix('s')}' AS closed, close_initiator AS \"by\", "
            f"close_code AS code, close_text AS text FROM {name} WHERE {CLOSED_WITH_ERROR} GROUP BY ALL"
        )
    ]
    texts = {row["text"] for row in rows}
    rows += [row for row in session.rows(LINK_ERRORS) if row["text"] not in texts]
    return sorted(rows, key=lambda row: (-row["times"], row["code"] or 0, row["text"] or "", row["by"] or ""))


def errors_table(rows: Sequence[Row]) -> str:
    texts = distinguishable([row["text"] for row in rows[:MAX_ROWS]])
    cells = [
        (row["times"], row["closed"], row["by"], row["code"], text)
        for row, text in zip(rows[:MAX_ROWS], texts, strict=True)
    ]
    return table("Closed with an error", ("count", "what", "closed by", "code", "reason"), cells) + more(len(rows))


def distinguishable(texts: Sequence[str | None]) -> list[str]:
    """Texts shortened to the column. A text with the same beginning as another is cut in the middle, so that both
    remain distinguishable."""
    known = sorted({text or "" for text in texts})
    alike = dict.fromkeys(known, 0)  # length of the longest prefix shared with another text
    for one, other in pairwise(known):
        shared = next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), len(one))
        alike[one], alike[other] = max(alike[one], shared), max(alike[other], shared)
    return [clipped(text, alike[text or ""]) for text in texts]


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
