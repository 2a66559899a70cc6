"""What the report asks of tables: numbers against tables written by hand, and a bounded answer from any of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from audit_support import BEGIN, BEGIN_NS, FOUND, HOSTILE_QUEUE, MS, finding, write_table, write_tables
from report_support import audit_of

from pipeline.explore.duckdb_tables import Session, open_tables
from pipeline.lake.lake_tables import Span
from pipeline.report.facts import Facts, count
from pipeline.report.formats import document
from pipeline.report.grouped_counts import Section, Source, count_groups, latencies
from pipeline.report.page import REPLIES
from pipeline.report.sections import IDENTITIES, TABLES, bar_width_ns, sources


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    directory = write_tables(tmp_path_factory.mktemp("report") / "tables")
    write_table(directory, "findings", FOUND)
    with open_tables(str(directory)) as opened:
        yield opened


@pytest.fixture(scope="module")
def facts(session: Session) -> Facts:
    return count(session)


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
    assert confirmed.quantiles[0] == pytest.approx(5 * MS, rel=0.0014)
    assert confirmed.quantiles[1] == pytest.approx(9 * MS, rel=0.0014)
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
        ("amq.ctag-a_b-c and amq.gen-x.y", "queue=amq.ctag-* and amq.gen-*.y"),
        # Hex of 12 digits has a decimal one, wherever it is.
        ("a.0bcdefabcdef.b", "queue=a.*.b"),
        ("a.abcdefabcde0.b", "queue=a.*.b"),
        ("a.abcdefabcdefabcdef0.b", "queue=a.*.b"),
        ("a.abcde0abcdefabcdef.b", "queue=a.*.b"),
        ("a.abcdefabcdef.b", "queue=a.abcdefabcdef.b"),
        ("a.abcdefabcd0.b", "queue=a.abcdefabcd0.b"),
        ("1234", "queue=1234"),
        ("12345", "queue=*"),
        ("", "queue="),
    ],
)
def test_generated_names_count_as_one(tmp_path: Path, name: str, known_as: str) -> None:
    write_tables(tmp_path)
    write_table(tmp_path, "findings", [finding("NM-03", "warning", evidence={"queue": name, "observed": 7})])
    with open_tables(str(tmp_path)) as session:
        assert groups(count(session), "identities", "entities") == [(known_as,)]


def test_names_in_evidence_may_be_anything(tmp_path: Path) -> None:
    """A number, a structure and what looks like SQL; names that are missing, and evidence that is."""
    evidence: list[Any] = [{"queue": 7, "exchange": ["a"], "name": None}, {"queue": "'); DROP TABLE x; --"}, {}, None]
    write_tables(tmp_path)
    rows = [finding("NM-03", "warning", **({} if found is None else {"evidence": found})) for found in evidence]
    write_table(tmp_path, "findings", rows)
    with open_tables(str(tmp_path)) as session:
        entities = {about for (about,) in groups(count(session), "identities", "entities")}
    assert {"queue='); DROP TABLE x; --", None} < entities
    assert any(about and about.startswith("exchange=") and about.endswith("queue=7") for about in entities)


def test_the_number_of_groups_in_memory_is_bounded(session: Session) -> None:
    rows = "SELECT range AS id, range % 7 AS few FROM range(5000)"
    sections = [Section("each", {"id": "id"}, limit=3), Section("few", {"few": "few"})]
    found = count_groups(session, [Source("t", {"rows": "count(*)"}, sections, rows)])
    assert (len(found["each"].rows), found["each"].total, found["each"].more) == (3, 5000, 4997)
    assert (len(found["few"].rows), found["few"].more) == (7, 0)
    limits = [section.limit for source in sources(0, 0) for section in source.sections]
    assert max(IDENTITIES, *limits) <= 40_000


def test_equal_numbers_are_in_the_order_of_their_names(session: Session) -> None:
    rows = "SELECT unnest(['b', NULL, 'a', 'é', 'B']) AS name"
    source = Source("t", {"rows": "count(*)"}, [Section("each", {"name": "name"}, limit=4)], rows)
    assert [row["name"] for row in count_groups(session, [source])["each"].rows] == [None, "B", "a", "b"]


def test_sums_beyond_64_bits_are_unknown(session: Session) -> None:
    rows = "SELECT unnest([9223372036854775807, 1]) AS ns"
    source = Source("t", {"rows": "count(*)", "ns": "sum(ns)"}, [Section("all", {"all": "'x'"})], rows)
    assert count_groups(session, [source])["all"].rows == [{"all": "x", "rows": 2, "ns": None}]


def test_a_confirm_counts_once_however_many_queues_a_message_reached(tmp_path: Path) -> None:
    """One publish into two queues, with one confirm after 5 ms, and another publish without one."""
    publish = {"publish_connection_id": 1, "publish_frame_no": 7, "confirm_latency_ns": 5 * MS}
    flows = [
        {**publish, "flow_id": 1, "broker_latency_ns": 1 * MS},
        {**publish, "flow_id": 2, "broker_latency_ns": 3 * MS, "total_latency_ns": 9 * MS},
        {"flow_id": 3, "publish_connection_id": 1, "publish_frame_no": 8, "rpc_latency_ns": 2 * MS},
    ]
    write_tables(tmp_path, {"message_flows": flows})
    with open_tables(str(tmp_path)) as session:
        found = {one.what: one for one in latencies(count(session).groups["flows"].rows, "measure")}
    numbers = {what: (one.number, one.shortest, one.longest) for what, one in found.items()}
    assert numbers == {
        "publish to confirm": (1, 5 * MS, 5 * MS),
        "publish to delivery": (2, 1 * MS, 3 * MS),
        "publish to settlement": (1, 9 * MS, 9 * MS),
        "request to reply": (1, 2 * MS, 2 * MS),
    }
    assert found["publish to delivery"].quantiles[1:] == (3 * MS, 3 * MS)


def test_bindings_over_1_0_are_in_the_topology_and_requests_for_them_are_not(tmp_path: Path) -> None:
    """One is refused (409), another one not answered."""
    node = {"connection_id": 1, "address": "/management"}
    binding = {**node, "operation": "publish", "management_operation": "POST", "management_exchange": "events"}
    messages = [
        {**binding, "management_queue": queue, "message_id": queue} for queue in ("audit", "refused", "unanswered")
    ]
    messages += [
        {**node, "operation": "deliver", "correlation_id": queue, "management_status": status}
        for queue, status in (("audit", 204), ("refused", 409))
    ]
    messages.append({**node, "operation": "publish", "management_operation": "PUT", "management_queue": "audit"})
    write_tables(tmp_path, {"connections": [{"connection_id": 1, "content": "amqp"}], "messages": messages})
    with open_tables(str(tmp_path)) as session:
        found = count(session)
    assert sorted(groups(found, "topology", "kind", "origin", "target", "rows")) == [
        ("routed", "events", "audit", 0),
        ("routed", "events", "unanswered", 0),
    ]


def test_only_the_rows_of_a_span_are_counted(tmp_path: Path) -> None:
    """Connection 1 ended before it, 2 overlaps it, 3 began after it, 4 is still open."""
    at = [BEGIN_NS + second * 10**9 for second in range(100)]
    times = {1: (0, 10), 2: (10, 30), 3: (50, 60), 4: (0, None)}
    connections = [
        {"connection_id": number, "content": "amqp", "opened_ts": BEGIN + timedelta(seconds=first),
         "closed_ts": None if last is None else BEGIN + timedelta(seconds=last)}
        for number, (first, last) in times.items()
    ]  # fmt: skip
    tables: dict[str, list[dict[str, Any]]] = {
        "connections": connections,
        "messages": [{"connection_id": 2, "operation": "publish", "ts_ns": at[second]} for second in (19, 20, 39, 40)],
        "streams": [{"connection_id": number, "sender": "client", "payload_bytes": 1} for number in times],
    }
    write_tables(tmp_path, tables)
    with open_tables(str(tmp_path), span=Span(at[20], at[40])) as session:
        found = count(session)
    assert (found.total("versions"), found.total("outcomes"), found.total("ledger", "payload")) == (2, 2, 2)


def test_connections_with_one_name_are_told_apart(tmp_path: Path) -> None:
    """Two of one name, one behind a proxy and without a user; one with a name of its own."""
    sides = {"client_ip": "10.0.0.7", "server_ip": "10.0.0.2", "server_port": 5672, "content": "amqp"}
    connections = [
        {**sides, "connection_id": 1, "client_port": 1, "client_product": "pika", "user": "guest"},
        {**sides, "connection_id": 2, "client_port": 2, "client_product": "pika", "proxied_client_ip": "fd00::7",
         "proxied_client_port": 9},
        {**sides, "connection_id": 3, "client_port": 3, "client_name": "billing", "client_product": "pika"},
    ]  # fmt: skip
    write_tables(tmp_path, {"connections": connections})
    write_table(tmp_path, "findings", [finding("NM-03", "warning", number) for number in (1, 2, 3)])
    with open_tables(str(tmp_path)) as session:
        found = groups(count(session), "named", "application", "which")
    assert sorted(found, key=str) == [("billing", None), ("pika", "[fd00::7]:9"), ("pika", "guest@10.0.0.7:1")]


def test_texts_of_peers_are_counted_by_rule(tmp_path: Path) -> None:
    evidence = [{"reply_text": "gone", "text": "x"}] * 2 + [
        {"description": "full", "observed": "amqp:resource-limit-exceeded"},
        {"observed": 299, "text": "Normal shutdown"},
        {"observed": 7},
    ]
    write_tables(tmp_path)
    write_table(tmp_path, "findings", [finding("CH-09", "warning", evidence=one) for one in evidence])
    with open_tables(str(tmp_path)) as session:
        assert groups(count(session), "texts", "rule_id", "text", "rows") == [
            ("CH-09", "gone", 2),
            ("CH-09", "299 Normal shutdown", 1),
            ("CH-09", "full", 1),
        ]


def test_what_is_unsettled_where_tcp_has_ended_is_told_apart(tmp_path: Path) -> None:
    """The fewer ones that still wait come first."""
    ends = {1: ("rst", "server", "open"), 2: ("none", None, "open"), 3: ("fin", "client", "closed")}
    tables: dict[str, list[dict[str, Any]]] = {
        "connections": [
            {"connection_id": number, "tcp_end": end, "tcp_end_by": by, "state": state}
            for number, (end, by, state) in ends.items()
        ],
        "channels": [
            {"connection_id": number, "channel": 1, "channel_incarnation": 1, "unsettled": unsettled}
            for number, unsettled in ((1, 9), (2, 1), (3, 5))
        ],
        "messages": [
            {"connection_id": number, "operation": "deliver", "outcome": "unsettled", "queue": "q"} for number in ends
        ],
        "links": [
            {"connection_id": 2, "channel": 1, "channel_incarnation": 1, "queue": f"q{number}"}
            for number in (5, 4, 3, 2, 1)
        ],
    }
    with open_tables(str(write_tables(tmp_path, tables))) as session:
        found = count(session)
    assert groups(found, "unsettled_channels", "unsettled", "connection", "queues") == [
        (1, "open at the end", "q1, q2, q3, q4"),
        (9, "reset by the server", None),
        (5, "closed", None),
    ]
    assert {row[0] for row in groups(found, "unsettled", "connection")} == {
        "open at the end", "reset by the server", "closed",
    }  # fmt: skip


def test_messages_wait_by_queue_or_address(tmp_path: Path) -> None:
    flows = [
        *({"flow_id": n, "queue": "slow", "broker_latency_ns": n * MS} for n in range(1, 101)),
        *({"flow_id": n, "address": "/fast", "broker_latency_ns": 1000} for n in range(500)),
        {"flow_id": 1000, "queue": "unknown"},
    ]
    with open_tables(str(write_tables(tmp_path, {"message_flows": flows}))) as session:
        found = {one.what: one for one in latencies(count(session).groups["waits"].rows, "queue")}
    assert found["/fast"].quantiles == (1000, 1000, 1000)
    assert found["slow"].quantiles == pytest.approx((50 * MS, 90 * MS, 99 * MS), rel=0.0014)
    assert {*found} == {"slow", "/fast"}


def test_the_json_has_the_first_finding_of_each_group(facts: Facts) -> None:
    entries = json.loads(document(audit_of(facts)))["findings"]
    (worst,) = [entry["first"] for entry in entries if entry["severity"] == "violation"]
    assert worst["evidence"] == {"observed": "amq.", "queue": HOSTILE_QUEUE}
    assert (worst["client"], worst["packet_no"], worst["capture_file"]) == ("10.0.0.7:50001", 17, "file:///c/a.pcap")
    assert worst["cut"] == "wirehare cut /data/tables --finding NM-03/1/5 -o NM-03.pcapng"
    (unsure,) = [entry["first"] for entry in entries if entry["entities"] == "queue=amq.gen-*"]
    assert (unsure["connection_id"], unsure["reservation"]) == (2, "bytes are missing")
    assert all(entry["first"] for entry in entries)


def test_every_query_on_the_page_runs(session: Session, facts: Facts) -> None:
    rules = audit_of(facts).cards
    for query in [REPLIES, *(each.query for each in TABLES.values()), *(card.query for card in rules)]:
        session.rows(query)
