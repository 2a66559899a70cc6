"""TX: transactions."""

from __future__ import annotations

from pipeline.audit.contexts.channels import last, times
from pipeline.audit.detector import Detector, Sql, State

STATES = {
    "tx_frame": State("max(CASE WHEN name = 'tx.select' THEN frame_no END)"),
    "dtx_frame": State("max(CASE WHEN name = 'dtx.select' THEN frame_no END)"),
    "confirm_frame": State("max(CASE WHEN name = 'confirm.select' THEN frame_no END)"),
}


def in_this_life(frame: Sql) -> Sql:
    """True where `frame` came before, and not before the channel was opened for this life."""
    return f"coalesce({frame} > coalesce(opened_frame, 0), false)"


# Everything on the channel so far is in the capture.
WHOLE_LIFE: Sql = "(opened_frame IS NOT NULL OR c.from_start)"
SETTLES = ("basic.ack", "basic.nack", "basic.reject")
ENDS = ("tx.commit", "tx.rollback")
WORK = f"greatest({last('basic.publish', sender='client')}, {last(*SETTLES, sender='client')})"
WORKED = f"({times('basic.publish', sender='client')} + {times(*SETTLES, sender='client')})"

DETECTORS = (
    Detector(
        "TX-01",
        "events",
        when=f"name IN ('tx.commit', 'tx.rollback') AND NOT {in_this_life('tx_frame')} AND {WHOLE_LIFE}",
        evidence={"observed": "name", "expected": "'tx.select'"},
    ),
    Detector(
        "TX-02",
        "events",
        when=f"name = 'tx.select' AND {in_this_life('confirm_frame')} OR "
        f"name = 'confirm.select' AND {in_this_life('tx_frame')}",
        evidence={"observed": "name", "first": "CASE name WHEN 'tx.select' THEN 'confirm.select' ELSE 'tx.select' END"},
    ),
    Detector(
        "TX-03",
        "lives",
        when=f"ended AND {times('tx.select')} > 0 AND {WORK} > {last(*ENDS)} AND {WORK} > {last('tx.select')}",
        evidence={"observed": "'work after the last commit or rollback'", "last_end_in_frame": last(*ENDS)},
        frame=WORK,
        at_ns="until_ns",
    ),
    Detector(
        "TX-04",
        "events",
        when=f"name = 'basic.publish' AND (said.mandatory OR said.immediate) AND {in_this_life('tx_frame')}",
        evidence={"mandatory": "said.mandatory", "immediate": "said.immediate", "exchange": "said.exchange"},
    ),
    Detector(
        "TX-05",
        "events",
        when=f"name = 'dtx.start' AND NOT {in_this_life('dtx_frame')} AND {WHOLE_LIFE}",
        evidence={"observed": "name", "expected": "'dtx.select'"},
    ),
    Detector(
        "TX-06",
        "lives",
        when=f"{times('tx.commit')} >= {{least_commits}} AND {WORKED} < {{limit}} * {times('tx.commit')}",
        evidence={
            "observed": f"{WORKED} / {times('tx.commit')}",
            "expected": "{limit}",
            "commits": times("tx.commit"),
        },
        frame=last("tx.commit"),
        at_ns="until_ns",
    ),
)
