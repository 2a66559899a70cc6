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

RELATIONS: dict[str, Relation] = {
    **connections.RELATIONS,
    **prefilter.RELATIONS,
    **messages.RELATIONS,
    **channels.RELATIONS,
    **settlements.RELATIONS,
    **practice.RELATIONS,
    **sequences.RELATIONS,
}
CONTEXTS: dict[str, Context] = {
    **connections.CONTEXTS,
    **prefilter.CONTEXTS,
    **messages.CONTEXTS,
    **channels.CONTEXTS,
    **settlements.CONTEXTS,
    **practice.CONTEXTS,
    **sequences.CONTEXTS,
    **brokers.CONTEXTS,
}
