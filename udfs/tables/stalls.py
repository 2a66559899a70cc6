"""Table stalls: collects stalls from the decoder (those of TCP), from trackers, and from what requests and handshakes
tell, until they are final.

    stalls.add(rows)                        # STALL: rows whose `until_ns` is null last to the end of their connection
    stalls.close(facts, ids)                # so far
    for batch in stalls.release(): ...      # those that are over
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from codec.compiler.limits import LIMITS
from codec.conversation.states import places
from codec.stalls import KINDS, UNANSWERED_REQUEST
from udfs.arrow.rows import numbers_of, timestamps
from udfs.arrow.types import bound
from udfs.decode.stall_rows import ARROW_STALLS, stall_batch

Integers = NDArray[np.int64]
UNANSWERED = KINDS[UNANSWERED_REQUEST]


class Stalls:
    """Collects stalls; see the module's text. `schema`: of table stalls."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._over: list[pa.RecordBatch] = []
        self._lasting: list[pa.RecordBatch] = []  # to the end of their connections, which is not known yet
        self._closed: dict[int, int] = {}  # when connections ended of which stalls may still come

    def add(self, rows: pa.RecordBatch) -> None:
        """Take rows (STALL)."""
        if not rows.num_rows:
            return
        over = rows["until_ns"].is_valid()
        self._over.append(rows.filter(over))
        if rows["until_ns"].null_count:
            self._lasting.append(rows.filter(pc.invert(over)))

    def release(self) -> Iterator[pa.RecordBatch]:
        """Rows of table stalls that are over."""
        self._close(np.array(list(self._closed), np.int64), np.array(list(self._closed.values()), np.int64))
        over, self._over = self._over, []
        yield from self._made(over)

    def close(
        self, facts: pa.RecordBatch, ids: Integers, chosen: Callable[[pa.RecordBatch], pa.RecordBatch] | None = None
    ) -> None:
        """Connections have ended (DECODED rows of kind 'connection'): so have their stalls, of which those remain that
        are `chosen`. `ids`: connections of which stalls may still come."""
        closed_ns = pc.struct_field(pc.list_flatten(facts["facts"]), "closed_ts_ns")
        self._closed = {id_: ns for id_, ns in self._closed.items() if id_ in ids}
        self._close(numbers_of(facts["connection_id"]), numbers_of(closed_ns), chosen)
        here = np.flatnonzero(np.isin(numbers_of(facts["connection_id"]), ids)).tolist()
        self._closed |= {facts["connection_id"][at].as_py(): closed_ns[at].as_py() for at in here}

    def _close(
        self, ids: Integers, closed_ns: Integers, chosen: Callable[[pa.RecordBatch], pa.RecordBatch] | None = None
    ) -> None:
        if not self._lasting or not len(ids):
            return
        lasting = in_one_batch(self._lasting)
        at = places(ids, numbers_of(lasting["connection_id"]))
        self._lasting = [lasting.filter(pa.array(at < 0))] if (at < 0).any() else []
        over = lasting.filter(pa.array(at >= 0))
        since = numbers_of(pc.coalesce(over["since_ns"], over["from_ns"]))
        until = np.maximum(closed_ns[at[at >= 0]], since)
        lasted = numbers_of(over["stall_ns"]) + until - since
        columns = {name: over[name] for name in ARROW_STALLS.names}
        rows = stall_batch(columns | {"until_ns": pa.array(until), "stall_ns": pa.array(lasted)})
        self._over.append(rows if chosen is None else chosen(rows))

    def _made(self, over: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for rows in over:
            asks = pc.equal(rows["kind"], UNANSWERED)
            rows = rows.filter(pc.greater_equal(rows["stall_ns"], pc.if_else(asks, LIMITS.answer_ns, LIMITS.stall_ns)))
            if rows.num_rows:
                columns = {name: rows[name] for name in ARROW_STALLS.names if name != "since_ns"}
                columns |= {f"{end}_ts": timestamps(rows[f"{end}_ns"]) for end in ("from", "until")}
                yield bound(columns, self._schema)


def in_one_batch(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """Rows (STALL) of several batches, at least one."""
    return pa.Table.from_batches(batches).combine_chunks().to_batches()[0] if len(batches) > 1 else batches[0]
