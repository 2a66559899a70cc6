"""Counted groups of rows: many small questions about several tables, answered by one Spark query with bounded rows.

A `Section` groups the rows of a table by some expressions; all sections of a table share its measures, so that a table
is scanned once whatever the number of its sections. The groups of a section beyond its `shown` largest are counted and
not collected: what comes to the driver does not grow with the capture.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

# Longer keys are cut before they are grouped: a string of 1.0 may be as long as its frame.
KEY_CHARACTERS = 400


@dataclass(frozen=True)
class Section:
    """Groups by `keys` (name -> SQL) of the rows that `where` holds for; those with most `rank` are shown."""

    name: str
    keys: Mapping[str, str]
    where: str = "true"
    rank: str = "rows"
    shown: int = 20


@dataclass(frozen=True)
class Source:
    """A table with its sections; `measures`: name -> SQL aggregate that is a LONG, of every group of any section."""

    table: str
    measures: Mapping[str, str]
    sections: Sequence[Section]


@dataclass(frozen=True)
class Groups:
    """The groups shown, each with its keys (text or None) and its measures (numbers or None); `total` of them exist."""

    rows: list[dict[str, str | int | None]] = field(default_factory=list)
    total: int = 0

    @property
    def more(self) -> int:
        """Groups that are not shown."""
        return self.total - len(self.rows)


def answer(sources: Sequence[Source], tables: Mapping[str, DataFrame]) -> dict[str, Groups]:
    """Every section by its name. One query: its branches run side by side."""
    sections = {section.name: (source, section) for source in sources for section in source.sections}
    groups = reduce(DataFrame.unionAll, (counted(source, tables[source.table]) for source in sources))
    ranks = {name: list(source.measures).index(section.rank) for name, (source, section) in sections.items()}
    limits = {name: section.shown for name, (_, section) in sections.items()}
    whole = Window.partitionBy("section")
    largest_first = whole.orderBy(F.get("measures", chosen(ranks)).desc_nulls_last(), "key")
    placed = groups.select(
        "*", F.row_number().over(largest_first).alias("place"), F.count("*").over(whole).alias("total")
    )
    rows = placed.filter(F.col("place") <= chosen(limits)).collect()
    found = {name: Groups() for name in sections}
    for row in sorted(rows, key=lambda row: (row.section, row.place)):
        source, section = sections[row.section]
        keys = dict(zip(section.keys, row.key, strict=True))
        measures = dict(zip(source.measures, row.measures, strict=True))
        found[row.section] = Groups([*found[row.section].rows, keys | measures], row.total)
    return found


def counted(source: Source, table: DataFrame) -> DataFrame:
    """(section, key, measures) of every group of every section of a table."""
    measures = F.array(*(F.expr(measure).cast("long") for measure in source.measures.values()))
    return (
        table.select("*", F.explode(F.array_compact(F.array(*map(group, source.sections)))).alias("_group"))
        .groupBy(F.col("_group.section").alias("section"), F.col("_group.key").alias("key"))
        .agg(measures.alias("measures"))
    )


def group(section: Section) -> Column:
    """The group that a row belongs to in a section; null when it belongs to none."""
    keys = [F.left(F.expr(key).cast("string"), F.lit(KEY_CHARACTERS)) for key in section.keys.values()]
    return F.when(F.expr(section.where), F.struct(F.lit(section.name).alias("section"), F.array(*keys).alias("key")))


def chosen(numbers: Mapping[str, int]) -> Column:
    """The number of the row's section."""
    entries = [F.lit(entry) for pair in numbers.items() for entry in pair]
    return F.create_map(*entries)[F.col("section")]
