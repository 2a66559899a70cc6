"""Composition of the traffic: versions by client, and sizes of frames."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import altair as alt
from pyspark.sql import functions as F

from pipeline.plots import chart
from pipeline.summaries import BEATS
from pipeline.text import plain_text, size
from pipeline.theme import LIGHT

if TYPE_CHECKING:
    from pipeline import Tables

STEP, ROW = 20, 70  # heights, pixels
VERSIONS = {"0-8": "muted", "0-9": "c2", "0-9-1": "c1", "0-10": "c3", "1.0": "c4", "TLS": "line", "not AMQP": "bad"}
VERSION = "coalesce(version, CASE content WHEN 'tls' THEN 'TLS' ELSE 'not AMQP' END)"
CLIENT = "trim(concat_ws(' ', client_product, client_version))"
# Classes per octave: each bar is 41 % wide.
PER_OCTAVE = 2
UNITS = ((2**20, " M"), (2**10, " K"))
BYTES = "".join(f"datum.value >= {unit} ? datum.value / {unit} + '{word}' : " for unit, word in UNITS) + "datum.value"
KINDS = {"methods": "c3", "content headers": "c2", "bodies and transfers": "c1", "heartbeats": "c4"}
KIND_OF_FRAME = f"""CASE
    WHEN {BEATS} THEN 'heartbeats'
    WHEN frame_type IN ('body', 'oob-body') OR name = 'transfer' THEN 'bodies and transfers'
    WHEN frame_type IN ('header', 'oob-header') THEN 'content headers'
    WHEN frame_type IN ('method', 'oob-method', 'control', 'command', 'amqp', 'sasl') THEN 'methods' END"""


def versions(tables: Tables, where: str | None = None, *, by: str | None = None, most: int = 12) -> Any:
    """Connections, and messages over them, of each client product by AMQP version: an `altair.HConcatChart`.

    `by`: another column of table connections (or SQL over them) instead of the product that clients say they are.
    `where`: SQL over table connections. The `most` with the most connections are drawn. Two Spark jobs.
    Raises ValueError for a `most` less than 1.
    """
    chart.require_positive(most)
    title = "Who speaks which version"
    rows = chart.filtered(tables, "connections", where).select(
        F.coalesce(F.nullif(F.expr(by or CLIENT).cast("string"), F.lit("")), F.lit("says nothing")).alias("who"),
        F.expr(VERSION).alias("version"),
        F.expr("coalesce(messages_published, 0) + coalesce(messages_delivered, 0)").alias("messages"),
    )
    largest = rows.groupBy("who").count().orderBy(F.desc("count"), "who").limit(most + 1).collect()
    if not largest:
        return chart.empty(title, "no connection fits the condition")
    names = [row["who"] for row in largest[:most]]
    counted = rows.filter(chart.is_one_of("who", names)).groupBy("who", "version").agg(
        F.count("*").alias("connections"), F.sum("messages").alias("messages")
    )  # fmt: skip
    shown = chart.unique_names({name: plain_text(name, chart.NAME_CHARACTERS) for name in names})
    found = [{**row.asDict(), "who": shown[row["who"]]} for row in counted.collect()]
    look = alt.Axis(labelColor=LIGHT["ink"], labelLimit=240, ticks=False, domain=False)
    colour = alt.Color("version:N", scale=chart.scale(VERSIONS, [row["version"] for row in found]))
    stacked = alt.Order("place:Q")
    place = {version: number for number, version in enumerate(VERSIONS)}
    bars = [
        chart.layer({**row, "place": place[row["version"]]} for row in found)
        .mark_bar(height=12)
        .encode(
            alt.X(f"{what}:Q", title=what, axis=alt.Axis(labelExpr=chart.WHOLE, tickCount=5, format="~s")),
            alt.Y("who:N", sort=list(shown.values()), title=None, axis=axis),
            colour,
            stacked,
        )
        .properties(width=(chart.WIDTH - 160) // 2, height=alt.Step(STEP))
        for what, axis in (("connections", look), ("messages", None))
    ]
    more = f"the {most} with the most connections" if len(largest) > most else None
    return chart.titled(alt.hconcat(*bars, spacing=24), title, more)


def frame_sizes(tables: Tables, where: str | None = None) -> Any:
    """Histogram of frame sizes by kind, a row per AMQP version: an `altair.VConcatChart`.

    `where`: SQL over table frames. Bytes outside of frames are not counted. One Spark job.
    """
    title = "Sizes of frames"
    rows = (
        chart.filtered(tables, "frames", where)
        .withColumn("kind", F.expr(KIND_OF_FRAME))
        .filter("kind IS NOT NULL AND version IS NOT NULL")
    )
    octave = F.floor(F.log2(F.greatest("size", F.lit(1))) * PER_OCTAVE).cast("int").alias("class")
    counted = rows.groupBy("version", "kind", octave).agg(
        F.count("*").alias("n"), F.sum("size").alias("bytes"), F.max("size").alias("largest")
    )  # fmt: skip
    found = [row.asDict() for row in counted.collect()]
    if not found:
        return chart.empty(title, "no frame fits the condition")
    ends = min(row["class"] for row in found) // PER_OCTAVE, max(row["class"] for row in found) // PER_OCTAVE + 1
    powers = [2**power for power in range(ends[0], ends[1] + 1)]
    x_scale = alt.Scale(type="log", base=2, domain=[powers[0], powers[-1]], nice=False)
    kinds, charts = [row["kind"] for row in found], []
    present = [version for version in VERSIONS if any(row["version"] == version for row in found)]
    for version in present:
        own, last = [row for row in found if row["version"] == version], version == present[-1]
        bars = [
            {"from": 2 ** (row["class"] / PER_OCTAVE), "to": 2 ** ((row["class"] + 1) / PER_OCTAVE), **row}
            for row in own
        ]
        axis = alt.Axis(values=powers, labelExpr=BYTES, grid=False, labels=last, ticks=last)
        total, largest = sum(row["bytes"] for row in own), max(row["largest"] for row in own)
        line = f"{sum(row['n'] for row in own):,} frames · {size(total)} · largest {size(largest)}"
        drawn = chart.layer(bars).mark_bar(orient="vertical").encode(
            alt.X("from:Q", scale=x_scale, axis=axis, title="bytes" if last else None),
            alt.X2("to:Q"),
            alt.Y("n:Q", title="frames", stack="zero", axis=alt.Axis(tickCount=3, labelExpr=chart.WHOLE, format="~s")),
            alt.Color("kind:N", scale=chart.scale(KINDS, kinds)),
        )  # fmt: skip
        head = alt.TitleParams(f"AMQP {version}", subtitle=line, fontSize=12, offset=4)
        charts.append(drawn.properties(width=chart.WIDTH, height=ROW, title=head))
    return chart.titled(alt.vconcat(*charts, spacing=12), title)
