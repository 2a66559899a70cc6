"""All detectors and the contexts that they read. Each group of rules is a module with `DETECTORS`, and if needed
`STATES` of context 'events' and `CONTEXTS` of its own."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from types import ModuleType

from pyspark.sql import DataFrame

from pipeline.audit.contexts import sources as contexts
from pipeline.audit.contexts.sources import Sources
from pipeline.audit.detector import Detector, State
from pipeline.audit.detectors import (
    amqp_0_10,
    amqp_1_0,
    capture,
    channels,
    closing,
    confirms,
    consumers,
    contents,
    deliveries,
    flow,
    framing,
    handshake,
    heartbeats,
    methods,
    naming,
    negotiation,
    practice,
    security,
    transactions,
)

MODULES: tuple[ModuleType, ...] = (
    negotiation,
    handshake,
    security,
    heartbeats,
    closing,
    capture,
    flow,
    framing,
    contents,
    methods,
    channels,
    naming,
    deliveries,
    consumers,
    transactions,
    confirms,
    practice,
    amqp_0_10,
    amqp_1_0,
)
DETECTORS: tuple[Detector, ...] = tuple(detector for module in MODULES for detector in module.DETECTORS)
STATES: dict[str, State] = {
    "opens_before": State("count(CASE WHEN name = 'channel.open' THEN 1 END)"),
    **{name: state for module in MODULES for name, state in getattr(module, "STATES", {}).items()},
}


def needed_states(rules: Collection[str]) -> dict[str, State]:
    """The STATES that detectors of these rules use, and the states that these depend on."""
    words: set[str] = {"opens_before"}
    for detector in DETECTORS:
        if detector.context == "events" and detector.rule in rules:
            words |= _words(repr(detector))
    for layer in sorted({state.layer for state in STATES.values()}, reverse=True):
        for name, state in STATES.items():
            if state.layer == layer and name in words:
                words |= _words(state.value)
    return {name: state for name, state in STATES.items() if name in words}


def _words(text: str) -> set[str]:
    return set(re.findall(r"\w+", text))


# A context without rows may be None: nothing is planned for it.
CONTEXTS: dict[str, Callable[[Sources], DataFrame | None]] = {
    "connections": lambda sources: sources.connections,
    "frames": contexts.frames,
    "events": lambda sources: contexts.events(sources, needed_states(sources.rules)),
    **{name: context for module in MODULES for name, context in getattr(module, "CONTEXTS", {}).items()},
}
# Properties of Sources that scan a whole table, by the contexts that need them.
SOURCES_OF_CONTEXT: dict[str, tuple[str, ...]] = {
    "frames": ("unusual_frames",),
    "events": ("unusual_methods",),
    "incarnations": ("message_counts", "unusual_methods"),
    "outstanding_peaks": ("outstanding_peaks",),
    "prefetched": ("outstanding_peaks", "unusual_methods"),
    "tags": ("unusual_methods",),
    "habits": ("message_counts",),
}
# Contexts that scan a whole table themselves.
FULL_SCANS = (
    "settlements", "numbers", "tags", "redeliveries", "prefetched", "waits", "contents", "returned_publishes",
    "blocked", "sequences", "handed_back", "session_messages", "stolen_links", "requeued", "requeue_loops", "unrouted",
    "timed_out", "tokens",
)  # fmt: skip
