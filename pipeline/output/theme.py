"""The theme of all charts: one palette and one set of sizes, for the audit report and for notebooks.

The colours are read from the report's style sheet. In a report they stay CSS variables, for the light and the dark
theme. The colour-blind can distinguish them; crossing lines also differ in shape or dashes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

STYLE_SHEET = Path(__file__).parents[1] / "report" / "template" / "style.css"
LIGHT: Mapping[str, str] = dict(re.findall(r"--(\w+): (#\w+);", STYLE_SHEET.read_text().split("}", 1)[0]))
PAGE: Mapping[str, str] = {name: f"var(--{name})" for name in LIGHT}
# Text is laid out with the metrics of the first available one: all but the last have Arial's.
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
    """The theme for notebooks and files, as Altair registers it: always light."""
    return {"config": config(LIGHT, FONT, LIGHT["paper"])}


def scale(words: Sequence[str], values: Sequence[Any]) -> dict[str, Any]:
    """Vega-Lite's scale with a colour, shape or dash pattern for each of these words."""
    return {"domain": list(words), "range": list(values[: len(words)])}


def logarithmic_ms(nanoseconds: int) -> float:
    """Milliseconds for a logarithmic axis: zero (coarse clock) and negative times (clock set back) become LEAST_NS."""
    return max(nanoseconds, LEAST_NS) / 1e6


def logarithmic(low: float, high: float) -> tuple[dict[str, Any], list[float]]:
    """A logarithmic scale with whole decades around `low` and `high` (both above 0), at least one, and its powers of
    ten for the axis."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    decades = [10.0**power for power in range(first, max(last, first + 1) + 1)]
    return {"type": "log", "domain": [decades[0], decades[-1]]}, decades
