"""From rows of contexts to findings: the program that checks rules (`udfs.findings`).

All conditions of a context are evaluated in one pass over its rows; what they find is table `hits`, a row for each
detector that matches a row; of these the last query makes one finding for each rule and thing.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

import duckdb

from codec.amqp.classic.tables import CLASSIC_VERSIONS, methods
from codec.amqp.versions import fact_table
from codec.compiler.limits import LIMITS
from codec.tables import FINDINGS, TABLES
from pipeline.audit.catalogue import ALL_VERSIONS, KNOWLEDGE, SEVERITIES, Number, Rule, catalogue
from pipeline.audit.contexts import CHANNEL, FEWER, PREFIX, needed, scripts
from pipeline.audit.detectors import DETECTORS, Detector, Sql, sql_in, sql_text
from udfs.findings import Program, Relation, findings_of
from udfs.roles import request_groups
from udfs.source.files import first_line

CONNECTION_KEYS = ("client_product", "user", "vhost")
# Columns of a hit: a row of a context that breaks a rule.
DETECTOR_COLUMNS = {
    "rule_id": "VARCHAR",
    "frame_no": "BIGINT",
    "at_ns": "BIGINT",
    "thing": "VARCHAR",
    "scope": "VARCHAR",
    "offender": "VARCHAR",
    "severity": "VARCHAR",
    "evidence": "VARCHAR",
    "occurrences": "BIGINT",
}
# Columns that locate the row; null in contexts without channels.
PLACE = dict(zip(CHANNEL, ("BIGINT", "INTEGER", "BIGINT"), strict=True))
PER_CHANNEL = ("channel", "link", "message")
CAPTURE = "capture"  # scope of what belongs to no connection
PER_THING = (CAPTURE, "link", "message")
UNREAD = ("message_flows",)  # by rules
STRETCH_FRAMES = 1000  # shorter stretches of a channel are not worth a row of their own


def program(
    detectors: Iterable[Detector], rules: Mapping[str, Rule], additional: Collection[str] = (), accepted: Sql = "false"
) -> Program:
    """The program that checks `rules` (by id) with their `detectors`. `additional`: the ids of custom rules, whose
    contexts are whole tables; `accepted`: true on findings that are left out."""
    # For custom rules a context is a table, even if the catalogue has a context of the same name.
    places: dict[tuple[bool, str], list[Detector]] = {}
    for detector in detectors:
        places.setdefault((detector.rule in additional, detector.context), []).append(detector)
    macros, _ = scripts()
    contexts = [name for is_own, name in places if not is_own]
    if any(is_own for is_own, _ in places) and "connections" not in contexts:
        contexts.append("connections")
    hits = [
        hits_of(custom_rows(name), [column for column in CHANNEL if column in TABLES[name].names], found, rules, True)
        if is_own
        else hits_of(f"{PREFIX}{name}", CHANNEL[: FEWER.get(name, len(CHANNEL))], found, rules)
        for (is_own, name), found in places.items()
    ]
    made = [*macros, *needed([*contexts, *([] if "connections" in contexts else ["connections"])])]
    return Program(
        {name: schema for name, schema in TABLES.items() if name not in UNREAD},
        thresholds(rules.values()),
        constants(rules.values()),
        [*made, Relation("hits", f"CREATE TABLE hits ({columns_of_hits()})")],
        hits,
        result(accepted),
        FINDINGS,
    )


def script(rule: Rule) -> Sql:
    """What runs to check a rule, as a script of DuckDB: the relations that its contexts need, and its hits."""
    found = program([detector for detector in DETECTORS if detector.rule == rule.id], {rule.id: rule})
    statements = [relation.statement for relation in found.relations if relation.statement]
    return ";\n\n".join([*statements, *found.hits]) + ";"


def require_runnable(rule: Rule, detector: Detector) -> None:
    """Raise ValueError unless each text of a custom rule is one expression over the columns of its table."""
    texts = {
        **{name: getattr(detector, name) for name in ("when", "frame", "at_ns", "offender", "severity", "occurrences")},
        "thing": detector.thing,
        **{f"evidence.{name}": sql for name, sql in detector.evidence.items()},
    }
    with duckdb.connect() as parser:
        for name, sql in texts.items():
            text = with_parameters(sql, rule.parameters)
            for query in (f"SELECT {text}\n", f"SELECT ({text}\n)"):  # the first alone might have a FROM
                (tree,) = parser.execute("SELECT json_serialize_sql(?)", [query]).fetchall()[0]
                statements = json.loads(tree).get("statements", [])
                if len(statements) != 1 or len(statements[0]["node"].get("select_list", ())) != 1:
                    raise ValueError(f"rule {rule.id}: {name} is not an SQL expression")
    try:
        findings_of({}, program([detector], {rule.id: rule}, {rule.id}))
    except duckdb.Error as error:
        raise ValueError(f"rule {rule.id}: {first_line(error)}") from error


def columns_of_hits() -> Sql:
    return ", ".join(f"{name} {kind}" for name, kind in {**PLACE, **DETECTOR_COLUMNS}.items())


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


def hits_of(
    rows: Sql, place: Collection[str], detectors: Sequence[Detector], rules: Mapping[str, Rule], own: bool = False
) -> Sql:
    """The statement that adds to table hits a row for each detector that matches a row of one context. `place`: which
    of PLACE the rows have. `own`: the detectors are custom ones, in which a value that does not fit is null."""
    if own:
        detectors = [tolerant(detector) for detector in detectors]
    chosen = [(detector, rules[detector.rule]) for detector in detectors]
    conditions = ",\n    ".join(f"CASE WHEN {condition(*pair)} THEN {at} END" for at, pair in enumerate(chosen))
    described = [description(*pair) for pair in chosen]
    fields = ",\n    ".join(
        f"{chosen_value([values[name] for values in described], kind)} AS {name}"
        for name, kind in DETECTOR_COLUMNS.items()
    )
    located = ", ".join(
        f"CAST({name if name in place else 'NULL'} AS {kind}) AS {name}" for name, kind in PLACE.items()
    )
    return (
        f"INSERT INTO hits\nSELECT {located},\n    {fields}\nFROM (SELECT *, unnest(broken) AS detector\n"
        f"FROM (SELECT *, compact([\n    {conditions}]) AS broken\nFROM {rows}) WHERE len(broken) > 0)"
    )


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
    """DETECTOR_COLUMNS of a row that breaks the rule."""
    evidence = ", ".join(f"{sql_text(name)}: {value}" for name, value in detector.evidence.items())
    values = {
        "rule_id": sql_text(rule.id),
        "frame_no": f"{detector.row}.frame_no" if detector.row else detector.frame,
        "at_ns": f"{detector.row}.ts_ns" if detector.row else detector.at_ns,
        "thing": detector.thing if (detector.scope or rule.scope) in PER_THING else "NULL",
        "scope": sql_text(detector.scope) if detector.scope else "NULL",
        "offender": detector.offender,
        "severity": detector.severity,
        "evidence": f"without_nulls(to_json({{{evidence}}}))" if evidence else "'{}'",
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
RESERVATIONS: Sql = " ".join(f"WHEN '{name}' THEN {sql_text(text)}" for name, text in KNOWLEDGE.items())


def result(accepted: Sql) -> Sql:
    """The query of findings, one row per rule and thing: its first hit with its packet, the number of hits, the texts
    of the rule, and a reservation."""
    in_channel, in_thing = sql_in("scope", PER_CHANNEL), sql_in("scope", PER_THING)
    keys = ", ".join(f'"{name}"' for name in CONNECTION_KEYS)
    order = ", ".join(
        f"{name} NULLS FIRST"
        for name in ("frame_no", "at_ns", *PLACE, "thing", "scope", "offender", "severity", "evidence")
        if name != "connection_id"
    )
    return f"""
WITH placed AS (
    SELECT * EXCLUDE (channel, channel_life), CASE WHEN {in_channel} THEN channel END AS channel,
           CASE WHEN {in_channel} THEN channel_life END AS channel_life,
           CASE WHEN {in_thing} THEN thing END AS of_thing
    FROM (SELECT hits.* EXCLUDE (scope), rules.* EXCLUDE (rule_id), coalesce(scope, rule_scope) AS scope, {keys},
                 compact([{LACKING}]) AS lacking
          FROM hits JOIN rules USING (rule_id)
          LEFT JOIN (SELECT connection_id, start, "both", "order", loss_from_ns, {keys} FROM known_connections)
              USING (connection_id))),
first_hits AS (
    SELECT rule_id, connection_id, channel, channel_life, sum(occurrences)::BIGINT AS occurrences,
           first(placed ORDER BY {order}) AS hit
    FROM placed WHERE NOT list_has_any(needs, lacking)
    GROUP BY rule_id, connection_id, channel, channel_life, of_thing),
found AS (
    SELECT rule_id, coalesce(hit.severity, hit.rule_severity) AS severity, hit.scope AS scope, hit.category AS category,
           coalesce(hit.offender, hit.rule_offender) AS offender, connection_id, channel, channel_life,
           hit.frame_no AS frame_no, hit.summary AS summary, hit.evidence AS evidence, hit.reference AS reference,
           occurrences, hit.thing AS thing, hit.client_product AS client_product, hit."user" AS "user",
           hit.vhost AS vhost,
           list_filter(hit.prefers, lambda name: list_contains(hit.lacking, name))[1] AS missed
    FROM first_hits)
SELECT rule_id, CASE WHEN missed IS NULL THEN severity ELSE CASE severity {LOWER} END END AS severity, scope, category,
       offender, connection_id, channel, channel_life, frame_no, packet_no,
       coalesce(capture_file, CASE WHEN scope = '{CAPTURE}' THEN thing END) AS capture_file, ts, summary, evidence,
       reference, occurrences, CASE missed {RESERVATIONS} END AS reservation
FROM found LEFT JOIN (SELECT connection_id, frame_no, packet_no, capture_file, ts
                      FROM frames SEMI JOIN found USING (connection_id, frame_no)) USING (connection_id, frame_no)
WHERE NOT ({accepted})"""
