"""Findings: which rules of the protocol, and of good practice, the captured connections break.

    found = pipeline.findings(tables)
    found.filter("severity = 'violation'").select("rule_id", "summary", "evidence", "packet_no").show()

Rules are data (`catalogue`), what breaks them is data (`detectors`); a context is a set of rows that detectors read,
computed once whatever their number. Rules of one's own come beside them (`own`). `tables` are read several times: best
those that a job has written. Rows that break a rule are found when `findings` is called; the DataFrame that comes back
tells of them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, date, datetime
from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pipeline.audit import own
from pipeline.audit.catalogue import ALL_VERSIONS, Rule, names_of, with_own
from pipeline.audit.config import Config, exempted
from pipeline.audit.contexts.materialized import ASKING, kept
from pipeline.audit.contexts.registry import Sources
from pipeline.audit.detector import Detector
from pipeline.audit.detectors import CONTEXTS, DETECTORS, MADE_OF, READING
from pipeline.audit.engine import CAPTURE, concluded, hits
from pipeline.schemas import FINDINGS
from pipeline.session import settings
from pipeline.tables.shape import shaped

if TYPE_CHECKING:
    from pipeline import Tables

__all__ = ["Config", "Detector", "Rule", "chosen_rules", "findings"]

# Contexts computed at once: one is planned, on one core, while another one runs. What they find is little: kept, it
# makes plans small, and Spark's time for a plan grows faster than the plan.
AT_A_TIME = 3


def findings(
    tables: Tables,
    rules: Collection[str] | None = None,
    disable: Collection[str] = (),
    config: Config | None = None,
    today: date | None = None,
    extra: Iterable[tuple[Rule, Detector]] = (),
) -> DataFrame:
    """Table findings of `tables`. `rules`, `disable`: ids ('HS-08') or groups ('HS'); all rules where `rules` is None.

    `config`: thresholds, disabled rules, accepted exceptions, rules of your own (`config.read`); `today`: the day on
    which exceptions have to be valid, by default that of the run (UTC). `extra`: rules of your own with their detectors
    (`own`), to which all of this applies as well. Raises ValueError for ids that are in neither, and for an `extra`
    that does not fit.
    """
    limits = config or Config()
    additional, searching = own.checked([*extra, *limits.rules])
    without = {*disable, *limits.disabled}
    wanted = {rule.id: rule for rule in chosen_rules(rules, without, limits, additional.values())}
    nothing = shaped(tables.frames.limit(0).select("connection_id"), FINDINGS)
    if not wanted:
        return nothing
    sources = Sources(tables, {rule.id: rule.parameters for rule in wanted.values()})
    with settings(tables.frames.sparkSession, ASKING), ThreadPoolExecutor(AT_A_TIME) as pool:
        # All contexts are made with the first two, and nearly all rules are about messages too.
        beginnings = ["control_methods", "seconds", *(("tallied",) if rules is None else ())]
        begun = [pool.submit(getattr, sources, name) for name in beginnings]
        spoken = {*ALL_VERSIONS} & sources.versions
        chosen = {
            name: rule
            for name, rule in wanted.items()
            if name in additional or {*rule.versions} >= {*ALL_VERSIONS} or {*rule.versions} & spoken
        }
        sources.rules = chosen.keys()
        detectors = [detector for detector in (*DETECTORS, *searching) if detector.rule in chosen]
        found = _found(sources, detectors, chosen, additional.keys(), pool)
        _ = [beginning.result() for beginning in begun]
    if not found:
        return nothing
    with settings(tables.frames.sparkSession, sources.brief()):
        all_found = concluded(kept(reduce(DataFrame.unionAll, found)), sources.knowledge, chosen.values())
        told = kept(all_found.filter(~exempted(limits.exceptions, today or datetime.now(UTC).date())))
    place = ["connection_id", "frame_no"]
    places = tables.frames.select(*place, "packet_no", "capture_file", "ts")
    placed = told.join(places.join(told.select(*place).distinct(), place, "left_semi"), place, "left").withColumn(
        "capture_file", F.coalesce("capture_file", F.when(F.col("scope") == CAPTURE, F.col("thing")))
    )
    return shaped(placed.withColumn("evidence", F.parse_json("evidence")), FINDINGS)


def _found(
    sources: Sources,
    detectors: Iterable[Detector],
    rules: Mapping[str, Rule],
    additional: Collection[str],
    pool: ThreadPoolExecutor,
) -> list[DataFrame]:
    """What the detectors hit, by context: first in contexts that read all rows of a table, then in those that are made
    of few."""
    # For rules of one's own a context is a table, also where the catalogue has a context of that name.
    needed: dict[tuple[bool, str], list[Detector]] = {}
    for detector in detectors:
        needed.setdefault((detector.rule in additional, detector.context), []).append(detector)

    def found_in(place: tuple[bool, str]) -> DataFrame | None:
        is_own, name = place
        rows = own.context(sources, name) if is_own else CONTEXTS[name](sources)
        return None if rows is None else hits(rows, needed[place], rules).localCheckpoint()

    makings = dict.fromkeys(making for is_own, name in needed if not is_own for making in MADE_OF.get(name, ()))
    made = [pool.submit(getattr, sources, name) for name in makings]
    reading = [place for place in needed if place[0] or place[1] in READING]
    found = list(pool.map(found_in, reading))
    _ = [making.result() for making in made]
    with settings(sources.tables.frames.sparkSession, sources.brief()):
        found += pool.map(found_in, (place for place in needed if place not in reading))
    return [rows for rows in found if rows is not None]


def chosen_rules(
    rules: Collection[str] | None, without: Collection[str], config: Config, additional: Collection[Rule] = ()
) -> list[Rule]:
    """The rules of the catalogue and the additional ones that are wanted, with the thresholds of `config`."""
    known = with_own(additional)
    unknown = sorted({*(rules or ()), *without, *config.parameters} - names_of(known))
    if unknown:
        raise ValueError(f"no rule {', '.join(unknown)} in the catalogue, nor in `extra`")
    return [
        replace(rule, parameters={**rule.parameters, **config.parameters.get(rule.id, {})})
        for rule in known.values()
        if (rules is None or {rule.id, rule.group} & set(rules)) and not {rule.id, rule.group} & set(without)
    ]
