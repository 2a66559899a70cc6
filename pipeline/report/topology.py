"""The topology diagram: who publishes to which exchange, bound to which queue, consumed by whom, with rates.

Four columns: publishing applications, exchanges or addresses, queues, consuming applications. Each box is a name from
the wire, truncated to fit; the width of a line grows with the number of messages, and a dashed line is a binding
without messages. Boxes that do not fit are counted; the table below the diagram lists them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pipeline.output.formatting import count, plain_text
from pipeline.report.grouped_counts import Groups

# Kind of a row -> the columns that it leads between.
KINDS = {"publishes": (0, 1), "routed": (1, 2), "consumes": (2, 3)}
HEADINGS = ("Published by", "Exchange", "Queue", "Consumed by")
BOXES = 10  # in a column
# As wide as a desktop page; a generated queue name and "Pika Python Client Library 1.4.4" fit into a box.
BOX_WIDTH, BOX_HEIGHT, COLUMN, ROW, TOP = 248, 26, 310, 40, 34
CHARACTERS = 32
THICKEST = 7
DEFAULT_EXCHANGE = "(default exchange)"
SECOND_NS = 10**9


@dataclass(frozen=True)
class Box:
    """A name at its position; `whole`: the name as long as the page shows it."""

    x: int
    y: int
    text: str
    whole: str
    column: int


@dataclass(frozen=True)
class Line:
    """A line between two boxes: SVG path, width and tooltip; `seen`: whether there are messages."""

    path: str
    width: float
    text: str
    seen: bool


@dataclass(frozen=True)
class Picture:
    """The diagram. `more`: number of boxes that did not fit, by column."""

    width: int
    height: int
    boxes: list[Box] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)
    more: list[int] = field(default_factory=list)
    label: str = ""


def picture(rows: Iterable[Mapping[str, Any]], lasted_ns: int) -> Picture | None:
    """The diagram of section 'topology' for a capture of `lasted_ns`; None without rows."""
    edges = [
        (KINDS[str(row["kind"])], name(row["kind"], row["origin"], True), name(row["kind"], row["target"], False),
         int(row["rows"] or 0))
        for row in rows
        if str(row["kind"]) in KINDS
    ]  # fmt: skip
    if not edges:
        return None
    weights = [Counter[str]() for _ in HEADINGS]
    for columns, origin, target, messages in edges:
        for column, text in zip(columns, (origin, target), strict=True):
            weights[column][text] += messages
    names_by_column = [sorted(of, key=lambda text: (-of[text], text))[:BOXES] for of in weights]
    tallest = max(len(names) for names in names_by_column)
    positions = {
        (column, text): (column * COLUMN, TOP + round((row + (tallest - len(names)) / 2) * ROW))
        for column, names in enumerate(names_by_column)
        for row, text in enumerate(names)
    }
    boxes = [
        Box(x, y, plain_text(text, CHARACTERS), plain_text(text, 160), column)
        for (column, text), (x, y) in positions.items()
    ]
    most = max((messages for *_, messages in edges), default=0)
    lines = [
        line(positions[columns[0], origin], positions[columns[1], target], origin, target, messages, most, lasted_ns)
        for columns, origin, target, messages in edges
        if (columns[0], origin) in positions and (columns[1], target) in positions
    ]
    width = (len(HEADINGS) - 1) * COLUMN + BOX_WIDTH
    more = [len(of) - len(names) for of, names in zip(weights, names_by_column, strict=True)]
    counts = ", ".join(f"{len(of)} {word}" for of, word in zip(weights, COLUMN_NAMES, strict=True))
    return Picture(width, TOP + tallest * ROW, boxes, lines, more, f"Who publishes and consumes: {counts}")


COLUMN_NAMES = ("publishing applications", "exchanges", "queues", "consuming applications")


def name(kind: Any, text: Any, is_origin: bool) -> str:
    """A name for display; that of the default exchange is empty on the wire."""
    is_exchange = is_origin == (kind == "routed") and kind != "consumes"
    return DEFAULT_EXCHANGE if is_exchange and not text else str(text or "")


def with_names(found: Groups) -> Groups:
    """Rows of section 'topology' with names for display."""
    rows = [
        row | {end: name(row["kind"], row[end], end == "origin") for end in ("origin", "target")} for row in found.rows
    ]
    return Groups(rows, found.total)


def line(
    start: tuple[int, int], end: tuple[int, int], origin: str, target: str, messages: int, most: int, lasted_ns: int
) -> Line:
    """From the right edge of one box to the left edge of another."""
    x, y, to_x, to_y = start[0] + BOX_WIDTH, start[1] + BOX_HEIGHT // 2, end[0], end[1] + BOX_HEIGHT // 2
    middle = (x + to_x) // 2
    width = 1 + (THICKEST - 1) * math.log1p(messages) / math.log1p(most) if most else 1.0
    amount = f"{count(messages)} messages{rate(messages, lasted_ns)}" if messages else "bound, no message seen"
    return Line(
        f"M{x} {y}C{middle} {y} {middle} {to_y} {to_x} {to_y}",
        round(width, 1),
        f"{plain_text(origin, 80)} \u2192 {plain_text(target, 80)}: {amount}",
        messages > 0,
    )


def rate(messages: int, lasted_ns: int) -> str:
    """', 12.3 a second', if the capture is long enough."""
    return f", {messages * SECOND_NS / lasted_ns:.3g} a second" if lasted_ns >= SECOND_NS else ""
