"""The catalogue of rules: one JSON object a group, rule id -> what is known of the rule.

Fields: `versions`, `severity` ('violation' 'warning' 'info'), `cost` ('work': an operation failed or was interrupted;
ranks first within its severity), `scope` ('connection' 'channel' 'link' 'message': one finding for each
that breaks the rule), `category`, `offender` (who breaks it; null: either), `summary`, `detect` (how it is seen),
`reference`, `why` (what it means, and why it matters), `remedy` (what to do), `settings` (client library or broker, of
SETTINGS -> the name of its setting), `parameters` (thresholds), and what has to be known of a connection: without all
of `needs` the rule is not checked, without all of `prefers` its severity is one step lower (KNOWLEDGE).
`detectors`: the SQL conditions that break it (`pipeline.audit.detectors`).
`beginning`: it is about the handshake, or channels as they were opened, so that a connection that began before the
capture is not checked, though what is seen of it may break the rule (`Rule.lacking`).
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any

from codec.protocol.versions import VERSIONS

SEVERITIES = ("violation", "warning", "info")
COSTS = ("work",)
# Why a rule has its severity.
REASONS = {
    "violation": "the protocol forbids it: peers may refuse it, or understand something else",
    "warning": "it causes trouble now, or will later",
    "info": "worth knowing; nothing is wrong by itself",
}
WORK = "an operation failed or was interrupted, so it ranks first within its severity"
# Whose settings a rule may name.
SETTINGS = ("pika", "RabbitMQ Java", ".NET", "Spring", "Qpid", "RabbitMQ")
SCOPES = ("connection", "channel", "link", "message")
# What may be known of a connection -> remark on a finding that was made without it.
KNOWLEDGE = {
    "start": "capture began mid-stream",
    "complete": "bytes are missing",
    "both": "one direction only",
    "order": "segments out of order",
}
# Whether it is known of a connection: SQL over table connections (`complete` needs frames).
KNOWN = {
    # Without its protocol header, the bytes of a client that was answered inside of TLS begin later: they were in early
    # data that the server refused, or the secrets do not open them.
    "start": (
        "len(list_filter(versions_offered, lambda v: v LIKE 'client %')) > 0 OR roles_from = 'syn' "
        "AND NOT (coalesce(tls.decrypted, false) AND coalesce(server_frames, 0) > 0)"
    ),
    "both": "client_packets > 0 AND server_packets > 0",
    "order": "out_of_order_segments = 0 AND NOT coalesce(list_contains(limits, 'order of both sides'), false)",
}

# Groups of rules, as their ids begin.
GROUPS = {
    "CAP": "What the capture itself lacks",
    "NEG": "Protocol headers and versions",
    "HS": "The handshake, from start to open-ok",
    "SEC": "Security",
    "TLS": "Encryption: versions, suites, certificates",
    "HB": "Heartbeats",
    "FR": "Frames, and how arguments are laid out in them",
    "MT": "Methods: who may send them, and which reply belongs to which request",
    "CH": "Opening, using and closing channels",
    "CO": "Consumers",
    "CT": "Contents, and what properties say",
    "DL": "Deliveries and their settlement",
    "CF": "Publisher confirms",
    "TX": "Transactions",
    "FL": "Flow control and blocked connections",
    "NM": "Names of exchanges and queues, and what they stand for",
    "CL": "How connections are closed",
    "T10": "AMQP 0-10: frames, sessions, commands and subscriptions",
    "L10": "AMQP 1.0: frames, sessions, links, deliveries and transactions",
    "R4": "Ready for RabbitMQ 4: what its releases refuse",
    "PR": "Habits that cost",
}
ALL_VERSIONS = tuple(filter(None, VERSIONS))
REMOVED = "removed.json"
Number = int | float


@dataclass(frozen=True, kw_only=True)
class Rule:
    """One rule; the fields are those of the catalogue. Raises ValueError for an unknown severity, scope, version or
    knowledge."""

    id: str
    severity: str
    scope: str
    summary: str
    versions: tuple[str, ...] = ALL_VERSIONS
    category: str = "house"
    cost: str | None = None
    offender: str | None = None
    detect: str = ""
    reference: str = ""
    why: str = ""
    remedy: str = ""
    settings: Mapping[str, str] = field(default_factory=dict)
    parameters: Mapping[str, Number] = field(default_factory=dict)
    needs: tuple[str, ...] = ()
    beginning: bool = False
    prefers: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for known, given in (
            (SEVERITIES, (self.severity,)),
            (COSTS, (self.cost,) if self.cost else ()),
            (SCOPES, (self.scope,)),
            (ALL_VERSIONS, self.versions),
            (SETTINGS, self.settings),
            (KNOWLEDGE, self.needs),
            (KNOWLEDGE, self.prefers),
        ):
            for word in given:
                if word not in known:
                    raise ValueError(f"rule {self.id}: {word!r} is none of {', '.join(known)}")

    @property
    def group(self) -> str:
        return self.id.split("-")[0]

    @property
    def reason(self) -> str:
        """Why it has its severity."""
        return reason(self.severity, self.cost is not None)

    def lacking(self, unknown: Collection[str]) -> tuple[str, ...]:
        """Which `unknown` KNOWLEDGE of a connection prevents checking this rule on it."""
        required = {*self.needs, *(("start",) if self.beginning else ())}
        return tuple(name for name in KNOWLEDGE if name in required and name in unknown)


def reason(severity: str, costs_work: bool) -> str:
    """Why something has this severity."""
    return f"{REASONS[severity]}{f'; {WORK}' if costs_work else ''}"


def rule_of(name: str, entry: Mapping[str, Any]) -> Rule:
    """An entry of a catalogue file as a Rule."""
    lists = {field: tuple(entry.get(field, ())) for field in ("versions", "needs", "prefers")}
    return Rule(**{"parameters": {}, **{key: entry[key] for key in entry if key != "detectors"}, **lists, "id": name})


@cache
def entries() -> Mapping[str, Mapping[str, Any]]:
    """The entries of the catalogue files by id, group by group, in the order of their files."""
    found: dict[str, Mapping[str, Any]] = {}
    files = (
        file for file in resources.files(__name__).iterdir() if file.name.endswith(".json") and file.name != REMOVED
    )
    for file in sorted(files, key=lambda file: file.name):
        found |= json.loads(file.read_text("utf-8"))
    return found


@cache
def catalogue() -> Mapping[str, Rule]:
    """All rules by id, in the order of `entries`."""
    return {name: rule_of(name, entry) for name, entry in entries().items()}


def with_custom(additional: Iterable[Rule]) -> Mapping[str, Rule]:
    """All rules by id: those of the catalogue, then the additional ones."""
    return {**catalogue(), **{rule.id: rule for rule in additional}}


def names_of(rules: Mapping[str, Rule]) -> set[str]:
    """The ids and groups of rules, by which they are selected."""
    return {*rules, *(rule.group for rule in rules.values())}


@cache
def removed() -> Mapping[str, str]:
    """Rules that no capture can decide, each with the reason."""
    reasons: dict[str, str] = json.loads(resources.files(__name__).joinpath(REMOVED).read_text("utf-8"))
    return reasons
