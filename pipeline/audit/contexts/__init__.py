"""What detectors read: sets of rows, each computed once for all rules that ask for it; all of them by name."""

from __future__ import annotations

from pipeline.audit.contexts import (
    channels,
    connections,
    entities,
    messages,
    outstanding,
    peers,
    practice,
    prefilter,
    request_reply,
    sequences,
    settlements,
    silences,
)
from pipeline.audit.contexts.sources import Context, Relation

RELATIONS: dict[str, Relation] = {
    **connections.RELATIONS,
    **prefilter.RELATIONS,
    **messages.RELATIONS,
    **channels.RELATIONS,
    **outstanding.RELATIONS,
    **settlements.RELATIONS,
    **practice.RELATIONS,
    **sequences.RELATIONS,
}
CONTEXTS: dict[str, Context] = {
    **connections.CONTEXTS,
    **prefilter.CONTEXTS,
    **messages.CONTEXTS,
    **channels.CONTEXTS,
    **outstanding.CONTEXTS,
    **settlements.CONTEXTS,
    **practice.CONTEXTS,
    **sequences.CONTEXTS,
    **peers.CONTEXTS,
    **silences.CONTEXTS,
    **request_reply.CONTEXTS,
    **entities.CONTEXTS,
}
