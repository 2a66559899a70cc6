"""The verdict of an audit: findings by severity, affected connections, what could not be checked, as numbers and
sentences."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pipeline.audit.catalogue import Rule
from pipeline.report.baseline import NEW, PERSISTING, Comparison
from pipeline.report.facts import Facts, unchecked_on_midstream
from pipeline.report.sections import at_least
from pipeline.text import count, plural

# What --fail-on takes: a severity, or 'never'.
NEVER = "never"
# Contents of connections (column `content`) of which no frame is read.
UNREAD = ("tls", "foreign", "none")
NOUNS = {"violation": "violation", "warning": "warning", "info": "note"}


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


def verdict(facts: Facts, found: Comparison, fail_on: str, rules: Mapping[str, Rule]) -> Verdict:
    """The verdict on the facts. `rules`: that were checked."""
    broken = facts.groups["rules"]
    numbers, affected = broken.counted("severity"), facts.groups["affected"].counted("severity")
    contents = facts.groups["versions"].counted("content")
    compared = found.previous is not None
    return Verdict(
        failed=fail_on != NEVER and any(numbers[severity] for severity in at_least(fail_on)),
        fail_on=fail_on,
        violation=numbers["violation"],
        warning=numbers["warning"],
        info=numbers["info"],
        rules=len(broken.counted("rule_id")),
        connections=facts.total("versions"),
        affected=affected["violation"] + affected["warning"],
        new=found.number(NEW) if compared else None,
        persisting=found.number(PERSISTING) if compared else None,
        gone=len(found.gone) if compared else None,
        amqp=sum(number for content, number in contents.items() if content not in UNREAD),
        encrypted=contents["tls"],
        begun_before=facts.total("versions", "begun_before"),
        rules_not_checked=unchecked_on_midstream(facts, rules),
        not_checked=len(found.not_checked) if compared else None,
    )
