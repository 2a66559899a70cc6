"""Steps of a ladder, from frames: labels with the characteristic arguments, contents joined to their method, long
silences marked, repeated patterns folded.

Python over a bounded number of rows (`ladder.FRAMES`); no Spark.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.output.formatting import duration, plain_text, size

# Kinds of step -> colour of the palette. The order is that of the legend.
KINDS = {
    "connection, channel": "muted",
    "queues, links": "c3",
    "messages": "c1",
    "settlement": "c4",
    "error": "bad",
    "lost or not AMQP": "c2",
}
# The first pattern that matches the start of a name, of any version.
KIND_OF_NAME = (
    (r"basic\.(publish|deliver|get|return)|message\.(transfer|get)|transfer|(file|stream)\.", "messages"),
    (r"basic\.(ack|nack|reject|recover)|message\.(accept|reject|release|acquire|ok|offset)|disposition", "settlement"),
    (r"tx\.|dtx\.|execution\.|confirm\.", "settlement"),
    (r"exchange|queue|basic\.|message\.|attach|detach|flow$|access", "queues, links"),
)
OF_CONNECTIONS = "connection, channel"
SPANS = {
    "gap": "bytes not captured",
    "skipped": "bytes in no frame",
    "foreign": "bytes of another protocol",
    "tls": "encrypted bytes",
}
# Arguments in the order of the label: path and format. False, null and empty values are left out, except in EMPTY.
ARGUMENTS = (
    ("reply_code", "{}"), ("reply_text", "{}"), ("error_code", "{}"), ("description", "{}"),
    ("error.condition", "{}"), ("error.description", "{}"), ("reason", "{}"),
    ("mechanism", "{}"), ("user", "as {}"), ("code", "code {}"), ("sasl_server_mechanisms", "{}"), ("mechanisms", "{}"),
    ("virtual_host", "vhost {}"), ("hostname", "host {}"), ("container_id", "{}"), ("heartbeat", "heartbeat {} s"),
    ("idle_time_out", "idle time-out {} ms"), ("frame_max", "frame max {}"), ("max_frame_size", "frame max {}"),
    ("exchange", "{}"), ("source.address", "{}"), ("target.address", "→ {}"), ("destination", "{}"),
    ("queue", "{}"), ("routing_key", "→ {}"), ("binding_key", "→ {}"), ("type", "{}"), ("name", "{}"),
    ("consumer_tag", "{}"), ("delivery_tag", "#{}"), ("delivery_id", "#{}"), ("first", "#{}"), ("last", "to #{}"),
    ("transfers", "{}"), ("commands", "{}"), ("state.type", "{}"), ("state.error.condition", "{}"),
    ("link_credit", "credit {}"), ("value", "{}"), ("prefetch_count", "prefetch {}"),
    ("message_count", "{} waiting"), ("multiple", "multiple"), ("requeue", "requeue"), ("redelivered", "redelivered"),
    ("mandatory", "mandatory"), ("settled", "settled"), ("more", "more"), ("drain", "drain"), ("no_ack", "no ack"),
    ("passive", "passive"), ("durable", "durable"), ("exclusive", "exclusive"), ("closed", "closed"),
)  # fmt: skip
EMPTY = {"exchange": "(default)"}
LAYERS: Mapping[object, str] = {2: " (TLS)", 3: " (SASL)"}  # protocol ids of 1.0
# The most arguments in a label, and characters of each.
PARTS, PART_CHARACTERS = 5, 26
# Sentences may be longer than names.
LONG_TEXTS = dict.fromkeys(("reply_text", "description", "error.description", "reason"), 80)
LEAST_ERROR_CODE = 300  # reply codes below are successes
# Arguments that are 0 unless something failed.
FAILURES = {"sasl-outcome": "code"}


def label(frame: Mapping[str, Any], limit: int) -> str:
    """The label of an arrow, at most `limit` characters: the name and the characteristic arguments."""
    name, frame_type = frame["name"], frame["frame_type"]
    if frame_type in SPANS:
        return f"{frame['size']:,} {SPANS[frame_type]}"
    arguments = read(frame["arguments"])
    if frame_type == "protocol-header":
        numbers = (arguments.get(part, "?") for part in ("protocol_id", "major", "minor", "revision"))
        return f"protocol header {' '.join(map(str, numbers))}{LAYERS.get(arguments.get('protocol_id'), '')}"
    if arguments.get("last") == arguments.get("first"):
        arguments = {**arguments, "last": None}
    words = [part for path, form in ARGUMENTS if (part := argument(arguments, path, form)) is not None][:PARTS]
    body = frame["body"]
    if body is not None:
        words.append(size(body))
    if frame["status"] != "ok":
        words.append(str(frame["status"]))
    return truncated(plain_text(name or frame_type, limit), words, limit)


def truncated(name: str, words: list[str], limit: int) -> str:
    """Name and words as one line of at most `limit` characters."""
    line = " ".join([name, *words])
    return line if len(line) <= limit else line[: limit - 1].rstrip() + "…"


def argument(arguments: Mapping[str, Any], path: str, form: str) -> str | None:
    """One argument as text; None if it is left out."""
    found: Any = arguments
    for part in path.split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    if found == "" and path in EMPTY:
        return EMPTY[path]
    if found is None or found is False or found in ("", [], {}) or (found == 0 and form.startswith("prefetch")):
        return None
    if form.startswith("#") and not isinstance(found, int):  # tags of 1.0 may be any bytes; its delivery-id follows
        return None
    if found is True:
        return form if "{}" not in form else None
    if isinstance(found, Mapping):
        return None
    return form.format(
        plain_text(ranges(found) if isinstance(found, list) else found, LONG_TEXTS.get(path, PART_CHARACTERS))
    )


def ranges(values: list[Any]) -> str:
    """A list as text; ranges of command ids (0-10) as their bounds."""
    return ", ".join(
        f"#{value['lower']} to #{value['upper']}" if isinstance(value, Mapping) and "upper" in value else str(value)
        for value in values[:PARTS]
    )


def kind(frame: Mapping[str, Any]) -> str:
    if frame["frame_type"] in SPANS:
        return "lost or not AMQP"
    arguments = read(frame["arguments"])
    codes = (arguments.get("reply_code"), arguments.get("error_code"))
    failed = any(isinstance(code, int) and code >= LEAST_ERROR_CODE for code in codes)
    name = frame["name"] or ""
    failed = failed or bool(arguments.get(FAILURES.get(name, "error")))
    if failed or frame["status"] in ("malformed", "unknown"):
        return "error"
    return next((kind for pattern, kind in KIND_OF_NAME if re.match(pattern, name)), OF_CONNECTIONS)


def read(arguments: str | None) -> Mapping[str, Any]:
    """Arguments from JSON; empty if they are unknown or not an object."""
    found = json.loads(arguments) if arguments else {}
    return found if isinstance(found, Mapping) else {}


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


def steps(frames: Iterable[Mapping[str, Any]], limit: int) -> list[Step]:
    """A step per frame, with contents joined to their method; labels have at most `limit` characters."""
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
            label=label(row, limit),
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
