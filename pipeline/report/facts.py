"""The facts of the report, collected by queries with a bounded number of rows.

Coverage of an audit: which rules were checked, and on how many connections.

A rule is checked on a connection of one of its versions if everything is known that the rule needs (`Rule.lacking`). A
finding of an earlier audit is gone if its rule was checked on a connection of the same client, account and server, and
on every other connection that may be one of these; otherwise its state is unknown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any

from pipeline.audit.catalogue import KNOWLEDGE, Rule, with_custom
from pipeline.audit.config import Accepted, Config
from pipeline.audit.rule_program import CONNECTION_KEYS
from pipeline.explain import Answer, explain_worst
from pipeline.report import sections
from pipeline.report.baseline import key
from pipeline.report.grouped_counts import Groups, count_groups

if TYPE_CHECKING:
    from pipeline.explore.duckdb_tables import Session

MOST_ANSWERS = 40
Examples = Mapping[str, list[dict[str, Any]]]  # by rule


@dataclass(frozen=True)
class Facts:
    """`groups`: by the names of the sections in `sections`; `examples`: by rule; `firsts`: the first finding of each
    group of section 'identities', by `baseline.key`; `answers`: what explains the connections that ended worst, and how
    many more there are (`unexplained`).

    `first_ns`, `last_ns`: times of the first and last packet, ns since 1970 UTC; both 0 where there is none.
    """

    groups: Mapping[str, Groups]
    examples: Examples
    first_ns: int
    last_ns: int
    firsts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    answers: Sequence[Answer] | None = None  # None: not looked for
    unexplained: int = 0

    def total(self, section: str, measure: str = "rows") -> int:
        """The sum of a measure over the groups of a section."""
        return sum(int(group[measure] or 0) for group in self.groups[section].rows)


def count(session: Session) -> Facts:
    """All facts of the tables and findings of a session. Raises QueryError."""
    with ThreadPoolExecutor(1) as beside:
        explained = beside.submit(explain_worst, session.cursor(), MOST_ANSWERS) if session.has_variants else None
        facts = _count(session)
        if explained is None:
            return facts
        answers, unexplained = explained.result()
        return replace(facts, answers=answers, unexplained=unexplained)


def _count(session: Session) -> Facts:
    ((first, last),) = (
        row.values()
        for row in session.rows("SELECT epoch_us(min(first_ts)) AS first, epoch_us(max(last_ts)) AS last FROM captures")
    )
    first_ns, last_ns = (first or 0) * 1000, (last or 0) * 1000 + 999 if last else 0
    groups = count_groups(session, sections.sources(first_ns, last_ns))
    examples: dict[str, list[dict[str, Any]]] = {}
    for row in session.rows(sections.FIRST_FINDINGS):
        examples.setdefault(row["rule_id"], []).append(row)
    firsts = {key(row): row for row in session.rows(sections.FIRST_OF_EACH)}
    return Facts(groups, examples, first_ns, last_ns, firsts)


@dataclass(frozen=True)
class Unchecked:
    """A rule that was not checked on `connections` of the `of` connections with its versions, and the reasons."""

    rule_id: str
    summary: str
    connections: int
    of: int
    reasons: tuple[str, ...]

    def entry(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if name != "summary"}


def rules_of(config: Config | None) -> dict[str, Rule]:
    """The rules that an audit checks, by id."""
    settings = config or Config()
    known = with_custom(rule for rule, _ in settings.rules)
    return {name: rule for name, rule in known.items() if not {name, rule.group} & set(settings.disabled)}


def unknown(kind: Mapping[str, Any]) -> tuple[str, ...]:
    """The KNOWLEDGE that is missing for a group of connections (section 'checkable')."""
    return tuple(name for name in KNOWLEDGE if kind[name] == "false")


def unchecked(facts: Facts, rules: Mapping[str, Rule]) -> list[Unchecked]:
    """The rules that were not checked on all connections of their versions; the most affected first."""
    counted = Counter[tuple[str, tuple[str, ...]]]()
    for kind in facts.groups["checkable"].rows:
        counted[str(kind["version"]), unknown(kind)] += int(kind["rows"] or 0)
    found = []
    for rule in rules.values():
        own = {key: number for key, number in counted.items() if key[0] in rule.versions}
        without = {key: number for key, number in own.items() if rule.lacking(key[1])}
        if without:
            lacking = {name for _, missing in without for name in rule.lacking(missing)}
            reasons = tuple(text for name, text in KNOWLEDGE.items() if name in lacking)
            number, of = sum(without.values()), sum(own.values())
            found.append(Unchecked(rule.id, rule.summary, number, of, reasons))
    return sorted(found, key=lambda one: (-one.connections, one.rule_id))


def is_accepted(accepted: Accepted, entry: Mapping[str, Any]) -> bool:
    """Whether an exception accepts this finding of an earlier audit."""
    same = all(getattr(accepted, name) in (None, entry.get(name)) for name in CONNECTION_KEYS)
    return same and accepted.rule == entry.get("rule_id")


def unchecked_on_midstream(facts: Facts, rules: Mapping[str, Rule]) -> int:
    """The number of rules that were not checked on connections that began before the capture."""
    versions = {kind["version"] for kind in facts.groups["checkable"].rows if "start" in unknown(kind)}
    return sum(bool(rule.lacking(("start",)) and versions & {*rule.versions}) for rule in rules.values())


def coverage_check(
    facts: Facts, rules: Mapping[str, Rule], exceptions: Collection[Accepted] = (), today: date | None = None
) -> Callable[[Mapping[str, Any]], bool]:
    """A predicate: whether this audit checked for an entry of an earlier audit. Entries that an exception
    accepts `today` (UTC) were not checked."""
    day = today or datetime.now(UTC).date()
    valid = [accepted for accepted in exceptions if accepted.until >= day]
    kinds = facts.groups["checkable"]
    of_server: dict[Any, list[Mapping[str, Any]]] = {}
    for kind in kinds.rows:
        of_server.setdefault(kind["server"], []).append(kind)

    def was_checked(entry: Mapping[str, Any]) -> bool:
        rule = rules.get(str(entry.get("rule_id")))
        if rule is None or kinds.more or any(is_accepted(accepted, entry) for accepted in valid):
            return False
        if entry.get("server") is None:  # about a capture as a whole
            return facts.groups["files"].total > 0
        likely = [
            (kind, not rule.lacking(unknown(kind)))
            for kind in of_server.get(entry["server"], ())
            if kind["version"] is None or kind["version"] in rule.versions
            if all(kind[name] in (entry.get(name), None) for name in CONNECTION_KEYS)
        ]
        same = [checked for kind, checked in likely if all(kind[name] == entry.get(name) for name in CONNECTION_KEYS)]
        return any(same) and all(checked for _, checked in likely)

    return was_checked
