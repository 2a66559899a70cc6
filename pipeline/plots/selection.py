"""What a picture is drawn of: rows that a SQL condition chooses, and intervals of time.

Conditions are SQL over the columns of the table that is drawn; columns that only table connections has may be used as
well (`"queue = 'invoices' AND user = 'shop'"`). Everything here is lazy but `span`.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from functools import reduce
from typing import TYPE_CHECKING, Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from pipeline.output.units import duration

if TYPE_CHECKING:
    from pipeline import Tables

# Intervals in which time is counted, us: what people call a round number.
MILLISECOND, SECOND, MINUTE, HOUR = 1_000, 10**6, 60 * 10**6, 3600 * 10**6
WIDTHS = (
    *(power * step for power in (1, 10, 100, MILLISECOND, 10_000, 100_000) for step in (1, 2, 5)),
    *(step * SECOND for step in (1, 2, 5, 10, 15, 30)),
    *(step * MINUTE for step in (1, 2, 5, 10, 15, 30)),
    *(step * HOUR for step in (1, 2, 6, 12, 24, 7 * 24)),
)
UNITS = {
    "microsecond": 1,
    "millisecond": MILLISECOND,
    "second": SECOND,
    "minute": MINUTE,
    "hour": HOUR,
    "day": 24 * HOUR,
}
# Intervals across a picture: about six pixels each.
INTERVALS = 120
# A picture has no more than this, whatever interval was asked for: each is a point that the driver holds.
MOST_INTERVALS = 5_000
# The name that clients of some libraries give to their connection.
GIVEN_NAME = "try_variant_get(client_properties, '$.connection_name', 'string')"
FLOW_SIDES = ("publish_connection_id", "deliver_connection_id")


def chosen(tables: Tables, name: str, where: str | None) -> DataFrame:
    """The rows of table `name` for which `where` is true; all of them where it is None.

    Flows are taken to be of the publishing connection, and where there is none of the delivering one.
    """
    rows: DataFrame = getattr(tables, name)
    if where is None:
        return rows
    words = set(re.findall(r"\w+", where))
    extra = [column for column in tables.connections.columns if column in words and column not in rows.columns]
    if not extra:
        return rows.filter(where)
    of_connection = tables.connections.select(F.col("connection_id").alias("of_connection"), *extra)
    key = F.coalesce(*FLOW_SIDES) if name == "message_flows" else F.col("connection_id")
    joined = rows.join(of_connection, key == F.col("of_connection"), "left")
    return joined.filter(where).select(*rows.columns)


def only(tables: Tables, where: str | None, *names: str) -> Tables:
    """`tables` with `where` applied to those of these names, for summaries that take tables."""
    return tables.having(**{name: chosen(tables, name, where) for name in names})


def span(rows: DataFrame, *moments: str) -> tuple[int, int] | None:
    """Earliest and latest of these columns, which are ns since 1970; None where there are none. One Spark job."""
    found = rows.agg(
        F.least(*map(F.min, moments), F.lit(None)).alias("first"),
        F.greatest(*map(F.max, moments), F.lit(None)).alias("last"),
    ).head()
    return None if found is None or found["first"] is None else (found["first"], found["last"])


def width_us(first_ns: int, last_ns: int, intervals: int = INTERVALS) -> int:
    """The shortest round interval of which not many more than `intervals` cover the span, us."""
    needed = (last_ns - first_ns) / 1000 / intervals
    return next((width for width in WIDTHS if width >= needed), int(needed) + 1)


def among(column: str, values: Iterable[Any]) -> Column:
    """True where the column has one of these values, of which one may be None."""
    return reduce(operator.or_, (F.col(column).eqNullSafe(value) for value in values), F.lit(False))


def interval(ts_ns: str, first_ns: int, width: int) -> Column:
    """Number of the interval of `width` us that a moment lies in, the first is 0."""
    return F.floor((F.col(ts_ns) - first_ns) / (width * 1000)).cast("long")


def length(width: int) -> str:
    """An interval of `width` us in words."""
    return str(duration(width * 1000)).replace(".0 ", " ")


def moment(ns: int) -> str:
    """A moment to the microsecond, UTC, as titles say it."""
    return f"{datetime.fromtimestamp(ns // 10**9, tz=UTC):%Y-%m-%d %H:%M:%S}.{ns % 10**9 // 1000:06d} UTC"


def at_least_one(most: int) -> None:
    """Raises ValueError where a picture is to draw nothing."""
    if most < 1:
        raise ValueError(f"nothing to draw: most={most!r}; expected 1 or more")


def left_out(shown: int, total: int, what: str, order: str) -> list[str]:
    """The line of a subtitle that says what was left out; nothing where all is shown."""
    return [] if shown >= total else [f"{shown:,} of {total:,} {what} shown: {order}"]


def subtitle(*parts: Sequence[str] | str | None) -> list[str]:
    """Lines of a subtitle from lines, lists of lines, and nothing."""
    lines: list[str] = []
    for part in parts:
        lines += [part] if isinstance(part, str) else part or []
    return lines


def every_us(every: str | None, first_ns: int, last_ns: int, intervals: int = INTERVALS) -> int:
    """The interval that was asked for ('5 seconds'), or one that suits the span, us. Raises ValueError for words that
    are none, and for more than MOST_INTERVALS."""
    if every is None:
        return width_us(first_ns, last_ns, intervals)
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
