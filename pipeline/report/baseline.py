"""Comparison of an audit with an earlier one: which findings are new, persisting, gone, or could not be checked.

The JSON of an audit is the baseline of later ones: `formats.document` writes it, `read` parses it. A finding is
identified by its key, a hash of what it is about (`sections.IDENTITY`); the number of occurrences does not matter.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from codec.errors import WirehareError
from pipeline.report.grouped_counts import Groups
from pipeline.report.sections import IDENTITY, SEVERITIES

FORMAT = "wirehare-audit/1"
NEW, PERSISTING = "new", "persisting"
BYTES = 256 << 20  # of a baseline, at most


class BaselineError(WirehareError):
    """The file is not the JSON of an audit; the message is one line that says what was expected."""


@dataclass(frozen=True)
class KnownFinding:
    """All findings with the same key: their number, and the sum of their occurrences.

    `status`: 'new' or 'persisting'; None without a baseline, or if a truncated baseline cannot tell.
    """

    key: str
    about: Mapping[str, Any]
    severity: str
    findings: int
    occurrences: int
    status: str | None = None

    def entry(self) -> dict[str, Any]:
        return {
            "key": self.key,
            **self.about,
            "severity": self.severity,
            "findings": self.findings,
            "occurrences": self.occurrences,
            "status": self.status,
        }


@dataclass(frozen=True)
class Previous:
    """An earlier audit: its findings by key; `complete` False: it had more findings than its JSON lists."""

    entries: Mapping[str, dict[str, Any]]
    complete: bool = True
    audited: str | None = None


@dataclass(frozen=True)
class Comparison:
    """The findings of this audit, and the baseline entries that are `gone` or were `not_checked`; `complete`: no
    finding was left out."""

    known: Sequence[KnownFinding]
    gone: Sequence[dict[str, Any]] = field(default_factory=list)
    complete: bool = True
    previous: Previous | None = None
    not_checked: Sequence[dict[str, Any]] = field(default_factory=list)

    def number(self, status: str) -> int:
        return sum(known.status == status for known in self.known)


def key(about: Mapping[str, Any]) -> str:
    """The key of a finding, equal in all audits: 16 hex digits."""
    parts = json.dumps([about.get(name) for name in IDENTITY])
    return hashlib.sha256(parts.encode()).hexdigest()[:16]


def read(text: str) -> Previous:
    """The audit that `formats.document` wrote. Raises BaselineError."""
    try:
        found = json.loads(text)
        entries = [*found["findings"], *found.get("not_checked", ())]
        if found["format"] != FORMAT:
            raise BaselineError(f"has format {str(found['format'])[:40]!r}; expected {FORMAT!r}")
        if not all(map(_is_entry, entries)) or not isinstance(found.get("audited"), str | None):
            raise TypeError
    except (ValueError, KeyError, TypeError, RecursionError):
        raise BaselineError("is not what `wirehare audit --json` writes") from None
    # What that audit could not check is carried over from the audit before it.
    return Previous({entry["key"]: entry for entry in entries}, bool(found.get("complete", True)), found.get("audited"))


def _is_entry(entry: Any) -> bool:
    """Whether this is what `KnownFinding.entry` makes, as far as an audit reads it."""
    if not isinstance(entry, dict) or not isinstance(entry["key"], str) or not isinstance(entry["rule_id"], str):
        return False
    texts = (entry.get(name) for name in IDENTITY)
    counts = (entry.get(name, 0) for name in ("findings", "occurrences"))
    return (
        all(isinstance(text, str | None) for text in texts)
        and all(type(count) is int and 0 <= count < 1 << 63 for count in counts)
        and entry.get("severity", SEVERITIES[0]) in SEVERITIES
    )


def compare(
    identities: Groups, previous: Previous | None, was_checked: Callable[[Mapping[str, Any]], bool] = lambda entry: True
) -> Comparison:
    """Compare the findings of an audit (section 'identities') with those of an earlier one.

    `was_checked`: whether this audit could have found an entry of the earlier one (`facts.coverage_check`).
    """
    known: dict[str, KnownFinding] = {}
    for group in identities.rows:
        about = {name: group[name] for name in IDENTITY}
        name, severity = key(about), str(group["severity"])
        findings, occurrences = int(group["rows"] or 0), int(group["occurrences"] or 0)
        if name in known:  # the same with a lowered severity, because of a reservation
            before = known[name]
            severity = max(severity, before.severity, key=SEVERITIES.index)
            findings, occurrences = findings + before.findings, occurrences + before.occurrences
        known[name] = KnownFinding(name, about, severity, findings, occurrences, status(name, previous))
    complete = identities.more == 0
    # If this audit was truncated, missing entries may still exist.
    missed = [entry for name, entry in previous.entries.items() if name not in known] if previous and complete else []
    gone = [entry for entry in missed if was_checked(entry)]
    not_checked = [entry for entry in missed if not was_checked(entry)]
    return Comparison(list(known.values()), gone, complete, previous, not_checked)


def status(name: str, previous: Previous | None) -> str | None:
    """Whether a finding is in the baseline."""
    if previous is None:
        return None
    if name in previous.entries:
        return PERSISTING
    return NEW if previous.complete else None


def order(known: KnownFinding) -> tuple[Any, ...]:
    """Sort key: the worst first, then by IDENTITY."""
    return (-SEVERITIES.index(known.severity), *(str(known.about.get(name)) for name in IDENTITY))
