"""When receivers had handled the deliveries that they settled together.

An acknowledgement of several deliveries says when the last one was handled, not the others. These are taken to be
handled one after the other, in equal time each, the first one from when it came, or when the deliveries before it were
settled. That time is the longest in which all of them fit:

    begin of delivery j of n, from 0 on:    the later of: delivery j came; those settled before were settled
    time of each:                           least of (settled - begin of j) / (n - j)
    handled:                                each begins when it came and the one before is handled

Deliveries that one frame acknowledges are settled together. Those that go back to their queue were not handled.

What a receiver states after the broker has cancelled its consumer may not count: RabbitMQ 4.3 takes back deliveries
that wait too long, and ignores late acknowledgements (https://github.com/rabbitmq/rabbitmq-server/discussions/18207).
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from codec.conversation.channel_outcomes import MAPS
from codec.conversation.channel_state import RECEIVED
from codec.conversation.settlement import UNKNOWN, Frames, Settled
from codec.conversation.states import blank, group_ids
from codec.hashes.maps import Pairs
from udfs.arrow.arrays import Index, is_in, take_or_null, to_int64
from udfs.arrow.fields import hashed
from udfs.conversation.frame_batch import FrameBatch
from udfs.conversation.roles import DELIVERIES
from udfs.conversation.tracker_states import ConnectionRecords

HANDLED = "handled_ts_ns"
DELIVERY = blank("connection frame_no channel last_ns link").dtype  # `link`: hash of its name
CANCEL = blank("connection frame_no channel link").dtype  # of a consumer, by the broker
SETTLED = blank("connection channel settled_ns").dtype  # the last settlement of a channel
Integers = NDArray[np.int64]


class Handled:
    """Takes complete messages; tells of those that were settled when they were handled."""

    def __init__(self) -> None:
        self.deliveries, self.settled = ConnectionRecords(DELIVERY), ConnectionRecords(SETTLED)
        self.cancels = ConnectionRecords(CANCEL)

    def add(self, rows: pa.RecordBatch) -> None:
        """Take rows of table messages."""
        delivered = is_in(rows["operation"], *DELIVERIES)
        if not delivered.any():
            return
        found = np.zeros(int(delivered.sum()), DELIVERY)
        names = {
            "connection": "connection_id",
            "frame_no": "first_frame_no",
            "channel": "channel",
            "last_ns": "last_ts_ns",
        }
        for name, column in names.items():
            found[name] = to_int64(rows[column], -1)[delivered]
        found["link"] = hashed(rows["link"])[delivered]
        # The messages of a batch are one delivery.
        again = to_int64(rows["batch_index"])[delivered] > 0
        self.deliveries.add(found[~again] if again.any() else found)

    def add_cancels(self, frames: FrameBatch) -> None:
        """Take the cancels of the broker in `frames`."""
        at = np.flatnonzero(frames.are("name", "basic.cancel") & frames.are("sender", "server"))
        if not len(at):
            return
        found = np.zeros(len(at), CANCEL)
        for name, column in {"connection": "connection_id", "frame_no": "frame_no", "channel": "channel"}.items():
            found[name] = frames.cells(column)[at]
        found["link"] = hashed(take_or_null(frames.arguments["consumer_tag"], frames.argument_at[at]))
        self.cancels.add(found)

    def doubted(self, settled: Settled) -> Settled:
        """The same; of a delivery that was settled after the broker had cancelled its consumer, nothing is known."""
        deliveries = self.deliveries.all()
        if not len(self.cancels.all()) or not len(deliveries):
            return settled
        own = Index(deliveries["connection"], deliveries["frame_no"]).find(settled.connection, settled.frame_no)
        rows = np.flatnonzero((own >= 0) & (settled.map_no % MAPS == RECEIVED))
        cancelled = self._cancelled(deliveries[own[rows]])
        late = rows[(cancelled >= 0) & (cancelled < settled.settled_frame_no[rows])]
        outcome = settled.outcome.copy()
        outcome[late] = UNKNOWN
        return settled._replace(outcome=outcome)

    def _cancelled(self, deliveries: NDArray[np.void]) -> Integers:
        """The frame after each delivery in which the broker cancelled its consumer; -1 for none."""
        cancels = self.cancels.all()
        names = ("connection", "channel", "link", "frame_no")
        both = {name: np.concatenate([cancels[name], deliveries[name]]) for name in names}
        consumer = group_ids(both["connection"], both["channel"], both["link"])
        order = np.lexsort([both["frame_no"], consumer])
        is_cancel = order < len(cancels)
        after = np.where(is_cancel, np.arange(len(order)), len(order))
        after = np.append(np.minimum.accumulate(after[::-1])[::-1], len(order))[:-1]
        there = np.append(order, -1)[after]
        found = np.full(len(order), -1)
        found[order] = np.where((there >= 0) & (consumer[there] == consumer[order]), both["frame_no"][there], -1)
        return found[len(cancels) :]

    def told(self, ends: pa.Table) -> pa.Table:
        """Outcomes of messages (`connection_id`, `first_frame_no`, `settled_ts_ns`) with HANDLED: null for those that
        were settled alone."""
        handled, known = np.zeros(ends.num_rows, np.int64), np.zeros(ends.num_rows, bool)
        deliveries = self.deliveries.all()
        position = ends.column_names.index(HANDLED)
        if len(deliveries):
            index = Index(deliveries["connection"], deliveries["frame_no"])
            at = index.find(to_int64(ends["connection_id"]), to_int64(ends["first_frame_no"]))
            settled = to_int64(ends["settled_ts_ns"], -1)
            acked = is_in(ends["outcome"], "acked")
            rows = np.flatnonzero((at >= 0) & acked & (settled >= np.append(deliveries["last_ns"], 0)[at]))
            if len(rows):
                by = to_int64(ends["settled_frame_no"], -1)[rows]
                together, times = self._handled(deliveries[at[rows]], settled[rows], by)
                handled[rows], known[rows] = times, together
        return ends.set_column(position, HANDLED, pa.array(handled, mask=~known))

    def _handled(
        self, deliveries: NDArray[np.void], settled: Integers, by: Integers
    ) -> tuple[NDArray[np.bool_], Integers]:
        """Which of these were settled with others, and when they were handled. `by`: the frames that settle them."""
        if Pairs(deliveries["connection"], by).count == len(by):  # each alone, as most are: nothing to estimate
            self._settle(*_last_of_channels(deliveries, settled))
            return np.zeros(len(settled), bool), settled
        keys = (deliveries["frame_no"], by, settled, deliveries["channel"], deliveries["connection"])
        order = np.lexsort(keys)
        own, settled, by = deliveries[order], settled[order], by[order]
        channels = np.ones(len(own), bool)
        channels[1:] = (np.diff(own["connection"]) != 0) | (np.diff(own["channel"]) != 0)
        starts = channels.copy()
        starts[1:] |= np.diff(by) != 0
        first = np.flatnonzero(starts)
        group, sizes = np.cumsum(starts) - 1, np.diff(np.append(first, len(own)))
        before = np.where(channels[first], self._last_settled(own[first]), np.append(0, settled[first[1:] - 1]))
        begins = np.maximum(own["last_ns"], np.minimum(before[group], settled))
        turn = np.arange(len(own)) - first[group]
        each = np.minimum.reduceat((settled - begins) // (sizes[group] - turn), first)
        # The latest of: the begin of each one so far, and the time of all from there on.
        ready, rank = np.unique(begins - turn * each[group], return_inverse=True)
        latest = ready[np.maximum.accumulate(group * len(ready) + rank) - group * len(ready)]
        handled = np.empty(len(own), np.int64)
        handled[order] = np.minimum(latest + (turn + 1) * each[group], settled)
        together = np.empty(len(own), bool)
        together[order] = sizes[group] > 1
        last = np.append(channels[1:], True)
        self._settle(own[last], settled[last])
        return together, handled

    def _last_settled(self, deliveries: NDArray[np.void]) -> Integers:
        """When the channels of these last settled before; 0: not known."""
        known = self.settled.all()
        if not len(known):
            return np.zeros(len(deliveries), np.int64)
        at = Index(known["connection"], known["channel"]).find(deliveries["connection"], deliveries["channel"])
        return np.where(at >= 0, known["settled_ns"][at], 0)

    def _settle(self, deliveries: NDArray[np.void], settled: Integers) -> None:
        """The channels of these settled last at these times."""
        known, latest = self.settled.all(), np.zeros(len(deliveries), SETTLED)
        for name in ("connection", "channel"):
            latest[name] = deliveries[name]
        latest["settled_ns"] = settled
        at = Index(latest["connection"], latest["channel"]).find(known["connection"], known["channel"])
        self.settled.replace(np.concatenate([known[at < 0], latest]))

    def retain(self, frames: Frames, open_ids: Integers) -> None:
        """Keep only the deliveries at these frames, and channels of these connections."""
        deliveries = self.deliveries.all()
        if len(deliveries):
            self.deliveries.replace(deliveries[frames.among(deliveries["connection"], deliveries["frame_no"])])
        self.settled.only(open_ids)
        if len(self.cancels.all()):  # of what is not kept nothing can be late
            cancelled = np.unique(self._cancelled(self.deliveries.all()))
            cancels = self.cancels.all()
            self.cancels.keep(np.isin(cancels["connection"], open_ids) & np.isin(cancels["frame_no"], cancelled))


def _last_of_channels(deliveries: NDArray[np.void], settled: Integers) -> tuple[NDArray[np.void], Integers]:
    """One of the deliveries of each channel, and when the channel settled last."""
    channels = Pairs(deliveries["connection"], deliveries["channel"])
    latest = np.zeros(channels.count, np.int64)
    np.maximum.at(latest, channels.numbers, settled)
    return deliveries[channels.rows], latest
