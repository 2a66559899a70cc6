"""Plots of the tables, for notebooks and files: each takes `Tables` and an SQL condition and returns an Altair chart.

    from pipeline import plots

    plots.ladder(tables, "connection_id = 42 AND channel = 1")
    plots.latency(tables, by="queue").save("latency.html", inline=True)

A plot fetches a bounded number of rows: Spark counts and bins before anything is collected, and the subtitle says what
was left out. Importing this package sets Altair to SVG and to our theme, which need no network, unless another renderer
or theme was chosen before. It also makes Altair escape names in all HTML pages that it writes (`escaping`).
"""

from __future__ import annotations

import altair as alt

from pipeline import theme
from pipeline.plots.composition import frame_sizes, versions
from pipeline.plots.connection_bars import connections
from pipeline.plots.escaping import install
from pipeline.plots.ladder import ladder
from pipeline.plots.latencies import latency, latency_over_time
from pipeline.plots.silences import heartbeats
from pipeline.plots.traffic import backlog, rates

__all__ = [
    "backlog", "connections", "frame_sizes", "heartbeats", "ladder", "latency", "latency_over_time", "rates",
    "versions",
]  # fmt: skip

install()
if alt.renderers.active == "default":
    alt.renderers.enable("svg")
alt.theme.register("wirehare", enable=alt.theme.active == "default")(theme.notebook)
