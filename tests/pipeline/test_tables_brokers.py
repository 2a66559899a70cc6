"""What RabbitMQ 4 and ActiveMQ say over 1.0, of captures in `captures/brokers`: addresses, virtual hosts, redeliveries,
offsets of streams. Expected values are those that the clients of the captures used, as tshark shows them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import pipeline
from codec.variant import decode
from pipeline.run.local_processes import LocalProcesses

CAPTURES = Path(__file__).parents[1] / "captures" / "brokers"
Row = dict[str, Any]


class Decoded:
    """Tables of each capture, decoded by itself, as rows in the order of their frames."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def rows(self, capture: str, table: str, *columns: str) -> list[tuple[Any, ...]]:
        target = self._directory / capture
        if not target.exists():
            pipeline.write(LocalProcesses(1), [str(CAPTURES / f"{capture}.pcap")], str(target))
        found = pq.read_table(target / table)
        keys = [
            name for name in ("first_frame_no", "publish_frame_no", "deliver_frame_no") if name in found.column_names
        ]
        if keys:
            found = found.sort_by([(name, "ascending") for name in keys])
        return list(zip(*(found[name].to_pylist() for name in columns), strict=True))


def as_json(properties: Row) -> Row:
    """A VARIANT as Parquet has it."""
    found: Row = decode(properties["value"], properties["metadata"])
    return found


@pytest.fixture(scope="module")
def decoded(tmp_path_factory: pytest.TempPathFactory) -> Decoded:
    return Decoded(tmp_path_factory.mktemp("brokers"))


def test_addresses_of_rabbitmq_4_name_exchange_routing_key_and_queue(decoded: Decoded) -> None:
    """An anonymous sender (property `to`), then a consumer of the queue, whose messages say their route."""
    columns = ("operation", "address", "exchange", "routing_key", "queue")
    rows = [
        row[:1] + row[2:]
        for row in decoded.rows("10_rabbitmq4_anonymous_terminus", "messages", *columns)
        if row[1] != "/management"
    ]
    assert rows == [
        ("publish", "", "anon.q", None),
        ("publish", "anon.x", "ok.1", None),
        ("publish", "anon.x", "nobody.listens", None),
        ("publish", "", "does.not.exist", None),
        ("publish", "missing.x", "k", None),
        ("publish", "", "old-style", None),
        ("publish", None, None, None),
        ("publish", "anon.x", "", None),
        ("deliver", "", "anon.q", "anon.q"),
        ("deliver", "anon.x", "ok.1", "anon.q"),
    ]  # fmt: skip


REQUESTS = {  # what the client asked for, one after the other, and the status that it was given
    "PUT /exchanges/ev.topic": 204, "PUT /exchanges/ev.fan": 204, "PUT /queues/q.classic": 201,
    "PUT /queues/q%2Fwith%20slash%20%26%20more": 201, "PUT /queues/q.stream": 201, "GET /queues/no-such-queue": 404,
    "PUT /queues/amq.reserved": 403, "PUT /queues/bad.type": 409, "DELETE /exchanges/amq.topic": 403,
}  # fmt: skip


def test_requests_to_the_management_of_rabbitmq_have_a_status(decoded: Decoded) -> None:
    columns = (
        "management_operation", "management_target", "message_id", "management_status", "correlation_id",
        "management_text",
    )  # fmt: skip
    rows = decoded.rows("10_rabbitmq4_management_link_pair", "messages", *columns)
    requests = {row[2]: f"{row[0]} {row[1]}" for row in rows if row[0]}
    statuses = [(requests[row[4]], row[3]) for row in rows if row[3]]
    assert len(requests) == len(statuses) == 24
    assert {asked: status for asked, status in statuses if asked in REQUESTS and status != 200} == {
        **REQUESTS, "PUT /exchanges/ev.topic": 409, "PUT /queues/q.classic": 409
    }  # fmt: skip
    assert [row[5] for row in rows if row[3] == 404] == ["queue 'no-such-queue' in vhost '/' not found"]
    assert {bool(row[5]) for row in rows if row[3] and row[3] >= 400} == {True}
    assert {row[5] for row in rows if row[3] and row[3] < 400} == {None}


def test_bodies_of_management_requests_are_decoded(decoded: Decoded) -> None:
    rows = decoded.rows("10_rabbitmq4_management_link_pair", "messages", "management_target", "properties")
    bodies = [as_json(properties).get("body_value") for target, properties in rows if target == "/queues/q.stream"]
    assert bodies == [{"arguments": {"x-queue-type": "stream"}}]


def test_links_to_streams_are_known_by_their_filters(decoded: Decoded) -> None:
    rows = decoded.rows("10_rabbitmq4_stream_filters", "links", "kind", "address", "queue", "queue_type")
    assert Counter(rows) == {
        ("sender", "/management", None, None): 1,
        ("receiver", "/management", None, None): 1,
        ("sender", "/queues/str.q", "str.q", "stream"): 1,
        ("receiver", "/queues/str.q", "str.q", "stream"): 10,
    }


@pytest.mark.parametrize(
    ("capture", "types"),
    [
        ("10_rabbitmq4_anonymous_terminus", {("anon.q", "quorum"): 1}),
        ("10_rabbitmq4_disposition_ranges", {("bat.q", None): 4}),  # declared on another connection
    ],
)
def test_queues_are_of_the_type_that_a_management_request_declared(
    decoded: Decoded, capture: str, types: dict[tuple[str, str | None], int]
) -> None:
    rows = decoded.rows(capture, "links", "kind", "queue", "queue_type")
    assert Counter(row[1:] for row in rows if row[1]) == types


def test_the_virtual_host_of_rabbitmq_is_not_its_hostname(decoded: Decoded) -> None:
    """Opened with hostname 127.0.0.1 by a user without permission; missing; 127.0.0.1; vhost:orders."""
    rows = decoded.rows("10_rabbitmq4_sasl_and_vhost", "connections", "vhost", "state")
    assert Counter(rows) == {
        (None, "start"): 1, (None, "secure"): 1, ("127.0.0.1", "tune"): 1, ("missing", "tune"): 1, ("/", "closed"): 1,
        ("orders", "closed"): 1,
    }  # fmt: skip


def test_each_delivery_of_a_stream_is_the_publish_with_its_offset(decoded: Decoded) -> None:
    """Twelve messages, of which ten readers get what their filters allow."""
    messages = decoded.rows(
        "10_rabbitmq4_stream_filters", "messages", "operation", "first_frame_no", "address", "queue_offset"
    )
    published = [
        frame for operation, frame, address, _ in messages if operation == "publish" and address == "/queues/str.q"
    ]
    offsets = {frame: offset for operation, frame, _, offset in messages if offset is not None}
    pairs = decoded.rows(
        "10_rabbitmq4_stream_filters", "message_flows", "publish_frame_no", "deliver_frame_no", "match", "ambiguous"
    )  # fmt: skip
    found = [pair for pair in pairs if pair[1] in offsets]
    assert len(found) == len(offsets) == 72
    assert {
        (published.index(publish) == offsets[delivery], match, doubt) for publish, delivery, match, doubt in found
    } == {(True, "message-id", False)}


def test_dead_letters_of_activemq_are_paired(decoded: Decoded) -> None:
    """Rejected, or given back too often; an expired message is gone."""
    columns = ("match", "dead_letter_reason", "queue", "redeliveries", "ambiguous")
    rows = [
        row
        for row in decoded.rows("10_activemq_selectors_dead_letters", "message_flows", *columns)
        if row[2] == "DLQ.SEL.Q"
    ]
    assert rows == [("message-id", "unknown", "DLQ.SEL.Q", 0, False)] * 6


def test_what_a_quorum_queue_delivers_again_is_redelivered(decoded: Decoded) -> None:
    """x-acquired-count above 0, where delivery-count stays 0."""
    rows = decoded.rows("10_rabbitmq4_disposition_ranges", "messages", "first_frame_no", "redelivered")
    assert [frame for frame, redelivered in rows if redelivered] == [107, 108, 109]
    flows = decoded.rows("10_rabbitmq4_disposition_ranges", "message_flows", "redeliveries", "ambiguous", "match")
    assert [row[:2] for row in flows if row[0]] == [(1, False)] * 3
    assert {ambiguous for _, ambiguous, match in flows if match != "none"} == {False}
