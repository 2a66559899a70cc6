"""How a comparison is written: plain text, Markdown, HTML, JSON. Text from the wire is data in all of them."""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from importlib.resources import files
from textwrap import wrap
from typing import Any

from pipeline.diff.sides import NO_PROOF, Proof
from pipeline.output.formatting import (
    code_span,
    duration,
    plain_text,
    plural,
    size,
    wire,
)

WIDTH = 110
LONGEST = 200  # characters of a value
NARROW = "td bdi { max-width: min(16rem, 60vw); }"  # five columns of text
MOST_UNSURE = 10
MOST_LIKEWISE = 3
STATISTICS = {f"p{of}": f"{of}th percentile of the " for of in range(90, 100)} | {
    "p50": "median of the ", "p91": "91st percentile of the ", "p92": "92nd percentile of the ",
    "p93": "93rd percentile of the ",
}  # fmt: skip
CONFIDENCE = "at most 1 % of the tested differences are expected to be false"


@dataclass(frozen=True)
class Difference:
    """One difference. `statistic`: 'value', 'rate', 'p50', or 'p90' to 'p99'. `before`, `after`: text for facts, else
    numbers in `unit`. `change`: relative, with the bounds `low` and `high` of its confidence interval. `confidence`:
    'certain' for a setting that all connections of a side have, 'tested', or 'few': too few connections to rule out
    chance. `also`: other subjects with the same difference; `details`: differences that belong to it, as text."""

    measure: str
    title: str
    subject: str
    item: str
    statistic: str
    before: Any
    after: Any
    unit: str
    confidence: str
    connections_before: int
    connections_after: int
    change: float | None = None
    low: float | None = None
    high: float | None = None
    p: float | None = None
    cost: float = 0.0
    proof_before: Proof = NO_PROOF
    proof_after: Proof = NO_PROOF
    also: Sequence[str] = ()
    details: Sequence[str] = ()


@dataclass(frozen=True, repr=False)
class Comparison:
    """The result: `differences`, what costs most first; `unsure`, those that few connections show; how many values are
    `equal`, of which measures; `notes` on what could not be compared; which thresholds are exceeded (`failed`), and
    which the captures are too small to decide."""

    before: str
    after: str
    differences: Sequence[Difference]
    unsure: Sequence[Difference]
    equal: int
    equal_measures: Sequence[str]
    notes: Sequence[str]
    failed: Sequence[str] = ()
    undecided: Sequence[str] = ()

    def __repr__(self) -> str:
        return text(self)

    def _repr_markdown_(self) -> str:
        """For notebooks."""
        return markdown(self)

    def as_dict(self) -> dict[str, Any]:
        """The comparison as JSON has it."""
        return as_dict(self)


def amount(value: Any, unit: str) -> str:
    """A value in its unit."""
    if isinstance(value, str):
        return plain_text(value, LONGEST)
    if unit == "ns":
        return str(duration(round(value) if value >= 2 else 0))  # the first bin of a histogram has 0, too
    if unit == "share":
        return f"{100 * value:.3g} %"
    if unit == "bytes":
        return size(round(value))
    return f"{value:.3g} {unit}"


def headline(each: Difference) -> str:
    """What differs, about whom, before and after."""
    item = f" {plain_text(each.item, LONGEST)}" if each.item else ""
    what = f"{STATISTICS.get(each.statistic, '')}{each.title}{item}"
    return f"{plain_text(each.subject, LONGEST)}: {what}: {from_to(each)}"


def detail(each: Difference) -> str:
    """A difference that belongs to another one about the same subject."""
    what = each.item.partition(": ")[2] or each.title
    return f"{STATISTICS.get(each.statistic, '')}{plain_text(what, LONGEST)}: {from_to(each)}"


def from_to(each: Difference) -> str:
    return f"{amount(each.before, each.unit)} -> {amount(each.after, each.unit)}"


def confidence(each: Difference) -> str:
    """How sure it is."""
    many = f"{plural(each.connections_before, 'connection')} before, {each.connections_after:,} after"
    if each.confidence == "certain":
        return f"all of {many}"
    parts = [many]
    if each.change is not None:
        parts.insert(0, percent(each.change))
    if each.low is not None and each.high is not None and math.isfinite(each.low):
        parts.insert(1, f"99 % interval {percent(each.low)} to {percent(each.high)}")
    if each.confidence == "few":
        parts.append("too few to rule out chance")
    elif each.p is not None:
        parts.append(f"p {each.p:.2g}" if each.p >= 1e-6 else "p < 0.000001")
    return ", ".join(parts)


def percent(change: float) -> str:
    """A relative change."""
    return f"{100 * change:+,.0f} %" if abs(change) >= 0.1 else f"{100 * change:+.2g} %"


def where(proof: Proof) -> str:
    """Where to look."""
    if proof.connection_id is None:
        return "nothing to see"
    parts = [f"connection {proof.connection_id}"]
    parts += [f"{name} {of:,}" for name, of in (("frame", proof.frame_no), ("packet", proof.packet_no)) if of]
    name = (proof.capture_file or "").rpartition("/")[2]
    return ", ".join(parts) + (f" in {plain_text(name, LONGEST)}" if name else "")


def also(each: Difference) -> str:
    names = [plain_text(name, 60) for name in each.also[:MOST_LIKEWISE]]
    more = f" and {len(each.also) - MOST_LIKEWISE} more" if len(each.also) > MOST_LIKEWISE else ""
    return f"likewise: {', '.join(names)}{more}" if names else ""


def nothing(comparison: Comparison) -> str:
    """The title of a comparison without differences."""
    if comparison.unsure:
        return "No difference is sure."
    return "No difference was found." if comparison.equal else "Nothing could be compared."


def equal(comparison: Comparison) -> str:
    """What is equal, in one line."""
    return f"Equal: {comparison.equal:,} values of {len(comparison.equal_measures)} kinds."


def text(comparison: Comparison) -> str:
    """The comparison as plain text."""
    return "\n".join(_text(comparison))


def _text(comparison: Comparison) -> Iterator[str]:
    yield f"Before: {plain_text(comparison.before, LONGEST)}"
    yield f"After:  {plain_text(comparison.after, LONGEST)}"
    yield ""
    if comparison.differences:
        yield f"{plural(len(comparison.differences), 'difference')}, what costs most first ({CONFIDENCE})"
        yield from _entries(comparison.differences)
    else:
        yield nothing(comparison)
    if comparison.unsure:
        first_entries = comparison.unsure[:MOST_UNSURE]
        yield f"Seen, but on too few connections to rule out chance: {len(comparison.unsure)}"
        yield from _entries(first_entries)
        if len(first_entries) < len(comparison.unsure):
            yield f"  ... and {len(comparison.unsure) - len(first_entries)} more (--json has all)"
    for line in comparison.failed:
        yield f"Threshold exceeded: {plain_text(line, 2 * LONGEST)}"
    for line in comparison.undecided:
        yield f"Threshold not decided: {plain_text(line, 2 * LONGEST)}"
    yield equal(comparison)
    for note in comparison.notes:
        yield from wrap(plain_text(note, 10 * LONGEST), WIDTH)
    yield ""


def _entries(differences: Any) -> Iterator[str]:
    for number, each in enumerate(differences, 1):
        yield from wrap(
            headline(each), WIDTH, initial_indent=f"{number:>3}. ", subsequent_indent="     ", break_long_words=False
        )
        for line in (
            confidence(each),
            *(f"with it: {plain_text(line, 2 * LONGEST)}" for line in each.details),
            also(each),
            f"before: {where(each.proof_before)}",
            f"after:  {where(each.proof_after)}",
        ):
            yield from wrap(line, WIDTH, initial_indent="     ", subsequent_indent="       ", break_long_words=False)
    yield ""


def as_dict(comparison: Comparison) -> dict[str, Any]:
    """The comparison as JSON has it; a number that is not finite is null."""
    return {
        "before": comparison.before,
        "after": comparison.after,
        "differences": [finite(asdict(each)) for each in comparison.differences],
        "unsure": [finite(asdict(each)) for each in comparison.unsure],
        "equal": {"values": comparison.equal, "measures": list(comparison.equal_measures)},
        "notes": list(comparison.notes),
        "failed": list(comparison.failed),
        "undecided": list(comparison.undecided),
    }


def finite(values: dict[str, Any]) -> dict[str, Any]:
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value for name, value in values.items()
    }


def markdown(comparison: Comparison) -> str:
    """The comparison as GitHub's Markdown, for a pull request. Text from the wire is in code spans."""
    return "\n".join(_markdown(comparison))


def _markdown(comparison: Comparison) -> Iterator[str]:
    found = comparison.differences
    yield f"### {plural(len(found), 'difference') if found else nothing(comparison)}"
    yield ""
    yield f"Before {code(comparison.before)}, after {code(comparison.after)}; {CONFIDENCE}."
    for title, differences in (
        ("", comparison.differences),
        ("Seen, but on too few connections to rule out chance:", comparison.unsure[:MOST_UNSURE]),
    ):
        if not differences:
            continue
        yield from ("", *([title, ""] if title else []))
        yield "| about | what | before | after | how sure | where |"
        yield "|---|---|---|---|---|---|"
        for each in differences:
            more = f", {len(each.also)} more" if each.also else ""
            what = f"{STATISTICS.get(each.statistic, '')}{each.title}{f' {code(each.item)}' if each.item else ''}"
            what += "".join(f"; {code(line)}" for line in each.details)
            cells = (
                f"{code(each.subject)}{more}", what, code(amount(each.before, each.unit)),
                code(amount(each.after, each.unit)), confidence(each),
                f"{code(where(each.proof_before))} / {code(where(each.proof_after))}",
            )  # fmt: skip
            yield f"| {' | '.join(cells)} |"
    for title, lines in (("Threshold exceeded", comparison.failed), ("Threshold not decided", comparison.undecided)):
        for line in lines:
            yield from ("", f"**{title}:** {code(line)}")
    yield from ("", equal(comparison), "", *(f"- {code(note)}" for note in comparison.notes), "")


def code(text: str) -> str:
    """A code span in a table of Markdown, on one line."""
    return code_span(plain_text(text, LONGEST))


def html(comparison: Comparison) -> str:
    """The comparison as one HTML file, which loads nothing and has no script."""
    from jinja2 import Environment, StrictUndefined

    jinja = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    jinja.filters["wire"] = partial(wire, limit=LONGEST)
    template = jinja.from_string(files(__package__).joinpath("page.html.j2").read_text("utf-8"))
    style = files("pipeline.report").joinpath("template/style.css").read_text("utf-8") + NARROW
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    from markupsafe import Markup

    return template.render(
        comparison=comparison, style=Markup(style), style_hash=f"sha256-{digest}", amount=amount, confidence=confidence,
        where=where, equal=equal, nothing=nothing, statistics=STATISTICS, promise=CONFIDENCE,
    )  # fmt: skip
