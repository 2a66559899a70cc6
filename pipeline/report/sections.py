"""The sections of the report: what is counted of the tables, as data.

Keys and measures are SQL over the columns of `pipeline.schemas`; times are microseconds since 1970 UTC.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from pipeline.report.groups import Section, Source
from pipeline.tables.roles import KNOWN

# Bars of a chart over time: one is about four pixels wide on a phone.
TIME_BARS = 80
# Tables with a row per method or message.
LARGE = ("methods", "messages")
# Latencies are counted in classes, 16 for each doubling: a percentile read from them is at most 2.2 % off.
CLASSES_PER_OCTAVE = 16
LATENCY_CLASS = f"floor(log2(greatest({{}}, 1)) * {CLASSES_PER_OCTAVE})"
# 64-bit nanoseconds have 63 doublings; a latency stays within the few outcomes and methods that occur.
CLASSES_SHOWN = 4000
# 0-9-1 section 1.1: 200 is success, errors begin with 3.
ERROR = "coalesce({}_code, 0) >= 300 or ({}_code is null and {}_text is not null)"

FILES = Source(
    "captures",
    {
        "rows": "count(*)",
        "packets": "sum(packets)",
        "bytes": "sum(byte_size)",
        "first": "unix_micros(min(first_ts))",
        "last": "unix_micros(max(last_ts))",
        "dropped": "sum(dropped)",
        "truncated": "count_if(truncated)",
        "damaged": "count_if(error is not null)",
    },
    [
        Section(
            "files",
            {
                "file": "regexp_extract(capture_file, '([^/]*)/*$', 1)",
                "format": "concat_ws(', ', format, compression)",
                "skipped": "nullif(to_json(skipped_packets), '{}')",
                "error": "error",
            },
            rank="packets",
            limit=30,
        )
    ],
)

LEDGER = Source(
    "streams",
    {
        name: f"sum({name}_bytes)"
        for name in ("payload", "frame", "skipped", "tls", "foreign", "tail", "missing", "retransmitted")
    }
    | {"rows": "count(*)"},
    [Section("ledger", {"sender": "sender"})],
)

# Generated parts of names: what RabbitMQ appends to amq.gen- and amq.rabbitmq.reply-to., UUIDs, long hex, long numbers.
MADE_UP = (
    r"(?<=amq\.(gen|ctag)-)[\w-]+"
    r"|(?<=amq\.rabbitmq\.reply-to\.)\S+"
    r"|[0-9a-fA-F]{8}-([0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}"
    r"|\b(?=[a-f]*[0-9])[0-9a-f]{12,}\b"
    r"|\d{5,}"
)
ENDPOINT = "concat(if({0}_ip like '%:%', concat('[', {0}_ip, ']'), {0}_ip), ':', {0}_port)"
PROPOSALS = [
    f"{sender}{name}" for name in ("frame_max", "channel_max", "heartbeat_s") for sender in ("client_", "server_", "")
] + ["client_idle_timeout_ms", "server_idle_timeout_ms"]
# KNOWLEDGE of a connection as SQL. Only the audit itself knows where frames were lost.
CHECKABLE = {**KNOWN, "complete": "missing_bytes = 0"}
KINDS_SHOWN = 10_000  # as many as findings in a baseline
# A peer that keeps a heartbeat is never silent for two intervals (0-9-1 section 4.2.7).
SILENT = "{}_max_silence_ns > 2000000000 * heartbeat_s"

CONNECTIONS = Source(
    "connections",
    {
        "rows": "count(*)",
        "published": "sum(messages_published)",
        "delivered": "sum(messages_delivered)",
        "bytes": "sum(coalesce(client_bytes, 0) + coalesce(server_bytes, 0))",
        "frames": "sum(coalesce(client_frames, 0) + coalesce(server_frames, 0))",
        "missing": "sum(missing_bytes)",
        "lossy": "count_if(missing_bytes > 0)",
        "inferred": "count_if(version is not null and not version_known)",
        "begun_before": f"count_if(content = 'amqp' and not ({KNOWN['start']}))",
        "client_heartbeats": "sum(client_heartbeats)",
        "server_heartbeats": "sum(server_heartbeats)",
        "client_silence": "max(client_max_silence_ns)",
        "server_silence": "max(server_max_silence_ns)",
        "client_silent": f"count_if({SILENT.format('client')})",
        "server_silent": f"count_if({SILENT.format('server')})",
        "handshake": "max(handshake_ns)",
        "blocked": "try_sum(blocked_ns)",
    },
    [
        Section("versions", {"version": "version", "content": "content"}, limit=60),
        Section(
            "products",
            {"product": "client_product", "release": "client_version", "version": "version"},
            where="content = 'amqp'",
            limit=30,
        ),
        Section(
            "servers",
            {
                "server": ENDPOINT.format("server"),
                "product": "server_product",
                "release": "server_version",
            },
            where="content in ('amqp', 'tls')",
        ),
        Section(
            "negotiated",
            {"client": "client_product", "server": "server_product", **{name: name for name in PROPOSALS}},
            where="content = 'amqp' and version is not null",
        ),
        Section(
            "logins",
            {"user": "user", "mechanism": "mechanism", "vhost": "vhost", "tls": "tls_mode"},
            where="content = 'amqp' and (user is not null or mechanism is not null)",
            limit=30,
        ),
        Section(
            "encryption",
            {"mode": "tls_mode", "tls_version": "tls_version", "sni": "sni"},
            where="content in ('amqp', 'tls')",
        ),
        Section(
            "ends",
            {"state": "state", "end": "tcp_end", "by": "if(tcp_end = 'none', null, tcp_end_by)"},
            where="content in ('amqp', 'tls')",
        ),
        Section(
            "connection_errors",
            {"client": "application", "by": "close_initiator", "code": "close_code", "text": "close_text"},
            where=ERROR.format("close", "close", "close"),
        ),
        Section("heartbeats", {"interval": "heartbeat_s", "version": "version"}, where="content = 'amqp'"),
        Section(
            "checkable",
            {
                "client_product": "client_product",
                "user": "user",
                "vhost": "vhost",
                "server": ENDPOINT.format("server"),
                "version": "version",
                **CHECKABLE,
            },
            where="content = 'amqp'",
            limit=KINDS_SHOWN,
        ),
        Section("limits", {"limits": "array_join(limits, ', ')"}, where="size(limits) > 0"),
    ],
)

CHANNELS = Source(
    "channels",
    {"rows": "count(*)", "unsettled": "sum(unsettled)", "delivered": "sum(delivered)", "published": "sum(published)"},
    [
        Section(
            "channel_errors",
            {"client": "application", "by": "close_initiator", "code": "close_code", "text": "close_text"},
            where=ERROR.format("close", "close", "close"),
        ),
        Section(
            "pileups",
            {
                "connection_id": "connection_id",
                "channel": "channel",
                "life": "channel_life",
                "mode": "mode",
                "prefetch": "prefetch_count",
            },
            where="unsettled > 0",
            rank="unsettled",
        ),
    ],
)

METHODS = Source(
    "methods",
    {"rows": "count(*)", "longest": "max(reply_latency_ns)", "shortest": "min(reply_latency_ns)"},
    [
        Section("methods", {"name": "name", "sender": "sender"}, limit=40),
        Section(
            "replies",
            {"name": "name", "class": LATENCY_CLASS.format("reply_latency_ns")},
            where="reply_latency_ns >= 0",
            limit=CLASSES_SHOWN,
        ),
        Section(
            "returns",
            {"code": "reply_code", "text": "reply_text", "exchange": "exchange"},
            where="name = 'basic.return'",
            apart=True,
        ),
    ],
)

DAMAGE = Source(
    "frames",
    {"rows": "count(*)", "bytes": "sum(size)"},
    [Section("damage", {"status": "status", "kind": "frame_type", "error": "error"})],
)

TOPOLOGY = Source(
    "topology",
    {"rows": "sum(messages)"},
    [Section("topology", {"kind": "kind", "origin": "origin", "target": "target"}, limit=120)],
)
BINDINGS = "name = 'queue.bind' AND queue != ''"


def messages(first_ns: int, last_ns: int) -> Source:
    """The sections of table messages, for a capture between two times."""
    width = bar_width_ns(first_ns, last_ns)
    return Source(
        "messages",
        {
            "rows": "count(*)",
            "bytes": "sum(body_seen)",
            "redelivered": "count_if(redelivered)",
            "longest": "max(settle_latency_ns)",
            "shortest": "min(settle_latency_ns)",
        },
        [
            Section("outcomes", {"operation": "operation", "outcome": "outcome"}, limit=60),
            Section(
                "rates",
                {
                    "operation": "operation",
                    "bar": f"greatest(0, least({TIME_BARS - 1}, (ts_ns - {first_ns}) div {width}))",
                },
                limit=10 * TIME_BARS,
            ),
            Section(
                "settled",
                {
                    "operation": "operation",
                    "outcome": "outcome",
                    "class": LATENCY_CLASS.format("settle_latency_ns"),
                },
                where="settle_latency_ns >= 0",
                limit=CLASSES_SHOWN,
                apart=True,
            ),
            Section(
                "busiest",
                {
                    "operation": "operation",
                    "exchange": "exchange",
                    "target": "if(operation = 'publish', coalesce(routing_key, address), "
                    "coalesce(queue, address, routing_key))",
                },
            ),
            Section(
                "unsettled",
                {"operation": "operation", "target": "coalesce(queue, address, routing_key)", "link": "link"},
                where="outcome = 'unsettled'",
                apart=True,
            ),
        ],
    )


def application() -> Column:
    """The name of the client's application, with generated parts replaced; else its product, else its address."""
    name = F.regexp_replace("client_name", MADE_UP, "*")
    return F.coalesce(F.nullif(name, F.lit("*")), "client_product", "client_ip").alias("application")


def bar_width_ns(first_ns: int, last_ns: int) -> int:
    """The width of one bar in a chart over the whole capture, ns."""
    return max(1, -(-(last_ns - first_ns + 1) // TIME_BARS))


def sources(first_ns: int, last_ns: int) -> Sequence[Source]:
    """All sources, for a capture between two times."""
    return (FILES, LEDGER, CONNECTIONS, CHANNELS, METHODS, DAMAGE, TOPOLOGY, messages(first_ns, last_ns))


def topology(tables: dict[str, DataFrame], names: DataFrame, flows: bool) -> DataFrame:
    """Rows (kind, origin, target, messages): applications and the exchanges or addresses they publish to; exchanges and
    the queues bound to them or reached by their messages; queues and the applications that consume from them."""
    node = F.when(F.col("operation") == "publish", F.coalesce("exchange", "address")).otherwise(
        F.coalesce("queue", "address")
    )
    moved = (
        tables["messages"]
        .filter("operation != 'return'")
        .groupBy("connection_id", (F.col("operation") == "publish").alias("publishes"), node.alias("node"))
        .agg(F.count("*").alias("messages"))
        .filter("node IS NOT NULL")
        .join(F.broadcast(names), "connection_id")
    )
    ends = moved.select(
        F.expr("if(publishes, 'publishes', 'consumes')").alias("kind"),
        F.expr("if(publishes, application, node)").alias("origin"),
        F.expr("if(publishes, node, application)").alias("target"),
        "messages",
    )
    nothing = F.lit(0).cast("bigint").alias("messages")
    routed, (origin, target) = F.lit("routed").alias("kind"), (F.col(name) for name in ("exchange", "queue"))
    bound = tables["methods"].filter(BINDINGS).select(routed, origin.alias("origin"), target.alias("target"), nothing)
    rows = ends.unionAll(bound.distinct())
    if not flows:
        return rows
    through = (
        tables["message_flows"]
        .filter("publish_frame_no IS NOT NULL AND deliver_frame_no IS NOT NULL")
        .groupBy(F.coalesce("exchange", "address").alias("origin"), F.coalesce("queue", "address").alias("target"))
        .agg(F.count("*").alias("messages"))
        .filter("origin IS NOT NULL AND target IS NOT NULL AND origin != target")
    )
    return rows.unionAll(through.select(routed, "origin", "target", "messages"))


def section_tables(tables: dict[str, DataFrame], flows: bool = True) -> dict[str, DataFrame]:
    """The input tables of the sections: only frames with an error; only channels that were closed with an error or have
    unsettled messages, with the names of their clients. `flows`: there is a table message_flows.

    Fields of a struct become columns: Spark 4.3 loses columns where such a field is read beneath an explode.
    """
    names = tables["connections"].select("connection_id", application())
    of_interest = tables["channels"].filter(f"unsettled > 0 or {ERROR.format(*['close'] * 3)}")
    return {
        **tables,
        "topology": topology(tables, names, flows),
        "connections": tables["connections"]
        .select("*", application(), "tls.*")
        .withColumnRenamed("mode", "tls_mode")
        .drop("tls"),
        "channels": of_interest.join(names, "connection_id", "left"),
        "frames": tables["frames"].filter("status <> 'ok'"),
    }
