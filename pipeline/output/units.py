"""Sizes, durations and counts as text, for the console and for reports."""

from __future__ import annotations

KILO = 1024


def size(octets: int) -> str:
    """A size with a suitable unit: 812 B, 14.2 KB, 1.1 GB."""
    amount = float(octets)
    for unit in ("B", "KB", "MB", "GB"):
        if amount < KILO:
            return f"{amount:.0f} B" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= KILO
    return f"{amount:.1f} TB"


def duration(nanoseconds: int | None) -> str | None:
    """A duration with a suitable unit: 812 ns, 14.2 us, 1.1 s; negative if a clock was set back."""
    if nanoseconds is None:
        return None
    amount = float(nanoseconds)
    for unit in ("ns", "us", "ms"):
        if abs(amount) < 1000:
            return f"{amount:.0f} ns" if unit == "ns" else f"{amount:.1f} {unit}"
        amount /= 1000
    return f"{amount:.1f} s"


def time_unit(span_ns: int) -> tuple[str, int]:
    """The unit for the axis of a time span, and its length in ns."""
    for unit, length in (("hours", 3600 * 10**9), ("minutes", 60 * 10**9), ("seconds", 10**9)):
        if span_ns >= 3 * length:
            return unit, length
    return "milliseconds", 10**6


def plural(number: int, noun: str) -> str:
    """1 capture, 2,000 captures."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
