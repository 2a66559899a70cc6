"""Latencies: their distribution, how they change over time, and the parts of which they are the sum."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import altair as alt
from pyspark.sql import Column
from pyspark.sql import functions as F

from pipeline.explore.summaries import ACCURACY, PERCENTILES, measured
from pipeline.explore.summaries import latency as summary
from pipeline.output.formatting import (
    MEASURE_NAMES,
    PART_NAMES,
    duration,
    plain_text,
    time_unit,
)
from pipeline.output.theme import (
    DASHES,
    LIGHT,
    SERIES,
    logarithmic,
    logarithmic_ms,
    scale,
)
from pipeline.plots import chart

if TYPE_CHECKING:
    from pipeline import Tables

# Bars of a histogram per octave: each bar is 19 % wide.
PER_OCTAVE = 4
# Few enough for meaningful percentiles.
INTERVALS = 40
ROW, COUNTS = 58, 60  # heights, pixels
MARKS = {"p50_ns": "median", "p90_ns": "90 %", "p99_ns": "99 %"}
COLOURS = dict(zip(MARKS.values(), ("c1", "c3", "c2"), strict=True))
MARKED = alt.Color("mark:N", scale=chart.scale(COLOURS, list(COLOURS)))


def latency(
    tables: Tables, where: str | None = None, *, by: str | None = None, measure: str | None = None, most: int = 8
) -> Any:
    """Histograms of latencies on a logarithmic scale, with median, 90 % and 99 %: an `altair.VConcatChart`.

    A row for each measure of `pipeline.latency` ('confirm' 'broker' 'ack' 'total' 'rpc'), or with `by` (a column of
    message_flows or connections) for each of its `most` frequent values, of one `measure` (by default 'broker').
    `where`: SQL over message_flows. Two Spark jobs. Raises ValueError for an unknown measure or column, and
    for a `most` less than 1.
    """
    chart.require_positive(most)
    measure = measure or ("broker" if by else None)
    flows, keys, wanted = chart.filtered_tables(tables, where, "message_flows"), [by] if by else [], of_measure(measure)
    counts = summary(flows, keys).filter(wanted).orderBy(F.desc("count"), "measure", *keys)
    found = [row.asDict() for row in counts.limit(most + 1).collect()]
    title = f"Latency: {MEASURE_NAMES[measure]}" if measure else "Latency"
    if not found:
        return chart.empty(title, "no message was measured")
    first_rows = found[:most] if by else sorted(found, key=lambda row: list(MEASURE_NAMES).index(row["measure"]))
    octave = F.floor(F.log2(F.greatest("ns", F.lit(1))) * PER_OCTAVE).cast("int").alias("class")
    drawn_values = chart.is_one_of(by, [row[by] for row in first_rows]) if by else F.lit(True)
    classes = measured(flows, keys).select(*keys, "measure", octave).filter(wanted & drawn_values)
    counted = [row.asDict() for row in classes.groupBy(*keys, "measure", "class").count().collect()]
    key = by or "measure"
    reach = min(group["class"] for group in counted), max(group["class"] for group in counted)
    rows = [
        histogram(
            plain_text(row[by], chart.NAME_CHARACTERS) if by else MEASURE_NAMES[row["measure"]],
            row,
            [group for group in counted if group[key] == row[key]],
            reach,
            last=row is first_rows[-1],
        )
        for row in first_rows
    ]
    more = f"the {most} most frequent values of {by}" if by and len(found) > most else None
    return chart.titled(alt.vconcat(*rows, spacing=12), title, more)


def histogram(
    name: str, row: Mapping[str, Any], groups: Sequence[Mapping[str, Any]], ends: tuple[int, int], last: bool
) -> Any:
    """One row: bars of `groups`, lines at the percentiles of `row`, and the numbers above."""
    ticks, decades = logarithmic(*(2 ** (end / PER_OCTAVE) / 1e6 for end in (ends[0], ends[1] + 1)))
    axis = alt.Axis(values=decades, format="~g", grid=True, labels=last, ticks=last)
    x: dict[str, Any] = {"scale": ticks, "axis": axis, "title": "milliseconds" if last else None}
    y = alt.Y("n:Q", title=None, axis=None)
    bars = chart.layer(
        {"from": 2 ** (at / PER_OCTAVE) / 1e6, "to": 2 ** ((at + 1) / PER_OCTAVE) / 1e6, "n": group["count"]}
        for group in groups
        for at in (group["class"],)
    )
    marks = chart.layer({"at": logarithmic_ms(row[column]), "mark": word} for column, word in MARKS.items())
    words = [f"{word} {duration(row[column])}" for column, word in MARKS.items()]
    line = " · ".join([f"{row['count']:,} times", *words, f"longest {duration(row['max_ns'])}"])
    drawn = alt.layer(
        bars.mark_bar(color=LIGHT["c1"], opacity=0.45, orient="vertical").encode(
            alt.X("from:Q", **x), alt.X2("to:Q"), y
        ),
        marks.mark_rule(strokeWidth=2).encode(
            alt.X("at:Q", **x), color=MARKED, strokeDash=alt.StrokeDash("mark:N", scale=scale(list(COLOURS), DASHES))
        ),
    )
    head = alt.TitleParams(name, subtitle=line, fontSize=12, offset=4)
    return drawn.properties(width=chart.WIDTH, height=ROW, title=head)


def latency_over_time(
    tables: Tables, where: str | None = None, *, measure: str = "broker", every: str | None = None
) -> Any:
    """Median, 90 %, 99 % and longest of one measure of `pipeline.latency` by time, above the number of messages: an
    `altair.VConcatChart`.

    `where`: SQL over message_flows. `every`: interval ('1 second'); by default as many as fit. A message counts when
    it was published. Two Spark jobs. Raises ValueError for an unknown measure or interval.
    """
    rows = measured(chart.filtered_tables(tables, where, "message_flows")).filter(of_measure(measure))
    title = f"Latency over time: {MEASURE_NAMES[measure]}"
    ends = chart.span(rows, "ts_ns")
    if ends is None:
        return chart.empty(title, "no message was measured")
    width = chart.interval_us(every, *ends, intervals=INTERVALS)
    at = F.percentile_approx("ns", list(PERCENTILES.values()), ACCURACY).alias("at")
    binned = rows.groupBy(chart.interval(ends[0], width).alias("bin")).agg(
        at, F.max("ns").alias("max_ns"), F.count("*").alias("n")
    )
    unit, unit_ns = time_unit(ends[1] - ends[0])
    points = [
        {
            "t": row["bin"] * width * 1000 / unit_ns,
            "to": (row["bin"] + 1) * width * 1000 / unit_ns,
            "n": row["n"],
            "longest": logarithmic_ms(row["max_ns"]),
            **{word: logarithmic_ms(row["at"][index]) for index, word in enumerate(MARKS.values())},
        }
        for row in binned.orderBy("bin").collect()
    ]
    ticks, decades = logarithmic(min(p["median"] for p in points), max(p["longest"] for p in points))
    y: dict[str, Any] = {"scale": ticks, "axis": alt.Axis(values=decades, format="~g"), "title": "milliseconds"}
    x: dict[str, Any] = {
        "axis": alt.Axis(grid=False, labels=False, ticks=False),
        "title": None,
        "scale": alt.Scale(nice=False),
    }
    long = [{"t": p["t"], "to": p["to"], "mark": word, "ms": p[word]} for p in points for word in COLOURS]
    above = alt.layer(
        chart.layer(points)
        .mark_bar(color=LIGHT["panel"], orient="vertical")
        .encode(alt.X("t:Q", **x), alt.X2("to:Q"), alt.Y("median:Q", **y), alt.Y2("longest:Q")),
        chart.layer(long)
        .mark_rule(strokeWidth=2.2)
        .encode(alt.X("t:Q", **x), alt.X2("to:Q"), alt.Y("ms:Q", **y), MARKED),
    ).properties(width=chart.WIDTH, height=200)
    below = (
        chart.layer(points).mark_bar(color=LIGHT["muted"], opacity=0.6, orient="vertical")
        .encode(
            alt.X("t:Q", title=f"{unit} since {chart.moment(ends[0])}", axis=alt.Axis(grid=False, tickCount=8)),
            alt.X2("to:Q"),
            alt.Y("n:Q", title="messages", axis=alt.Axis(tickCount=3, format="~s")),
        )
        .properties(width=chart.WIDTH, height=COUNTS)
    )  # fmt: skip
    line = f"by {chart.length(width)} of publishing; the grey bar reaches from the median to the longest"
    return chart.titled(alt.vconcat(above, below, spacing=8).resolve_scale(x="shared"), title, line)


def latency_parts(tables: Tables, where: str | None = None, *, by: str = "queue", most: int = 8) -> Any:
    """Who takes the time from publish to settlement: the mean of each part, by `by` (a column of message_flows or
    connections), for its `most` values whose messages take the longest time in all: an `altair.LayerChart`.

    `where`: SQL over message_flows. Two Spark jobs. Raises ValueError for an unknown column, and for a `most` less
    than 1.
    """
    chart.require_positive(most)
    found = summary(chart.filtered_tables(tables, where, "message_flows"), [by], parts=True).persist()
    time = F.col("mean_ns") * F.col("count")
    totals = found.filter("measure = 'total'").orderBy(F.desc(time), by).limit(most + 1).collect()
    title = "Latency: who takes the time"
    if not totals:
        found.unpersist()
        return chart.empty(title, "no message was seen from its publish to its settlement")
    first_rows = totals[:most]
    parts = found.filter(chart.is_one_of(by, [row[by] for row in first_rows])).filter("measure != 'total'").collect()
    found.unpersist()
    names = chart.unique_names(
        {
            row[by]: f"{plain_text(row[by], chart.NAME_CHARACTERS)} · {duration(row['mean_ns'])} · {row['count']:,}"
            for row in first_rows
        }
    )
    bars = chart.layer(
        {
            "name": names[row[by]],
            "part": PART_NAMES[row["measure"]],
            "order": list(PART_NAMES).index(row["measure"]),
            "ms": row["mean_ns"] / 1e6,
        }
        for row in parts
    )
    drawn = bars.mark_bar().encode(
        chart.name_rows(names.values()),
        alt.X("ms:Q", title="milliseconds, mean"),
        alt.Color("part:N", scale=scale_of_parts(), legend=alt.Legend(columns=3)),
        alt.Order("order:Q"),
    )
    more = f"the {most} values of {by} with the longest time in all" if len(totals) > most else None
    line = "mean from publish to settlement, and the number of messages"
    return chart.titled(drawn.properties(width=chart.WIDTH, height=alt.Step(26)), title, line, more)


def scale_of_parts() -> alt.Scale:
    """A colour for each part: the palette, and the same colours in light."""
    palette = [LIGHT[name] for name in SERIES]
    colours = [*palette, *map(lighter, palette), LIGHT["muted"]]
    return alt.Scale(**scale(list(PART_NAMES.values()), colours))


def lighter(colour: str) -> str:
    """A colour halfway to white."""
    parts = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return "#" + "".join(f"{(part + 255) // 2:02x}" for part in parts)


def of_measure(measure: str | None) -> Column:
    """True on rows of this measure; on all rows if it is None. Raises ValueError for an unknown one."""
    if measure is None:
        return F.lit(True)
    if measure not in MEASURE_NAMES:
        raise ValueError(f"no latency {measure!r}; expected one of {', '.join(MEASURE_NAMES)}")
    return F.col("measure") == measure
