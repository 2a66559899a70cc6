"""What one side of a comparison has: facts, samples and shares by application, queue and exchange.

What is observed is data (`measures.json`) over the relations of `observations.sql`, in DuckDB.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from codec.errors import WirehareError
from pipeline.diff.statistics import Sample
from udfs.findings.program import quoted

if TYPE_CHECKING:
    from pipeline.explore.duckdb_tables import Session

MOST_VALUES = 20  # of a fact; with more of them it is no setting
UNITS = 64
MOST_SUBJECTS = 200  # those with most messages: a change is resampled for each
MOST_NOTES = 3  # on names
SUBJECT = "application"
# Relations with a subject that an application publishes to or consumes from: which of these a row is about, in SQL.
OPERATIONS = {
    "message_counts": "r.operation",
    "headers": "'publish'",
    "message_properties": "'publish'",
    "published": "'publish'",
    "link_facts": "if(kind = 'sender', 'publish', 'deliver')",
    "histograms": "if(measure IN ('confirm_latency', 'body_size', 'rpc_latency'), 'publish', 'deliver')",
}
ARGUMENT = "argument"  # the measure that has an entry for each argument of a method


class DiffError(WirehareError):
    """The comparison cannot be made: a package is missing, or a threshold names no measure."""


class Measure(NamedTuple):
    """One entry of `measures.json`, which says what its parts mean."""

    id: str
    title: str
    weight: int
    value: str = ""
    part: str = ""
    of: str | None = None
    source: str = "histograms"
    subject: str = SUBJECT
    item: str = "NULL"
    group: str | None = None
    when: str = "true"
    varies: bool = False
    shared: bool = False
    same_load: bool = False
    least: float = 0.0
    floor: float = 0.0
    unit: str = ""
    part_of: str = ""


class Key(NamedTuple):
    """What is compared: the measure by its id, about whom, which of several things, and in which family of versions
    ('' if it means the same in all)."""

    measure: str
    subject: str
    item: str
    family: str


@dataclass(frozen=True)
class Proof:
    """Where to look: a connection, and a frame of it where there is one."""

    connection_id: int | None = None
    capture_file: str | None = None
    frame_no: int | None = None
    packet_no: int | None = None


NO_PROOF = Proof()


@dataclass
class Side:
    """What one side has: of facts the connections by value, of rates and distributions samples."""

    facts: dict[Key, dict[str, tuple[int, Proof]]] = field(default_factory=lambda: defaultdict(dict))
    stating: dict[Key, int] = field(default_factory=dict)
    asked: dict[Key, int] = field(default_factory=dict)  # key with the group as item -> connections
    groups: dict[Key, str] = field(default_factory=dict)
    samples: dict[Key, Sample] = field(default_factory=dict)
    proofs: dict[Key, Proof] = field(default_factory=dict)
    load: dict[str, float] = field(default_factory=dict)
    messages: dict[str, float] = field(default_factory=dict)
    subjects: dict[str, tuple[int, int, Proof]] = field(default_factory=dict)  # connections, connections of the side
    does: dict[str, set[tuple[str, str]]] = field(default_factory=lambda: defaultdict(set))  # 'publish', 'queue x'
    errors: dict[Key, tuple[int, int, float, Proof]] = field(default_factory=dict)  # n, connections, hours of all
    connections: dict[str, int] = field(default_factory=dict)
    hours: dict[str, float] = field(default_factory=dict)
    has_findings: bool = False
    former_names: dict[str, str] = field(default_factory=dict)  # of applications: name -> name on the other side

    def sample(self, key: Key) -> Sample | None:
        """The sample of a key; of an item that did not occur here zeros, if others of its kind could have."""
        if key in self.samples:
            return self.samples[key]
        others = self.samples.get(key._replace(item=""))
        return others and replace(others, part=np.zeros_like(others.part))

    def proof(self, key: Key) -> Proof:
        return self.proofs.get(key) or self.proofs.get(key._replace(item="")) or Proof()


@cache
def measures(kind: str) -> dict[str, Measure]:
    """The measures of a kind ('facts', 'rates', 'distributions') by their ids."""
    entries = json.loads(_text("measures.json"))[kind]
    renamed = ({("source" if name == "from" else name): value for name, value in entry.items()} for entry in entries)
    return {entry["id"]: Measure(**entry) for entry in renamed}


def _text(name: str) -> str:
    return files(__package__).joinpath(name).read_text("utf-8")


def observe(before: Session, after: Session) -> tuple[Side, Side, list[str]]:
    """Make the relations of `observations.sql`, and read what the measures need; with notes on what is compared with
    something of another name."""
    old, new = Side(), Side()
    for session, side in ((before, old), (after, new)):
        session.rows(_text("observations.sql"))
        _observe_whole(session, side)
    notes = [*renamed(old, new)]
    elsewhere = [*moved(old, new)]
    for session, side in ((before, old), (after, new)):
        _merge(session, side, elsewhere)
        _observe_facts(session, side)
        _observe_samples(session, side)
    _rename(new, new.former_names)
    notes += [str(each) for each in elsewhere[:MOST_NOTES]]
    if len(elsewhere) > MOST_NOTES:
        notes.append(f"So do {len(elsewhere) - MOST_NOTES:,} more.")
    return old, new, notes


class Moved(NamedTuple):
    """An application publishes to, or consumes from, something else afterwards."""

    application: str
    operation: str
    before: Sequence[str]
    after: Sequence[str]

    def __str__(self) -> str:
        verb = "publishes to" if self.operation == "publish" else "receives from"
        before, after = (
            f"{names[0]!r}" + (f" and {len(names) - 1:,} more" if len(names) > 1 else "")
            for names in (self.before, self.after)
        )
        return f"{self.application!r} {verb} {after} after, and {before} before: compared as one."


def moved(old: Side, new: Side) -> Iterator[Moved]:
    """Where an application uses queues, exchanges or addresses that the other side's does not, on both sides: after a
    move from 0-9-1 to 1.0 an exchange is an address."""
    for name in sorted(old.does.keys() & new.does.keys()):
        for operation in ("publish", "deliver"):
            gone, come = (
                sorted(subject for done, subject in one.does[name] - other.does[name] if done == operation)
                for one, other in ((old, new), (new, old))
            )
            if gone and come:
                yield Moved(name, operation, gone, come)


def _merge(session: Session, side: Side, elsewhere: Sequence[Moved]) -> None:
    """Observe an application's messages as a whole where it uses something else than on the other side."""
    if not elsewhere:
        return
    names = {name: former for former, name in side.former_names.items()}
    rows = [
        (names.get(each.application, each.application), each.operation, subject)
        for each in elsewhere
        for subject in (*each.before, *each.after)
    ]
    session.execute(
        "CREATE OR REPLACE TEMP TABLE moved AS SELECT row[1] AS of, row[2] AS operation, row[3] AS subject "
        f"FROM (SELECT unnest(from_json({quoted(json.dumps(rows))}, '[[\"VARCHAR\"]]')) AS row)"
    )
    for relation, operation in OPERATIONS.items():
        session.execute(
            f"UPDATE {relation} AS r SET subject = NULL FROM moved AS m "
            f"WHERE r.application = m.of AND {operation} = m.operation AND r.subject = m.subject"
        )


def _family(measure: Measure) -> str:
    return "''" if measure.shared else "coalesce(family, '')"


def _observe_facts(session: Session, side: Side) -> None:
    found = measures("facts").values()
    rows = " UNION ALL ".join(
        f"SELECT '{each.id}' AS measure, {each.subject} AS subject, coalesce({each.item}, '') AS item, "
        f"{_family(each)} AS family, {each.group or 'NULL'} AS grouped, ({each.value})::VARCHAR AS value, "
        f"connection_id, frame_no, packet_no FROM {each.source} WHERE {each.when}"
        for each in found
    )
    proof = "{'connection_id': connection_id, 'frame_no': frame_no, 'packet_no': packet_no}"
    query = f"""SELECT measure, subject, item, family, any_value(grouped) AS grouped, value, grouping(value) AS whole,
        count(DISTINCT connection_id) AS n, min({proof}) AS proof
        FROM ({rows}) WHERE value IS NOT NULL AND subject IS NOT NULL
        GROUP BY GROUPING SETS ((measure, subject, item, family, value), (measure, subject, item, family))"""
    for row in session.rows(query):
        key = Key(row["measure"], row["subject"], row["item"], row["family"])
        if row["whole"]:
            side.stating[key] = row["n"]
            if row["grouped"] is not None:
                side.groups[key] = row["grouped"]
        else:
            side.facts[key][row["value"]] = row["n"], Proof(**row["proof"])
    asked = " UNION ALL ".join(
        f"SELECT '{each.id}' AS measure, {each.subject} AS subject, {each.group} AS grouped, "
        f"{_family(each)} AS family, connection_id FROM {each.of or each.source} WHERE {each.when}"
        for each in found
        if each.group is not None
    )
    query = f"SELECT measure, subject, grouped, family, count(DISTINCT connection_id) AS n FROM ({asked}) GROUP BY ALL"
    for row in session.rows(query):
        side.asked[Key(row["measure"], row["subject"], row["grouped"], row["family"])] = row["n"]


def _with_units(rows: str) -> str:
    """The rows with their unit: connections, of many the groups of UNITS, of few their parts. Of times it is a slice of
    the capture where there are few connections or few slices: what disturbs a second disturbs all its messages."""
    return f"""SELECT *, CASE WHEN least(n, slices) <= 8 AND slice IS NOT NULL THEN slice
            WHEN n > {UNITS} THEN k % {UNITS} WHEN n > 8 THEN k
            ELSE k * 16 + block // CASE WHEN n > 4 THEN 8 WHEN n > 2 THEN 4 WHEN n > 1 THEN 2 ELSE 1 END END AS unit
        FROM (SELECT *, max(k) OVER (PARTITION BY measure, subject, item, family) AS n,
                     max(j) OVER (PARTITION BY measure, subject, item, family) AS slices
              FROM (SELECT *, dense_rank() OVER (
                        PARTITION BY measure, subject, item, family ORDER BY connection_id) AS k,
                        dense_rank() OVER (PARTITION BY measure, subject, item, family ORDER BY slice) AS j
                    FROM ({rows}) WHERE subject IS NOT NULL))"""


def _observe_samples(session: Session, side: Side) -> None:
    rates = " UNION ALL ".join(
        f"SELECT '{each.id}' AS measure, {each.subject} AS subject, coalesce({each.item}, '') AS item, "
        f"{_family(each)} AS family, connection_id, block, NULL::INTEGER AS slice, "
        f"coalesce(({each.part})::DOUBLE, 0) AS part, coalesce(({each.of})::DOUBLE, 0) AS of "
        f"FROM {each.source} WHERE {each.when}"
        for each in measures("rates").values()
    )
    query = f"""SELECT measure, subject, item, family, list(part) AS part, list(of) AS of, max(n) AS connections,
            arg_max(connection_id, of) AS connection_id
        FROM (SELECT measure, subject, item, family, unit, max(n) AS n, sum(part) AS part, sum(of) AS of,
                     arg_max(connection_id, of) AS connection_id
              FROM ({_with_units(rates)}) GROUP BY ALL HAVING sum(of) > 0)
        GROUP BY ALL"""
    for row in session.rows(query):
        key = Key(row["measure"], row["subject"], row["item"], row["family"])
        side.samples[key] = Sample(np.array(row["part"]), np.array(row["of"]), connections=row["connections"])
        side.proofs[key] = Proof(row["connection_id"])
    distributions = " UNION ALL ".join(
        f"SELECT measure, {each.subject} AS subject, coalesce({each.item}, '') AS item, {_family(each)} AS family, "
        f"connection_id, block, slice, bin, n AS times FROM histograms WHERE measure = '{each.id}'"
        for each in measures("distributions").values()
    )
    query = f"""SELECT measure, subject, item, family, list(unit) AS unit, list(bin) AS bin, list(times) AS times,
            max(n) AS connections, arg_max(connection_id, times) AS connection_id
        FROM (SELECT measure, subject, item, family, unit, bin, sum(times) AS times, max(n) AS n,
                     arg_max(connection_id, times) AS connection_id
              FROM ({_with_units(distributions)}) GROUP BY ALL)
        GROUP BY ALL"""
    for row in session.rows(query):
        key = Key(row["measure"], row["subject"], row["item"], row["family"])
        bins = np.array(row["bin"])
        names, at = np.unique(np.array(row["unit"]), return_inverse=True)
        counts = np.zeros((len(names), int(bins.max() - bins.min()) + 1))
        np.add.at(counts, (at, bins - bins.min()), np.array(row["times"], float))
        side.samples[key] = Sample(counts=counts, first=int(bins.min()), connections=row["connections"])
        side.proofs[key] = Proof(row["connection_id"])


def _observe_whole(session: Session, side: Side) -> None:
    """Applications, queues, exchanges and addresses; their messages and load; errors."""
    query = """SELECT application, count(*) AS n, sum(length_ns) / 3.6e12 AS hours, min(connection_id) AS connection_id
               FROM peers GROUP BY 1"""
    for row in session.rows(query):
        side.connections[row["application"]] = row["n"]
        side.hours[row["application"]] = row["hours"]
    total = sum(side.connections.values())
    for row in session.rows(
        """SELECT subject, sum(messages)::DOUBLE AS messages, sum(messages) / (sum(length_ns) / 1e9) AS load,
                  count(*) AS n, min(connection_id) AS connection_id
           FROM (SELECT connection_id, coalesce(subject, '') AS subject, sum(messages) AS messages
                 FROM (SELECT connection_id, subject, messages FROM message_counts WHERE subject IS NOT NULL UNION ALL
                       SELECT connection_id, application, messages FROM message_counts) GROUP BY ALL)
                JOIN members USING (connection_id) GROUP BY 1"""
    ):
        side.messages[row["subject"]] = row["messages"]
        side.load[row["subject"]] = row["load"]
        if row["subject"] not in side.connections:
            side.subjects[row["subject"]] = row["n"], total, Proof(row["connection_id"])
    for row in session.rows("SELECT application, min(connection_id) AS connection_id FROM peers GROUP BY 1"):
        name = row["application"]
        side.subjects[name] = side.connections[name], total, Proof(row["connection_id"])
    for row in session.rows(
        "SELECT DISTINCT application, operation, subject FROM message_counts WHERE subject IS NOT NULL"
    ):
        side.does[row["application"]].add((row["operation"], row["subject"]))
    for row in session.rows(
        """SELECT application, item, sum(n)::BIGINT AS n, count(*) AS connections,
                  min({'connection_id': connection_id, 'frame_no': frame_no, 'packet_no': packet_no}) AS proof
           FROM errors GROUP BY ALL"""
    ):
        key = Key("errors", row["application"], row["item"], "")
        side.errors[key] = row["n"], row["connections"], side.hours[row["application"]], Proof(**row["proof"])
    side.has_findings = bool(session.rows("SELECT 1 FROM findings LIMIT 1"))


def renamed(old: Side, new: Side) -> Iterator[str]:
    """Give applications of `new` that have no counterpart the name of the one before that uses the same queues and
    exchanges, or of the only other one. Yields what was done. Of many names, which clients choose, those with most
    messages are looked at: each is compared with each."""
    gone, come = _without_counterpart(old, new), _without_counterpart(new, old)
    only = len(gone) == len(come) == 1
    pairs, named = dict[str, str](), set[str]()
    for common, a, b in sorted((-len(old.does[a] & new.does[b]), a, b) for a in gone for b in come):
        if (common or only) and a not in named and b not in pairs:
            pairs[b] = a
            named.add(a)
    for b, a in pairs.items():
        why = (
            "both use the same queues, exchanges or addresses"
            if old.does[a] & new.does[b]
            else "no other is new or gone"
        )
        yield f"{b!r} after is compared with {a!r} before: {why}."
    new.former_names = pairs
    _rename(new, pairs)


def _without_counterpart(side: Side, other: Side) -> list[str]:
    """The applications of a side that the other one does not have, at most MOST_SUBJECTS."""
    names = side.connections.keys() - other.connections.keys()
    return sorted(names, key=lambda name: (-side.messages.get(name, 0), name))[:MOST_SUBJECTS]


def _rename(side: Side, names: Mapping[str, str]) -> None:
    tables: list[dict[Key, Any]] = [
        side.facts, side.stating, side.asked, side.groups, side.samples, side.proofs, side.errors
    ]  # fmt: skip
    for table in tables:
        moved = {key: value for key, value in table.items() if key.subject in names}
        for key, value in moved.items():
            del table[key]
            table[key._replace(subject=names[key.subject])] = value
    named: list[dict[str, Any]] = [
        side.load, side.messages, side.subjects, side.connections, side.hours, side.does
    ]  # fmt: skip
    for by_name in named:
        for name in [name for name in by_name if name in names]:
            by_name[names[name]] = by_name.pop(name)
