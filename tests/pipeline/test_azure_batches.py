"""Batches of Azure Service Bus and Event Hubs: each data section of such a delivery is an encoded message.

Messages and performatives are as qpid-proton encodes them, digests are hashlib's. The format number is Azure's
(`AMQP_BATCH_MESSAGE_FORMAT` of its SDKs).
"""

from __future__ import annotations

import hashlib
from collections import Counter
from pathlib import Path
from typing import Any

import encode_1_0 as P
import proton
import pyarrow.parquet as pq
import pytest
from encode_1_0 import described, encoded, performative_frame, section
from local_rows import LocalTables
from pyspark.sql import SparkSession
from test_flows_labels import flows_of
from test_tables_1_0_written import RECEIVES, SENDS, attach, disposed, flow, moved, opened, receiving, sending
from wire import CLIENT, SERVER, Wire, write_capture

import pipeline
from pipeline.run.local_processes import LocalProcesses

FORMAT = 0x80013700
ACCEPTED = described(P.ACCEPTED)
BODIES = [b"", b"one", b"two" * 100]


def message(number: int, body: bytes = b"x", **fields: Any) -> bytes:
    data: bytes = proton.Message(body=body, inferred=True, id=f"m-{number}", **fields).encode()
    return data


def data(*contents: bytes) -> bytes:
    return b"".join(section(P.DATA, content) for content in contents)


def transfers(payload: bytes, *cuts: int, number: int = 0, kind: int = FORMAT, handle: int = 0) -> list[bytes]:
    """A delivery in a transfer for each part of its payload."""
    ends = [*cuts, len(payload)]
    frames = []
    for at, end in enumerate(ends):
        begins = {"delivery_id": number, "delivery_tag": b"t", "message_format": kind} if at == 0 else {}
        more = True if end < len(payload) else None
        part = payload[ends[at - 1] if at else 0 : end]
        frames.append(performative_frame(P.TRANSFER, 0, part, handle=handle, **begins, more=more))
    return frames


def sent(*frames: bytes) -> Wire:
    wire = sending()
    for each in frames:
        wire.add(CLIENT, each)
    wire.add(SERVER, disposed(RECEIVES, 0, outcome=ACCEPTED))
    return wire


MESSAGES = [message(number, body, subject="s", group_id="g") for number, body in enumerate(BODIES)]
ENVELOPE = section(0x72, {proton.symbol("x-opt-partition-key"): "k"}) + section(0x73, ["envelope"])
FOOTER = section(0x78, {proton.symbol("f"): 1})
BATCH = ENVELOPE + data(*MESSAGES) + FOOTER


def scripts() -> dict[str, Wire]:
    wires = {
        "one transfer": sent(*transfers(BATCH)),
        "three transfers": sent(*transfers(BATCH, 41, 90)),
        "each byte": sent(*transfers(BATCH, *range(1, len(BATCH)))),
        "one message": sent(*transfers(data(MESSAGES[1]))),
        "no messages": sent(*transfers(data(b"hello", b"there"))),
        "not all are messages": sent(*transfers(data(MESSAGES[0], b"there"))),
        "another format": sent(*transfers(BATCH, kind=FORMAT + 1)),
        "plain": sent(*transfers(MESSAGES[1], kind=0)),
        "value": sent(*transfers(data(proton.Message(body={"a": 1}, id="v").encode(), MESSAGES[1]))),
        "too long inside": sent(*transfers(data(MESSAGES[0][:-1] + b"\x09", MESSAGES[1]))),
        "userinfo": sent(*transfers(data(message(1, address="amqp://alice:wonderland@h/q")))),
        "refused": sending(),
        "aborted": sending(),
        "delivered": receiving("events"),
    }
    wires["refused"].add(CLIENT, transfers(BATCH)[0])
    error = described(P.ERROR, proton.symbol("com.microsoft:timeout"), "late")
    wires["refused"].add(SERVER, disposed(RECEIVES, 0, outcome=described(P.REJECTED, error)))
    wires["aborted"].add(CLIENT, transfers(BATCH, 100)[0])
    wires["aborted"].add(CLIENT, moved(0, first=False, aborted=True, payload=b""))
    wires["delivered"].add(SERVER, transfers(BATCH)[0])
    wires["delivered"].add(CLIENT, disposed(RECEIVES, 0, outcome=ACCEPTED))

    # Two links, whose batches interleave.
    wire = wires["interleaved"] = sending()
    wire.add(CLIENT, attach("l2", 1, SENDS, target="q2"))
    first, second = transfers(BATCH, 77), transfers(data(*MESSAGES[1:]), 60, number=1, handle=1)
    for frame in (first[0], second[0], first[1], second[1]):
        wire.add(CLIENT, frame)
    wire.add(SERVER, disposed(RECEIVES, 0, 1, outcome=ACCEPTED))

    wire = wires["hole"] = sending()
    wire.add(CLIENT, transfers(BATCH, 100)[0])
    wire.lose(CLIENT, len(transfers(BATCH, 100, 110)[1]))
    wire.add(CLIENT, transfers(BATCH, 100, 110)[2])
    wire.add(CLIENT, transfers(data(*MESSAGES), number=1)[0])
    wires["relay"] = opened()
    wires["relay"].add(CLIENT, attach("l", 0, SENDS) + transfers(BATCH)[0] + flow())
    return wires


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> LocalTables:
    return LocalTables(tmp_path_factory.mktemp("batches") / "wires.pcap", scripts())


def digest(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


EXPECTED = [(number, f"m-{number}", len(body), digest(body), True) for number, body in enumerate(BODIES)]
CONTENT = ("batch_index", "message_id", "body_size", "body_sha256", "complete")


@pytest.mark.parametrize("script", ["one transfer", "three transfers", "each byte", "refused", "delivered", "relay"])
def test_each_message_of_a_batch_has_a_row(written: LocalTables, script: str) -> None:
    assert written.rows("messages", script, *CONTENT) == EXPECTED


def test_a_batch_of_one_message_is_one_row(written: LocalTables) -> None:
    assert written.rows("messages", "one message", *CONTENT) == [(0, "m-1", 3, digest(b"one"), True)]


def test_messages_of_a_batch_share_its_delivery_and_outcome(written: LocalTables) -> None:
    shared = ("delivery_id", "message_format", "outcome", "address", "operation", "body_captured")
    assert written.rows("messages", "three transfers", *shared) == [
        (0, FORMAT, "confirmed", "q", "publish", len(body)) for body in BODIES
    ]
    refused = written.rows("messages", "refused", "outcome", "outcome_error")
    assert [outcome for outcome, _ in refused] == ["rejected"] * 3
    assert all("com.microsoft:timeout" in str(error) for _, error in refused)
    assert written.rows("messages", "delivered", "outcome") == [("acked",)] * 3
    frames = written.rows("messages", "each byte", "first_frame_no", "last_frame_no")
    first, last = set(frames).pop()
    assert frames == [(first, first + len(BATCH) - 1)] * 3, last


def test_properties_are_those_of_the_message_and_not_of_the_batch(written: LocalTables) -> None:
    rows = written.rows("messages", "one transfer", "properties", "group_id")
    assert [group for _, group in rows] == ["g"] * 3
    for properties, _ in rows:
        assert properties.keys() == {"header", "properties", "body_kind"}
        assert properties["properties"]["subject"] == "s"
    of_batch = [properties for (properties,) in written.rows("frames", "one transfer", "properties") if properties]
    assert [each["properties"]["message_id"] for each in of_batch] == ["envelope"]
    assert [(each["footer"], each["body_kind"]) for each in of_batch] == [({"f": 1}, "data")]


@pytest.mark.parametrize("script", ["one transfer", "three transfers", "each byte"])
def test_the_bytes_of_each_message_are_its_own(written: LocalTables, script: str) -> None:
    assert [body for (body,) in written.rows("messages", script, "body")] == MESSAGES


@pytest.mark.parametrize(
    ("script", "body"),
    [("no messages", b"hellothere"), ("not all are messages", MESSAGES[0] + b"there"), ("plain", b"one")],
)
def test_other_data_is_one_message(written: LocalTables, script: str, body: bytes) -> None:
    assert written.rows("messages", script, "batch_index", "body_size", "body_sha256", "complete", "outcome") == [
        (None, len(body), digest(body), True, "confirmed")
    ]
    assert {status for (status,) in written.rows("frames", script, "status")} == {"ok"}


def test_another_format_is_no_batch(written: LocalTables) -> None:
    assert written.rows("messages", "another format", "batch_index", "message_id") == [(None, "envelope")]


def test_messages_of_a_batch_have_any_body(written: LocalTables) -> None:
    value = encoded({"a": 1})
    rows = written.rows("messages", "value", "batch_index", "message_id", "body_sha256")
    assert rows == [(0, "v", digest(value)), (1, "m-1", digest(b"one"))]


def test_a_message_whose_sections_do_not_parse_is_known_by_those_before(written: LocalTables) -> None:
    rows = written.rows("messages", "too long inside", *CONTENT)
    assert rows == [(0, "m-0", None, None, False), (1, "m-1", 3, digest(b"one"), True)]
    assert ("malformed",) in written.rows("frames", "too long inside", "status")


def test_passwords_in_a_batch_are_masked(written: LocalTables) -> None:
    (row,) = written.rows("messages", "userinfo", "properties")
    assert row[0]["properties"]["to"] == "amqp://****@h/q"
    assert ["userinfo"] in [notes for (notes,) in written.rows("frames", "userinfo", "notes")]


def test_batches_of_two_links_interleave(written: LocalTables) -> None:
    rows = written.rows("messages", "interleaved", "address", *CONTENT)
    assert [row[1:] for row in rows if row[0] == "q"] == EXPECTED
    assert [row[2:] for row in rows if row[0] == "q2"] == [row[1:] for row in EXPECTED[1:]]


def test_a_batch_that_lost_bytes_is_one_row(written: LocalTables) -> None:
    rows = written.rows("messages", "hole", "batch_index", "message_id", "complete")
    assert rows[0] == (None, None, False)
    assert rows[1:] == [(number, f"m-{number}", True) for number in range(3)]
    assert written.rows("messages", "aborted", "batch_index", "complete") == [(None, False)]


def test_batches_are_the_same_in_pieces(tmp_path: Path) -> None:
    wires = scripts()
    del wires["each byte"]
    LocalTables(tmp_path / "wires.pcap", wires).check_pieces()


def delivering(*messages: bytes) -> Wire:
    wire = receiving("hub")
    for number, data in enumerate(messages):
        wire.add(SERVER, moved(number, payload=data))
    wire.add(CLIENT, disposed(RECEIVES, 0, len(messages) - 1, outcome=ACCEPTED))
    return wire


PAIR = ("publish_batch_index", "deliver_frame_no", "deliver_batch_index", "match", "ambiguous", "outcome")


def test_each_message_of_a_batch_is_paired_with_its_delivery(tmp_path: Path) -> None:
    """Delivered one by one, in another order; packets 5 and 6 of the receiver are the first transfers."""
    published = sending(address="hub")
    published.add(CLIENT, transfers(BATCH)[0])
    published.add(SERVER, disposed(RECEIVES, 0, outcome=ACCEPTED))
    rows = flows_of(tmp_path / "a.pcap", [published, delivering(*reversed(MESSAGES))])
    first = min(row["deliver_frame_no"] for row in rows)
    found = sorted([tuple(row[name] for name in PAIR) for row in rows])
    expected = [(2 - number, first + number, None, "message-id", False, "acked") for number in range(3)]
    assert found == sorted(expected)
    assert len({row["flow_id"] for row in rows}) == 3


def test_messages_of_a_batch_without_ids_are_paired_by_what_they_are(tmp_path: Path) -> None:
    plain = [proton.Message(body=body, inferred=True).encode() for body in BODIES]
    published = sending(address="hub")
    published.add(CLIENT, transfers(data(*plain))[0])
    rows = flows_of(tmp_path / "a.pcap", [published, delivering(*plain)])
    assert sorted((row["publish_batch_index"], row["match"], row["ambiguous"]) for row in rows) == [
        (number, "fingerprint", False) for number in range(3)
    ]


def test_a_reply_answers_the_message_of_the_batch_that_asked(tmp_path: Path) -> None:
    asks = [message(number, reply_to="back") for number in range(3)]
    published = sending(address="hub")
    published.add(CLIENT, transfers(data(*asks))[0])
    reply = receiving("back")
    reply.add(SERVER, moved(0, payload=proton.Message(body=b"y", inferred=True, correlation_id="m-1").encode()))
    write_capture(tmp_path / "a.pcap", [published, reply])
    pipeline.write(LocalProcesses(1), str(tmp_path / "a.pcap"), str(tmp_path / "tables"))
    rows = pq.read_table(tmp_path / "tables" / "message_flows").to_pylist()
    answered = {row["publish_batch_index"]: row["rpc_latency_ns"] for row in rows if row["publish_frame_no"]}
    assert answered.pop(1) > 0
    assert answered == {0: None, 2: None}


def test_spark_has_the_same_messages(spark: SparkSession, tmp_path: Path) -> None:
    wires = {name: scripts()[name] for name in ("three transfers", "plain", "refused")}
    path = tmp_path / "wires.pcap"
    expected = LocalTables(path, wires)
    tables = pipeline.decode(spark, str(path))
    names = ("message_id", "batch_index", "body_size", "outcome")
    found = [tuple(row) for row in tables.messages.select(*names).collect()]
    of_all = [row for name in wires for row in expected.rows("messages", name, *names)]
    assert len(found) == 7
    assert Counter(found) == Counter(of_all)
    group = tables.messages.selectExpr("try_variant_get(properties, '$.properties.group_id', 'string')")
    assert {row[0] for row in group.collect()} == {"g"}
