"""Findings for the report: by rule, by what they are about, and examples of each rule with their evidence.

Findings of two audits are the same if `IDENTITY` is equal: the rule, the client, and what it concerns. Connection ids,
ports of clients, packet and frame numbers are not part of it, because they differ in every capture. Generated names
(`amq.gen-...`, UUIDs, long numbers) count as one name.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from pipeline.report.groups import Section, Source
from pipeline.report.sections import MADE_UP, application

SEVERITIES = ("info", "warning", "violation")  # rising
EXAMPLES = 4
EVIDENCE_CHARACTERS = 2000
# More than the catalogue has.
RULES = 400
QUEUES = 4  # of one channel that are named
# The most entries in a baseline.
IDENTITIES = 10_000
IDENTITY = ("rule_id", "client_product", "user", "vhost", "server", "entities")
# Columns by which people search findings.
NAMED = ("application", "user", "vhost", "server", "things")

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
        Section(
            "rules",
            {
                "rule_id": "rule_id",
                "severity": "severity",
                "category": "category",
                "summary": "summary",
                "reference": "reference",
            },
            rank="weight",
            limit=RULES,
        ),
        Section("identities", {"severity": "severity"} | {n: n for n in IDENTITY}, rank="weight", limit=IDENTITIES),
        Section("named", {"rule_id": "rule_id", **{n: n for n in NAMED}}, rank="weight", limit=IDENTITIES),
        Section("reservations", {"reservation": "reservation"}, where="reservation is not null"),
        Section("offenders", {"product": "client_product", "severity": "severity"}, rank="weight"),
    ],
)
AFFECTED = Source(
    "affected", {"rows": "count(*)"}, [Section("affected", {"severity": f"element_at(array{SEVERITIES}, worst)"})]
)


def with_connections(findings: DataFrame, connections: DataFrame) -> DataFrame:
    """Findings with columns of their connection, and the names in their evidence."""
    ends = connections.select(
        "connection_id",
        *("client_ip", "client_port", "server_ip", "server_port", "client_product", "client_version", "user", "vhost"),
        F.expr(ENDPOINT.format("client")).alias("client"),
        F.expr(ENDPOINT.format("server")).alias("server"),
        application(),
    )
    evidence = F.col("evidence")
    return findings.join(ends, "connection_id", "left").withColumns(
        {"entities": entities(evidence), "things": things(evidence)}
    )


def entities(evidence: Column) -> Column:
    """The names in evidence as 'queue=orders exchange=logs', with generated parts replaced; null for none."""
    named = (F.concat(F.lit(f"{name}="), _name(evidence, name)) for name in ENTITIES)
    return F.nullif(F.concat_ws(" ", *named), F.lit(""))


def things(evidence: Column) -> Column:
    """THINGS in evidence as text: 'exchange logs, routing key a.b'; the empty name is ''; null for none."""
    named = (
        F.concat(
            F.lit(f"{name.replace('_', ' ')} "),
            F.when(_name(evidence, name) == "", "''").otherwise(_name(evidence, name)),
        )
        for name in THINGS
    )
    return F.nullif(F.concat_ws(", ", *named), F.lit(""))


def _name(evidence: Column, kind: str) -> Column:
    return F.regexp_replace(F.try_variant_get(evidence, f"$.{kind}", "string"), MADE_UP, "*")


def evidence_tables(findings: DataFrame, connections: DataFrame) -> dict[str, DataFrame]:
    """The input tables of FINDINGS and AFFECTED."""
    of_connections = findings.filter("connection_id IS NOT NULL")
    worst = of_connections.groupBy("connection_id").agg(F.max(F.expr(WEIGHT)).cast("int").alias("worst"))
    return {"findings": with_connections(findings, connections), "affected": worst}


def examples(findings: DataFrame, connections: DataFrame) -> dict[str, list[dict[str, Any]]]:
    """The first findings of each rule, those without a reservation first."""
    first = Window.partitionBy("rule_id").orderBy(
        F.expr(WEIGHT).desc(), F.col("reservation").asc_nulls_first(), "ts", "connection_id", "frame_no"
    )
    chosen = findings.withColumn("_place", F.row_number().over(first)).filter(F.col("_place") <= EXAMPLES)
    rows = with_connections(chosen, connections).select(
        *("rule_id", "_place", "severity", "scope", "offender", "connection_id", "channel", "frame_no", "packet_no"),
        *("occurrences", "reservation", "client_ip", "client_port", "server_ip", "server_port", "client", "server"),
        F.left("capture_file", F.lit(EVIDENCE_CHARACTERS)).alias("capture_file"),
        *(F.left(name, F.lit(200)).alias(name) for name in ("application", "client_product", "client_version")),
        *(F.left(name, F.lit(200)).alias(name) for name in ("user", "vhost")),
        F.expr("unix_micros(ts)").alias("ts"),
        F.left(F.to_json("evidence"), F.lit(EVIDENCE_CHARACTERS)).alias("evidence"),
        F.left("entities", F.lit(EVIDENCE_CHARACTERS)).alias("entities"),
    )
    found: dict[str, list[dict[str, Any]]] = {}
    for row in sorted(rows.collect(), key=lambda row: (row.rule_id, row["_place"])):
        found.setdefault(row.rule_id, []).append(row.asDict())
    return found


def connection_ends(connections: DataFrame, links: DataFrame, ids: Collection[int]) -> dict[int, dict[str, Any]]:
    """The ends of the connections `ids` (a few); `queues`: (channel, channel_life) -> names of the queues or addresses
    of its consumers and links, at most QUEUES."""
    if not ids:
        return {}
    of_ids = F.col("connection_id").isin(list(ids))
    rows = connections.filter(of_ids).select(
        *("connection_id", "client_ip", "client_port", "server_ip", "server_port"),
        *(F.left(name, F.lit(200)).alias(name) for name in ("client_name", "user")),
    )
    target = F.left(F.coalesce("queue", "address"), F.lit(200))
    on = links.filter(of_ids).groupBy("connection_id", "channel", "channel_life")
    found = {row.connection_id: {**row.asDict(), "queues": {}} for row in rows.collect()}
    for row in on.agg(F.slice(F.sort_array(F.collect_set(target)), 1, QUEUES).alias("names")).collect():
        if row.connection_id in found:
            found[row.connection_id]["queues"][str(row.channel), str(row.channel_life)] = row.names
    return found


def at_least(severity: str) -> Iterable[str]:
    """The severities from `severity` upwards."""
    return SEVERITIES[SEVERITIES.index(severity) :]
