"""Findings: which rules of the protocol, and of good practice, the captured connections break.

    found = pipeline.findings(tables)
    found.filter("severity = 'violation'").select("rule_id", "summary", "evidence", "packet_no").show()

Rules are data (`catalogue`), and so are the conditions that break them (`detectors`), in DuckDB's SQL. A context is a
set of rows that detectors read, made once for all of them (`contexts`). `engine` makes one program of all that, which
`udfs.findings` runs over Parquet files: in this process (`findings_in`), or in a task of Spark (`findings`). `config`
adds rules of the user. Importing this loads none of them: the catalogue is read by commands that search nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime
from functools import reduce
from importlib import import_module
from typing import TYPE_CHECKING, Any

from codec.tables import FINDINGS

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from pipeline import Tables
    from pipeline.audit.catalogue import Rule as Rule
    from pipeline.audit.config import Config as Config
    from pipeline.audit.detectors import Detector as Detector
    from udfs.findings import Program

# Name -> the module that it is imported from when it is first used.
HOMES = {"Config": "config", "Detector": "detectors", "Rule": "catalogue"}
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
    Raises ValueError for unknown ids and for an invalid `extra`. The rows of all tables come to one task, which writes
    them to its scratch directory: rules compare connections.
    """
    from pyspark.sql import DataFrame

    from pipeline.dataframes import empty
    from udfs.findings import PACKED, FindRows, PackRows
    from udfs.spark_schemas import spark_schema

    wanted = wanted_program(rules, disable, config, today, extra)
    if wanted is None:
        return empty(tables.frames.sparkSession, spark_schema(FINDINGS))
    columns = spark_schema(PACKED)
    packed = [rows.mapInArrow(PackRows(name), columns) for name, rows in tables.items() if name in {*wanted.tables}]
    found = reduce(DataFrame.unionAll, packed).repartition(1).mapInArrow(FindRows(wanted), spark_schema(FINDINGS))
    return found.localCheckpoint()


def findings_in(
    files: Mapping[str, Sequence[str]],
    conditions: Mapping[str, str] | None = None,
    rules: Collection[str] | None = None,
    disable: Collection[str] = (),
    config: Config | None = None,
    today: date | None = None,
    runs: list[Any] | None = None,
) -> pa.Table:
    """Table findings of the tables in Parquet files of this machine, by the name of the table; as `findings`, without
    Spark. `conditions`: by table, SQL that is true on the rows that count. What can be cancelled is appended to
    `runs`."""
    from pipeline.output import scratch
    from udfs.findings import Resources, findings_of, memory_share

    wanted = wanted_program(rules, disable, config, today)
    if wanted is None:
        from udfs.arrow.types import arrow_schema

        return arrow_schema(FINDINGS).empty_table()
    directory = scratch.directories({}).partition(",")[0]
    resources = Resources(memory_bytes=memory_share(), directory=directory)
    return findings_of(files, wanted, resources, conditions or {}, runs)


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
    from pipeline.audit.engine import program

    limits = config or Config()
    additional, searching = validate([*extra, *limits.rules])
    chosen = {rule.id: rule for rule in chosen_rules(rules, {*disable, *limits.disabled}, limits, additional.values())}
    detectors = [detector for detector in (*DETECTORS, *searching) if detector.rule in chosen]
    if not detectors:
        return None
    accepted = is_accepted(limits.exceptions, today or datetime.now(UTC).date())
    return program(detectors, chosen, additional.keys(), accepted)


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
