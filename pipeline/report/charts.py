"""Charts as inline SVG, rendered in advance: no script is loaded, and they print.

Every chart has the width of a phone's screen, so that its text keeps its size there; wider pages place several side by
side. Colours are variables of the page's style sheet, for the light and the dark theme. Charts contain only fixed texts
and names from the protocol tables, never text from the wire. They are written in Vega-Lite itself: to import Altair
takes longer than to render them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

import vl_convert
from markupsafe import Markup

from pipeline.output import theme
from pipeline.output.formatting import moment, time_unit
from pipeline.report.grouped_counts import CLASSES_PER_OCTAVE, Groups, Latency
from pipeline.report.sections import TIME_BARS, bar_width_ns

WIDTH = 330
INK, MUTED, GRID = (theme.PAGE[name] for name in ("ink", "muted", "line"))
COLOURS = FIRST, SECOND, THIRD, FOURTH = [theme.PAGE[name] for name in theme.SERIES]
FONT = "system-ui, sans-serif"
# Labels are measured in another font than the reader's, which may be wider.
DRAWING = {"aria": False, "padding": {"left": 12, "right": 8, "top": 2, "bottom": 2}}
OPERATIONS = {"publish": "published", "deliver": "delivered", "get": "fetched", "return": "returned"}
# Widest series of a latency chart: more do not fit a screen, the table below has them.
SERIES = 10
LABEL_CHARACTERS = 26
# vl-convert ends the whole process on some characters, such as NUL.
UNSAFE = "[^ -~]"


Spec = dict[str, Any]  # of Vega-Lite


def svg(chart: Spec, label: str) -> Markup:
    """The chart as a scalable SVG element; `label` is its text for screen readers."""
    spec = {**chart, "config": {**theme.config(theme.PAGE, FONT, "transparent"), **DRAWING}}
    svg = vl_convert.vegalite_to_svg(spec)
    width, height = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', svg).groups()  # type: ignore[union-attr]
    # The label is enough: parts with a role but without a name confuse screen readers.
    body = re.sub(r' (role|aria-\w+)="[^"]*"', "", svg[svg.index(">") + 1 :])
    head = Markup('<svg class="chart" role="img" aria-label="{}" viewBox="0 0 {} {}" width="{}" height="{}">')
    return head.format(label, width, height, width, height) + Markup(body)


def quantitative(field: str, **options: Any) -> Spec:
    """A channel of an encoding with numbers."""
    return {"field": field, "type": "quantitative", **options}


def nominal(field: str, **options: Any) -> Spec:
    """A channel of an encoding with names."""
    return {"field": field, "type": "nominal", **options}


def start_renderer() -> None:
    """Start the renderer, which takes as long as rendering all charts of a report."""
    svg({"data": {"values": []}, "mark": "bar"}, "nothing")


def rates(groups: Groups, first_ns: int, last_ns: int) -> Markup | None:
    """Messages a second over the time of the capture, by operation."""
    width_ns = bar_width_ns(first_ns, last_ns)
    counted = {(str(group["operation"]), int(str(group["bar"]))): int(group["rows"] or 0) for group in groups.rows}
    operations = [name for name in OPERATIONS if any(key[0] == name for key in counted)]
    if not operations:
        return None
    unit, unit_ns = time_unit(last_ns - first_ns)
    bars = min(TIME_BARS, (last_ns - first_ns) // width_ns + 1)
    points = [
        {"at": bar * width_ns / unit_ns, "rate": counted.get((name, bar), 0) * 1e9 / width_ns, "what": OPERATIONS[name]}
        for name in operations
        for bar in range(bars)
    ]
    words = [OPERATIONS[name] for name in operations]
    since = f"{unit} since {moment(first_ns // 1000)} UTC"
    chart: Spec = {
        "data": {"values": points},
        "mark": {"type": "line", "interpolate": "step-after", "strokeWidth": 1.8},
        "encoding": {
            "x": quantitative("at", title=since, axis={"grid": False, "tickCount": 6}),
            "y": quantitative("rate", title="messages a second", axis={"tickCount": 5, "format": "~s"}),
            "color": nominal("what", scale=theme.scale(words, COLOURS)),
            "strokeDash": nominal("what", scale=theme.scale(words, theme.DASHES)),
        },
        "width": WIDTH - 50,
        "height": 170,
    }
    return svg(chart, f"Messages a second over time, by operation: {', '.join(words)}")


def percentiles(found: Sequence[Latency], label: str) -> Markup | None:
    """Median, 90 % and 99 % of some latencies, a line each, on a logarithmic scale in milliseconds."""
    if not found:
        return None
    rows: list[dict[str, Any]] = [
        {
            "what": re.sub(UNSAFE, "?", one.what)[:LABEL_CHARACTERS],
            **dict(zip(("median", "p90", "p99"), map(theme.logarithmic_ms, one.quantiles), strict=True)),
        }
        for one in found[:SERIES]
    ]
    marks = (("median", "median"), ("p90", "90 %"), ("p99", "99 %"))
    points = [{"what": row["what"], "ms": row[name], "mark": word} for row in rows for name, word in marks]
    scale, decades = theme.logarithmic(min(row["median"] for row in rows), max(row["p99"] for row in rows))
    y = nominal("what", title=None, sort=None, axis={"labelColor": INK, "ticks": False, "domain": False})
    axis = {"values": decades, "format": "~g"}
    words = [word for _, word in marks]
    lines: Spec = {
        "data": {"values": rows},
        "mark": {"type": "rule", "strokeWidth": 2, "color": GRID},
        "encoding": {
            "y": y,
            "x": quantitative("median", scale=scale, title="milliseconds", axis=axis),
            "x2": {"field": "p99"},
        },
    }
    dots: Spec = {
        "data": {"values": points},
        "mark": {"type": "point", "filled": True, "size": 60, "opacity": 1},
        "encoding": {
            "y": y,
            "x": quantitative("ms", scale=scale, title="milliseconds", axis=axis),
            "color": nominal("mark", scale=theme.scale(words, COLOURS)),
            "shape": nominal("mark", scale=theme.scale(words, ("circle", "diamond", "square"))),
        },
    }
    chart: Spec = {"layer": [lines, dots], "width": WIDTH - 130, "height": {"step": 24}}
    return svg(chart, label)


def distribution(groups: Groups) -> Markup | None:
    """Histogram of settlement latencies, in classes of half an octave."""
    counted = Counter[tuple[int, str]]()
    for group in groups.rows:
        key = (int(str(group["class"])) * 2 // CLASSES_PER_OCTAVE, OPERATIONS.get(str(group["operation"]), "other"))
        counted[key] += int(group["rows"] or 0)
    if not counted:
        return None
    words = sorted({word for _, word in counted}, reverse=True)
    rows: list[dict[str, Any]] = [
        {"from": 2 ** (bar / 2) / 1e6, "to": 2 ** ((bar + 1) / 2) / 1e6, "n": number, "what": word}
        for (bar, word), number in sorted(counted.items())
    ]
    scale, decades = theme.logarithmic(min(row["from"] for row in rows), max(row["to"] for row in rows))
    chart: Spec = {
        "data": {"values": rows},
        "mark": {"type": "bar", "orient": "vertical"},
        "encoding": {
            "x": quantitative(
                "from", scale=scale, title="milliseconds", axis={"grid": False, "values": decades, "format": "~g"}
            ),
            "x2": {"field": "to"},
            "y": quantitative("n", title="messages", axis={"tickCount": 5, "format": "~s"}, stack="zero"),
            "color": nominal("what", scale=theme.scale(words, COLOURS)),
        },
        "width": WIDTH - 50,
        "height": 170,
    }
    return svg(chart, "How long settlements took: number of messages by milliseconds, logarithmic")
