"""Counts of the frames of each connection by kind, per batch; table connections adds them up."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql.types import LongType, StructField, StructType

from codec.sides import SIDES
from udfs.arrow.rows import is_among, is_there, numbers_of
from udfs.conversation.methods import transaction_commands
from udfs.roles import (
    BEAT_FRAMES,
    BEAT_METHODS,
    DELIVERING,
    HEADER,
    METHOD_FRAMES,
    PUBLISHING,
    SPANS,
    TRANSFERS,
)

OF_FRAMES = ("connection_id", "frame_no", "content_frame_no", "sender", "frame_type", "name", "properties")
KINDS = ("frames", "methods", "heartbeats")
MEASURES = (*(f"{side}_{kind}" for kind in KINDS for side in SIDES), "published", "delivered", "headers")
COUNTED = StructType([StructField(name, LongType()) for name in ("connection_id", *MEASURES)])


def frame_counts(frames: pa.RecordBatch) -> pa.RecordBatch:
    """Rows of OF_FRAMES, those of a connection together -> COUNTED, one row a connection."""
    connections = numbers_of(frames["connection_id"])
    starts = np.flatnonzero(np.diff(connections, prepend=connections[:1] - 1))
    columns = {"connection_id": connections[starts]}
    for name, holds in _measured(frames).items():
        columns[name] = np.add.reduceat(holds.astype(np.int64), starts)
    return pa.RecordBatch.from_arrays([pa.array(columns[name]) for name in COUNTED.names], names=COUNTED.names)


def _measured(frames: pa.RecordBatch) -> Mapping[str, NDArray[np.bool_]]:
    """The frames that count, by measure."""
    kind, name = frames["frame_type"], frames["name"]
    kinds = {
        "frames": ~is_among(kind, *SPANS, HEADER) & is_there(kind),
        "methods": is_among(kind, *METHOD_FRAMES),
        "heartbeats": is_among(kind, *BEAT_FRAMES) | is_among(name, *BEAT_METHODS),
    }
    sides = {side: is_among(frames["sender"], side) for side in SIDES}
    # A message of 1.0 may take several transfers; the first of them counts.
    contents, numbers = (numbers_of(frames[column]) for column in ("content_frame_no", "frame_no"))
    moves = is_among(name, *TRANSFERS) & ((contents == numbers) | ~is_there(frames["content_frame_no"]))
    moves &= ~is_there(transaction_commands(frames))
    return {
        **{f"{side}_{of}": kinds[of] & sides[side] for of in KINDS for side in SIDES},
        "published": is_among(name, *PUBLISHING) | (moves & sides["client"]),
        "delivered": is_among(name, *DELIVERING) | (moves & sides["server"]),
        "headers": is_among(kind, HEADER),
    }
