"""A detector is data: an SQL condition for the rows of a context that break a rule.

Expressions are SQL over the columns of the context (`pipeline.audit.contexts`); '{name}' in them stands for
the parameter of the rule. All detectors on one context are evaluated in one pass over its rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

Sql = str
NEVER = (1 << 63) - 1  # later than any frame or time
LONGEST_NAME = 127  # octets
ODD_OCTETS: Sql = "'[^a-zA-Z0-9_.:-]'"  # in a name


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


def sql_text(value: str) -> Sql:
    """A string literal; Spark substitutes variables, ${name}, even there."""
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'").replace("$", "\\u0024") + "'"
