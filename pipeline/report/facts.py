"""The facts of the report, collected by a few Spark queries with a bounded number of rows."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame

from pipeline.report import evidence, sections
from pipeline.report.groups import Groups, count_groups
from pipeline.summaries import latency

if TYPE_CHECKING:
    from pipeline import Tables


PARALLEL_QUERIES = 3  # queries: one is planned, on one core, while another one runs


@dataclass(frozen=True)
class Facts:
    """`groups`: by the names of the sections in `sections` and `evidence`; `examples`: by rule; `endpoints`: by
    connection_id.

    `flows`: latencies of messages through the broker, rows of `pipeline.latency`.
    `first_ns`, `last_ns`: times of the first and last packet, ns since 1970 UTC; both 0 where there is none.
    """

    groups: Mapping[str, Groups]
    examples: Mapping[str, list[dict[str, Any]]]
    endpoints: Mapping[int, dict[str, Any]]
    flows: list[dict[str, Any]]
    first_ns: int
    last_ns: int

    def total(self, section: str, measure: str = "rows") -> int:
        """The sum of a measure over the groups of a section."""
        return sum(int(group[measure] or 0) for group in self.groups[section].rows)


def collect_facts(all_tables: Tables, findings: DataFrame, *, flows: bool = True, large: bool = True) -> Facts:
    """Query the tables and the findings of an audit, in parallel. `flows`: include message flows; `large`: there are
    many messages and methods."""
    tables = dict(all_tables.items())
    with ThreadPoolExecutor(PARALLEL_QUERIES) as pool:
        latencies = pool.submit(lambda: latency(all_tables).collect()) if flows else None
        found = pool.submit(evidence.examples, findings, tables["connections"])
        first_ns, last_ns, groups = _counted(tables, findings, sections.LARGE if large else (), flows)
        connections = {int(str(group["connection_id"])) for group in groups["unsettled_channels"].rows}
        endpoints = evidence.connection_ends(tables["connections"], tables["links"], connections)
        through = [row.asDict() for row in latencies.result()] if latencies and groups["outcomes"].rows else []
        return Facts(groups, found.result(), endpoints, through, first_ns, last_ns)


def _counted(
    tables: dict[str, DataFrame], findings: DataFrame, large: Collection[str], flows: bool
) -> tuple[int, int, Mapping[str, Groups]]:
    """Times of the first and last packet, ns, and all sections."""
    ends = tables["captures"].selectExpr("unix_micros(min(first_ts))", "unix_micros(max(last_ts))")
    first, last = ends.collect()[0]
    first_ns, last_ns = (first or 0) * 1000, (last or 0) * 1000 + 999 if last else 0
    groups = count_groups(
        [*sections.sources(first_ns, last_ns), evidence.FINDINGS, evidence.AFFECTED],
        {**sections.section_tables(tables, flows), **evidence.evidence_tables(findings, tables["connections"])},
        large,
    )
    return first_ns, last_ns, groups
