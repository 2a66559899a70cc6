"""Detectors: SQL conditions for the rows of a context that break a rule, and those of the catalogue.

Expressions are SQL over the columns of the context (`pipeline.audit.contexts`); '{name}' in them stands for the
parameter of the rule. All detectors on one context are evaluated in one pass over its rows.

Keys of `detectors` in the catalogue are the fields of `Detector`, and besides

    like       a template of `definitions.json`: values that the detector does not give itself, and more evidence
    as         the id of another rule: its detectors
    each_side  two detectors: {side} is 'client' and {other} 'server', and the other way round
    note       a comment

A long SQL text may be a list of its lines. '{NAME}' in it stands for SQL of `definitions.json`, or of FROM_FACT_TABLES;
'{NAME(argument)}' for the same with the argument in place of each '{}'. That is text, only of the catalogue, and no
macro of DuckDB, because a macro sees the columns that it is given and no others, and because what a condition looks for
(`engine.guards_of`) is read from the condition itself.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any

from codec.names import CLASSIC_VERSIONS
from codec.protocol.classic_tables import methods
from codec.protocol.versions import fact_table
from pipeline.audit.catalogue import entries

Sql = str
NEVER = (1 << 63) - 1  # later than any frame or time
LONGEST_NAME = 127  # bytes
ODD_BYTES: Sql = "'[^a-zA-Z0-9_.:-]'"  # in a name


@dataclass(frozen=True)
class Detector:
    """`when`: true on a row of `context` that breaks `rule`.

    `evidence`: name -> value to show ('observed', 'expected', 'negotiated', or the name of the value); nulls are left
    out. `frame`, `at_ns`: the frame of the finding and its time; bytes missing before `at_ns` make the finding
    uncertain. `row`: a struct with both of them as `frame_no` and `ts_ns`. `offender`, `severity`: override the
    catalogue unless null. `occurrences`: how many times the row breaks the rule. `thing`: the message or link, for
    rules of that scope. `scope`: 'capture' if rows belong to no connection; overrides the catalogue, and `thing` is the
    URI of the capture.
    """

    rule: str
    context: str
    when: Sql
    evidence: Mapping[str, Sql] = field(default_factory=dict)
    frame: Sql = "frame_no"
    at_ns: Sql = "ts_ns"
    offender: Sql = "null"
    severity: Sql = "null"
    occurrences: Sql = "1"
    thing: Sql = "coalesce(content_frame_no, frame_no)"
    scope: str | None = None
    row: Sql | None = None


def sql_in(value: Sql, words: Iterable[str]) -> Sql:
    """True if `value` is one of the words."""
    return f"{value} IN ('" + "', '".join(words) + "')"


DEFINITIONS: Mapping[str, Mapping[str, Any]] = json.loads(
    resources.files("pipeline.audit").joinpath("definitions.json").read_text("utf-8")
)
REFERENCE = re.compile(r"\{([A-Z][A-Z0-9_]*)(?:\(([^{}]*)\))?\}")
SIDES = {"client": "server", "server": "client"}


def _reply_codes(version: str, kind: str) -> Iterable[int]:
    """The reply codes of a class or kind, extensions of brokers included."""
    facts = fact_table(version)
    constants = [*facts["constants"], *facts.get("extension_constants", [])]
    return {c["value"] for c in constants if kind in (c.get("class"), c.get("kind", "reply-code"))}


def _is_reply_code(kind: str) -> Sql:
    """True if the argument is one of them in the row's version."""
    cases = (f"WHEN '{version}' THEN {{}} IN ({_list(_reply_codes(version, kind))})" for version in CLASSIC_VERSIONS)
    return f"coalesce(CASE version {' '.join(cases)} END, false)"


def _wrong_side() -> Sql:
    """True on methods that their sender may not send in their version."""
    cases = (
        f"WHEN version = '{version}' AND sender = '{sender}' THEN "
        f"name IN ({_list(m.name for m in methods(version) if m.sent_by == other)})"
        for version in CLASSIC_VERSIONS
        for sender, other in SIDES.items()
    )
    return f"coalesce(CASE {' '.join(cases)} END, false)"


def _work_in_progress() -> Sql:
    """The methods that the 0-9 document labels so."""
    classes = fact_table("0-9")["classes"]
    labelled = (
        f"{of_class['name']}.{method['name']}"
        for of_class in classes
        for method in of_class["methods"]
        if of_class.get("work_in_progress") or method.get("work_in_progress")
    )
    return _list(labelled)


def _list(values: Iterable[int] | Iterable[str]) -> Sql:
    return ", ".join(map(repr, sorted({*values})))


# What the fact tables of the versions say, as SQL.
FROM_FACT_TABLES: Mapping[str, Callable[[], Sql]] = {
    "REPLY_CODE": lambda: _is_reply_code("reply-code"),
    "HARD_ERROR": lambda: _is_reply_code("hard-error"),
    "SOFT_ERROR_CODES": lambda: _list(code for v in CLASSIC_VERSIONS for code in _reply_codes(v, "soft-error")),
    "WRONG_SIDE": _wrong_side,
    "WORK_IN_PROGRESS": _work_in_progress,
    "LONGEST_NAME": lambda: str(LONGEST_NAME),
    "ODD_BYTES": lambda: ODD_BYTES,
}


@cache
def _definition(name: str) -> Sql:
    if name in FROM_FACT_TABLES:
        return FROM_FACT_TABLES[name]()
    return expanded(DEFINITIONS["sql"][name]["sql"])


def expanded(text: str | list[str], side: str = "", other: str = "") -> Sql:
    """SQL of the catalogue with the sides and definitions in place of references."""
    sql = text if isinstance(text, str) else " ".join(text)
    sql = sql.replace("{side}", side).replace("{other}", other)
    while REFERENCE.search(sql):
        sql = REFERENCE.sub(lambda found: _definition(found[1]).replace("{}", found[2] or "{}"), sql)
    return sql


def detectors_of(rule: str, found: Mapping[str, Any]) -> Iterator[Detector]:
    """The detectors that one element of `detectors` describes."""
    if "as" in found:
        for other in entries()[found["as"]]["detectors"]:
            yield from detectors_of(rule, other)
        return
    template: Mapping[str, Any] = DEFINITIONS["templates"][found["like"]] if "like" in found else {}
    values = {
        **template,
        **{key: value for key, value in found.items() if key not in ("like", "note", "each_side")},
        "evidence": {**template.get("evidence", {}), **found.get("evidence", {})},
    }
    for sides in SIDES.items() if found.get("each_side") else [("", "")]:
        texts = {key: expanded(value, *sides) for key, value in values.items() if key != "evidence"}
        evidence = {key: expanded(value, *sides) for key, value in values["evidence"].items()}
        yield Detector(rule, evidence=evidence, **texts)


DETECTORS: tuple[Detector, ...] = tuple(
    detector
    for rule, entry in entries().items()
    for found in entry["detectors"]
    for detector in detectors_of(rule, found)
)
