"""HB: heartbeats, and the silence that they should have broken."""

from __future__ import annotations

from pipeline.audit.detector import Detector
from pipeline.audit.silences import silences

CONTEXTS = {"silences": silences}

DETECTORS = (
    Detector(
        "HB-01",
        "silences",
        when="silence_ns > 2 * heartbeat_s * 1000000000L",
        evidence={"observed_ms": "silence_ns DIV 1000000", "negotiated_s": "heartbeat_s"},
        offender="sender",
    ),
    Detector(
        "HB-02",
        "frames",
        when="frame_type = 'heartbeat' AND coalesce(frame_no < c.tune_ok.frame_no, true)",
        evidence={"expected": "'after tune-ok'"},
        offender="sender",
    ),
    Detector(
        "HB-03",
        "frames",
        when="frame_type = 'heartbeat' AND c.heartbeat_s = 0 AND frame_no > c.tune_ok.frame_no",
        evidence={"negotiated": "c.heartbeat_s"},
        offender="sender",
    ),
    Detector(
        "HB-04",
        "connections",
        when="c.tune_ok.status = 'ok' AND coalesce(heartbeat_s, 0) = 0",
        frame="c.tune_ok.frame_no",
        at_ns="c.tune_ok.ts_ns",
        evidence={"negotiated": "coalesce(heartbeat_s, 0)", "proposed": "server_heartbeat_s"},
    ),
    Detector(
        "HB-05",
        "connections",
        when="heartbeat_s > 0 AND heartbeat_s < {limit_seconds}",
        frame="c.tune_ok.frame_no",
        at_ns="c.tune_ok.ts_ns",
        evidence={"negotiated": "heartbeat_s", "expected": "{limit_seconds}"},
    ),
    Detector(
        "HB-06",
        "silences",
        when="silence_ns > 1.5 * heartbeat_s * 1000000000L AND silence_ns <= 2 * heartbeat_s * 1000000000L",
        evidence={"observed_ms": "silence_ns DIV 1000000", "negotiated_s": "heartbeat_s"},
        offender="sender",
    ),
)
