"""What could not be checked is reported: in the headline, by rule, and beside the baseline, where it is not gone."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import UTC, date, datetime
from typing import Any

import pytest
from report_support import SOURCES, audit_of, everywhere, group, identity

from pipeline.audit.catalogue import KNOWLEDGE, catalogue
from pipeline.audit.config import Accepted, Config
from pipeline.audit.detectors import DETECTORS
from pipeline.report.baseline import compare, read
from pipeline.report.facts import Facts, coverage_check, rules_of, unchecked
from pipeline.report.formats import Verdict, document
from pipeline.report.grouped_counts import Groups
from pipeline.report.page import page

NOW = datetime(2026, 11, 21, 2, 0, tzinfo=UTC)
PIKA = {"client_product": "pika", "user": "guest", "vhost": "/", "server": "10.0.0.2:5672", "version": "0-9-1"}
NOBODY = {**PIKA, "client_product": None, "user": None, "vhost": None}
ALL_KNOWN = dict.fromkeys(KNOWLEDGE, "true")
FROM_THE_MIDDLE = {**ALL_KNOWN, "start": "false"}
# What handshakes contain, and what is known of channels that were opened before: in conditions of detectors.
BEGINNINGS = re.compile(
    r"\bc\.(start|start_ok|secure|secure_ok|tune|tune_ok|open|open_ok|client_header|server_header|client_open|server_open"
    r"|sasl_\w+|client_properties|server_properties|from_start)\b"
    r"|\b(heartbeat_s|frame_max|channel_max|mechanism|vhost|user|asked|answered|refusal|failed_login|server_product)\b"
)
# Checked without: how a connection ended.
ALSO_WITHOUT = {"CL-04", "CL-07"}


def facts_of(*kinds: tuple[dict[str, Any], int], contents: dict[str, int] | None = None) -> Facts:
    """Facts of connections of these kinds, so many of each, in which no rule is broken."""
    facts = everywhere("x")
    of_content = contents or {"amqp": sum(number for _, number in kinds)}
    begun = sum(number for kind, number in kinds if kind["start"] == "false")
    versions = [
        {
            **group(SOURCES["connections"], "versions", "x", number),
            "content": content,
            "begun_before": begun * (content == "amqp"),
        }
        for content, number in of_content.items()
    ]
    rows = [{**group(SOURCES["connections"], "checkable", "x", number), **kind} for kind, number in kinds]
    none = dict.fromkeys(("rules", "identities", "affected"), Groups())
    groups = {**none, "versions": Groups(versions, len(versions)), "checkable": Groups(rows, len(rows))}
    return replace(facts, groups={**facts.groups, **groups}, examples={})


def judged(facts: Facts) -> Verdict:
    return audit_of(facts, compare(Groups(), None)).verdict


def test_connections_that_began_before_are_counted_in_the_headline() -> None:
    found = judged(facts_of(({**PIKA, **ALL_KNOWN}, 1), ({**NOBODY, **FROM_THE_MIDDLE}, 2)))
    without = [rule for rule in catalogue().values() if "0-9-1" in rule.versions and rule.lacking(["start"])]
    assert found.sentence == (
        "Nothing wrong was found in 3 connections. "
        f"2 connections began before the capture: {len(without)} rules could not be checked there."
    )
    assert (found.worst, found.begun_before, found.rules_not_checked) == ("unchecked", 2, len(without))
    assert judged(facts_of(({**PIKA, **ALL_KNOWN}, 1))).sentence == "Nothing wrong was found in 1 connection."
    assert judged(facts_of(({**PIKA, **ALL_KNOWN}, 1))).worst == "clean"


@pytest.mark.parametrize(
    ("contents", "sentence"),
    [
        ({}, "There is no connection in these captures. Nothing was checked."),
        ({"foreign": 2, "none": 1}, "No AMQP was read in 3 connections. Nothing was checked."),
        ({"tls": 1}, "No AMQP was read in 1 connection. Nothing was checked. 1 connection could not be read: TLS."),
    ],
)
def test_a_capture_without_amqp_is_not_all_clear(contents: dict[str, int], sentence: str) -> None:
    facts = facts_of(contents=contents or {"none": 0})
    found = judged(facts)
    assert (found.sentence, found.worst) == (sentence, "unchecked")
    html = page(audit_of(facts, compare(Groups(), None)), "/data")
    assert '<header class="unchecked">' in html
    assert sentence.split(".")[0] in html


def test_rules_that_could_not_be_checked_are_named() -> None:
    lossy = {**ALL_KNOWN, "complete": "false"}
    rules = {name: catalogue()[name] for name in ("HS-08", "CL-03", "CH-09", "SEC-03")}
    facts = facts_of(
        ({**NOBODY, **FROM_THE_MIDDLE}, 2), ({**PIKA, **lossy}, 3), ({**PIKA, "version": "1.0"} | lossy, 9)
    )
    # HS-08 is about the handshake, CL-03 needs all bytes; CH-09 looks at a frame, SEC-03 at the version.
    assert [(one.rule_id, one.connections, one.of, one.reasons) for one in unchecked(facts, rules)] == [
        ("CL-03", 3, 5, ("bytes are missing",)),
        ("HS-08", 2, 5, ("capture began mid-stream",)),
    ]
    audit = audit_of(facts, compare(Groups(), None))
    entry = {"rule_id": "CL-03", "connections": 3, "of": 5, "reasons": ["bytes are missing"]}
    assert entry in json.loads(document(audit))["rules_not_checked"]
    assert "rules were not checked on some connections" in page(audit, "/data")


@pytest.mark.parametrize(
    ("kinds", "gone"),
    [
        ([{**PIKA, **ALL_KNOWN}], True),
        ([{**PIKA, **ALL_KNOWN}, {**PIKA, **FROM_THE_MIDDLE, "user": "other"}], True),
        ([], False),  # the client was not there
        ([{**PIKA, **ALL_KNOWN, "user": "other"}], False),
        ([{**PIKA, **ALL_KNOWN, "version": "1.0"}], False),  # to which the rule does not apply
        ([{**NOBODY, **FROM_THE_MIDDLE}], False),
        ([{**PIKA, **ALL_KNOWN}, {**NOBODY, **FROM_THE_MIDDLE}], False),  # which may be of the same client
    ],
)
def test_only_findings_of_checked_rules_are_gone(kinds: list[dict[str, Any]], gone: bool) -> None:
    last = read(document(audit_of(everywhere("x"), compare(Groups([identity("HS-08")], 1), None))))
    facts = facts_of(*((kind, 1) for kind in kinds))
    found = compare(Groups(), last, coverage_check(facts, rules_of(None)))
    assert [len(found.gone), len(found.not_checked)] == [gone, not gone]
    judged = audit_of(facts, found).verdict
    assert (judged.gone, judged.not_checked) == (int(gone), int(not gone))
    # What was not checked stands as it stood, for the night after.
    after = read(document(audit_of(facts, found)))
    again = compare(Groups([identity("HS-08")], 1), after)
    assert again.known[0].status == ("new" if gone else "persisting")


def test_a_rule_that_is_switched_off_is_not_checked() -> None:
    last = read(document(audit_of(everywhere("x"), compare(Groups([identity("HS-08")], 1), None))))
    rules = rules_of(Config(disabled=("HS",)))
    assert "HS-08" not in rules
    found = compare(Groups(), last, coverage_check(facts_of(({**PIKA, **ALL_KNOWN}, 1)), rules))
    assert (found.gone, len(found.not_checked)) == ([], 1)


def test_accepted_findings_are_not_gone() -> None:
    last = read(document(audit_of(everywhere("x"), compare(Groups([identity("HS-08")], 1), None))))
    facts = facts_of(({**PIKA, **ALL_KNOWN}, 1))
    for user, until, gone in (("guest", 21, 0), ("other", 21, 1), ("guest", 20, 1)):
        accepted = Accepted("HS-08", "known", date(2026, 11, until), user=user)
        found = compare(Groups(), last, coverage_check(facts, rules_of(None), [accepted], NOW.date()))
        assert (len(found.gone), len(found.not_checked)) == (gone, 1 - gone)


def test_rules_about_beginnings_are_marked() -> None:
    """The mark is data; that none is forgotten, what the detectors ask for tells."""
    asking = {
        detector.rule for detector in DETECTORS
        if BEGINNINGS.search(detector.when) or detector.context == "silences"
    }  # fmt: skip
    marked = {rule.id for rule in catalogue().values() if rule.beginning}
    assert asking - marked == ALSO_WITHOUT
    assert {rule.id for rule in catalogue().values() if "start" in rule.needs} <= marked
