"""Which frames the trackers of channels and of sessions read, and where frames may be missing."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from codec.amqp.notes import CAPTURED_LATE, PEER_LATE
from codec.conversation.sessions.semantics import NAMES, SETTLES, VERSIONS
from codec.sides import SIDES
from udfs.arrow.rows import fixed, is_among, is_noted, is_there, numbers_of
from udfs.roles import CLASSIC_VERSIONS, LOSSES, METHOD_FRAMES, SESSION_VERSIONS, method_roles

Flags = NDArray[np.bool_]


def lost(frames: pa.RecordBatch) -> Flags:
    """True where frames may be missing, so that nothing may be paired across."""
    found = np.zeros(frames.num_rows, bool)
    for kind, column, value in LOSSES:
        is_kind, there = is_among(frames["frame_type"], kind), is_there(frames[column])
        found |= is_kind & (~there if value is None else there & ~is_among(frames[column], value))
    return found


def method_frames(frames: pa.RecordBatch) -> Flags:
    """True for the frames that the channel tracker reads: methods of the classic family with a role, and where frames
    of a sender may be missing."""
    method = is_among(frames["frame_type"], *METHOD_FRAMES) & is_among(frames["name"], *method_roles())
    is_read = (method & is_there(frames["channel"])) | lost(frames)
    return is_read & ~is_among(frames["version"], *SESSION_VERSIONS)


def method_marks(frames: pa.RecordBatch) -> dict[str, Flags]:
    """`sender` (1: the server), `loss`, `on_connection`, `peer_late`, `late` of these frames."""
    channel_0 = (numbers_of(frames["channel"]) == 0) & is_there(frames["channel"])
    return {
        "sender": is_among(frames["sender"], SIDES[1]),
        "loss": lost(frames),
        "on_connection": channel_0 & is_among(frames["version"], *CLASSIC_VERSIONS),
        "peer_late": is_noted(frames["notes"], PEER_LATE),
        "late": is_noted(frames["notes"], CAPTURED_LATE),
    }


def performative_frames(frames: pa.RecordBatch) -> tuple[pa.Int64Array, dict[str, NDArray[np.int64]]]:
    """The places of frames that the session tracker reads: performatives, controls and commands that it knows, and
    losses; `loss`, `hides` (a settlement may be missing), `peer_late`, `late` of them."""
    of_version = is_among(frames["version"], *VERSIONS)
    hides = is_lost = lost(frames)
    named = np.zeros(len(is_lost), bool)
    if of_version.any():
        hides = is_lost | _partial_settlements(frames)
        named = is_among(frames["name"], *NAMES) & is_there(frames["channel"])
    # A loss without a version counts if other frames of the connection have one.
    at = np.flatnonzero((of_version & (named | hides)) | (~is_there(frames["version"]) & is_lost))
    marks = {
        "loss": is_lost,
        "hides": hides,
        "peer_late": is_noted(frames["notes"], PEER_LATE),
        "late": is_noted(frames["notes"], CAPTURED_LATE),
    }
    return pa.array(at), {name: fixed(mark[at].astype(np.int64)) for name, mark in marks.items()}


def _partial_settlements(frames: pa.RecordBatch) -> Flags:
    """True for frames that are not whole and may settle something."""
    partial = is_there(frames["status"]) & ~is_among(frames["status"], "ok")
    spans = is_among(frames["frame_type"], *(kind for kind, _, _ in LOSSES))
    may_settle = np.where(is_there(frames["name"]), is_among(frames["name"], *SETTLES), ~is_there(frames["arguments"]))
    found: Flags = partial & may_settle & ~spans & is_there(frames["frame_type"])
    return found
