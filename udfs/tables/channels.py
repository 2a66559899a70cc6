"""Tables channels and links, of versions whose channels carry no sessions: from records of the channel tracker."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from codec.conversation.channels.state import MAP_CHANNEL_SHIFT, MAP_INCARNATION_SHIFT, TRANSACTED
from codec.conversation.settlement import Settled
from codec.conversation.states import blank
from udfs.arrow.rows import timestamps
from udfs.conversation.channels import ChannelTracker, Records

COUNTED = ("confirmed", "nacked", "acked", "rejected", "requeued")  # outcomes that are columns
MAP_MASK = (1 << MAP_INCARNATION_SHIFT) - 1  # of an incarnation, in the number of an unsettled map
COUNT = blank("connection incarnation outcome count").dtype
# Columns that only channels with sessions have.
OF_SESSIONS = ("session_name", "remote_channel", "incoming_window", "outgoing_window")
OF_SESSION_LINKS = (
    "handle", "address", "snd_settle_mode", "rcv_settle_mode", "flow_mode", "credit", "no_credit_ns",
    "acquire_mode", "distribution_mode", "filters",
)  # fmt: skip


def counted(counts: NDArray[np.void], settled: Settled) -> NDArray[np.void]:
    """`counts` (COUNT) with what became of more messages; publishes in transactions are not counted."""
    chosen = (settled.outcome > 0) & (settled.map_no & MAP_MASK != TRANSACTED)
    if not chosen.any():
        return counts
    more = np.zeros(int(chosen.sum()), COUNT)
    more["connection"], more["incarnation"] = (
        settled.connection[chosen],
        settled.map_no[chosen] >> MAP_INCARNATION_SHIFT,
    )
    more["outcome"], more["count"] = settled.outcome[chosen], 1
    whole = np.concatenate([counts, more])
    keys = ["connection", "incarnation", "outcome"]
    order = np.lexsort([whole[name] for name in keys])
    whole = whole[order]
    changes = np.zeros(len(whole), bool)
    changes[:1] = True
    for name in keys:
        changes[1:] |= whole[name][1:] != whole[name][:-1]
    starts = np.flatnonzero(changes)
    found = whole[starts]
    found["count"] = np.add.reduceat(whole["count"], starts)
    return found


def incarnation_of(records: Records) -> NDArray[np.int64]:
    """The numbers of incarnations, which are those of their unsettled maps without the last bits."""
    number: NDArray[np.int64] = (records["channel"] << (MAP_CHANNEL_SHIFT - MAP_INCARNATION_SHIFT)) | records[
        "incarnation"
    ]
    return number


def maps_of(records: Records) -> NDArray[np.int64]:
    """The numbers of all unsettled maps of some incarnations."""
    numbers = (incarnation_of(records) << MAP_INCARNATION_SHIFT)[:, None] + np.arange(MAP_MASK + 1)
    return numbers.reshape(-1)


def channel_columns(incarnations: Records, counts: NDArray[np.void], tracker: ChannelTracker) -> dict[str, pa.Array]:
    """Columns of table channels: one row for each of `incarnations`; `counts` of their messages."""
    shown = tracker.to_arrow("incarnation", incarnations)
    outcomes = tracker.texts["outcomes"].numbers
    own = np.column_stack([incarnations["connection"], incarnation_of(incarnations)])
    theirs = np.column_stack([counts["connection"], counts["incarnation"]])
    number = np.unique(np.concatenate([own, theirs]), axis=0, return_inverse=True)[1].reshape(-1)
    of_counts = number[len(own) :]
    columns = {name: shown[name] for name in shown.schema.names if not name.endswith("_ns")}
    for name in COUNTED:
        these = counts["outcome"] == outcomes.get(name, 0)
        sums = np.zeros(len(number) + 1, np.int64)
        np.add.at(sums, of_counts[these], counts["count"][these])
        columns[name] = pa.array(sums[number[: len(own)]])
    ended = np.zeros(len(number) + 1, np.int64)
    np.add.at(ended, of_counts, counts["count"])
    return {
        **columns,
        "opened_ts": timestamps(shown["opened_ns"]),
        "closed_ts": timestamps(shown["closed_ns"]),
        "mode": pc.coalesce(shown["mode"], "none"),
        "unsettled": pa.array(incarnations["opened"] - ended[number[: len(own)]]),
    }


def link_columns(links: Records, tracker: ChannelTracker) -> dict[str, pa.Array]:
    """Columns of table links: one row for each of `links`."""
    shown = tracker.to_arrow("link", links)
    by_server = pc.equal(shown["closed_by"], "server")
    why = pc.binary_join_element_wise(shown["closing_name"], "by the server", " ")
    columns = {name: shown[name] for name in shown.schema.names if not name.endswith("_ns") and "clos" not in name}
    return {
        **columns,
        "kind": pc.coalesce(shown["kind"], "consumer"),
        "opened_ts": timestamps(shown["opened_ns"]),
        "closed_ts": timestamps(shown["closed_ns"]),
        "error": pc.if_else(by_server, why, pa.scalar(None, pa.string())),
    }
