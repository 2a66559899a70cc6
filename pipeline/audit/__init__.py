"""Findings: which rules of the protocol, and of good practice, the captured connections break.

    found = pipeline.findings(tables)
    found.filter("severity = 'violation'").select("rule_id", "summary", "evidence", "packet_no").show()

Rules are data (`catalogue`), what breaks them is data (`detectors`); a context is a set of rows that detectors read,
computed once whatever their number. `tables` are read several times: best those that a job has written. Rows that
break a rule are found when `findings` is called; the DataFrame that comes back tells of them.
"""

from __future__ import annotations

from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, date, datetime
from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pipeline.audit.catalogue import Rule, catalogue
from pipeline.audit.config import Config, exempted
from pipeline.audit.contexts import Sources
from pipeline.audit.detectors import CONTEXTS, DETECTORS
from pipeline.audit.engine import concluded, hits
from pipeline.schemas import FINDINGS
from pipeline.tables.shape import shaped

if TYPE_CHECKING:
    from pipeline import Tables

# Contexts computed at once: one is planned, on one core, while another one runs. What they find is little: kept, it
# makes plans small, and Spark's time for a plan grows faster than the plan.
AT_A_TIME = 3


def findings(
    tables: Tables,
    rules: Collection[str] | None = None,
    disable: Collection[str] = (),
    config: Config | None = None,
    today: date | None = None,
) -> DataFrame:
    """Table findings of `tables`. `rules`, `disable`: ids ('HS-08') or groups ('HS'); all rules where `rules` is None.

    `config`: thresholds, disabled rules and accepted exceptions (`config.read`); `today`: the day on which exceptions
    have to be valid, by default that of the run (UTC). Raises ValueError for ids that are not in the catalogue.
    """
    settings = config or Config()
    chosen = {rule.id: rule for rule in chosen_rules(rules, {*disable, *settings.disabled}, settings)}
    detectors = [detector for detector in DETECTORS if detector.rule in chosen]
    sources = Sources(tables, {rule.id: rule.parameters for rule in chosen.values()})
    if not detectors:
        return shaped(tables.frames.limit(0).select("connection_id"), FINDINGS)
    needed = dict.fromkeys(detector.context for detector in detectors)

    def found_in(name: str) -> DataFrame:
        own = [detector for detector in detectors if detector.context == name]
        return hits(CONTEXTS[name](sources), own, chosen).localCheckpoint()

    sources.connections  # noqa: B018  # all contexts are made with it: computed before they begin
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        found = list(pool.map(found_in, needed))
    all_found = concluded(reduce(DataFrame.unionAll, found), sources.knowledge, chosen.values())
    kept = all_found.filter(~exempted(settings.exceptions, today or datetime.now(UTC).date()))
    places = tables.frames.select("connection_id", "frame_no", "packet_no", "capture_file", "ts")
    placed = kept.join(places, ["connection_id", "frame_no"], "left")
    return shaped(placed.withColumn("evidence", F.parse_json("evidence")), FINDINGS)


def chosen_rules(rules: Collection[str] | None, without: Collection[str], config: Config) -> list[Rule]:
    """The rules of the catalogue that are wanted, with the thresholds of `config`."""
    known = catalogue()
    names = {*known, *(rule.group for rule in known.values())}
    unknown = sorted({*(rules or ()), *without, *config.parameters} - names)
    if unknown:
        raise ValueError(f"no rule {', '.join(unknown)} in the catalogue")
    return [
        replace(rule, parameters={**rule.parameters, **config.parameters.get(rule.id, {})})
        for rule in known.values()
        if (rules is None or {rule.id, rule.group} & set(rules)) and not {rule.id, rule.group} & set(without)
    ]
