"""The ladder: a sequence diagram of frames.

Lifelines of clients and their brokers, time on the left, an arrow per method with its key arguments, the packet number
for Wireshark on the right. Arrows are level, because a capture has one time per frame. All positions are in pixels.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

import altair as alt
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from pipeline.output.formatting import endpoint_text, plain_text
from pipeline.output.theme import LIGHT
from pipeline.plots import chart
from pipeline.plots.steps import KINDS, Step, add_silences, fold_repeats, steps

if TYPE_CHECKING:
    from pipeline import Tables
    from pipeline.explain import Answer
    from pipeline.explore.duckdb_tables import Session


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
# Of the connection of an answer: so many frames from its beginning, before the proof, and after it.
FIRST, BEFORE, AFTER = 20, 30, 10
OMITTED = "frames that are not shown"


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
    chart.require_positive(most)
    rows = chart.filtered(tables, "frames", where)
    each = rows.groupBy("connection_id").agg(F.min("ts_ns").alias("begun"), F.count("*").alias("frames"))
    everywhere = Window.partitionBy(F.lit(1))
    totals = (F.count("*").over(everywhere).alias("connections"), F.sum("frames").over(everywhere).alias("in_all"))
    first = each.select("*", *totals).orderBy("begun", "connection_id").limit(CONNECTIONS).collect()
    if not first:
        return chart.empty(title or "Ladder", "no frame fits the condition")
    ids = [row["connection_id"] for row in first]
    facts = tables.connections.filter(F.col("connection_id").isin(ids)).select(
        *CONNECTION_COLUMNS,
        (F.unix_micros("closed_ts") * 1000).alias("last_ns"),
        F.expr(chart.GIVEN_NAME).alias("given_name"),
    )
    connections = {row["connection_id"]: row.asDict() for row in facts.collect()}
    frames = [row.asDict() for row in to_fold(rows.filter(F.col("connection_id").isin(ids))).collect()]
    columns = lifelines([connections[one] for one in ids if one in connections])
    levels = steps(frames, characters(len(columns)))
    if len(frames) == sum(row["frames"] for row in first):
        levels = sorted([*levels, *tcp_ends(levels, connections)], key=lambda step: step.ts_ns)
    levels = fold_repeats(add_silences(levels, silence_ns)) if fold else levels
    drawn = levels[:most]
    lines = (
        f"0 s is {chart.moment(drawn[0].ts_ns)}",
        chart.omitted(len(ids), first[0]["connections"], "connections", "those that began first"),
        chart.omitted(sum(step.frames for step in drawn), first[0]["in_all"], "frames", "the earliest"),
    )
    versions = " and ".join(sorted({str(row["version"]) for row in frames if row["version"]}))
    servers = {one: endpoint_text(facts["server_ip"], facts["server_port"]) for one, facts in connections.items()}
    return chart.titled(drawing(drawn, columns, servers), title or f"AMQP {versions}".strip(), *lines)


def ladder_of(tables: Session | str | os.PathLike[str], answer: Answer, *, silence_ns: int = SILENCE_NS) -> Any:
    """A sequence diagram of what an answer of `explain` is about: the first frames of its connection, and those around
    the proof; an `altair.LayerChart`. `tables`: their directory, or a session. Needs neither Spark nor Java. Raises
    ValueError for an answer about no connection."""
    if answer.connection_id is None:
        raise ValueError(f"nothing to draw: {answer.subject} is no connection")
    if isinstance(tables, str | os.PathLike):
        from pipeline.explore.duckdb_tables import connect

        with connect(os.fspath(tables)) as session:
            return ladder_of(session, answer, silence_ns=silence_ns)
    of = f"FROM {{}} WHERE connection_id = {answer.connection_id}"
    names = ", ".join(column for column in CONNECTION_COLUMNS if column != "connection_id")
    (facts,) = tables.rows(
        f"SELECT {names}, epoch_us(closed_ts) * 1000 AS last_ns, client_name AS given_name {of.format('connections')}"
    )
    (total,) = tables.rows(f"SELECT count(*) AS frames, max(frame_no) AS last {of.format('frames')}")
    if not total["frames"]:
        return chart.empty("Ladder", "this connection has no frames")
    proof = answer.frame_no or total["last"]
    frames = tables.rows(
        f"SELECT {', '.join(FRAME_COLUMNS)}, CASE WHEN length(arguments::JSON::VARCHAR) <= {ARGUMENTS} "
        f"THEN arguments::JSON::VARCHAR END AS arguments "
        f"{of.format('frames')} AND (frame_no <= {FIRST} OR frame_no BETWEEN {proof - BEFORE} AND {proof + AFTER}) "
        "ORDER BY frame_no"
    )
    connections = {answer.connection_id: facts}
    columns = lifelines([{**facts, "connection_id": answer.connection_id}])
    drawn = list[Step]()
    for _, part in groupby(enumerate(frames), lambda each: each[1]["frame_no"] - each[0]):
        levels = steps([frame for _, frame in part], characters(len(columns)))
        if drawn:
            drawn.append(Step(ts_ns=levels[0].ts_ns, label=OMITTED, frames=0))
        drawn += fold_repeats(add_silences(levels, silence_ns))
    if frames[-1]["frame_no"] == total["last"]:
        drawn += tcp_ends(drawn, connections)
    else:
        drawn.append(Step(ts_ns=drawn[-1].ts_ns, label=OMITTED, frames=0))
    lines = (
        f"0 s is {chart.moment(drawn[0].ts_ns)}",
        chart.omitted(len(frames), total["frames"], "frames", "the first ones, and those around the proof"),
    )
    servers = {answer.connection_id: endpoint_text(facts["server_ip"], facts["server_port"])}
    return chart.titled(drawing(drawn, columns, servers), plain_text(answer.answer, chart.NAME_CHARACTERS * 3), *lines)


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
            address = endpoint_text(facts[f"{side}_ip"], facts[f"{side}_port"])
            key = (side, facts["connection_id"] if side == "client" else address)
            found.setdefault(key, (name_of(facts, side), address))
    return found


def name_of(facts: Mapping[str, Any], side: str) -> str:
    """The name of one side: connection name, product and version, or 1.0's container id."""
    product = " ".join(str(part) for part in (facts[f"{side}_product"], facts[f"{side}_version"]) if part)
    given = facts["given_name"] if side == "client" else None
    return plain_text(given or product or facts[f"{side}_container_id"] or side, chart.NAME_CHARACTERS)


# ('client', connection_id) or ('server', 'address:port'): connections to the same port of a broker share its lifeline.
Lifeline = tuple[str, int | str]
# Pixels: a level; above the first; left of the first lifeline and right of the last.
LEVEL, TOP, LEFT, RIGHT = 22, 56, 134, 60
# Pixels between two lifelines, by how many there are.
GAPS = {2: 470, 3: 350}
LEAST_GAP = 300
NAMES, ADDRESSES, HEADS, BEGIN = TOP - 46, TOP - 30, TOP - 4, TOP - 14
LETTER = 5.9  # mean width of one in a label, pixels
X, Y = alt.X("x:Q", scale=None, axis=None), alt.Y("y:Q", scale=None, axis=None)
ARROW_HEADS = {"triangle-right": (1, -4), "triangle-left": (-1, 4)}  # shape -> direction, offset from its tip


def characters(columns: int) -> int:
    """The maximum length of a label between two lifelines."""
    return int((GAPS.get(columns, LEAST_GAP) - 16) / LETTER)


def drawing(steps: Sequence[Step], columns: Mapping[Lifeline, tuple[str, str]], servers: Mapping[int, str]) -> Any:
    """`columns`: lifelines from left to right with name and address; `servers`: connection -> its server's lifeline."""
    gap = GAPS.get(len(columns), LEAST_GAP)
    at = {lifeline: LEFT + gap * number for number, lifeline in enumerate(columns)}
    right = LEFT + gap * max(len(columns) - 1, 1)
    width, height = right + RIGHT, TOP + LEVEL * (len(steps) + 1)
    notes, arrows = [], []
    margins = (76, LEFT - 14, width - 8)
    numbers = row_of(HEADS, margins, ("seconds", "channel", "packet"))
    for level, step in enumerate(steps, 1):
        y = TOP + LEVEL * level
        if step.sender is None:
            notes.append({"y": y, "x": LEFT - 8, "x2": right + 8, "middle": (LEFT + right) / 2, "text": step.label})
            continue
        if step.packet_no is not None:
            seconds = f"{(step.ts_ns - steps[0].ts_ns) / 1e9:.6f}"
            channel = "" if step.channel is None else str(step.channel)
            numbers += row_of(y, margins, (seconds, channel, str(step.packet_no)))
        ends = [at["client", step.connection_id], at["server", servers[step.connection_id]]]
        x, x2 = ends if step.sender == "client" else reversed(ends)
        look = {"kind": step.kind, "whole": step.whole, "text": step.label, "way": 1 if x2 > x else -1}
        arrows.append({"y": y, "x": x, "x2": x2, "middle": (x + x2) / 2, **look})
    xs = list(at.values())
    names = row_of(NAMES, xs, [name for name, _ in columns.values()])
    addresses = row_of(ADDRESSES, xs, [address for _, address in columns.values()])
    lines = [{"x": x, "y": BEGIN, "y2": height - 4} for x in xs]
    layers = [
        chart.layer(lines).mark_rule(color=LIGHT["muted"], strokeWidth=1).encode(X, Y, alt.Y2("y2:Q")),
        chart.layer(notes).mark_rule(strokeWidth=16, color=LIGHT["panel"]).encode(X, Y, alt.X2("x2:Q")),
        texts(notes, "middle", fontStyle="italic"),
        *arrow_layers(arrows),
        texts(names, color=LIGHT["ink"], fontSize=12, fontWeight=600),
        texts(addresses),
        texts(numbers, align="right", fontSize=10.5),
    ]
    return alt.layer(*layers).properties(width=width, height=height)


def arrow_layers(arrows: Sequence[Mapping[str, Any]]) -> list[Any]:
    """Shafts, heads and labels; dashed where bytes of the frame were not captured."""
    colours = chart.scale(KINDS, [arrow["kind"] for arrow in arrows])
    legend = alt.Legend(symbolType="stroke", symbolStrokeWidth=3, direction="horizontal", offset=6)
    with_legend, same = (alt.Color("kind:N", scale=colours, legend=each) for each in (legend, None))
    dashes = alt.Scale(domain=[True, False], range=[[1, 0], [4, 3]])
    dash = alt.StrokeDash("whole:N", scale=dashes, legend=None)
    tip, middle = (alt.X(field, scale=None, axis=None) for field in ("x2:Q", "middle:Q"))
    return [
        chart.layer(arrows).mark_rule(strokeWidth=1.6).encode(X, Y, alt.X2("x2:Q"), with_legend, dash),
        *(
            chart.layer([arrow for arrow in arrows if arrow["way"] == way])
            .mark_point(shape=shape, filled=True, size=46, opacity=1, xOffset=offset)
            .encode(tip, Y, same)
            for shape, (way, offset) in ARROW_HEADS.items()
        ),
        # An outline separates labels from the lifelines that they cross.
        chart.layer([arrow for arrow in arrows if abs(arrow["x2"] - arrow["x"]) > max(GAPS.values())])
        .mark_text(dy=-7, fontSize=11, stroke=LIGHT["paper"], strokeWidth=4)
        .encode(middle, Y, alt.Text("text:N")),
        chart.layer(arrows).mark_text(dy=-7, fontSize=11).encode(middle, Y, same, alt.Text("text:N")),
    ]


def texts(rows: Sequence[Mapping[str, Any]], x: str = "x", **look: Any) -> Any:
    """Column `text` of rows; muted by default."""
    mark = {"color": LIGHT["muted"], "fontSize": 11, **look}
    return chart.layer(rows).mark_text(**mark).encode(alt.X(f"{x}:Q", scale=None, axis=None), Y, alt.Text("text:N"))


def row_of(y: int, xs: Sequence[int], words: Sequence[str]) -> list[dict[str, Any]]:
    """Texts in one row at height `y`."""
    return [{"x": x, "y": y, "text": text} for x, text in zip(xs, words, strict=True)]
