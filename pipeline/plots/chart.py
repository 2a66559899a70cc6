"""What all pictures share: size, title, scales, and what stands where there is nothing to draw."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from itertools import chain, count
from typing import Any, TypeVar

import altair as alt

from pipeline import theme
from pipeline.theme import LIGHT

Key = TypeVar("Key", bound=Hashable)
# Fits a notebook's column beside its labels, pixels.
WIDTH, HEIGHT = 640, 220
NAME_CHARACTERS = 34  # of a name on an axis
# An axis of numbers that are counted: no label where there is no whole number.
WHOLE = "datum.value % 1 ? '' : datum.label"


def layer(rows: Iterable[Mapping[str, Any]]) -> Any:
    """An `altair.Chart` on rows of its own."""
    return alt.Chart(alt.Data(values=[dict(row) for row in rows]))


def titled(chart: Any, title: str, lines: Sequence[str] = ()) -> Any:
    """The chart with a title, and what there is to know about it below."""
    return chart.properties(title=alt.TitleParams(title, subtitle=list(lines)))


def nothing(title: str, reason: str) -> Any:
    """The picture of no rows: it says so, instead of an empty frame."""
    blank = layer([{"text": reason}]).mark_text(color=LIGHT["muted"], fontSize=12, fontStyle="italic")
    return titled(blank.encode(text="text:N").properties(width=WIDTH, height=60), title)


def distinct(names: Mapping[Key, str]) -> dict[Key, str]:
    """Names on an axis, which makes one row of equal ones: a name that is there already gets a number."""
    found: dict[Key, str] = {}
    for key, name in names.items():
        numbered = (f"{name} ({number})" for number in count(2))
        found[key] = next(shown for shown in chain((name,), numbered) if shown not in found.values())
    return found


def scale(words: Mapping[str, str], present: Sequence[str]) -> alt.Scale:
    """Words in the colours that `words` gives them (names of the palette), those that occur."""
    kept = [word for word in words if word in present]
    return alt.Scale(domain=kept, range=[LIGHT[words[word]] for word in kept])


def dashes(words: Sequence[str]) -> alt.Scale:
    """Line patterns for words, so that no line is known by its colour alone."""
    return alt.Scale(domain=list(words), range=list(theme.DASHES[: len(words)]))


def logarithmic(low: float, high: float) -> tuple[alt.Scale, list[float]]:
    """A logarithmic scale with whole decades around `low` and `high`, and its powers of ten for the axis."""
    decades = theme.powers(low, high)
    return alt.Scale(type="log", domain=[decades[0], decades[-1]]), decades
