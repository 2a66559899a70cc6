"""Rows of message_flows beside those that a script must give."""

from __future__ import annotations

from typing import Any

from scenarios.script import Script
from scenarios.true_flows import Flows, times

Row = dict[str, Any]
FLOW_COLUMNS = (
    "version", "deliver_version", "server", "vhost", "publish_ts_ns", "confirm_latency_ns", "exchange", "routing_key",
    "queue", "address", "deliver_ts_ns", "broker_latency_ns", "ack_latency_ns", "total_latency_ns", "redeliveries",
    "outcome", "match", "ambiguous", "dead_letter_reason", "rpc_latency_ns",
)  # fmt: skip


def differences(script: Script, found: list[Row]) -> list[str]:
    """What is missing, too much, or differs among the rows that the script settles."""
    index_of = times(script.events)
    expected = Flows(script).all()
    unsure = {i for flow in expected if not flow.exact for i in (flow.publish, flow.first) if i is not None}
    exact = {(flow.publish, flow.first): flow for flow in expected if flow.exact}
    lines = []
    for row in found:
        publish, first = index_of.get(row["publish_ts_ns"]), index_of.get(row["deliver_ts_ns"])
        if publish in unsure or first in unsure:
            continue
        flow = exact.pop((publish, first), None)
        if flow is None:
            lines.append(f"{publish} -> {first} is no flow of the script, or a second one: {row}")
            continue
        for column, value in flow.row.items():
            if row[column] != value:
                lines.append(f"{publish} -> {first}: {column} is {row[column]!r}, not {value!r}")
        if flow.ambiguous is not None and row["ambiguous"] != flow.ambiguous:
            lines.append(f"{publish} -> {first}: ambiguous is {row['ambiguous']}")
    lines += [f"{publish} -> {first} is missing" for publish, first in exact]
    return lines


def unsound(script: Script, found: list[Row]) -> list[str]:
    """Pairs that are not marked ambiguous and not true."""
    index_of = times(script.events)
    lines = []
    for row in found:
        if row["publish_ts_ns"] is None or row["deliver_ts_ns"] is None or row["ambiguous"]:
            continue
        publish, first = index_of.get(row["publish_ts_ns"]), index_of.get(row["deliver_ts_ns"])
        if first is None or script.events[first].of != publish:
            lines.append(f"{publish} -> {first} is an invented pair: {row}")
    return lines
