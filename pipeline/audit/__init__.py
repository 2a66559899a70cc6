"""Findings: which rules of the protocol, and of good practice, the captured connections break.

    found = pipeline.findings(tables)
    found.filter("severity = 'violation'").select("rule_id", "summary", "evidence", "packet_no").show()

Rules are data (`catalogue`), and so are the conditions that break them (`detectors`). A context is a set of rows that
detectors read, computed once for all of them. `config` adds rules of the user. The tables are read several times, so
they should come from files or be cached. `findings` searches when it is called, and returns a DataFrame.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, date, datetime
from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame

from pipeline.audit.catalogue import ALL_VERSIONS, Rule, names_of, with_custom
from pipeline.audit.config import Config, custom_rows, is_accepted, validate
from pipeline.audit.contexts import CONTEXTS, RELATIONS
from pipeline.audit.contexts.sources import CHANNEL, FEW, PUSH_DOWN_VALUES, SMALL, Relation, Sources, audit_settings
from pipeline.audit.detectors import DETECTORS, Detector
from pipeline.audit.engine import OF_FINDINGS, PLACED, TO_FINDINGS, hits, rule_rows
from pipeline.dataframes import shaped
from pipeline.schemas import FINDINGS, TABLES
from pipeline.session import settings

if TYPE_CHECKING:
    from pipeline import Tables

__all__ = ["Config", "Detector", "Rule", "chosen_rules", "findings"]

# Queries at the same time: one is planned, on one core, while another one runs. Their results are small and
# materialized: this keeps plans small, and Spark's planning time grows faster than the plan.
PARALLEL_QUERIES = 3
# Contexts in one query, if all rows are few.
CONTEXTS_PER_QUERY = 4


def findings(
    tables: Tables,
    rules: Collection[str] | None = None,
    disable: Collection[str] = (),
    config: Config | None = None,
    today: date | None = None,
    extra: Iterable[tuple[Rule, Detector]] = (),
) -> DataFrame:
    """Table findings of `tables`. `rules`, `disable`: ids ('HS-08') or groups ('HS'); all rules where `rules` is None.

    `config`: thresholds, disabled rules, accepted exceptions, custom rules (`config.read`); `today`: the day on which
    exceptions must be valid, by default the current day (UTC). `extra`: custom rules with their detectors (`config`).
    Raises ValueError for unknown ids and for an invalid `extra`.
    """
    limits = config or Config()
    additional, searching = validate([*extra, *limits.rules])
    without = {*disable, *limits.disabled}
    wanted = {rule.id: rule for rule in chosen_rules(rules, without, limits, additional.values())}
    nothing = shaped(tables.frames.limit(0).select("connection_id"), FINDINGS)
    if not wanted:
        return nothing
    spark = tables.frames.sparkSession
    parameters = {rule.id: rule.parameters for rule in wanted.values()}
    with (
        Sources(tables, RELATIONS, parameters) as sources,
        settings(spark, {**_plans(tables), **PUSH_DOWN_VALUES}),
        ThreadPoolExecutor(PARALLEL_QUERIES) as pool,
    ):
        # All contexts need the first two, and nearly all need the third.
        beginnings = ["control_methods", "seconds", *(("message_counts",) if rules is None else ())]
        begun = [pool.submit(sources.view, name) for name in beginnings]
        versions = sources.versions
        chosen = {
            name: rule
            for name, rule in wanted.items()
            if name in additional or {*rule.versions} >= {*ALL_VERSIONS} or {*rule.versions} & versions
        }
        sources.rules = chosen.keys()
        detectors = [detector for detector in (*DETECTORS, *searching) if detector.rule in chosen]
        found = _found(sources, detectors, chosen, additional.keys(), pool)
        _ = [beginning.result() for beginning in begun]
        if not found:
            return nothing
        accepted = is_accepted(limits.exceptions, today or datetime.now(UTC).date())
        few = sources.few_frames
        sources.relations = {
            **RELATIONS,
            "hits": Relation(lambda _: reduce(DataFrame.unionAll, found), materialized=False),
            "rules": Relation(lambda _: spark.sql(rule_rows(chosen.values())), materialized=False),
            "findings": Relation(f"SELECT * FROM ({TO_FINDINGS}) WHERE NOT ({accepted})", materialized=not few),
        }
        with settings(spark, sources.settings()):
            placed = shaped(sources.query(PLACED.format("" if few else OF_FINDINGS)), FINDINGS)
            return placed.localCheckpoint() if few else placed


def _plans(tables: Tables) -> Mapping[str, str]:
    """Spark settings for the size of the tables. Without files to tell it, the frames are counted."""
    spark = tables.frames.sparkSession
    if tables.byte_size is not None:
        return audit_settings(spark, tables.byte_size)
    return SMALL if tables.frames.limit(FEW + 1).count() <= FEW else {}


def _found(
    sources: Sources,
    detectors: Iterable[Detector],
    rules: Mapping[str, Rule],
    additional: Collection[str],
    pool: ThreadPoolExecutor,
) -> list[DataFrame]:
    """The hits of the detectors: first in contexts that scan whole tables, then in those made of few rows."""
    # For custom rules a context is a table, even if the catalogue has a context of the same name.
    needed: dict[tuple[bool, str], list[Detector]] = {}
    for detector in detectors:
        needed.setdefault((detector.rule in additional, detector.context), []).append(detector)

    def hits_in(place: tuple[bool, str]) -> DataFrame | None:
        is_own, name = place
        if is_own:
            own = [column for column in CHANNEL if column in TABLES[name].names]
            return hits(sources.query(custom_rows(name)), own, needed[place], rules)
        context = CONTEXTS[name]
        if not sources.occurs(context):
            return None
        sql = context.sql if isinstance(context.sql, str) else context.sql(sources)
        return None if sql is None else hits(sources.query(sql), context.place, needed[place], rules)

    def found_in(places: Sequence[tuple[bool, str]]) -> DataFrame | None:
        found = [rows for place in places if (rows := hits_in(place))]
        if not found:
            return None
        # In one task if there is little to do: each task of a union reads the plan of all of its contexts.
        rows = reduce(DataFrame.unionAll, found)
        return (rows.coalesce(1) if few else rows).localCheckpoint()

    scanning = [place for place in needed if place[0] or CONTEXTS[place[1]].full_scan]
    others = [place for place in needed if place not in scanning]
    few = sources.few_frames
    size = CONTEXTS_PER_QUERY if few else 1
    found = list(pool.map(found_in, batched(scanning, size)))
    with settings(sources.spark, sources.settings()):
        found += pool.map(found_in, batched(others, size))
    return [rows for rows in found if rows is not None]


def batched(places: Sequence[tuple[bool, str]], size: int) -> list[Sequence[tuple[bool, str]]]:
    """Contexts in groups of this size."""
    return [places[at : at + size] for at in range(0, len(places), size)]


def chosen_rules(
    rules: Collection[str] | None, without: Collection[str], config: Config, additional: Collection[Rule] = ()
) -> list[Rule]:
    """The rules of the catalogue and the additional ones that are wanted, with the thresholds of `config`."""
    known = with_custom(additional)
    unknown = sorted({*(rules or ()), *without, *config.parameters} - names_of(known))
    if unknown:
        raise ValueError(f"no rule {', '.join(unknown)} in the catalogue, nor in `extra`")
    return [
        replace(rule, parameters={**rule.parameters, **config.parameters.get(rule.id, {})})
        for rule in known.values()
        if (rules is None or {rule.id, rule.group} & set(rules)) and not {rule.id, rule.group} & set(without)
    ]
