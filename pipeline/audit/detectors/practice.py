"""R4: ready for RabbitMQ 4. PR: habits that cost."""

from __future__ import annotations

from pipeline.audit.contexts.practice import (
    habits,
    repeats,
    requeue_loops,
    requeued,
    timed_out,
    tokens,
    unrouted,
    upgrades,
)
from pipeline.audit.detector import Detector, Sql

CONTEXTS = {
    "upgrades": upgrades,
    "requeued": requeued,
    "habits": habits,
    "repeats": repeats,
    "requeue_loops": requeue_loops,
    "unrouted": unrouted,
    "timed_out": timed_out,
    "tokens": tokens,
}

DECLARES: Sql = "name = 'queue.declare' AND NOT coalesce(passive, false)"
MAX_LENGTH: Sql = (
    "(error.condition = 'amqp:resource-limit-exceeded' OR coalesce(error.description, '') RLIKE '(?i)max.?len')"
)


def refused_declaration(rule: str, when: Sql, observed: Sql) -> Detector:
    """A declaration of a queue that RabbitMQ 4 refuses."""
    shown = {"observed": observed, "queue": "queue", "broker": "server_version"}
    return Detector(rule, "upgrades", when=f"{DECLARES} AND {when}", evidence=shown)


def habit(rule: str, number: Sql, frame: Sql = "first_frame", when: Sql = "true", **evidence: Sql) -> Detector:
    """A connection that does something as often as the limit, or more; first in `frame`."""
    shown = {"observed": number, **evidence}
    return Detector(rule, "habits", when=f"{when} AND {number} >= {{limit}}", frame=frame, evidence=shown)


DETECTORS = (
    refused_declaration("R4-01", "NOT durable AND NOT exclusive", "'durable = false, exclusive = false'"),
    Detector(
        "R4-02",
        "upgrades",
        when="name = 'basic.qos' AND global",
        evidence={"observed": "'global = true'", "prefetch_count": "prefetch_count", "broker": "server_version"},
    ),
    refused_declaration("R4-03", "mode IS NOT NULL", "concat('x-queue-mode = ', mode)"),
    refused_declaration("R4-04", "queue_version = '1'", "'x-queue-version = 1'"),
    refused_declaration("R4-05", "locator IS NOT NULL", "concat('x-queue-master-locator = ', locator)"),
    refused_declaration("R4-06", "mirrored IS NOT NULL", "concat('x-ha-policy = ', mirrored)"),
    Detector(
        "R4-07",
        "upgrades",
        when="name = 'attach' AND address != '' AND NOT startswith(address, '/queues/') "
        "AND NOT startswith(address, '/exchanges/') AND NOT startswith(address, '/management')",
        evidence={"observed": "address", "address": "address", "broker": "server_version"},
        thing="address",
    ),
    Detector(
        "R4-08",
        "connections",
        when="server_product = 'RabbitMQ' AND client_frame_max > 0 AND client_frame_max < {minimum_bytes}",
        row="c.tune_ok",
        evidence={"observed": "client_frame_max", "expected": "{minimum_bytes}", "broker": "server_version"},
    ),
    Detector(
        "R4-09",
        "requeued",
        when="true",
        evidence={"observed": "messages", "queue": "queue", "broker": "server_version"},
        occurrences="messages",
        thing="frame_no",
    ),
    Detector(
        "PR-01",
        "connections",
        when="messages_published >= {least} AND messages_delivered >= {least}",
        frame="first_frame",
        evidence={"published": "messages_published", "delivered": "messages_delivered"},
    ),
    habit("PR-02", "shots", when="first_shot", expected="'one connection for all messages'"),
    habit("PR-03", "singles", "first_single", expected="'one channel for all messages'"),
    Detector(
        "PR-04",
        "habits",
        when="first_of_user AND user IS NOT NULL AND size(products) > {limit}",
        frame="first_frame",
        evidence={"user": "user", "observed": "array_join(products, ', ')", "limit": "{limit}"},
    ),
    Detector(
        "PR-05",
        "repeats",
        when="times >= {limit}",
        evidence={"method": "name", "queue": "queue", "exchange": "exchange", "times": "times"},
        thing="frame_no",
    ),
    Detector(
        "PR-06",
        "timed_out",
        when="true",
        evidence={
            "reply_text": "reply_text",
            "delivery_tag": "of.delivery_tag",
            "queue": "of.queue",
            "delivered_in_frame": "of.first_frame_no",
            "waited_s": "(ts_ns - of.since_ns) / 1000000000D",
            "acknowledged": "CASE WHEN acked_frame IS NOT NULL THEN concat('after the close, in frame ', acked_frame) "
            "WHEN of IS NOT NULL THEN 'never on the wire' END",
        },
    ),
    habit("PR-07", "leaked", expected="'channels that are used, or closed'"),
    Detector(
        "PR-08",
        "unrouted",
        when="true",
        evidence={"observed": "messages", "exchange": "exchange", "routing_key": "routing_key"},
        occurrences="messages",
        thing="frame_no",
    ),
    Detector(
        "PR-09",
        "habits",
        when="large > 0",
        frame="first_large",
        evidence={"observed": "largest", "expected": "{limit_bytes}", "messages": "large"},
        occurrences="large",
    ),
    *(
        Detector(
            rule,
            "requeue_loops",
            when=when,
            evidence={"observed": number, "queue": "queue", "message_id": "message_id"},
            thing="frame_no",
        )
        for rule, when, number in (
            ("PR-10", "redeliveries - quick >= {limit}", "redeliveries"),
            ("PR-11", "quick >= {limit}", "quick"),
        )
    ),
    Detector(
        "PR-12",
        "handed_back",
        when=f"operation = 'publish' AND outcome = 'rejected' AND {MAX_LENGTH}",
        evidence={
            "observed": "error.condition",
            "text": "error.description",
            "messages": "messages",
            "link": "link",
            "address": "address",
        },
        occurrences="messages",
        thing="content_frame_no",
    ),
    Detector(
        "PR-13",
        "sequences",
        when="oddity = 'detach-error' AND condition = 'amqp:link:detach-forced' "
        "AND coalesce(description, '') RLIKE '(?i)idle|inactiv'",
        evidence={"observed": "condition", "text": "description", "link": "link", "address": "address"},
    ),
    Detector(
        "PR-14",
        "sequences",
        when="oddity IN ('detach-error', 'end-error') AND condition = 'amqp:unauthorized-access' "
        "AND coalesce(description, '') RLIKE '(?i)expired'",
        evidence={"observed": "condition", "text": "description", "link": "link", "address": "address"},
    ),
    Detector(
        "PR-14",
        "tokens",
        when="true",
        evidence={
            "observed": "timestamp_micros(expires_ns DIV 1000)",
            "expected": "'a new token before that time'",
            "address": "audience",
            "late_s": "(coalesce(renewed_ns, last_ns) - expires_ns) / 1000000000D",
        },
    ),
    Detector(
        "PR-15",
        "connections",
        when="client_zero_window_ns > {limit_seconds} * 1000000000D AND messages_delivered > 0",
        frame="first_frame",
        evidence={
            "observed_s": "client_zero_window_ns / 1000000000D",
            "expected_s": "{limit_seconds}",
            "delivered": "messages_delivered",
        },
    ),
)
