"""Grouped counts: many small aggregates over several tables, in one Spark query with a bounded number of result rows.

A `Section` groups the rows of a table by some expressions; all sections of a table share its measures, so that a table
is scanned once whatever the number of its sections. The groups of a section beyond its `limit` largest are counted and
not collected: what comes to the driver does not grow with the capture.

A row that belongs to five sections becomes five rows to group, by text keys. Therefore large tables are first
aggregated by the keys of all sections together (`pre_aggregated`), which usually leaves few rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pipeline.summaries import MEASURE_NAMES

# Latencies are counted in classes, 16 for each doubling: a percentile read from them is at most 2.2 % off. 64-bit
# nanoseconds have 63 doublings, and few outcomes and methods occur: 4000 classes are enough.
CLASSES_PER_OCTAVE = 16
# Longer keys are truncated before grouping: a string of 1.0 may be as long as its frame.
KEY_CHARACTERS = 400

# Aggregate function -> the function that merges its partial results.
MERGE = {"count": "sum", "count_if": "sum", "sum": "sum", "max": "max", "min": "min"}


@dataclass(frozen=True)
class Section:
    """Groups by `keys` (name -> SQL) of the rows for which `where` is true; the highest `rank` comes first.

    `separate`: in a large table the section is counted on its own, because its keys have many values, or because
    `where` lets Spark skip files.
    """

    name: str
    keys: Mapping[str, str]
    where: str = "true"
    rank: str = "rows"
    limit: int = 20
    separate: bool = False


@dataclass(frozen=True)
class Source:
    """A table with its sections; `measures`: name -> SQL aggregate of type LONG, computed for every group."""

    table: str
    measures: Mapping[str, str]
    sections: Sequence[Section]


@dataclass(frozen=True)
class Groups:
    """The largest groups, with their keys (text or None) and measures (numbers or None); `total`: how many exist."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    total: int = 0

    @property
    def more(self) -> int:
        """Groups that are not shown."""
        return self.total - len(self.rows)

    def counted(self, key: str) -> Counter[str]:
        """The number of rows by the value of a key."""
        found = Counter[str]()
        for group in self.rows:
            found[str(group[key])] += group["rows"] or 0
        return found


def count_groups(
    sources: Sequence[Source], tables: Mapping[str, DataFrame], large: Collection[str] = ()
) -> dict[str, Groups]:
    """All sections by name, in one query whose branches run in parallel. `large`: tables to aggregate in two steps;
    their measures must be functions in MERGE."""
    sections = {section.name: (source, section) for source in sources for section in source.sections}
    steps = (
        step
        for source in sources
        for step in (
            two_step_counts(source, tables[source.table]) if source.table in large else [(source, tables[source.table])]
        )
    )
    groups = reduce(DataFrame.unionAll, (count_sections(*step) for step in steps))
    ranks = {name: list(source.measures).index(section.rank) for name, (source, section) in sections.items()}
    limits = {name: section.limit for name, (_, section) in sections.items()}
    largest_first = f"PARTITION BY section ORDER BY get(measures, {by_section(ranks)}) DESC NULLS LAST, key"
    placed = groups.selectExpr(
        "*", f"row_number() OVER ({largest_first}) AS place", "count(1) OVER (PARTITION BY section) AS total"
    )
    rows = placed.filter(f"place <= {by_section(limits)}").collect()
    found = {name: Groups() for name in sections}
    for row in sorted(rows, key=lambda row: (row.section, row.place)):
        source, section = sections[row.section]
        keys = dict(zip(section.keys, row.key, strict=True))
        measures = dict(zip(source.measures, row.measures, strict=True))
        found[row.section] = Groups([*found[row.section].rows, keys | measures], row.total)
    return found


def count_sections(source: Source, table: DataFrame) -> DataFrame:
    """(section, key, measures) of every group of every section of a table."""
    measures = ", ".join(f"CAST({measure} AS BIGINT)" for measure in source.measures.values())
    return (
        table.selectExpr("*", f"explode(array_compact(array({', '.join(map(group, source.sections))}))) AS _group")
        .groupBy("_group")
        .agg(F.expr(f"array({measures}) AS measures"))
        .selectExpr("_group.*", "measures")
    )


def two_step_counts(source: Source, table: DataFrame) -> Iterator[tuple[Source, DataFrame]]:
    """Split a source into sources over pre-aggregated rows."""
    together = [section for section in source.sections if not section.separate]
    if together:
        yield pre_aggregated(replace(source, sections=together), table)
    for section in source.sections:
        if section.separate:
            whole = replace(section, where="true")
            yield pre_aggregated(replace(source, sections=[whole]), table.filter(section.where))


def pre_aggregated(source: Source, table: DataFrame) -> tuple[Source, DataFrame]:
    """The source over pre-aggregated rows: rows that agree in all keys are counted first."""
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
    measured = (F.expr(f"{measure} AS {name}") for name, measure in source.measures.items())
    rows = table.groupBy(*(F.expr(f"{sql} AS {name}") for sql, name in names.items())).agg(*measured)
    measures = {name: f"{MERGE[measure.partition('(')[0]]}({name})" for name, measure in source.measures.items()}
    return Source(source.table, measures, sections), rows


def group(section: Section) -> str:
    """SQL for the group of a row in a section; null if `where` is false."""
    keys = ", ".join(f"left(CAST({key} AS STRING), {KEY_CHARACTERS})" for key in section.keys.values())
    return f"CASE WHEN {section.where} THEN struct('{section.name}' AS section, array({keys}) AS key) END"


def by_section(numbers: Mapping[str, int]) -> str:
    """SQL for the number of the row's section."""
    cases = " ".join(f"WHEN '{name}' THEN {number}" for name, number in numbers.items())
    return f"CASE section {cases} END"


QUANTILES = (0.5, 0.9, 0.99)


@dataclass(frozen=True)
class Latency:
    """Latencies of `number` events, ns: `shortest` if known, `quantiles` as in QUANTILES, `longest`."""

    what: str
    number: int
    shortest: int | None
    quantiles: tuple[int, ...]
    longest: int


def latencies(classes: Iterable[Mapping[str, Any]], *names: str) -> list[Latency]:
    """One Latency per value of the keys `names`, the most frequent first.

    Shortest and longest are exact. Quantiles are the middle of their class, at most 2.2 % off.
    """
    counted: dict[str, list[Mapping[str, Any]]] = {}
    for group in classes:
        counted.setdefault(" ".join(str(group[name]) for name in names), []).append(group)
    found = [latency(what, sorted(groups, key=lambda group: int(group["class"]))) for what, groups in counted.items()]
    return sorted(found, key=lambda found: (-found.number, found.what))


def flow_latencies(rows: Iterable[Mapping[str, Any]]) -> list[Latency]:
    """Rows of `pipeline.latency`, with the names of their measures."""
    return [
        Latency(
            MEASURE_NAMES[row["measure"]],
            row["count"],
            None,
            (row["p50_ns"], row["p90_ns"], row["p99_ns"]),
            row["max_ns"],
        )
        for row in sorted(rows, key=lambda row: list(MEASURE_NAMES).index(row["measure"]))
        if row["count"]
    ]


def latency(what: str, groups: list[Mapping[str, Any]]) -> Latency:
    """One Latency from its classes in ascending order."""
    number = sum(group["rows"] for group in groups)
    shortest = min(group["shortest"] for group in groups)
    longest = max(group["longest"] for group in groups)
    inside = (min(max(quantile(groups, number, share), shortest), longest) for share in QUANTILES)
    return Latency(what, number, shortest, tuple(inside), longest)


def quantile(groups: list[Mapping[str, Any]], number: int, share: float) -> int:
    """The quantile at `share`, as the middle of its class."""
    seen = 0
    for group in groups:
        seen += group["rows"]
        if seen >= share * number:
            break
    return round(2 ** ((int(group["class"]) + 0.5) / CLASSES_PER_OCTAVE))
