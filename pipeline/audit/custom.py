"""Custom rules: data, as those of the catalogue, over the tables.

    names = Rule(id="HOUSE-01", severity="warning", scope="channel", summary="A queue is not named TEAM.PURPOSE.")
    found = Detector("HOUSE-01", "methods", "name = 'queue.declare' AND queue NOT LIKE '%.%'", {"observed": "queue"})
    pipeline.findings(tables, extra=[(names, found)])

In a configuration file (`config`) a rule is a TOML table with the keys in RULE and DETECTOR:

    [rules."HOUSE-01"]
    severity = "warning"
    scope = "channel"
    summary = "A queue is not named TEAM.PURPOSE."
    table = "methods"
    when = "name = 'queue.declare' AND queue NOT LIKE '%.%'"
    evidence = { observed = "queue" }

The context of a custom rule is a whole table with all of its columns, and `version` if it has none; 'connections' is
the context of the catalogue, with `frame_no` and `ts_ns`. The other contexts of the catalogue are not available: they
leave out rows that no rule of the catalogue can be about.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pipeline.audit.catalogue import Rule, catalogue
from pipeline.audit.detector import Detector

if TYPE_CHECKING:
    from pipeline.audit.contexts.sources import Sources

# Tables whose rows belong to one connection.
CONTEXTS = ("frames", "streams", "connections", "channels", "links", "methods", "messages")
# No '/': `wirehare cut --finding` divides there. No hyphen first: a command line takes that for an option.
RULE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]*")

# Keys of a rule in a file that become fields of `Rule` and `Detector`, with their types. Elements of lists and values
# of tables are texts; parameters are numbers.
RULE: Mapping[str, type] = {
    "severity": str, "scope": str, "summary": str, "versions": list, "category": str, "offender": str,
    "reference": str, "parameters": dict, "needs": list, "prefers": list,
}  # fmt: skip
DETECTOR: Mapping[str, type] = {
    "table": str, "when": str, "evidence": dict, "frame": str, "at_ns": str, "occurrences": str, "thing": str,
}  # fmt: skip
REQUIRED = ("severity", "scope", "summary", "table", "when")
EXPECTED: Mapping[type, str] = {str: "a text", list: "a list of texts", dict: "a table"}


def parse_rule(name: str, entry: Any) -> tuple[Rule, Detector]:
    """A rule from its TOML table, with its detector. Raises ValueError."""
    if not isinstance(entry, dict):
        raise ValueError(f"rules.{name}: expected a table")
    kinds = {**RULE, **DETECTOR}
    for key, value in entry.items():
        if key not in kinds:
            raise ValueError(f"rules.{name}: no key {key!r}; expected some of {', '.join(kinds)}")
        number = key == "parameters"
        parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        fits = all(is_number(part) if number else isinstance(part, str) for part in parts)
        if not isinstance(value, kinds[key]) or not fits:
            expected = "numbers by name" if number else EXPECTED[kinds[key]]
            raise ValueError(f"rules.{name}.{key}: expected {expected}")
    for key in REQUIRED:
        if key not in entry:
            raise ValueError(f"rules.{name}: has no {key!r}")
    values: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()}
    about = {key: value for key, value in values.items() if key in RULE}
    search = {"context" if key == "table" else key: value for key, value in values.items() if key in DETECTOR}
    return Rule(id=name, **about), Detector(name, **search)


def is_number(value: Any) -> bool:
    """Whether a value is a valid threshold."""
    return not isinstance(value, bool) and isinstance(value, int | float) and 0 <= value < 2**31


def validate(extra: Iterable[tuple[Rule, Detector]]) -> tuple[Mapping[str, Rule], list[Detector]]:
    """The rules by id, and the detectors. Raises ValueError for an invalid pair."""
    rules: dict[str, Rule] = {}
    detectors = []
    for rule, detector in extra:
        if not RULE_ID.fullmatch(rule.id) or rule.id in catalogue():
            raise ValueError(
                f"rule {rule.id!r}: expected letters, digits and hyphens, no hyphen first, and no id of the catalogue"
            )
        if rules.setdefault(rule.id, rule) != rule:
            raise ValueError(f"rule {rule.id} is there twice, and is not the same")
        if detector.rule != rule.id:
            raise ValueError(f"rule {rule.id}: its detector is one of {detector.rule!r}")
        if detector.context not in CONTEXTS:
            raise ValueError(f"rule {rule.id}: no context {detector.context!r}; expected one of {', '.join(CONTEXTS)}")
        detectors.append(detector)
    return rules, detectors


def context(sources: Sources, table: str) -> DataFrame:
    """The rows of a table as detectors read them."""
    if table == "connections":
        return sources.connections
    rows: DataFrame = getattr(sources.tables, table)
    if "version" in rows.columns:
        return rows
    return rows.join(F.broadcast(sources.connections.select("connection_id", "version")), "connection_id", "left")
