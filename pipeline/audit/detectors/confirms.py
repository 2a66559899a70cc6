"""CF: publisher confirms."""

from __future__ import annotations

from pipeline.audit.contexts.channels import count_of
from pipeline.audit.contexts.messages import returned_publishes
from pipeline.audit.detector import Detector
from pipeline.audit.detectors.transactions import SEEN_SINCE_OPEN, since_open

CONTEXTS = {"returned_publishes": returned_publishes}

DETECTORS = (
    Detector(
        "CF-01",
        "events",
        when=f"name IN ('basic.ack', 'basic.nack') AND sender = 'server' AND NOT {since_open('confirm_frame')} AND "
        f"{SEEN_SINCE_OPEN}",
        evidence={"observed": "name", "expected": "'confirm.select'", "delivery_tag": "args.delivery_tag"},
    ),
    Detector(
        "CF-02",
        "settlements",
        when="sender = 'server' AND confirms AND (delivery_tag = 0 AND NOT multiple OR delivery_tag > 0 AND "
        "(named IS NULL OR NOT multiple AND named.settled_frame_no < frame_no))",
        evidence={
            "observed": "delivery_tag",
            "expected": "'the number of a message that is published and not yet confirmed'",
            "confirmed_in_frame": "named.settled_frame_no",
            "multiple": "multiple",
            "method": "name",
        },
        thing="frame_no",
    ),
    Detector(
        "CF-03",
        "returned_publishes",
        when="all_confirmed_frame < returned_frame_no",
        evidence={
            "observed": "named_struct('confirmed_in_frame', settled_frame_no, 'returned_in_frame', returned_frame_no)",
            "expected": "'basic.return before the confirm'",
            "delivery_tag": "delivery_tag",
            "exchange": "exchange",
            "routing_key": "routing_key",
        },
        frame="returned_frame_no",
        thing="frame_no",
    ),
    Detector(
        "CF-04",
        "waits",
        when="operation = 'publish' AND delivery_tag IS NOT NULL AND waited_ns > {limit_seconds} * 1000000000D",
        evidence={
            "observed": "waited_ns / 1000000000D",
            "expected": "{limit_seconds}",
            "outcome": "outcome",
            "delivery_tag": "delivery_tag",
            "outstanding": "outstanding",
        },
        at_ns="ts_ns + waited_ns",
        thing="frame_no",
    ),
    Detector(
        "CF-05",
        "events",
        when="name = 'basic.nack' AND sender = 'server'",
        evidence={"observed": "name", "delivery_tag": "args.delivery_tag", "multiple": "args.multiple"},
    ),
    Detector(
        "CF-06",
        "incarnations",
        when=f"persistent > 0 AND (channel_life > 0 OR c.from_start) AND {count_of('confirm.select', 'tx.select')} = 0",
        evidence={"observed": "persistent", "expected": "'confirm.select or tx.select'"},
        frame="first_persistent",
        at_ns="until_ns",
        occurrences="persistent",
    ),
)
