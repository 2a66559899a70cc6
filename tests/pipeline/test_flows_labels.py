"""Messages with equal bodies that headers tell apart, and readers that take nothing out of a queue.

Connections of 0-9-1 are written by hand, as bytes, and go through readers, decoder and pairing without Spark; of other
versions messages are written down as rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from classic_frames import body, header, method, protocol_header
from decoding import decode_table, in_flow_order, runs
from pyarrow import parquet as pq
from pyarrow.fs import LocalFileSystem
from test_fields import column
from wire import CLIENT, SERVER, Wire, write_capture

from codec.tables import MESSAGE_FLOWS, MESSAGES
from pipeline.tables.decoding import config
from udfs.arrow.types import arrow_schema, cast_to
from udfs.conversation.frame_batch import FrameBatch
from udfs.conversation.methods import streams_of
from udfs.pairing import flows
from udfs.pairing.flows import STALLED, TO_PAIR, PairMessages
from udfs.pairing.hash_partitions import EVERYWHERE, KEY, HashPartitioner
from udfs.pairing.pairable import messages_to_pair
from udfs.pairing.parts import SERVER_SENDS, network_keys, stalled_of
from udfs.pairing.schemas import ARROW_PARTITIONED, BROKER_COLUMNS, MESSAGE_COLUMNS
from udfs.pairing.stalled_messages import ToEachBucket
from udfs.pairing.stream_messages import STREAM_ROWS, OrderInStreams, stream_messages
from udfs.tables.conversation import Conversation

V = "0-9-1"
Row = dict[str, Any]
BROKER = {"server": "10.0.0.1:5672", "broker": "10.0.0.1:5672", "vhost": "/", "lossy": False, "ids_repeat": None}


# ---- bytes -> flows ------------------------------------------------------------------------------------------------


def flows_of(path: Path, wires: Iterable[Wire]) -> list[Row]:
    """Rows of message_flows, of connections of 0-9-1 at one broker."""
    write_capture(path, wires)
    decoded = decode_table(in_flow_order(runs([path])))
    frames = decoded.filter(pc.equal(decoded["kind"], "frame")).sort_by(
        [("connection_id", "ascending"), ("frame_no", "ascending")]
    )
    (batch,) = frames.combine_chunks().to_batches()
    conversation, parts = Conversation(config()), list[pa.RecordBatch]()
    for found in (conversation.feed(FrameBatch(batch)), conversation.finish()):
        parts += [rows for table, rows in found if table == "messages"]
    messages = pa.Table.from_batches([rows.select(MESSAGE_COLUMNS) for rows in parts]).combine_chunks()
    known = "".join(f"{queue}\n" for queue in sorted(set(streams_of(batch)["queue"].to_pylist())))
    return paired(messages.to_batches()[0], {"version": V, "streams": known or None, **BROKER})


def paired(messages: pa.RecordBatch, broker: Row) -> list[Row]:
    """Columns MESSAGE_COLUMNS, of connections to one broker -> rows of message_flows."""
    for name, kind in BROKER_COLUMNS.items():
        if name not in messages.schema.names:
            messages = messages.append_column(name, pa.array([broker.get(name)] * messages.num_rows, kind))
    partitioner = HashPartitioner(TO_PAIR, 1)
    placed = OrderInStreams(partitioner)(HashPartitioner(STREAM_ROWS, 1)(stream_messages(messages)))
    partitioned = iter([*partitioner(messages_to_pair(messages)), *placed])
    return [row for rows in PairMessages(MESSAGE_FLOWS)(partitioned) for row in rows.to_pylist()]


def opened() -> Wire:
    wire = Wire()
    wire.add(CLIENT, protocol_header(V))
    wire.add(SERVER, method(V, "connection.start", 0, version_major=0, version_minor=9))
    wire.add(CLIENT, method(V, "channel.open"))
    wire.add(SERVER, method(V, "channel.open-ok"))
    return wire


def publishing(*messages: Row, queue: str = "q", content: bytes = b"same") -> Wire:
    """A connection that publishes equal bodies to a queue, with these properties."""
    wire = opened()
    for properties in messages:
        sent = method(V, "basic.publish", exchange="", routing_key=queue)
        wire.add(CLIENT, sent + header(V, "basic", len(content), **properties) + body(content))
    return wire


def consuming(
    *messages: Row, queue: str = "q", tag: str = "c", redelivered: bool = False, ack: bool = True, **asked: Any
) -> Wire:
    """A connection with one consumer, to which these are delivered one after the other."""
    wire = opened()
    wire.add(CLIENT, method(V, "basic.consume", queue=queue, consumer_tag=tag, **asked))
    wire.add(SERVER, method(V, "basic.consume-ok", consumer_tag=tag))
    for number, properties in enumerate(messages, start=1):
        sent = method(
            V, "basic.deliver", consumer_tag=tag, delivery_tag=number, routing_key=queue, redelivered=redelivered
        )
        wire.add(SERVER, sent + header(V, "basic", 4, **properties) + body(b"same"))
        if ack:
            wire.add(CLIENT, method(V, "basic.ack", delivery_tag=number))
    return wire


def nth(rows: list[Row], side: str) -> dict[int, int]:
    """frame_no of a side's messages -> which of them it is, from 0 on."""
    return {
        frame: n for n, frame in enumerate(sorted({row[f"{side}_frame_no"] for row in rows if row[f"{side}_frame_no"]}))
    }


def couples(rows: list[Row]) -> dict[int, int]:
    """Which publish -> which delivery, from 0 on."""
    published, delivered = nth(rows, "publish"), nth(rows, "deliver")
    return {
        published[row["publish_frame_no"]]: delivered[row["deliver_frame_no"]] for row in rows if row["match"] != "none"
    }


def rows_with_sn(count: int) -> list[Row]:
    return [{"headers": {"sn": n}} for n in range(count)]


# ---- headers --------------------------------------------------------------------------------------------------------

SHUFFLED = [(n * 89) % 142 for n in range(142)]  # 89 and 142 have no divisor in common: each number once


def test_a_unique_header_distinguishes_equal_bodies_in_any_order(tmp_path: Path) -> None:
    messages = rows_with_sn(142)
    rows = flows_of(tmp_path / "a.pcap", [publishing(*messages), consuming(*(messages[n] for n in SHUFFLED))])
    assert couples(rows) == {n: at for at, n in enumerate(SHUFFLED)}
    assert {(row["match"], row["ambiguous"]) for row in rows} == {("fingerprint", False)}


def test_flows_of_one_key_are_made_some_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their columns take more memory than the messages. Two publishes have no delivery, one delivery no publish."""
    monkeypatch.setattr(flows, "FLOWS_TOGETHER", 2)
    messages = rows_with_sn(9)
    rows = flows_of(tmp_path / "a.pcap", [publishing(*messages[:8]), consuming(*messages[:1:-1])])
    assert couples(rows) == {n: 8 - n for n in range(2, 8)}
    assert sorted((row["publish_frame_no"] is None, row["deliver_frame_no"] is None) for row in rows) == [
        *[(False, False)] * 6, *[(False, True)] * 2, (True, False),
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["priority", "content_type", "content_encoding", "type", "app_id"])
def test_a_unique_property_distinguishes_equal_bodies(name: str, tmp_path: Path) -> None:
    messages: list[Row] = [{name: n if name == "priority" else f"{n}"} for n in range(3)]
    rows = flows_of(tmp_path / "a.pcap", [publishing(*messages), consuming(*reversed(messages))])
    assert couples(rows) == {0: 2, 1: 1, 2: 0}
    assert {row["ambiguous"] for row in rows} == {False}


@pytest.mark.parametrize(
    ("sent", "added"),
    [
        ({}, {"x-received-from": [{"uri": "amqp://elsewhere"}]}),
        ({}, {"x-delivery-count": 1}),
        ({}, {"x-death": [{"queue": "r", "reason": "expired"}], "x-first-death-reason": "expired"}),
        ({"CC": ["r"], "BCC": ["s"]}, {"BCC": None}),
        ({"x-delay": 5000}, {"x-delay": -5000}),
    ],
)
def test_headers_that_a_broker_adds_or_changes_are_not_part_of_the_label(sent: Row, added: Row, tmp_path: Path) -> None:
    messages = [{"headers": {"sn": n, **sent}} for n in range(4)]
    seen = [{"headers": {"sn": n, **sent, **added}} for n in (3, 2, 1, 0)]
    rows = flows_of(tmp_path / "a.pcap", [publishing(*messages), consuming(*seen)])
    assert couples(rows) == {0: 3, 1: 2, 2: 1, 3: 0}
    assert {row["ambiguous"] for row in rows} == {False}


def test_a_delivery_without_the_headers_of_a_publish_gets_the_remaining_one_and_is_ambiguous(tmp_path: Path) -> None:
    """Of three the second comes without its header: the only remaining one is its publish, or that was not captured."""
    messages = rows_with_sn(3)
    seen = [messages[2], {"headers": {"other": 7}}, messages[0]]
    rows = flows_of(tmp_path / "a.pcap", [publishing(*messages), consuming(*seen)])
    assert couples(rows) == {0: 2, 1: 1, 2: 0}
    by_delivery = sorted(rows, key=lambda row: row["deliver_frame_no"])
    assert [row["ambiguous"] for row in by_delivery] == [False, True, False]


@pytest.mark.parametrize(
    ("sent", "seen"),
    [
        ({"headers": {"sn": 1}}, {"headers": {"sn": 7}}),
        ({"headers": {"sn": 1, "same": "x"}}, {"headers": {"sn": "1", "same": "x"}}),
        ({"headers": {"x-own": 1}}, {"headers": {"x-own": 2}}),
        ({"headers": {"list": [1]}}, {"headers": {"list": [1, 2]}}),
        ({"content_type": "text/plain"}, {"content_type": "text/html", "app_id": "a"}),
        ({"priority": 1}, {"priority": 2}),
        ({"reply_to": "a"}, {"reply_to": "b"}),
        ({"expiration": "10"}, {"expiration": "20"}),
        ({"type": "a", "user_id": "guest"}, {"type": "b", "user_id": "guest"}),
    ],
)
def test_equal_bodies_with_other_values_of_a_header_or_property_are_no_pair(
    sent: Row, seen: Row, tmp_path: Path
) -> None:
    rows = flows_of(tmp_path / "a.pcap", [publishing(sent), consuming(seen)])
    assert [row["match"] for row in rows] == ["none", "none"]


@pytest.mark.parametrize(
    ("sent", "seen"),
    [
        ({"headers": {"sn": 1}}, {"headers": {"sn": 1, "more": 1}}),
        ({"headers": {"sn": 1, "gone": 1}}, {"headers": {"sn": 1}}),
        ({"headers": {"qpid.trace": "a"}}, {"headers": {"qpid.trace": "b"}}),
        ({"reply_to": "amq.rabbitmq.reply-to"}, {"reply_to": "amq.rabbitmq.reply-to.g1.2"}),
        ({"expiration": "10"}, {"headers": {"a": 1}}),
    ],
)
def test_what_only_one_side_has_and_what_brokers_change_separates_no_messages(
    sent: Row, seen: Row, tmp_path: Path
) -> None:
    rows = flows_of(tmp_path / "a.pcap", [publishing(sent), consuming(seen)])
    assert [row["match"] for row in rows] == ["fingerprint"]


def test_more_headers_than_are_compared_still_pair(tmp_path: Path) -> None:
    many: Row = {"headers": {f"h{n}": n for n in range(100)}}
    rows = flows_of(tmp_path / "a.pcap", [publishing(many), consuming({"headers": {**many["headers"], "h100": 1}})])
    assert [row["match"] for row in rows] == ["fingerprint"]


def test_different_headers_do_not_separate_equal_message_ids(tmp_path: Path) -> None:
    sent, seen = {"message_id": "m", "headers": {"a": 1}}, {"message_id": "m", "headers": {"a": 2}}
    rows = flows_of(tmp_path / "a.pcap", [publishing(sent), consuming(seen)])
    assert [(row["match"], row["ambiguous"]) for row in rows] == [("message-id", False)]


def test_equal_headers_are_paired_in_order_and_marked(tmp_path: Path) -> None:
    messages = [{"headers": {"kind": kind}} for kind in "aabb"]
    rows = flows_of(tmp_path / "a.pcap", [publishing(*messages), consuming(*(messages[n] for n in (2, 0, 3, 1)))])
    assert couples(rows) == {0: 1, 1: 3, 2: 0, 3: 2}
    assert {row["ambiguous"] for row in rows} == {True}


# ---- readers that leave what they read ------------------------------------------------------------------------------


@pytest.mark.parametrize("declared_by", ["declare", "consume"])
def test_each_reader_of_a_stream_has_a_pair_of_its_own(declared_by: str, tmp_path: Path) -> None:
    declared = opened()
    offset: Row = {"arguments": {"x-stream-offset": "first"}} if declared_by == "consume" else {}
    if declared_by == "declare":
        declared.add(CLIENT, method(V, "queue.declare", queue="q", durable=True, arguments={"x-queue-type": "stream"}))
    messages = rows_with_sn(3)
    readers = [consuming(*messages, tag=f"c{n}", **offset) for n in range(3)]
    rows = flows_of(tmp_path / "a.pcap", [declared, publishing(*messages), *readers])
    assert Counter(row["publish_frame_no"] for row in rows) == dict.fromkeys(nth(rows, "publish"), 3)
    assert {(row["match"], row["ambiguous"], row["redeliveries"]) for row in rows} == {("fingerprint", False, 0)}


def test_each_message_of_an_ordinary_queue_has_one_reader(tmp_path: Path) -> None:
    messages = rows_with_sn(3)
    rows = flows_of(tmp_path / "a.pcap", [publishing(*messages), consuming(*messages), consuming(*messages, tag="d")])
    assert sorted(row["match"] for row in rows) == ["fingerprint"] * 3 + ["none"] * 3


def messages(*rows: Row) -> pa.RecordBatch:
    """Columns MESSAGE_COLUMNS of rows written down; what they do not tell is null."""
    kinds = {field.name: field.type for field in arrow_schema(MESSAGES)}
    columns = {}
    for name in MESSAGE_COLUMNS:
        values = [row.get(name) for row in rows]
        columns[name] = column(values) if name in ("headers", "properties") else pa.array(values, kinds[name])
    versions = pa.array([row["version"] for row in rows])
    return pa.RecordBatch.from_pydict({**columns, "version": versions})


def message(version: str, operation: str, number: int, at: int, connection: int = 1, **more: Any) -> Row:
    return {
        "version": version, "connection_id": connection, "channel": 1, "operation": operation, "first_frame_no": at,
        "ts_ns": at, "first_ts_ns": at, "last_ts_ns": at, "headers": {"sn": number}, "body_size": 4,
        "body_sha256": "00", "outcome": "confirmed" if operation == "publish" else "acked", "settled_ts_ns": at + 1,
        **more,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("version", "to", "where"),
    [("0-10", {"exchange": "", "routing_key": "q"}, {"queue": "q"}), ("1.0", {"address": "q"}, {"address": "q"})],
)
@pytest.mark.parametrize("browsed", [True, False])
def test_browsers_take_nothing_out_of_a_queue(version: str, to: Row, where: Row, browsed: bool) -> None:
    """Two browsers and a consumer of three messages; what a browser releases does not come again to it."""
    sent = [message(version, "publish", n, 10 + n, **to) for n in range(3)]
    seen = [
        message(
            version, "deliver", n, 100 * reader + n, reader, link=f"l{reader}", browsed=browsed and reader > 1,
            outcome="released" if browsed and reader > 1 else "acked", **where,
        )
        for reader in (1, 2, 3) for n in range(3)
    ]  # fmt: skip
    rows = paired(messages(*sent, *seen), BROKER)
    if browsed:
        assert Counter(row["publish_frame_no"] for row in rows) == {10: 3, 11: 3, 12: 3}
        assert {(row["match"], row["ambiguous"], row["redeliveries"]) for row in rows} == {("fingerprint", False, 0)}
    else:
        assert sorted(row["match"] for row in rows) == ["fingerprint"] * 3 + ["none"] * 6


@pytest.mark.parametrize(("sent_as", "seen_as"), [("0-9-1", "1.0"), ("1.0", "0-9-1"), ("0-10", "1.0")])
def test_across_versions_headers_compare_in_types_that_both_have(sent_as: str, seen_as: str) -> None:
    """A broker hands on simple values; tables and x- headers it does not, or elsewhere (RabbitMQ, conversions)."""
    private = {"x-mine": 1, "table": {"a": 1}}
    to: Row = {"address": "/queues/q"} if sent_as == "1.0" else {"exchange": "", "routing_key": "q"}
    where: Row = {"address": "/queues/q"} if seen_as == "1.0" else {"queue": "q"}
    sent = [message(sent_as, "publish", n, 10 + n, headers={"sn": n, **private}, **to) for n in range(3)]
    seen = [message(seen_as, "deliver", n, 100 - n, 2, headers={"sn": n}, **where) for n in range(3)]
    rows = paired(messages(*sent, *seen), BROKER)
    assert couples(rows) == {0: 2, 1: 1, 2: 0}
    assert {row["ambiguous"] for row in rows} == {False}


# ---- redeliveries ---------------------------------------------------------------------------------------------------


def test_equal_messages_that_come_again_once_each_are_spread(tmp_path: Path) -> None:
    """Fifty come to a consumer that settles none, then to another one, which does not either."""
    messages = [{"headers": {"kind": "same"}}] * 50
    wires = [
        publishing(*messages),
        consuming(*messages, ack=False),
        consuming(*messages, tag="d", redelivered=True, ack=False),
    ]
    rows = flows_of(tmp_path / "a.pcap", wires)
    assert [row["redeliveries"] for row in rows] == [1] * 50


# ---- several queues of one address ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("published_to", "delivered_from"),
    [
        ("t", ("t/Subscriptions/a", "t/Subscriptions/b")),  # Service Bus
        ("t", ("t::a", "t::b")),  # Artemis
        ("topic://t", ("topic://t", "topic://t")),  # ActiveMQ
        ("hub", ("hub/ConsumerGroups/a/Partitions/0", "hub/ConsumerGroups/b/Partitions/0")),  # Event Hubs
        ("q", ("q", "q/$DeadLetterQueue")),
    ],
)
def test_each_queue_of_an_address_delivers_what_is_published_there(
    published_to: str, delivered_from: tuple[str, str]
) -> None:
    """A subscription is a queue that gets each message of its topic; dead letters come from a queue of their own."""
    sent = [message("1.0", "publish", n, 10 + n, address=published_to) for n in range(3)]
    seen = [
        message("1.0", "deliver", n, 100 * reader + n, reader, link=f"l{reader}", address=address)
        for reader, address in enumerate(delivered_from, start=1) for n in range(3)
    ]  # fmt: skip
    rows = paired(messages(*sent, *seen), BROKER)
    assert sorted((row["publish_frame_no"], row["deliver_frame_no"]) for row in rows) == [
        (10 + n, 100 * reader + n) for n in range(3) for reader in (1, 2)
    ]
    assert {(row["match"], row["ambiguous"], row["redeliveries"]) for row in rows} == {("fingerprint", False, 0)}


def test_a_queue_of_activemq_has_two_names() -> None:
    """queue://q and q (ActiveMQ, AMQP: destinations without a prefix are queues)."""
    sent = [message("1.0", "publish", n, 10 + n, address=("queue://q", "q")[n]) for n in range(2)]
    seen = [message("1.0", "deliver", n, 100 + n, 2, link="l", address=("q", "queue://q")[n]) for n in range(2)]
    rows = paired(messages(*sent, *seen), BROKER)
    assert couples(rows) == {0: 0, 1: 1}
    assert {row["ambiguous"] for row in rows} == {False}


def test_what_held_messages_up_is_read_once_by_a_task_that_pairs_many_buckets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not once for each bucket: a million stalls in each would be as many copies. Rows are those of copies."""
    sent = [message(V, "publish", n, 1000 + 100 * n, exchange="", routing_key=f"q{n}") for n in range(40)]
    seen = [message(V, "deliver", n, 1060 + 100 * n, 2, queue=f"q{n}") for n in range(40)]
    rows, buckets = messages(*sent, *seen), 8
    for name, kind in BROKER_COLUMNS.items() - {("version", pa.string())}:
        rows = rows.append_column(name, pa.array([BROKER.get(name)] * rows.num_rows, kind))
    network = [network_keys(np.array([2]), SERVER_SENDS)[0]] * 40
    from_ns = [1020 + 100 * n for n in range(40)]
    listed = [40, *network, *from_ns, *(at + 40 for at in from_ns)]
    row = cast_to({KEY: pa.array([EVERYWHERE]), "side": pa.array([STALLED]), "shared": pa.array([listed])}, TO_PAIR)
    arrays = [pa.array([0], pa.int32()), pa.array([row.serialize().to_pybytes()])]
    stalled = pa.RecordBatch.from_arrays(arrays, schema=ARROW_PARTITIONED)
    pq.write_table(pa.Table.from_batches([stalled]), tmp_path / "stalled.parquet")
    partitioned = list(HashPartitioner(TO_PAIR, buckets)(messages_to_pair(rows)))
    copies = pa.Table.from_batches([*partitioned, *ToEachBucket(buckets)(iter([stalled]))]).sort_by("bucket")
    of_copies = pa.concat_batches(list(PairMessages(MESSAGE_FLOWS)(iter(copies.to_batches()))))
    read = Mock(wraps=stalled_of)
    monkeypatch.setattr(flows, "stalled_of", read)
    pairing = PairMessages(MESSAGE_FLOWS, LocalFileSystem(), str(tmp_path / "stalled.parquet"))
    once = pa.Table.from_batches(partitioned).sort_by("bucket")
    found = pa.concat_batches(list(pairing(iter(once.to_batches()))))
    assert found.equals(of_copies)
    assert found["network_ns"].to_pylist() == [40] * 40
    assert read.call_count == 1
