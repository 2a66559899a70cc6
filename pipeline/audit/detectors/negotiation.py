"""NEG: protocol headers and versions."""

from __future__ import annotations

from pipeline.audit.contexts.connections import control
from pipeline.audit.contexts.peers import peers
from pipeline.audit.detector import Detector

HEADER = "c.client_header"
# Four octets of a protocol header after 'AMQP' as a number: protocol id, then the version.
PROTOCOL = "shiftright(code, 24)"
# 1.0: TLS before SASL before AMQP.
LAYERS = "array_position(array(2, 3, 0), {})"
# Only if the first bytes were captured. Gaps in another protocol are not rows.
NO_HEADER = (
    "sides_known_by = 'syn' AND client_bytes >= 8 AND coalesce(loss_frame > client_min_frame, true) AND "
    "NOT (content = 'foreign' AND missing_bytes > 0) AND "
    "NOT coalesce(c.client_header.frame_no = client_min_frame, false)"
)
REQUESTED = "CASE asked WHEN '0-8' THEN 8 WHEN '0-9' THEN 9 WHEN '0-9-1' THEN 9 END"
# What a client that does not speak AMQP sent first, where the capture shows it: four octets as a number.
OPENING = {
    "observed": "coalesce(lpad(hex(c.foreign.code), 8, '0'), content)",
    "looks_like": "CASE WHEN content = 'tls' OR c.foreign.code BETWEEN 369295360 AND 369360895 THEN 'TLS' "
    "WHEN c.foreign.code IN (1195725856, 1347375956, 1347769376, 1212498244) THEN 'HTTP' ELSE 'unknown' END",
}
STARTED_VERSION = (
    "CASE WHEN c.start.args.version_major = 8 THEN 8 "
    "ELSE 100 * c.start.args.version_major + c.start.args.version_minor END"
)

CONTEXTS = {"control": control, "peers": peers}

DETECTORS = (
    Detector(
        "NEG-01",
        "peers",
        when=f"{NO_HEADER} AND (c.server_header IS NOT NULL OR content = 'amqp' OR content = 'foreign' AND "
        "(server_port IN (5671, 5672) OR speaks_amqp))",
        frame="coalesce(client_min_frame, first_frame)",
        evidence={**OPENING, "expected": "'AMQP'"},
    ),
    Detector(
        "NEG-02",
        "connections",
        when=f"{HEADER}.status = 'unknown'",
        row=f"{HEADER}",
        evidence={"observed": "asked", "answered": "answered"},
    ),
    Detector(
        "NEG-03",
        "connections",
        when="c.server_header.frame_no = server_min_frame AND client_framed > c.server_header.frame_no",
        frame="c.server_header.frame_no",
        evidence={"asked": "asked", "answered": "answered", "observed": "'frames of the client after the refusal'"},
    ),
    Detector(
        "NEG-04",
        "connections",
        when="c.server_header.frame_no = server_min_frame AND server_max_frame > c.server_header.frame_no",
        frame="c.server_header.frame_no",
        evidence={"asked": "asked", "answered": "answered", "observed": "'frames of the server after its header'"},
    ),
    Detector(
        "NEG-05",
        "connections",
        when=f"{STARTED_VERSION} > {REQUESTED}",
        row="c.start",
        evidence={
            "observed": "concat_ws('-', c.start.args.version_major, c.start.args.version_minor)",
            "expected": "asked",
        },
    ),
    Detector(
        "NEG-06",
        "connections",
        when="c.client_header.code != c.server_header.code AND "
        "greatest(client_max_frame, server_max_frame) > greatest(c.client_header.frame_no, c.server_header.frame_no)",
        frame="greatest(c.client_header.frame_no, c.server_header.frame_no)",
        evidence={"client": "hex(c.client_header.code)", "server": "hex(c.server_header.code)"},
    ),
    Detector(
        "NEG-07",
        "control",
        when="frame_type = 'protocol-header' AND "
        f"{LAYERS.format(PROTOCOL)} <= {LAYERS.format('shiftright(earlier_header, 24)')}",
        evidence={"observed": "hex(code)", "earlier": "hex(earlier_header)"},
        offender="sender",
    ),
    Detector(
        "NEG-08",
        "frames",
        when="frame_type = 'skipped' AND coalesce(c.loss_frame > frame_no, true) AND c.version_known AND "
        "coalesce(CASE sender WHEN 'client' THEN c.client_framed ELSE c.server_framed END > frame_no, true) AND "
        "(status != 'partial' OR c.tcp_end != 'none' AND size >= 12)",
        evidence={"negotiated": "version", "observed": "error", "octets": "size"},
        offender="sender",
    ),
    Detector(
        "NEG-09",
        "control",
        when="frame_type = 'protocol-header' AND (earlier_header IS NOT NULL OR framed) AND "
        "(version != '1.0' OR shiftright(earlier_header, 24) = 0)",
        evidence={"observed": "hex(code)"},
        offender="sender",
    ),
    Detector(
        "NEG-10",
        "peers",
        when="refusal.asked != asked AND asked = refusal.answered AND NOT array_contains(refusal.spoken, asked) AND "
        "opened_ns - refusal.opened_ns <= {window_seconds} * 1000000000L",
        frame="c.client_header.frame_no",
        evidence={"first": "refusal.asked", "answered": "refusal.answered", "then": "asked"},
    ),
)
