"""The sections of the report: what is counted of the tables, as data in `sections.json`, and what of the findings.

One object per table, with `measures` (`groups.Source`) and `sections`: the fields of `groups.Section`, and `table`, how
the page shows the section (TableSpec). Keys and measures are SQL over the columns of `pipeline.schemas`; times are
microseconds since 1970 UTC. In SQL '{name}' stands for a value of `sources`; `query` is Spark SQL over views with the
names of the tables.

Findings are counted by rule and by what they are about; some examples of each rule have their evidence. Findings of two
audits are the same if `IDENTITY` is equal: the rule, the client, and what it concerns. Connection ids, ports of
clients, packet and frame numbers are not part of it, because they differ in every capture. Generated names
(`amq.gen-...`, UUIDs, long numbers) count as one name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pipeline.audit.catalogue import KNOWN
from pipeline.report.groups import CLASSES_PER_OCTAVE, Groups, Section, Source

DEFINITIONS: Mapping[str, Any] = json.loads(Path(__file__).with_name("sections.json").read_text("utf-8"))
# Bars of a chart over time: one is about four pixels wide on a phone.
TIME_BARS = 80
# Tables with a row per method or message.
LARGE = ("methods", "messages")
# 0-9-1 section 1.1: 200 is success, errors begin with 3.
CLOSED_WITH_ERROR = "coalesce(close_code, 0) >= 300 or (close_code is null and close_text is not null)"
# Generated parts of names: what RabbitMQ appends to amq.gen- and amq.rabbitmq.reply-to., UUIDs, long hex, long numbers.
MADE_UP = (
    r"(?<=amq\.(gen|ctag)-)[\w-]+"
    r"|(?<=amq\.rabbitmq\.reply-to\.)\S+"
    r"|[0-9a-fA-F]{8}-([0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}"
    r"|\b(?=[a-f]*[0-9])[0-9a-f]{12,}\b"
    r"|\d{5,}"
)
BINDINGS = "name = 'queue.bind' AND queue != ''"


@dataclass(frozen=True)
class TableSpec:
    """A table of the page: `columns` are (heading, key or measure, kind of `page.KINDS`); `query` shows all rows;
    `nothing`: the text of an empty table."""

    caption: str
    columns: Sequence[tuple[str, str, str]]
    query: str
    nothing: str


TABLES: Mapping[str, TableSpec] = {
    name: TableSpec(**section["table"])
    for of_table in DEFINITIONS.values()
    for name, section in of_table["sections"].items()
    if "table" in section
}


def sources(first_ns: int, last_ns: int) -> Sequence[Source]:
    """All sources, for a capture between two times."""
    values = {
        **KNOWN,
        "first_ns": first_ns,
        "width_ns": bar_width_ns(first_ns, last_ns),
        "last_bar": TIME_BARS - 1,
        "classes": CLASSES_PER_OCTAVE,
        "closed_with_error": CLOSED_WITH_ERROR,
    }

    def sql(text: str) -> str:
        return re.sub(r"\{(\w+)\}", lambda found: str(values[found[1]]), text)

    def section(name: str, fields: Mapping[str, Any]) -> Section:
        keys = {key: sql(value) for key, value in fields["keys"].items()}
        others = {key: value for key, value in fields.items() if key in ("rank", "limit", "separate")}
        return Section(name, keys, sql(fields.get("where", "true")), **others)

    return [
        Source(
            table,
            {name: sql(measure) for name, measure in of_table["measures"].items()},
            [section(name, fields) for name, fields in of_table["sections"].items()],
        )
        for table, of_table in DEFINITIONS.items()
    ]


# The name of the client's application, with generated parts replaced; else its product, else its address.
CLIENT_NAME = f"nullif(regexp_replace(client_name, r'{MADE_UP}', '*'), '*')"
APPLICATION = f"coalesce({CLIENT_NAME}, client_product, proxied_client_ip, client_ip)"


def bar_width_ns(first_ns: int, last_ns: int) -> int:
    """The width of one bar in a chart over the whole capture, ns."""
    return max(1, -(-(last_ns - first_ns + 1) // TIME_BARS))


def topology(tables: dict[str, DataFrame], names: DataFrame, flows: bool) -> DataFrame:
    """Rows (kind, origin, target, messages): applications and the exchanges or addresses they publish to; exchanges and
    the queues bound to them or reached by their messages; queues and the applications that consume from them."""
    moved = (
        tables["messages"]
        .filter("operation != 'return'")
        .selectExpr(
            "connection_id",
            "operation = 'publish' AS publishes",
            "IF(operation = 'publish', coalesce(exchange, address), coalesce(queue, address)) AS node",
        )
        .filter("node IS NOT NULL")
        .groupBy("connection_id", "publishes", "node")
        .agg(F.expr("count(1) AS messages"))
        .join(F.broadcast(names), "connection_id")
    )
    rows = moved.selectExpr(
        "IF(publishes, 'publishes', 'consumes') AS kind",
        "IF(publishes, application, node) AS origin",
        "IF(publishes, node, application) AS target",
        "messages",
    )
    bound = tables["methods"].filter(BINDINGS).selectExpr("'routed'", "exchange", "queue", "0L")
    rows = rows.unionAll(bound.distinct())
    if not flows:
        return rows
    through = (
        tables["message_flows"]
        .filter("publish_frame_no IS NOT NULL AND deliver_frame_no IS NOT NULL")
        .selectExpr("coalesce(exchange, address) AS origin", "coalesce(queue, address) AS target")
        .filter("origin IS NOT NULL AND target IS NOT NULL AND origin != target")
        .groupBy("origin", "target")
        .agg(F.expr("count(1) AS messages"))
    )
    return rows.unionAll(through.selectExpr("'routed'", "origin", "target", "messages"))


def section_tables(tables: dict[str, DataFrame], flows: bool) -> dict[str, DataFrame]:
    """The input tables of the sections: only frames with an error; only channels that were closed with an error or have
    unsettled messages, with the names of their clients. `flows`: there is a table message_flows.

    Fields of a struct become columns: Spark 4.3 loses columns where such a field is read beneath an explode.
    """
    names = tables["connections"].selectExpr("connection_id", f"{APPLICATION} AS application")
    of_interest = tables["channels"].filter(f"unsettled > 0 or {CLOSED_WITH_ERROR}")
    return {
        **tables,
        "topology": topology(tables, names, flows),
        "connections": tables["connections"].selectExpr(
            "* EXCEPT (tls)", f"{APPLICATION} AS application", "tls.* EXCEPT (mode)", "tls.mode AS tls_mode"
        ),
        "channels": of_interest.join(names, "connection_id", "left"),
        "frames": tables["frames"].filter("status <> 'ok'"),
    }


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
        f"coalesce({ENDPOINT.format('proxied_client')}, {ENDPOINT.format('client')}) AS client",
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
