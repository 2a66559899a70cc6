"""Broken rules as cards of the page, with evidence, Wireshark filters and `wirehare cut` commands.

Filters and commands contain only rule ids, addresses, numbers and the path of the tables, never text from the wire.
"""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from ipaddress import ip_address
from typing import Any

from pipeline.audit.catalogue import Rule, reason
from pipeline.output.formatting import (
    count,
    duration,
    plain_text,
    plural,
)
from pipeline.report.baseline import Comparison
from pipeline.report.facts import Facts
from pipeline.report.sections import NAMED, SEVERITIES

# The most values of evidence that are shown; detectors give a handful.
VALUES = 12
# A rule that this share of at least so many connections breaks is no specific fault of any of them.
NEARLY_ALL, MANY = 0.9, 5
# Cards on the first screen.
MOST_IMPORTANT = 5
# What of the first screen shows what happened: values of evidence, or different texts of peers.
EVIDENCE_VALUES = 3
TEXTS = 2
# Connections of one application that are listed one by one.
FEW_CONNECTIONS = 2
# A rule about the end of a connection.
CLOSE = "close"
# `connections.tcp_end` of a connection that has ended.
ENDS = {"rst": "TCP reset", "fin": "TCP ended"}
UNITS = ("s", "ms", "us", "ns", "bytes")
# Evidence that is shown first.
BEFORE_OTHERS = ("observed", "expected")


@dataclass(frozen=True)
class Example:
    """One finding: a `row` of `sections.examples`, its evidence by name, and the filters and the command that show it;
    None for findings about a whole capture."""

    row: Mapping[str, Any]
    values: Sequence[tuple[str, str]]
    packet: str | None
    connection: str | None
    cut: str | None

    @property
    def ended(self) -> str | None:
        """How TCP ended, and the longest silence before; None if it did not."""
        row = self.row
        if row["tcp_end"] not in ENDS:
            return None
        by = f" by the {row['tcp_end_by']}" if row["tcp_end_by"] else ""
        silences = [
            f"{side} {duration(row[f'{side}_max_silence_ns'])}"
            for side in ("client", "server")
            if row[f"{side}_max_silence_ns"]
        ]
        beat = {None: None, 0: "no heartbeat"}.get(row["heartbeat_s"], f"heartbeat {row['heartbeat_s']} s")
        longest = f"longest silence {', '.join(silences)}" if silences else None
        return "; ".join(filter(None, [f"{ENDS[row['tcp_end']]}{by}", longest, beat]))

    @property
    def product(self) -> str:
        """Product and version of the client; they identify an application without a name."""
        return " ".join(filter(None, (self.row["client_product"], self.row["client_version"])))


@dataclass(frozen=True)
class Card:
    """A broken rule. `findings`, `occurrences`: numbers; `reserved`: findings with a reservation. `connections`: that
    break it, `of` those that carry AMQP. `names`: by NAMED, the names in its findings, and `texts`: different texts of
    peers with their numbers, the most frequent first. `rule`: None if it is not in the catalogue of this release."""

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
    texts: Sequence[tuple[str, int]] = ()
    rule: Rule | None = None

    @property
    def common(self) -> bool:
        """Whether nearly every connection breaks the rule."""
        return self.severity != SEVERITIES[-1] and self.of >= MANY and self.connections >= NEARLY_ALL * self.of

    @property
    def costs_work(self) -> bool:
        """Whether an operation failed or was interrupted."""
        return self.rule is not None and self.rule.cost is not None

    @property
    def highlights(self) -> Sequence[tuple[str, str | None]]:
        """What happened: the text of a peer (without a name), or several with their numbers, else the first evidence of
        the first finding."""
        if len(self.texts) == 1:
            return [("", self.texts[0][0])]
        if self.texts:
            more = len(self.texts) - TEXTS
            texts = [("once" if number == 1 else f"{number:,} times", text) for text, number in self.texts[:TEXTS]]
            return [*texts, *([(f"and {plural(more, 'other text')}", None)] if more > 0 else [])]
        if not self.examples:
            return ()
        ended = self.examples[0].ended if self.category == CLOSE else None
        return [("", ended)] if ended else self.examples[0].values[:EVIDENCE_VALUES]

    def happened(self, characters: int) -> str:
        """The highlights as plain text, each of so many characters."""
        return ", ".join(
            name if value is None else f"{name} {plain_text(value, characters)}".strip()
            for name, value in self.highlights
        )

    @property
    def reason(self) -> str:
        """Why it has its severity, which may differ from that of the rule."""
        return reason(self.severity, self.costs_work) if self.rule is not None else self.severity

    @property
    def query(self) -> str:
        """SQL for all findings of the rule."""
        return f"SELECT * FROM findings WHERE rule_id = '{self.rule_id}' ORDER BY ts"


def cards(facts: Facts, found: Comparison, examples: int, tables: str, rules: Mapping[str, Rule]) -> list[Card]:
    """The broken rules, each with up to `examples` examples: the worst first; within a severity rules that cost work
    first, then the most frequent. A rule that nearly every connection breaks has only one example.

    `tables`: the audited directory, for commands; `rules`: that were checked.
    """
    named = names(facts)
    texts: dict[str, list[tuple[str, int]]] = {}
    for group in facts.groups["texts"].rows:
        texts.setdefault(str(group["rule_id"]), []).append((str(group["text"]), int(group["rows"] or 0)))
    whole = facts.groups["versions"].counted("content")["amqp"]
    status = Counter((known.about["rule_id"], known.status) for known in found.known)
    merged: dict[str, list[Mapping[str, Any]]] = {}
    for group in facts.groups["rules"].rows:
        merged.setdefault(str(group["rule_id"]), []).append(group)
    found_cards = [
        Card(
            rule_id,
            max((str(group["severity"]) for group in groups), key=SEVERITIES.index),
            category=str(groups[0]["category"] or ""),
            summary=str(groups[0]["summary"] or ""),
            reference=str(groups[0]["reference"] or ""),
            findings=sum(group["rows"] for group in groups),
            occurrences=sum(group["occurrences"] for group in groups),
            reserved=sum(group["reserved"] for group in groups),
            new=status[rule_id, "new"],
            persisting=status[rule_id, "persisting"],
            examples=[example(row, tables) for row in facts.examples.get(rule_id, [])[:examples]],
            connections=sum(group.get("connections") or 0 for group in groups),
            of=whole,
            names={name: named.get(rule_id, {}).get(name, []) for name in NAMED},
            texts=texts.get(rule_id, []),
            rule=rules.get(rule_id),
        )
        for rule_id, groups in merged.items()
    ]
    found_cards = [replace(card, examples=card.examples[:1]) if card.common else card for card in found_cards]
    return sorted(found_cards, key=rank)


def rank(card: Card) -> tuple[int, bool, bool, int, str]:
    """The sort key of a card on the page."""
    return -SEVERITIES.index(card.severity), not card.costs_work, card.common, -card.findings, card.rule_id


def most_important(cards: Sequence[Card]) -> list[Card]:
    """The few most important cards: first those that cost work, then the worst, then new ones; no notes. Rules that
    nearly every connection breaks come last."""
    serious = [card for card in cards if card.severity != SEVERITIES[0]]
    worst = sorted(serious, key=lambda card: (card.common, not card.costs_work, *rank(card)[:1], not card.new))
    return worst[:MOST_IMPORTANT]


def names(facts: Facts) -> dict[str, dict[str, list[str]]]:
    """Rule -> NAMED -> the names in all of its findings, the most frequent first."""
    counted: dict[str, dict[str, Counter[str]]] = {}
    which: dict[tuple[str, str], set[str]] = {}
    for group in facts.groups["named"].rows:
        rule_id = str(group["rule_id"])
        of_rule = counted.setdefault(rule_id, {name: Counter() for name in NAMED})
        for name in NAMED:
            if group[name] is not None:
                of_rule[name][str(group[name])] += int(group["rows"] or 0)
        if group["application"] is not None and group["which"] is not None:
            which.setdefault((rule_id, str(group["application"])), set()).add(str(group["which"]))
    complete = not facts.groups["named"].more
    return {
        rule_id: {
            name: [
                label
                for text, _ in found.most_common()
                for label in (
                    with_connections(text, which.get((rule_id, text), ()), complete)
                    if name == "application"
                    else [text]
                )
            ]
            for name, found in of_rule.items()
        }
        for rule_id, of_rule in counted.items()
    }


def with_connections(application: str, which: Collection[str], complete: bool) -> list[str]:
    """An application, and which of its connections are meant (user@address:port), or how many, if it has others.
    `complete`: all of them are in `which`."""
    if not which or not complete:
        return [application]
    if len(which) > FEW_CONNECTIONS:
        return [f"{application} ({count(len(which))} connections)"]
    of_address = all(one.rpartition("@")[2].startswith((f"{application}:", f"[{application}]:")) for one in which)
    return [one if of_address else f"{application} {one}" for one in sorted(which)]


def example(row: Mapping[str, Any], tables: str) -> Example:
    """A finding with its evidence parsed."""
    about = row["rule_id"], row["connection_id"], row["frame_no"]
    return Example(
        row,
        values(row["evidence"]),
        packet_filter(row["packet_no"]),
        connection_filter(row),
        None if row["connection_id"] is None else cut_command(tables, *about),
    )


def values(evidence: str | None) -> list[tuple[str, str]]:
    """Evidence (JSON) as names and values; as one value if it was truncated or is not an object."""
    try:
        found = json.loads(evidence or "{}")
    except ValueError:
        return [("evidence", evidence or "")]
    if not isinstance(found, dict):
        return [("evidence", json_text(found))]
    order = {name: index for index, name in enumerate(BEFORE_OTHERS)}
    ordered = sorted(found.items(), key=lambda item: order.get(item[0], len(order)))
    return [with_unit(name.replace("_", " "), value) for name, value in ordered[:VALUES]]


def with_unit(name: str, value: Any) -> tuple[str, str]:
    """A value of evidence with its name; the unit that ends the name of a number is put behind the number."""
    what, _, unit = name.rpartition(" ")
    if what and unit in UNITS and isinstance(value, int | float):
        return what, f"{json_text(value)} {unit}"
    return name, json_text(value)


def json_text(value: Any) -> str:
    """A JSON value as text: an object as a list of its fields, an array as one of its elements."""
    if isinstance(value, dict) and value:
        return ", ".join(f"{name.replace('_', ' ')} {json_text(part)}" for name, part in value.items())
    if isinstance(value, list) and value:
        return ", ".join(map(json_text, value))
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def packet_filter(packet_no: int | None) -> str | None:
    return None if packet_no is None else f"frame.number == {packet_no:d}"


def connection_filter(ends: Mapping[str, Any]) -> str | None:
    """The display filter for a TCP connection; `ends` has client_ip, client_port, server_ip, server_port."""
    try:
        sides = [(ip_address(ends[f"{side}_ip"]), int(ends[f"{side}_port"])) for side in ("client", "server")]
    except (KeyError, TypeError, ValueError):
        return None
    terms = [f"{'ipv6' if ip.version == 6 else 'ip'}.addr == {ip}" for ip in dict.fromkeys(ip for ip, _ in sides)]
    return " && ".join([*terms, *(f"tcp.port == {port:d}" for port in dict.fromkeys(port for _, port in sides))])


def cut_command(tables: str, rule_id: str, connection_id: int | None, frame_no: int | None) -> str:
    """The command that writes the packets of a finding of `tables` (a directory) to a file, with what Wireshark needs
    to dissect them."""
    reference = "/".join([rule_id, *(str(number) for number in (connection_id, frame_no) if number is not None)])
    return shlex.join(["wirehare", "cut", tables, "--finding", reference, "-o", f"{rule_id}.pcapng"])
