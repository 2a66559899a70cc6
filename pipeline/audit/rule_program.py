"""From detectors of the catalogue to the program that checks rules (`udfs.findings`).

All conditions of a context are evaluated in one pass over its rows; what they find is table `hits`, a row for each
detector that matches a row; of these the last queries make one finding for each rule and thing.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import duckdb

from codec.compiler.limits import LIMITS
from codec.names import CLASSIC_VERSIONS
from codec.protocol.classic_tables import methods
from codec.protocol.versions import fact_table
from codec.tables import FINDINGS, TABLES
from pipeline.audit.catalogue import ALL_VERSIONS, KNOWLEDGE, SEVERITIES, Number, Rule, catalogue
from pipeline.audit.contexts import CENSUS, CHANNEL, FEWER, GATES, PREFIX, needed, needed_by, scripts, stage
from pipeline.audit.detectors import DETECTORS, Detector, Sql, sql_in
from udfs.conversation.roles import request_groups
from udfs.findings.evaluation import findings_of
from udfs.findings.program import (
    FACT_CONNECTIONS,
    HIT_KEY,
    Check,
    Context,
    Gate,
    Program,
    expressions,
    hits_of,
    quoted,
    with_clause,
)
from udfs.source.capture_bytes import first_line

CONNECTION_KEYS = ("client_product", "user", "vhost")
PER_CHANNEL = ("channel", "link", "message")
CAPTURE = "capture"  # scope of what belongs to no connection
PER_THING = (CAPTURE, "link", "message")
UNREAD = ("stalls", "message_flows")  # by rules
STRETCH_FRAMES = 1000  # shorter stretches of a channel are not worth a row of their own


def program(
    detectors: Iterable[Detector], rules: Mapping[str, Rule], additional: Collection[str] = (), accepted: Sql = "false"
) -> Program:
    """The program that checks `rules` (by id) with their `detectors`. `additional`: the ids of custom rules, whose
    contexts are whole tables; `accepted`: true on findings that are left out."""
    # For custom rules a context is a table, even if the catalogue has a context of the same name.
    by_context: dict[tuple[bool, str], list[Detector]] = {}
    for detector in detectors:
        by_context.setdefault((detector.rule in additional, detector.context), []).append(detector)
    contexts = [
        own_context(name, of_rows, rules) if is_own else context(name, of_rows, rules)
        for (is_own, name), of_rows in by_context.items()
    ]
    stages: dict[str, set[int]] = {}
    for each in contexts:
        for check in each.checks:
            stages.setdefault(check.rule_id, set()).add(each.stage)
    macros, _ = scripts()
    return Program(
        {name: schema for name, schema in TABLES.items() if name not in UNREAD},
        thresholds(rules.values()),
        constants(rules.values()),
        macros,
        [*needed([FACT_CONNECTIONS, *(name for each in contexts for name in sorted(each.needs))])],
        contexts,
        found(accepted),
        PACKETS_OF_FOUND,
        RESULT,
        {rule for rule, of in stages.items() if len(of) > 1},
        FINDINGS,
    )


def context(name: str, detectors: Iterable[Detector], rules: Mapping[str, Rule]) -> Context:
    """A context of the catalogue with its checks."""
    rows = f"{PREFIX}{name}"
    relation, columns = CENSUS.get(name, (None, ()))
    checks = guarded([check(detector, rules[detector.rule]) for detector in detectors], columns)
    key = CHANNEL[: FEWER.get(name, len(CHANNEL))]
    return Context(rows, key, checks, frozenset({rows}), stage(rows), GATES.get(name, Gate()), relation)


def own_context(name: str, detectors: Iterable[Detector], rules: Mapping[str, Rule]) -> Context:
    """A table with the checks of custom rules, in which a value that does not fit is null."""
    rows = custom_rows(name)
    key = [column for column in CHANNEL if column in TABLES[name].names]
    checks = [check(tolerant(detector), rules[detector.rule]) for detector in detectors]
    return Context(rows, key, checks, needed_by(rows))


def check(detector: Detector, rule: Rule) -> Check:
    """A detector as a check."""
    fewer = frozenset(rule.versions) if {*rule.versions} < {*ALL_VERSIONS} else frozenset()
    return Check(rule.id, condition(detector, rule), description(detector, rule), fewer)


def guarded(checks: Sequence[Check], columns: Collection[str]) -> list[Check]:
    """The same checks with what their conditions look for in these columns."""
    if not columns:
        return [*checks]
    (parsed,) = statements_in("SELECT " + ", ".join(check.condition for check in checks))
    conditions = parsed["node"]["select_list"]
    return [
        check._replace(guards=tuple(guards_of(of, columns).items()))
        for check, of in zip(checks, conditions, strict=True)
    ]


def statements_in(text: str) -> list[Any]:
    """The statements of a text as DuckDB parses them; none if it is no SQL, or not only queries."""
    ((parsed,),) = parser().execute("SELECT json_serialize_sql(?)", [text]).fetchall()
    found: list[Any] = json.loads(parsed).get("statements", [])
    return found


@cache
def parser() -> duckdb.DuckDBPyConnection:
    """A connection that parses, and evaluates nothing else."""
    return duckdb.connect()


def guards_of(tree: Mapping[str, Any], columns: Collection[str]) -> dict[str, frozenset[str]]:
    """By column the words of which it must contain one for an expression to be true, as far as its parts are simple:
    column = 'word', column IN ('word', ...), list_has_any(column, ['word', ...]), joined by AND and OR."""
    match tree:
        case {"type": "CONJUNCTION_AND", "children": parts}:
            found: dict[str, frozenset[str]] = {}  # of one part for each column: there are lists
            for part in parts:
                found = {**guards_of(part, columns), **found}
            return found
        case {"type": "CONJUNCTION_OR", "children": parts}:
            each = [guards_of(part, columns) for part in parts]
            common = set.intersection(*map(set, each))
            return {column: frozenset().union(*(of[column] for of in each)) for column in common}
        case {"type": "OPERATOR_COALESCE", "children": [part, {"literal": {"text": "false"}}]}:
            return guards_of(part, columns)
        case {"type": "COMPARE_EQUAL", "left": {"column_names": [column]}, "right": {"literal": {"text": word}}}:
            return {column: frozenset({word})} if column in columns else {}
        case {"type": "COMPARE_IN", "children": [{"column_names": [column]}, *words]} if column in columns:
            return {column: frozenset(word["literal"]["text"] for word in words)}
        case {
            "function_name": "list_has_any",
            "arguments": [{"expression": {"column_names": [column]}}, {"expression": {"arguments": words}}],
        } if column in columns:
            return {column: frozenset(word["expression"]["literal"]["text"] for word in words)}
    return {}


def script(rule: Rule) -> Sql:
    """What runs to check a rule, as a script of DuckDB: macros, the tables that its contexts need, and its hits."""
    of_rule = program([detector for detector in DETECTORS if detector.rule == rule.id], {rule.id: rule})
    relations = of_rule.relations
    needed = {FACT_CONNECTIONS}.union(*(context.needs for context in of_rule.contexts))
    for each in reversed(relations):
        if each.name in needed:
            needed |= each.reads
    tables = [
        f"CREATE TABLE {each.name} AS\n{with_clause(expressions(relations, each.reads))}FROM ({each.query})"
        for each in relations
        if each.is_table and each.name in needed
    ]
    hits = [with_clause(expressions(relations, each.needs)) + hits_of(each, each.checks) for each in of_rule.contexts]
    return ";\n\n".join([*(macro.rstrip(";") for macro in of_rule.macros), *tables, *hits]) + ";"


def require_runnable(rule: Rule, detector: Detector) -> None:
    """Raise ValueError unless each text of a custom rule is one expression over the columns of its table."""
    texts = {
        **{name: getattr(detector, name) for name in ("when", "frame", "at_ns", "offender", "severity", "occurrences")},
        "thing": detector.thing,
        **{f"evidence.{name}": sql for name, sql in detector.evidence.items()},
    }
    for name, sql in texts.items():
        text = with_parameters(sql, rule.parameters)
        for query in (f"SELECT {text}\n", f"SELECT ({text}\n)"):  # the first alone might have a FROM
            statements = statements_in(query)
            if len(statements) != 1 or len(statements[0]["node"].get("select_list", ())) != 1:
                raise ValueError(f"rule {rule.id}: {name} is not an SQL expression")
    try:
        findings_of({}, program([detector], {rule.id: rule}, {rule.id}))
    except duckdb.Error as error:
        raise ValueError(f"rule {rule.id}: {first_line(error)}") from error


def thresholds(rules: Iterable[Rule]) -> dict[str, float]:
    """Thresholds by rule and name, as macro `setting` finds them: those of `rules`, else those of the catalogue."""
    every = {**catalogue(), **{rule.id: rule for rule in rules}}
    found = {f"{rule.id}.{name}": float(value) for rule in every.values() for name, value in rule.parameters.items()}
    return {**found, "LIMITS.record_bytes": float(LIMITS.record_bytes), "LIMITS.stretch": float(STRETCH_FRAMES)}


def constants(rules: Iterable[Rule]) -> dict[str, str]:
    """Small tables that contexts read: what the fact tables say, and the texts of the rules."""
    requests = [
        {
            "version": version, "class_id": method.class_id, "method_id": method.method_id,
            "asked": bool(method.replies), "replies": bool(method.reply_to),
        }
        for version in CLASSIC_VERSIONS
        for method in methods(version)
        if method.replies or method.reply_to
    ]  # fmt: skip
    commands = [
        {"code": f"{of_class['code']}.{entry['code']}", "command": f"{of_class['name']}.{entry['name']}"}
        for of_class in fact_table("0-10")["classes"]
        for entry in of_class.get("commands", ())
    ]
    of_rules = [{name: getattr(rule, of) for name, of in RULE_COLUMNS.items()} for rule in rules]
    return {
        "request_methods": json.dumps(requests),
        "request_groups": json.dumps(
            [{"name": name, "request_group": group} for name, group in request_groups().items()]
        ),
        "commands": json.dumps(commands),
        "rules": json.dumps(of_rules),
    }


def custom_rows(table: str) -> Sql:
    """The rows of a table for the detectors of custom rules."""
    if table == "connections":
        return "known_connections"
    if "version" in TABLES[table].names:
        return table
    versions = "(SELECT connection_id, version FROM known_connections)"
    return f"(SELECT * FROM {table} LEFT JOIN {versions} USING (connection_id))"


def tolerant(detector: Detector) -> Detector:
    """A detector whose expressions are null where a value from the wire cannot be converted."""
    fields = ("when", "frame", "at_ns", "offender", "severity", "occurrences", "thing")
    evidence = {name: f"TRY({sql})" for name, sql in detector.evidence.items()}
    return replace(detector, evidence=evidence, **{name: f"TRY({getattr(detector, name)})" for name in fields})


def condition(detector: Detector, rule: Rule) -> Sql:
    """True if a row breaks the rule, else false or null."""
    sql = detector.when
    if set(rule.versions) < set(ALL_VERSIONS):
        sql = f"{sql_in('version', rule.versions)} AND ({sql})"
    return with_parameters(sql, rule.parameters)


def description(detector: Detector, rule: Rule) -> dict[str, Sql]:
    """The columns of HIT of a row that breaks the rule."""
    evidence = ", ".join(f"{quoted(name)}: {value}" for name, value in detector.evidence.items())
    values = {
        "rule_id": quoted(rule.id),
        "frame_no": f"{detector.row}.frame_no" if detector.row else detector.frame,
        "at_ns": f"{detector.row}.ts_ns" if detector.row else detector.at_ns,
        "thing": detector.thing if (detector.scope or rule.scope) in PER_THING else "NULL",
        "scope": quoted(detector.scope) if detector.scope else "NULL",
        "offender": detector.offender,
        "severity": detector.severity,
        "evidence": f"without_nulls(to_json({{{evidence}}}))" if evidence else "'{}'",
        "occurrences": detector.occurrences,
    }
    return {name: with_parameters(value, rule.parameters) for name, value in values.items()}


def with_parameters(sql: Sql, parameters: Mapping[str, Number]) -> Sql:
    """`sql` with the rule's parameters in place of '{name}'."""
    for name, value in parameters.items():
        sql = sql.replace("{" + name + "}", repr(value) if isinstance(value, float) else f"{value}::BIGINT")
    return sql


# Columns of findings that come from the rule: name -> attribute of Rule.
RULE_COLUMNS = {
    **{name: name.removeprefix("rule_") for name in ("rule_severity", "rule_scope", "rule_offender")},
    "rule_id": "id",
    **{name: name for name in ("category", "summary", "reference", "needs", "prefers")},
}
# KNOWLEDGE that a hit was made without. A gap starts with the packet before it, and that packet itself is complete.
UNKNOWN: Mapping[str, Sql] = {
    "start": "NOT coalesce(start, false)",
    "complete": "coalesce(loss_from_ns < at_ns, false)",
    "both": 'NOT coalesce("both", false)',
    "order": 'NOT coalesce("order", false)',
}
LACKING: Sql = ", ".join(f"CASE WHEN {UNKNOWN[name]} THEN '{name}' END" for name in KNOWLEDGE)
# The severity is lowered by one step if preferred knowledge is missing; the reservation says why.
LOWER: Sql = " ".join(
    f"WHEN '{of}' THEN '{to}'" for of, to in zip(SEVERITIES, (*SEVERITIES[1:], SEVERITIES[-1]), strict=True)
)
RESERVATIONS: Sql = " ".join(f"WHEN '{name}' THEN {quoted(text)}" for name, text in KNOWLEDGE.items())


def found(accepted: Sql) -> Sql:
    """The query of findings without their packets, one row per rule and thing: its first hit, the number of hits, the
    texts of the rule, and a reservation."""
    in_channel, in_thing = sql_in("scope", PER_CHANNEL), sql_in("scope", PER_THING)
    keys = ", ".join(f'"{name}"' for name in CONNECTION_KEYS)
    order = ", ".join(
        f"{name} NULLS FIRST"
        for name in ("frame_no", "at_ns", *HIT_KEY, "thing", "scope", "offender", "severity", "evidence")
        if name != "connection_id"
    )
    return f"""
WITH located AS (
    SELECT * EXCLUDE (channel, channel_incarnation), CASE WHEN {in_channel} THEN channel END AS channel,
           CASE WHEN {in_channel} THEN channel_incarnation END AS channel_incarnation,
           CASE WHEN {in_thing} THEN thing END AS of_thing
    FROM (SELECT hits.* EXCLUDE (scope), rules.* EXCLUDE (rule_id), coalesce(scope, rule_scope) AS scope, {keys},
                 compact([{LACKING}]) AS lacking
          FROM hits JOIN rules USING (rule_id)
          LEFT JOIN (SELECT connection_id, start, "both", "order", loss_from_ns, {keys} FROM {FACT_CONNECTIONS})
              USING (connection_id))),
first_hits AS (
    SELECT rule_id, connection_id, channel, channel_incarnation, sum(occurrences)::BIGINT AS occurrences,
           first(located ORDER BY {order}) AS hit
    FROM located WHERE NOT list_has_any(needs, lacking)
    GROUP BY rule_id, connection_id, channel, channel_incarnation, of_thing),
judged AS (
    SELECT rule_id, coalesce(hit.severity, hit.rule_severity) AS severity, hit.scope AS scope, hit.category AS category,
           coalesce(hit.offender, hit.rule_offender) AS offender, connection_id, channel, channel_incarnation,
           hit.frame_no AS frame_no, hit.summary AS summary, hit.evidence AS evidence, hit.reference AS reference,
           occurrences, hit.thing AS thing, hit.client_product AS client_product, hit."user" AS "user",
           hit.vhost AS vhost,
           list_filter(hit.prefers, lambda name: list_contains(hit.lacking, name))[1] AS missed
    FROM first_hits)
SELECT rule_id, CASE WHEN missed IS NULL THEN severity ELSE CASE severity {LOWER} END END AS severity, scope, category,
       offender, connection_id, channel, channel_incarnation, frame_no, summary, evidence, reference, occurrences,
       thing, CASE missed {RESERVATIONS} END AS reservation
FROM judged WHERE NOT ({accepted})"""


# The packets of findings, and the findings with their packets.
PACKETS_OF_FOUND: Sql = """
SELECT connection_id, frame_no, packet_no, capture_file, ts
FROM frames SEMI JOIN found USING (connection_id, frame_no)"""
RESULT: Sql = f"""
SELECT rule_id, severity, scope, category, offender, connection_id, channel, channel_incarnation, frame_no, packet_no,
       coalesce(capture_file, CASE WHEN scope = '{CAPTURE}' THEN thing END) AS capture_file, ts, summary, evidence,
       reference, occurrences, reservation
FROM found LEFT JOIN packets_of_frames USING (connection_id, frame_no)"""
