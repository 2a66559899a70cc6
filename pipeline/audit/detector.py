"""What a detector is: data that says which rows of a context break a rule, in SQL.

Expressions are SQL over the columns of the context (`pipeline.audit.contexts.registry`); '{name}' in them stands for
the parameter of the rule. All detectors on one context are evaluated in one pass over its rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

Sql = str


@dataclass(frozen=True)
class Detector:
    """`when`: true on a row of `context` that breaks `rule`.

    `evidence`: name -> what to show ('observed', 'expected', 'negotiated', or the name of the value); nulls are left
    out. `frame`, `at_ns`: the frame to open and its time; loss up to `at_ns` makes the finding unsure. `offender`,
    `severity`: where they differ from the catalogue's (null: the catalogue's). `occurrences`: how often the row
    offends. `thing`: which message or link, for rules of that scope. `scope`: 'capture' where rows belong to no
    connection, whatever the catalogue says; `thing` is the URI of the capture then.
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


@dataclass(frozen=True)
class State:
    """What earlier methods of the same channel say to a row of context 'events': an aggregate in SQL over the rows
    before it.

    `by`: 'channel' (connection and channel), 'direction' (and sender), 'connection'. `layer`: a state of layer 2 may
    read those of layer 1.
    """

    value: Sql
    by: str = "channel"
    layer: int = 1
