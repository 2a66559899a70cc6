"""Plots of the tables, for notebooks and files: each takes `Tables` and an SQL condition and returns an Altair chart.

    from pipeline import plots

    plots.ladder(tables, "connection_id = 42 AND channel = 1")
    plots.latency(tables, by="queue").save("latency.html", inline=True)

A plot fetches a bounded number of rows: Spark counts and bins before anything is collected, and the subtitle says what
was left out. Importing this package sets Altair to SVG and to our theme, which need no network, unless another renderer
or theme was chosen before. It also makes Altair escape names in all HTML pages that it writes:

Altair writes a chart's JSON unescaped into a <script>, where a name such as `</script>` would become markup. The menu
of a chart writes that JSON as markup into a new window ("View Source", "View Compiled Vega"), or sends it to a web site
("Open in Vega Editor"). `install` wraps Altair's templates, which render all of its pages (`save`, `to_html`,
renderers): JSON is escaped, and the menu keeps only the items that save the picture, unless the caller requests others.

Read `chart` (rows, scales, titles), then any of `traffic`, `latencies`, `lifetimes`, `ladder` (whose `steps` are
frames).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, cast

import altair as alt
from altair.utils import html

from pipeline.output import theme
from pipeline.output.formatting import script_safe
from pipeline.plots.ladder import ladder, ladder_of
from pipeline.plots.latencies import latency, latency_over_time, latency_parts
from pipeline.plots.lifetimes import connections, heartbeats
from pipeline.plots.traffic import backlog, frame_sizes, rates, versions

__all__ = [
    "backlog", "connections", "frame_sizes", "heartbeats", "ladder", "ladder_of", "latency",
    "latency_over_time", "latency_parts", "rates", "versions",
]  # fmt: skip

TEMPLATES: dict[str, Any] = cast(Any, html.TEMPLATES)  # of Altair, by name
# Items of vega-embed's menu that neither write names as markup nor send them away.
ACTIONS = {"export": True, "source": False, "compiled": False, "editor": False}


@dataclass(frozen=True)
class EscapingTemplate:
    """A template of Altair that escapes all JSON."""

    template: Any

    def render(self, *, spec: str, embed_options: str, **values: Any) -> str:
        """The page; `spec`, `embed_options`: JSON."""
        options = json.dumps({"actions": ACTIONS, **json.loads(embed_options)})
        rendered: str = self.template.render(spec=script_safe(spec), embed_options=script_safe(options), **values)
        return rendered


def install() -> None:
    """Wrap Altair's templates, for all pages that it writes from now on."""
    for name, template in TEMPLATES.items():
        if not isinstance(template, EscapingTemplate):
            TEMPLATES[name] = EscapingTemplate(template)


install()
if alt.renderers.active == "default":
    alt.renderers.enable("svg")
alt.theme.register("wirehare", enable=alt.theme.active == "default")(theme.notebook)
