"""A batch of frames, with what several tables need of it."""

from __future__ import annotations

from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from codec.amqp.notes import CAPTURED_LATE, PEER_LATE
from codec.conversation.sessions.semantics import ASKS, COORDINATES, IN_SEGMENTS
from udfs import roles
from udfs.arrow.fields import Fields, fields, inside, values_of
from udfs.arrow.rows import is_among, is_noted, is_there, one_of, picked

Flags = NDArray[np.bool_]


class FrameBatch:
    """Rows of frames, those of a connection together and in order, and what several tables need of them: each is
    computed once, when it is first asked for. `batch[name]`: a column."""

    def __init__(self, rows: pa.RecordBatch) -> None:
        self.rows = rows

    def __getitem__(self, name: str) -> pa.Array:
        return self.rows[name]

    def __len__(self) -> int:
        return int(self.rows.num_rows)

    @cached_property
    def arguments(self) -> dict[str, pa.Array]:
        """The fields READ_ARGUMENTS of `arguments`."""
        return fields(self["arguments"], roles.READ_ARGUMENTS)

    @cached_property
    def are_methods(self) -> Flags:
        """True for frames with a method, control, command or performative."""
        return is_among(self["frame_type"], *roles.METHOD_FRAMES)

    @cached_property
    def unfinished(self) -> Flags:
        """True for frames of controls and commands of 0-10 that continue in the next frame, which has the arguments."""
        begun = self.are_methods & is_among(self["version"], *IN_SEGMENTS)
        return begun & is_among(self["status"], "ok") & ~is_there(self["arguments"])

    @cached_property
    def lost(self) -> Flags:
        """True where frames may be missing, so that nothing may be paired across."""
        found = np.zeros(len(self), bool)
        for kind, column, value in roles.LOSSES:
            is_kind, there = is_among(self["frame_type"], kind), is_there(self[column])
            found |= is_kind & (~there if value is None else there & ~is_among(self[column], value))
        return found

    @cached_property
    def late(self) -> dict[str, Flags]:
        """`peer_late`, `late`: True for frames with these notes."""
        return {"peer_late": is_noted(self["notes"], PEER_LATE), "late": is_noted(self["notes"], CAPTURED_LATE)}

    @cached_property
    def transaction_commands(self) -> pa.StringArray:
        """The command to a transaction coordinator of 1.0 in each frame, or null: it is the body of a transfer (4.2,
        4.5)."""
        carries = is_among(self["name"], *roles.COMMANDS_TO)
        if not carries.any():
            return pa.nulls(len(self), pa.string())
        bodies = inside(values_of(self["properties"]).taken(np.flatnonzero(carries)), "body")
        kinds = fields(bodies, {"type": "string"})["type"]
        kinds = pc.if_else(one_of(kinds, COORDINATES), kinds, pa.scalar(None, pa.string()))
        return picked(kinds, np.where(carries, np.cumsum(carries) - 1, -1))

    @cached_property
    def asks(self) -> NDArray[np.int64]:
        """The exchange in which each frame asks for a reply by one of its arguments (ASKS), else 0."""
        found = np.zeros(len(self), np.int64)
        for name, exchanges in ASKS.items():
            at = np.flatnonzero(is_among(self["name"], name))
            if len(at):
                own = Fields(values_of(self["arguments"]).taken(at), dict.fromkeys(exchanges, "boolean"))
                for argument, exchange in reversed(exchanges.items()):  # of several that are true, the first one counts
                    found[at[own.numbers(argument, 0) == 1]] = exchange
        return found
