"""DL: deliveries and their settlement."""

from __future__ import annotations

from pipeline.audit.contexts.messages import messages, numbers, redeliveries, waits
from pipeline.audit.contexts.outstanding import outstanding_peaks, prefetched
from pipeline.audit.contexts.settlements import settlements
from pipeline.audit.detector import Detector, Sql

CONTEXTS = {
    "messages": messages,
    "numbers": numbers,
    "outstanding_peaks": outstanding_peaks,
    "prefetched": prefetched,
    "redeliveries": redeliveries,
    "settlements": settlements,
    "waits": waits,
}

SETTLES: Sql = "sender = 'client' AND delivery_tag > 0"
TAG = {"observed": "delivery_tag", "method": "name", "multiple": "multiple"}
OUTSTANDING: Sql = "'the tag of a message that is delivered on the channel and not yet settled'"

DETECTORS = (
    Detector(
        "DL-01",
        "events",
        when="name IN ('basic.deliver', 'basic.get-ok') AND args.delivery_tag = 0",
        evidence={"observed": "args.delivery_tag", "expected": "'a tag above 0'", "method": "name"},
    ),
    Detector(
        "DL-02",
        "numbers",
        when="delivery_tag <= highest_tag",
        evidence={"observed": "delivery_tag", "expected": "concat('above ', highest_tag)"},
    ),
    Detector(
        "DL-03",
        "settlements",
        when=f"{SETTLES} AND named IS NULL AND elsewhere IS NULL",
        evidence={**TAG, "expected": OUTSTANDING},
        thing="frame_no",
    ),
    Detector(
        "DL-04",
        "settlements",
        when=f"{SETTLES} AND NOT multiple AND NOT named.presettled AND named.settled_frame_no < frame_no",
        evidence={**TAG, "expected": OUTSTANDING, "settled_in_frame": "named.settled_frame_no"},
        thing="frame_no",
    ),
    Detector(
        "DL-05",
        "settlements",
        when=f"{SETTLES} AND named IS NULL AND elsewhere.channel != channel",
        evidence={**TAG, "channel": "channel", "outstanding_on_channel": "elsewhere.channel"},
        thing="frame_no",
    ),
    Detector(
        "DL-06",
        "settlements",
        when=f"{SETTLES} AND named.presettled",
        evidence={**TAG, "expected": "'no acknowledgement'", "delivered_in_frame": "named.frame_no"},
        thing="frame_no",
    ),
    Detector(
        "DL-07",
        "events",
        when="name IN ('basic.ack', 'basic.nack', 'basic.reject') AND sender = 'client' AND args.delivery_tag = 0 AND "
        "NOT coalesce(args.multiple, false)",
        evidence={"observed": "args.delivery_tag", "expected": "'a tag above 0, or multiple'", "method": "name"},
    ),
    Detector(
        "DL-08",
        "settlements",
        when="sender = 'client' AND multiple AND NOT hits AND (delivery_tag = 0 OR named IS NOT NULL) AND "
        "NOT coalesce(named.presettled, false) AND NOT in_transaction",
        evidence={**TAG, "expected": "'a message that is outstanding up to this tag'"},
        thing="frame_no",
    ),
    Detector(
        "DL-09",
        "incarnations",
        when="ended AND unsettled > 0",
        evidence={"observed": "unsettled", "delivered": "delivered"},
        frame="first_unsettled",
        at_ns="until_ns",
        occurrences="unsettled",
    ),
    Detector(
        "DL-10",
        "redeliveries",
        when="unflagged",
        evidence={
            "observed": "'redelivered = 0'",
            "expected": "'redelivered = 1'",
            "queue": "queue",
            "message_id": "message_id",
            "body_sha256": "body_sha256",
            "delivered_before": "named_struct('connection_id', earlier_connection, 'frame_no', earlier_frame)",
        },
        thing="frame_no",
    ),
    Detector(
        "DL-11",
        "prefetched",
        when="outstanding > allowed",
        evidence={
            "observed": "outstanding",
            "expected": "allowed",
            "consumer_tag": "consumer_tag",
            "of": "CASE WHEN shared THEN 'channel' ELSE 'consumer' END",
            "delivery_tag": "delivery_tag",
        },
        thing="frame_no",
    ),
    Detector(
        "DL-12",
        "outstanding_peaks",
        when="frame_no IS NOT NULL",
        evidence={"observed": "peak", "expected": "{limit}"},
    ),
    Detector(
        "DL-13",
        "waits",
        when="operation IN ('deliver', 'get') AND waited_ns > {limit_seconds} * 1000000000D",
        evidence={
            "observed": "waited_ns / 1000000000D",
            "expected": "{limit_seconds}",
            "outcome": "outcome",
            "delivery_tag": "delivery_tag",
            "queue": "queue",
        },
        at_ns="ts_ns + waited_ns",
        thing="frame_no",
    ),
    Detector(
        "DL-14",
        "tags",
        when="name = 'basic.deliver' AND tag_was IS NULL AND (channel_life > 0 OR c.from_start)",
        evidence={"observed": "consumer_tag", "expected": "'basic.consume with this tag'"},
    ),
    Detector(
        "DL-15",
        "incarnations",
        when="delivered >= {least_deliveries} AND greatest(refused, redelivered) > {limit_ratio} * delivered",
        evidence={
            "observed": "round(greatest(refused, redelivered) / delivered, 3)",
            "expected": "{limit_ratio}",
            "delivered": "delivered",
            "refused": "refused",
            "redelivered": "redelivered",
        },
        frame="coalesce(least(first_refused, first_redelivered), last_frame)",
        at_ns="until_ns",
    ),
)
