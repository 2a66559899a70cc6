"""What detectors read: sets of rows, each computed once for all rules that ask for it; all of them by name."""

from __future__ import annotations

from pipeline.audit.contexts import (
    brokers,
    channels,
    connections,
    messages,
    practice,
    prefilter,
    sequences,
    settlements,
)
from pipeline.audit.contexts.sources import Context, Relation

MODULES = (connections, prefilter, messages, channels, settlements, practice, sequences, brokers)
RELATIONS: dict[str, Relation] = {
    name: relation for module in MODULES for name, relation in getattr(module, "RELATIONS", {}).items()
}
CONTEXTS: dict[str, Context] = {name: context for module in MODULES for name, context in module.CONTEXTS.items()}
