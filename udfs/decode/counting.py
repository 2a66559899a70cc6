"""Counts of the frames of each connection by kind, per batch; table connections adds them up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql.types import LongType, StructField, StructType

from codec.sides import SIDES
from udfs.arrow.rows import is_among, is_there, numbers_of
from udfs.conversation.methods import Commands

OF_FRAMES = ("connection_id", "frame_no", "content_frame_no", "sender", "frame_type", "name", "properties")
KINDS = ("frames", "methods", "heartbeats")
MEASURES = (*(f"{side}_{kind}" for kind in KINDS for side in SIDES), "published", "delivered", "headers")
COUNTED = StructType([StructField(name, LongType()) for name in ("connection_id", *MEASURES)])


@dataclass(frozen=True)
class Counts:
    """`no_frames`: frame types of rows that are not frames. `methods`: frame types of methods. `beats`: types and names
    of heartbeats. `published`, `delivered`: names of methods that publish or deliver a message. `transfers`: names of
    transfers, a publish from the client, a delivery from the server, except those of `commands`."""

    no_frames: tuple[str, ...]
    methods: tuple[str, ...]
    beats: tuple[str, ...]
    published: tuple[str, ...]
    delivered: tuple[str, ...]
    transfers: tuple[str, ...]
    commands: Commands

    def of(self, frames: pa.RecordBatch) -> pa.RecordBatch:
        """Rows of OF_FRAMES, those of a connection together -> COUNTED, one row a connection."""
        connections = numbers_of(frames["connection_id"])
        starts = np.flatnonzero(np.diff(connections, prepend=connections[:1] - 1))
        columns = {"connection_id": connections[starts]}
        for name, holds in self._measured(frames).items():
            columns[name] = np.add.reduceat(holds.astype(np.int64), starts)
        return pa.RecordBatch.from_arrays([pa.array(columns[name]) for name in COUNTED.names], names=COUNTED.names)

    def _measured(self, frames: pa.RecordBatch) -> Mapping[str, NDArray[np.bool_]]:
        """The frames that count, by measure."""
        kind, name = frames["frame_type"], frames["name"]
        kinds = {
            "frames": ~is_among(kind, *self.no_frames) & is_there(kind),
            "methods": is_among(kind, *self.methods),
            "heartbeats": is_among(kind, *self.beats) | is_among(name, *self.beats),
        }
        sides = {side: is_among(frames["sender"], side) for side in SIDES}
        # A message of 1.0 may take several transfers; the first of them counts.
        contents, numbers = (numbers_of(frames[column]) for column in ("content_frame_no", "frame_no"))
        moves = is_among(name, *self.transfers) & ((contents == numbers) | ~is_there(frames["content_frame_no"]))
        moves &= ~is_there(self.commands.of(frames))
        return {
            **{f"{side}_{of}": kinds[of] & sides[side] for of in KINDS for side in SIDES},
            "published": is_among(name, *self.published) | (moves & sides["client"]),
            "delivered": is_among(name, *self.delivered) | (moves & sides["server"]),
            "headers": is_among(kind, "protocol-header"),
        }
