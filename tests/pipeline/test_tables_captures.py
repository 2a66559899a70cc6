"""What a person reads in the shipped 0-9-1 captures, found in the tables.

Expectations are from what the captures were made to show and from tshark's view of them (the goldens beside them): who
closed what with which code, which tag was acknowledged how. All captures are decoded together; they do not overlap.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from tables_support import Found

import pipeline

CAPTURES = Path(__file__).parents[1] / "captures"
NAMES = (
    "bad_password", "vhost_refused", "confirms_and_return", "tx", "declare_publish_consume_ack", "get_and_empty",
    "cancel_by_queue_delete", "channel_exceptions", "close_by_broker_and_rst", "connection_blocked", "rpc_reply_to",
    "librabbitmq_tools", "heartbeats", "loss", "tls13",
)  # fmt: skip
MS = 1_000_000


class Captured(Found):
    """Rows of the tables by capture, in order of time; without connections that have no frame."""

    order = ("client_port", "ts_ns", "opened_ts", "channel", "channel_incarnation")

    def __init__(self, tables: pipeline.Tables) -> None:
        name = F.regexp_extract("capture_file", r"/(?:091_)?(\w+)\.pcap", 1)
        super().__init__(tables, dict(tables.frames.select("connection_id", name).distinct().collect()))


@pytest.fixture(scope="module")
def found(spark: SparkSession) -> Iterator[Captured]:
    tables = pipeline.decode(spark, [str(CAPTURES / f"091_{name}.pcap") for name in NAMES])
    yield Captured(tables)
    tables.release()


def test_refused_logins_say_why(found: Captured) -> None:
    columns = ("state", "user", "vhost", "close_initiator", "close_code")
    assert found.rows("connections", "bad_password", *columns) == [("closing", "guest", None, "server", 403)]
    assert found.rows("connections", "vhost_refused", *columns) == [
        ("closing", "guest", "nowhere", "server", 530),
        ("closing", "alice", "shop", "server", 530),
    ]


def test_negotiated_values_are_those_of_tune_ok(found: Captured) -> None:
    columns = ("channel_max", "frame_max", "heartbeat_s", "server_heartbeat_s", "client_product", "server_version")
    assert found.rows("connections", "tx", *columns) == [(2047, 131072, 60, 60, "Pika Python Client Library", "3.10.8")]


def test_publisher_confirms_and_a_returned_message(found: Captured) -> None:
    rows = found.rows(
        "messages", "confirms_and_return", "operation", "delivery_tag", "routing_key", "message_id", "outcome"
    )
    assert rows == [
        ("publish", 1, "cq", None, "confirmed"),
        ("publish", 2, "cq", None, "confirmed"),
        ("publish", 3, "cq", None, "confirmed"),
        ("publish", 4, "cq", None, "nacked"),
        ("publish", 5, "no.such.queue", "lost", "returned"),
        ("return", None, "no.such.queue", "lost", "presettled"),
    ]


def test_confirm_took_as_long_as_tshark_says(found: Captured) -> None:
    # Publish 1 in packet 20 at .675284, its ack in packet 24 at .675551; the nack of publish 4: .676325 to .676490.
    latencies = found.rows("messages", "confirms_and_return", "settle_latency_ns")
    assert [latencies[0], latencies[3]] == [(267_000,), (165_000,)]


def test_transactions(found: Captured) -> None:
    """Two publishes committed, one rolled back; an ack rolled back, then given again and committed."""
    assert found.rows("messages", "tx", "operation", "outcome", "transaction") == [
        ("publish", "unknown", "committed"),
        ("publish", "unknown", "committed"),
        ("publish", "unknown", "rolled-back"),
        ("get", "acked", "committed"),
    ]
    assert found.rows("channels", "tx", "mode", "published", "delivered", "acked") == [("tx", 3, 1, 1)]


def test_acknowledgements_of_every_kind(found: Captured) -> None:
    """Single acks of 1 and 2, nack 3 with requeue, reject 4, ack up to 8, nack up to 10 without requeue, recover for 11
    and 12 (which is 3 again), ack of all at last."""
    rows = found.rows("messages", "declare_publish_consume_ack", "delivery_tag", "outcome", "redelivered", "queue")
    delivered = rows[12:]
    assert [tag for tag, *_ in delivered] == list(range(1, 15))
    outcomes = [
        "acked",
        "acked",
        "requeued",
        "rejected",
        *["acked"] * 4,
        "rejected",
        "rejected",
        "requeued",
        "requeued",
        "acked",
        "acked",
    ]
    assert [outcome for _, outcome, *_ in delivered] == outcomes
    assert [tag for tag, _, again, _ in delivered if again] == [12, 13, 14]
    assert {queue for *_, queue in delivered} == {"orders.eu"}
    (link,) = found.rows("links", "declare_publish_consume_ack", "name", "queue", "no_ack", "transfers")
    assert link == ("worker-1", "orders.eu", False, 14)


def test_gets_with_and_without_acknowledgement(found: Captured) -> None:
    rows = found.rows("messages", "get_and_empty", "operation", "delivery_tag", "redelivered", "outcome", "queue")
    assert rows[3:] == [
        ("get", 1, False, "presettled", "g"),
        ("get", 2, False, "acked", "g"),
        ("get", 3, False, "requeued", "g"),
        ("get", 4, True, "presettled", "g"),
    ]
    replies = [
        reply for name, reply in found.rows("methods", "get_and_empty", "name", "reply_name") if name == "basic.get"
    ]
    assert set(replies) == {"basic.get-ok", "basic.get-empty"}
    assert None not in replies


def test_consumer_cancelled_because_its_queue_was_deleted(found: Captured) -> None:
    (link,) = found.rows("links", "cancel_by_queue_delete", "name", "queue", "error", "closed_ts")
    assert link[:3] == ("will-be-cancelled", "dying", "basic.cancel by the server")
    assert link[3] is not None


def test_channel_number_is_used_again_after_each_exception(found: Captured) -> None:
    rows = found.rows("channels", "channel_exceptions", "channel_incarnation", "close_initiator", "close_code")
    assert sorted(rows)[1:] == [
        (1, "server", 404), (2, "server", 406), (3, "server", 406), (4, "server", 405), (5, "server", 403),
        (6, "server", 404), (7, "client", 200),
    ]  # fmt: skip


def test_connection_forced_and_client_that_vanished(found: Captured) -> None:
    rows = found.rows("connections", "close_by_broker_and_rst", "state", "close_initiator", "close_code", "tcp_end")
    assert rows == [("closing", "server", 320, "fin"), ("open", None, None, "rst"), ("closed", "client", 200, "fin")]
    outcomes = found.rows("messages", "close_by_broker_and_rst", "operation", "outcome")
    assert sorted(outcomes) == [("deliver", "unsettled")] * 5 + [("publish", "unknown")] * 5


def test_blocked_connection(found: Captured) -> None:
    ((blocked_ns,),) = found.rows("connections", "connection_blocked", "blocked_ns")
    assert 1_500 * MS < blocked_ns < 1_540 * MS


def test_requests_and_replies_over_two_connections(found: Captured) -> None:
    columns = ("queue", "no_ack", "transfers")
    links = found.rows("links", "rpc_reply_to", *columns)
    assert ("rpc", False, 12) in links
    assert ("amq.rabbitmq.reply-to", True, 4) in links
    rows = found.rows("messages", "rpc_reply_to", "operation", "link", "outcome")
    assert {outcome for operation, _, outcome in rows if operation == "deliver"} == {"acked", "presettled"}


def test_each_command_line_tool_of_librabbitmq_has_its_connection(found: Captured) -> None:
    columns = ("messages_published", "messages_delivered", "heartbeat_s", "close_code")
    rows = found.rows("connections", "librabbitmq_tools", *columns)
    assert rows == [(0, 0, 0, 200), (1, 0, 0, 200), (1, 0, 0, 200), (0, 1, 0, 200), (0, 1, 0, 200), (0, 0, 0, 200)]


def test_heartbeats_are_counted_by_sender(found: Captured) -> None:
    rows = found.rows(
        "connections", "heartbeats", "heartbeat_s", "client_heartbeats", "server_heartbeats", "state", "tcp_end_by"
    )
    assert [row[0] for row in rows] == [2, 1]
    assert all(count > 0 for count in rows[0][1:3])
    # The second client never answered: the broker sent heartbeats, gave up and ended the connection.
    assert rows[1][1] == 0
    assert rows[1][2] > 0
    assert rows[1][3:] == ("open", "server")


def test_a_consumer_behind_a_hole_is_known_before_its_deliveries(found: Captured) -> None:
    """basic.consume (packet 352, no_ack set) comes after bytes that are missing; the deliveries (from packet 353 on)
    acknowledge it: they need no acknowledgement."""
    outcomes = found.rows("messages", "loss", "operation", "outcome")
    assert {outcome for operation, outcome in outcomes if operation == "deliver"} == {"presettled"}
    ((missing,),) = found.rows("connections", "loss", "missing_bytes")
    assert missing > 0


def test_encrypted_connection_has_its_row(found: Captured) -> None:
    ((tls, state, content),) = found.rows("connections", "tls13", "tls", "state", "content")
    assert (tls.mode, state, content) == ("implicit", "tcp", "tls")
    ledger = found.rows("streams", "tls13", "payload_bytes", "tls_bytes", "frame_bytes")
    assert all(payload == tls_bytes > 0 == frame for payload, tls_bytes, frame in ledger)


def test_every_byte_is_in_the_ledger_once(found: Captured) -> None:
    parts = ("frame_bytes", "skipped_bytes", "tls_bytes", "foreign_bytes", "tail_bytes")
    for name in NAMES:
        rows = found.rows("streams", name, "payload_bytes", *parts)
        assert [row[0] for row in rows] == [sum(row[1:]) for row in rows]


def test_every_capture_has_its_row(found: Captured) -> None:
    rows = found.tables.captures.select("packets", "error", "truncated").collect()
    assert len(rows) == len(NAMES)
    assert {(row.error, row.truncated) for row in rows} == {(None, False)}
