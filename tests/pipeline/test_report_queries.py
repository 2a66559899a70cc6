"""What the report asks of tables: numbers against tables written by hand, and a bounded answer from any of them."""

from __future__ import annotations

from typing import Any

import pytest
from audit_support import BEGIN_NS, HOSTILE_QUEUE, MS, found, write_tables
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from report_support import audit_of

import pipeline
from pipeline.report.facts import Facts, count_findings, count_tables
from pipeline.report.groups import Section, Source, count_groups, latencies
from pipeline.report.page import REPLIES
from pipeline.report.sections import IDENTITIES, OF_ENTITIES, TABLES, bar_width_ns, sources


@pytest.fixture(scope="module")
def tables(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> pipeline.Tables:
    return pipeline.load(spark, str(write_tables(spark, tmp_path_factory.mktemp("report") / "tables")))


@pytest.fixture(scope="module")
def facts(spark: SparkSession, tables: pipeline.Tables) -> Facts:
    return count_tables(tables, flows=False).with_findings(*count_findings(found(spark), tables.connections))


def groups(facts: Facts, section: str, *names: str) -> list[tuple[Any, ...]]:
    return [tuple(group[name] for name in names) for group in facts.groups[section].rows]


def test_groups_are_counted_the_largest_first(facts: Facts) -> None:
    assert groups(facts, "products", "product", "version", "rows", "published") == [
        ("pika", "0-9-1", 2, 20),
        (None, "1.0", 1, 10),
    ]
    assert groups(facts, "outcomes", "operation", "outcome", "rows", "bytes") == [
        ("publish", "confirmed", 10, 1000),
        ("deliver", "unsettled", 2, 200),
        ("deliver", "acked", 1, 100),
    ]


def test_captures_and_their_times(facts: Facts) -> None:
    assert groups(facts, "files", "file", "packets", "skipped", "error", "dropped", "truncated") == [
        ("a.pcap", 100, "12 arp, 3 udp", None, 0, 0),
        ("b.pcap", 7, None, "ends inside a record", 2, 1),
    ]
    assert facts.first_ns == BEGIN_NS
    assert facts.last_ns // 10**9 == BEGIN_NS // 10**9 + 80


def test_bytes_add_up(facts: Facts) -> None:
    assert [facts.total("ledger", name) for name in ("payload", "frame", "skipped", "missing")] == [
        6000,
        5400,
        600,
        300,
    ]


def test_who_was_silent_longer_than_two_intervals(facts: Facts) -> None:
    silent = groups(facts, "heartbeats", "interval", "version", "client_silent", "server_silent")
    # 21 s on an interval of 10 s by the client, 30 s by the server; 30 s on one of 60 s is fine
    assert sorted(silent) == [("10", "0-9-1", 1, 1), ("60", "0-9-1", 0, 0), ("60", "1.0", 0, 0)]


def test_logins_encryption_and_limits(facts: Facts) -> None:
    assert groups(facts, "logins", "user", "mechanism", "tls", "rows") == [
        ("guest", "PLAIN", "none", 2),
        (None, "ANONYMOUS", "implicit", 1),
    ]
    assert groups(facts, "encryption", "mode", "tls_version", "rows") == [("none", None, 2), ("implicit", "1.2", 1)]
    assert groups(facts, "limits", "limits", "rows") == [("table_depth", 1)]


def test_closes_with_and_without_an_error_are_distinguished(facts: Facts) -> None:
    assert groups(facts, "connection_errors", "by", "code", "text") == [("server", None, "amqp:not-found")]
    assert groups(facts, "channel_errors", "by", "code", "text") == [("server", "404", "NOT_FOUND")]
    assert groups(facts, "returns", "code", "text", "exchange", "rows") == [("312", "NO_ROUTE", "orders", 1)]
    assert groups(facts, "damage", "status", "error", "rows", "bytes") == [("malformed", "octets are left", 1, 8)]


def test_rates_fall_into_bars_of_one_width(facts: Facts) -> None:
    # 80 s and a microsecond's rounding in 80 bars: the bar of a message is the second it came in
    assert bar_width_ns(facts.first_ns, facts.last_ns) // 10**6 == 1000
    bars = {
        (operation, int(bar)): number for operation, bar, number in groups(facts, "rates", "operation", "bar", "rows")
    }
    assert sum(bars.values()) == 13
    assert [bars["deliver", bar] for bar in (19, 20, 78) if ("deliver", bar) in bars] == [1, 1, 1]


def test_latency_percentiles_are_within_the_documented_error(facts: Facts) -> None:
    acked, confirmed = sorted(latencies(facts.groups["settled"].rows, "operation", "outcome"), key=lambda one: one.what)
    assert (confirmed.number, confirmed.shortest, confirmed.longest) == (10, 1 * MS, 10 * MS)
    assert confirmed.quantiles[0] == pytest.approx(5 * MS, rel=0.022)
    assert confirmed.quantiles[1] == pytest.approx(9 * MS, rel=0.022)
    assert acked.quantiles == (40 * MS,) * 3  # never beyond what was seen
    (replies,) = latencies(facts.groups["replies"].rows, "name")
    assert (replies.number, replies.longest) == (3, 3 * MS)


def test_unsettled_messages_and_their_users(facts: Facts) -> None:
    columns = ("connection_id", "unsettled", "prefetch", "user")
    assert groups(facts, "unsettled_channels", *columns) == [("1", 5, "10", "guest")]
    assert groups(facts, "unsettled", "operation", "target", "rows") == [("deliver", HOSTILE_QUEUE, 2)]


def test_findings_by_rule_and_by_what_they_are_about(facts: Facts) -> None:
    assert sorted(groups(facts, "rules", "rule_id", "severity", "rows", "occurrences", "reserved")) == [
        ("CAP-01", "info", 1, 1, 0),
        ("NM-03", "violation", 1, 3, 0),
        ("NM-03", "warning", 1, 1, 1),
        ("SEC-01", "warning", 3, 3, 0),
    ]
    about = {(row["rule_id"], row["entities"], row["server"]) for row in facts.groups["identities"].rows}
    # the name that the broker made up counts as one with any other
    assert ("NM-03", "queue=amq.gen-*", "10.0.0.2:5672") in about
    assert ("NM-03", f"queue={HOSTILE_QUEUE}", "10.0.0.2:5672") in about
    # all three connections: a violation in the first, a warning in the others
    assert sorted(groups(facts, "affected", "severity", "rows")) == [("violation", 1), ("warning", 2)]


def test_certain_examples_come_first(facts: Facts) -> None:
    by_rule = {card.rule_id: card for card in audit_of(facts).cards}
    assert list(by_rule) == ["NM-03", "SEC-01", "CAP-01"]
    assert (by_rule["NM-03"].severity, by_rule["NM-03"].findings, by_rule["NM-03"].occurrences) == ("violation", 2, 4)
    first, second = by_rule["NM-03"].examples
    assert (first.row["severity"], second.row["reservation"]) == ("violation", "bytes are missing")
    assert dict(first.values) == {"observed": "amq.", "queue": HOSTILE_QUEUE}
    assert first.packet == "frame.number == 17"
    assert first.connection == "ip.addr == 10.0.0.7 && ip.addr == 10.0.0.2 && tcp.port == 50001 && tcp.port == 5672"


@pytest.mark.parametrize(
    ("name", "known_as"),
    [
        ("orders.eu", "queue=orders.eu"),
        ("amq.gen-L4UN2ZLAFhHoeMkDYyv3mg", "queue=amq.gen-*"),
        ("reply.3f2504e0-4f89-11d3-9a0c-0305e82c3301", "queue=reply.*"),
        ("amq.rabbitmq.reply-to.g1h2AAzzz==", "queue=amq.rabbitmq.reply-to.*"),
        ("session-1700000000", "queue=session-*"),
        ("v2.decade", "queue=v2.decade"),
    ],
)
def test_generated_names_count_as_one(spark: SparkSession, name: str, known_as: str) -> None:
    evidence = F.to_variant_object(F.struct(F.lit(name).alias("queue"))).alias("evidence")
    rows = spark.range(1).select(evidence).selectExpr(OF_ENTITIES)
    assert rows.collect() == [(known_as,)]


def test_the_number_of_rows_on_the_driver_is_bounded(spark: SparkSession) -> None:
    rows = spark.range(5000).selectExpr("id", "id % 7 AS few")
    source = Source("t", {"rows": "count(*)"}, [Section("each", {"id": "id"}, limit=3), Section("few", {"few": "few"})])
    found = count_groups([source], {"t": rows})
    assert (len(found["each"].rows), found["each"].total, found["each"].more) == (3, 5000, 4997)
    assert (len(found["few"].rows), found["few"].more) == (7, 0)
    limits = [section.limit for source in sources(0, 0) for section in source.sections]
    assert max(IDENTITIES, *limits) <= 10_000


def test_large_tables_are_counted_in_two_steps_to_the_same(tables: pipeline.Tables, facts: Facts) -> None:
    asked = [of for of in sources(facts.first_ns, facts.last_ns) if of.table in ("methods", "messages")]
    at_once = count_groups(asked, dict(tables.items()))
    assert {name: facts.groups[name] for name in at_once} == at_once
    assert any(section.separate and at_once[section.name].rows for source in asked for section in source.sections)


def test_the_queries_for_the_rest_run(spark: SparkSession, tables: pipeline.Tables, facts: Facts) -> None:

    for name, table in (*tables.items(), ("findings", found(spark))):
        table.createOrReplaceTempView(name)
    rules = audit_of(facts).cards
    queries = [REPLIES, *(each.query for each in TABLES.values()), *(card.query for card in rules)]
    for query in queries:
        assert spark.sql(query).columns
