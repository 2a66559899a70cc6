"""The parts of `total_latency_ns` of message flows: who took each nanosecond.

A flow is a line in time with these points, each moved between its neighbours, so that the parts add up to the whole:

    publish begun                 (without a publish: when the broker took the message, as it states)
      send_ns                     network_ns: what TCP held up on the way
    publish complete
      confirm_wait_ns             null without a confirm before the delivery: what follows contains the broker's time
    confirmed
      queue_blocked_ns            no consumer could take it
      queue_ready_ns              one could
    first delivery begun
      redelivery_ns
    last delivery begun
      delivery_ns
    last delivery complete
      consumer_ns
    handled                       null ack_held_ns: settled alone, so that it was handled when it was settled
      ack_held_ns
    settled

TCP holds up a part if it cannot send during it, or until it ends: a publish or delivery that was lost is on its way
until it is retransmitted, a delivery or settlement that waits for a closed window is late by that time.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from codec.pairing.intervals import NONE, Intervals
from udfs.arrow.arrays import combine_chunks, to_int64

Integers = NDArray[np.int64]
BESIDE_NS = 1_000_000  # what TCP held up is sent at most so much later
CLIENT_SENDS, SERVER_SENDS = 0, 1  # of `network_keys`


class Points(NamedTuple):
    """The points of flows in time, int64 (n,); one that is not known is after all others. What they wait for: the
    connections of publish and delivery, and the `queue`, a key of `Stalled.blocked`."""

    begun_ns: Integers
    published_ns: Integers
    confirmed_ns: Integers
    delivered_ns: Integers
    last_begun_ns: Integers
    last_complete_ns: Integers
    handled_ns: Integers
    settled_ns: Integers
    publish_connection: Integers
    deliver_connection: Integers
    queue: Integers


class Stalled(NamedTuple):
    """When a side of a connection could not send (`network_keys`), and when no consumer of a queue could take a
    message."""

    network: Intervals
    blocked: Intervals


def network_keys(connections: Integers, sender: int) -> Integers:
    """Keys of `Stalled.network`. Ids of connections are 63 bits."""
    keys: Integers = (connections << 1) | sender
    return keys


def stalled_of(rows: pa.Table) -> Stalled:
    """The intervals in rows STALLED of TO_PAIR, at most one."""
    listed = to_int64(combine_chunks(rows["shared"]).flatten())
    of_network, columns = (int(listed[0]), listed[1:].reshape(3, -1)) if len(listed) else (0, listed.reshape(3, 0))
    return Stalled(*(Intervals.of(*part) for part in (columns[:, :of_network], columns[:, of_network:])))


def parts_of(points: Points, stalled: Stalled) -> tuple[dict[str, Integers], NDArray[np.bool_]]:
    """The parts of flows by column, and which were confirmed before their delivery."""
    begun, settled = points.begun_ns, points.settled_ns
    # From the last point to the first: each is at most the next one.
    last_complete = np.minimum(points.last_complete_ns, settled)
    last_begun = np.minimum(points.last_begun_ns, last_complete)
    delivered = np.clip(np.minimum(points.delivered_ns, last_begun), begun, None)
    published = np.clip(points.published_ns, begun, delivered)
    last_begun = np.clip(last_begun, delivered, None)
    last_complete = np.clip(last_complete, last_begun, None)
    is_confirmed = points.confirmed_ns <= delivered
    network = stalled.network
    by_publisher = network_keys(points.publish_connection, CLIENT_SENDS)
    to_publisher = network_keys(points.publish_connection, SERVER_SENDS)
    to_consumer = network_keys(points.deliver_connection, SERVER_SENDS)
    by_consumer = network_keys(points.deliver_connection, CLIENT_SENDS)
    by_publisher_until = np.where(is_confirmed, points.confirmed_ns, delivered)
    # Sent, and lost on its way: it arrives when it is retransmitted.
    arrived = _held_up_until(network, by_publisher, published, np.maximum(by_publisher_until, published))
    confirmed = np.where(is_confirmed, np.maximum(points.confirmed_ns, arrived), arrived)
    confirm_sent = np.where(is_confirmed, _held_up_since(network, to_publisher, arrived, confirmed), confirmed)
    deliver_sent = _held_up_since(network, to_consumer, confirmed, delivered)
    consumed = _held_up_until(network, to_consumer, last_complete, settled)
    settle_sent = _held_up_since(network, by_consumer, consumed, settled)
    handled = np.clip(points.handled_ns, consumed, settle_sent)
    sending = network.covered_ns(by_publisher, begun, published)
    delivering = network.covered_ns(to_consumer, last_begun, last_complete)
    blocked = stalled.blocked.covered_ns(points.queue, confirmed, deliver_sent)
    parts = {
        "send_ns": published - begun - sending,
        "network_ns": sending
        + (arrived - published)
        + (confirmed - confirm_sent)
        + (delivered - deliver_sent)
        + delivering
        + (consumed - last_complete)
        + (settled - settle_sent),
        "confirm_wait_ns": confirm_sent - arrived,
        "queue_blocked_ns": blocked,
        "queue_ready_ns": deliver_sent - confirmed - blocked,
        "redelivery_ns": last_begun - delivered,
        "delivery_ns": last_complete - last_begun - delivering,
        "consumer_ns": handled - consumed,
        "ack_held_ns": settle_sent - handled,
    }
    return parts, is_confirmed


def _held_up_until(network: Intervals, keys: Integers, sent_ns: Integers, end_ns: Integers) -> Integers:
    """When what was sent at `sent_ns` arrived: then, or at the end of an interval that goes on, at most `end_ns`."""
    if not len(network.keys):
        return sent_ns
    at = network.last_begun(keys, sent_ns + 1)
    return np.where(at == NONE, sent_ns, np.clip(network.until_ns[at], sent_ns, end_ns))


def _held_up_since(network: Intervals, keys: Integers, first_ns: Integers, sent_ns: Integers) -> Integers:
    """Since when what was sent at `sent_ns` could not be sent: then, or when an interval begins that ends about then,
    at least `first_ns`."""
    if not len(network.keys):
        return sent_ns
    at = network.last_begun(keys, sent_ns)
    held_up = (at != NONE) & (network.until_ns[at] >= sent_ns - BESIDE_NS)
    return np.where(held_up, np.clip(network.from_ns[at], first_ns, sent_ns), sent_ns)
