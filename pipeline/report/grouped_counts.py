"""Grouped counts: many small aggregates over several tables, each with a bounded number of groups.

A `Section` groups the rows of its source by some expressions; all sections of a source have the same measures. The
groups of a section beyond its `limit` largest are counted and not read: what is in memory does not grow with the
capture. DuckDB counts, in the process of the command (`pipeline.explore.duckdb_tables`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipeline.explore.duckdb_tables import Session

# Latencies are counted in classes, 256 for each doubling: a percentile read from them is at most 0.14 % off. 64-bit
# nanoseconds have 63 doublings, and few outcomes and methods occur: 40,000 classes are enough.
CLASSES_PER_OCTAVE = 256
# Longer keys are truncated before grouping: a string of 1.0 may be as long as its frame.
KEY_CHARACTERS = 400


@dataclass(frozen=True)
class Section:
    """Groups by `keys` (name -> SQL) of the rows for which `where` is true; the highest `rank` comes first."""

    name: str
    keys: Mapping[str, str]
    where: str = "true"
    rank: str = "rows"
    limit: int = 20


@dataclass(frozen=True)
class Source:
    """Rows with their sections: the table `name`, or the `rows` of a query. `measures`: name -> SQL aggregate, a whole
    number, computed for every group."""

    name: str
    measures: Mapping[str, str]
    sections: Sequence[Section]
    rows: str | None = None

    @staticmethod
    def named(name: str) -> str:
        """The temporary table of a source that is materialized."""
        return f"of_{name}"

    @property
    def materialized(self) -> bool:
        """Whether the rows of its query become a table: not for one section, since they may be as many as messages."""
        return self.rows is not None and len(self.sections) > 1


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


def count_groups(session: Session, sources: Iterable[Source]) -> dict[str, Groups]:
    """All sections by name. Raises QueryError."""
    found = {}
    for source in sources:
        if source.materialized:
            session.execute(f"CREATE OR REPLACE TEMP TABLE {Source.named(source.name)} AS {source.rows}")
        for section in source.sections:
            rows = session.rows(query(source, section))
            total = rows[0]["total"] if rows else 0
            names = (*section.keys, *source.measures)
            found[section.name] = Groups([dict(zip(names, row.values(), strict=False)) for row in rows], total)
    return found


def query(source: Source, section: Section) -> str:
    """SQL for the groups of a section: keys, measures, and `total`."""
    # Their names would hide columns that other expressions read.
    keys = {f"k{at}": sql for at, sql in enumerate(section.keys.values())}
    measures = {f"m{at}": sql for at, sql in enumerate(source.measures.values())}
    columns = [
        *(f"left(CAST({sql} AS VARCHAR), {KEY_CHARACTERS}) AS {name}" for name, sql in keys.items()),
        *(f"TRY_CAST({sql} AS BIGINT) AS {name}" for name, sql in measures.items()),
    ]
    rank = f"m{list(source.measures).index(section.rank)}"
    rows = Source.named(source.name) if source.materialized else f"({source.rows})" if source.rows else source.name
    return (
        f"SELECT *, count(*) OVER () AS total FROM ("
        f"SELECT {', '.join(columns)} FROM {rows} WHERE {section.where} GROUP BY {', '.join(keys)}) "
        f"ORDER BY {rank} DESC NULLS LAST, {', '.join(f'{name} NULLS FIRST' for name in keys)} LIMIT {section.limit}"
    )


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

    Shortest and longest are exact. Quantiles are the middle of their class, at most 0.14 % off.
    """
    counted: dict[str, list[Mapping[str, Any]]] = {}
    for group in classes:
        counted.setdefault(" ".join(str(group[name]) for name in names), []).append(group)
    found = [latency(what, sorted(groups, key=lambda group: int(group["class"]))) for what, groups in counted.items()]
    return sorted(found, key=lambda found: (-found.number, found.what))


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
