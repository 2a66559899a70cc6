"""Rules of one's own beside those of the catalogue. What they find in the samples, Wireshark knows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from cut_support import NEEDS_TSHARK, fields
from pyspark.sql import SparkSession

import pipeline
from jobs.audit import INTERPRETED, settings
from pipeline import Tables
from pipeline.audit import Detector, Rule
from pipeline.audit.config import Config

SAMPLES = Path(__file__).parent.parent / "samples"
EXCEPTIONS, ORDERS = SAMPLES / "091_channel_exceptions.pcap", SAMPLES / "091_declare_publish_consume_ack.pcap"
NAMES = (
    Rule(id="HOUSE-01", severity="warning", scope="link", summary="A queue is not named TEAM.PURPOSE."),
    Detector(
        "HOUSE-01",
        "methods",
        when="name = 'queue.declare' AND queue NOT LIKE '%.%' AND queue != ''",
        evidence={"observed": "queue", "durable": "arguments:durable::boolean"},
        thing="queue",
    ),
)
SIZES = (
    Rule(
        id="HOUSE-02",
        severity="info",
        scope="message",
        summary="A message is larger than agreed.",
        versions=("0-9-1",),
        parameters={"most_bytes": 20},
    ),
    Detector(
        "HOUSE-02",
        "messages",
        when="operation = 'publish' AND body_size > {most_bytes}",
        evidence={"observed": "body_size", "expected": "{most_bytes}"},
        frame="first_frame_no",
        thing="first_frame_no",
    ),
)


@pytest.fixture(scope="module")
def tables(spark: SparkSession) -> Iterator[Tables]:
    found = pipeline.decode(spark, [str(EXCEPTIONS), str(ORDERS)], versions={"0-9-1"})
    with settings(spark, INTERPRETED):
        yield found
    found.release()


@NEEDS_TSHARK
def test_own_rules_find_what_they_say(tables: Tables) -> None:
    found = pipeline.findings(tables, rules=["HOUSE", "CH-01"], extra=[NAMES, SIZES]).selectExpr(
        "rule_id", "severity", "category", "packet_no", "substring_index(capture_file, '/', -1) AS capture",
        "to_json(evidence) AS evidence", "summary",
    ).collect()  # fmt: skip
    declared: dict[tuple[str, ...], str] = {}  # the first packet of each channel that declares a queue
    shown = ("frame.number", "_ws.col.Info", "tcp.stream", "amqp.channel", "amqp.method.arguments.queue")
    for number, info, *place in fields(EXCEPTIONS, *shown, only="amqp.method.class == 50"):
        if "Queue.Declare " in info and "." not in place[-1] and place[-1]:
            declared.setdefault(tuple(place), number)
    names = [row for row in found if row.rule_id == "HOUSE-01"]
    assert len(declared) > 3
    assert sorted(str(row.packet_no) for row in names) == sorted(declared.values())
    assert {row.capture for row in names} == {EXCEPTIONS.name}
    assert {(row.severity, row.category, row.summary) for row in names} == {
        ("warning", "house", "A queue is not named TEAM.PURPOSE.")
    }
    # one body of the two captures is longer than 20 bytes: 28, as the packet's content header says
    (size,) = [row for row in found if row.rule_id == "HOUSE-02"]
    assert size.evidence == '{"expected":20,"observed":28}'
    assert size.capture == ORDERS.name
    assert fields(ORDERS, "amqp.header.body-size", only=f"frame.number in {{{size.packet_no}..{size.packet_no + 1}}}")


def test_thresholds_and_choices_hold_for_own_rules_too(tables: Tables) -> None:
    limits = Config({"HOUSE-02": {"most_bytes": 28}})
    found = pipeline.findings(tables, rules=["HOUSE"], disable=["HOUSE-01"], config=limits, extra=[NAMES, SIZES])
    assert found.collect() == []
    with pytest.raises(ValueError, match="no rule HOUSE-01 in the catalogue, nor in `extra`"):
        pipeline.findings(tables, rules=["HOUSE-01"])


@pytest.mark.parametrize(
    ("extra", "complaint"),
    [
        ([(replace(NAMES[0], id="HS-08"), NAMES[1])], "no id of the catalogue"),
        ([(replace(NAMES[0], id="A/B"), NAMES[1])], "expected letters, digits and hyphens"),
        ([(NAMES[0], SIZES[1])], "rule HOUSE-01: its detector is one of 'HOUSE-02'"),
        ([NAMES, (replace(NAMES[0], severity="info"), NAMES[1])], "HOUSE-01 is there twice, and is not the same"),
        ([(NAMES[0], replace(NAMES[1], context="events"))], "no context 'events'; expected one of frames, streams,"),
    ],
)
def test_a_pair_that_does_not_fit_is_refused(
    tables: Tables, extra: list[tuple[Rule, Detector]], complaint: str
) -> None:
    with pytest.raises(ValueError, match=complaint):
        pipeline.findings(tables, extra=extra)


@pytest.mark.parametrize(
    "wrong", [{"severity": "bad"}, {"scope": "queue"}, {"versions": ("0-7",)}, {"needs": ("luck",)}]
)
def test_a_rule_says_what_there_is(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"rule HOUSE-01: '[\w-]+' is none of"):
        replace(NAMES[0], **wrong)  # type: ignore[arg-type]
