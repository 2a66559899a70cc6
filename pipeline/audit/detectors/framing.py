"""FR: frames, and the layout of arguments. Most of these errors are found by the decoder: `notes` of frames."""

from __future__ import annotations

from dataclasses import replace

from pipeline.audit.detector import Detector, Sql
from pipeline.audit.detectors.methods import NO_TICKET, TICKET_GRANTED

FRAMES: Sql = "frame_type IN ('method', 'header', 'body', 'heartbeat', 'oob-method', 'oob-header', 'oob-body', 'trace')"
METHODS: Sql = "frame_type IN ('method', 'oob-method')"
# The bytes after the last whole frame of a direction that its sender ended, size field and all.
CUT_BY_ITS_SENDER: Sql = (
    "frame_type = 'skipped' AND status = 'partial' AND size >= 7 AND c.tcp_end = 'fin' AND c.tcp_end_by = sender AND "
    "c.loss_from_ns IS NULL"
)


def has_note(*notes: str) -> Sql:
    """True on frames about which the decoder notes one of these (codec.amqp.notes)."""
    return f"coalesce(arrays_overlap(notes, array({', '.join(map(repr, notes))})), false)"


def on_methods(rule: str, note: str, **evidence: Sql) -> Detector:
    """What the decoder notes about a method breaks the rule."""
    shown = {"method": "name", **evidence, "size": "size"}
    return Detector(rule, "frames", when=f"{METHODS} AND {has_note(note)}", evidence=shown, offender="sender")


DETECTORS = (
    Detector(
        "FR-01",
        "frames",
        when=has_note("frame-end"),
        evidence={
            "observed": "CASE WHEN frame_type = 'skipped' THEN 'no frame end where the size field says' "
            "ELSE 'another octet' END",
            "expected": "'octet ce after the payload'",
            "frame_type": "frame_type",
            "size": "size",
        },
        offender="sender",
    ),
    Detector(
        "FR-02",
        "frames",
        when=has_note("frame-type"),
        evidence={"observed": "'frame type that is not defined'", "version": "version", "bytes": "size"},
        offender="sender",
    ),
    Detector(
        "FR-03",
        "frames",
        when=f"{FRAMES} AND c.frame_max > 0 AND size > c.frame_max AND frame_no > c.tune_ok.frame_no",
        evidence={"observed": "size", "negotiated": "c.frame_max", "frame_type": "frame_type", "channel": "channel"},
        offender="sender",
    ),
    Detector(
        "FR-04",
        "frames",
        when="frame_type = 'heartbeat' AND (channel != 0 OR payload_size > 0)",
        evidence={
            "observed": "named_struct('channel', channel, 'payload_size', payload_size)",
            "expected": "named_struct('channel', 0, 'payload_size', 0)",
        },
        offender="sender",
    ),
    on_methods("FR-05", "fields-short", observed="payload_size", expected="'octets of every argument'"),
    on_methods("FR-06", "octets-left", observed="'octets after the last argument'"),
    Detector(
        "FR-07",
        "frames",
        when=f"{METHODS} AND status = 'unknown'",
        evidence={"observed": "named_struct('class', class_id, 'method', method_id)", "version": "version"},
        offender="sender",
    ),
    Detector(
        "FR-08",
        "frames",
        when=has_note("table-broken"),
        evidence={"observed": "'entries that do not fit their table'", "name": "name", "frame_type": "frame_type"},
        offender="sender",
    ),
    Detector(
        "FR-09",
        "frames",
        when=has_note("ambiguous-tag"),
        evidence={"observed": "'a tag of s, l, L, U'", "name": "name", "frame_type": "frame_type"},
        offender="sender",
    ),
    Detector(
        "FR-10",
        "frames",
        when="frame_type LIKE 'oob-%' OR frame_type = 'trace'",
        evidence={"observed": "frame_type", "name": "name"},
        offender="sender",
    ),
    Detector(
        "FR-11",
        "frames",
        when=has_note("zero-octet", "not-utf8"),
        evidence={
            "observed": f"CASE WHEN {has_note('not-utf8')} THEN 'octets that are not UTF-8' ELSE 'zero octet' END",
            "name": "name",
            "frame_type": "frame_type",
        },
        offender="sender",
    ),
    replace(
        on_methods("FR-12", "reserved-set", expected="'zero, false or empty where the version reserves an argument'"),
        # the bit insist, which most clients set
        severity="CASE WHEN name = 'connection.open' THEN 'info' END",
    ),
    on_methods("FR-13", "unused-bits", expected="'zero bits above the last bit argument'"),
    Detector(
        "FR-14",
        "events",
        when=f"{NO_TICKET} AND {TICKET_GRANTED}",
        evidence={"observed": "args.ticket", "expected": "'the ticket of access.request-ok'", "method": "name"},
    ),
    Detector(
        "FR-15",
        "frames",
        when=f"{has_note('size-implausible')} OR {CUT_BY_ITS_SENDER}",
        evidence={
            "observed": "CASE status WHEN 'partial' THEN 'size field beyond the end of the stream' "
            "ELSE 'size field above 128 MiB' END",
            "bytes_seen": "size",
        },
        offender="sender",
    ),
)
