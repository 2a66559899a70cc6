"""Facts for pages, written by hand: what the queries would have found."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from pipeline.explain import Answer, Event
from pipeline.output.formatting import plain_text
from pipeline.report.baseline import Comparison, compare
from pipeline.report.facts import Facts
from pipeline.report.formats import Audit
from pipeline.report.grouped_counts import Groups, Source
from pipeline.report.sections import IDENTITY, sources

NOW = datetime(2026, 11, 21, 2, 0, tzinfo=UTC)
T0_NS = 1_700_000_000_000_000_000  # 2023-11-14 22:13:20 UTC
SOURCES = {source.name: source for source in sources(T0_NS, T0_NS + 60 * 10**9)}
FINDINGS, AFFECTED = SOURCES["findings"], SOURCES["affected"]
HOSTILE = '<script>alert("x")</script><img src=//evil.example/x onerror=alert(1)>\u202egnp.exe\x07\x1b[2J'


def group(source: Source, section: str, text: str, number: int, **values: Any) -> dict[str, Any]:
    """A group of a section: its keys are `text`, its measures `number`, but for `values`."""
    (keys,) = (one.keys for one in source.sections if one.name == section)
    one = {"which": None} if "which" in keys else {}  # the only connection of its application
    return {**dict.fromkeys(keys, text), **dict.fromkeys(source.measures, number), **one, **values}


# Keys that are numbers in text.
NUMERIC = {
    "class": "300", "bar": "3", "connection_id": "7", "channel": "1", "interval": "60", "frame_max": "1",
    **{f"{side}_{name}": "2" for side in ("client", "server")
       for name in ("frame_max", "channel_max", "heartbeat_s", "idle_timeout_ms")},
    "client_ip": "10.0.0.7", "client_port": "50312", "server_ip": "10.0.0.2", "server_port": "5672",
    "measure": "publish to confirm", "channel_max": "2047", "heartbeat_s": "60", "operation": "deliver",
}  # fmt: skip


def everywhere(text: str, rows: int = 1, examples: int = 0, rules: int = 1) -> Facts:
    """Facts in which every section has so many groups, and every string is `text`; each rule has examples."""
    groups = {}
    for source in SOURCES.values():
        for section in source.sections:
            numeric = {name: value for name, value in NUMERIC.items() if name in section.keys}
            groups[section.name] = Groups(
                [group(source, section.name, text, 3, **numeric) for _ in range(min(rows, section.limit))], 10 * rows
            )
    ids = [f"XX-{number:02}" for number in range(rules)]
    groups["rules"] = Groups(
        [group(FINDINGS, "rules", "a rule", 1000, rule_id=name, severity="violation") for name in ids], rules
    )
    groups["identities"] = Groups([identity(name, client_product=text) for name in ids], rules)
    groups["named"] = Groups([group(FINDINGS, "named", text, 3, rule_id=name) for name in ids], rules)
    groups["affected"] = Groups([group(AFFECTED, "affected", "violation", 3)], 1)
    examples_of = {name: [finding(name, text) for _ in range(examples)] for name in ids}
    label = plain_text(text, 300)
    event = Event(T0_NS, "client", text, 1, 2)
    answer = Answer(f"{label} -> 10.0.0.2:5672", "error", True, f"It said {label}.", 1, text, T0_NS, T0_NS, 1, 2, 3,
                    (event, replace(event, ts_ns=T0_NS + 10**9)), (label,), ids, (label,))  # fmt: skip
    return Facts(groups, examples_of, T0_NS, T0_NS + 60 * 10**9, {}, [answer] * rows, 10 * rows)


def audit_of(facts: Facts, found: Comparison | None = None, *, fail_on: str = "violation", title: str = "t") -> Audit:
    """An audit of /data/tables with these facts and all rules; without `found` there is no baseline."""
    return Audit(facts, found or compare(facts.groups["identities"], None), fail_on, title, NOW, "/data/tables")


def ends(text: str) -> dict[str, Any]:
    """Who a connection is between."""
    return {
        "client_ip": "10.0.0.7", "client_port": 50312, "server_ip": "10.0.0.2", "server_port": 5672,
        "client": "10.0.0.7:50312", "server": "10.0.0.2:5672", "client_product": text, "client_version": text,
        "user": text, "vhost": text, "application": text, "client_name": text, "which": None,
        "tcp_end": "none", "tcp_end_by": None, "heartbeat_s": 60, "client_max_silence_ns": 0,
        "server_max_silence_ns": 0,
    }  # fmt: skip


def finding(rule_id: str, text: str) -> dict[str, Any]:
    """A row of `sections.examples`."""
    import json

    return {
        "rule_id": rule_id, "severity": "violation", "scope": "connection", "offender": "client", "connection_id": 7,
        "channel": 1, "frame_no": 5, "packet_no": 17, "occurrences": 9, "reservation": "bytes are missing",
        "capture_file": f"file:///captures/{text}.pcap", "ts": T0_NS // 1000, "entities": text,
        "evidence": json.dumps({f"{text}{number}": text for number in range(6)}), **ends(text),
    }  # fmt: skip


def identity(rule_id: str, severity: str = "violation", findings: int = 1, **about: str | None) -> dict[str, Any]:
    """A group of section 'identities'."""
    known = {"client_product": "pika", "user": "guest", "vhost": "/", "server": "10.0.0.2:5672", "entities": None}
    assert set(about) <= set(IDENTITY)
    return {
        "severity": severity, "rule_id": rule_id, **known, **about, "rows": findings, "occurrences": findings,
        "reserved": 0, "connections": 1, "weight": 1,
    }  # fmt: skip
