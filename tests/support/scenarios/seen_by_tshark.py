"""Messages and flows of a shipped 0-8 to 0-9-1 capture, made in plain Python of what tshark found in it.

The frames are those of the goldens beside the captures (`golden`). A publish and a delivery are one message when
exchange, routing key, identifiers and body are the same; from each queue the n-th is the n-th, and what is redelivered
belongs to what was delivered from that queue before. Publishes of a rolled-back transaction never happened.
"""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import golden

PUBLISH, RETURN, DELIVER, GET_OK = "Publish (40)", "Return (50)", "Deliver (60)", "Get-Ok (71)"
OPERATIONS = {PUBLISH: "publish", RETURN: "return", DELIVER: "deliver", GET_OK: "get"}


@dataclass
class Seen:
    """A message on the wire; times in ns: of its method, of its last frame."""

    operation: str
    stream: int
    begun: int
    end: int
    exchange: str
    routing_key: str
    queue: str | None
    redelivered: bool
    correlation_id: str | None = None
    message_id: str | None = None
    reply_to: str | None = None
    body_size: int = 0
    body: str = ""
    rolled_back: bool = False

    @property
    def key(self) -> tuple[Any, ...]:
        return self.exchange, self.routing_key, self.correlation_id, self.message_id, self.body_size, self.body


def messages(name: str) -> list[Seen]:
    """All messages of a capture in the order of their methods."""
    found: list[Seen] = []
    current: dict[tuple[int, str, str], Seen] = {}  # by stream, sender, channel
    consumed: dict[tuple[int, str, str], str] = {}  # by stream, channel, consumer tag
    asked: dict[tuple[int, str], str] = {}  # queue of the basic.get that is not answered
    open_publishes: dict[tuple[int, str], list[Seen]] = defaultdict(list)
    for row in frames(name):
        fields = flat(row["f"])
        stream, channel, at = row["stream"], fields.get("channel", "0"), nanoseconds(row["time"])
        key = (stream, row["srcport"], channel)
        method = row["kind"].rpartition(".")[2]
        if "Consume (20)" in method:
            consumed[(stream, channel, fields.get("consumer_tag") or "")] = fields["queue"]
        elif "Get (70)" in method:
            asked[(stream, channel)] = fields["queue"]
        elif "Tx" in row["kind"] and ("Commit (20)" in method or "Rollback (30)" in method):
            for seen in open_publishes.pop((stream, channel), []):
                seen.rolled_back = "Rollback" in method
        elif method in OPERATIONS:
            operation = OPERATIONS[method]
            queue = {
                "deliver": consumed.get((stream, channel, fields.get("consumer_tag") or "")),
                "get": asked.get((stream, channel)),
            }.get(operation)
            seen = Seen(
                operation, stream, at, at, fields.get("exchange") or "", fields.get("routing_key") or "", queue,
                fields.get("redelivered") == "1",
            )  # fmt: skip
            current[key] = seen
            found.append(seen)
            if operation == "publish":
                open_publishes[(stream, channel)].append(seen)
        elif "Content header" in row["kind"] and key in current:
            seen = current[key]
            seen.end = at
            seen.body_size = int(fields["body-size"])
            for name_ in ("correlation_id", "message_id", "reply_to"):
                setattr(seen, name_, fields.get(name_))
        elif "Content body" in row["kind"] and key in current:
            current[key].end = at
            current[key].body += fields["payload"].replace(":", "")
    return found


def flows(name: str) -> list[tuple[int | None, int | None, int]]:
    """(end of the publish, beginning of the first delivery, redeliveries), sorted."""
    published: dict[tuple[Any, ...], list[Seen]] = defaultdict(list)
    pairs: dict[tuple[Any, ...], list[list[Seen]]] = defaultdict(list)  # by queue and key, each [first, again, ...]
    everything = messages(name)
    returned: dict[tuple[Any, ...], int] = defaultdict(int)
    for seen in everything:
        if seen.operation == "return":
            returned[seen.key] += 1
    unpaired = []
    for seen in everything:
        if seen.operation == "publish":
            if returned[seen.key] or seen.rolled_back:
                returned[seen.key] -= returned[seen.key] > 0
                unpaired.append(seen)
            else:
                published[seen.key].append(seen)
    for seen in everything:
        if seen.operation in ("deliver", "get"):
            known = pairs[(seen.queue, *seen.key)]
            if seen.redelivered and known:
                min(known, key=len).append(seen)
            else:
                known.append([seen])
    found: list[tuple[int | None, int | None, int]] = [(seen.end, None, 0) for seen in unpaired]
    used: set[int] = set()
    for (_, *key), delivered in pairs.items():
        candidates = published[tuple(key)]
        for position, group in enumerate(delivered):
            publish = candidates[position] if position < len(candidates) else None
            if publish is not None:
                used.add(id(publish))
            found.append((publish.end if publish else None, group[0].begun, len(group) - 1))
    found += [(p.end, None, 0) for group in published.values() for p in group if id(p) not in used]
    return sorted(found, key=in_time)


def in_time(flow: tuple[int | None, int | None, int]) -> tuple[int, int, int]:
    publish, delivery, again = flow
    return publish or 0, delivery or 0, again


def rpc_latencies(name: str) -> list[tuple[int, int]]:
    """(end of a request, from its beginning to the end of the delivery that bears its correlation-id back), sorted."""
    everything = messages(name)
    found = []
    for request in everything:
        answers = [
            seen.end - request.begun
            for seen in everything
            if seen.operation == "deliver" and seen.stream == request.stream and seen.begun > request.end
            and seen.reply_to is None and seen.correlation_id == request.correlation_id
        ]  # fmt: skip
        if request.operation == "publish" and request.reply_to and answers:
            found.append((request.end, min(answers)))
    return sorted(found)


def rpc_latencies_1_0(name: str, broker_port: int = 5672) -> list[tuple[int, int]]:
    """The same of a capture of 1.0 whose messages are one transfer and one packet each."""
    asked: dict[str, int] = {}
    found = []
    for row in frames(name):
        fields = flat(row["f"])
        about, at = fields.get("correlationId.string"), nanoseconds(row["time"])
        wants_reply = "replyTo.string" in fields
        if about is not None and wants_reply and row["dstport"] == broker_port:
            asked[about] = at
        elif about is not None and not wants_reply and row["srcport"] == broker_port:
            found.append((asked[about], at - asked[about]))
    return sorted(found)


def frames(name: str) -> list[dict[str, Any]]:
    """The lines of the golden."""
    with gzip.open(golden.CAPTURES / f"{name}.frames.jsonl.gz", "rt") as lines:
        return [json.loads(line) for line in lines]


def flat(fields: list[dict[str, Any]]) -> dict[str, str]:
    """Field -> value, by the last part of tshark's name; the first of each name."""
    found: dict[str, str] = {}
    for field in fields:
        if "c" in field:
            for name, value in flat(field["c"]).items():
                found.setdefault(name, value)
        else:
            found.setdefault(last_part(field["n"]), field.get("s") or "")
    return found


def last_part(name: str) -> str:
    """Of a name in dots the last part; of a property of 1.0 with its type."""
    of_type = name.endswith(".string")
    return name.split(".", name.count(".") - of_type)[-1]


def nanoseconds(seconds: str) -> int:
    seconds_part, _, part = seconds.partition(".")
    return int(seconds_part) * 10**9 + int(part.ljust(9, "0"))
