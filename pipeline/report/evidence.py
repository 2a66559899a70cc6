"""Findings for the report: by rule, by what they are about, and examples of each rule with their evidence.

Findings of two audits are the same if `IDENTITY` is equal: the rule, the client, and what it concerns. Connection ids,
ports of clients, packet and frame numbers are not part of it, because they differ in every capture. Generated names
(`amq.gen-...`, UUIDs, long numbers) count as one name.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pipeline.report.groups import Groups, Section, Source
from pipeline.report.sections import APPLICATION, MADE_UP

SEVERITIES = ("info", "warning", "violation")  # rising
EXAMPLES = 4
EVIDENCE_CHARACTERS = 2000
NAME_CHARACTERS = 200
# More than the catalogue has.
RULES = 400
QUEUES = 4  # of one channel that are named
ENDS = ("client_ip", "client_port", "server_ip", "server_port", "client_name", "user")
# The most entries in a baseline.
IDENTITIES = 10_000
IDENTITY = ("rule_id", "client_product", "user", "vhost", "server", "entities")
# Columns by which people search findings.
NAMED = ("application", "user", "vhost", "server", "things")

OF_RULE = ("rule_id", "severity", "category", "summary", "reference")
# Names in evidence.
ENTITIES = ("method", "exchange", "queue", "routing_key", "address", "name")
# Names that applications choose.
THINGS = ENTITIES[1:]
WEIGHT = "array_position(array({}), severity)".format(", ".join(f"'{name}'" for name in SEVERITIES))

ENDPOINT = "concat(if({0}_ip like '%:%', concat('[', {0}_ip, ']'), {0}_ip), ':', {0}_port)"

FINDINGS = Source(
    "findings",
    {
        "rows": "count(*)",
        "occurrences": "sum(coalesce(occurrences, 1))",
        "reserved": "count_if(reservation is not null)",
        "connections": "approx_count_distinct(connection_id)",
        "weight": f"max({WEIGHT} * 1000000000000 + 1)",
    },
    [
        Section("rules", {name: name for name in OF_RULE}, rank="weight", limit=RULES),
        Section("identities", {name: name for name in ("severity", *IDENTITY)}, rank="weight", limit=IDENTITIES),
        Section("named", {name: name for name in ("rule_id", *NAMED)}, rank="weight", limit=IDENTITIES),
        Section("reservations", {"reservation": "reservation"}, where="reservation is not null"),
        Section("offenders", {"product": "client_product", "severity": "severity"}, rank="weight"),
    ],
)
AFFECTED = Source(
    "affected", {"rows": "count(*)"}, [Section("affected", {"severity": f"element_at(array{SEVERITIES}, worst)"})]
)


# Names in evidence with generated parts replaced.
NAME_IN = {
    name: f"regexp_replace(try_variant_get(evidence, '$.{name}', 'string'), r'{MADE_UP}', '*')" for name in ENTITIES
}
# The names in evidence as 'queue=orders exchange=logs'; null for none.
EACH_ENTITY = ", ".join(f"concat('{name}=', {found})" for name, found in NAME_IN.items())
OF_ENTITIES = f"nullif(concat_ws(' ', {EACH_ENTITY}), '')"
# THINGS in evidence as text: 'exchange logs, routing key a.b'; the empty name is ''; null for none.
EACH_THING = ", ".join(
    f"concat('{name.replace('_', ' ')} ', IF({NAME_IN[name]} = '', r\"''\", {NAME_IN[name]}))" for name in THINGS
)
OF_THINGS = f"nullif(concat_ws(', ', {EACH_THING}), '')"


def with_connections(findings: DataFrame, connections: DataFrame) -> DataFrame:
    """Findings with columns of their connection, and the names in their evidence."""
    ends = connections.selectExpr(
        "connection_id",
        *("client_ip", "client_port", "server_ip", "server_port", "client_product", "client_version", "user", "vhost"),
        f"{ENDPOINT.format('client')} AS client",
        f"{ENDPOINT.format('server')} AS server",
        f"{APPLICATION} AS application",
    )
    of_both = findings.join(ends, "connection_id", "left")
    return of_both.selectExpr("*", f"{OF_ENTITIES} AS entities", f"{OF_THINGS} AS things")


def evidence_tables(findings: DataFrame, connections: DataFrame) -> dict[str, DataFrame]:
    """The input tables of FINDINGS and AFFECTED."""
    of_connections = findings.filter("connection_id IS NOT NULL")
    worst = of_connections.groupBy("connection_id").agg(F.expr(f"CAST(max({WEIGHT}) AS INT) AS worst"))
    return {"findings": with_connections(findings, connections), "affected": worst}


def examples(findings: DataFrame, connections: DataFrame) -> dict[str, list[dict[str, Any]]]:
    """The first findings of each rule, those without a reservation first."""
    order = f"{WEIGHT} DESC, reservation ASC NULLS FIRST, ts, connection_id, frame_no"
    chosen = findings.selectExpr("*", f"row_number() OVER (PARTITION BY rule_id ORDER BY {order}) AS _place").filter(
        f"_place <= {EXAMPLES}"
    )
    names = ("application", "client_product", "client_version", "user", "vhost")
    rows = with_connections(chosen, connections).selectExpr(
        *("rule_id", "_place", "severity", "scope", "offender", "connection_id", "channel", "frame_no", "packet_no"),
        *("occurrences", "reservation", "client_ip", "client_port", "server_ip", "server_port", "client", "server"),
        f"left(capture_file, {EVIDENCE_CHARACTERS}) AS capture_file",
        *(f"left({name}, {NAME_CHARACTERS}) AS {name}" for name in names),
        "unix_micros(ts) AS ts",
        f"left(to_json(evidence), {EVIDENCE_CHARACTERS}) AS evidence",
        f"left(entities, {EVIDENCE_CHARACTERS}) AS entities",
    )
    found: dict[str, list[dict[str, Any]]] = {}
    for row in sorted(rows.collect(), key=lambda row: (row.rule_id, row["_place"])):
        found.setdefault(row.rule_id, []).append(row.asDict())
    return found


def with_ends(channels: Groups, connections: DataFrame, links: DataFrame) -> Groups:
    """Groups of a few channels with the ends of their connections (ENDS) and `queues`: the names of the queues or
    addresses of the channel's consumers and links, at most QUEUES."""
    if not channels.rows:
        return channels
    of_ids = f"connection_id IN ({', '.join(sorted({str(row['connection_id']) for row in channels.rows}))})"
    rows = connections.filter(of_ids).selectExpr(
        "connection_id", *(f"left({n}, {NAME_CHARACTERS}) AS {n}" for n in ENDS)
    )
    ends = {str(row.connection_id): {name: row[name] for name in ENDS} for row in rows.collect()}
    target = f"left(coalesce(queue, address), {NAME_CHARACTERS})"
    of_channels = links.filter(of_ids).groupBy("connection_id", "channel", "channel_life")
    named = of_channels.agg(F.expr(f"slice(sort_array(collect_set({target})), 1, {QUEUES}) AS names")).collect()
    queues = {(str(row[0]), str(row[1]), str(row[2])): ", ".join(row.names) or None for row in named}
    found = [
        row
        | ends.get(str(row["connection_id"]), dict.fromkeys(ENDS))
        | {"queues": queues.get((str(row["connection_id"]), str(row["channel"]), str(row["life"])))}
        for row in channels.rows
    ]
    return Groups(found, channels.total)


def at_least(severity: str) -> Iterable[str]:
    """The severities from `severity` upwards."""
    return SEVERITIES[SEVERITIES.index(severity) :]
