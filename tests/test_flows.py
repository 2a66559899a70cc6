"""Flows where it is hard: messages that die and come back, captures with losses; and those of the shipped captures.

The scripts of this module are written by hand; `test_scenarios` draws some from Hypothesis. Of the shipped captures,
expectations are made in plain Python of what tshark found in them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from scenarios import seen_by_tshark
from scenarios.broker import Broker
from scenarios.capture import Packet
from scenarios.compared import FLOW_COLUMNS, differences
from scenarios.decoded import at_place, population, write_scripts
from scenarios.script import FIRST_CLIENT_PORT, Channel, Consumer, Message, Peer, Queue, Script
from scenarios.strategies import FIRST_START
from scenarios.true_flows import Flows

import pipeline
from pipeline.tables.flows import OF_MESSAGES, message_flows

CAPTURES = Path(__file__).parent / "captures"
CLASSIC = (
    "rpc_reply_to", "confirms_and_return", "tx", "get_and_empty", "cancel_by_queue_delete", "many_channels",
    "declare_publish_consume_ack", "exchange_to_exchange",
)  # fmt: skip
# Capture -> messages that were sent and came to their receiver, by its manifest entry.
SENT_AND_RECEIVED = {
    "10_qpidd_proton_send_receive.pcap": 10,
    "10_rabbitmq_proton_send_receive.pcap": 10,
    "010_cpp_send_receive.pcap": 20,
}
LOSSY = {1000: 0.5, 2000: 0.1}  # number of the first broker -> share of packets that the capture lacks
LOSSY_SCRIPTS = 30
ENDS = ("publish_connection_id", "publish_frame_no", "deliver_connection_id", "deliver_frame_no")
CONSUMER = Consumer("c", "q")


# ---- scripts by hand ------------------------------------------------------------------------------------------------


def talk(number: int, queues: tuple[Queue, ...], *more: Consumer, publisher: str = "0-9-1") -> Broker:
    """A broker with a publisher (peer 0) and one consumer (peer 1) of each queue that is named."""
    consuming = Peer("0-9-1", channels=(Channel(1, "none", (CONSUMER, *more)),))
    return Broker(number, FIRST_START, (Peer(publisher, channels=(Channel(1, "confirm"),)), consuming), queues)


def retried(number: int) -> Script:
    """Rejected messages wait in a second queue until they expire there, and come back: x-death, not redelivered."""
    broker = talk(number, (Queue("q", dead_letter=("", "later")), Queue("later", dead_letter=("", "q"))))
    for body in (b"one", b"two"):
        broker.publish(0, 1, Message(body, "", "q"))
        broker.deliver(1, 1, CONSUMER)
    for _ in range(2):
        broker.settle(1, 1, 0, True, "rejected")
        broker.expire("/", "later", "expired")
        broker.expire("/", "later", "expired")
        broker.deliver(1, 1, CONSUMER)
        broker.deliver(1, 1, CONSUMER)
    broker.settle(1, 1, 1, True, "acked")
    return broker.script()


def dead_twice(number: int) -> Script:
    """Both copies of a message die, and meet again in one queue."""
    grave = Consumer("g", "grave")
    fan = (("all", None),)
    queues = (Queue("q", fan, ("", "grave")), Queue("r", fan, ("", "grave")), Queue("grave"))
    broker = talk(number, queues, grave)
    broker.publish(0, 1, Message(b"one", "all", "", "an id"))
    broker.expire("/", "q", "expired")
    broker.expire("/", "r", "maxlen")
    broker.deliver(1, 1, grave)
    broker.deliver(1, 1, grave)
    broker.settle(1, 1, 0, False, "acked")
    return broker.script()


def lost_in_the_queue(number: int) -> Script:
    """Of three equal messages the first is pushed out: which one is delivered, the capture does not tell."""
    broker = talk(number, (Queue("q"),))
    for _ in range(3):
        broker.publish(0, 1, Message(b"same", "", "q"))
    broker.expire("/", "q", "maxlen")
    broker.deliver(1, 1, CONSUMER)
    broker.deliver(1, 1, CONSUMER)
    return broker.script()


def before_the_publish(number: int) -> Script:
    """A delivery is never that of a later publish: somebody else had published before the capture began."""
    unseen = Peer("0-9-1", channels=(Channel(1),), captured=False)
    consuming = Peer("0-9-1", channels=(Channel(1, "none", (CONSUMER,)),))
    broker = Broker(number, FIRST_START, (Peer("0-9-1"), consuming, unseen), (Queue("q"),))
    broker.publish(2, 1, Message(b"same", "", "q"))
    broker.deliver(1, 1, CONSUMER)
    broker.publish(0, 1, Message(b"same", "", "q"))
    return broker.script()


WRITTEN = (retried, dead_twice, lost_in_the_queue, before_the_publish)


# ---- one decode for all ---------------------------------------------------------------------------------------------


@dataclass
class Read:
    """Flows as rows; `capture_of` connections; `event_of` (connection, first frame) in captures with losses: script
    and index of the event."""

    flows: list[dict[str, Any]]
    capture_of: dict[int, str]
    peer_of: dict[int, int]
    event_of: dict[tuple[int, int], tuple[Script, int]]

    def of_script(self, script: Script) -> list[dict[str, Any]]:
        rows = [dict(row) for row in self.flows if row["server"] == script.server]
        for row in rows:
            for side in ("publish", "deliver"):
                row[f"{side}_peer"] = self.peer_of.get(row[f"{side}_connection_id"])
        return rows

    def of_capture(self, name: str) -> list[dict[str, Any]]:
        return [
            row for row in self.flows
            if name in {self.capture_of.get(row[f"{side}_connection_id"]) for side in ("publish", "deliver")}
        ]  # fmt: skip


def surest(count: int) -> list[Script]:
    """Scripts with many pairs that nothing but loss makes ambiguous."""

    def sure(script: Script) -> int:
        return sum(flow.ambiguous is False and flow.row["match"] == "message-id" for flow in Flows(script).all())

    return sorted(population(), key=sure, reverse=True)[:count]


@pytest.fixture(scope="module")
def read(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Read]:
    folder = tmp_path_factory.mktemp("flows")
    packets = written(folder)
    shipped = [f"091_{name}.pcap" for name in CLASSIC] + list(SENT_AND_RECEIVED)
    tables = pipeline.decode(spark, [str(folder), *(str(CAPTURES / name) for name in shipped)])
    file = F.regexp_extract("capture_file", "([^/]+)$", 1)
    capture_of: dict[int, str] = dict(tables.frames.select("connection_id", file).distinct().collect())
    # The shipped captures are of the same broker on different days: each is to be looked at alone.
    days = [(number, name) for number, name in capture_of.items() if name in shipped]
    of_day = F.broadcast(spark.createDataFrame(days, "id long, day string"))
    apart = tables.connections.join(of_day, F.col("connection_id") == F.col("id"), "left")
    apart = apart.withColumn("server_ip", F.coalesce("day", "server_ip")).persist()
    said = tables.messages.select(*OF_MESSAGES, "packet_no").persist()
    flows = [row.asDict() for row in message_flows(said, apart).select(*ENDS, *FLOW_COLUMNS).collect()]
    ports = apart.select("connection_id", "client_port").collect()
    event_of = {}
    for connection_id, frame_no, packet_no in said.select("connection_id", "first_frame_no", "packet_no").collect():
        if capture_of[connection_id] in packets:
            packet = packets[capture_of[connection_id]][packet_no - 1]
            assert packet.event is not None
            event_of[(connection_id, frame_no)] = (packet.script, packet.event)
    yield Read(flows, capture_of, {number: port - FIRST_CLIENT_PORT for number, port in ports}, event_of)
    tables.release()


def written(folder: Path) -> dict[str, list[Packet]]:
    """Write all scripts; by file the packets of captures with losses."""
    write_scripts(folder / "written.pcap", [make(number) for number, make in enumerate(WRITTEN)])
    packets: dict[str, list[Packet]] = {}
    lossy = surest(LOSSY_SCRIPTS)
    for first, share in LOSSY.items():
        random = Random(first)
        mine = [at_place(script, first + place) for place, script in enumerate(lossy)]
        name = f"lossy-{first}.pcap"
        packets[name] = write_scripts(folder / name, mine, kept=lambda _: random.random() >= share)  # noqa: B023
    return packets


@pytest.mark.parametrize("number", range(len(WRITTEN)), ids=[make.__name__ for make in WRITTEN])
def test_flows_of_scripts_by_hand(read: Read, number: int) -> None:
    script = WRITTEN[number](number)
    assert differences(script, read.of_script(script)) == []


def test_what_order_alone_decides_is_ambiguous(read: Read) -> None:
    script = lost_in_the_queue(WRITTEN.index(lost_in_the_queue))
    rows = read.of_script(script)
    assert [row["ambiguous"] for row in rows if row["match"] != "none"] == [True, True]
    assert len(rows) == 3


def is_of(script: Script, delivery: int, publish: int) -> bool:
    of = script.events[delivery].of
    assert of is not None
    one, other = script.events[of].message, script.events[publish].message
    return of == publish or (one is not None and one.message_id is not None and one == other)


@pytest.mark.parametrize("first", LOSSY)
def test_no_pair_is_invented_where_packets_are_missing(read: Read, first: int) -> None:
    """Every pair is one of the whole script, or marked. What was published again under its message-id is one message:
    where only one of the two is left, the pair is on that."""
    invented, counted = [], Counter[str]()
    for row in read.flows:
        ends = [(row[f"{side}_connection_id"], row[f"{side}_frame_no"]) for side in ("publish", "deliver")]
        if None in ends[0] or None in ends[1] or ends[0] not in read.event_of:
            continue
        (script, publish), (other, delivery) = (read.event_of[end] for end in ends)
        if not first <= script.number < first + LOSSY_SCRIPTS:
            continue
        true = script is other and is_of(script, delivery, publish)
        counted[f"{'true' if true else 'false'}, {'ambiguous' if row['ambiguous'] else 'sure'}"] += 1
        if not true and not row["ambiguous"]:
            invented.append((script.number, publish, delivery, row["match"]))
    assert invented == []
    assert counted["true, sure"] > 5  # there is something to be wrong about


# ---- shipped captures -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [f"091_{name}.pcap" for name in CLASSIC])
def test_shipped_captures_give_the_flows_that_tshark_shows(read: Read, name: str) -> None:
    rows = [(row["publish_ts_ns"], row["deliver_ts_ns"], row["redeliveries"] or 0) for row in read.of_capture(name)]
    assert sorted(rows, key=seen_by_tshark.in_time) == seen_by_tshark.flows(name)


def test_requests_are_answered_as_fast_as_tshark_shows(read: Read) -> None:
    """Twelve calls, some by direct reply-to."""
    name = "091_rpc_reply_to.pcap"
    rows = read.of_capture(name)
    found = sorted((row["publish_ts_ns"], row["rpc_latency_ns"]) for row in rows if row["rpc_latency_ns"] is not None)
    assert found == seen_by_tshark.rpc_latencies(name)
    assert len(found) == 12


@pytest.mark.parametrize(("name", "count"), SENT_AND_RECEIVED.items())
def test_what_was_sent_was_received(read: Read, name: str, count: int) -> None:
    rows = sorted(read.of_capture(name), key=lambda row: row["publish_ts_ns"])
    assert [row["outcome"] for row in rows] == ["acked"] * count
    assert {row["match"] for row in rows} <= {"message-id", "fingerprint"}
    # From one sender to one receiver: in the order they were sent.
    delivered = [row["deliver_ts_ns"] for row in rows]
    assert delivered == sorted(delivered)
    assert all(row["confirm_latency_ns"] > 0 for row in rows)
