"""Flows where it is hard: messages that die and come back, captures with losses; and those of the shipped captures.

Scripts are written by hand (`scenarios.by_hand`), or those of Hypothesis without some packets. Of the shipped
captures, expectations are made in plain Python of what tshark found in them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from scenarios import seen_by_tshark
from scenarios.by_hand import WRITTEN, lost_in_the_queue, published_again
from scenarios.capture import Packet
from scenarios.compared import FLOW_COLUMNS, differences
from scenarios.decoded import population, with_number, write_scripts
from scenarios.script import FIRST_CLIENT_PORT, VERSIONS, Event, Script
from scenarios.true_flows import Flows

import pipeline
from pipeline.run.local_processes import LocalProcesses
from pipeline.tables.message_flows import message_flows

CAPTURES = Path(__file__).parents[1] / "captures"
CLASSIC = (
    "091_rpc_reply_to", "091_confirms_and_return", "091_tx", "091_get_and_empty", "091_cancel_by_queue_delete",
    "091_many_channels", "091_declare_publish_consume_ack", "091_exchange_to_exchange", "08_qpid_client",
    "09_qpid_client",
)  # fmt: skip
TX_0_10, TX_1_0, RPC_1_0 = "010_tx.pcap", "10_qpidd_transactions.pcap", "10_qpidd_rpc_dynamic_node.pcap"
# Capture -> messages that were sent and came to their receiver, by its manifest entry.
SENT_AND_RECEIVED = {
    "10_qpidd_proton_send_receive.pcap": 10,
    "10_rabbitmq_proton_send_receive.pcap": 10,
    "010_cpp_send_receive.pcap": 20,
}
LOSSY = {1000: 0.5, 1500: 0.5, 2000: 0.1}  # number of the first broker -> share of packets that the capture lacks
LOSSY_SCRIPTS = 30
REPEATS = {3000: True, 3001: False}  # number of the broker -> whether its capture shows that message-ids repeat
ENDS = ("publish_connection_id", "publish_frame_no", "deliver_connection_id", "deliver_frame_no")


# ---- one decode for all ---------------------------------------------------------------------------------------------


@dataclass
class Read:
    """Flows as rows; `capture_of` connections; `event_of` (connection, first frame) in captures with losses: script
    and index of the event; `identified`: those of them whose message-id was captured, by number of the script."""

    flows: list[dict[str, Any]]
    capture_of: dict[int, str]
    peer_of: dict[int, int]
    event_of: dict[tuple[int, int], tuple[Script, int]]
    identified: dict[int, list[Event]]

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
    """Scripts with many pairs on message-id, each two versions in their turn; half of them with a message-id that was
    used again."""

    def worth(script: Script) -> tuple[bool, int]:
        by_id = [flow for flow in Flows(script).all() if flow.row["match"] == "message-id"]
        return script.number % 2 == 0 or any(flow.ambiguous for flow in by_id), len(by_id)

    ranked: dict[tuple[str, str], list[Script]] = {}
    for script in sorted(population(), key=worth):
        for flow in Flows(script).all():
            if flow.row["match"] == "message-id" and script not in ranked.setdefault(spoken(flow.row), []):
                ranked[spoken(flow.row)].append(script)
    selected: dict[int, Script] = {}
    while len(selected) < count:
        for scripts in ranked.values():
            if scripts:
                script = scripts.pop()
                selected.setdefault(script.number, script)
    return list(selected.values())[:count]


def spoken(row: dict[str, Any]) -> tuple[str, str]:
    return row["version"], row["deliver_version"]


@pytest.fixture(scope="module")
def read(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Read]:
    folder = tmp_path_factory.mktemp("flows")
    packets = written(folder)
    shipped = [f"{name}.pcap" for name in CLASSIC] + [*SENT_AND_RECEIVED, TX_0_10, TX_1_0, RPC_1_0]
    captures = [str(folder), *(str(CAPTURES / name) for name in shipped)]
    pipeline.write(LocalProcesses(1), captures, str(folder / "tables"))
    tables = pipeline.load(spark, str(folder / "tables"))
    file = F.regexp_extract("capture_file", "([^/]+)$", 1)
    capture_of: dict[int, str] = dict(tables.frames.select("connection_id", file).distinct().collect())
    # The shipped captures are of the same broker on different days: each is to be looked at separately.
    days = [(number, name) for number, name in capture_of.items() if name in shipped]
    of_day = F.broadcast(spark.createDataFrame(days, "id long, day string"))
    apart = tables.connections.join(of_day, F.col("connection_id") == F.col("id"), "left")
    apart = apart.withColumns({"server_ip": F.coalesce("day", "server_ip"), "broker_name": F.col("day")}).persist()
    flows = [row.asDict() for row in message_flows(tables.messages, apart).select(*ENDS, *FLOW_COLUMNS).collect()]
    ports = apart.select("connection_id", "client_port").collect()
    event_of = {}
    identified: dict[int, list[Event]] = defaultdict(list)
    columns = ("connection_id", "first_frame_no", "packet_no", "message_id")
    for connection_id, frame_no, packet_no, message_id in tables.messages.select(*columns).collect():
        if capture_of[connection_id] in packets:
            packet = packets[capture_of[connection_id]][packet_no - 1]
            if packet.event is not None and packet.script.events[packet.event].message is not None:
                event_of[(connection_id, frame_no)] = (packet.script, packet.event)
                if message_id is not None:
                    identified[packet.script.number].append(packet.script.events[packet.event])
    yield Read(flows, capture_of, {number: port - FIRST_CLIENT_PORT for number, port in ports}, event_of, identified)
    tables.release()


def written(folder: Path) -> dict[str, list[Packet]]:
    """Write all scripts; by file the packets of captures with losses."""
    write_scripts(folder / "written.pcap", [make(number) for number, make in enumerate(WRITTEN)])
    packets: dict[str, list[Packet]] = {}
    lossy = surest(LOSSY_SCRIPTS)
    for first, share in LOSSY.items():
        random = Random(first)
        mine = [with_number(script, first + position) for position, script in enumerate(lossy)]
        name = f"lossy-{first}.pcap"
        packets[name] = write_scripts(folder / name, mine, captured=lambda _: random.random() >= share)  # noqa: B023
    again = {number: published_again(number, repeats) for number, repeats in REPEATS.items()}
    # The second publish and the first delivery are lost.
    lost = {(number, index) for number, (_, events) in again.items() for index in events[1:3]}
    packets["again.pcap"] = write_scripts(
        folder / "again.pcap",
        [script for script, _ in again.values()],
        captured=lambda packet: (packet.script.number, packet.event) not in lost,
    )
    return packets


@pytest.mark.parametrize("number", range(len(WRITTEN)), ids=[make.__name__ for make in WRITTEN])
def test_flows_of_scripts_by_hand(read: Read, number: int) -> None:
    script = WRITTEN[number](number)
    assert differences(script, read.of_script(script)) == []


def test_pairs_by_order_only_are_ambiguous(read: Read) -> None:
    script = lost_in_the_queue(WRITTEN.index(lost_in_the_queue))
    rows = read.of_script(script)
    assert [row["ambiguous"] for row in rows if row["match"] != "none"] == [True, True]
    assert len(rows) == 3


@pytest.mark.parametrize("number", REPEATS)
def test_a_message_id_makes_a_pair_unless_ids_repeat(read: Read, number: int) -> None:
    """A publish and the delivery of another one under the same message-id, whose own partners are lost. Where ids are
    seen to repeat, pairs on them are no surer than others; else nobody could tell, and ids are trusted."""
    script, (first, _, _, delivery) = published_again(number, REPEATS[number])
    pairs = [row for row in read.of_script(script) if row["match"] != "none"]
    assert {(row["match"], row["ambiguous"]) for row in pairs} == {("message-id", REPEATS[number])}
    ends = {(row["publish_ts_ns"], row["deliver_ts_ns"]) for row in pairs}
    assert (script.events[first].end, script.events[delivery].at) in ends


def show_repetition(messages: list[Event]) -> bool:
    """Whether these bear a message-id more than once, published or delivered from one queue as something new."""
    new = [event for event in messages if event.message is not None and not (event.redelivered or event.deliveries)]
    seen = Counter((event.queue, event.message.message_id) for event in new if event.message)
    return any(count > 1 for (_, message_id), count in seen.items() if message_id is not None)


@dataclass
class Judged:
    """Pairs of the brokers from one number on: what no reading of the capture allows, how many are (true, sure), and of
    those that are sure the versions of both ends."""

    invented: list[tuple[int, int, int, str]]
    counted: Counter[tuple[bool, bool]]
    spoken: Counter[tuple[str, str]]


def judged(read: Read, first: int) -> Judged:
    found = Judged([], Counter(), Counter())
    for row in read.flows:
        ends = [(row[f"{side}_connection_id"], row[f"{side}_frame_no"]) for side in ("publish", "deliver")]
        if None in ends[0] or None in ends[1] or ends[0] not in read.event_of:
            continue
        (script, publish), (other, delivery) = (read.event_of[end] for end in ends)
        if not first <= script.number < first + LOSSY_SCRIPTS:
            continue
        true = script is other and script.events[delivery].of == publish
        trusted = (
            script is other and row["match"] == "message-id" and not show_repetition(read.identified[script.number])
            and script.events[delivery].message == script.events[publish].message
        )  # fmt: skip
        found.counted[(true, not row["ambiguous"])] += 1
        if not row["ambiguous"]:
            found.spoken[spoken(row)] += 1
        if not (true or trusted or row["ambiguous"]):
            found.invented.append((script.number, publish, delivery, row["match"]))
    return found


@pytest.mark.parametrize("first", LOSSY)
def test_every_pair_is_correct_or_marked_where_packets_are_missing(read: Read, first: int) -> None:
    """Every pair is one of the script, or marked. A message that was published again under its message-id is the
    same message, as long as the capture does not show that ids repeat."""
    found = judged(read, first)
    assert found.invented == []
    assert found.counted[(True, True)] > 5


def test_captures_with_missing_packets_have_certain_and_ambiguous_pairs(read: Read) -> None:
    """Pairs that are sure, of all versions and across them, and pairs that are wrong and marked."""
    found = [judged(read, first) for first in LOSSY]
    surely = {pair for one in found for pair in one.spoken}
    assert {version for pair in surely for version in pair} == set(VERSIONS)
    assert sum(one != other for one, other in surely) > 3
    assert sum(one.counted[(False, False)] for one in found) > 0


# ---- shipped captures -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [f"{name}.pcap" for name in CLASSIC])
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


def test_requests_of_1_0_are_answered_as_fast_as_tshark_shows(read: Read) -> None:
    rows = read.of_capture(RPC_1_0)
    found = sorted((row["publish_ts_ns"], row["rpc_latency_ns"]) for row in rows if row["rpc_latency_ns"] is not None)
    assert found == seen_by_tshark.rpc_latencies_1_0(RPC_1_0)
    assert len(found) == 6


def test_rolled_back_publishes_are_not_published(read: Read) -> None:
    """By their manifest: 0-10 commits two messages and rolls one back, 1.0 commits three and rolls three back."""
    rows = read.of_capture(TX_0_10)
    assert sorted((row["match"], row["outcome"]) for row in rows) == [("fingerprint", "acked")] * 2 + [
        ("none", "confirmed")
    ]
    rows = [row for row in read.of_capture(TX_1_0) if row["address"] == "t2" and row["publish_ts_ns"] is not None]
    in_time = sorted(rows, key=lambda row: row["publish_ts_ns"])
    assert [row["match"] != "none" for row in in_time] == [True] * 3 + [False] * 3


@pytest.mark.parametrize(("name", "count"), SENT_AND_RECEIVED.items())
def test_every_sent_message_was_received(read: Read, name: str, count: int) -> None:
    rows = sorted(read.of_capture(name), key=lambda row: row["publish_ts_ns"])
    assert [row["outcome"] for row in rows] == ["acked"] * count
    assert {row["match"] for row in rows} <= {"message-id", "fingerprint"}
    # From one sender to one receiver: in the order they were sent.
    delivered = [row["deliver_ts_ns"] for row in rows]
    assert delivered == sorted(delivered)
    assert all(row["confirm_latency_ns"] > 0 for row in rows)
