"""What summaries must say of a script, counted from its events: rates, backlogs, consumers."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from scenarios.capture import OPENING_STEP_NS
from scenarios.script import Script
from scenarios.truth import fates, messages

Consumer = tuple[int, int, str | None]  # peer, channel, consumer; None: messages that were got
UNKNOWN = -1  # the script does not tell
# Packets of an opening from asking for messages to allowing some: in 0-10 flow mode, messages, bytes; in 1.0 the
# answer, and the flow.
BEFORE_CREDIT = {"0-10": 3, "1.0": 2}


def rates(script: Script, every_ns: int) -> dict[tuple[Any, ...], list[int]]:
    """(interval, peer, exchange, queue, address) -> messages published and their bytes, delivered and theirs."""
    found: dict[tuple[Any, ...], list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    for row in messages(script):
        if row["operation"] != "return":
            key = (row["peer"], row["exchange"], row["queue"], row["address"])
            counted = found[(row["ts_ns"] // every_ns * every_ns, *key)]
            first = 0 if row["operation"] == "publish" else 2
            counted[first] += 1
            counted[first + 1] += row["body_size"]
    return dict(found)


def backlog(script: Script) -> dict[Consumer, list[tuple[int, int]]]:
    """How many deliveries of a consumer are open from when on, at every change."""
    changes: dict[Consumer, dict[int, int]] = defaultdict(lambda: defaultdict(int))
    for index, fate in fates(script).items():
        event = script.events[index]
        if event.kind not in ("deliver", "get") or event.no_ack or not script.peers[event.peer].captured:
            continue
        consumer = (event.peer, event.channel, event.consumer or None)
        changes[consumer][event.at] += 1
        if fate.at is not None:
            changes[consumer][fate.at] -= 1
    found = {}
    for consumer, by_time in changes.items():
        at_once = sorted(by_time.items())
        found[consumer] = [(at, sum(change for _, change in at_once[: n + 1])) for n, (at, _) in enumerate(at_once)]
    return found


def consumers(script: Script) -> dict[Consumer, dict[str, Any]]:
    """What each consumer that was sent anything did: columns of `pipeline.consumers`."""
    fate_of, opened = fates(script), backlog(script)
    waits: dict[Consumer, list[int | None]] = defaultdict(list)
    for index, event in enumerate(script.events):
        if event.kind in ("deliver", "get") and script.peers[event.peer].captured:
            settled = fate_of[index].at
            waits[(event.peer, event.channel, event.consumer or None)].append(
                None if settled is None else settled - event.at
            )
    return {
        consumer: {
            "deliveries": len(waited),
            **of_settling(sorted(wait for wait in waited if wait is not None)),
            "most_outstanding": max((number for _, number in opened.get(consumer, [])), default=0),
            "exhausted_ns": exhausted(script, consumer, opened.get(consumer, [])),
        }
        for consumer, waited in waits.items()
    }


def of_settling(waited: list[int]) -> dict[str, int | None]:
    """Count and nearest ranks of times that are in order."""
    ranks = {"settle_p50_ns": 50, "settle_p99_ns": 99, "settle_max_ns": 100}
    return {
        "settled": len(waited),
        **{name: waited[-(-len(waited) * rank // 100) - 1] if waited else None for name, rank in ranks.items()},
    }


def exhausted(script: Script, consumer: Consumer, opened: list[tuple[int, int]]) -> int | None:
    """For how long the consumer had as much open as it may have; UNKNOWN where that never ends."""
    number, channel, tag = consumer
    peer = script.peers[number]
    limit = peer.channel(channel).prefetch
    if tag is None or (peer.classic and not limit):
        return None
    waited = BEFORE_CREDIT.get(peer.version, 0) * OPENING_STEP_NS
    if not limit:
        return waited
    ends = [at for at, _ in opened[1:]]
    ends += [event.at for event in script.events if event.kind == "close" and event.peer == number]
    for key, (at, number_open) in enumerate(opened):
        if number_open >= limit:
            if key == len(ends):
                return UNKNOWN
            waited += ends[key] - at
    return waited
