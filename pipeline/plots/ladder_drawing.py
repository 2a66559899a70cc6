"""The drawing of a ladder: levels downwards, lifelines across, all positions in pixels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt

from pipeline.plots.chart import layer, scale
from pipeline.plots.labels import KINDS
from pipeline.plots.steps import Step
from pipeline.theme import LIGHT

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
    places = list(at.values())
    names = row_of(NAMES, places, [name for name, _ in columns.values()])
    addresses = row_of(ADDRESSES, places, [address for _, address in columns.values()])
    lines = [{"x": place, "y": BEGIN, "y2": height - 4} for place in places]
    layers = [
        layer(lines).mark_rule(color=LIGHT["muted"], strokeWidth=1).encode(X, Y, alt.Y2("y2:Q")),
        layer(notes).mark_rule(strokeWidth=16, color=LIGHT["panel"]).encode(X, Y, alt.X2("x2:Q")),
        texts(notes, "middle", fontStyle="italic"),
        *arrow_layers(arrows),
        texts(names, color=LIGHT["ink"], fontSize=12, fontWeight=600),
        texts(addresses),
        texts(numbers, align="right", fontSize=10.5),
    ]
    return alt.layer(*layers).properties(width=width, height=height)


def arrow_layers(arrows: Sequence[Mapping[str, Any]]) -> list[Any]:
    """Shafts, heads and labels; dashed where bytes of the frame were not captured."""
    colours = scale(KINDS, [arrow["kind"] for arrow in arrows])
    legend = alt.Legend(symbolType="stroke", symbolStrokeWidth=3, direction="horizontal", offset=6)
    shown, same = (alt.Color("kind:N", scale=colours, legend=each) for each in (legend, None))
    dashes = alt.Scale(domain=[True, False], range=[[1, 0], [4, 3]])
    dash = alt.StrokeDash("whole:N", scale=dashes, legend=None)
    tip, middle = (alt.X(field, scale=None, axis=None) for field in ("x2:Q", "middle:Q"))
    return [
        layer(arrows).mark_rule(strokeWidth=1.6).encode(X, Y, alt.X2("x2:Q"), shown, dash),
        *(
            layer([arrow for arrow in arrows if arrow["way"] == way])
            .mark_point(shape=shape, filled=True, size=46, opacity=1, xOffset=offset)
            .encode(tip, Y, same)
            for shape, (way, offset) in ARROW_HEADS.items()
        ),
        # An outline separates labels from the lifelines that they cross.
        layer([arrow for arrow in arrows if abs(arrow["x2"] - arrow["x"]) > max(GAPS.values())])
        .mark_text(dy=-7, fontSize=11, stroke=LIGHT["paper"], strokeWidth=4)
        .encode(middle, Y, alt.Text("text:N")),
        layer(arrows).mark_text(dy=-7, fontSize=11).encode(middle, Y, same, alt.Text("text:N")),
    ]


def texts(rows: Sequence[Mapping[str, Any]], x: str = "x", **look: Any) -> Any:
    """Column `text` of rows; muted by default."""
    mark = {"color": LIGHT["muted"], "fontSize": 11, **look}
    return layer(rows).mark_text(**mark).encode(alt.X(f"{x}:Q", scale=None, axis=None), Y, alt.Text("text:N"))


def row_of(y: int, places: Sequence[int], words: Sequence[str]) -> list[dict[str, Any]]:
    """Texts in one row at height `y`."""
    return [{"x": x, "y": y, "text": text} for x, text in zip(places, words, strict=True)]
