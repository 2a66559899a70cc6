"""HB: heartbeats, and the silence that they should have broken."""

from __future__ import annotations

from pipeline.audit.contexts.silences import silences
from pipeline.audit.detector import Detector

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
        # In 0-10 the argument may be left out.
        when="c.tune_ok.status = 'ok' AND (heartbeat_s = 0 OR version = '0-10' AND client_heartbeat_s IS NULL)",
        frame="c.tune_ok.frame_no",
        at_ns="c.tune_ok.ts_ns",
        evidence={
            "observed": "CASE WHEN heartbeat_s IS NULL THEN 'no heartbeat in tune-ok' END",
            "negotiated": "heartbeat_s",
            "proposed": "server_heartbeat_s",
        },
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
