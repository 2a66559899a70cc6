"""What changed between two captures: settings, habits, rates and latencies by application, queue and exchange.

    print(diff("before.pcapng", "after.pcapng"))

What is compared is data (`measures.json`) over the relations of `observations.sql`, in DuckDB. It does not depend on
the load or the duration of a capture. Read this file, then `sides` (what is observed), `statistics` (how sure a
difference is) and `pages` (how it is written).
"""

from __future__ import annotations

import os
import re
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from pipeline.audit.catalogue import catalogue
from pipeline.diff import statistics
from pipeline.diff.pages import Comparison, Difference, amount, detail, percent
from pipeline.diff.sides import (
    ARGUMENT,
    MOST_SUBJECTS,
    MOST_VALUES,
    DiffError,
    Key,
    Measure,
    Proof,
    Side,
    measures,
    observe,
)
from pipeline.output.formatting import plural

if TYPE_CHECKING:
    from pipeline.explore.duckdb_tables import Session
    from pipeline.tables.dataframes import Tables

__all__ = ["Comparison", "Difference", "Proof", "diff", "diff_sessions"]

QUANTILES = {"p50": 0.5, "p99": 0.99}  # that a threshold may be for
LOADS_ALIKE = 1.3
THRESHOLD = re.compile(r"(\w+)(?:\.(p50|p99))?(?:=([+-][0-9]+(?:\.[0-9]+)?)%)?")


def diff(
    before: Tables | str | os.PathLike[str],
    after: Tables | str | os.PathLike[str] | None = None,
    *,
    before_day: str | None = None,
    after_day: str | None = None,
    keylog: str | Sequence[str] | None = None,
    fail_on: Sequence[str] = (),
) -> Comparison:
    """Compare two directories of tables, or captures, which are decoded and audited first; without `after` two days
    ('2026-11-20') of a lake. `keylog`: secrets of TLS connections; `fail_on`: thresholds (`Threshold`).

    Raises DiffError, QueryError; TablesError for directories, PathError and KeyLogError for captures.
    """
    from pipeline.explore.duckdb_tables import has_tables, open_tables

    require_scipy()
    with ExitStack() as stack:
        sessions, names = [], []
        for given, day in ((before, before_day), (before if after is None else after, after_day)):
            source = given if isinstance(given, str | os.PathLike) else given.directory
            if source is None:
                raise DiffError("tables that are in no directory: write them first (wirehare.write), or give captures")
            source = os.fspath(source)
            directory = source if has_tables(source) else stack.enter_context(tables_of(source, keylog))
            sessions.append(stack.enter_context(open_tables(directory, span=span_of(day))))
            names.append(f"{source} {day or ''}".strip())
        return diff_sessions(sessions[0], sessions[1], names[0], names[1], fail_on)


@contextmanager
def tables_of(captures: str, keylog: str | Sequence[str] | None) -> Iterator[str]:
    """A directory with the tables and findings of captures while the body runs."""
    from codec.tables import FINDINGS
    from pipeline.audit import findings_in
    from pipeline.explore.duckdb_tables import files_here
    from pipeline.lake.lake_tables import Span
    from pipeline.output.location import location
    from pipeline.output.parquet_tables import write_rows
    from pipeline.run import scratch
    from pipeline.run.local_processes import LocalProcesses
    from pipeline.tables.write_tables import write

    with tempfile.TemporaryDirectory(dir=scratch.directories({}).partition(",")[0]) as folder:
        directory = f"{folder}/tables"
        with LocalProcesses() as processes:
            write(processes, captures, directory, keylog=keylog)
        tables = location(directory)
        with files_here(tables, directory, Span()) as found:
            findings = findings_in(found)
        write_rows(tables.child(FINDINGS.name), FINDINGS, findings.to_batches())
        yield directory


def span_of(day: str | None) -> Any:
    """The span of a day in UTC; None for no day. Raises DiffError."""
    from datetime import date, timedelta

    from pipeline.lake.lake_tables import Span

    if day is None:
        return None
    try:
        first = date.fromisoformat(day)
    except ValueError:
        raise DiffError(f"{day!r} is not a valid day; expected one like 2026-11-20") from None
    return Span.of(first.isoformat(), (first + timedelta(1)).isoformat())


def diff_sessions(
    before: Session, after: Session, before_name: str = "before", after_name: str = "after", fail_on: Sequence[str] = ()
) -> Comparison:
    """Compare the tables of two sessions. The names are for the page."""
    require_scipy()
    thresholds = [Threshold.of(text) for text in fail_on]
    old, new, notes = observe(before, after)
    compared = Compared(old, new)
    compared.facts()
    compared.errors()
    compared.subjects()
    compared.samples()
    sure, unsure = compared.judged()
    notes += compared.notes()
    failed, undecided = list[str](), list[str]()
    for threshold in thresholds:
        for lines, found in zip((failed, undecided), threshold.judged(old, new, sure), strict=True):
            lines += found
    return Comparison(
        before_name, after_name, with_captures(merged(sure), before, after),
        with_captures(merged(unsure), before, after), compared.equal, sorted(compared.equal_titles), notes, failed,
        undecided,
    )  # fmt: skip


def require_scipy() -> None:
    try:
        import scipy.stats  # noqa: F401
    except ImportError as error:
        raise DiffError(
            "a comparison needs the package scipy, which is not installed: pip install 'wirehare[diff]'"
        ) from error


class Threshold(NamedTuple):
    """What makes a comparison fail: `any` difference; any difference of a measure (`heartbeat`); or a measure that
    grows (`confirm_latency.p99=+5%`) or shrinks (`confirmed=-1%`) by more than a share of its value before."""

    text: str
    measure: str
    statistic: str | None
    limit: float | None

    @classmethod
    def of(cls, text: str) -> Threshold:
        """Raises DiffError."""
        from udfs.source.options import meant

        found = THRESHOLD.fullmatch(text.strip())
        if found is None:
            raise DiffError(
                f"{text!r} is not a valid threshold; expected 'any', a measure such as heartbeat, or a measure with a "
                "limit such as confirm_latency.p99=+5%"
            )
        name, statistic, limit = found[1], found[2], found[3]
        samples = measures("rates") | measures("distributions")
        known = {*samples, *measures("facts"), "errors", "presence", "any"}
        if name not in known:
            raise DiffError(f"there is no measure {name!r}{meant(name, sorted(known))}")
        if limit is not None and name not in samples:
            raise DiffError(f"{text!r}: {name} has no size, so that it takes no limit")
        if statistic and name not in measures("distributions"):
            raise DiffError(f"{text!r}: {name} has no {statistic}")
        return cls(text, name, statistic, None if limit is None else float(limit) / 100)

    def judged(self, old: Side, new: Side, differences: Sequence[Difference]) -> tuple[list[str], list[str]]:
        """Where it is exceeded, and where that cannot be decided."""
        if self.limit is None:
            found = [each for each in differences if self.measure in ("any", each.measure)]
            found = [each for each in found if self.statistic in (None, each.statistic)]
            return ([f"{self.text}: {len(found)} differences"] if found else []), []
        of = None
        if self.measure in measures("distributions"):
            of = QUANTILES[self.statistic or "p50"]
        keys = [key for key in sorted({*old.samples} & {*new.samples}) if key.measure == self.measure]
        failed, undecided = list[str](), [] if keys else [f"{self.text}: not on both sides"]
        for key in keys:
            # Growth is measured without a floor: what the limit says is what counts.
            change = statistics.compare(old.samples[key], new.samples[key], self._least(), 1e-12, of)
            if change is None or (change.effect > 0) != (self.limit > 0):
                continue
            about = f"{key.subject} {key.item}".strip()
            unit = (measures("rates") | measures("distributions"))[self.measure].unit
            line = f"{self.text}: {about}: {amount(change.before, unit)} -> {amount(change.after, unit)}"
            if change.before:
                line += f" ({percent(change.after / change.before - 1)})"
            few = of is not None and statistics.few_in_tail(old.samples[key], new.samples[key], of)
            sure = change.tested and not few and change.p * len(keys) <= statistics.LEVEL
            (failed if sure else undecided).append(line)
        return failed, undecided

    def _least(self) -> float:
        """The limit as growth: a loss of 50 % is a growth of 100 % backwards."""
        assert self.limit is not None
        return self.limit if self.limit > 0 else 1 / max(1 + self.limit, 1e-9) - 1


class Compared:
    """The comparison as it grows: candidates with their p-values, and what is equal."""

    def __init__(self, old: Side, new: Side) -> None:
        self.old, self.new = old, new
        self.certain: list[Difference] = []
        self.candidates: list[tuple[Difference, float]] = []  # with the smallest p-value that so few units can have
        self.tests: list[float] = []  # p-values of all tests, those without an effect that matters included
        self.equal = 0
        self.equal_titles = set[str]()
        self.other_load = 0
        self.other_rules = set[str]()
        self.total = max(sum(old.messages.get(name, 0) + new.messages.get(name, 0) for name in old.connections), 1)

        keys = (key.subject for side in (old, new) for table in (side.facts, side.samples) for key in table)
        names = {*old.subjects, *new.subjects, *keys}
        messages = {name: old.messages.get(name, 0) + new.messages.get(name, 0) for name in names}
        ranked = sorted(messages, key=lambda name: (-messages[name], name))
        self.compared = {*ranked[:MOST_SUBJECTS]}
        self.left_out = {*ranked[MOST_SUBJECTS:]}

    def _keys(self, old: Iterable[Key], new: Iterable[Key]) -> list[Key]:
        """The keys of both sides, without those of subjects that are left out."""
        return sorted(key for key in {*old, *new} if key.subject not in self.left_out)

    def same(self, title: str) -> None:
        self.equal += 1
        self.equal_titles.add(title)

    def cost(self, measure: Measure, subject: str, effect: float) -> float:
        here = self.old.messages.get(subject, 0) + self.new.messages.get(subject, 0)
        return measure.weight * min(abs(effect) + 0.5, 2.0) * (0.6 + 0.4 * min(here / self.total, 1))

    def facts(self) -> None:
        known = measures("facts")
        for key in self._keys(self.old.facts, self.new.facts):
            measure = known[key.measure]
            if measure.id == "rule" and not (self.old.has_findings and self.new.has_findings):
                continue
            if measure.id == "rule" and not self._is_for_both(key):
                self.other_rules.add(key.item)
                continue
            sides = [self._values(side, key, measure) for side in (self.old, self.new)]
            if all(side is not None for side in sides):
                self._fact(key, measure, *sides)  # type: ignore[arg-type]

    def _is_for_both(self, key: Key) -> bool:
        """Whether no side speaks only versions that the rule is not for."""
        rule = catalogue().get(key.item.partition(" ")[0])
        spoken = (side.facts.get(Key("version", key.subject, "", ""), {}) for side in (self.old, self.new))
        return rule is None or all(not versions or {*versions} & {*rule.versions} for versions in spoken)

    def _values(self, side: Side, key: Key, measure: Measure) -> tuple[Mapping[str, tuple[int, Proof]], int] | None:
        """The connections by value and their number; None if this side cannot tell."""
        values = side.facts.get(key, {})
        stating = side.stating.get(key, 0)
        if measure.group is None:
            return (values, stating) if values else None
        group = self.old.groups.get(key, self.new.groups.get(key, ""))
        asked = side.asked.get(key._replace(item=group), 0)
        if not asked:
            return None
        if asked > stating and measure.id not in ("rule", "methods_sent"):
            values = {**values, "not stated": (asked - stating, Proof())}
        return values, asked

    def _fact(
        self, key: Key, measure: Measure, old: tuple[Mapping[str, tuple[int, Proof]], int],
        new: tuple[Mapping[str, tuple[int, Proof]], int],
    ) -> None:  # fmt: skip
        (before, of_before), (after, of_after) = old, new
        if max(len(before), len(after)) > MOST_VALUES:
            return
        nothing = 0, Proof()
        steady, parts, p = [], [], 1.0
        for value in sorted({*before, *after}):
            n, m = before.get(value, nothing)[0], after.get(value, nothing)[0]
            if n * of_after == m * of_before:
                continue
            parts.append(value)
            # That a rule fires is an event: one connection tells it.
            if (n == of_before and m == 0) or (n == 0 and m == of_after) or (measure.id == "rule" and not (n and m)):
                steady.append(value)
            p = min(p, statistics.shares(n, of_before, m, of_after))
        p = min(1.0, p * max(len(parts), 1))
        certain = bool(steady) and not measure.varies
        if not parts:
            self.tests.append(1.0)
            self.same(measure.title)
            return
        texts = [
            _text_of(*side, [each for each in steady if certain and each in side[0]] or parts) for side in (old, new)
        ]
        found = Difference(
            measure.id, measure.title, key.subject, key.item, "value",
            texts[0], texts[1],
            "", "certain" if certain else "tested", of_before, of_after, p=None if certain else p,
            cost=self.cost(measure, key.subject, 1.0 if steady else 0.5),
            proof_before=_first(self.old, key, before, parts), proof_after=_first(self.new, key, after, parts),
        )  # fmt: skip
        if certain:
            self.certain.append(found)
            return
        self.tests.append(p)
        smallest = statistics.smallest_p(of_before, of_after)
        if p <= statistics.LEVEL or (steady and smallest > statistics.LEVEL):
            self.candidates.append((found, smallest))
        else:
            self.same(measure.title)

    def errors(self) -> None:
        """Errors of a kind: more connections have it, and there are more of them for each connection hour."""
        nothing = 0, 0, 0.0, Proof()
        measure = Measure("errors", "errors", 95)
        for key in self._keys(self.old.errors, self.new.errors):
            of_before, of_after = (side.connections.get(key.subject, 0) for side in (self.old, self.new))
            if not of_before or not of_after:
                continue
            (n, with_n, _, at_n), (m, with_m, _, at_m) = (
                side.errors.get(key, nothing) for side in (self.old, self.new)
            )
            hours, more_hours = self.old.hours[key.subject], self.new.hours[key.subject]
            p = max(
                statistics.shares(with_n, of_before, with_m, of_after),
                statistics.counts(n, m, hours / max(hours + more_hours, 1e-12)),
            )
            self.tests.append(p)
            smallest = statistics.smallest_p(of_before, of_after)
            if p > statistics.LEVEL and not (smallest > statistics.LEVEL and bool(n) != bool(m)):
                self.same(measure.title)
                continue
            found = Difference(
                measure.id, measure.title, key.subject, key.item, "value",
                _errors(n, with_n, of_before), _errors(m, with_m, of_after), "", "tested", of_before, of_after, p=p,
                cost=self.cost(measure, key.subject, 1.0), proof_before=at_n, proof_after=at_m,
            )  # fmt: skip
            self.candidates.append((found, smallest))

    def subjects(self) -> None:
        """Applications, queues, exchanges and addresses that only one side has."""
        measure = Measure("presence", "seen", 60)
        for name in sorted(self.compared):
            n, of_before, at_n = self.old.subjects.get(name, (0, sum(self.old.connections.values()), Proof()))
            m, of_after, at_m = self.new.subjects.get(name, (0, sum(self.new.connections.values()), Proof()))
            if bool(n) == bool(m):
                continue
            p = statistics.counts(n, m, of_before / max(of_before + of_after, 1))
            self.tests.append(p)
            found = Difference(
                measure.id, measure.title, name, "", "value", "yes" if n else "no", "yes" if m else "no", "", "tested",
                n, m, p=p, cost=self.cost(measure, name, 1.0), proof_before=at_n, proof_after=at_m,
            )  # fmt: skip
            self.candidates.append((found, p))

    def samples(self) -> None:
        known = measures("rates") | measures("distributions")
        for key in self._keys(self.old.samples, self.new.samples):
            measure = known[key.measure]
            before, after = self.old.sample(key), self.new.sample(key)
            if before is None or after is None:
                continue
            if measure.same_load and not self._loads_alike(key.subject):
                self.other_load += 1
                continue
            quantiles: dict[str, float | None] = {"rate": None}
            if before.counts is not None:
                tail = statistics.tail_quantile(before, after)
                quantiles = {"p50": 0.5, **({f"p{100 * tail:.0f}": tail} if tail else {})}
            best: tuple[Difference, float] | None = None
            least_p = 1.0
            for statistic, of in quantiles.items():
                change = statistics.compare(before, after, measure.least, measure.floor, of)
                if change is None:
                    self.tests.append(1.0)
                    continue
                self.tests.append(change.p)
                found = Difference(
                    measure.id, measure.title, key.subject, key.item, statistic, change.before, change.after,
                    measure.unit, "tested", before.connections, after.connections,
                    change.after / change.before - 1 if change.before else None, change.low, change.high, change.p,
                    self.cost(measure, key.subject, change.effect), self.old.proof(key), self.new.proof(key),
                    details=self._other_load(key.subject) if measure.unit == "ns" else (),
                )  # fmt: skip
                limit = statistics.LEVEL if change.tested else statistics.SUSPICIOUS
                if (change.p <= limit or change.large) and (best is None or change.p < least_p):
                    best, least_p = (found, change.smallest_p), change.p
            if best is None:
                self.same(measure.title)
            else:
                self.candidates.append(best)

    def _loads_alike(self, subject: str) -> bool:
        before, after = self.old.load.get(subject, 0), self.new.load.get(subject, 0)
        return max(before, after) <= LOADS_ALIKE * min(before, after)

    def _other_load(self, subject: str) -> list[str]:
        """What a latency may come from."""
        before, after = self.old.load.get(subject, 0), self.new.load.get(subject, 0)
        if not before or not after or self._loads_alike(subject):
            return []
        return [f"messages for each second of a connection: {before:.3g} -> {after:.3g}"]

    def judged(self) -> tuple[list[Difference], list[Difference]]:
        """The differences, and those that too few connections show."""
        accepted = [p for p, sure in zip(self.tests, statistics.confident(self.tests), strict=True) if sure]
        limit = max(accepted, default=-1.0)
        sure, unsure = list(self.certain), []
        for found, smallest in self.candidates:
            assert found.p is not None
            if smallest <= statistics.LEVEL and found.p <= limit:
                sure.append(found)
            elif smallest > statistics.LEVEL or found.p <= smallest:
                unsure.append(replace(found, confidence="few", p=found.p if found.p < 1 else None))
            else:
                self.same(found.title)
        return sure, unsure

    def notes(self) -> Iterator[str]:
        if self.left_out:
            yield (
                f"The {MOST_SUBJECTS} applications, queues, exchanges and addresses with most messages are compared, "
                f"{len(self.left_out):,} are left out."
            )
        if self.other_load:
            yield f"Not compared, because they depend on the load, which differs: {plural(self.other_load, 'value')}."
        for name, side in (("before", self.old), ("after", self.new)):
            if not side.connections:
                yield f"There are no connections {name}."
        both = {*self.old.subjects} & {*self.new.subjects}
        if self.old.connections and self.new.connections and not both:
            yield "No application, queue, exchange or address is on both sides."
        before, after = ({key.family for key in side.stating if key.family} for side in (self.old, self.new))
        if before and after and not before & after:
            yield "The AMQP versions differ: only what they have in common is compared."
        if self.other_rules:
            ids = ", ".join(sorted(rule.partition(" ")[0] for rule in self.other_rules))
            yield f"Not compared, because they are for the AMQP version of one side only: the rules {ids}."
        if self.old.has_findings != self.new.has_findings:
            yield "Rules are not compared: `wirehare audit` has written findings for one side only."
        elif not self.old.has_findings:
            yield "Rules are not compared: there are no findings (`wirehare audit` writes them)."


def _text_of(values: Mapping[str, tuple[int, Proof]], of: int, parts: Sequence[str]) -> str:
    found = [(values[value][0], value) for value in parts if value in values]
    texts = [
        value if n == of else f"{value} ({n} of {of})" for n, value in sorted(found, key=lambda each: -each[0])[:4]
    ]
    return ", ".join(texts) or "none"


def _first(side: Side, key: Key, values: Mapping[str, tuple[int, Proof]], parts: Iterable[str]) -> Proof:
    """Where the first of these values is; of what is not stated, a connection that could have."""
    proofs = (values[value][1] for value in parts if value in values)
    whole = side.subjects.get(key.subject, (0, 0, Proof()))[2]
    return next((proof for proof in proofs if proof.connection_id is not None), whole)


def _errors(n: int, connections: int, of: int) -> str:
    return f"{n} on {connections} of {of} connections" if n else "none"


def with_details(differences: Sequence[Difference]) -> list[Difference]:
    """The differences without those that belong to another one about the same subject, which has them as details."""

    known = measures("facts") | measures("rates") | measures("distributions")
    roots = {(each.measure, each.subject): each for each in differences if not each.item}
    details: dict[tuple[str, str], list[str]] = defaultdict(list)
    methods = set[tuple[str, str]]()
    found = []
    for each in sorted(differences, key=_order):
        if each.measure == ARGUMENT:
            # Of the arguments of one method the first one stands for all.
            method = _root(each)
            if method in methods:
                details[method].append(detail(each))
                continue
            methods.add(method)
        name, root = each.measure, ""
        while name in known and known[name].part_of:
            name = known[name].part_of
            root = name if (name, each.subject) in roots else root
        if root and roots[root, each.subject] is not each:
            details[root, each.subject].append(detail(each))
        else:
            found.append(each)
    return [replace(each, details=[*each.details, *details.get(_root(each), ())]) for each in found]


def _root(each: Difference) -> tuple[str, str]:
    """What details are filed under: the measure, or the method of an argument, and whom it is about."""
    if each.measure == ARGUMENT:
        return f"{ARGUMENT} {each.item.partition(':')[0]}", each.subject
    return (each.measure, each.subject) if not each.item else ("", "")


def _order(each: Difference) -> tuple[float, str, str, str]:
    return -each.cost, each.measure, each.subject, each.item


def merged(differences: Sequence[Difference]) -> list[Difference]:
    """One line for each kind of difference; what costs most first."""
    differences = with_details(differences)
    groups: dict[Any, list[Difference]] = {}
    for each in sorted(differences, key=_order):
        what: Any = (each.before, each.after)
        if each.statistic != "value":
            what = each.after > each.before
        groups.setdefault((each.measure, each.item, what), []).append(each)
    found = []
    for first, *others in groups.values():
        found.append(replace(first, also=[each.subject for each in others]))
    return found


def with_captures(differences: Sequence[Difference], before: Session, after: Session) -> list[Difference]:
    """The differences with the captures of their proofs."""

    def captures(session: Session, proofs: Iterable[Proof]) -> dict[int, str]:
        ids = sorted({proof.connection_id for proof in proofs if proof.connection_id is not None})
        if not ids:
            return {}
        rows = session.rows(
            f"SELECT connection_id, capture_file FROM connections WHERE connection_id IN ({', '.join(map(str, ids))})"
        )
        return {row["connection_id"]: row["capture_file"] for row in rows}

    old = captures(before, (each.proof_before for each in differences))
    new = captures(after, (each.proof_after for each in differences))

    def placed(proof: Proof, names: Mapping[int, str]) -> Proof:
        return replace(proof, capture_file=names.get(proof.connection_id or -1))

    return [
        replace(each, proof_before=placed(each.proof_before, old), proof_after=placed(each.proof_after, new))
        for each in differences
    ]
