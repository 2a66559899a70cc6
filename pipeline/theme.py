"""How pictures look: one palette and one set of sizes, for the audit's report and for notebooks.

The colours are those of the report's style sheet, read from it; in a report they stay variables of the page, so that
one drawing serves light and dark. They were chosen to be told apart by the colour-blind, and where lines cross, shape
or dashes say the same once more.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

STYLE_SHEET = Path(__file__).parent / "report" / "template" / "style.css"
LIGHT: Mapping[str, str] = dict(re.findall(r"--(\w+): (#\w+);", STYLE_SHEET.read_text().split("}", 1)[0]))
PAGE: Mapping[str, str] = {name: f"var(--{name})" for name in LIGHT}
# Text is laid out with the metrics of the first of these that is there: all but the last have Arial's.
FONT = "Helvetica, Arial, Liberation Sans, sans-serif"
# The shortest time on a logarithmic axis, ns.
LEAST_NS = 1
SERIES = ("c1", "c2", "c3", "c4")
DASHES = ([1, 0], [5, 3], [2, 2], [8, 3])


def config(colours: Mapping[str, str], font: str, background: str) -> dict[str, Any]:
    """Vega-Lite's `config` for all our charts; `colours` by the names of the style sheet (LIGHT or PAGE)."""
    ink, muted, grid = colours["ink"], colours["muted"], colours["line"]
    return {
        "background": background,
        "font": font,
        "view": {"stroke": None},
        "range": {"category": [colours[name] for name in SERIES]},
        "axis": {
            "labelColor": muted,
            "titleColor": muted,
            "domainColor": grid,
            "tickColor": grid,
            "gridColor": grid,
            "labelFontSize": 11,
            "titleFontSize": 11,
            "titleFontWeight": "normal",
            "labelLimit": 160,
        },
        "legend": {
            "labelColor": ink,
            "labelFontSize": 12,
            "labelLimit": 300,
            "title": None,
            "orient": "top",
            "symbolStrokeWidth": 2,
            "padding": 0,
        },
        "header": {"title": None, "labelColor": ink, "labelFontSize": 12},
        "title": {
            "anchor": "start",
            "frame": "group",
            "color": ink,
            "fontSize": 14,
            "fontWeight": 600,
            "subtitleColor": muted,
            "subtitleFontSize": 11,
            "subtitlePadding": 4,
            "offset": 12,
        },
    }


def notebook() -> Any:
    """The theme for notebooks and files, as Altair registers it: light, on white, whatever the page around it."""
    return {"config": config(LIGHT, FONT, LIGHT["paper"])}


def logarithmic_ms(nanoseconds: int) -> float:
    """Milliseconds that a logarithmic axis can show: what took no time on a coarse clock, or less on one that was set
    back, is drawn as LEAST_NS."""
    return max(nanoseconds, LEAST_NS) / 1e6


def powers(low: float, high: float) -> list[float]:
    """Powers of ten from the last that is not above `low` to the first that is not below `high`: two at least. Both are
    above 0."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    return [10.0**power for power in range(first, max(last, first + 1) + 1)]
