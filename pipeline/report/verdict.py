"""The verdict of an audit: findings by severity, in how many connections, and the sentence that says so."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from pipeline.report.baseline import NEW, PERSISTING, Compared
from pipeline.report.evidence import at_least
from pipeline.report.facts import Facts
from pipeline.report.text import count

# What --fail-on takes: a severity, or 'never'.
NEVER = "never"
NOUNS = {"violation": "violation", "warning": "warning", "info": "note"}


@dataclass(frozen=True)
class Verdict:
    """`failed`: findings of `fail_on` or worse exist. Counts are of findings; `connections`, `affected` of connections:
    all of them, and those with a warning or a violation."""

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

    def document(self) -> dict[str, Any]:
        """As JSON has it."""
        return asdict(self)

    @property
    def worst(self) -> str:
        """The severity that the page shows its colour for; 'clean' when there is nothing but notes."""
        return "violation" if self.violation else "warning" if self.warning else "clean"

    @property
    def sentence(self) -> str:
        """The verdict in words."""
        if not self.connections:
            return "There is no connection in these captures."
        if not self.violation and not self.warning:
            return f"Nothing wrong was found in {counted(self.connections, 'connection')}."
        parts = [
            counted(number, NOUNS[name])
            for name, number in (("violation", self.violation), ("warning", self.warning))
            if number
        ]
        return f"{' and '.join(parts)} in {count(self.affected)} of {counted(self.connections, 'connection')}."


def verdict(facts: Facts, found: Compared, fail_on: str) -> Verdict:
    """What the facts amount to."""
    rules = facts.groups["rules"].rows
    numbers = {
        severity: sum(int(group["rows"] or 0) for group in rules if group["severity"] == severity) for severity in NOUNS
    }
    affected = {str(group["severity"]): int(group["rows"] or 0) for group in facts.groups["affected"].rows}
    compared = found.previous is not None
    return Verdict(
        failed=fail_on != NEVER and any(numbers[severity] for severity in at_least(fail_on)),
        fail_on=fail_on,
        violation=numbers["violation"],
        warning=numbers["warning"],
        info=numbers["info"],
        rules=len({group["rule_id"] for group in rules}),
        connections=facts.total("versions"),
        affected=affected.get("violation", 0) + affected.get("warning", 0),
        new=found.number(NEW) if compared else None,
        persisting=found.number(PERSISTING) if compared else None,
        gone=len(found.gone) if compared else None,
    )


def counted(number: int, noun: str) -> str:
    """1 violation, 2 violations, 12,000 violations."""
    return f"{count(number)} {noun}" if number == 1 else f"{count(number)} {noun}s"
