"""Labels of frames in a ladder: their kind, and their characteristic arguments, as data with one interpreter."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from pipeline.output.units import size
from pipeline.report.text import plain_text

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


def label(frame: Mapping[str, Any], shown: int) -> str:
    """The label of an arrow, at most `shown` characters: the name and the characteristic arguments."""
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
    return truncated(plain_text(name or frame_type, shown), words, shown)


def truncated(name: str, words: list[str], shown: int) -> str:
    """Name and words as one line of at most `shown` characters."""
    line = " ".join([name, *words])
    return line if len(line) <= shown else line[: shown - 1].rstrip() + "…"


def argument(arguments: Mapping[str, Any], path: str, form: str) -> str | None:
    """One argument as text; None if it is left out."""
    found: Any = arguments
    for part in path.split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    if found == "" and path in EMPTY:
        return EMPTY[path]
    if found is None or found is False or found in ("", [], {}) or (found == 0 and form.startswith("prefetch")):
        return None
    if form.startswith("#") and not isinstance(found, int):  # tags of 1.0 may be any octets; its delivery-id follows
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
    """The kind of a frame (KINDS)."""
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
