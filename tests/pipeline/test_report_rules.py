"""The order of rules in the report: what costs somebody's work first, what everybody does last, and once."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from report_support import FINDINGS, SOURCES, audit_of, everywhere, finding, group, identity

from pipeline.audit.catalogue import SEVERITIES, catalogue
from pipeline.report.baseline import Previous, compare, key
from pipeline.report.cards import MOST_IMPORTANT, example, most_important, values, with_connections
from pipeline.report.facts import Facts
from pipeline.report.grouped_counts import Groups
from pipeline.report.page import page

ENDED_WORK = {
    "CF-05", "CH-09", "CL-04", "CL-08", "CO-05", "CT-15", "HS-17", "HS-18", "MT-03", "T10-52", "T10-56", "L10-23",
    "L10-24", "L10-40", "L10-62", "L10-75", "L10-92", "L10-93", "NEG-11", "PR-06", "PR-08", "PR-11", "PR-12", "PR-13",
    "PR-14",
}  # fmt: skip


def facts_of(connections: int, **broken: tuple[str, int]) -> Facts:
    """Rules (`CH_07`) by severity and the number of connections that break them, a finding each."""
    facts = everywhere("x")
    rules = {name.replace("_", "-"): counts for name, counts in broken.items()}
    rows = [
        {**group(FINDINGS, "rules", "a rule", number), "rule_id": name, "severity": severity}
        for name, (severity, number) in rules.items()
    ]
    amqp = {**group(SOURCES["connections"], "versions", "x", connections), "content": "amqp", "begun_before": 0}
    groups = {
        "rules": Groups(rows, len(rows)),
        "identities": Groups([identity(name) for name in rules], len(rules)),
        "versions": Groups([amqp], 1),
    }  # fmt: skip
    examples = {name: [finding(name, "x")] * 4 for name in rules}
    return replace(facts, groups={**facts.groups, **groups}, examples=examples)


def order(facts: Facts) -> list[str]:
    return [card.rule_id for card in audit_of(facts).cards]


def test_findings_that_ended_work_come_before_hygiene() -> None:
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
def test_findings_of_nearly_every_connection_are_listed_once(connections: int, severity: str, common: bool) -> None:
    facts = facts_of(20, SEC_07=(severity, connections), NM_02=(severity, 3))
    (card,) = [card for card in audit_of(facts).cards if card.rule_id == "SEC-07"]
    assert (card.common, len(card.examples)) == (common, 1 if common else 4)
    assert order(facts) == (["NM-02", "SEC-07"] if common else ["SEC-07", "NM-02"])
    html = page(audit_of(facts), "/data")
    assert bool(re.search("Nearly every connection, 19 of 20: shown once.", html)) == common


def test_nearly_every_connection_needs_a_minimum_of_connections() -> None:
    (card,) = audit_of(facts_of(4, SEC_07=("info", 4))).cards
    assert not card.common


def test_the_first_screen_lists_interrupted_work_then_the_worst_then_the_new() -> None:
    facts = facts_of(
        20, SEC_01=("warning", 15), CL_08=("warning", 1), HS_03=("violation", 1), SEC_02=("warning", 19),
        SEC_16=("info", 9), NM_01=("warning", 2), DL_03=("violation", 1),
    )  # fmt: skip
    first = most_important(audit_of(facts).cards)
    assert [card.rule_id for card in first] == ["CL-08", "DL-03", "HS-03", "SEC-01", "NM-01"]
    assert len(first) == MOST_IMPORTANT
    before = facts_of(20, SEC_01=("warning", 15), NM_01=("warning", 2))
    known = compare(before.groups["identities"], Previous({key(identity("SEC-01")): {}}))
    assert [card.rule_id for card in most_important(audit_of(before, known).cards)] == ["NM-01", "SEC-01"]


def text_of(text: str, number: int = 1) -> dict[str, Any]:
    """A text of peers in findings of CH-09."""
    return {**group(FINDINGS, "texts", text, number), "rule_id": "CH-09"}


def html_of(facts: Facts) -> str:
    return page(audit_of(facts), "/data/a b")


def test_the_first_screen_has_the_application_the_event_and_the_remedy() -> None:
    facts = facts_of(20, CH_09=("warning", 2))
    evidence = '{"reply_code": 404, "reply_text": "NOT_FOUND - no queue"}'
    named = [{**group(FINDINGS, "named", "x", 1), "rule_id": "CH-09", "application": "billing", "things": "queue=in"}]
    facts = replace(
        facts,
        examples={"CH-09": [{**finding("CH-09", "x"), "evidence": evidence}]},
        groups={**facts.groups, "named": Groups(named, 1), "texts": Groups([text_of("NOT_FOUND - no queue")], 1)},
    )
    opening = html_of(facts).partition('<section id="captured">')[0]
    words = " ".join(re.sub("<[^>]*>", " ", opening.partition("<main")[2]).split()).replace(" :", ":")
    assert "warning CH-09 a rule 2 findings: billing · queue=in NOT_FOUND - no queue" in words
    assert catalogue()["CH-09"].remedy in words
    assert '<a href="#rule-CH-09">' in opening


def test_several_texts_of_one_rule_are_shown_as_such() -> None:
    facts = facts_of(20, CH_09=("warning", 9))
    for texts, happened in (
        ([("gone", 9)], "gone"),
        ([("gone", 8), ("refused", 1)], "8 times gone, once refused"),
        ([("gone", 4), ("refused", 3), ("full", 1), ("late", 1)], "4 times gone, 3 times refused, and 2 other texts"),
    ):
        groups = {**facts.groups, "texts": Groups([text_of(*one) for one in texts], len(texts))}
        (card,) = audit_of(replace(facts, groups=groups)).cards
        assert card.happened(100) == happened


def test_evidence_is_text_without_brackets() -> None:
    evidence = '{"server_lacks": ["host", "platform"], "observed": {"class": 60, "method": 40}, "empty": []}'
    assert values(evidence) == [
        ("observed", "class 60, method 40"),
        ("server lacks", "host, platform"),
        ("empty", "[]"),
    ]


@pytest.mark.parametrize(
    ("which", "names"),
    [
        ([None], ["pika"]),
        (["guest@10.0.0.7:50001"], ["pika guest@10.0.0.7:50001"]),
        (["a@10.0.0.7:50002", "10.0.0.7:50001"], ["pika 10.0.0.7:50001", "pika a@10.0.0.7:50002"]),
        ([f"guest@10.0.0.7:{port}" for port in range(3)], ["pika (3 connections)"]),
    ],
)
def test_a_name_that_several_connections_have_says_which_of_them(which: list[str | None], names: list[str]) -> None:
    facts = facts_of(20, CH_09=("warning", 9))
    rows = [
        {**group(FINDINGS, "named", "x", 1), "rule_id": "CH-09", "application": "pika", "which": one} for one in which
    ]
    (card,) = audit_of(replace(facts, groups={**facts.groups, "named": Groups(rows, len(rows))})).cards
    assert card.names["application"] == names
    (card,) = audit_of(replace(facts, groups={**facts.groups, "named": Groups(rows, 20_000)})).cards
    assert card.names["application"] == ["pika"]  # not all of them are known


def test_numbers_of_evidence_are_shown_with_their_unit() -> None:
    evidence = '{"negotiated_s": 1, "observed_ms": 3003, "routing_keys": "a s", "names_s": "x", "s": 2}'
    assert values(evidence) == [
        ("negotiated", "1 s"), ("observed", "3003 ms"), ("routing keys", "a s"), ("names s", "x"), ("s", "2"),
    ]  # fmt: skip


def test_an_address_is_not_said_twice() -> None:
    assert with_connections("10.0.0.7", ["guest@10.0.0.7:50001"], True) == ["guest@10.0.0.7:50001"]
    assert with_connections("fd00::7", ["[fd00::7]:50001"], True) == ["[fd00::7]:50001"]


@pytest.mark.parametrize(
    ("columns", "text"),
    [
        ({"tcp_end": "none"}, None),
        ({"tcp_end": "rst", "tcp_end_by": "server", "heartbeat_s": 1, "client_max_silence_ns": 3_003_000_000},
         "TCP reset by the server; longest silence client 3.0 s; heartbeat 1 s"),
        ({"tcp_end": "fin", "tcp_end_by": "client", "heartbeat_s": 0}, "TCP ended by the client; no heartbeat"),
        ({"tcp_end": "fin", "heartbeat_s": None}, "TCP ended"),
    ],
)  # fmt: skip
def test_a_finding_about_a_close_says_how_tcp_ended(columns: dict[str, Any], text: str | None) -> None:
    assert example({**finding("CL-04", "x"), **columns}, "tables").ended == text


def test_every_name_of_all_findings_can_be_found_on_the_page() -> None:
    """Of 900 applications four findings are shown with their evidence; the search looks through a card's text."""
    facts = facts_of(20, CH_09=("warning", 900))
    rows = [
        {**group(FINDINGS, "named", "x", 1), "rule_id": "CH-09", "application": f"app-{n}", "things": f"queue=q{n}"}
        for n in range(900)
    ]
    html = html_of(replace(facts, groups={**facts.groups, "named": Groups(rows, 900)}))
    card = html.partition('id="rule-CH-09"')[2].partition("</article>")[0]
    assert [n for n in range(900) if f"app-{n}<" not in card or f"queue=q{n}<" not in card] == []


def test_commands_are_complete() -> None:
    facts = facts_of(20, CH_09=("warning", 2))
    html = html_of(facts)
    assert "wirehare cut &#39;/data/a b&#39; --finding CH-09/7/5 -o CH-09.pcapng</code>" in html
    assert "TABLES" not in html


@pytest.mark.parametrize(
    ("product", "broken", "expected"),
    [
        ("RabbitMQ", {"R4_01": ("warning", 2)}, "R4-01 a rule (2): billing · queue=q Declare the queue durable"),
        ("RabbitMQ", {}, "RabbitMQ 4 refuses nothing that was captured on connections to RabbitMQ."),
        ("qpid-cpp", {}, "Not checked: no server identified itself as RabbitMQ."),
    ],
)
def test_a_section_says_what_rabbitmq_4_will_refuse(
    product: str, broken: dict[str, tuple[str, int]], expected: str
) -> None:
    facts = facts_of(20, **broken)
    named = [{**group(FINDINGS, "named", "x", 1), "rule_id": "R4-01", "application": "billing", "things": "queue=q"}]
    rules = [{**row, "category": "rabbitmq-4"} for row in facts.groups["rules"].rows]
    servers = [{**group(SOURCES["connections"], "servers", "x", 1), "product": product}]
    groups = {"named": named, "rules": rules, "servers": servers}
    html = html_of(replace(facts, groups={**facts.groups, **{name: Groups(of, 1) for name, of in groups.items()}}))
    section = html.partition('<section id="rabbitmq-4">')[2].partition("</section>")[0]
    assert expected in " ".join(re.sub("<[^>]*>", " ", section).split()).replace(" :", ":")
