"""Findings over all shipped captures: no violation in honest traffic, the expected ones where the manifest says that
somebody misbehaved."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator

import golden
import pytest
from audited import Audited

# Capture -> rules that it violates, by what the manifest says it shows.
VIOLATIONS: dict[str, set[str]] = {
    "010_bad_frame.pcap": {"NEG-02"},  # a header with an unknown version
    "091_bad_protocol_header.pcap": {"NEG-01", "NEG-02"},  # HTTP GET; AMQP 9 9 9 9
    # 406 unknown delivery tag; 403 a name with amq.; 406 declared otherwise; 405 another connection's exclusive queue
    "091_channel_exceptions.pcap": {"DL-03", "NM-03", "NM-06", "NM-09"},
    # 504 channel that is not open; 505 body without method; 501 frame end, and what stands behind it is not a frame;
    # 502 arguments that end too early; 540 a method that does not exist
    "091_connection_exceptions.pcap": {"CH-01", "CT-06", "FR-01", "FR-02", "FR-05", "FR-07"},
    "091_heartbeats.pcap": {"HB-01"},  # a client that stops answering
    # Credit for six deliveries, and a seventh: RabbitMQ 4 when flows with an old delivery-count cross.
    "10_rabbitmq_settle_modes.pcap": {"L10-57"},
    # The client wants a frame every 500 ms, and RabbitMQ is silent for 2 s.
    "10_rabbitmq_idle_empty_frames.pcap": {"L10-95"},
    # RabbitMQ says that it has credit for 4, and sends 5 (frames 48 to 53); a flow comes behind its close (frame 58).
    "10_rabbitmq_proton_send_receive.pcap": {"L10-57", "L10-96"},
    # qpidd passes the key of an annotation, a symbol (a3 05 "x-why"), on as a string (a1 05 "x-why").
    "10_qpidd_outcomes_drain.pcap": {"L10-78"},
    "0x_all_protocol_headers.pcap": {"NEG-02"},  # 0 0 9 0 and 0 0 8 0
}


# Rules that tell of errors which a peer states.
REPORTED = {"CH-09", "CL-08", "T10-52", "T10-56", "L10-23", "L10-40", "L10-62", "L10-87"}


@pytest.mark.parametrize("name", golden.captures())
def test_violations_of_a_capture(audited: Audited, name: str) -> None:
    violated = {row.rule_id for capture, row in audited.shipped if capture == name and row.severity == "violation"}
    assert violated == VIOLATIONS.get(name, set())


def stated_errors(name: str) -> Iterator[tuple[int, str]]:
    """(packet, field) of each error that tshark shows in a capture: closes, exceptions, detaches, ends, SASL."""
    with gzip.open(golden.CAPTURES / f"{name}.frames.jsonl.gz", "rt") as lines:
        for line in lines:
            frame = json.loads(line)
            nodes = list(frame["f"])
            for node in nodes:  # which grows
                nodes += node.get("c", [])
            values = {node["n"]: node.get("s") for node in nodes}
            is_close = ".Close (" in frame["kind"] or frame["kind"].endswith("connection.close")
            if is_close and int(values.get("amqp.method.arguments.reply_code") or 0) >= 300:
                yield frame["frame"], "reply_code"
            for field in ("amqp.execution.exception.error-code", "amqp.performative.arguments.error"):
                if field in values:
                    yield frame["frame"], field
            for field in ("amqp.session.detached.code", "amqp.sasl.saslCode"):
                if values.get(field) not in (None, "0"):
                    yield frame["frame"], field


WITH_GOLDEN = [name for name in golden.captures() if (golden.CAPTURES / f"{name}.frames.jsonl.gz").exists()]


def test_tshark_shows_errors_of_every_kind() -> None:
    facts = [field for name in WITH_GOLDEN for _, field in stated_errors(name)]
    assert {field: facts.count(field) for field in facts} == {
        "reply_code": 21, "amqp.execution.exception.error-code": 6, "amqp.performative.arguments.error": 12,
        "amqp.sasl.saslCode": 2,
    }  # fmt: skip


@pytest.mark.parametrize("name", WITH_GOLDEN)
def test_every_error_that_a_peer_states_is_a_finding(audited: Audited, name: str) -> None:
    reported = {row.packet_no for capture, row in audited.shipped if capture == name and row.rule_id in REPORTED}
    assert {packet_no for packet_no, _ in stated_errors(name)} <= reported
