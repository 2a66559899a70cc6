"""Answers and how they are written: texts with values of a row in them, and the page of plain text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from textwrap import wrap
from typing import Any

from pipeline.output.formatting import PART_NAMES, duration, plain_text

WIDTH = 100
LONGEST = 300  # characters of a value
PLACEHOLDER = re.compile(r"\{(\w+)(?::(\w+))?\}")
LARGE = 10_000
MOST_PARTS = 3
ALERT_BYTES = 7  # of TLS in clear, with its record header


@dataclass(frozen=True)
class Event:
    """Something that happened: `ts_ns`, ns since 1970-01-01 UTC; `who`: 'client', 'server', or '' for nobody."""

    ts_ns: int
    who: str
    text: str
    frame_no: int | None = None
    packet_no: int | None = None


@dataclass(frozen=True)
class Answer:
    """What explains a connection, a queue or a message. `cause`: its id in `causes.json`; `told`: false where the
    capture cannot tell; `connections`: how many have the same cause, application and server, this one being the first.
    `at_ns`, `frame_no`, `packet_no`: the proof. Times are in ns since 1970-01-01 UTC; None: not known."""

    subject: str
    cause: str
    told: bool
    answer: str
    connection_id: int | None = None
    capture_file: str | None = None
    opened_ns: int | None = None
    at_ns: int | None = None
    frame_no: int | None = None
    packet_no: int | None = None
    connections: int = 1
    events: Sequence[Event] = ()
    ruled_out: Sequence[str] = ()
    findings: Sequence[str] = ()
    advice: Sequence[str] = ()
    weight: int = field(default=0, compare=False)
    harmless: bool = field(default=False, compare=False)

    def __str__(self) -> str:
        return page(self)

    def as_dict(self) -> dict[str, Any]:
        """The answer as JSON has it."""
        return {name: value for name, value in asdict(self).items() if name not in ("weight", "harmless")}


def filled(text: str, row: Mapping[str, Any]) -> str:
    """`text` with the values that it names in braces, as `{name}` or `{name:kind}`."""
    return PLACEHOLDER.sub(lambda match: written(row, match[1], match[2]), text)


def _parts(means: Mapping[str, float | None]) -> str:
    """The largest parts of the latency of messages."""
    longest = sorted(((int(ns), name) for name, ns in means.items() if ns), reverse=True)[:MOST_PARTS]
    parts = ", ".join(f"{duration(ns)} {PART_NAMES[name]}" for ns, name in longest)
    return f" From publish to settlement: {parts}." if parts else ""


def _how_long(stall: Mapping[str, Any] | None) -> str:
    """How long and how often something held a connection up; null: it is told by other facts."""
    if not stall:
        return "each time"
    times = "once" if stall["times"] == 1 else f"{stall['times']:,} times"
    return f"{times}, {duration(stall['ns'])} in all" + ("" if stall["resumed"] else ", the longest one to the end")


def written(row: Mapping[str, Any], name: str, kind: str | None) -> str:
    """The value `name` of a row as text, by its `kind`: words around it that go where it is null."""
    value = row[name]
    match kind:
        case "application":
            return plain_text(value, LONGEST) if value else "an application without a name"
        case "user":
            return f"user {plain_text(value, LONGEST)}" if value else "the user"
        case "login":
            parts = [
                f"{what} {plain_text(of, LONGEST)}" for what, of in (("user", value), ("vhost", row["vhost"])) if of
            ]
            return f" ({', '.join(parts)})" if parts else ""
        case "protocol":
            return f"AMQP {value}" if value else "no AMQP"
        case "because":
            return f": {plain_text(value, LONGEST).rstrip('.')}" if value else ""
        case "late":
            return f" before: the answer came after {duration(value)}" if value is not None else ""
        case "alert":
            return ", but with an alert of TLS" if value == ALERT_BYTES else ""
        case "reply":
            return f" in reply to {value}" if value else ""
        case "limit":
            return f", and {duration(value)} is what it tolerates" if value is not None else ""
        case "waits":
            return f", messages wait {duration(value)} (median)" if value is not None else ""
        case "settles":
            return f", and consumers settle each within {duration(value)} (median)" if value is not None else ""
        case "after":
            return f" after {duration(value)}" if value is not None else ""
        case "nothing":
            return f" Nothing else is in the capture, which lacks {value:,} bytes." if value else " Nothing is wrong."
        case "held":
            return _how_long(value)
        case "own":
            return value["side"] if value else "client"
        case "other":
            return "client" if value and value["side"] == "server" else "server"
        case "parts":
            return _parts(value or {})
        case "time":
            return moment(value) if value is not None else "that time"
        case "shorter":
            return str(duration(min(row["client_quiet_ns"], row["server_quiet_ns"])))
        case "text":
            return plain_text(value, LONGEST) if value else "without a name"
    if value is None:
        return "unknown"
    if name.endswith("_ns"):
        return str(duration(value))
    if isinstance(value, list | tuple):
        return ", ".join(plain_text(each, LONGEST) for each in value)
    if isinstance(value, int):
        return f"{value:,}" if abs(value) >= LARGE else str(value)
    return plain_text(value, LONGEST).rstrip(".")


def moment(ns: int) -> str:
    """A time in UTC, to the millisecond."""
    try:
        return f"{datetime.fromtimestamp(ns // 10**9, tz=UTC):%Y-%m-%d %H:%M:%S}.{ns // 10**6 % 1000:03d} UTC"
    except (OverflowError, OSError, ValueError):  # beyond the year 9999
        return f"{ns / 10**9:.3f} s after 1970"


def page(answer: Answer, tables: str | None = None) -> str:
    """An answer as plain text; `tables`: their directory, for the command that cuts the packets out."""
    return "\n".join(_lines(answer, tables))


def _lines(answer: Answer, tables: str | None) -> Iterator[str]:
    yield from _paragraph(answer.subject, "")
    yield from _paragraph(answer.answer, "  ")
    if answer.connections > 1:
        yield f"  The same happened to {answer.connections:,} connections; this is the first of them."
    yield from _section("What happened", _timeline(answer.events))
    yield from _section("The proof", _paragraphs(proof(answer)))
    if tables is not None and answer.connection_id is not None:
        yield f"    wirehare cut {tables} --connection {answer.connection_id} -o connection.pcapng"
    yield from _section("Ruled out", _paragraphs(answer.ruled_out))
    yield from _section("What to do", _paragraphs(answer.advice))
    yield ""


def _section(title: str, lines: Iterable[str]) -> Iterator[str]:
    found = list(lines)
    if found:
        yield from ("", f"  {title}", *found)


def _timeline(events: Sequence[Event]) -> Iterator[str]:
    for event, when in zip(events, times(events), strict=True):
        packet = f"  [packet {event.packet_no:,}]" if event.packet_no is not None else ""
        yield f"    {when:>27}  {event.who:<6}  {plain_text(event.text, LONGEST)}{packet}"


def times(events: Sequence[Event]) -> list[str]:
    """The time of the first event, and for the others the seconds since."""
    since = [f"+{(event.ts_ns - events[0].ts_ns) / 10**9:.6f} s" for event in events[1:]]
    return [*(moment(event.ts_ns) for event in events[:1]), *since]


def proof(answer: Answer) -> Iterator[str]:
    """Where the proof is, and which rules the connection breaks."""
    proofs = [f"{name} {of:,}" for name, of in (("frame", answer.frame_no), ("packet", answer.packet_no)) if of]
    at = f" at {moment(answer.at_ns)}" if answer.at_ns is not None else ""
    if answer.capture_file and (proofs or at):
        where = plain_text(answer.capture_file, LONGEST)
        yield f"{', '.join(proofs) or 'The last packet'}{at}, in {where}"
    if answer.findings:
        yield f"Rules that the connection breaks: {', '.join(answer.findings)}"


def _paragraphs(texts: Iterable[str]) -> Iterator[str]:
    for text in texts:
        yield from _paragraph(text, "    ")


def _paragraph(text: str, indent: str) -> Iterator[str]:
    yield from wrap(text, WIDTH, initial_indent=indent, subsequent_indent=indent, break_long_words=False) or [indent]
