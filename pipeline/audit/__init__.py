"""Findings: which rules of the protocol, and of good practice, the captured connections break.

    found = pipeline.findings(tables)
    found.filter("severity = 'violation'").select("rule_id", "summary", "evidence", "packet_no").show()

Rules are data (`catalogue`), and so are the conditions that break them (`detectors`), in DuckDB's SQL. A context is a
set of rows that detectors read, made once for all of them (`contexts`). `rule_program` makes one program of all that,
which `udfs.findings` runs for groups of connections: in this process, on the files that one task of a decode has
written (`findings_in`, `file_groups`), or in tasks of Spark (`findings`, `on_spark`). `config` adds rules of the user.
Importing this loads none of them: the catalogue is read by commands that search nothing.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, date, datetime
from importlib import import_module
from typing import TYPE_CHECKING, Any

from codec.tables import FINDINGS

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from pipeline.audit.catalogue import Rule as Rule
    from pipeline.audit.config import Config as Config
    from pipeline.audit.detectors import Detector as Detector
    from pipeline.tables.dataframes import Tables
    from udfs.findings.evaluation import Answer, Question, Run
    from udfs.findings.program import Program

# Name -> the module that it is imported from when it is first used.
HOMES = {"Config": "config", "Detector": "detectors", "Rule": "catalogue"}
AT_ONCE_BYTES = 256 << 20  # of memory for groups that are audited at once; beside it each checks sequences of frames
__all__ = [*HOMES, "chosen_rules", "findings", "findings_in"]


def __getattr__(name: str) -> Any:
    if name not in HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name, obj=None)
    found = globals()[name] = getattr(import_module(f"{__name__}.{HOMES[name]}"), name)
    return found


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
    Raises ValueError for unknown ids and for an invalid `extra`. Spark spreads groups of connections over its tasks
    (`on_spark`); the findings are on its disks.
    """
    from pipeline.audit.on_spark import findings_of
    from pipeline.tables.dataframes import empty
    from udfs.arrow.spark_schemas import spark_schema

    wanted = wanted_program(rules, disable, config, today, extra)
    return findings_of(tables, wanted) if wanted else empty(tables.frames.sparkSession, spark_schema(FINDINGS))


def findings_in(
    files: Mapping[str, Sequence[str]],
    conditions: Mapping[str, str] | None = None,
    rules: Collection[str] | None = None,
    disable: Collection[str] = (),
    config: Config | None = None,
    today: date | None = None,
    run: Run | None = None,
    most_bytes: int | None = None,
) -> pa.Table:
    """Table findings of the tables in Parquet files of this machine, by the name of the table; as `findings`, without
    Spark. `conditions`: by table, SQL that is true on the rows that count. What can be cancelled is in `run`. Files
    with other connections are audited apart, in groups of up to `most_bytes` (by default GROUP_BYTES), as many groups
    at once as there are processors: DuckDB evaluates them in threads."""
    import pyarrow as pa

    from pipeline.audit.file_groups import GROUP_BYTES, groups_of
    from pipeline.run import scratch
    from udfs.findings.evaluation import TASK_BYTES, Resources, answer, findings_across, findings_of

    wanted = wanted_program(rules, disable, config, today)
    if wanted is None:
        from udfs.arrow.types import arrow_schema

        return arrow_schema(FINDINGS).empty_table()
    directory = scratch.directories({}).partition(",")[0]
    groups = groups_of(files, GROUP_BYTES if most_bytes is None else most_bytes)
    at_once = min(len(groups), os.cpu_count() or 1)
    threads = None if at_once == 1 else max(1, (os.cpu_count() or 1) // at_once)
    resources = Resources(threads, TASK_BYTES if at_once == 1 else AT_ONCE_BYTES // at_once, directory)
    if len(groups) == 1:
        return findings_of(files, wanted, resources, conditions or {}, run)

    def ask(question: Question) -> Iterator[Answer]:
        with ThreadPoolExecutor(at_once) as pool:  # the end of map cancels what has not begun
            yield from pool.map(lambda group: answer(group, wanted, question, resources, conditions or {}, run), groups)

    return pa.concat_tables(findings_across(ask, wanted, Resources(None, TASK_BYTES, directory), run))


def wanted_program(
    rules: Collection[str] | None = None,
    disable: Collection[str] = (),
    config: Config | None = None,
    today: date | None = None,
    extra: Iterable[tuple[Rule, Detector]] = (),
) -> Program | None:
    """The program that checks the wanted rules; None: there are none."""
    from pipeline.audit.config import Config, is_accepted, validate
    from pipeline.audit.detectors import DETECTORS
    from pipeline.audit.rule_program import program

    limits = config or Config()
    additional, searching = validate([*extra, *limits.rules])
    active = {rule.id: rule for rule in chosen_rules(rules, {*disable, *limits.disabled}, limits, additional.values())}
    detectors = [detector for detector in (*DETECTORS, *searching) if detector.rule in active]
    if not detectors:
        return None
    accepted = is_accepted(limits.exceptions, today or datetime.now(UTC).date())
    return program(detectors, active, additional.keys(), accepted)


def chosen_rules(
    rules: Collection[str] | None, without: Collection[str], config: Config, additional: Collection[Rule] = ()
) -> list[Rule]:
    """The rules of the catalogue and the additional ones that are wanted, with the thresholds of `config`."""
    from pipeline.audit.catalogue import names_of, with_custom

    known = with_custom(additional)
    unknown = sorted({*(rules or ()), *without, *config.parameters} - names_of(known))
    if unknown:
        raise ValueError(f"no rule {', '.join(unknown)} in the catalogue, nor in `extra`")
    return [
        replace(rule, parameters={**rule.parameters, **config.parameters.get(rule.id, {})})
        for rule in known.values()
        if (rules is None or {rule.id, rule.group} & set(rules)) and not {rule.id, rule.group} & set(without)
    ]
