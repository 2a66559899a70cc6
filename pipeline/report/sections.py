"""The sections of the report: what is counted of the tables, as data in `sections.json`.

One object per table, with `measures` (`groups.Source`) and `sections`: the fields of `groups.Section`, and `table`, how
the page shows the section (TableSpec). Keys and measures are SQL over the columns of `pipeline.schemas`; times are
microseconds since 1970 UTC. In SQL '{name}' stands for a value of `sources`; `query` is Spark SQL over views with the
names of the tables.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pipeline.audit.catalogue import KNOWN
from pipeline.report.groups import CLASSES_PER_OCTAVE, Section, Source

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
APPLICATION = f"coalesce(nullif(regexp_replace(client_name, r'{MADE_UP}', '*'), '*'), client_product, client_ip)"


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
