"""What became of all messages of some connections, whose events are all known (`codec.conversation.settlement`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codec.conversation.settlement import (
    ROLLED_BACK,
    Events,
    Settled,
    end_ledger,
    new_ledger,
    new_settled,
    settle,
    with_room,
)

# The order of the events of a ledger.
ORDER = ("frame_no", "opens", "first", "last", "final", "outcome")


def settled_at_once(columns: Mapping[str, NDArray[np.int64]] | NDArray[Any]) -> Settled:
    """All events of some connections, columns of `codec.conversation.settlement.Events` in any order -> what became of
    the messages:
    outcomes and transactions as numbers."""
    opens = -columns["opens"]
    order = np.lexsort(
        [opens if name == "opens" else columns[name] for name in reversed(("connection", "ledger", *ORDER))]
    )
    events = Events(*(_fixed(columns[name][order]) for name in Events._fields))
    openings = int(events.opens.sum())
    ledger, rows = with_room(new_ledger(), openings, has_notes(events)), new_settled(openings)
    n = int(settle(ledger, events, rows))
    n = int(end_ledger(ledger, rows, n))
    return Settled(*(column[:n] for column in rows))


def has_notes(events: Events) -> bool:
    """Whether some of the events settle nothing, but are kept in mind."""
    undone = events.transaction == ROLLED_BACK
    return bool(np.any((events.opens == 0) & (undone | (events.final == 0))))


def _fixed(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """Never writeable: kernels are compiled for one kind of array."""
    values = np.ascontiguousarray(values)
    values.flags.writeable = False
    return values
