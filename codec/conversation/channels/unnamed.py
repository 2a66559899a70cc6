"""States without what no later row can name: queues declared without a name that nothing refers to any more, and types
of queues that were declared too long ago."""

from __future__ import annotations

import numpy as np

from codec.conversation.channels.connections import CELLS
from codec.conversation.channels.links import QUEUE_TYPES, TYPE_KEY, TYPE_SHIFT
from codec.conversation.channels.state import DECLARED, NONE, TYPED
from codec.conversation.states import ConnectionStates, absolute, new_places, owners

# Fields that hold the place of a declared name: as it is, or below 0 (`links.declare_queue`).
_PLAIN = (("requests", "declares"),)
_NEGATIVE = (("slots", "declared"), ("links", "queue"))


def without_unnamed(states: ConnectionStates) -> ConnectionStates:
    """The states without it."""
    parts, there = dict(states.parts), states.counts["numbers"] > 0
    numbers = parts["numbers"].reshape(-1, CELLS).copy()
    typed = np.zeros(len(states.ids), np.int64)
    typed[there] = numbers[:, TYPED]
    keys, values = parts["keys"], parts["values"]
    known = (keys < TYPE_KEY) | (typed[owners(states, "keys")] - (values >> TYPE_SHIFT) < QUEUE_TYPES)
    named, places = np.zeros(len(parts["declared"]), bool), {}
    for part, field in (*_PLAIN, *_NEGATIVE):
        found = parts[part][field]
        own = found if (part, field) in _PLAIN else np.where(found < 0, -found - 1, NONE)
        at = np.flatnonzero(own != NONE)
        places[part, field] = at, absolute(states, "declared", owners(states, part)[at], own[at])
        named[places[part, field][1]] = True
    new_place = new_places(states, "declared", ~named)
    for (part, field), (at, of) in places.items():
        parts[part] = parts[part].copy()
        parts[part][field][at] = new_place[of] if (part, field) in _PLAIN else -new_place[of] - 1
    found_by = ConnectionStates(states.ids, parts, states.counts)
    for name, chosen in (("declared", named), ("keys", known), ("values", known)):
        found_by = found_by.filtered(name, chosen)
    numbers[:, DECLARED] = found_by.counts["declared"][there]
    return ConnectionStates(states.ids, {**found_by.parts, "numbers": numbers.reshape(-1)}, found_by.counts)
