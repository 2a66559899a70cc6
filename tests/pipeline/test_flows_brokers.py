"""Pairs that need what a broker is known to do: redeliveries, dead letters, temporary queues."""

from __future__ import annotations

from typing import Any

import pytest
from test_flows_labels import BROKER, Row, message, messages, paired


def found(*rows: Row) -> list[tuple[Any, ...]]:
    """(publish, first delivery, redeliveries, match, ambiguous, dead-lettered) of each flow."""
    names = ("publish_frame_no", "deliver_frame_no", "redeliveries", "match", "ambiguous", "dead_letter_reason")
    flows = [tuple(row[name] for name in names) for row in paired(messages(*rows), BROKER)]
    return sorted(flows, key=lambda flow: [value or 0 for value in flow[:2]])


def delivery(at: int, outcome: str, link: str, again: bool, **more: Any) -> Row:
    """What a quorum queue of RabbitMQ 4 delivers; `again`: as something that may have been delivered before."""
    header = {"delivery_count": 0, "first_acquirer": not again}
    annotations = {"x-exchange": "", "x-routing-key": "q", **({"x-acquired-count": 1} if again else {})}
    return message(
        "1.0", "deliver", 0, at, address="/queues/q", link=link, outcome=outcome, redelivered=False,
        properties={"header": header, "message_annotations": annotations}, **more,
    )  # fmt: skip


@pytest.mark.parametrize("given_back", ["released", "unsettled", "unknown", "modified"])
@pytest.mark.parametrize("ids", [{"message_id": "m"}, {}])
def test_a_message_whose_first_acquirer_gave_it_back_is_redelivered(given_back: str, ids: Row) -> None:
    """Released, or its link was detached, or its consumer timed out: the delivery-count stays 0."""
    sent = message("1.0", "publish", 0, 10, address="/queues/q", **ids)
    seen = [delivery(20, given_back, "a", False, **ids), delivery(30, "acked", "b", True, **ids)]
    assert found(sent, *seen) == [(10, 20, 1, "message-id" if ids else "fingerprint", False, None)]


def test_another_message_of_the_same_content_is_no_redelivery() -> None:
    """Two are published; the first is released, and the second delivered for the first time."""
    sent = [message("1.0", "publish", 0, at, address="/queues/q") for at in (10, 11)]
    seen = [delivery(20, "modified", "a", False), delivery(30, "acked", "a", False), delivery(40, "acked", "a", True)]
    assert [flow[:3] for flow in found(*sent, *seen)] == [(10, 20, 1), (11, 30, 0)]


DEATH = {"queue": "q", "exchange": "", "routing-keys": ["q"], "count": 1}


def dead(reason: str, version: str) -> Row:
    """Headers of 0-9-1, or properties of 1.0, of a message that queue q dead-lettered."""
    first = {"x-first-death-queue": "q", "x-first-death-exchange": "", "x-first-death-reason": reason}
    if version == "1.0":
        annotations = {
            "x-opt-deaths": [{**DEATH, "reason": reason}],
            "x-exchange": "",
            "x-routing-key": "dead",
            **first,
        }
        return {"properties": {"message_annotations": annotations}, "address": "/queues/dead", "headers": None}
    headers = {"x-death": [{**DEATH, "reason": reason}], **first}
    return {"headers": headers, "exchange": "", "routing_key": "dead", "queue": "dead"}


@pytest.mark.parametrize("version", ["0-9-1", "1.0"])
@pytest.mark.parametrize("ids", [{"message_id": "m"}, {}])
def test_what_a_full_queue_refused_and_dead_lettered_is_one_pair(version: str, ids: Row) -> None:
    """Overflow reject-publish-dlx: the publisher is told that its queue did not accept the message."""
    to: Row = {"address": "/queues/q"} if version == "1.0" else {"exchange": "", "routing_key": "q"}
    outcome = "rejected" if version == "1.0" else "nacked"
    sent = message(version, "publish", 0, 10, outcome=outcome, **{**to, "headers": None, **ids})
    seen = message(version, "deliver", 0, 20, **{**dead("maxlen", version), **ids})
    assert found(sent, seen) == [(10, 20, 0, "message-id" if ids else "fingerprint", False, "maxlen")]


@pytest.mark.parametrize("reason", ["rejected", "expired", "delivery_limit"])
def test_what_was_refused_is_not_what_left_its_queue_for_another_reason(reason: str) -> None:
    sent = message("0-9-1", "publish", 0, 10, exchange="", routing_key="q", outcome="nacked", headers=None)
    seen = message("0-9-1", "deliver", 0, 20, **dead(reason, "0-9-1"))
    assert [flow[3] for flow in found(sent, seen)] == ["none", "none"]


def test_a_refused_publish_that_was_sent_again_is_not_the_one_delivered() -> None:
    ids: Row = {"message_id": "m", "exchange": "", "routing_key": "q"}
    sent = [
        message("0-9-1", "publish", 0, 10 + n, outcome=outcome, **ids)
        for n, outcome in enumerate(("nacked", "confirmed"))
    ]
    seen = message("0-9-1", "deliver", 0, 20, queue="q", **ids)
    assert [flow[:5] for flow in found(*sent, seen)] == [
        (10, None, None, "none", None),
        (11, 20, 0, "message-id", False),
    ]


@pytest.mark.parametrize(
    ("published_to", "delivered_from", "ids", "ambiguous"),
    [
        ("queue://work", "queue://DLQ.work", {"message_id": "m"}, False),
        ("queue://work", "queue://DLQ.work", {}, False),
        ("work", "DLQ.work", {}, False),
        ("queue://work", "queue://ActiveMQ.DLQ.Queue.work", {"message_id": "m"}, False),
        ("queue://work", "queue://ActiveMQ.DLQ", {"message_id": "m"}, False),
        ("queue://work", "queue://ActiveMQ.DLQ", {}, True),
    ],
)
def test_dead_letters_of_activemq_are_known_by_the_name_of_their_queue(
    published_to: str, delivered_from: str, ids: Row, ambiguous: bool
) -> None:
    sent = message("1.0", "publish", 0, 10, address=published_to, **ids)
    rejected = message("1.0", "deliver", 0, 20, address=published_to, outcome="rejected", link="a", **ids)
    seen = message("1.0", "deliver", 0, 30, address=delivered_from, link="b", **ids)
    match = "message-id" if ids else "fingerprint"
    assert found(sent, rejected, seen) == [
        (10, 20, 0, match, False, None),
        (10, 30, 0, match, ambiguous, "unknown"),
    ]


def test_what_is_published_to_a_queue_of_dead_letters_is_not_dead() -> None:
    sent = message("1.0", "publish", 0, 10, address="queue://DLQ.work", message_id="m")
    seen = message("1.0", "deliver", 0, 30, address="queue://DLQ.work", message_id="m")
    assert found(sent, seen) == [(10, 30, 0, "message-id", False, None)]


@pytest.mark.parametrize(
    ("headers", "reason"), [({"DeadLetterReason": "TTLExpiredException"}, "TTLExpiredException"), (None, "unknown")]
)
def test_dead_letters_of_service_bus_say_why(headers: Row | None, reason: str) -> None:
    sent = message("1.0", "publish", 0, 10, address="jobs", message_id="m", headers=None)
    seen = message("1.0", "deliver", 0, 30, address="jobs/$DeadLetterQueue", message_id="m", headers=headers)
    assert found(sent, seen) == [(10, 30, 0, "message-id", False, reason)]


@pytest.mark.parametrize("own", [{}, {"message_id": "mine"}])
def test_temporary_queues_of_activemq_give_messages_another_id(own: Row) -> None:
    to = "temp-queue://ID:broker-1-1700000000000-2:1:1"
    sent = message("1.0", "publish", 0, 10, address=to, correlation_id="c", **own)
    seen = message("1.0", "deliver", 0, 30, address=to, correlation_id="c", message_id="ID:broker-1-17-3:1:-1:1:1")
    assert found(sent, seen) == [(10, 30, 0, "fingerprint", False, None)]
