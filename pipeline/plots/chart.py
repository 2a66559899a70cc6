"""What all plots share: their rows, filtered by an SQL condition and binned by time; size, title and scales.

Conditions are SQL over the columns of the plotted table and of table connections
(`"queue = 'invoices' AND user = 'shop'"`). No Spark job runs here except in `span`.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import reduce
from itertools import chain, count
from typing import TYPE_CHECKING, Any, TypeVar

import altair as alt
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from pipeline.explore.summaries import with_connections
from pipeline.output import theme
from pipeline.output.formatting import duration
from pipeline.output.theme import LIGHT

if TYPE_CHECKING:
    from pipeline import Tables

Key = TypeVar("Key", bound=Hashable)
WIDTH = 640  # fits a notebook's column with its labels, pixels
NAME_CHARACTERS = 34  # of a name on an axis
# Axis of counts: label only whole numbers.
WHOLE = "datum.value % 1 ? '' : datum.label"
# Round intervals of time, us.
MILLISECOND, SECOND, MINUTE, HOUR = 1_000, 10**6, 60 * 10**6, 3600 * 10**6
WIDTHS = (
    *(power * step for power in (1, 10, 100, MILLISECOND, 10_000, 100_000) for step in (1, 2, 5)),
    *(step * SECOND for step in (1, 2, 5, 10, 15, 30)),
    *(step * MINUTE for step in (1, 2, 5, 10, 15, 30)),
    *(step * HOUR for step in (1, 2, 6, 12, 24, 7 * 24)),
)
UNITS = {
    "microsecond": 1, "millisecond": MILLISECOND, "second": SECOND, "minute": MINUTE, "hour": HOUR, "day": 24 * HOUR,
}  # fmt: skip
# Intervals across a plot: about six pixels each.
INTERVALS = 120
# The maximum for a requested interval: each is a point in the driver's memory.
MOST_INTERVALS = 5_000
# The name that clients of some libraries give to their connection.
GIVEN_NAME = "try_variant_get(client_properties, '$.connection_name', 'string')"


def filtered(tables: Tables, name: str, where: str | None) -> DataFrame:
    """The rows of table `name` for which `where` is true; all of them if it is None."""
    rows: DataFrame = getattr(tables, name)
    if where is None:
        return rows
    words = set(re.findall(r"\w+", where))
    extra = [column for column in tables.connections.columns if column in words and column not in rows.columns]
    if not extra:
        return rows.filter(where)
    return with_connections(rows, tables, extra).filter(where).select(*rows.columns)


def filtered_tables(tables: Tables, where: str | None, *names: str) -> Tables:
    """`tables` with `where` applied to the tables `names`, for summaries that take Tables."""
    return tables.having(**{name: filtered(tables, name, where) for name in names})


def span(rows: DataFrame, *moments: str) -> tuple[int, int] | None:
    """Minimum and maximum of these columns, ns since 1970; None without rows. One Spark job."""
    found = rows.agg(
        F.least(*map(F.min, moments), F.lit(None)).alias("first"),
        F.greatest(*map(F.max, moments), F.lit(None)).alias("last"),
    ).head()
    return None if found is None or found["first"] is None else (found["first"], found["last"])


def is_one_of(column: str, values: Iterable[Any]) -> Column:
    """True if the column has one of these values, which may include None."""
    return reduce(operator.or_, (F.col(column).eqNullSafe(value) for value in values), F.lit(False))


def interval(first_ns: int, width: int) -> Column:
    """The 0-based number of the interval of `width` us that contains `ts_ns`."""
    return F.floor((F.col("ts_ns") - first_ns) / (width * 1000)).cast("long")


def length(width: int) -> str:
    """An interval of `width` us as text."""
    return str(duration(width * 1000)).replace(".0 ", " ")


def moment(ns: int) -> str:
    """A time as text, with microseconds, UTC."""
    return f"{datetime.fromtimestamp(ns // 10**9, tz=UTC):%Y-%m-%d %H:%M:%S}.{ns % 10**9 // 1000:06d} UTC"


def require_positive(most: int) -> None:
    if most < 1:
        raise ValueError(f"nothing to draw: most={most!r}; expected 1 or more")


def omitted(drawn: int, total: int, what: str, order: str) -> str | None:
    """The line of a subtitle that says what was left out; None if everything is shown."""
    return None if drawn >= total else f"{drawn:,} of {total:,} {what} shown: {order}"


def interval_us(every: str | None, first_ns: int, last_ns: int, intervals: int = INTERVALS) -> int:
    """The requested interval ('5 seconds'), or the shortest round one that divides the span into at most `intervals`,
    us. Raises ValueError for invalid text, and for more than MOST_INTERVALS."""
    if every is None:
        needed = (last_ns - first_ns) / 1000 / intervals
        return next((width for width in WIDTHS if width >= needed), int(needed) + 1)
    found = re.fullmatch(r"(\d+(?:\.\d+)?) *(\w+?)s?", every.strip())
    if not found or found[2] not in UNITS or float(found[1]) * UNITS[found[2]] < 1:
        raise ValueError(
            f"not an interval: {every!r}; expected a number and one of {', '.join(UNITS)}, as in '5 seconds'"
        )
    width = int(float(found[1]) * UNITS[found[2]])
    if (last_ns - first_ns) // (width * 1000) > MOST_INTERVALS:
        whole = duration(last_ns - first_ns)
        raise ValueError(f"not an interval to draw: {every!r} divides {whole} into more than {MOST_INTERVALS:,}")
    return width


def layer(rows: Iterable[Mapping[str, Any]]) -> Any:
    """An `altair.Chart` with its own rows."""
    return alt.Chart(alt.Data(values=[dict(row) for row in rows]))


def titled(chart: Any, title: str, *lines: str | None) -> Any:
    """The chart with a title, and those lines of a subtitle that are not None."""
    return chart.properties(title=alt.TitleParams(title, subtitle=[line for line in lines if line]))


def empty(title: str, reason: str) -> Any:
    """The plot for no rows: a text with the reason."""
    blank = layer([{"text": reason}]).mark_text(color=LIGHT["muted"], fontSize=12, fontStyle="italic")
    return titled(blank.encode(text="text:N").properties(width=WIDTH, height=60), title)


def unique_names(names: Mapping[Key, str]) -> dict[Key, str]:
    """Names for an axis, where equal names would share a row: a repeated name gets a number."""
    found: dict[Key, str] = {}
    for key, name in names.items():
        with_numbers = (f"{name} ({number})" for number in count(2))
        found[key] = next(label for label in chain((name,), with_numbers) if label not in found.values())
    return found


def name_rows(names: Iterable[str]) -> alt.Y:
    """A row for each name, in this order."""
    axis = alt.Axis(labelColor=LIGHT["ink"], labelLimit=320, ticks=False, domain=False)
    return alt.Y("name:N", sort=list(names), title=None, axis=axis)


def scale(words: Mapping[str, str], present: Sequence[str]) -> alt.Scale:
    """A colour scale for the words that are `present`; `words`: word -> name in the palette."""
    used = [word for word in words if word in present]
    return alt.Scale(**theme.scale(used, [LIGHT[words[word]] for word in used]))
