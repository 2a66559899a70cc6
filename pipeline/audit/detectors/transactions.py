"""TX: transactions."""

from __future__ import annotations

from pipeline.audit.contexts.channels import count_of, last_of
from pipeline.audit.detector import Detector, Sql, State

STATES = {
    "tx_frame": State("max(CASE WHEN name = 'tx.select' THEN frame_no END)"),
    "dtx_frame": State("max(CASE WHEN name = 'dtx.select' THEN frame_no END)"),
    "confirm_frame": State("max(CASE WHEN name = 'confirm.select' THEN frame_no END)"),
}


def since_open(frame: Sql) -> Sql:
    """True if `frame` is an earlier frame of the same channel incarnation."""
    return f"coalesce({frame} > coalesce(opened_frame, 0), false)"


# Everything on the channel so far is in the capture.
SEEN_SINCE_OPEN: Sql = "(opened_frame IS NOT NULL OR c.from_start)"
SETTLES = ("basic.ack", "basic.nack", "basic.reject")
ENDS = ("tx.commit", "tx.rollback")
WORK = f"greatest({last_of('basic.publish', sender='client')}, {last_of(*SETTLES, sender='client')})"
WORK_COUNT = f"({count_of('basic.publish', sender='client')} + {count_of(*SETTLES, sender='client')})"

DETECTORS = (
    Detector(
        "TX-01",
        "events",
        when=f"name IN ('tx.commit', 'tx.rollback') AND NOT {since_open('tx_frame')} AND {SEEN_SINCE_OPEN}",
        evidence={"observed": "name", "expected": "'tx.select'"},
    ),
    Detector(
        "TX-02",
        "events",
        when=f"name = 'tx.select' AND {since_open('confirm_frame')} OR "
        f"name = 'confirm.select' AND {since_open('tx_frame')}",
        evidence={"observed": "name", "first": "CASE name WHEN 'tx.select' THEN 'confirm.select' ELSE 'tx.select' END"},
    ),
    Detector(
        "TX-03",
        "incarnations",
        when=f"ended AND {count_of('tx.select')} > 0 AND {WORK} > {last_of(*ENDS)} AND {WORK} > {last_of('tx.select')}",
        evidence={"observed": "'work after the last commit or rollback'", "last_end_in_frame": last_of(*ENDS)},
        frame=WORK,
        at_ns="until_ns",
    ),
    Detector(
        "TX-04",
        "events",
        when=f"name = 'basic.publish' AND (args.mandatory OR args.immediate) AND {since_open('tx_frame')}",
        evidence={"mandatory": "args.mandatory", "immediate": "args.immediate", "exchange": "args.exchange"},
    ),
    Detector(
        "TX-05",
        "events",
        when=f"name = 'dtx.start' AND NOT {since_open('dtx_frame')} AND {SEEN_SINCE_OPEN}",
        evidence={"observed": "name", "expected": "'dtx.select'"},
    ),
    Detector(
        "TX-06",
        "incarnations",
        when=f"{count_of('tx.commit')} >= {{least_commits}} AND {WORK_COUNT} < {{limit}} * {count_of('tx.commit')}",
        evidence={
            "observed": f"{WORK_COUNT} / {count_of('tx.commit')}",
            "expected": "{limit}",
            "commits": count_of("tx.commit"),
        },
        frame=last_of("tx.commit"),
        at_ns="until_ns",
    ),
)
