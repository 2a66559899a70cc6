"""T10: frames, sessions, commands and subscriptions of AMQP 0-10."""

from __future__ import annotations

from dataclasses import replace

from codec.amqp.versions import (
    E_ARGUMENTS,
    E_DEPTH,
    E_FIELDS,
    E_FRAME_TYPE,
    E_METHOD,
    E_NO_COMMAND,
    E_PROPERTIES,
    E_RESERVED,
    E_SEGMENT_ALONE,
    E_SHORT_METHOD,
)
from pipeline.audit.detector import Detector, Sql
from pipeline.audit.detectors import closing, handshake, heartbeats
from pipeline.audit.detectors.amqp_1_0 import error_is, frame_error, late, odd
from pipeline.audit.detectors.framing import has_note

CONTENT_NOTES = has_note("undefined-flags", "entry-unexpected")
OFFERED: Sql = "c.tune.args.heartbeat"
CHOSEN: Sql = "c.tune_ok.args.heartbeat"
DETACH_CODES: Sql = (
    "CASE observed WHEN 1 THEN 'session-busy' WHEN 2 THEN 'transport-busy' WHEN 3 THEN 'not-attached' "
    "WHEN 4 THEN 'unknown-ids' END"
)
REJECT_CODES: Sql = "CASE observed WHEN 0 THEN 'unspecified' WHEN 1 THEN 'unroutable' WHEN 2 THEN 'immediate' END"
ON_SUBSCRIPTION = {"destination": "link", "queue": "address"}


def as_in(rule: str, like: str, group: tuple[Detector, ...]) -> list[Detector]:
    """The detectors of a rule of the classic versions, for the same rule of 0-10."""
    return [replace(detector, rule=rule) for detector in group if detector.rule == like]


DETECTORS = (
    frame_error("T10-01", has_note("frame-flags")),
    frame_error(
        "T10-02",
        f"{has_note('frame-short')} OR c.frame_max > 0 AND size > c.frame_max AND frame_no > c.tune_ok.frame_no AND "
        "frame_type NOT IN ('gap', 'skipped', 'tls', 'foreign')",
        negotiated="c.frame_max",
    ),
    frame_error("T10-03", f"{error_is(E_RESERVED)} AND NOT {has_note('frame-flags')}"),
    frame_error("T10-04", error_is(E_FRAME_TYPE)),
    frame_error("T10-05", has_note("track")),
    frame_error("T10-06", f"{error_is(E_SEGMENT_ALONE)} OR {has_note('segment-cut')}"),
    frame_error("T10-07", f"{error_is(E_NO_COMMAND)} OR {has_note('segment-order')}"),
    frame_error("T10-08", has_note("segments-unexpected")),
    frame_error("T10-09", has_note("header-missing")),
    frame_error("T10-10", has_note("control-goes-on")),
    odd("T10-11", "required-missing", name="name"),
    frame_error("T10-12", has_note("undefined-flags")),
    frame_error(
        "T10-13",
        f"{error_is(E_ARGUMENTS, E_PROPERTIES, E_FIELDS, E_SHORT_METHOD, E_DEPTH)} AND NOT {CONTENT_NOTES}",
    ),
    frame_error("T10-14", has_note("entry-unexpected")),
    frame_error("T10-15", error_is(E_METHOD), observed="named_struct('class', class_id, 'code', method_id)"),
    odd("T10-16", "wrong-side", name="name"),
    *as_in("T10-20", "HS-01", handshake.DETECTORS),
    *as_in("T10-21", "HS-04", handshake.DETECTORS),
    *as_in("T10-22", "HS-08", handshake.DETECTORS),
    *as_in("T10-22", "HS-09", handshake.DETECTORS),
    *(
        Detector(
            "T10-23",
            "connections",
            when=f"{side}_frame_max < 4096",
            row=f"c.{step}",
            evidence={"observed": f"{side}_frame_max", "expected": "4096"},
            offender=f"'{side}'",
        )
        for side, step in (("client", "tune_ok"), ("server", "tune"))
    ),
    Detector(
        "T10-24",
        "connections",
        when=f"{CHOSEN} < {OFFERED}_min OR {CHOSEN} > {OFFERED}_max OR "
        f"{CHOSEN} > 0 AND c.tune IS NOT NULL AND {OFFERED}_min IS NULL",
        row="c.tune_ok",
        evidence={"observed": CHOSEN, "heartbeat_min": f"{OFFERED}_min", "heartbeat_max": f"{OFFERED}_max"},
    ),
    Detector(
        "T10-25",
        "connections",
        when=f"{OFFERED}_max < {OFFERED}_min OR {OFFERED}_max IS NOT NULL AND {OFFERED}_min IS NULL",
        row="c.tune",
        evidence={"heartbeat_min": f"{OFFERED}_min", "heartbeat_max": f"{OFFERED}_max"},
    ),
    odd("T10-26", "channel-above"),
    odd("T10-27", "control-channel", name="name"),
    *as_in("T10-28", "HB-01", heartbeats.DETECTORS),
    *as_in("T10-29", "CL-02", closing.DETECTORS),
    *as_in("T10-29", "CL-03", closing.DETECTORS),
    *as_in("T10-30", "CL-01", closing.DETECTORS),
    odd("T10-40", "not-attached", name="name"),
    odd("T10-41", "no-command-point", name="name"),
    odd("T10-42", "channel-busy"),
    Detector(
        "T10-43",
        "sequences",
        when="oddity = 'session-twice'",
        evidence={"channel": "channel", "attached_on_channel": "observed"},
        offender="sender",
    ),
    odd("T10-44", "command-offset", name="name"),
    odd("T10-45", "ids-unknown", name="name"),
    odd("T10-46", "set-malformed", name="name"),
    late("T10-47", "completed-unanswered", "known-completed"),
    odd("T10-48", "known-completed-repeated", name="name"),
    late("T10-49", "sync-unanswered", "completed"),
    odd("T10-50", "result-unknown"),
    odd("T10-51", "result-missing", expected="'execution.result'", command="name"),
    Detector(
        "T10-52",
        "sequences",
        when="oddity = 'exception'",
        evidence={"observed": "observed", "text": "description", "by": "sender", "command": "asked"},
    ),
    odd("T10-53", "after-exception", name="name"),
    late("T10-54", "detach-waits", "detached"),
    Detector(
        "T10-56",
        "sequences",
        when="oddity = 'detached-code'",
        evidence={"observed": "observed", "meaning": DETACH_CODES, "by": "sender"},
    ),
    odd("T10-60", "without-credit", **ON_SUBSCRIPTION),
    odd("T10-61", "no-subscription", destination="link"),
    odd("T10-62", "destination-in-use", **ON_SUBSCRIPTION),
    odd("T10-63", "destination-unknown", name="name"),
    odd("T10-64", "transfers-unknown", name="name"),
    odd("T10-65", "mode-with-credit", **ON_SUBSCRIPTION),
    odd("T10-66", "after-stop", **ON_SUBSCRIPTION),
    Detector(
        "T10-67",
        "session_messages",
        when="complete AND content_length != body_seen",
        evidence={"observed": "body_seen", "expected": "content_length"},
        offender="sender",
    ),
    Detector(
        "T10-68",
        "session_messages",
        when="operation = 'publish' AND user_id != login",
        evidence={"observed": "user_id", "expected": "login"},
    ),
    odd("T10-69", "transaction-order", name="name"),
    odd("T10-70", "implicit-accept", name="name"),
    odd("T10-71", "branch-order", name="name"),
    Detector(
        "T10-72",
        "session_messages",
        when="ttl_ms = 0 OR expires < stamped",
        evidence={"ttl_ms": "ttl_ms", "expiration": "expires", "timestamp": "stamped"},
        offender="sender",
    ),
    Detector(
        "T10-73",
        "sequences",
        when="oddity = 'message-rejected'",
        evidence={"observed": "observed", "meaning": REJECT_CODES, "text": "description", "by": "sender"},
    ),
)
