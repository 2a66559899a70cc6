"""All contexts by name: what makes the rows of each, and what that reads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pyspark.sql import DataFrame

from pipeline.audit.contexts import (
    channels,
    connections,
    entities,
    messages,
    outstanding,
    peers,
    practice,
    request_reply,
    sequences,
    settlements,
    silences,
    sources,
)
from pipeline.audit.contexts.sources import Sources
from pipeline.audit.detectors import needed_states


@dataclass(frozen=True)
class Context:
    """`rows`: computes the rows; None means none, and nothing is planned. `reads`: properties of Sources that scan a
    whole table. `full_scan`: it scans one itself."""

    rows: Callable[[Sources], DataFrame | None]
    reads: tuple[str, ...] = ()
    full_scan: bool = False


CONTEXTS: dict[str, Context] = {
    "connections": Context(lambda sources: sources.connections),
    "control": Context(connections.control),
    "captures": Context(connections.captures),
    "peers": Context(peers.peers),
    "refusals": Context(peers.refusals),
    "silences": Context(silences.silences),
    "blocked": Context(silences.blocked, full_scan=True),
    "frames": Context(sources.frames, ("unusual_frames",)),
    "events": Context(lambda of: sources.events(of, needed_states(of.rules)), ("unusual_methods",)),
    "request_reply": Context(request_reply.request_reply),
    "entities": Context(entities.entities),
    "incarnations": Context(channels.incarnations, ("message_counts", "unusual_methods")),
    "rates": Context(channels.rates),
    "tags": Context(channels.tags, ("unusual_methods",), full_scan=True),
    "numbers": Context(messages.numbers, full_scan=True),
    "waits": Context(messages.waits, full_scan=True),
    "returned_publishes": Context(messages.returned_publishes, full_scan=True),
    "redeliveries": Context(messages.redeliveries, full_scan=True),
    "contents": Context(messages.contents, full_scan=True),
    "files": Context(messages.files),
    "settlements": Context(settlements.settlements, full_scan=True),
    "outstanding_peaks": Context(lambda sources: sources.outstanding_peaks, ("outstanding_peaks",)),
    "prefetched": Context(outstanding.prefetched, ("outstanding_peaks", "unusual_methods"), full_scan=True),
    "sequences": Context(sequences.sequences, full_scan=True),
    "handed_back": Context(sequences.handed_back, full_scan=True),
    "session_messages": Context(sequences.session_messages, full_scan=True),
    "stolen_links": Context(sequences.stolen_links, full_scan=True),
    "upgrades": Context(practice.upgrades),
    "requeued": Context(practice.requeued, full_scan=True),
    "habits": Context(practice.habits, ("message_counts",)),
    "repeats": Context(practice.repeats),
    "requeue_loops": Context(practice.requeue_loops, full_scan=True),
    "unrouted": Context(practice.unrouted, full_scan=True),
    "timed_out": Context(practice.timed_out, full_scan=True),
    "tokens": Context(practice.tokens, full_scan=True),
}
