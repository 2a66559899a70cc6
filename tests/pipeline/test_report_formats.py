"""The audit for other programs: SARIF, JUnit XML, workflow commands of GitHub."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any
from urllib.parse import unquote
from xml.etree import ElementTree

from report_support import FINDINGS, HOSTILE, SOURCES, audit_of, everywhere, finding, group, identity

from pipeline.audit.catalogue import catalogue
from pipeline.report.baseline import Previous, compare, key
from pipeline.report.formats import Audit, github, junit, sarif
from pipeline.report.grouped_counts import Groups

BROKEN = {"CH-09": "warning", "DL-03": "violation", "SEC-16": "info"}
GONE: dict[str, Any] = {"key": "0123456789abcdef", **dict.fromkeys(("user", "vhost", "server", "entities")),
        "rule_id": "CL-04", "client_product": "old app"}  # fmt: skip
KNOWN = {"start": "true", "complete": "true", "both": "true", "order": "true"}


def audited(fail_on: str = "violation", text: str = "billing", begun_before: bool = False) -> Audit:
    """An audit that found BROKEN in connections of 0-9-1; CH-09 was there before, CL-04 is gone."""
    facts = everywhere("x")
    rows = [
        {**group(FINDINGS, "rules", "a rule", 2), "rule_id": name, "severity": severity}
        for name, severity in BROKEN.items()
    ]
    known = {**KNOWN, "start": "false"} if begun_before else KNOWN
    kind = {**group(SOURCES["connections"], "checkable", "x", 3), **known, "version": "0-9-1"}
    named = [{**group(FINDINGS, "named", "x", 1), "rule_id": name, "application": text} for name in BROKEN]
    identities = [identity(name, severity, client_product=text) for name, severity in BROKEN.items()]
    groups = {"rules": rows, "checkable": [kind], "named": named, "identities": identities}
    client = {"user": "guest", "vhost": "/", "client_product": text, "entities": None}
    facts = replace(
        facts,
        groups={**facts.groups, **{name: Groups(of, len(of)) for name, of in groups.items()}},
        examples={name: [{**finding(name, "x"), **client}] for name in BROKEN},
        firsts={key(identity(name, client_product=text)): {**finding(name, "x"), **client} for name in BROKEN},
    )
    before = Previous({key(identity("CH-09", client_product=text)): {}, GONE["key"]: GONE})
    found = compare(facts.groups["identities"], before)
    return audit_of(facts, found, fail_on=fail_on)


def results(audit: Audit) -> list[dict[str, Any]]:
    (run,) = json.loads(sarif(audit))["runs"]
    names = [rule["id"] for rule in run["tool"]["driver"]["rules"]]
    assert all(names[one["ruleIndex"]] == one["ruleId"] for one in run["results"])
    found: list[dict[str, Any]] = run["results"]
    return found


def test_sarif_has_a_result_for_each_finding_with_its_state() -> None:
    """Levels and states by the words of SARIF 2.1.0, 3.27.10 and 3.27.24."""
    states = {one["ruleId"]: (one.get("level"), one["baselineState"]) for one in results(audited())}
    assert states == {
        "DL-03": ("error", "new"), "CH-09": ("warning", "unchanged"), "SEC-16": ("note", "new"),
        "CL-04": (None, "absent"),
    }  # fmt: skip


def test_sarif_says_where_and_what_to_do() -> None:
    (one,) = [one for one in results(audited()) if one["ruleId"] == "DL-03"]
    assert one["message"]["text"] == (
        f"{catalogue()['DL-03'].summary} client product billing, user guest, vhost /, server 10.0.0.2:5672. "
        f"What to do: {catalogue()['DL-03'].remedy}"
    )
    (location,) = one["locations"]
    assert location["physicalLocation"]["artifactLocation"]["uri"] == "file:///captures/x.pcap"
    assert location["logicalLocations"] == [{"fullyQualifiedName": "10.0.0.7:50312 -> 10.0.0.2:5672, packet 17"}]


def cases(audit: Audit) -> dict[str, tuple[str, ...]]:
    """Rule -> what stands in its test case."""
    suites = ElementTree.fromstring(junit(audit).partition("?>")[2])
    for suite in suites:
        for name, kind in (("tests", "testcase"), ("failures", "testcase/failure"), ("skipped", "testcase/skipped")):
            assert int(suite.attrib[name]) == len(suite.findall(kind))
    return {
        one.attrib["name"].split()[0]: tuple(inner.tag for inner in one) for one in suites.iter("testcase")
    }  # fmt: skip


def test_junit_has_a_case_for_every_rule_and_fails_from_the_threshold_on() -> None:
    found = cases(audited("warning"))
    assert found.keys() == catalogue().keys()
    assert {name for name, inner in found.items() if inner == ("failure",)} == {"CH-09", "DL-03"}
    assert {name for name, inner in found.items() if inner == ("system-out",)} == {"SEC-16"}
    for threshold, failed in (("violation", {"DL-03"}), ("info", set(BROKEN)), ("never", set())):
        assert {name for name, inner in cases(audited(threshold)).items() if "failure" in inner} == failed


def test_junit_skips_rules_that_were_not_checked() -> None:
    found, known = cases(audited(begun_before=True)), cases(audited())
    assert (found["HS-08"], known["HS-08"]) == (("skipped",), ())
    assert found["NEG-07"] == ("skipped",)  # of 1.0 only, which nobody speaks here
    assert {name for name, inner in known.items() if inner == ("skipped",)} == {
        rule.id for rule in catalogue().values() if "0-9-1" not in rule.versions
    }


def test_github_has_one_line_for_each_broken_rule_the_worst_first() -> None:
    *lines, last = github(audited(text="50 %: a, b")).splitlines()
    found = [re.fullmatch(r"::(error|warning|notice) title=([^:,]*)::(.*)", line) for line in lines]
    assert [(one[1], one[2].split()[0]) for one in found if one] == [
        ("error", "DL-03"), ("warning", "CH-09"), ("notice", "SEC-16"),
    ]  # fmt: skip
    assert found[0] is not None
    message = unquote(found[0][3])
    assert message.startswith("2 findings: 50 %: a, b")
    assert f"\nWhat to do: {catalogue()['DL-03'].remedy}\n" in message
    assert "wirehare cut /data/tables --finding DL-03/7/5" in message
    assert last.startswith("2 violations and 2 warnings in ")


def test_names_from_the_wire_are_text_everywhere() -> None:
    audit = audited(text=HOSTILE)
    junit_text = "".join(ElementTree.fromstring(junit(audit).partition("?>")[2]).itertext())
    assert '<script>alert("x")</script>' in junit_text
    for text in (junit_text, github(audit), sarif(audit)):
        assert not set(text) & {"\u202e", "\x07", "\x1b"}
    assert len(github(audit).splitlines()) == len(BROKEN) + 1
