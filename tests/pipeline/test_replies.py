"""Requests and their replies, of messages written down as rows."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from test_flows_labels import BROKER, message, messages

from codec.tables import MESSAGE_FLOWS
from udfs.pairing.flows import TO_PAIR, PairMessages
from udfs.pairing.hash_partitions import HashPartitioner
from udfs.pairing.pairable import messages_to_pair
from udfs.pairing.replies import RPC_ROWS, PairReplies, requests_and_replies
from udfs.pairing.schemas import BROKER_COLUMNS

REQUESTED, REPLIED = 10, 17


def latency(request: dict[str, Any], reply: dict[str, Any], connection: int = 1) -> int | None:
    """rpc_latency_ns of `request`, which has message-id m, if `reply` to it is delivered on this connection."""
    rows = messages(
        message("1.0", "publish", 1, REQUESTED, message_id="m", **request),
        message("1.0", "deliver", 2, REPLIED, connection, correlation_id="m", body_sha256="01", **reply),
    )
    for name in BROKER_COLUMNS.keys() - {"version"}:
        rows = rows.append_column(name, pa.array([BROKER.get(name)] * 2, BROKER_COLUMNS[name]))
    partitioner = HashPartitioner(TO_PAIR, 1)
    replies = PairReplies(partitioner)(HashPartitioner(RPC_ROWS, 1)(requests_and_replies(rows)))
    flows = PairMessages(MESSAGE_FLOWS)(iter([*partitioner(messages_to_pair(rows)), *replies]))
    found: list[int | None] = [
        row["rpc_latency_ns"] for batch in flows for row in batch.to_pylist() if row["publish_frame_no"]
    ]
    (latency_ns,) = found
    return latency_ns


def test_a_reply_is_delivered_from_the_reply_to() -> None:
    request = {"address": "rpc", "reply_to": "temporary"}
    assert latency(request, {"address": "temporary"}) == REPLIED - REQUESTED
    assert latency(request, {"address": "temporary"}, connection=2) == REPLIED - REQUESTED
    assert latency(request, {"address": "rpc"}) is None


@pytest.mark.parametrize(
    ("node", "reply_to", "replies_from"),
    [
        ("$cbs", "client-7", "$cbs"),  # Azure: reply-to is the target of the requester's receiver
        ("orders/Subscriptions/eu/$management", "client-8", "orders/Subscriptions/eu/$management"),
        ("/management", "$me", "/management"),  # RabbitMQ 4
        ("$management", "temporary", "temporary"),  # Qpid: a dynamic node
    ],
)
def test_a_node_that_serves_requests_replies_over_the_connection_of_the_request(
    node: str, reply_to: str, replies_from: str
) -> None:
    request, reply = {"address": node, "reply_to": reply_to}, {"address": replies_from}
    assert latency(request, reply) == REPLIED - REQUESTED
    assert latency(request, reply, connection=2) is None
