"""Places of sessions and links: in saved data they count from the first of their connection, in records from the first
of all."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from codec.conversation.sessions.state import MAPS
from codec.conversation.settlement import Settled
from codec.conversation.states import blank
from udfs.conversation.states import ConnectionRecords

Integers = NDArray[np.int64]
COUNT = blank("connection session sender outcome count").dtype
COMPLETED = blank(" ".join(Settled._fields)).dtype


class Begins:
    """Where the records of each connection begin: places in saved records count from there."""

    def __init__(self, records: NDArray[np.void]) -> None:
        self.ids, self._first = np.unique(records["connection"], return_index=True)

    def of(self, connections: Integers) -> Integers:
        """The place of the first record of each connection."""
        found: Integers = self._first[np.searchsorted(self.ids, connections)]
        return found


class SessionPlaces(Begins):
    """Converts numbers of sessions: in saved data they count from the first session of their connection, in records
    from the first of all."""

    def __init__(self, sessions: NDArray[np.void]) -> None:
        super().__init__(sessions)
        self._sessions = sessions

    def settled(self, completed: ConnectionRecords) -> Settled:
        """COMPLETED of these connections, numbered within all records."""
        own = completed.of(self.ids)
        columns = {name: np.ascontiguousarray(own[name]) for name in Settled._fields}
        columns["map_no"] = columns["map_no"] + self.of(own["connection"]) * MAPS
        return Settled(**columns)

    def completed(self, settled: Settled) -> NDArray[np.void]:
        """COMPLETED, numbered within each connection."""
        completed = np.zeros(len(settled.connection), COMPLETED)
        for name, column in settled._asdict().items():
            completed[name] = column
        completed["map_no"] -= self.of(settled.connection) * MAPS
        return completed

    def add(self, more: ConnectionRecords, counts: Integers) -> None:
        """Add COUNT of these connections to `counts`, by session, sender and outcome."""
        own = more.of(self.ids)
        at = self.of(own["connection"]) + own["session"], own["sender"], own["outcome"]
        np.add.at(counts, at, own["count"])

    def counts(self, counts: Integers) -> NDArray[np.void]:
        """COUNT of `counts`, numbered within each connection."""
        session, sender, outcome = np.nonzero(counts)
        found = np.zeros(len(session), COUNT)
        found["connection"] = self._sessions["connection"][session]
        found["session"] = session - self.of(found["connection"])
        found["sender"], found["outcome"], found["count"] = sender, outcome, counts[session, sender, outcome]
        return found


def joined_settled(first: Settled, then: Settled) -> Settled:
    """The messages of both."""
    return Settled(*(np.concatenate(columns) for columns in zip(first, then, strict=True)))
