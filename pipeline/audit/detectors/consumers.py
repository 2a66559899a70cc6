"""CO: consumers."""

from __future__ import annotations

from pipeline.audit.contexts.tags import tags
from pipeline.audit.detector import Detector, Sql, State
from pipeline.audit.detectors.transactions import WHOLE_LIFE

STATES = {
    "last_qos": State(
        "last(CASE WHEN name = 'basic.qos' THEN "
        "named_struct('frame_no', frame_no, 'prefetch_count', said.prefetch_count) END, true)"
    )
}
CONTEXTS = {"tags": tags}

ACTIVE: Sql = "tag_was.name IN ('basic.consume', 'basic.consume-ok')"
# A consumer that the server has cancelled may be cancelled by a client that does not know that yet.
UNKNOWN: Sql = (
    "coalesce(tag_was.name = 'basic.cancel-ok' OR tag_was.name = 'basic.cancel' AND tag_was.sender = 'client', true)"
)
ACTIVE_ELSEWHERE: Sql = (
    "coalesce(tag_was_anywhere.name IN ('basic.consume', 'basic.consume-ok') AND "
    "tag_was_anywhere.channel != channel, false)"
)
CANCELS = f"name = 'basic.cancel' AND sender = 'client' AND {UNKNOWN} AND (channel_life > 0 OR c.from_start)"
NO_LIMIT: Sql = "NOT coalesce(last_qos.frame_no > coalesce(opened_frame, 0) AND last_qos.prefetch_count > 0, false)"
DIRECT_REPLY: Sql = "said.queue LIKE 'amq.rabbitmq.reply-to%'"

DETECTORS = (
    Detector(
        "CO-01",
        "tags",
        when=f"name = 'basic.consume' AND {ACTIVE}",
        evidence={"observed": "consumer_tag", "in_use_since_frame": "tag_was.frame_no"},
    ),
    Detector(
        "CO-02",
        "tags",
        when=f"{CANCELS} AND NOT {ACTIVE_ELSEWHERE}",
        evidence={"observed": "consumer_tag", "expected": "'the tag of an active consumer'"},
    ),
    Detector(
        "CO-03",
        "tags",
        when=f"{CANCELS} AND {ACTIVE_ELSEWHERE}",
        evidence={"observed": "consumer_tag", "channel": "channel", "active_on_channel": "tag_was_anywhere.channel"},
    ),
    Detector(
        "CO-04",
        "tags",
        when="name = 'basic.deliver' AND tag_was.name = 'basic.cancel-ok' AND tag_was.sender = 'server'",
        evidence={"observed": "consumer_tag", "cancelled_in_frame": "tag_was.frame_no"},
    ),
    Detector(
        "CO-05",
        "events",
        when="name = 'basic.cancel' AND sender = 'server'",
        evidence={"observed": "said.consumer_tag"},
    ),
    Detector(
        "CO-06",
        "events",
        when=f"name = 'basic.consume' AND NOT coalesce(said.no_ack, false) AND {NO_LIMIT} AND {WHOLE_LIFE}",
        evidence={
            "observed": "coalesce(last_qos.prefetch_count, 0)",
            "expected": "'a prefetch count above 0'",
            "queue": "said.queue",
            "consumer_tag": "said.consumer_tag",
        },
    ),
    Detector(
        "CO-07",
        "rates",
        when="name = 'basic.get' AND ts_ns - got_before_ns <= 60000000000",
        evidence={
            "observed": "{limit_per_minute} + 1",
            "expected": "{limit_per_minute}",
            "in_seconds": "(ts_ns - got_before_ns) / 1000000000D",
            "empty_share": "round(empty_share, 3)",
        },
    ),
    Detector(
        "CO-08",
        "events",
        when=f"name = 'basic.consume' AND said.no_ack AND NOT {DIRECT_REPLY}",
        evidence={"observed": "'no-ack'", "queue": "said.queue", "consumer_tag": "said.consumer_tag"},
    ),
    Detector(
        "CO-09",
        "entities",
        when="name = 'basic.consume' AND reply_name = 'basic.consume-ok' AND sole.answered_ns <= answered_ns AND "
        "sole.until_ns > answered_ns AND answered_ns < broker_loss_ns",
        evidence={
            "observed": "'a second consumer'",
            "queue": "entity",
            "exclusive_consumer": "named_struct('connection_id', sole.connection_id, 'frame_no', sole.frame_no)",
        },
        frame="reply_frame_no",
    ),
)
