"""AMQP 0-10 out of TCP streams: segments over several frames, command ids, assemblies, holes, recognition without a
protocol header. Streams are written by the tests' own encoder; the shipped captures are compared with tshark."""

from __future__ import annotations

import hashlib
from itertools import pairwise
from typing import Any

import decoding
import encode_0_10 as encode
import golden_0_10
import numpy as np
import pytest
from encode_0_10 import FIRST_FRAME, FIRST_SEGMENT, LAST_FRAME, LAST_SEGMENT, frame, message, one_frame, segment
from hypothesis import given, settings
from hypothesis import strategies as st
from wire import CLIENT, SERVER, Row, Wire

from codec.compiler.limits import LIMITS
from codec.framing.v0_10_frames import (
    BLOCKS,
    GROWING,
    append,
    new_assemblies,
    release,
    segment_slot,
)

HEADER = b"AMQP\x01\x01\x00\x0a"
POINT = one_frame("session.command-point", {"command-id": 0, "command-offset": 0}, 1)
DECLARE = one_frame("queue.declare", {"queue": "q", "durable": True}, 1)
SYNC = one_frame("execution.sync", {}, 1)


def stream(*frames: bytes) -> list[Row]:
    """Rows of a connection whose client sends a protocol header and these frames."""
    wire = Wire()
    wire.add(CLIENT, HEADER + b"".join(frames))
    return wire.rows()[0][1:]


def only(rows: list[Row], *columns: str) -> list[Any]:
    return [tuple(row[column] for column in columns) if len(columns) > 1 else row[columns[0]] for row in rows]


# ---- captures -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", golden_0_10.captures())
def test_frames_are_those_that_tshark_shows(name: str) -> None:
    assert list(golden_0_10.capture_disagreements(name)) == []


def test_the_version_of_a_capture_without_protocol_headers_is_detected() -> None:
    (connection,) = decoding.decoded("010_mid_stream.pcap")
    assert {(row["version"], row["version_known"]) for row in connection.rows} == {("0-10", False)}


def test_tiny_tcp_segments_change_nothing() -> None:
    (tiny,), (origin,) = (decoding.decoded(name) for name in ("010_tiny_segments.pcap", "010_lowlevel_methods.pcap"))
    values = ("sender", "stream_offset", "size", "name", "arguments", "properties", "payload", "body_sha256")
    order = ("sender", "stream_offset")
    ours, theirs = (sorted(only(c.rows, *values), key=lambda row: row[: len(order)]) for c in (tiny, origin))
    assert ours == theirs


def test_an_invalid_frame_is_skipped() -> None:
    """Packet 8 of 010_bad_frame: `0f 7f 0010 00 05 ...`, segment type 127 on track 5, and four bytes too much."""
    connection = decoding.decoded("010_bad_frame.pcap")[0]
    (row,) = [row for row in connection.rows if row["frame_type"] == "skipped"]
    assert (row["packet_no"], row["size"], row["status"]) == (8, 20, "unknown")


def test_tshark_shows_commits_as_selects() -> None:
    """Packet 28 of 010_tx: a frame header of 12 bytes, then class 5, code 2, session header 01 01, packing flags 00
    00."""
    rows = decoding.decoded("010_tx.pcap")[0].rows
    (row,) = [row for row in rows if row["packet_no"] == 28]
    assert (row["size"], row["class_id"], row["method_id"], row["name"]) == (18, 5, 2, "tx.commit")
    assert row["arguments"] == {"sync": True, "command_id": 4}


# ---- frames ---------------------------------------------------------------------------------------------------------


def test_a_frame_is_a_row() -> None:
    rows = stream(POINT, DECLARE)
    assert only(rows, "frame_type", "channel", "class_id", "method_id", "name", "size", "payload_size", "offset") == [
        ("control", 1, 2, 7, "session.command-point", 28, 16, 8),
        # 12 of the frame, class, code, session header 2, packing flags 2, "q" 2
        ("command", 1, 8, 1, "queue.declare", 20, 8, 36),
    ]
    assert rows[1]["arguments"] == {"command_id": 0, "queue": "q", "durable": True}
    assert only(rows, "status", "sender", "version", "known", "content") == [("ok", "client", "0-10", True, -1)] * 2


def test_commands_are_numbered_from_the_command_point() -> None:
    point = one_frame("session.command-point", {"command-id": 2**32 - 1, "command-offset": 0}, 1)
    other = one_frame("session.command-point", {"command-id": 7, "command-offset": 5}, 2)  # goes on inside command 7
    second = one_frame("execution.sync", {}, 2)
    rows = stream(SYNC, point, SYNC, SYNC, other, second, SYNC, one_frame("session.attach", {"name": b"s"}, 1), SYNC)
    ids = [row["arguments"].get("command_id") for row in rows if row["frame_type"] == "command"]
    assert ids == [None, 2**32 - 1, 0, 8, 1, None]


def test_each_direction_numbers_its_own_commands() -> None:
    wire = Wire()
    wire.add(CLIENT, HEADER + POINT + SYNC)
    wire.add(SERVER, HEADER + SYNC + POINT + SYNC)
    rows, _ = wire.rows()
    ids = [(row["sender"], row["arguments"].get("command_id")) for row in rows if row["name"] == "execution.sync"]
    assert ids == [("client", 0), ("server", None), ("server", 0)]


def test_a_segment_of_several_frames_is_decoded_on_its_last_frame() -> None:
    payload = segment("queue.declare", {"queue": "q" * 200, "arguments": {"a": ("str16", "x" * 9000)}})
    cuts = [payload[:1], payload[1:3], payload[3:5000], payload[5000:]]
    flags = [FIRST_FRAME, 0, 0, LAST_FRAME]
    frames = [frame(1, cut, 1, FIRST_SEGMENT | LAST_SEGMENT | flag) for cut, flag in zip(cuts, flags, strict=True)]
    rows = stream(
        POINT, *frames[:2], one_frame("session.flush", {}, 1), frames[2], one_frame("tx.select", {}, 2), frames[3]
    )
    commands = [row for row in rows if row["frame_type"] == "command" and row["channel"] == 1]
    assert only(commands, "arguments")[:3] == [None] * 3
    assert commands[3]["arguments"] == {"command_id": 0, "queue": "q" * 200, "arguments": {"a": "x" * 9000}}
    assert (commands[3]["class_id"], commands[3]["method_id"], commands[3]["name"]) == (8, 1, "queue.declare")
    assert {row["status"] for row in rows} == {"ok"}


def test_every_frame_of_a_segment_has_its_class_and_code() -> None:
    payload = segment("queue.declare", {"queue": "q"})
    flags = FIRST_SEGMENT | LAST_SEGMENT
    rows = stream(frame(1, payload[:2], 1, flags | FIRST_FRAME), frame(1, payload[2:], 1, flags | LAST_FRAME))
    assert only(rows, "class_id", "method_id", "name") == [(8, 1, "queue.declare")] * 2


def test_a_segment_above_the_limit_is_malformed_and_the_next_is_not() -> None:
    chunk = bytes(65523)
    flags = FIRST_SEGMENT | LAST_SEGMENT
    parts = [frame(1, segment("queue.declare", {}) + chunk[:60000], 1, flags | FIRST_FRAME)]
    parts += [frame(1, chunk, 1, flags)] * (LIMITS.segment_bytes // len(chunk) + 1)
    parts.append(frame(1, b"", 1, flags | LAST_FRAME))
    rows = stream(*parts, DECLARE)
    assert only(rows[-2:], "status", "error") == [
        ("malformed", "the decoded value is above the decoder's limit"),
        ("ok", None),
    ]
    assert {row["status"] for row in rows[:-2]} == {"ok"}


def test_a_continuation_frame_without_a_first_frame() -> None:
    rows = stream(frame(1, b"abc", 1, FIRST_SEGMENT | LAST_SEGMENT | LAST_FRAME), DECLARE)
    assert only(rows, "status", "error") == [
        ("unknown", "frame goes on with a segment whose beginning was not seen"),
        ("ok", None),
    ]


def test_undefined_codes_are_unknown() -> None:
    rows = stream(frame(0, b"\x01\x63\x00\x00"), frame(0, b"\x01"), DECLARE)
    assert only(rows, "status", "class_id", "method_id") == [("unknown", 1, 99), ("malformed", -1, -1), ("ok", 8, 1)]


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"\x1f\x00\x00\x10\x00\x00", "reserved bits of the frame header are not zero"),
        (b"\x0f\x00\x00\x10\x01\x00", "reserved bits of the frame header are not zero"),
        (b"\x0f\x00\x00\x10\x00\x01", "track or flags of the frame do not fit its segment type"),
        (b"\x03\x00\x00\x10\x00\x00", "track or flags of the frame do not fit its segment type"),
    ],
)
def test_a_frame_header_with_a_flaw_before_another_frame_is_a_malformed_frame(data: bytes, error: str) -> None:
    heartbeat = data + bytes(6) + b"\x01\x0a\x00\x00"
    rows = stream(heartbeat, DECLARE)
    assert only(rows, "frame_type", "status", "error", "name") == [
        ("control", "malformed", error, "connection.heartbeat"),
        ("command", "ok", None, "queue.declare"),
    ]


def test_a_flawed_header_does_not_hide_frames_when_the_stream_ends() -> None:
    junk = b"\x0f\x00\xff\xff\x01\x00" + bytes(6)  # a reserved byte is set, and the frame would have 65535 bytes
    rows = stream(POINT, junk, DECLARE, SYNC)
    assert only(rows, "frame_type", "size") == [("control", 28), ("skipped", 12), ("command", 20), ("command", 18)]


# ---- assemblies -----------------------------------------------------------------------------------------------------


def test_a_message_of_many_frames() -> None:
    body = bytes(range(256)) * 700
    rows = stream(POINT, *message(body, {"content-length": len(body), "content-type": "t"}))
    assert only(rows[1:], "frame_type", "content", "payload_size") == [
        ("command", 3, 8),
        ("header", 3, 18),
        ("body", 3, 65523),
        ("body", 3, 65523),
        ("body", 3, 48154),
    ]
    assert rows[2]["properties"] == {"message_properties": {"content_length": len(body), "content_type": "t"}}
    assert only(rows[1:], "digest") == [None] * 4 + [hashlib.sha256(body).hexdigest()]
    assert only(rows[1:], "body_size") == [-1, len(body), -1, -1, -1]


def test_assemblies_of_different_channels_interleave() -> None:
    first, second = message(b"one" * 50, channel=1, split=100), message(b"two" * 50, channel=2, split=100)
    rows = stream(*(frame for pair in zip(first, second, strict=True) for frame in pair))
    digests = {row["content"]: row["digest"] for row in rows if row["digest"]}
    assert digests == {2: hashlib.sha256(b"one" * 50).hexdigest(), 3: hashlib.sha256(b"two" * 50).hexdigest()}


def test_messages_without_body_or_header() -> None:
    empty = hashlib.sha256(b"").hexdigest()
    single = one_frame("message.transfer", {"destination": "q"}, 1)
    start = frame(1, segment("message.transfer", {}), 1, FIRST_SEGMENT | FIRST_FRAME | LAST_FRAME)
    header = encode.header(("message.delivery-properties", {"routing-key": "r"}))
    last = frame(2, header, 1, LAST_SEGMENT | FIRST_FRAME | LAST_FRAME)
    body = frame(3, b"xyz", 1, LAST_SEGMENT | FIRST_FRAME | LAST_FRAME)
    assert only(stream(single, start, last, start, body), "content", "digest") == [
        (2, empty),
        (3, None),
        (3, empty),
        (5, None),
        (5, hashlib.sha256(b"xyz").hexdigest()),
    ]


def test_header_and_body_without_their_command() -> None:
    rows = stream(*message(b"abc")[1:])
    assert only(rows, "content", "error") == [(-1, "segment without the command that it belongs to")] * 2


# ---- holes ----------------------------------------------------------------------------------------------------------


def test_a_hole_inside_a_body_makes_the_frame_partial_and_leaves_no_digest() -> None:
    frames = message(b"b" * 1000)
    wire = Wire()
    wire.add(CLIENT, HEADER + frames[0] + frames[1] + frames[2][:500])
    wire.lose(CLIENT, 300)
    wire.add(CLIENT, frames[2][800:] + b"".join(message(b"c")))
    rows = [row for row in wire.rows()[0] if row["frame_type"] not in ("protocol-header", "gap")]
    assert only(rows, "frame_type", "status", "content", "payload_size") == [
        ("command", "ok", 2, 8),
        ("header", "ok", 2, 8),
        ("body", "partial", 2, 700),
        *(("command", "ok", 6, 8), ("header", "ok", 6, 8), ("body", "ok", 6, 1)),
    ]
    assert only(rows, "digest")[2:] == [None, None, None, hashlib.sha256(b"c").hexdigest()]


def test_four_bytes_of_a_frame_tell_where_it_ends() -> None:
    wire = Wire()
    wire.add(CLIENT, HEADER + POINT + DECLARE[:4])
    wire.lose(CLIENT, len(DECLARE) - 4)
    wire.add(CLIENT, SYNC)
    rows = wire.rows()[0]
    assert only(rows[1:], "frame_type", "status", "size") == [
        ("control", "ok", 28),
        ("gap", "partial", 16),
        ("command", "partial", 20),
        ("command", "ok", 18),
    ]
    assert rows[-1]["arguments"] == {}  # the channel of the partial frame is not known, nor is which command is which


def test_a_torn_command_is_counted_and_a_torn_control_makes_ids_unknown() -> None:
    wire = Wire()
    wire.add(CLIENT, HEADER + POINT + DECLARE[:16])
    wire.lose(CLIENT, 4)
    wire.add(CLIENT, SYNC + POINT[:13])
    wire.lose(CLIENT, 15)
    wire.add(CLIENT, SYNC)
    rows = wire.rows()[0]
    assert [row["arguments"] for row in rows if row["name"] == "execution.sync"] == [{"command_id": 1}, {}]


def test_a_segment_that_lost_a_frame_is_not_decoded() -> None:
    payload = segment("queue.declare", {"queue": "q" * 100})
    flags = FIRST_SEGMENT | LAST_SEGMENT
    frames = [
        frame(1, payload[:20], 1, flags | FIRST_FRAME),
        frame(1, payload[20:60], 1, flags),
        frame(1, payload[60:], 1, flags | LAST_FRAME),
    ]
    wire = Wire()
    wire.add(CLIENT, HEADER + frames[0] + frames[1][:30])
    wire.lose(CLIENT, len(frames[1]) - 30)
    wire.add(CLIENT, frames[2] + DECLARE)
    rows = [row for row in wire.rows()[0] if row["frame_type"] == "command"]
    assert only(rows, "status", "error", "name") == [
        ("ok", None, "queue.declare"),
        ("partial", "bytes of this frame are missing from the capture", "queue.declare"),
        ("unknown", "bytes of this segment are missing from the capture", "queue.declare"),
        ("ok", None, "queue.declare"),
    ]


def test_a_lost_boundary_is_found_again() -> None:
    wire = Wire()
    wire.add(CLIENT, HEADER + POINT + b"".join(message(b"m" * 100)[:2]))
    wire.lose(CLIENT, 70)
    wire.add(CLIENT, b"m" * 42 + b"".join(message(b"n")) + DECLARE)
    rows, facts = wire.rows()
    assert only(rows[4:], "frame_type", "size", "status") == [
        ("gap", 70, "partial"),
        ("skipped", 42, "unknown"),
        ("command", 20, "ok"),
        ("header", 20, "ok"),
        ("body", 13, "ok"),
        ("command", 20, "ok"),
    ]
    assert rows[-1]["arguments"] == {"queue": "q", "durable": True}  # commands may have been lost: no number
    client = facts["client"]
    assert client["payload_bytes"] == client["frame_bytes"] + client["skipped_bytes"]


@pytest.mark.parametrize("lost", [False, True])
def test_blocks_of_segments_that_never_end_are_reused(lost: bool) -> None:
    """A segment that another replaces, or that a lost boundary leaves behind, gives its block back."""
    a, epochs, byte = new_assemblies(), np.ones(2, np.int64), np.zeros(1, np.uint8)
    for i in range(2 * BLOCKS + 1):
        epochs[0] += lost
        slot = segment_slot(a, epochs, 0, i % 3, 1)
        release(a, slot)
        a.segments[slot].state = GROWING
        append(a, epochs, slot, byte, 0, 1)
        assert a.segments[slot].state == GROWING


# ---- recognition ----------------------------------------------------------------------------------------------------


def test_a_start_identifies_the_server_whose_header_was_captured_first() -> None:
    """Section 4.3: the server answers with a header of its own; only it sends connection.start."""
    wire = Wire(syn=False)
    wire.add(SERVER, HEADER + one_frame("connection.start", {}))
    wire.add(CLIENT, SYNC)
    rows, facts = wire.rows()
    assert [row["sender"] for row in rows] == ["server", "server", "client"]
    assert facts["roles_from"] == "method"


def test_the_version_of_a_stream_without_header_is_detected_from_its_frames() -> None:
    wire = Wire(syn=False)
    wire.add(CLIENT, b"\x05\x06\x07" + b"".join(message(b"n" * 30)) + DECLARE + SYNC)
    rows, facts = wire.rows()
    assert (facts["content"], rows[0]["frame_type"], rows[0]["size"]) == ("amqp", "skipped", 3)
    assert only(rows[1:], "version", "known", "status") == [("0-10", False, "ok")] * 5


FRAMES = [HEADER, POINT, DECLARE, *message(b"body" * 300, split=500), one_frame("session.completed", {}, 1), SYNC]


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(1, sum(map(len, FRAMES)) - 1), max_size=12))
def test_rows_do_not_depend_on_how_tcp_cuts_the_stream(cuts: list[int]) -> None:
    data = b"".join(FRAMES)
    wire, uncut_wire = Wire(), Wire()
    uncut_wire.add(CLIENT, data)
    edges = [0, *sorted(set(cuts)), len(data)]
    for start, stop in pairwise(edges):
        wire.add(CLIENT, data[start:stop])
    uncut, cut = ([{**row, "packet": None} for row in of.rows()[0]] for of in (uncut_wire, wire))
    assert cut == uncut


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, sum(map(len, FRAMES)) - 1), st.integers(0, 255)), max_size=6), st.data())
def test_every_byte_of_a_damaged_stream_is_in_the_ledger(damage: list[tuple[int, int]], data: st.DataObject) -> None:
    wire_bytes = bytearray(b"".join(FRAMES))
    for index, byte in damage:
        wire_bytes[index] = byte
    start, size = data.draw(st.integers(0, len(wire_bytes))), data.draw(st.integers(0, 100))
    wire = Wire()
    wire.add(CLIENT, bytes(wire_bytes[:start]))
    if size and start + size < len(wire_bytes):
        wire.lose(CLIENT, size)
        start += size
    wire.add(CLIENT, bytes(wire_bytes[start:]))
    rows, facts = wire.rows()
    side = facts["client"]
    kinds = ("frame_bytes", "skipped_bytes", "tls_bytes", "foreign_bytes", "tail_bytes")
    assert side["payload_bytes"] == sum(side[kind] for kind in kinds)
    assert [row["frame_no"] for row in rows] == list(range(1, len(rows) + 1))
