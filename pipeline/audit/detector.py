"""A detector is data: an SQL condition for the rows of a context that break a rule.

Expressions are SQL over the columns of the context (`pipeline.audit.contexts.sources`); '{name}' in them stands for
the parameter of the rule. All detectors on one context are evaluated in one pass over its rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

Sql = str


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


@dataclass(frozen=True)
class State:
    """State of a channel for a row of context 'events': an SQL aggregate over the earlier rows.

    `by`: 'channel' (connection and channel), 'direction' (and sender), 'connection'. `layer`: a state of layer 2 may
    read those of layer 1.
    """

    value: Sql
    by: str = "channel"
    layer: int = 1
