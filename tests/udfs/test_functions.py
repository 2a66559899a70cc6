"""SQL functions on standalone bytes: what they give is what the decoder shows of the same bytes in a stream."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import classic_frames
import encode_0_10
import golden
import pika.frame
import pika.spec
import proton
import pyarrow as pa
import pytest
from decoding import Row, decoded, variants
from encode_1_0 import encoded
from expected import captured

from codec.protocol.versions import VERSIONS
from udfs.functions.decode_functions import (
    FRAME_COLUMNS,
    decode_arguments,
    decode_frame,
    decode_properties,
    decode_table,
    decode_value,
    version_of,
)

SPANS = ("gap", "tls", "skipped", "foreign")
# What a frame says only beside others: a content of its method, a message of all its transfers, a command of its place.
BESIDE_OTHERS = {"content body without its header", "content header without the method that announces it"}


def column(*rows: bytes | None) -> pa.Array:
    return pa.array(rows, pa.binary())


def versions_column(version: str | None, rows: int) -> pa.Array:
    return pa.array([version] * rows, pa.string())


def plain(values: pa.Array) -> list[Any]:
    return variants(pa.chunked_array([values]))


def frames(version: str, *rows: bytes | None) -> list[Row]:
    """`decode_frame` of rows of one version, as Python has it."""
    structs = decode_frame(column(*rows), versions_column(version, len(rows)))
    found: list[Row] = structs.to_pylist()
    for name in ("arguments", "properties"):
        for row, value in zip(found, plain(structs.field(name)), strict=True):
            if row is not None:
                row[name] = value
    return found


def in_streams(name: str) -> Iterator[tuple[Row, bytes]]:
    """The complete frames of a capture: their rows in a decode, and their bytes from streams that other code
    reassembled."""
    for connection, stream in zip(decoded(name), captured(name), strict=False):
        ports = {connection.facts["client_port"]: "client", connection.facts["server_port"]: "server"}
        halves = {ports.get(sender[1]): bytes(half.data) for sender, half in stream.halves.items()}
        for row in connection.rows:
            data = halves.get(row["sender"], b"")[row["stream_offset"] :][: row["size"]]
            complete = row["frame_type"] not in SPANS and row["status"] != "partial" and len(data) == row["size"]
            if complete and row["version"]:
                yield row, data


def as_single(row: Row) -> Row:
    """The row of a stream without what other frames tell about it."""
    expected = {name: row[name] for name in FRAME_COLUMNS}
    if row["error"] in BESIDE_OTHERS:
        notes = [note for note in row["notes"] or () if note != "orphan-content"]
        expected |= {"error": None, "notes": notes or None}
    if row["frame_type"] == "command" and row["arguments"]:
        index = "own_command_id" if "own_command_id" in row["arguments"] else "command_id"
        expected["arguments"] = {key: value for key, value in row["arguments"].items() if key != index}
    if row["name"] == "transfer" and row["content_frame_no"] != row["frame_no"]:
        expected |= {"properties": None, "body_size": None}
    return expected


def test_frames_of_all_captures_are_shown_as_in_their_streams() -> None:
    """Every complete frame of the shipped captures, all five versions mixed in one column."""
    pairs = [pair for name in sorted(golden.captures()) for pair in in_streams(name)]
    versions = pa.array([row["version"] for row, _ in pairs])
    structs = decode_frame(column(*(data for _, data in pairs)), versions)
    decoded = structs.to_pylist()
    for name in ("arguments", "properties"):
        for row, value in zip(decoded, plain(structs.field(name)), strict=True):
            row[name] = value
    assert len(pairs) > 10_000
    assert set(versions.to_pylist()) == set(VERSIONS[1:])
    wrong = [
        (row, single) for (row, _), single in zip(pairs, decoded, strict=True) if repr(as_single(row)) != repr(single)
    ]
    assert wrong == []


def test_a_frame_of_pika() -> None:
    ack = pika.frame.Method(3, pika.spec.Basic.Ack(7, True)).marshal()
    header = pika.frame.Header(3, 5, pika.spec.BasicProperties(content_type="a/b", headers={"n": 1})).marshal()
    method, content = frames("0-9-1", ack, header)
    assert (method["frame_type"], method["channel"], method["name"]) == ("method", 3, "basic.ack")
    assert (method["class_id"], method["method_id"]) == (60, 80)
    assert method["arguments"] == {"delivery_tag": 7, "multiple": True}
    assert content["properties"] == {"content_type": "a/b", "headers": {"n": 1}}
    assert (content["body_size"], content["status"], content["error"]) == (5, "ok", None)


def test_null_gives_null_and_bytes_that_are_not_a_frame_give_an_error() -> None:
    ack = classic_frames.method("0-9-1", "basic.ack", delivery_tag=7)
    found = frames("0-9-1", None, b"", ack[:-1], ack + b"\0", ack[:-1] + b"\0", b"\x09" + ack[1:], ack)
    assert found[0] is None
    assert [(row["frame_type"], row["status"]) for row in found[1:]] == [
        *[("skipped", "malformed")] * 3, ("method", "malformed"), ("skipped", "unknown"), ("method", "ok"),
    ]  # fmt: skip
    assert found[4]["error"] == "frame end octet is not 0xCE"
    assert decode_frame(column(ack), versions_column(None, 1)).to_pylist() == [None]


def test_an_unknown_version_is_an_error_that_lists_the_known() -> None:
    with pytest.raises(ValueError, match=r"'0\.9\.1' is not a version of AMQP; expected one of '0-8', .*'1\.0'"):
        decode_frame(column(b""), versions_column("0.9.1", 1))


def test_no_row_depends_on_another() -> None:
    """The transfers of a delivery in three, a method that announces a content, an open that bounds channels: in any
    order, in slices, one by one, each row comes out the same."""
    first = bytes.fromhex("00000015 02000001 005314 c008 05 43 43 a00101 43 41".replace(" ", ""))
    rows = [
        *((classic_frames.method("0-9-1", "basic.publish"), "0-9-1"), (classic_frames.body(b"x"), "0-9-1")),
        *((classic_frames.method("0-9-1", "connection.tune-ok", 0, channel_max=1, frame_max=4096), "0-9-1"),),
        *((classic_frames.heartbeat(), "0-8"), (classic_frames.protocol_header("0-9"), "0-8"), (first, "1.0")),
        *((encode_0_10.one_frame("message.accept", {"transfers": [(1, 2)]}), "0-10"), (None, "0-10"), (b"", None)),
        *((encode_0_10.message(b"body", {"content-length": 4})[0], "0-10"),),
    ]
    data, versions = column(*(row for row, _ in rows)), pa.array([version for _, version in rows])
    together = decode_frame(data, versions).to_pylist()
    one_by_one = [decode_frame(data.slice(i, 1), versions.slice(i, 1)).to_pylist()[0] for i in range(len(rows))]
    turned = pa.array(range(len(rows) - 1, -1, -1))
    assert one_by_one == together
    assert decode_frame(data.take(turned), versions.take(turned)).to_pylist() == together[::-1]
    assert decode_frame(data.cast(pa.large_binary()), versions).to_pylist() == together
    assert decode_frame(data.slice(0, 0), versions.slice(0, 0)).to_pylist() == []


def test_more_rows_and_bytes_than_fit_into_one_batch_of_the_decoder() -> None:
    """40,000 rows are more than a batch of it; a table of 5 MB is more than its heaps have room for."""
    ack = classic_frames.method("0-9-1", "basic.ack", delivery_tag=7)
    declare = classic_frames.method("0-9-1", "queue.declare", arguments={"x": "y" * 5_000_000})
    found = decode_frame(column(*[ack] * 40_000, declare, ack), versions_column("0-9-1", 40_002))
    assert found.field("name").value_counts().to_pylist() == [
        {"values": "basic.ack", "counts": 40_001},
        {"values": "queue.declare", "counts": 1},
    ]
    assert len(plain(found.field("arguments").slice(40_000, 1))[0]["arguments"]["x"]) == 5_000_000


# ---- payloads without their frames ----------------------------------------------------------------------------------


def arguments(version: str, *payloads: bytes | None) -> list[Any]:
    return plain(decode_arguments(column(*payloads), versions_column(version, len(payloads))))


def properties(version: str, *payloads: bytes | None) -> list[Any]:
    return plain(decode_properties(column(*payloads), versions_column(version, len(payloads))))


def table(version: str, *tables: bytes | None) -> list[Any]:
    return plain(decode_table(column(*tables), versions_column(version, len(tables))))


@pytest.mark.parametrize("version", ["0-8", "0-9", "0-9-1"])
def test_payload_of_a_classic_method(version: str) -> None:
    ack = classic_frames.method(version, "basic.ack", delivery_tag=7, multiple=True)[7:-1]
    assert arguments(version, ack, ack[:-1], ack + b"\0", b"", b"\xff" * 9, None) == [
        {"delivery_tag": 7, "multiple": True}, None, None, None, None, None,
    ]  # fmt: skip


def test_payload_of_a_control_and_of_a_command() -> None:
    control = encode_0_10.segment("session.attach", {"name": b"mine", "force": True})
    command = encode_0_10.segment("queue.declare", {"queue": "q", "durable": True})
    assert arguments("0-10", control, command, command[:-1], b"\1", None) == [
        {"name": b"mine", "force": True}, {"queue": "q", "durable": True}, None, None, None,
    ]  # fmt: skip


def test_performatives_of_both_layers() -> None:
    """disposition (0x15): role, first, last, settled; sasl-mechanisms (0x40), which only a SASL frame may carry."""
    disposition = bytes.fromhex("005315 c005 04 41 43 43 41".replace(" ", ""))
    mechanisms = bytes.fromhex("005340 c007 01 a304 504c4149".replace(" ", ""))
    assert arguments("1.0", disposition, mechanisms, disposition[:-1], b"", None) == [
        {"role": True, "first": 0, "last": 0, "settled": True}, {"sasl_server_mechanisms": ["PLAI"]}, None, None, None,
    ]  # fmt: skip


def test_properties_of_every_family() -> None:
    classic = pika.frame.Header(1, 5, pika.spec.BasicProperties(priority=9)).marshal()[7:-1]
    segment = encode_0_10.header(("message.delivery-properties", {"priority": 9, "routing-key": "k"}))
    message = proton.Message(body="text", id="m1", durable=True, subject="s")
    assert properties("0-9-1", classic, classic[:-1], None) == [{"priority": 9}, None, None]
    assert properties("0-10", segment, segment[:-1], None) == [
        {"delivery_properties": {"priority": 9, "routing_key": "k"}}, None, None,
    ]  # fmt: skip
    complete, short, nothing = properties("1.0", message.encode(), message.encode()[:-1], None)
    assert (complete["properties"], complete["body_kind"]) == ({"message_id": "m1", "subject": "s"}, "value")
    assert complete["header"]["durable"] is True
    assert short is nothing is None


def test_tables_of_every_family() -> None:
    classic = classic_frames.table({"x": 1, "inner": {"y": "z"}})
    entries = {"x": ("int32", 1), "inner": ("map", {"y": ("str16", "z")})}
    segmented = encode_0_10.value("map", entries)
    data = encoded({"x": proton.int32(1), "inner": {"y": "z"}})
    expected = {"x": 1, "inner": {"y": "z"}}
    for version in ("0-8", "0-9", "0-9-1"):
        assert table(version, classic, classic[:-1], classic + b"\0", b"", None) == [expected, None, None, None, None]
    assert table("0-10", segmented, segmented[:-1], segmented + b"\0", b"", None) == [expected, None, None, None, None]
    assert table("1.0", data, data[:-1], None) == [expected, None, None]
    assert table("0-9-1", struct.pack(">I", 0)) == [{}]


def test_values_of_proton() -> None:
    given: list[Any] = [None, True, -7, 2**63, 1.5, "text", b"\xff", [1, "a"], {"k": [False]}]
    values = [encoded(proton.ulong(thing) if thing == 2**63 else thing) for thing in given]
    decoded = plain(decode_value(column(*values)))
    assert decoded == given
    assert plain(decode_value(column(None, b"", b"\xa1\x05abc", values[5] + b"\0"))) == [None] * 4
    assert decode_value(column(b"\x40", None)).is_valid().to_pylist() == [True, False]  # a null that is there


def test_described_values_keep_their_descriptors() -> None:
    """An accepted outcome; a list under a symbol that nobody defines."""
    accepted, ours = bytes.fromhex("00532445"), bytes.fromhex("00a3036d796e c00302 4142".replace(" ", ""))
    assert plain(decode_value(column(accepted, ours))) == [
        {"type": "accepted"},
        {"descriptor": "myn", "value": [True, False]},
    ]


def test_the_version_of_bytes() -> None:
    classic = classic_frames.method("0-9-1", "basic.ack", delivery_tag=7)
    segmented = encode_0_10.one_frame("session.attach", {"name": b"mine"})
    described = bytes.fromhex("00000014 02000000 005315 c007 04 41 5201 5202 41".replace(" ", ""))
    headers = [classic_frames.protocol_header(version) for version in ("0-8", "0-9", "0-9-1")]
    sasl = [b"AMQP\x03\x01\x00\x00", b"AMQP\x01\x01\x00\x0a"]
    spoken = version_of(column(*headers, *sasl, classic, segmented, described, classic + b"rest"))
    assert spoken.to_pylist() == ["0-8", "0-9", "0-9-1", "1.0", "0-10", "0-9-1", "0-10", "1.0", "0-9-1"]
    # The first frame fits all of them, the second one only: 0-8 has channel.alert (20, 30), 0-9 file.qos (70, 10).
    body = classic_frames.frame(3, 1, b"body")
    alert = classic_frames.frame(1, 1, bytes.fromhex("0014 001e 0138 00 00000000".replace(" ", "")))
    qos = classic_frames.frame(1, 1, bytes.fromhex("0046 000a 00000000 0001 00".replace(" ", "")))
    assert version_of(column(alert, body + alert, qos, body + qos)).to_pylist() == ["0-8", "0-8", "0-9", "0-9"]
    others = [b"GET / HTTP/1.1\r\n\r\n", bytes(64), b"", b"AMQ", b"\x16\x03\x01\0\x05hello", classic[:-1], None]
    assert version_of(column(*others)).to_pylist() == [None] * len(others)
