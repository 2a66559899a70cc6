"""Counted groups of rows: many small questions about several tables, answered by one Spark query with bounded rows.

A `Section` groups the rows of a table by some expressions; all sections of a table share its measures, so that a table
is scanned once whatever the number of its sections. The groups of a section beyond its `shown` largest are counted and
not collected: what comes to the driver does not grow with the capture.

A row that belongs to five sections is five rows to group, by texts. Rows of a large table that agree in the keys of all
sections are therefore counted first (`folded`): as a rule that leaves few.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

# Longer keys are cut before they are grouped: a string of 1.0 may be as long as its frame.
KEY_CHARACTERS = 400

# Aggregate of rows -> what makes one of several of its values.
FOLDED = {"count": "sum", "count_if": "sum", "sum": "sum", "max": "max", "min": "min"}


@dataclass(frozen=True)
class Section:
    """Groups by `keys` (name -> SQL) of the rows that `where` holds for; those with most `rank` are shown.

    `apart`: in a large table it is counted by itself, as its keys tell apart rows that agree in all others, or as files
    without such rows need not be read.
    """

    name: str
    keys: Mapping[str, str]
    where: str = "true"
    rank: str = "rows"
    shown: int = 20
    apart: bool = False


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


def answer(
    sources: Sequence[Source], tables: Mapping[str, DataFrame], large: Collection[str] = ()
) -> dict[str, Groups]:
    """Every section by its name. One query: its branches run side by side. `large`: names of tables to be counted in
    two steps; their measures are functions in FOLDED."""
    sections = {section.name: (source, section) for source in sources for section in source.sections}
    steps = (
        step
        for source in sources
        for step in (
            in_two_steps(source, tables[source.table]) if source.table in large else [(source, tables[source.table])]
        )
    )
    groups = reduce(DataFrame.unionAll, (counted(*step) for step in steps))
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


def in_two_steps(source: Source, table: DataFrame) -> Iterator[tuple[Source, DataFrame]]:
    """The same question in parts, about counted rows."""
    together = [section for section in source.sections if not section.apart]
    if together:
        yield folded(replace(source, sections=together), table)
    for section in source.sections:
        if section.apart:
            whole = replace(section, where="true")
            yield folded(replace(source, sections=[whole]), table.filter(section.where))


def folded(source: Source, table: DataFrame) -> tuple[Source, DataFrame]:
    """The same question, about rows that agree in all that it asks for, counted."""
    names: dict[str, str] = {}  # SQL over the table -> column of the counted rows

    def column(sql: str) -> str:
        return names.setdefault(sql, f"_{len(names)}")

    def cut(key: str) -> str:
        return f"left(CAST({key} AS STRING), {KEY_CHARACTERS})"

    def over_columns(section: Section) -> Section:
        if section.where == "true":
            return replace(section, keys={name: column(cut(key)) for name, key in section.keys.items()})
        keys = {name: column(f"if({section.where}, {cut(key)}, null)") for name, key in section.keys.items()}
        return replace(section, keys=keys, where=column(f"coalesce({section.where}, false)"))

    sections = [over_columns(section) for section in source.sections]
    measured = (F.expr(measure).alias(name) for name, measure in source.measures.items())
    rows = table.groupBy(*(F.expr(sql).alias(name) for sql, name in names.items())).agg(*measured)
    measures = {name: f"{FOLDED[measure.partition('(')[0]]}({name})" for name, measure in source.measures.items()}
    return Source(source.table, measures, sections), rows


def group(section: Section) -> Column:
    """The group that a row belongs to in a section; null when it belongs to none."""
    keys = [F.left(F.expr(key).cast("string"), F.lit(KEY_CHARACTERS)) for key in section.keys.values()]
    return F.when(F.expr(section.where), F.struct(F.lit(section.name).alias("section"), F.array(*keys).alias("key")))


def chosen(numbers: Mapping[str, int]) -> Column:
    """The number of the row's section."""
    entries = [F.lit(entry) for pair in numbers.items() for entry in pair]
    return F.create_map(*entries)[F.col("section")]
