"""Steps of a ladder, from frames: contents joined to their method, long silences marked, repeated patterns folded.

Python over a bounded number of rows (`ladder.FRAMES`); no Spark.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.output.units import duration
from pipeline.plots.labels import kind, label

# The longest pattern of steps that is folded, and the least number of its repetitions.
LONGEST_CYCLE, REPEATS = 8, 4


@dataclass(frozen=True)
class Step:
    """A level of the ladder: an arrow of `sender`, or, where that is None, a `note` across all lifelines."""

    ts_ns: int
    label: str
    connection_id: int = 0
    sender: str | None = None
    channel: int | None = None
    packet_no: int | None = None
    kind: str = ""
    whole: bool = True
    frames: int = 1
    name: str = ""

    @property
    def key(self) -> tuple[object, ...]:
        """Steps with equal keys are equal in a pattern."""
        return self.connection_id, self.sender, self.channel, self.kind, self.name


def steps(frames: Iterable[Mapping[str, Any]], shown: int) -> list[Step]:
    """A step per frame, with contents joined to their method; labels have at most `shown` characters."""
    rows = [
        dict(frame, body=frame["payload_size"] if frame["name"] == "transfer" else None, frames=1) for frame in frames
    ]
    by_number = {(row["connection_id"], row["frame_no"]): row for row in rows}
    methods: list[dict[str, Any]] = []
    for row in rows:
        method = by_number.get((row["connection_id"], row["content_frame_no"]), row)
        if method is row:
            methods.append(row)
        else:
            add_content(method, row)
    return [
        Step(
            ts_ns=row["ts_ns"],
            label=label(row, shown),
            connection_id=row["connection_id"],
            sender=row["sender"],
            channel=row["channel"],
            packet_no=row["packet_no"],
            kind=kind(row),
            whole=row["status"] == "ok" and row["frame_type"] != "gap",
            frames=row["frames"],
            name=row["name"] or row["frame_type"],
        )
        for row in methods
    ]


def add_content(method: dict[str, Any], frame: Mapping[str, Any]) -> None:
    """Add a content header or body to the row of its method."""
    declared = frame["body_size"]
    if declared is not None:
        method["declared"] = method["body"] = declared
    elif "declared" not in method and frame["frame_type"] in ("body", "oob-body"):
        method["body"] = (method["body"] or 0) + (frame["payload_size"] or 0)
    if method["status"] == "ok":
        method["status"] = frame["status"]
    method["frames"] += 1


def add_silences(found: Sequence[Step], least_ns: int) -> list[Step]:
    """Add a note for each silence of `least_ns` or longer."""
    result: list[Step] = []
    for step in found:
        if result and step.ts_ns - result[-1].ts_ns >= least_ns:
            gap = step.ts_ns - result[-1].ts_ns
            result.append(Step(ts_ns=step.ts_ns, label=f"{duration(gap)} of silence", name="silence", frames=0))
        result.append(step)
    return result


def fold_repeats(found: Sequence[Step]) -> list[Step]:
    """Fold patterns that repeat REPEATS times or more: keep the first, add a note with the number and the duration."""
    keys = [step.key for step in found]
    result: list[Step] = []
    at = 0
    while at < len(found):
        length, times = repeated_pattern(keys, at)
        result += found[at : at + length]
        again = found[at + length : at + length * times]
        if again:
            lasted = again[-1].ts_ns - found[at].ts_ns
            what = found[at].name if length == 1 else f"the {length} steps above"
            note = f"{what}, {times - 1:,} times more" + (f": {duration(lasted)} in all" if lasted else "")
            frames = sum(step.frames for step in again)
            result.append(Step(ts_ns=again[-1].ts_ns, label=note, connection_id=again[-1].connection_id, frames=frames))
        at += length * times
    return result


def repeated_pattern(keys: Sequence[object], at: int) -> tuple[int, int]:
    """(length, times) of the shortest pattern from here that repeats REPEATS times or more; else (1, 1)."""
    for length in range(1, LONGEST_CYCLE + 1):
        pattern, times = keys[at : at + length], 1
        while keys[at + times * length : at + (times + 1) * length] == pattern:
            times += 1
        if times >= REPEATS:
            return length, times
    return 1, 1
