"""Percentiles from histograms of latencies (`sections.LATENCY_CLASS`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pipeline.report.sections import CLASSES_PER_OCTAVE

QUANTILES = (0.5, 0.9, 0.99)

# Measures of `pipeline.latency`, in the order in which a message meets them.
MEASURE_NAMES = {
    "confirm": "publish to confirm",
    "broker": "publish to delivery",
    "ack": "delivery to its settlement",
    "total": "publish to settlement",
    "rpc": "request to reply",
}


@dataclass(frozen=True)
class Latency:
    """Latencies of `number` events, ns: `shortest` if known, `quantiles` as in QUANTILES, `longest`."""

    what: str
    number: int
    shortest: int | None
    quantiles: tuple[int, ...]
    longest: int


def latencies(classes: Iterable[Mapping[str, Any]], *names: str) -> list[Latency]:
    """One Latency per value of the keys `names`, the most frequent first.

    Shortest and longest are exact. Quantiles are the middle of their class, at most 2.2 % off.
    """
    counted: dict[str, list[Mapping[str, Any]]] = {}
    for group in classes:
        counted.setdefault(" ".join(str(group[name]) for name in names), []).append(group)
    found = [latency(what, sorted(groups, key=lambda group: int(group["class"]))) for what, groups in counted.items()]
    return sorted(found, key=lambda found: (-found.number, found.what))


def flow_latencies(rows: Iterable[Mapping[str, Any]]) -> list[Latency]:
    """Rows of `pipeline.latency`, with the names of their measures."""
    return [
        Latency(
            MEASURE_NAMES[row["measure"]],
            row["count"],
            None,
            (row["p50_ns"], row["p90_ns"], row["p99_ns"]),
            row["max_ns"],
        )
        for row in sorted(rows, key=lambda row: list(MEASURE_NAMES).index(row["measure"]))
        if row["count"]
    ]


def latency(what: str, groups: list[Mapping[str, Any]]) -> Latency:
    """One Latency from its classes in ascending order."""
    number = sum(group["rows"] for group in groups)
    shortest = min(group["shortest"] for group in groups)
    longest = max(group["longest"] for group in groups)
    inside = (min(max(quantile(groups, number, share), shortest), longest) for share in QUANTILES)
    return Latency(what, number, shortest, tuple(inside), longest)


def quantile(groups: list[Mapping[str, Any]], number: int, share: float) -> int:
    """The quantile at `share`, as the middle of its class."""
    seen = 0
    for group in groups:
        seen += group["rows"]
        if seen >= share * number:
            break
    return round(2 ** ((int(group["class"]) + 0.5) / CLASSES_PER_OCTAVE))
