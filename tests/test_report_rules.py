"""The order of rules in the report: what costs somebody's work first, what everybody does last, and once."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from report_support import everywhere, finding, group, identity

from pipeline.audit.catalogue import SEVERITIES, catalogue
from pipeline.report.baseline import compared
from pipeline.report.evidence import FINDINGS
from pipeline.report.facts import Facts
from pipeline.report.groups import Groups
from pipeline.report.page import page
from pipeline.report.questions import CONNECTIONS
from pipeline.report.rules import cards
from pipeline.report.verdict import verdict

ENDED_WORK = {"CF-05", "CH-09", "CL-04", "CL-08", "CO-05", "CT-15", "HS-17", "HS-18", "MT-03"}


def facts_of(connections: int, **broken: tuple[str, int]) -> Facts:
    """Rules (`CH_07`) by severity and the number of connections that break them, a finding each."""
    facts = everywhere("x")
    rules = {name.replace("_", "-"): told for name, told in broken.items()}
    rows = [
        {**group(FINDINGS, "rules", "a rule", number), "rule_id": name, "severity": severity}
        for name, (severity, number) in rules.items()
    ]
    amqp = {**group(CONNECTIONS, "versions", "x", connections), "content": "amqp", "begun_before": 0}
    groups = {
        "rules": Groups(rows, len(rows)),
        "identities": Groups([identity(name) for name in rules], len(rules)),
        "versions": Groups([amqp], 1),
    }  # fmt: skip
    examples = {name: [finding(name, "x")] * 4 for name in rules}
    return replace(facts, groups={**facts.groups, **groups}, examples=examples)


def order(facts: Facts) -> list[str]:
    return [card.rule_id for card in cards(facts, compared(facts.groups["identities"], None), 4)]


def test_what_ended_work_comes_before_hygiene() -> None:
    facts = facts_of(
        20, SEC_01=("warning", 15), CL_08=("warning", 1), CH_09=("warning", 2), HS_03=("violation", 1),
        DL_09=("info", 7), SEC_16=("info", 9),
    )  # fmt: skip
    assert order(facts) == ["HS-03", "CH-09", "CL-08", "SEC-01", "SEC-16", "DL-09"]


def test_the_catalogue_says_what_costs_work() -> None:
    assert {rule.id for rule in catalogue().values() if rule.cost} == ENDED_WORK
    assert {catalogue()[name].severity for name in ENDED_WORK} == {SEVERITIES[1]}


@pytest.mark.parametrize(
    ("connections", "severity", "common"),
    [(19, "info", True), (19, "warning", True), (19, "violation", False), (17, "info", False)],
)
def test_what_nearly_every_connection_does_is_told_once(connections: int, severity: str, common: bool) -> None:
    facts = facts_of(20, SEC_07=(severity, connections), NM_02=(severity, 3))
    (card,) = [card for card in cards(facts, compared(Groups(), None), 4) if card.rule_id == "SEC-07"]
    assert (card.common, len(card.examples)) == (common, 1 if common else 4)
    assert order(facts) == (["NM-02", "SEC-07"] if common else ["SEC-07", "NM-02"])
    found = compared(facts.groups["identities"], None)
    html = page(facts, found, verdict(facts, found, "violation"), "t", "/data", datetime(2026, 11, 21, tzinfo=UTC))
    assert bool(re.search("Nearly every connection, 19 of 20: shown once.", html)) == common


def test_of_few_connections_none_is_everybody() -> None:
    (card,) = cards(facts_of(4, SEC_07=("info", 4)), compared(Groups(), None), 4)
    assert not card.common
