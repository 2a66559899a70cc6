"""What all plots share: size, title, scales, and the placeholder for no rows."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from itertools import chain, count
from typing import Any, TypeVar

import altair as alt

from pipeline import theme
from pipeline.theme import LIGHT

Key = TypeVar("Key", bound=Hashable)
WIDTH = 640  # fits a notebook's column with its labels, pixels
NAME_CHARACTERS = 34  # of a name on an axis
# Axis of counts: label only whole numbers.
WHOLE = "datum.value % 1 ? '' : datum.label"


def layer(rows: Iterable[Mapping[str, Any]]) -> Any:
    """An `altair.Chart` with its own rows."""
    return alt.Chart(alt.Data(values=[dict(row) for row in rows]))


def titled(chart: Any, title: str, lines: Sequence[str] = ()) -> Any:
    """The chart with a title and subtitle lines."""
    return chart.properties(title=alt.TitleParams(title, subtitle=list(lines)))


def empty(title: str, reason: str) -> Any:
    """The plot for no rows: a text with the reason."""
    blank = layer([{"text": reason}]).mark_text(color=LIGHT["muted"], fontSize=12, fontStyle="italic")
    return titled(blank.encode(text="text:N").properties(width=WIDTH, height=60), title)


def unique_names(names: Mapping[Key, str]) -> dict[Key, str]:
    """Names for an axis, where equal names would share a row: a repeated name gets a number."""
    found: dict[Key, str] = {}
    for key, name in names.items():
        numbered = (f"{name} ({number})" for number in count(2))
        found[key] = next(shown for shown in chain((name,), numbered) if shown not in found.values())
    return found


def name_rows(names: Iterable[str]) -> alt.Y:
    """A row for each name, in this order."""
    axis = alt.Axis(labelColor=LIGHT["ink"], labelLimit=320, ticks=False, domain=False)
    return alt.Y("name:N", sort=list(names), title=None, axis=axis)


def scale(words: Mapping[str, str], present: Sequence[str]) -> alt.Scale:
    """A colour scale for the words that are `present`; `words`: word -> name in the palette."""
    used = [word for word in words if word in present]
    return alt.Scale(domain=used, range=[LIGHT[words[word]] for word in used])


def dashes(words: Sequence[str]) -> alt.Scale:
    """Dash patterns for words, so that lines differ not only by colour."""
    return alt.Scale(domain=list(words), range=list(theme.DASHES[: len(words)]))
