"""CAP: what the capture itself lacks."""

from __future__ import annotations

from pipeline.audit.contexts.captures import captures
from pipeline.audit.detector import Detector
from pipeline.audit.engine import CAPTURE

DETECTORS = (
    Detector(
        "CAP-01",
        "connections",
        when="content = 'amqp' AND missing_bytes > 0",
        frame="coalesce(loss_frame, first_frame)",
        evidence={"missing_bytes": "missing_bytes"},
    ),
    Detector(
        "CAP-02",
        "connections",
        when="content = 'amqp' AND sides_known_by != 'syn'",
        frame="first_frame",
        evidence={"header_seen": "c.client_header IS NOT NULL", "version_known": "version_known"},
    ),
    Detector(
        "CAP-03",
        "connections",
        when="content = 'amqp' AND (client_packets = 0) != (server_packets = 0)",
        frame="first_frame",
        evidence={"observed": "CASE WHEN client_packets > 0 THEN 'client' ELSE 'server' END"},
    ),
    Detector(
        "CAP-04",
        "frames",
        when="array_contains(notes, 'snap-length')",
        evidence={"sender": "sender", "missing_bytes": "size"},
    ),
    Detector(
        "CAP-05",
        "frames",
        when="frame_type = 'skipped' AND status = 'partial'",
        evidence={"sender": "sender", "octets": "size"},
    ),
    Detector(
        "CAP-06",
        "connections",
        when="size(limits) > 0",
        frame="first_frame",
        evidence={"observed": "limits"},
    ),
    Detector(
        "CAP-06",
        "captures",
        when="size(limits) > 0",
        frame="null",
        at_ns="null",
        evidence={"observed": "limits", "packets": "packets_skipped", "error": "error"},
        occurrences="greatest(packets_skipped, 1)",
        thing="capture_file",
        scope=CAPTURE,
    ),
)
CONTEXTS = {"captures": captures}
