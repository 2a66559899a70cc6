"""Rows of `codec.stalls` as Arrow rows (`codec.tables.STALL`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from codec import stalls as S
from codec.sides import SIDES
from codec.tables import STALL
from udfs.arrow.dictionaries import nullable
from udfs.arrow.rows import in_one
from udfs.arrow.types import arrow_schema
from udfs.conversation.capture_files import names_of

ARROW_STALLS = arrow_schema(STALL)
Integers = NDArray[np.int64]


def stall_rows(rows: Integers, files: Sequence[str] | None = None, links: pa.Array | None = None) -> pa.RecordBatch:
    """Rows of `codec.stalls` (n, CELLS) as STALL. `files`: capture files by number; None: numbers are those of
    `udfs.conversation.capture_files`. `links`: names of the links of these rows."""
    file = np.ascontiguousarray(rows[:, S.FILE])
    columns = {
        "connection_id": pa.array(np.ascontiguousarray(rows[:, S.CONNECTION])),
        "channel": _cells(rows, S.CHANNEL),
        "channel_life": _cells(rows, S.INCARNATION),
        "link": pa.nulls(len(rows), pa.string()) if links is None else links,
        "kind": pa.array(S.KINDS).take(pa.array(rows[:, S.KIND])),
        "side": pa.array(SIDES).take(pa.array(rows[:, S.SIDE])),
        "from_ns": pa.array(np.ascontiguousarray(rows[:, S.FROM])),
        "until_ns": _cells(rows, S.UNTIL),
        "stall_ns": pa.array(np.ascontiguousarray(rows[:, S.LASTED])),
        "resumed": pa.array(rows[:, S.RESUMED] == 1),
        "bytes": _cells(rows, S.BYTES),
        "messages": _cells(rows, S.MESSAGES),
        "frame_no": _cells(rows, S.FRAME),
        "packet_no": _cells(rows, S.PACKET),
        "capture_file": names_of(file) if files is None else pa.array(files, pa.string()).take(nullable(file)),
        "since_ns": _cells(rows, S.SINCE),
    }
    return stall_batch(columns)


def stall_batch(columns: Mapping[str, Any]) -> pa.RecordBatch:
    """STALL of some columns; the others are null."""
    count = len(columns["connection_id"])
    arrays = [
        in_one(columns[field.name]).cast(field.type) if field.name in columns else pa.nulls(count, field.type)
        for field in ARROW_STALLS
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=ARROW_STALLS)


def _cells(rows: Integers, cell: int) -> pa.Array:
    return nullable(np.ascontiguousarray(rows[:, cell]))
