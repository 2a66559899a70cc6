"""Tables channels and links, of versions whose channels carry no sessions: from records of the channel tracker."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from codec.conversation.channels.state import MAP_CHANNEL_SHIFT, MAP_INCARNATION_SHIFT, TRANSACTED
from codec.conversation.settlement import Settled
from codec.conversation.states import blank, numbered
from udfs.arrow.rows import timestamps
from udfs.conversation.channels import ChannelTracker, Records
from udfs.roles import TEXTS

COUNTED = ("confirmed", "nacked", "acked", "rejected", "requeued")  # outcomes that are columns
MAP_MASK = (1 << MAP_INCARNATION_SHIFT) - 1  # of an incarnation, in the number of an unsettled map
COUNT = blank("connection incarnation outcome count").dtype
# Columns that only channels with sessions have.
OF_SESSIONS = ("session_name", "remote_channel", "incoming_window", "outgoing_window")
OF_SESSION_LINKS = (
    "handle", "address", "snd_settle_mode", "rcv_settle_mode", "flow_mode", "credit", "no_credit_ns",
    "acquire_mode", "distribution_mode", "filters", "filters_requested",
)  # fmt: skip


def counted(counts: NDArray[np.void], settled: Settled) -> NDArray[np.void]:
    """`counts` (COUNT) with what became of more messages; publishes in transactions are not counted."""
    chosen = (settled.outcome > 0) & (settled.map_no & MAP_MASK != TRANSACTED)
    if not chosen.any():
        return counts
    more = np.zeros(int(chosen.sum()), COUNT)
    more["connection"], more["outcome"] = settled.connection[chosen], settled.outcome[chosen]
    more["incarnation"], more["count"] = settled.map_no[chosen] >> MAP_INCARNATION_SHIFT, 1
    whole = np.concatenate([counts, more])
    alike = numbered(whole["connection"], whole["incarnation"], whole["outcome"])
    found = whole[np.unique(alike, return_index=True)[1]]
    found["count"] = 0
    np.add.at(found["count"], alike, whole["count"])
    return found


def incarnation_of(records: Records) -> NDArray[np.int64]:
    """The numbers of incarnations, which are those of their unsettled maps without the last bits."""
    shift = MAP_CHANNEL_SHIFT - MAP_INCARNATION_SHIFT
    number: NDArray[np.int64] = (records["channel"] << shift) | records["incarnation"]
    return number


def maps_of(records: Records) -> NDArray[np.int64]:
    """The numbers of all unsettled maps of some incarnations."""
    numbers = (incarnation_of(records) << MAP_INCARNATION_SHIFT)[:, None] + np.arange(MAP_MASK + 1)
    return numbers.reshape(-1)


def channel_columns(incarnations: Records, counts: NDArray[np.void], tracker: ChannelTracker) -> dict[str, pa.Array]:
    """Columns of table channels: one row for each of `incarnations`; `counts` of their messages."""
    shown = tracker.to_arrow("incarnation", incarnations)
    connections = np.concatenate([incarnations["connection"], counts["connection"]])
    number = numbered(connections, np.concatenate([incarnation_of(incarnations), counts["incarnation"]]))
    own, of_counts = np.split(number, [len(incarnations)])
    sums = np.zeros((len(TEXTS["outcomes"]) + 1, len(number)), np.int64)
    np.add.at(sums, (counts["outcome"], of_counts), counts["count"])
    columns = {name: shown[name] for name in shown.schema.names if not name.endswith("_ns")}
    columns |= {name: pa.array(sums[TEXTS["outcomes"].index(name) + 1][own]) for name in COUNTED}
    return {
        **columns,
        "opened_ts": timestamps(shown["opened_ns"]),
        "closed_ts": timestamps(shown["closed_ns"]),
        "mode": pc.coalesce(shown["mode"], "none"),
        "unsettled": pa.array(incarnations["opened"] - sums.sum(axis=0)[own]),
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
