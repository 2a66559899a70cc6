"""All detectors and the contexts that they read. A group of rules is one module: `DETECTORS`, and where it needs them
`STATES` of context 'events' and `CONTEXTS` of its own."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from types import ModuleType

from pyspark.sql import DataFrame

from pipeline.audit.contexts import registry as contexts
from pipeline.audit.contexts.registry import Sources
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
    encryption,
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
    encryption,
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


def asked_for(rules: Collection[str]) -> dict[str, State]:
    """The STATES that detectors of these rules name, and the states that those are made of."""
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
    "events": lambda sources: contexts.events(sources, asked_for(sources.rules)),
    **{name: context for module in MODULES for name, context in getattr(module, "CONTEXTS", {}).items()},
}
# What contexts are made of that is read out of all rows of a table; what is beside that are few rows.
MADE_OF: dict[str, tuple[str, ...]] = {
    "frames": ("odd_frames",),
    "events": ("odd_methods",),
    "lives": ("tallied", "odd_methods"),
    "pile_ups": ("piles",),
    "prefetched": ("piles", "odd_methods"),
    "tags": ("odd_methods",),
    "habits": ("tallied",),
}
# These read all rows themselves.
READING = (
    "settlements", "numbers", "tags", "redeliveries", "prefetched", "waits", "contents", "returned", "blocked",
    "sequences", "disposals", "odd_messages", "taken_links", "requeued", "returning", "unrouted", "timed_out", "tokens",
)  # fmt: skip
