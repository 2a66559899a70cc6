"""Pictures of tables, for notebooks and files: each takes `Tables` and a SQL condition and returns an Altair chart.

    from pipeline import plots

    plots.ladder(tables, "connection_id = 42 AND channel = 1")
    plots.latency(tables, by="queue").save("latency.html", inline=True)

A picture fetches a bounded number of rows: Spark counts and bins before anything is collected, and the subtitle says
what was left out. Importing this makes Altair draw SVG in notebooks, with our theme: neither needs a network. Who has
chosen another renderer or theme before keeps it. It also makes Altair escape names in all pages that it writes
(`pages`).
"""

from __future__ import annotations

import altair as alt

from pipeline import theme
from pipeline.plots.ladder import ladder
from pipeline.plots.latencies import latency, latency_over_time
from pipeline.plots.lifelines import connections
from pipeline.plots.mix import frame_sizes, versions
from pipeline.plots.pages import protect
from pipeline.plots.silences import heartbeats
from pipeline.plots.traffic import backlog, rates

__all__ = [
    "backlog", "connections", "frame_sizes", "heartbeats", "ladder", "latency", "latency_over_time", "rates",
    "versions",
]  # fmt: skip

protect()
if alt.renderers.active == "default":
    alt.renderers.enable("svg")
alt.theme.register("wirehare", enable=alt.theme.active == "default")(theme.notebook)
