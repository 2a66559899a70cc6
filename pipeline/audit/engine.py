"""From rows of contexts to findings: all detectors of a context in one pass, then one row for each rule and thing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from pipeline.audit.catalogue import ALL_VERSIONS, KNOWLEDGE, SEVERITIES, Number, Rule
from pipeline.audit.detector import Detector, Sql

# Columns of a hit: a row of a context that breaks a rule.
DETECTOR_COLUMNS = {
    "rule_id": "string",
    "frame_no": "bigint",
    "at_ns": "bigint",
    "thing": "string",
    "scope": "string",
    "offender": "string",
    "severity": "string",
    "evidence": "string",
    "occurrences": "bigint",
}
# Columns that locate the row; null in contexts without channels.
PLACE = {"connection_id": "bigint", "channel": "int", "channel_life": "bigint"}
HIT_COLUMNS = (*PLACE, *DETECTOR_COLUMNS)
THING = ("rule_id", "connection_id", "of_channel", "of_life", "of_thing")
PER_CHANNEL = ("channel", "link", "message")
CAPTURE = "capture"  # scope of what belongs to no connection
PER_THING = (CAPTURE, "link", "message")


# Columns of findings that come from the rule: name -> attribute of Rule, Arrow type.
RULE_COLUMNS = {
    **{name: (name.removeprefix("rule_"), pa.string()) for name in ("rule_severity", "rule_scope", "rule_offender")},
    "rule_id": ("id", pa.string()),
    **{name: (name, pa.string()) for name in ("category", "summary", "reference")},
    **{name: (name, pa.list_(pa.string())) for name in ("needs", "prefers")},
}


def hits(rows: DataFrame, detectors: Iterable[Detector], rules: Mapping[str, Rule]) -> DataFrame:
    """Rows of one context -> HIT_COLUMNS, one row per detector that matches a row.

    Few rows break a rule, and the description of a hit is built in a lambda that Spark interprets. So all conditions
    are evaluated first, compiled. They are a column and not a filter: from a filter Spark infers constraints through
    all aliases above it, and planning would not terminate.
    """
    present = set(rows.columns)
    place = [f"CAST({name if name in present else 'NULL'} AS {kind}) AS {name}" for name, kind in PLACE.items()]
    chosen = [(detector, rules[detector.rule]) for detector in detectors]
    broken = f"array({', '.join(_condition(*pair) for pair in chosen)})"
    found = f"array({', '.join(_hit(at, *pair) for at, pair in enumerate(chosen))})"
    asked = rows.withColumn("broken", F.expr(broken))
    any_is = "array_contains(broken, true)"
    return asked.selectExpr(*place, f"inline(IF({any_is}, filter({found}, hit -> hit IS NOT NULL), NULL))")


def _condition(detector: Detector, rule: Rule) -> Sql:
    """SQL: true if a row breaks the rule, else false or null."""
    condition = f"({detector.when})"
    if set(rule.versions) < set(ALL_VERSIONS):
        condition = f"(version IN ({', '.join(map(sql_text, rule.versions))}) AND {condition})"
    return with_parameters(condition, rule.parameters)


def _hit(at: int, detector: Detector, rule: Rule) -> Sql:
    """SQL: a struct of DETECTOR_COLUMNS if element `at` of `broken` is true, else null."""
    evidence = ", ".join(f"{sql_text(name)}, {value}" for name, value in detector.evidence.items())
    values = {
        "rule_id": sql_text(rule.id),
        "frame_no": f"{detector.row}.frame_no" if detector.row else detector.frame,
        "at_ns": f"{detector.row}.ts_ns" if detector.row else detector.at_ns,
        "thing": detector.thing if (detector.scope or rule.scope) in PER_THING else "null",
        "scope": sql_text(detector.scope) if detector.scope else "null",
        "offender": detector.offender,
        "severity": detector.severity,
        "evidence": f"to_json(named_struct({evidence}))" if evidence else "'{}'",
        "occurrences": detector.occurrences,
    }
    # A value from the wire that does not fit becomes null: wire data must not raise.
    fields = ", ".join(f"'{name}', TRY_CAST({values[name]} AS {kind})" for name, kind in DETECTOR_COLUMNS.items())
    struct = with_parameters(f"named_struct({fields})", rule.parameters)
    return f"CASE WHEN broken[{at}] THEN {struct} END"


def sql_text(value: str) -> Sql:
    """A string literal."""
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


def with_parameters(sql: Sql, parameters: Mapping[str, Number]) -> Sql:
    """`sql` with the rule's parameters in place of '{name}'."""
    for name, value in parameters.items():
        sql = sql.replace("{" + name + "}", repr(value))
    return sql


def to_findings(found: DataFrame, knowledge: DataFrame, rules: Iterable[Rule]) -> DataFrame:
    """Hits -> findings, one row per rule and thing: its first hit, the number of hits, the texts of the rule, and a
    reservation. `knowledge`: one row per connection with `start`, `both`, `order`, `loss_from_ns`."""
    spark = found.sparkSession
    known = found.join(F.broadcast(rule_rows(spark, rules)), "rule_id").join(knowledge, "connection_id", "left")
    scoped = known.withColumn("scope", F.coalesce("scope", "rule_scope"))
    sure = scoped.withColumns({"lacking": _lacking(), **_things()}).filter("NOT arrays_overlap(needs, lacking)")
    first = F.struct(*(name for name in HIT_COLUMNS if name not in (*THING, "occurrences")))
    rest = [name for name in known.columns if name not in HIT_COLUMNS]
    return (
        sure.groupBy(*THING)
        .agg(
            F.min(F.struct("frame_no", "at_ns", first.alias("hit"), F.struct(*rest).alias("of"), "lacking")).alias(
                "by"
            ),
            F.sum("occurrences").alias("occurrences"),
        )
        .select("rule_id", "connection_id", "by.hit.*", "by.of.*", "by.lacking", "occurrences")
        .withColumns(_severity())
    )


def _things() -> dict[str, Column]:
    """What the finding is about, by the scope of its rule; a finding about a connection has no channel."""
    in_channel = F.col("scope").isin(*PER_CHANNEL)
    return {
        "of_channel": F.when(in_channel, F.col("channel")),
        "of_life": F.when(in_channel, F.col("channel_life")),
        "of_thing": F.when(F.col("scope").isin(*PER_THING), F.col("thing")),
        "channel": F.when(in_channel, F.col("channel")),
        "channel_life": F.when(in_channel, F.col("channel_life")),
    }


def _lacking() -> Column:
    """Names of KNOWLEDGE that a hit was made without."""
    unknown = {
        "start": ~F.coalesce("start", F.lit(False)),
        # A gap starts with the packet before it, and that packet itself is complete.
        "complete": F.coalesce(F.col("loss_from_ns") < F.col("at_ns"), F.lit(False)),
        "both": ~F.coalesce("both", F.lit(False)),
        "order": ~F.coalesce("order", F.lit(False)),
    }
    return F.array_compact(F.array(*(F.when(unknown[name], name) for name in KNOWLEDGE)))


def _severity() -> dict[str, Column]:
    """The severity, lowered by one step if preferred knowledge is missing, and the reservation that says why."""
    missed = F.array_intersect("prefers", "lacking")
    texts = F.create_map(*(F.lit(part) for pair in KNOWLEDGE.items() for part in pair))
    severity = F.coalesce("severity", "rule_severity")
    lower = dict(zip(SEVERITIES, (*SEVERITIES[1:], SEVERITIES[-1]), strict=True))
    lowered = F.create_map(*(F.lit(part) for pair in lower.items() for part in pair))[severity]
    return {
        "severity": F.when(F.size(missed) > 0, lowered).otherwise(severity),
        "offender": F.coalesce("offender", "rule_offender"),
        "reservation": F.when(F.size(missed) > 0, texts[missed[0]]),
    }


def rule_rows(spark: SparkSession, rules: Iterable[Rule]) -> DataFrame:
    """The columns of findings that come from the rule, one row per rule."""
    # From an Arrow table: for a list of rows Spark would start Python workers.
    return spark.createDataFrame(
        pa.Table.from_pylist(
            [{name: getattr(rule, of) for name, (of, _) in RULE_COLUMNS.items()} for rule in rules],
            schema=pa.schema([(name, kind) for name, (_, kind) in RULE_COLUMNS.items()]),
        )
    )
