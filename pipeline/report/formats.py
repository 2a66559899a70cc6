"""The result of an audit with its verdict, and its form for other programs: JSON (the baseline of later audits), SARIF
2.1.0 (code scanning), JUnit XML (build servers), and the workflow commands of GitHub Actions.

The verdict is findings by severity, affected connections and what could not be checked, as numbers and sentences.
Strings from the wire are escaped (`text.plain_text`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from functools import cached_property
from typing import Any
from xml.etree import ElementTree

from pipeline.audit.catalogue import GROUPS, Rule
from pipeline.audit.config import Config
from pipeline.output.formatting import (
    count,
    plain_text,
    plural,
    script_safe,
)
from pipeline.report.baseline import FORMAT, NEW, PERSISTING, Comparison, KnownFinding, order
from pipeline.report.cards import Card, cards, example
from pipeline.report.facts import Facts, Unchecked, rules_of, unchecked, unchecked_on_midstream
from pipeline.report.sections import EXAMPLES, IDENTITIES, IDENTITY, at_least

# What --fail-on takes: a severity, 'empty' or 'never'. An audit that read no AMQP fails only with 'empty', as one with
# a violation does.
NEVER, EMPTY = "never", "empty"
# Contents of connections (column `content`) of which no frame is read.
UNREAD = ("tls", "foreign", "none")
NOUNS = {"violation": "violation", "warning": "warning", "info": "note"}
CHARACTERS = 200  # of a name
NAMES = 10  # of applications, queues ... in one message
SARIF_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
LEVELS = {"violation": "error", "warning": "warning", "info": "note"}  # of SARIF
COMMANDS = {"violation": "error", "warning": "warning", "info": "notice"}  # of GitHub
STATES = {"new": "new", "persisting": "unchanged"}  # of a baseline, in SARIF
ABOUT = IDENTITY[1:]  # without the rule


@dataclass(frozen=True)
class Verdict:
    """`failed`: there are findings of severity `fail_on` or worse. `violation` to `rules`, `new` to `gone`: numbers of
    findings. `connections`: all; `affected`: with a warning or a violation; `amqp`: readable; `begun_before`: readable,
    but begun before the capture, so that `rules_not_checked` rules could not be checked on them. `not_checked`:
    findings of the baseline."""

    failed: bool
    fail_on: str
    violation: int
    warning: int
    info: int
    rules: int
    connections: int
    affected: int
    new: int | None
    persisting: int | None
    gone: int | None
    amqp: int = 0
    encrypted: int = 0
    begun_before: int = 0
    rules_not_checked: int = 0
    not_checked: int | None = None

    @property
    def worst(self) -> str:
        """The worst severity, for the colour of the page; 'clean' if there are only notes, 'unchecked' if there are
        only notes but not all connections could be checked."""
        if self.violation or self.warning:
            return "violation" if self.violation else "warning"
        return "unchecked" if self.begun_before or self.encrypted or not self.amqp else "clean"

    @property
    def sentence(self) -> str:
        """The verdict as text: what was found, and what could not be checked."""
        return " ".join([self.found, *self.doubts])

    @property
    def found(self) -> str:
        if not self.connections:
            return "There is no connection in these captures. Nothing was checked."
        if not self.violation and not self.warning:
            if not self.amqp:
                return f"No AMQP was read in {plural(self.connections, 'connection')}. Nothing was checked."
            return f"Nothing wrong was found in {plural(self.amqp, 'connection')}."
        parts = [
            plural(number, NOUNS[name])
            for name, number in (("violation", self.violation), ("warning", self.warning))
            if number
        ]
        return f"{' and '.join(parts)} in {count(self.affected)} of {plural(self.connections, 'connection')}."

    @property
    def doubts(self) -> list[str]:
        """What could not be checked, one sentence each."""
        sentences = []
        if self.begun_before:
            began = plural(self.begun_before, "connection")
            rules = plural(self.rules_not_checked, "rule")
            sentences.append(f"{began} began before the capture: {rules} could not be checked there.")
        if self.encrypted:
            sentences.append(f"{plural(self.encrypted, 'connection')} could not be read: TLS.")
        return sentences


@dataclass(frozen=True)
class Audit:
    """The result of an audit. `found`: its findings, compared with an earlier audit; `fail_on`: the severity from which
    on it failed, or NEVER; `tables`: the audited directory or URI, for commands."""

    facts: Facts
    found: Comparison
    fail_on: str
    title: str
    now: datetime
    tables: str
    config: Config | None = None

    @cached_property
    def rules(self) -> Mapping[str, Rule]:
        """The rules that were checked, by id."""
        return rules_of(self.config)

    @cached_property
    def verdict(self) -> Verdict:
        facts, found = self.facts, self.found
        broken = facts.groups["rules"]
        numbers, affected = broken.counted("severity"), facts.groups["affected"].counted("severity")
        contents = facts.groups["versions"].counted("content")
        compared = found.previous is not None
        amqp = sum(number for content, number in contents.items() if content not in UNREAD)
        return Verdict(
            failed=any(numbers[severity] for severity in failing(self.fail_on)) or (self.fail_on == EMPTY and not amqp),
            fail_on=self.fail_on,
            violation=numbers["violation"],
            warning=numbers["warning"],
            info=numbers["info"],
            rules=len(broken.counted("rule_id")),
            connections=facts.total("versions"),
            affected=affected["violation"] + affected["warning"],
            new=found.number(NEW) if compared else None,
            persisting=found.number(PERSISTING) if compared else None,
            gone=len(found.gone) if compared else None,
            amqp=amqp,
            encrypted=contents["tls"],
            begun_before=facts.total("versions", "begun_before"),
            rules_not_checked=unchecked_on_midstream(facts, self.rules),
            not_checked=len(found.not_checked) if compared else None,
        )

    @cached_property
    def unchecked(self) -> Sequence[Unchecked]:
        """The rules that were not checked on all connections of their versions."""
        return unchecked(self.facts, self.rules)

    @cached_property
    def cards(self) -> Sequence[Card]:
        """The broken rules, the worst first."""
        return cards(self.facts, self.found, EXAMPLES, self.tables, self.rules)


def document(audit: Audit) -> str:
    """The audit as JSON with stable names: one entry per KnownFinding, at most IDENTITIES.

    Names from the wire are escaped, so that it can be embedded in a page (`script_safe`).
    """
    facts, found = audit.facts, audit.found
    text = json.dumps(
        {
            "format": FORMAT,
            "title": audit.title,
            "audited": audit.now.isoformat(timespec="seconds"),
            "verdict": asdict(audit.verdict),
            "first_packet_ns": facts.first_ns,
            "last_packet_ns": facts.last_ns,
            "captures": facts.groups["files"].total,
            "complete": found.complete,
            "findings": [
                {**known.entry(), "first": first_of(audit, known)}
                for known in sorted(found.known, key=order)[:IDENTITIES]
            ],
            "gone": list(found.gone),
            "not_checked": list(found.not_checked)[:IDENTITIES],
            "rules_not_checked": [rule.entry() for rule in audit.unchecked],
        },
        indent=1,
    )
    return script_safe(text)


def first_of(audit: Audit, known: KnownFinding) -> dict[str, Any] | None:
    """The first finding of a group: what happened, and where to look."""
    row = audit.facts.firsts.get(known.key)
    if row is None:
        return None
    rule = audit.rules.get(str(known.about["rule_id"]))
    proof = example(row, audit.tables)
    return {
        "text": rule.summary if rule else row["summary"],
        "evidence": parsed(row["evidence"]),
        "reservation": row["reservation"],
        "client": row["client"],
        "application": row["application"],
        "capture_file": row["capture_file"],
        "packet_no": row["packet_no"],
        "connection_id": row["connection_id"],
        "frame_no": row["frame_no"],
        "cut": proof.cut,
    }


def parsed(evidence: str | None) -> Any:
    """Evidence as JSON has it; the text, if it is too long to be whole."""
    try:
        return json.loads(evidence or "{}")
    except ValueError:
        return evidence


def sarif(audit: Audit) -> str:
    """One result per KnownFinding, at most IDENTITIES; those that are gone have state 'absent'."""
    known = sorted(audit.found.known, key=order)[:IDENTITIES]
    names = sorted({str(one.about["rule_id"]) for one in known} | {str(entry["rule_id"]) for entry in audit.found.gone})
    index = {name: number for number, name in enumerate(names)}
    results = [sarif_result(audit, one, index) for one in known]
    results += [
        {
            **sarif_message(entry, audit.rules, index),
            "baselineState": "absent",
            "partialFingerprints": {"wirehare/1": entry["key"]},
        }
        for entry in audit.found.gone
    ]
    driver = {"name": "wirehare", "rules": [sarif_rule(name, audit.rules.get(name)) for name in names]}
    run = {"tool": {"driver": driver}, "results": results, "columnKind": "unicodeCodePoints"}
    return json.dumps({"$schema": SARIF_SCHEMA, "version": "2.1.0", "runs": [run]}, indent=1)


def sarif_rule(name: str, rule: Rule | None) -> dict[str, Any]:
    if rule is None:
        return {"id": name}
    texts = {"shortDescription": rule.summary, "fullDescription": rule.why, "help": rule.remedy}
    level = {"defaultConfiguration": {"level": LEVELS[rule.severity]}}
    return {"id": name, **{key: {"text": text} for key, text in texts.items() if text}, **level}


def sarif_result(audit: Audit, one: KnownFinding, index: Mapping[str, int]) -> dict[str, Any]:
    """A finding in SARIF, with the capture and the packet of an example if there is one."""
    entry = {**one.about, "severity": one.severity}
    element = {
        **sarif_message(entry, audit.rules, index),
        "level": LEVELS[one.severity],
        "occurrenceCount": one.findings,
        "partialFingerprints": {"wirehare/1": one.key},
    }
    if one.status is not None:
        element["baselineState"] = STATES[one.status]
    first = audit.facts.firsts.get(one.key)
    if first is not None and first["capture_file"]:
        packet = "" if first["packet_no"] is None else f", packet {first['packet_no']}"
        peers = f"{first['client']} -> {first['server']}{packet}"
        element["locations"] = [
            {
                "physicalLocation": {"artifactLocation": {"uri": first["capture_file"]}},
                "logicalLocations": [{"fullyQualifiedName": peers}],
            }
        ]
    return element


def sarif_message(entry: Mapping[str, Any], rules: Mapping[str, Rule], index: Mapping[str, int]) -> dict[str, Any]:
    """The rule of an entry and its message: what is wrong, who does it, and what to do."""
    name = str(entry["rule_id"])
    rule = rules.get(name)
    about = [
        f"{key.replace('_', ' ')} {plain_text(entry[key], CHARACTERS)}" for key in ABOUT if entry.get(key) is not None
    ]
    parts = [rule.summary if rule else f"{name} is broken.", f"{', '.join(about)}." if about else ""]
    parts.append(f"What to do: {rule.remedy}" if rule and rule.remedy else "")
    return {"ruleId": name, "ruleIndex": index[name], "message": {"text": " ".join(filter(None, parts))}}


def junit(audit: Audit) -> str:
    """One suite per group of rules, one case per rule: failed if findings reach the threshold, skipped if the rule was
    checked on no connection."""
    broken = {card.rule_id: card for card in audit.cards}
    nowhere = {one.rule_id: one for one in audit.unchecked if one.connections == one.of}
    versions = {kind["version"] for kind in audit.facts.groups["checkable"].rows}
    wrong = failing(audit.verdict.fail_on)
    suites = ElementTree.Element("testsuites", name="wirehare audit")
    for group in dict.fromkeys([*GROUPS, *(rule.group for rule in audit.rules.values())]):
        own = [rule for rule in audit.rules.values() if rule.group == group]
        cases = [junit_case(rule, broken.get(rule.id), nowhere.get(rule.id), versions, wrong) for rule in own]
        if not cases:
            continue
        suite = ElementTree.SubElement(suites, "testsuite", name=GROUPS.get(group, group), tests=str(len(cases)))
        suite.set("failures", str(sum(one.find("failure") is not None for one in cases)))
        suite.set("skipped", str(sum(one.find("skipped") is not None for one in cases)))
        suite.extend(cases)
    ElementTree.indent(suites, " ")
    return ElementTree.tostring(suites, encoding="unicode", xml_declaration=True)


def junit_case(
    rule: Rule, card: Card | None, nowhere: Unchecked | None, versions: set[Any], wrong: Sequence[str]
) -> ElementTree.Element:
    element = ElementTree.Element("testcase", classname=rule.group, name=f"{rule.id} {rule.summary}")
    if card is not None:
        kind = "failure" if card.severity in wrong else "system-out"
        inner = ElementTree.SubElement(element, kind)
        if kind == "failure":
            inner.set("type", card.severity)
            inner.set("message", headline(card))
        inner.text = "\n".join(lines(card))
    elif nowhere is not None:
        ElementTree.SubElement(element, "skipped", message=f"not checked: {', '.join(nowhere.reasons)}")
    elif not versions & {*rule.versions}:
        ElementTree.SubElement(element, "skipped", message="no connection of its versions")
    return element


def failing(fail_on: str) -> Sequence[str]:
    """The severities that let an audit fail."""
    return () if fail_on == NEVER else tuple(at_least("violation" if fail_on == EMPTY else fail_on))


def headline(card: Card) -> str:
    """The number of findings of a rule, and who breaks it."""
    names = [plain_text(name, CHARACTERS) for name in [*card.names["application"], *card.names["things"]]]
    more = f" and {len(names) - NAMES} more" if len(names) > NAMES else ""
    return f"{plural(card.findings, 'finding')}{': ' if names else ''}{', '.join(names[:NAMES])}{more}"


def lines(card: Card) -> list[str]:
    """The details of a broken rule, line by line."""
    advice = (card.rule.why, f"What to do: {card.rule.remedy}") if card.rule and card.rule.remedy else ()
    cuts = [example.cut for example in card.examples if example.cut]
    return list(filter(None, [headline(card), card.happened(CHARACTERS), *advice, *cuts]))


def github(audit: Audit) -> str:
    """One workflow command per broken rule, the worst first."""
    commands = []
    for card in audit.cards:
        title = command_text(f"{card.rule_id} {card.summary}").replace(":", "%3A").replace(",", "%2C")
        commands.append(f"::{COMMANDS[card.severity]} title={title}::{command_text(chr(10).join(lines(card)))}")
    return "\n".join([*commands, command_text(audit.verdict.sentence)])


def command_text(text: str) -> str:
    """Text escaped for a workflow command, which is one line."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


FORMATS = {"json": document, "sarif": sarif, "junit": junit, "github": github}
