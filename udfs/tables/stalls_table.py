"""Tables stalls and oddities: collects stalls from the decoder (those of TCP), from trackers, and from what requests
and handshakes tell, and oddities from the tracker of sessions, until they are final.

    stalls.add(rows)                        # STALL: rows whose `until_ns` is null last to the end of their connection
    stalls.close(facts, ids)                # so far
    for batch in stalls.release(): ...      # those that are over
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from codec import stalls as S
from codec.compiler.limits import LIMITS
from codec.conversation.oddities import LEAST_NS
from codec.conversation.settlement import Frames
from codec.conversation.states import blank, find_ids
from codec.names import CLASSIC_VERSIONS, SIDES
from codec.stalls import KINDS, UNANSWERED_REQUEST
from udfs.arrow.arrays import (
    indices_where,
    is_in,
    timestamps,
    to_int64,
    to_mask,
)
from udfs.arrow.fields import Fields, values_of
from udfs.arrow.types import cast_to, to_schema
from udfs.conversation.frame_batch import FrameBatch
from udfs.conversation.roles import CLOSES_CHANNEL, CLOSES_CONNECTION
from udfs.conversation.tracker_states import ConnectionRecords
from udfs.decode.stall_rows import ARROW_STALLS, stall_batch

Integers = NDArray[np.int64]
UNANSWERED = KINDS[UNANSWERED_REQUEST]
US_NS = 1000


class UntilEnd:
    """Rows of a table, some of which last to the end of their connection, which is not known yet."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._over: list[pa.RecordBatch] = []
        self._lasting: list[pa.RecordBatch] = []
        self._closed: dict[int, int] = {}  # when connections ended of which rows may still come

    def add(self, rows: pa.RecordBatch | None) -> None:
        """Take rows."""
        if rows is None or not rows.num_rows:
            return
        lasts = self.lasts(rows)
        self._over.append(rows.filter(pc.invert(lasts)))
        if pc.any(lasts).as_py():
            self._lasting.append(rows.filter(lasts))

    def release(self) -> Iterator[pa.RecordBatch]:
        """Rows of the table that are over."""
        self._close(np.array(list(self._closed), np.int64), np.array(list(self._closed.values()), np.int64))
        over, self._over = self._over, []
        for rows in over:
            found = self.worth_a_row(rows)
            if found.num_rows:
                columns = {name: found[name] for name in found.schema.names}
                yield to_schema(self.with_times(columns), self._schema)

    def close(
        self, facts: pa.RecordBatch, ids: Integers, remaining: Callable[[pa.RecordBatch], pa.RecordBatch] | None = None
    ) -> None:
        """Connections have ended (CONNECTION_FACTS): so have their rows, of which those remain that
        are `remaining`. `ids`: connections of which rows may still come."""
        closed_ns = pc.struct_field(facts["facts"], "closed_ts_ns")
        self._closed = {id_: ns for id_, ns in self._closed.items() if id_ in ids}
        self._close(to_int64(facts["connection_id"]), to_int64(closed_ns), remaining)
        here = np.flatnonzero(np.isin(to_int64(facts["connection_id"]), ids)).tolist()
        self._closed |= {facts["connection_id"][at].as_py(): closed_ns[at].as_py() for at in here}

    def _close(
        self, ids: Integers, closed_ns: Integers, remaining: Callable[[pa.RecordBatch], pa.RecordBatch] | None = None
    ) -> None:
        if not self._lasting or not len(ids):
            return
        lasting = in_one_batch(self._lasting)
        at = find_ids(ids, to_int64(lasting["connection_id"]))
        self._lasting = [lasting.filter(pa.array(at < 0))] if (at < 0).any() else []
        rows = self.ended(lasting.filter(pa.array(at >= 0)), closed_ns[at[at >= 0]])
        self._over.append(rows if remaining is None else remaining(rows))

    def lasts(self, rows: pa.RecordBatch) -> pa.BooleanArray:
        """Which rows last to the end of their connection."""
        raise NotImplementedError

    def ended(self, rows: pa.RecordBatch, closed_ns: Integers) -> pa.RecordBatch:
        """Rows that lasted to `closed_ns`."""
        raise NotImplementedError

    def worth_a_row(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The rows that were long enough."""
        raise NotImplementedError

    def with_times(self, columns: dict[str, pa.Array]) -> dict[str, pa.Array]:
        """Columns with times for people."""
        raise NotImplementedError


class Stalls(UntilEnd):
    """Collects stalls (STALL); see the module's text."""

    def lasts(self, rows: pa.RecordBatch) -> pa.BooleanArray:
        return rows["until_ns"].is_null()

    def ended(self, rows: pa.RecordBatch, closed_ns: Integers) -> pa.RecordBatch:
        since = to_int64(pc.coalesce(rows["since_ns"], rows["from_ns"]))
        until = np.maximum(closed_ns, since)
        lasted = to_int64(rows["stall_ns"]) + until - since
        columns = {name: rows[name] for name in ARROW_STALLS.names}
        return stall_batch(columns | {"until_ns": pa.array(until), "stall_ns": pa.array(lasted)})

    def worth_a_row(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        asks = pc.equal(rows["kind"], UNANSWERED)
        return rows.filter(pc.greater_equal(rows["stall_ns"], pc.if_else(asks, LIMITS.answer_ns, LIMITS.stall_ns)))

    def with_times(self, columns: dict[str, pa.Array]) -> dict[str, pa.Array]:
        del columns["since_ns"]
        return columns | {f"{end}_ts": timestamps(columns[f"{end}_ns"]) for end in ("from", "until")}


class Oddities(UntilEnd):
    """Collects oddities (`codec.tables.ODDITY`)."""

    def lasts(self, rows: pa.RecordBatch) -> pa.BooleanArray:
        return rows["ts_ns"].is_null()

    def ended(self, rows: pa.RecordBatch, closed_ns: Integers) -> pa.RecordBatch:
        """As `connections` has the end, in microseconds."""
        closed = pa.array(closed_ns // US_NS * US_NS)
        columns = {name: rows[name] for name in rows.schema.names}
        return cast_to(columns | {"ts_ns": closed, "waited_ns": pc.subtract(closed, rows["since_ns"])}, rows.schema)

    def worth_a_row(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        return rows.filter(pc.or_kleene(rows["since_ns"].is_null(), pc.greater(rows["waited_ns"], LEAST_NS)))

    def with_times(self, columns: dict[str, pa.Array]) -> dict[str, pa.Array]:
        del columns["since_ns"]
        return columns | {"ts": timestamps(columns["ts_ns"])}


def in_one_batch(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """Rows (STALL) of several batches, at least one."""
    return pa.Table.from_batches(batches).combine_chunks().to_batches()[0] if len(batches) > 1 else batches[0]


# Stalls by requests without a reply, or with a late one: from rows of table methods.
#
# Where a channel or a connection is closed, what was asked for on it ends: RabbitMQ refuses a request by closing its
# channel. Otherwise it lasts to the end of the connection. After a loss, or where the two directions are far apart in
# the capture, nobody knows whether there was a reply. Sessions of 0-10 and 1.0 tell themselves which requests wait at
# the end of their connections; commands of 0-10, whose completion may come when it likes, are none of them.


CLOSING = blank("connection channel frame_no ts_ns").dtype  # `channel` EVERY: all of the connection
EVERY = -1
OPENS = ("open", "sasl-init")  # of 1.0, by the client
OF_CONNECTION = r"^(connection\.|open$|close$|sasl-)"  # names of what is not about a channel


class Closings:
    """Closes of channels and connections that may end requests: all since the last `forget`, and some before; and the
    last loss of each connection."""

    def __init__(self) -> None:
        self.records, self.losses = ConnectionRecords(CLOSING), ConnectionRecords(CLOSING)

    def add(self, frames: FrameBatch) -> None:
        """Take those in frames."""
        of_connection = frames.are("name", *CLOSES_CONNECTION)
        at = np.flatnonzero(of_connection | frames.are("name", *CLOSES_CHANNEL))
        if len(at):
            found = np.zeros(len(at), CLOSING)
            found["connection"], found["frame_no"] = frames.cells("connection_id")[at], frames.cells("frame_no")[at]
            found["channel"] = np.where(of_connection[at], EVERY, frames.cells("channel")[at])
            found["ts_ns"] = frames.cells("ts_ns")[at]
            self.records.add(found)
        at = np.flatnonzero(frames.lost | np.logical_or.reduce(list(frames.late.values())))
        if len(at):
            found = np.zeros(len(at), CLOSING)
            found["connection"], found["frame_no"] = frames.cells("connection_id")[at], frames.cells("frame_no")[at]
            self.losses.add(found)
            self.losses.replace(_one(self.losses.all(), -1))

    def forget(self, open_ids: Integers, waiting: Frames) -> None:
        """Only open connections need them: of each channel the first one after the first request that is `waiting`, and
        the last one."""
        self.records.only(open_ids)
        self.losses.only(open_ids)
        known = self.records.all()
        if len(known):
            at = find_ids(waiting.connection, known["connection"])  # those of a connection are in order
            after = known[(at >= 0) & (known["frame_no"] > np.append(waiting.frame_no, 0)[at])]
            self.records.replace(np.unique(np.concatenate([_one(after, 0), _one(known, -1)])))

    def hidden(self, connection: Integers, frame_no: Integers) -> NDArray[np.bool_]:
        """Which requests may have been answered by what is lost."""
        known = self.losses.all()
        at = find_ids(known["connection"], connection)
        found: NDArray[np.bool_] = (at >= 0) & (np.append(known["frame_no"], 0)[at] >= frame_no)
        return found

    def first_after(self, connection: Integers, channel: Integers, frame_no: Integers) -> Integers:
        """When the channel of each request, or its connection, was closed after it; -1: it was not."""
        found, known = np.full(len(connection), np.iinfo(np.int64).max), self.records.all()
        for of in (channel, np.full(len(channel), EVERY)):
            keys = np.concatenate([known["connection"], connection]), np.concatenate([known["channel"], of])
            frames = np.concatenate([known["frame_no"], frame_no + 1])
            asks = np.repeat([0, 1], [len(known), len(connection)])
            order = np.lexsort([-asks, frames, keys[1], keys[0]])
            # The next close in this order, if it is of the same channel.
            at = np.where(asks[order] == 0, np.arange(len(order)), len(order))
            after = np.minimum.accumulate(at[::-1])[::-1]
            there = after < len(order)
            to = order[np.where(there, after, 0)]
            there &= (keys[0][to] == keys[0][order]) & (keys[1][to] == keys[1][order])
            times = np.where(there, np.append(known["ts_ns"], 0)[np.minimum(to, len(known))], np.iinfo(np.int64).max)
            own = np.zeros(len(order), np.int64)
            own[order] = times
            found = np.minimum(found, own[len(known) :])
        return np.where(found == np.iinfo(np.int64).max, S.NONE, found)


def _one(closings: NDArray[np.void], which: int) -> NDArray[np.void]:
    """Of each channel the first one (`which` 0), or the last one (-1)."""
    known = closings[np.lexsort([closings[name] for name in ("frame_no", "channel", "connection")])]
    changes = (np.diff(known["connection"]) != 0) | (np.diff(known["channel"]) != 0)
    begins = np.append(True, changes)[: len(known)]
    remaining: NDArray[np.void] = known[begins if which == 0 else np.append(changes, True)[: len(known)]]
    return remaining


def unanswered(
    requests: pa.RecordBatch, closings: Closings, open_ids: Integers, waiting: Frames, answers: Frames
) -> pa.RecordBatch:
    """Requests, rows of table methods that are final -> stalls (STALL). `waiting`: requests of sessions that waited at
    the end of their connections; `answers`: frames that are replies."""
    late = to_mask(pc.greater_equal(requests["reply_latency_ns"], LIMITS.answer_ns))
    waits, closed = to_mask(requests["reply_frame_no"].is_null()).copy(), np.full(requests.num_rows, S.NONE)
    at = np.flatnonzero(waits)
    if len(at):
        rows = requests.take(pa.array(at))
        connection, frame_no = to_int64(rows["connection_id"]), to_int64(rows["frame_no"])
        after = closings.first_after(connection, to_int64(rows["channel"], EVERY), frame_no)
        ended = ~np.isin(connection, open_ids)
        # Whether a request of a connection that goes on waits, its end tells.
        classic = is_in(rows["version"], *CLASSIC_VERSIONS) & ((after != S.NONE) | ended)
        no_wait = Fields(values_of(rows["arguments"]), {"no_wait": "boolean"}).numbers("no_wait", 0)
        own = classic & (no_wait != 1) & ~closings.hidden(connection, frame_no)
        opens = is_in(rows["name"], *OPENS) & is_in(rows["sender"], SIDES[0]) & ended
        own |= opens & ~answers.among(connection, frame_no) & ~closings.hidden(connection, frame_no)
        own |= waiting.among(connection, frame_no)
        waits[at], closed[at] = own, np.where(classic, after, S.NONE)
    remaining = late | waits
    if not remaining.any():
        return EMPTY
    rows = requests.take(indices_where(remaining))
    from_ns, lasted = to_int64(rows["ts_ns"]), to_int64(rows["reply_latency_ns"])
    lasts = waits[remaining]
    until: Integers = np.where(lasts, closed[remaining], from_ns + lasted)
    lasted = np.where(lasts, np.where(until != S.NONE, np.maximum(until - from_ns, 0), 0), lasted)
    of_connection = pc.match_substring_regex(rows["name"].cast(pa.string()), OF_CONNECTION).fill_null(False)
    columns = {name: rows[name] for name in ("connection_id", "frame_no", "packet_no", "capture_file")}
    columns |= {
        "channel": pc.if_else(of_connection, pa.scalar(None, pa.int32()), rows["channel"].cast(pa.int32())),
        "link": pc.coalesce(*(rows[name].cast(pa.string()) for name in ("consumer_tag", "link_name"))),
        "kind": pa.repeat(S.KINDS[S.UNANSWERED_REQUEST], rows.num_rows),
        "side": rows["sender"].cast(pa.string()),
        "from_ns": pa.array(from_ns),
        "until_ns": pa.array(until, mask=until == S.NONE),
        "stall_ns": pa.array(lasted),
        "resumed": pa.array(~lasts),
    }
    return stall_batch(columns)


EMPTY = pa.RecordBatch.from_pylist([], ARROW_STALLS)
