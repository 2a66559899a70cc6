"""What a person reads in captures of 0-10 and 1.0, found in the tables.

Expectations are from what the captures were made to show and from tshark's view of them: container ids, limits, reply
codes and error conditions as it prints them, performatives as it counts them.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession
from test_tables_captures import CAPTURES, Captured

import pipeline

NAMES_1_0 = (
    "10_rabbitmq_proton_send_receive",
    "10_qpidd_outcomes_drain",
    "10_rabbitmq_settle_modes",
    "10_rabbitmq_idle_empty_frames",
)
NAMES_0_10 = ("010_cpp_send_receive",)
SEND_RECEIVE, OUTCOMES, SETTLE_MODES, IDLE = NAMES_1_0
(CPP,) = NAMES_0_10


@pytest.fixture(scope="module")
def found(spark: SparkSession) -> Iterator[Captured]:
    """Of both versions at once, and as of any: nobody says which versions occur."""
    tables = pipeline.decode(spark, [str(CAPTURES / f"{name}.pcap") for name in (*NAMES_1_0, *NAMES_0_10)])
    yield Captured(tables)
    tables.release()


def test_both_containers_of_1_0_name_themselves(found: Captured) -> None:
    columns = ("client_container_id", "server_container_id", "server_product", "server_version")
    rows = found.rows("connections", SEND_RECEIVE, *columns)
    assert rows == [("14cb9442-b8f4-4321-bfd4-828dbab84ff7", "corpus@vm", "RabbitMQ", "3.10.8")]
    broker = "15241ade-e86a-4d4a-8dd1-7f54bdca137d"
    assert found.rows("connections", OUTCOMES, *columns) == [
        ("aa48c7c4-cff4-466a-a7d5-11d6476c9a08", broker, "qpid-cpp", "1.40.0"),
        ("6e342595-12b7-457d-a50a-2f2c584383f6", broker, "qpid-cpp", "1.40.0"),
    ]


def test_limits_of_1_0_are_the_smaller_of_what_both_state(found: Captured) -> None:
    columns = ("channel_max", "frame_max", "client_frame_max", "server_frame_max", "heartbeat_s")
    assert found.rows("connections", SEND_RECEIVE, *columns) == [(32767, 32768, 32768, 32768, None)]
    # The broker states no largest frame, which says 4294967295 (core specification, 2.7.1): the client's holds.
    assert found.rows("connections", OUTCOMES, *columns) == [(32767, 32768, 32768, 4294967295, None)] * 2


def test_idle_time_outs_of_both_sides(found: Captured) -> None:
    columns = ("client_idle_timeout_ms", "server_idle_timeout_ms")
    assert found.rows("connections", SEND_RECEIVE, *columns) == [(None, 60_000)]
    assert found.rows("connections", IDLE, *columns) == [(500, 60_000)] * 3


def test_sasl_tells_user_and_mechanism(found: Captured) -> None:
    columns = ("user", "mechanism", "vhost")
    assert found.rows("connections", SEND_RECEIVE, *columns) == [("guest", "PLAIN", "/")]
    assert found.rows("connections", OUTCOMES, *columns) == [(None, "ANONYMOUS", "127.0.0.1")] * 2


def test_how_connections_of_1_0_end(found: Captured) -> None:
    columns = ("state", "close_initiator", "close_code", "close_text")
    assert found.rows("connections", SEND_RECEIVE, *columns) == [("closed", "client", None, None)]
    assert found.rows("connections", SETTLE_MODES, *columns) == [("open", None, None, None)]
    gave_up = "amqp:resource-limit-exceeded: local-idle-timeout expired"
    assert found.rows("connections", IDLE, *columns)[0] == ("closed", "client", None, gave_up)


def test_1_0_connection_is_open_with_the_later_open(found: Captured) -> None:
    # SYN in packet 1, the broker's open in packet 14: .073548 to .077517 of the same second.
    ((handshake_ns,),) = found.rows("connections", SEND_RECEIVE, "handshake_ns")
    assert handshake_ns // 1000 == 3969


def test_transfers_of_1_0_are_counted_by_direction(found: Captured) -> None:
    columns = ("messages_published", "messages_delivered")
    assert found.rows("connections", SEND_RECEIVE, *columns) == [(10, 10)]
    rows = found.rows("connections", OUTCOMES, *columns)
    assert sum(map(sum, rows)) == 28


def test_0_10_connections_negotiate_as_the_classic_ones(found: Captured) -> None:
    columns = ("state", "mechanism", "vhost", "server_product", "close_initiator", "close_code", "close_text")
    row = ("closed", "ANONYMOUS", "", "qpid-cpp", "client", 200, "OK")
    assert found.rows("connections", CPP, *columns) == [row, row]
    limits = ("channel_max", "frame_max", "heartbeat_s", "server_channel_max", "server_heartbeat_s")
    assert found.rows("connections", CPP, *limits) == [(32767, 65535, 0, 65534, 120)] * 2


def test_20_messages_are_sent_and_received_in_0_10(found: Captured) -> None:
    columns = ("messages_published", "messages_delivered")
    assert found.rows("connections", CPP, *columns) == [(20, 0), (0, 20)]


def test_sessions_of_1_0_join_the_numbers_of_both_sides(found: Captured) -> None:
    columns = ("channel", "channel_incarnation", "remote_channel", "incoming_window", "published", "delivered")
    assert found.rows("channels", SEND_RECEIVE, *columns) == [(0, 1, 0, 2_147_483_647, 10, 10)]
    rows = found.rows("channels", OUTCOMES, *columns)
    assert [row[:4] for row in rows] == [(0, 1, 0, 2_147_483_647)] * 2
    assert sum(sum(row[4:]) for row in rows) == 28


def test_sessions_that_end_with_their_connection_are_not_closed(found: Captured) -> None:
    """No performative `end` is in the capture."""
    assert found.rows("channels", SEND_RECEIVE, "closed_ts", "close_initiator") == [(None, None)]


def test_sessions_of_0_10_have_names_and_are_detached(found: Captured) -> None:
    columns = ("channel", "session_name", "close_initiator", "close_code", "published", "delivered")
    sender, receiver = found.rows("channels", CPP, *columns)
    # Bytes 33:66:38:37:63:30:65:63:2d:... (UTF-8) in the first session.attach.
    assert sender == (1, "3f87c0ec-9cdd-47a1-91c2-82efff0a2542", "client", 0, 20, 0)
    assert receiver[2:] == ("client", 0, 0, 20)
