"""All detectors and the contexts that they read. A group of rules is one module: `DETECTORS`, and where it needs them
`STATES` of context 'events' and `CONTEXTS` of its own."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

from pyspark.sql import DataFrame

from pipeline.audit import contexts
from pipeline.audit.contexts import Sources
from pipeline.audit.detector import Detector, State
from pipeline.audit.detectors import (
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
)
DETECTORS: tuple[Detector, ...] = tuple(detector for module in MODULES for detector in module.DETECTORS)
STATES: dict[str, State] = {
    "opens_before": State("count(CASE WHEN name = 'channel.open' THEN 1 END)"),
    **{name: state for module in MODULES for name, state in getattr(module, "STATES", {}).items()},
}
CONTEXTS: dict[str, Callable[[Sources], DataFrame]] = {
    "connections": lambda sources: sources.connections,
    "frames": contexts.frames,
    "events": lambda sources: contexts.events(sources, STATES),
    **{name: context for module in MODULES for name, context in getattr(module, "CONTEXTS", {}).items()},
}
