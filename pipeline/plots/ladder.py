"""The ladder: a sequence diagram of frames.

Lifelines of clients and their brokers, time on the left, an arrow per method with its key arguments, the packet number
for Wireshark on the right. Arrows are level, because a capture has one time per frame.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from pipeline.plots.chart import NAME_CHARACTERS, empty, titled
from pipeline.plots.ladder_drawing import Lifeline, characters, drawing
from pipeline.plots.rows import GIVEN_NAME, filtered, moment, omitted, require_positive, subtitle
from pipeline.plots.steps import Step, add_silences, fold_repeats, steps
from pipeline.report.text import plain_text

if TYPE_CHECKING:
    from pipeline import Tables

# Connections in one ladder: more lifelines are unreadable.
CONNECTIONS = 3
# Frames that are fetched, before folding.
FRAMES = 2_000
# Arguments larger than this are not fetched, characters of JSON: only the name is shown.
ARGUMENTS = 16 * 1024
SILENCE_NS = 1_000_000_000
FRAME_COLUMNS = (
    "connection_id", "frame_no", "sender", "ts_ns", "packet_no", "size", "version", "channel", "frame_type", "name",
    "status", "content_frame_no", "payload_size", "body_size",
)  # fmt: skip
CONNECTION_COLUMNS = (
    "connection_id", "version", "client_ip", "client_port", "server_ip", "server_port", "client_product",
    "client_version", "client_container_id", "server_product", "server_version", "server_container_id", "tcp_end",
    "tcp_end_by",
)  # fmt: skip
TCP_ENDS = {"fin": "TCP FIN", "rst": "TCP RST"}


def ladder(
    tables: Tables,
    where: str | None = None,
    *,
    most: int = 60,
    silence_ns: int = SILENCE_NS,
    fold: bool = True,
    title: str | None = None,
) -> Any:
    """A sequence diagram of the frames for which `where` (SQL over table frames) is true, an `altair.LayerChart`.

    The first CONNECTIONS connections and `most` levels are drawn. Content headers and bodies are drawn with their
    method. `fold`: silence of `silence_ns` or longer takes one level, and repeated patterns are folded. Three Spark
    jobs. Raises ValueError for a `most` less than 1.
    """
    require_positive(most)
    rows = filtered(tables, "frames", where)
    each = rows.groupBy("connection_id").agg(F.min("ts_ns").alias("begun"), F.count("*").alias("frames"))
    everywhere = Window.partitionBy(F.lit(1))
    totals = (F.count("*").over(everywhere).alias("connections"), F.sum("frames").over(everywhere).alias("in_all"))
    first = each.select("*", *totals).orderBy("begun", "connection_id").limit(CONNECTIONS).collect()
    if not first:
        return empty(title or "Ladder", "no frame fits the condition")
    ids = [row["connection_id"] for row in first]
    facts = tables.connections.filter(F.col("connection_id").isin(ids)).select(
        *CONNECTION_COLUMNS,
        (F.unix_micros("closed_ts") * 1000).alias("last_ns"),
        F.expr(GIVEN_NAME).alias("given_name"),
    )
    connections = {row["connection_id"]: row.asDict() for row in facts.collect()}
    frames = [row.asDict() for row in to_fold(rows.filter(F.col("connection_id").isin(ids))).collect()]
    columns = lifelines([connections[one] for one in ids if one in connections])
    levels = steps(frames, characters(len(columns)))
    if len(frames) == sum(row["frames"] for row in first):
        levels = sorted([*levels, *tcp_ends(levels, connections)], key=lambda step: step.ts_ns)
    levels = fold_repeats(add_silences(levels, silence_ns)) if fold else levels
    drawn = levels[:most]
    lines = subtitle(
        f"0 s is {moment(drawn[0].ts_ns)}",
        omitted(len(ids), first[0]["connections"], "connections", "those that began first"),
        omitted(sum(step.frames for step in drawn), first[0]["in_all"], "frames", "the earliest"),
    )
    versions = " and ".join(sorted({str(row["version"]) for row in frames if row["version"]}))
    servers = {one: endpoint(facts, "server") for one, facts in connections.items()}
    return titled(drawing(drawn, columns, servers), title or f"AMQP {versions}".strip(), lines)


def to_fold(rows: DataFrame) -> DataFrame:
    """The rows to fold, earliest first, with their arguments as JSON."""
    arguments = F.to_json("arguments")
    short = F.when(F.length(arguments) <= ARGUMENTS, arguments).alias("arguments")
    return rows.select(*FRAME_COLUMNS, short).orderBy("ts_ns", "connection_id", "frame_no").limit(FRAMES)


def tcp_ends(levels: Sequence[Step], connections: Mapping[int, Mapping[str, Any]]) -> list[Step]:
    """How TCP ended each connection, at the time of its last packet. That may be later than the FIN, so these steps
    have no packet number."""
    last = {step.connection_id: step for step in levels}
    return [
        Step(
            ts_ns=max(facts["last_ns"], last[one].ts_ns),
            label=TCP_ENDS[facts["tcp_end"]],
            connection_id=one,
            sender=facts["tcp_end_by"],
            kind="error" if facts["tcp_end"] == "rst" else "connection, channel",
            frames=0,
            name="TCP",
        )
        for one, facts in connections.items()
        if one in last and facts["tcp_end"] in TCP_ENDS and facts["tcp_end_by"]
    ]


def lifelines(connections: Sequence[Mapping[str, Any]]) -> dict[Lifeline, tuple[str, str]]:
    """Lifeline -> (name, address), from left to right: a client, its broker, the other clients."""
    found: dict[Lifeline, tuple[str, str]] = {}
    for facts in connections:
        for side in ("client", "server"):
            address = endpoint(facts, side)
            key = (side, facts["connection_id"] if side == "client" else address)
            found.setdefault(key, (name_of(facts, side), address))
    return found


def endpoint(facts: Mapping[str, Any], side: str) -> str:
    """Address and port of one side."""
    return f"{facts[f'{side}_ip']}:{facts[f'{side}_port']}"


def name_of(facts: Mapping[str, Any], side: str) -> str:
    """The name of one side: connection name, product and version, or 1.0's container id."""
    product = " ".join(str(part) for part in (facts[f"{side}_product"], facts[f"{side}_version"]) if part)
    given = facts["given_name"] if side == "client" else None
    return plain_text(given or product or facts[f"{side}_container_id"] or side, NAME_CHARACTERS)
