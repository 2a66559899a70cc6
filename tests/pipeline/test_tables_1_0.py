"""Links and messages of AMQP 1.0 in real captures: a second, naive reading of tshark's frames says what became of each
delivery, and the scripts that were captured say what else must be found."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from typing import Any

import pytest
from captured_rows import rows_apart
from pyspark.sql import SparkSession
from tables_support import tables_from
from test_tables_captures import CAPTURES, Captured

NAMES = (
    "10_qpidd_transactions.pcap",
    "10_qpidd_outcomes_drain.pcap",
    "10_qpidd_link_errors.pcapng",
    "10_qpidd_rpc_dynamic_node.pcap",
    "10_rabbitmq_settle_modes.pcap",
    "10_rabbitmq_link_errors.pcap",
    "10_rabbitmq_multi_frame_transfer.pcap",
    "10_rhea_peer_to_peer.pcap",
    "10_mid_stream.pcap",
)
TRANSACTIONS, OUTCOMES, ERRORS, RPC, MODES, REFUSED, MULTI, PEERS, MID = (name.partition(".")[0] for name in NAMES)


@pytest.fixture(scope="module")
def found(spark: SparkSession) -> Iterator[Captured]:
    """Two of the captures have one time and one pair of ports; their connections are distinguished."""
    tables = tables_from(spark, rows_apart(NAMES))
    yield Captured(tables)
    tables.release()


# ---- what tshark shows ----------------------------------------------------------------------------------------------

ATTACH, FLOW, TRANSFER, DISPOSITION = "18", "19", "20", "21"
RECEIVER = "1"
WORDS = {"accepted": ("confirmed", "acked"), "declared": ("confirmed", "acked")}


def frames_in_tshark(name: str) -> Iterator[tuple[int, bool, str, dict[str, Any]]]:
    """(stream, sent by the client, performative, fields) of every frame in tshark's view of a capture."""
    clients: dict[int, int] = {}
    with gzip.open(CAPTURES / f"{name}.frames.jsonl.gz", "rt") as lines:
        for line in lines:
            one = json.loads(line)
            client = clients.setdefault(one["stream"], max(one["srcport"], one["dstport"]))
            nodes = {node["n"]: node for node in one["f"]}
            if "amqp.performative" in nodes:
                fields = {}
                for node in nodes.get("amqp.method.arguments", {}).get("c", []):
                    fields[node["n"].rpartition(".")[2]] = node.get("s")
                    if node["n"].startswith(("amqp.delivery-state.", "amqp.tx.")):
                        inner = [child["n"].rpartition(".")[2] for child in node.get("c", [])]
                        fields["state"] = [node["n"].rpartition(".")[2], *inner]
                    if node["n"].endswith((".source", ".target")):
                        inside = {child["n"].rpartition("arguments.")[2]: child.get("s") for child in node.get("c", [])}
                        fields[f"{node['n'].rpartition('.')[2]} address"] = inside.get("address.string")
                    if node["n"] == "amqp.tx.coordinator":
                        fields["coordinator"] = "target"
                yield one["stream"], one["srcport"] == client, nodes["amqp.performative"]["s"], fields


def commands(name: str) -> set[tuple[int, bool, str]]:
    """(stream, sent by the client, delivery-id) of what went over links to a coordinator. No handle is used twice."""
    frames = list(frames_in_tshark(name))
    links = {(one[0], one[1], one[3]["handle"]) for one in frames if one[2] == ATTACH and "coordinator" in one[3]}
    sent = [one for one in frames if one[2] == TRANSFER and "deliveryId" in one[3]]
    return {(one[0], one[1], one[3]["deliveryId"]) for one in sent if (one[0], one[1], one[3]["handle"]) in links}


def became(name: str) -> list[tuple[bool, int, str]]:
    """(sent by the client, delivery-id, outcome) of every delivery, as its dispositions say; sorted.

    Only for captures with one session a connection; the last disposition counts.
    """
    outcome: dict[tuple[int, bool, int], str] = {}
    for stream, by_client, code, fields in frames_in_tshark(name):
        if code == TRANSFER and "deliveryId" in fields:
            settled = fields.get("settled") == "1"
            key = (stream, by_client, int(fields["deliveryId"]))
            outcome.setdefault(key, "presettled" if settled else "unsettled")
        if code == DISPOSITION and fields.get("role") == "1" and "state" in fields:
            known = [state for state in fields["state"] if state in (*WORDS, "rejected", "released", "modified")]
            for number in range(int(fields["first"]), int(fields.get("last", fields["first"])) + 1):
                word = WORDS[known[0]][by_client] if known[0] in WORDS else known[0]
                outcome[stream, not by_client, number] = word
    coordinated = commands(name)
    return sorted(
        (by_client, number, word)
        for (stream, by_client, number), word in outcome.items()
        if (stream, by_client, str(number)) not in coordinated
    )


def test_attaches_name_their_links(found: Captured) -> None:
    frames = frames_in_tshark(next(name for name in NAMES if name.startswith(OUTCOMES)))
    expected = sorted(fields["name"] for *_, performative, fields in frames if performative == ATTACH)
    rows = found.rows("methods", OUTCOMES, "name", "link_name")
    assert sorted(link for name, link in rows if name == "attach") == expected != []
    assert {link for name, link in rows if name != "attach"} == {None}


@pytest.mark.parametrize("name", [name for name in NAMES if name.partition(".")[0] not in (PEERS, ERRORS, REFUSED)])
def test_deliveries_become_what_dispositions_say(found: Captured, name: str) -> None:
    rows = found.rows("messages", name.partition(".")[0], "operation", "delivery_id", "outcome")
    ours = sorted((operation == "publish", number, outcome) for operation, number, outcome in rows)
    assert ours == became(name)


@pytest.mark.parametrize("name", NAMES)
def test_there_is_a_message_for_each_delivery_and_a_transfer_of_a_link(found: Captured, name: str) -> None:
    # Some repeat number and tag on every transfer of a delivery.
    tags = {
        (stream, by_client, fields["deliveryId"]): fields["deliveryTag"].replace(":", "")
        for stream, by_client, code, fields in frames_in_tshark(name)
        if code == TRANSFER and "deliveryId" in fields
    }
    capture = name.partition(".")[0]
    ours = [tag for (tag,) in found.rows("messages", capture, "delivery_tag_hex")]
    coordinated = commands(name)
    assert sorted(ours) == sorted(tag for key, tag in tags.items() if key not in coordinated)
    assert sum(n for (n,) in found.rows("links", capture, "transfers")) == len(tags)


def test_transactions_of_a_coordinator(found: Captured) -> None:
    """Three transactions: three messages committed, three rolled back, three acknowledgements committed."""
    rows = found.rows("messages", TRANSACTIONS, "address", "operation", "outcome", "transaction")
    assert [row[3] for row in rows if row[0] == "t2" and row[1] == "publish"] == ["committed"] * 3 + ["rolled-back"] * 3
    assert [row[2:] for row in rows if row[1] == "deliver"] == [("acked", "committed")] * 3
    assert found.rows("channels", TRANSACTIONS, "mode", "acked", "unsettled") == [("tx", 3, 0)]


def test_commands_to_a_coordinator_are_answered_by_dispositions(found: Captured) -> None:
    """Each of three transactions is declared and discharged; the dispositions that follow name their deliveries."""
    rows = found.rows("methods", TRANSACTIONS, "transaction_command", "delivery_id", "reply_frame_no", "reply_name")
    named = dict(found.rows("methods", TRANSACTIONS, "frame_no", "arguments"))
    asked = [row for row in rows if row[0]]
    assert sorted(row[0] for row in asked) == ["declare"] * 3 + ["discharge"] * 3
    assert {str(row[1]) for row in asked} == {number for *_, number in commands(f"{TRANSACTIONS}.pcap")}
    assert {row[3] for row in asked} == {"disposition"}
    for _, number, reply, _ in asked:
        arguments = json.loads(named[reply].toJson())
        assert arguments["first"] <= number <= arguments.get("last", arguments["first"])
    ((published,),) = found.rows("connections", TRANSACTIONS, "messages_published")
    assert published == 6


def test_acknowledgements_in_a_transaction_take_effect_with_its_discharge(found: Captured) -> None:
    # Three dispositions settle them one by one; the discharge that is accepted after them holds for all.
    rows = found.rows("messages", TRANSACTIONS, "operation", "settled_ts_ns")
    assert len({settled for operation, settled in rows if operation == "deliver"}) == 1


def test_settle_modes_are_those_of_both_attaches(found: Captured) -> None:
    rows = found.rows("links", MODES, "kind", "name", "snd_settle_mode", "rcv_settle_mode", "no_ack", "address")
    assert rows == [
        ("sender", "s-AtMostOnce", "settled", "first", True, "/queue/p3"),
        ("sender", "s-AtLeastOnce", "unsettled", "first", False, "/queue/p3"),
        ("receiver", "r-AtMostOnce", "settled", "first", True, "/queue/p3"),
        ("receiver", "r-AtLeastOnce", "unsettled", "first", False, "/queue/p3"),
    ]


def test_refused_links_say_why(found: Captured) -> None:
    addresses = (
        "/queue/no-such-thing-xyz",
        "no-such-node-abc",
        "/nonsense/with/parts/x",
        "/exchange/no-such-exchange/k",
    )
    assert found.rows("links", ERRORS, "address", "error") == [
        (address, f"amqp:not-found: Node not found: {address}") for address in addresses
    ]


def test_links_that_a_session_takes_along_end_with_its_error(found: Captured) -> None:
    reason = 'amqp:invalid-field: Attach rejected: {unknown_destination,"/nonsense/with/parts/x"}'
    rows = found.rows("links", REFUSED, "kind", "error", "opened_ts", "closed_ts")
    assert [row[:2] for row in rows] == [(kind, reason) for kind in ("receiver", "sender", "sender", "receiver")]
    ended = min(closed for *_, closed in rows)
    assert [closed for *_, closed in rows] == [max(opened, ended) for *_, opened, _ in rows]
    assert sum(opened > ended for *_, opened, _ in rows) == 1  # tshark: attach in packet 25, end in 23


def test_a_dynamic_node_has_the_address_that_the_broker_gave_it(found: Captured) -> None:
    """The client's receiver names no source; the attach that answers it does."""
    attaches = [frame for frame in frames_in_tshark(f"{RPC}.pcap") if frame[2] == ATTACH]
    ((name, address),) = (
        (answer["name"], answer["source address"])
        for _, by_client, _, asked in attaches
        for _, _, _, answer in attaches
        if by_client and asked["role"] == RECEIVER and asked["source address"] is None
        if answer["name"] == asked["name"] and answer["role"] != RECEIVER
    )
    rows = found.rows("links", RPC, "kind", "name", "address")
    assert [row for row in rows if row[1] == name] == [("receiver", name, address)]
    # Replies go to it through a link without an address, by their property to.
    rows = found.rows("messages", RPC, "operation", "address")
    assert {operation for operation, to in rows if to == address} == {"publish", "deliver"}


def test_messages_over_many_frames_are_complete(found: Captured) -> None:
    rows = found.rows("messages", MULTI, "complete", "first_frame_no", "last_frame_no", "body_size", "body_captured")
    assert all(complete and size == seen for complete, _, _, size, seen in rows)
    transfers = sum(code == TRANSFER for _, _, code, _ in frames_in_tshark(f"{MULTI}.pcap"))
    assert transfers == 260
    assert max(size for *_, size, _ in rows) >= 120_000


def test_a_session_whose_begin_was_not_captured_has_links_all_the_same(found: Captured) -> None:
    columns = ("kind", "address", "channel_incarnation", "transfers", "credit", "snd_settle_mode")
    flows = [fields for _, by_client, code, fields in frames_in_tshark(f"{MID}.pcap") if code == FLOW and by_client]
    credit = max(int(flow["deliveryCount"]) + int(flow["linkCredit"]) for flow in flows)
    assert found.rows("links", MID, *columns) == [("receiver", "/queue/r1", 0, 10, credit, "unsettled")]


def test_properties_of_1_0_are_in_the_plain_columns(found: Captured) -> None:
    rows = found.rows("messages", PEERS, "operation", "message_id", "durable", "message_format", "delivery_id")
    assert rows[:2] == [("publish", "1", False, 0, 0), ("publish", "2", True, 0, 1)]
