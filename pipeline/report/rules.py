"""Findings as the page shows them: one card a rule, with its evidence and the way to see it in Wireshark."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pipeline.audit.catalogue import Rule, catalogue, reason
from pipeline.report import wireshark
from pipeline.report.baseline import Compared
from pipeline.report.evidence import NAMED, SEVERITIES
from pipeline.report.facts import Facts

# Values of one piece of evidence that are shown; detectors give a handful.
VALUES = 12
# A rule that this share of so many connections breaks says nothing of any one of them.
NEARLY_ALL, MANY = 0.9, 5
# Findings on the first screen.
FIRST = 5
# Stands in commands for the directory of the tables, where it is not known.
TABLES = "TABLES"
# Evidence in which a peer says what happened; and how much of other evidence says it instead.
TELLING = ("reply text", "text", "description", "condition", "error")
TELLING_VALUES = 3
# Evidence that is shown before other values.
BEFORE_OTHERS = ("observed", "expected")


@dataclass(frozen=True)
class Example:
    """One finding: `row` as `evidence.examples` gives it, its evidence by name, and the filters and the command that
    show it; a capture as a whole has none."""

    row: Mapping[str, Any]
    values: Sequence[tuple[str, str]]
    packet: str | None
    connection: str | None
    cut: str | None

    @property
    def product(self) -> str:
        """Product and version of the client, as an application without a name is called."""
        return " ".join(filter(None, (self.row["client_product"], self.row["client_version"])))


@dataclass(frozen=True)
class Card:
    """A rule that is broken. `findings`, `occurrences`: how many; `reserved` of the findings are not sure. On how many
    `connections`, of those that speak AMQP. `names`: of NAMED, all that occur in its findings, the most frequent first.
    `rule`: what is known of it; None where it is not in the catalogue of this release."""

    rule_id: str
    severity: str
    category: str
    summary: str
    reference: str
    findings: int
    occurrences: int
    reserved: int
    new: int
    persisting: int
    examples: Sequence[Example] = field(default_factory=list)
    connections: int = 0
    of: int = 0
    names: Mapping[str, Sequence[str]] = field(default_factory=dict)
    rule: Rule | None = None

    @property
    def common(self) -> bool:
        """Whether nearly every connection breaks the rule, and so tells nothing of any one of them."""
        return self.severity != SEVERITIES[-1] and self.of >= MANY and self.connections >= NEARLY_ALL * self.of

    @property
    def costs_work(self) -> bool:
        """Whether somebody's work was not done, or was cut short."""
        return self.rule is not None and self.rule.cost is not None

    @property
    def telling(self) -> Sequence[tuple[str, str]]:
        """What happened in the first finding: the words of a peer alone (without a name), else some of the evidence."""
        values = self.examples[0].values if self.examples else ()
        words = [("", value) for name, value in values if name in TELLING and value]
        return words[:1] or values[:TELLING_VALUES]

    @property
    def reason(self) -> str:
        """Why it has its severity, which may be another than that of the rule."""
        return reason(self.severity, self.costs_work) if self.rule is not None else self.severity

    @property
    def query(self) -> str:
        """SQL for all findings of the rule; ids are ours."""
        return f"SELECT * FROM findings WHERE rule_id = '{self.rule_id}' ORDER BY ts"


def cards(
    facts: Facts, found: Compared, examples: int, tables: str = TABLES, rules: Mapping[str, Rule] | None = None
) -> list[Card]:
    """The rules that are broken, each with up to so many examples: the worst first; of these what cost somebody's work
    before the others, then the most frequent. What nearly every connection breaks is told once, with one example.

    `tables`: the directory audited, for commands; `rules`: what is known of them, by default those of the catalogue.
    """
    known_rules = catalogue() if rules is None else rules
    named = names(facts)
    whole = sum(int(group["rows"] or 0) for group in facts.groups["versions"].rows if group["content"] == "amqp")
    status: dict[tuple[Any, Any], int] = {}
    for known in found.known:
        place = (known.about["rule_id"], known.status)
        status[place] = status.get(place, 0) + 1
    merged: dict[str, list[Mapping[str, Any]]] = {}
    for group in facts.groups["rules"].rows:
        merged.setdefault(str(group["rule_id"]), []).append(group)
    shown = [
        Card(
            rule_id,
            max((str(group["severity"]) for group in groups), key=SEVERITIES.index),
            category=str(groups[0]["category"] or ""),
            summary=str(groups[0]["summary"] or ""),
            reference=str(groups[0]["reference"] or ""),
            findings=sum(group["rows"] for group in groups),
            occurrences=sum(group["occurrences"] for group in groups),
            reserved=sum(group["reserved"] for group in groups),
            new=status.get((rule_id, "new"), 0),
            persisting=status.get((rule_id, "persisting"), 0),
            examples=[example(row, tables) for row in facts.examples.get(rule_id, [])[:examples]],
            connections=sum(int(group.get("connections") or 0) for group in groups),
            of=whole,
            names={name: named.get(rule_id, {}).get(name, []) for name in NAMED},
            rule=known_rules.get(rule_id),
        )
        for rule_id, groups in merged.items()
    ]
    shown = [replace(card, examples=card.examples[:1]) if card.common else card for card in shown]
    return sorted(shown, key=rank)


def rank(card: Card) -> tuple[int, bool, bool, int, str]:
    """Where a card stands on the page, from the top."""
    return -SEVERITIES.index(card.severity), not card.costs_work, card.common, -card.findings, card.rule_id


def first(shown: Sequence[Card]) -> list[Card]:
    """The few that matter most: what ended somebody's work, then what is worst, then what is new. Notes do not; what
    nearly every connection does comes after the others."""
    serious = [card for card in shown if card.severity != SEVERITIES[0]]
    worst = sorted(serious, key=lambda card: (card.common, not card.costs_work, *rank(card)[:1], not card.new))
    return worst[:FIRST]


def names(facts: Facts) -> dict[str, dict[str, list[str]]]:
    """Rule -> NAMED -> the names in all of its findings, the most frequent first."""
    counted: dict[str, dict[str, Counter[str]]] = {}
    for group in facts.groups["named"].rows:
        of_rule = counted.setdefault(str(group["rule_id"]), {name: Counter() for name in NAMED})
        for name in NAMED:
            if group[name] is not None:
                of_rule[name][str(group[name])] += int(group["rows"] or 0)
    return {
        rule_id: {name: [text for text, _ in found.most_common()] for name, found in of_rule.items()}
        for rule_id, of_rule in counted.items()
    }


def example(row: Mapping[str, Any], tables: str = TABLES) -> Example:
    """A finding with its evidence taken apart."""
    about = row["rule_id"], row["connection_id"], row["frame_no"]
    return Example(
        row,
        values(row["evidence"]),
        wireshark.packet(row["packet_no"]),
        wireshark.connection(row),
        None if row["connection_id"] is None else wireshark.cut(tables, *about),
    )


def values(evidence: str | None) -> list[tuple[str, str]]:
    """Evidence in JSON as names and values; as one value where it was cut, or is no object."""
    try:
        found = json.loads(evidence or "{}")
    except ValueError:
        return [("evidence", evidence or "")]
    if not isinstance(found, dict):
        return [("evidence", plain(found))]
    order = {name: place for place, name in enumerate(BEFORE_OTHERS)}
    ordered = sorted(found.items(), key=lambda item: order.get(item[0], len(order)))
    return [(name.replace("_", " "), plain(value)) for name, value in ordered[:VALUES]]


def plain(value: Any) -> str:
    """A value of JSON as text; the fields of an object one after the other."""
    if isinstance(value, dict) and value:
        return ", ".join(f"{name.replace('_', ' ')} {plain(part)}" for name, part in value.items())
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
