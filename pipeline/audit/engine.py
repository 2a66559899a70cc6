"""From rows of contexts to findings: all detectors of a context in one pass, then one row for each rule and thing."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence

from pyspark.sql import DataFrame

from pipeline.audit.catalogue import ALL_VERSIONS, KNOWLEDGE, SEVERITIES, Number, Rule
from pipeline.audit.config import CONNECTION_KEYS
from pipeline.audit.contexts.sources import CHANNEL, columns
from pipeline.audit.detectors import Detector, Sql, sql_in, sql_text

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
PLACE = dict(zip(CHANNEL, ("bigint", "int", "bigint"), strict=True))
HIT_COLUMNS = (*PLACE, *DETECTOR_COLUMNS)
THING = ("rule_id", "connection_id", "of_channel", "of_life", "of_thing")
PER_CHANNEL = ("channel", "link", "message")
CAPTURE = "capture"  # scope of what belongs to no connection
PER_THING = (CAPTURE, "link", "message")


# Columns of findings that come from the rule: name -> attribute of Rule.
RULE_COLUMNS = {
    **{name: name.removeprefix("rule_") for name in ("rule_severity", "rule_scope", "rule_offender")},
    "rule_id": "id",
    **{name: name for name in ("category", "summary", "reference", "needs", "prefers")},
}
RULE_LISTS = ("needs", "prefers")


def hits(
    rows: DataFrame, place: Collection[str], detectors: Iterable[Detector], rules: Mapping[str, Rule]
) -> DataFrame:
    """Rows of one context -> HIT_COLUMNS, one row per detector that matches a row. `place`: which of PLACE they have.

    Few rows break a rule. So all conditions are evaluated first, compiled; the description of a hit is an argument of a
    function with a lambda, which Spark interprets. The conditions are a column and not a filter: from a filter Spark
    infers constraints through all aliases above it, and planning would not terminate. From an explode of a column it
    would infer one.
    """
    chosen = [(detector, rules[detector.rule]) for detector in detectors]
    conditions = ", ".join(f"CASE WHEN {condition(*pair)} THEN {at} END" for at, pair in enumerate(chosen))
    described = [description(*pair) for pair in chosen]
    fields = ", ".join(
        f"'{name}', {chosen_value([values[name] for values in described], kind)}"
        for name, kind in DETECTOR_COLUMNS.items()
    )
    located = (f"CAST({name if name in place else 'NULL'} AS {kind}) AS {name}" for name, kind in PLACE.items())
    return (
        rows.selectExpr("*", f"array({conditions}) AS broken")
        .selectExpr("*", "explode(IF(array_max(broken) IS NOT NULL, array_compact(broken), NULL)) AS detector")
        .selectExpr(*located, f"inline(filter(array(named_struct({fields})), hit -> true))")
    )


def condition(detector: Detector, rule: Rule) -> Sql:
    """True if a row breaks the rule, else false or null."""
    sql = detector.when
    if set(rule.versions) < set(ALL_VERSIONS):
        sql = f"{sql_in('version', rule.versions)} AND ({sql})"
    return with_parameters(sql, rule.parameters)


def description(detector: Detector, rule: Rule) -> dict[str, Sql]:
    """DETECTOR_COLUMNS of a row that breaks the rule."""
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
    return {name: with_parameters(value, rule.parameters) for name, value in values.items()}


def chosen_value(values: Sequence[Sql], kind: str) -> Sql:
    """The value of the row's detector, of which `detector` is the number. A value from the wire that does not fit
    becomes null: wire data must not raise."""
    of_value: dict[Sql, list[int]] = {}
    for at, value in enumerate(values):
        of_value.setdefault(value, []).append(at)
    usual = max(of_value, key=lambda value: len(of_value[value]))
    cases = (
        f"WHEN detector IN ({', '.join(map(str, numbers))}) THEN TRY_CAST({value} AS {kind})"
        for value, numbers in of_value.items()
        if value != usual
    )
    other = f"TRY_CAST({usual} AS {kind})"
    return f"CASE {' '.join(cases)} ELSE {other} END" if len(of_value) > 1 else other


def with_parameters(sql: Sql, parameters: Mapping[str, Number]) -> Sql:
    """`sql` with the rule's parameters in place of '{name}'."""
    for name, value in parameters.items():
        sql = sql.replace("{" + name + "}", repr(value))
    return sql


# What the finding is about, by the scope of its rule; a finding about a connection has no channel.
IN_CHANNEL: Sql = sql_in("scope", PER_CHANNEL)
OF_THING: Mapping[str, Sql] = {
    "of_channel": f"CASE WHEN {IN_CHANNEL} THEN channel END",
    "of_life": f"CASE WHEN {IN_CHANNEL} THEN channel_life END",
    "of_thing": f"CASE WHEN {sql_in('scope', PER_THING)} THEN thing END",
}
# KNOWLEDGE that a hit was made without. A gap starts with the packet before it, and that packet itself is complete.
UNKNOWN: Mapping[str, Sql] = {
    "start": "NOT coalesce(start, false)",
    "complete": "coalesce(loss_from_ns < at_ns, false)",
    "both": "NOT coalesce(both, false)",
    "order": "NOT coalesce(`order`, false)",
}
LACKING: Sql = ", ".join(f"CASE WHEN {UNKNOWN[name]} THEN '{name}' END" for name in KNOWLEDGE)
# In the order in which the first hit of a finding is chosen.
OF_HIT = [name for name in HIT_COLUMNS if name not in (*THING, "occurrences")]
OF_RULE = [name for name in RULE_COLUMNS if name != "rule_id"]
# The severity is lowered by one step if preferred knowledge is missing; the reservation says why.
LOWER: Sql = " ".join(
    f"WHEN '{of}' THEN '{to}'" for of, to in zip(SEVERITIES, (*SEVERITIES[1:], SEVERITIES[-1]), strict=True)
)
RESERVATIONS: Sql = " ".join(f"WHEN '{name}' THEN {sql_text(text)}" for name, text in KNOWLEDGE.items())
# Relation `hits` -> findings, one row per rule and thing: its first hit, the number of hits, the texts of the rule, and
# a reservation.
TO_FINDINGS: Sql = f"""
    SELECT * EXCEPT (severity, offender),
           CASE WHEN missed IS NOT NULL THEN CASE coalesce(severity, rule_severity) {LOWER} END
               ELSE coalesce(severity, rule_severity) END AS severity,
           coalesce(offender, rule_offender) AS offender, CASE missed {RESERVATIONS} END AS reservation
    FROM (SELECT rule_id, connection_id, first.hit.*, first.of.*, occurrences,
                 get(array_intersect(first.of.prefers, first.lacking), 0) AS missed
          FROM (SELECT {columns(THING)}, sum(occurrences) AS occurrences,
                       min(struct(frame_no, at_ns, struct({columns(OF_HIT)}) AS hit,
                                  struct({columns((*OF_RULE, *CONNECTION_KEYS))}) AS of, lacking)) AS first
                FROM (SELECT * EXCEPT (channel, channel_life), {OF_THING["of_channel"]} AS channel,
                             {OF_THING["of_life"]} AS channel_life,
                             {", ".join(f"{sql} AS {name}" for name, sql in OF_THING.items())}
                      FROM (SELECT /*+ BROADCAST(rules) */ * EXCEPT (scope), coalesce(scope, rule_scope) AS scope,
                                   array_compact(array({LACKING})) AS lacking
                            FROM hits JOIN rules USING (rule_id)
                            LEFT JOIN (SELECT connection_id, start, both, `order`, loss_from_ns,
                                              {columns(CONNECTION_KEYS)}
                                       FROM known_connections) USING (connection_id)))
                WHERE NOT arrays_overlap(needs, lacking)
                GROUP BY {columns(THING)}))"""

# Relation `findings` -> table findings, with the packet of each frame. OF_FINDINGS limits the frames that are joined.
# A checkpoint knows that `rule_id` is never null, but columns of tables are nullable.
OF_FINDINGS: Sql = "LEFT SEMI JOIN (SELECT connection_id, frame_no FROM findings) USING (connection_id, frame_no)"
PLACED: Sql = f"""
    SELECT * EXCEPT (rule_id, capture_file, evidence), nullif(rule_id, '') AS rule_id,
           parse_json(evidence) AS evidence,
           coalesce(capture_file, CASE WHEN scope = '{CAPTURE}' THEN thing END) AS capture_file
    FROM findings LEFT JOIN (SELECT connection_id, frame_no, packet_no, capture_file, ts FROM frames {{}})
        USING (connection_id, frame_no)"""


def rule_rows(rules: Iterable[Rule]) -> Sql:
    """The columns of findings that come from the rule, one row per rule; in a new JVM this takes a second of processor
    time less than `createDataFrame` of an Arrow table."""
    rows = json.dumps([{name: getattr(rule, of) for name, of in RULE_COLUMNS.items()} for rule in rules])
    kinds = ", ".join(f"{name} {'array<string>' if name in RULE_LISTS else 'string'}" for name in RULE_COLUMNS)
    return f"SELECT inline(from_json({sql_text(rows)}, 'array<struct<{kinds}>>'))"
