"""Every frame that tshark shows is in `frames`, with its position and its values, and nothing else is.

Expected rows come from tests/support/expected.py: tshark's goldens, and the bytes themselves as a second reader sees
them. Where tshark is wrong a test of its own shows the bytes."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Any

import golden
import independent_tcp as tcp
import pika.frame
import pytest
from decoding import Connection, decoded
from expected import SETTLED, ExpectedConnection, ExpectedFrame, captured, expected, shift_between
from golden import FILTER, FRAME_TYPES, Capture

CAPTURES = [capture for capture in golden.captures().values() if capture.classic]
SPANS = {"gap", "skipped", "tls", "foreign"}


def each_of(captures: list[Capture]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("capture", captures, ids=lambda capture: capture.file)


every_capture = each_of(CAPTURES)
# tshark's view of another capture is the reference of the others.
of_its_own = each_of([capture for capture in CAPTURES if capture.origin == capture.file])
with_packets_removed = each_of([capture for capture in CAPTURES if capture.made_from is not None])


def pairs(capture: Capture) -> list[tuple[ExpectedConnection, Connection]]:
    """The classic, encrypted and foreign connections, expected beside decoded, in the order of their first packets
    (test_golden_versions.py has the others)."""
    connections = [connection for connection in expected(capture.file) if connection.content != "none"]
    found = [connection for connection in decoded(capture.file) if connection.facts["content"] != "none"]
    assert [(c.facts["client_ip"], c.facts["client_port"]) for c in found] == [c.client for c in connections]
    assert [(c.facts["server_ip"], c.facts["server_port"]) for c in found] == [c.server for c in connections]
    return [pair for pair in zip(connections, found, strict=True) if pair[0].version in (None, *golden.CLASSIC)]


def position(row: dict[str, Any]) -> tuple[Any, ...]:
    """What identifies a frame row, apart from the values it carries."""
    return (
        row["sender"], row["stream_offset"], row["size"], row["frame_type"], row["channel"], row["class_id"],
        row["method_id"], row["payload_size"], row["file"], row["first_packet_no"], row["packet_no"],
        row["first_ts_ns"], row["ts_ns"],
    )  # fmt: skip


def expected_position(connection: ExpectedConnection, frame: ExpectedFrame) -> tuple[Any, ...]:
    known = isinstance(frame.kind, int)
    return (
        connection.side(frame.sender), frame.offset, frame.size,
        FRAME_TYPES[frame.kind] if isinstance(frame.kind, int) else "protocol-header", frame.channel,
        frame.class_id, frame.method_id, frame.size - tcp.FRAME_OVERHEAD if known else 0, frame.packet.file,
        frame.first_packet.no, frame.packet.no, frame.first_packet.ts_ns, frame.packet.ts_ns,
    )  # fmt: skip


def in_stream_order(positions: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    return sorted(positions, key=lambda found: found[:2])


def resynchronised(connection: ExpectedConnection, row: dict[str, Any]) -> bool:
    """A row behind the point where a complete stream breaks the rules: its bytes show that it is a frame."""
    half = connection.half(row["sender"])
    start, size = row["stream_offset"], row["size"]
    if start < connection.stops.get(half.sender, len(half.data)) or not half.complete:
        return False
    data = bytes(half.data[start : start + size])
    assert data[0] in FRAME_TYPES
    assert int.from_bytes(data[3:7], "big") == size - tcp.FRAME_OVERHEAD
    assert data[-1] == tcp.FRAME_END or row["status"] == "malformed"
    return True


@every_capture
def test_frames_are_those_of_the_golden_and_nothing_else(capture: Capture) -> None:
    for reference, found in pairs(capture):
        rows = [row for row in found.rows if row["frame_type"] not in SPANS and row["status"] != "partial"]
        rows = [row for row in rows if not resynchronised(reference, row)]
        # a frame type that no document defines is a span of unknown bytes, see the test of connection exceptions
        defined = [frame for frame in reference.frames if frame.kind in {*FRAME_TYPES, "AMQP"}]
        expected_positions = [expected_position(reference, frame) for frame in defined]
        assert in_stream_order([position(row) for row in rows]) == in_stream_order(expected_positions)


@of_its_own
def test_frames_come_in_the_order_that_tshark_shows(capture: Capture) -> None:
    """Where the capture's own golden is the reference; elsewhere packet numbers are those of the second reader."""
    for reference, found in pairs(capture):
        if reference.content != "amqp" or not reference.captured.complete:
            continue
        ours = [
            (row["packet_no"], row["sender"], row["frame_type"], row["channel"], row["size"], row["method_id"])
            for row in found.rows
            if row["frame_type"] not in {*SPANS, "protocol-header"} and not resynchronised(reference, row)
        ]
        stream = expected(capture.file).index(reference)
        in_tshark = [
            (
                view.packet_no,
                reference.side(view.sender),
                FRAME_TYPES[view.kind],
                view.channel,
                view.size,
                view.method_id,
            )
            for view in golden.golden_frames(capture.file)
            if view.stream == stream and view.kind in FRAME_TYPES and view not in reference.unframed
        ]
        assert ours == in_tshark


@every_capture
def test_arguments_and_properties_are_those_that_tshark_shows(capture: Capture) -> None:
    wrong: list[str] = []
    for reference, found in pairs(capture):
        rows = {(row["sender"], row["stream_offset"]): row for row in found.rows if row["frame_type"] not in SPANS}
        for frame in reference.frames:
            row = rows.get((reference.side(frame.sender), frame.offset))
            if row is None or frame.view is None or row["status"] != "ok":
                continue  # missing rows and bad statuses have tests of their own
            where = f"packet {row['packet_no']} {row['name']}"
            arguments = {k: v for k, v in (row["arguments"] or {}).items() if k != "user"}
            settled = SETTLED.get((reference.version, frame.content))
            if settled is not None:
                assert frame.view.name != settled[0] or list(
                    golden.disagreements(frame.view.arguments, settled[1], where)
                )
                assert (row["name"], arguments) == settled
                continue
            in_tshark = {
                FILTER.get(reference.version or "", "arguments") if k == "filter" else k: v
                for k, v in frame.view.arguments.items()
            }
            wrong += golden.disagreements(in_tshark, arguments, where)
            wrong += golden.disagreements(frame.view.properties, row["properties"], where)
            if frame.view.name is not None and row["name"] != frame.view.name:
                wrong.append(f"{where}: tshark calls it {frame.view.name}")
            if row["body_size"] != frame.view.body_size:
                wrong.append(f"{where}: body size {row['body_size']}, tshark shows {frame.view.body_size}")
    assert wrong == []


# ---- the same frames, read by pika ----------------------------------------------------------------------------------


def pika_reading(frame: ExpectedFrame) -> dict[str, Any] | None:
    """Arguments or properties as pika decodes them, by our key; None where pika cannot read the bytes."""
    raw = bytes([1 if frame.kind == 1 else 2]) + (frame.channel or 0).to_bytes(2, "big")
    raw += len(frame.content).to_bytes(4, "big") + frame.content + bytes([tcp.FRAME_END])
    try:
        _size, read = pika.frame.decode_frame(raw)
    except Exception:  # struct.error, KeyError and others: it trusts its input
        return None
    values = vars(read.method if frame.kind == 1 else read.properties)
    return {PIKA_NAMES.get(name, name): value for name, value in values.items() if not name.startswith("_")}


PIKA_NAMES = {"nowait": "no_wait", "global_qos": "global", "type_": "type"}


def same_value(ours: Any, pikas: Any) -> bool:
    """Equal, in type too (pika has an integer type of its own)."""
    if isinstance(pikas, dict):
        return (
            isinstance(ours, dict) and ours.keys() == pikas.keys() and all(same_value(ours[k], pikas[k]) for k in ours)
        )
    if isinstance(pikas, list):
        return isinstance(ours, list) and len(ours) == len(pikas) and all(map(same_value, ours, pikas))
    if isinstance(ours, datetime) and isinstance(pikas, int):  # the property `timestamp`
        return ours.timestamp() == pikas
    return type(ours) in type(pikas).__mro__ and ours == pikas


@every_capture
def test_values_and_their_types_are_those_that_pika_reads(capture: Capture) -> None:
    for reference, found in pairs(capture):
        rows = {(row["sender"], row["stream_offset"]): row for row in found.rows if row["frame_type"] not in SPANS}
        for frame in reference.frames:
            row = rows.get((reference.side(frame.sender), frame.offset))
            if row is None or frame.kind not in (1, 2) or reference.version in ("0-8", "0-9"):
                continue  # pika knows 0-9-1 only
            pikas = pika_reading(frame)
            if pikas is None:
                assert row["status"] != "ok", frame
                assert row["error"]
                continue
            assert row["status"] == "ok", row
            ours = row["arguments"] if frame.kind == 1 else row["properties"]
            assert_as_pika(ours or {}, pikas, row)


def assert_as_pika(ours: dict[str, Any], pikas: dict[str, Any], row: dict[str, Any]) -> None:
    for name, value in pikas.items():
        if name in golden.CREDENTIALS:
            assert name not in ours
        elif name in ours:
            text = value.decode() if isinstance(value, bytes) else value  # long strings of arguments are bytes to pika
            assert same_value(ours[name], text), f"{row['name']}.{name}: {ours[name]!r}, pika reads {value!r}"
        else:
            assert value is None, f"{row['name']}.{name} is missing, pika reads {value!r}"


# ---- damaged and foreign --------------------------------------------------------------------------------------------


@every_capture
def test_tls_and_foreign_streams_are_one_row_a_direction(capture: Capture) -> None:
    for reference, found in pairs(capture):
        client, server = (reference.half(side).data for side in ("client", "server"))
        # What is no AMQP and was answered with the broker's protocol header alone.
        answered = client and not client.startswith(b"AMQP") and server[:4] == b"AMQP" and len(server) == 8
        assert found.facts["content"] == ("foreign" if answered else reference.content)
        if reference.content == "amqp":
            continue
        sides = {side: reference.half(side) for side in ("client", "server")}
        rows = [(row["sender"], row["frame_type"], row["stream_offset"], row["size"]) for row in found.rows]
        kind = reference.content
        assert sorted(rows) == [(side, kind, 0, len(half.data)) for side, half in sides.items() if half.data]


@with_packets_removed
def test_partial_frames_are_frames_of_the_origin_that_lost_bytes(capture: Capture) -> None:
    """A frame that begins where a boundary is known, and whose first seven bytes were captured, has a known size: the
    hole inside it does not end it."""
    assert capture.made_from is not None
    (origin,) = captured(capture.made_from)
    for reference, found in pairs(capture):
        for sender, half in reference.captured.halves.items():
            if half.base is None:
                continue
            partial = {
                (row["stream_offset"], row["size"])
                for row in found.rows
                if row["sender"] == reference.side(sender)
                and row["status"] == "partial"
                and row["frame_type"] not in SPANS
            }
            assert partial == cut_frames(half, origin.halves[sender])


def cut_frames(half: tcp.Half, origin: tcp.Half) -> set[tuple[int, int]]:
    """(offset, size) of the origin's frames that lost bytes and can still be framed: the boundary before them is known,
    which it is after every frame that can be framed, and again from the next whole frame on, or from a packet that
    begins with a frame and that the snaplen cut."""
    shift, boundary_known, found = shift_between(half, origin), half.syn, set()
    for frame in tcp.plain_frames(origin)[0]:
        start, stop = frame.offset + shift, frame.offset + shift + frame.size
        if start < 0 or stop > len(half.arrival):
            continue
        if None not in half.arrival[start:stop]:
            boundary_known = True
        elif (boundary_known and None not in half.arrival[start : start + 7]) or begins_cut_packet(half, start, frame):
            boundary_known = True
            found.add((start, frame.size))
        else:
            boundary_known = False
    return found


def begins_cut_packet(half: tcp.Half, start: int, frame: tcp.Frame) -> bool:
    """Whether a packet begins with the frame at `start`, and the snaplen left what tells it: class and method, class
    and weight; of a body, that the packet ends with it."""
    packet = half.arrival[start]
    if packet is None or len(packet.payload) == packet.wire_len or (start and half.arrival[start - 1] is packet):
        return False
    return len(packet.payload) >= 11 if frame.kind in (1, 2) else packet.wire_len == frame.size


# ---- where tshark is wrong ------------------------------------------------------------------------------------------


def test_tshark_shows_a_frame_without_its_end_byte() -> None:
    """Client of the first connection: `01 0001 00000005 0014000a00 00` ends with 00, not CE: the broker answers 501."""
    connection = expected("091_connection_exceptions.pcap")[0]
    data = bytes(connection.half("client").data[88:101])
    assert data == bytes.fromhex("01 0001 00000005 0014000a00 00")
    (view,) = connection.unframed
    assert (view.packet_no, view.size, view.kind) == (12, 13, 1)
    (row,) = [
        r
        for r in decoded("091_connection_exceptions.pcap")[0].rows
        if (r["sender"], r["stream_offset"]) == ("client", 88)
    ]
    assert (row["status"], row["frame_type"]) in {("malformed", "method"), ("unknown", "skipped")}


def test_a_frame_type_that_no_document_defines_is_accounted_for() -> None:
    """Last connection: `09 0001 00000004 "abcd" CE`, which the broker refuses as an unknown frame."""
    connection = expected("091_connection_exceptions.pcap")[6]
    (frame,) = [frame for frame in connection.frames if frame.kind == 9]
    rows = decoded("091_connection_exceptions.pcap")[6].rows
    (row,) = [r for r in rows if (r["sender"], r["stream_offset"]) == ("client", frame.offset)]
    assert (row["status"], row["size"], row["packet_no"]) == ("unknown", frame.size, frame.packet.no)


def test_every_frame_settled_by_its_bytes_was_captured() -> None:
    captured_frames = {
        (connection.version, frame.content)
        for capture in CAPTURES
        if "0-8" in capture.versions
        for connection in expected(capture.file)
        for frame in connection.frames
    }
    assert SETTLED.keys() <= captured_frames


def test_pika_wrote_minus_one_as_a_decimal_and_tshark_shows_it_unsigned() -> None:
    """`negdec` is tag D, scale 0, ffffffff. pika, which wrote it, meant and reads -1, as the prose of 0-9-1 says; its
    grammar, RabbitMQ and tshark read 4294967295."""
    connection = expected("091_field_tables.pcap")[0]
    data = bytes(connection.half("client").data)
    assert b"\x06negdecD\x00\xff\xff\xff\xff" in data
    headers = [row["properties"]["headers"] for row in decoded("091_field_tables.pcap")[0].rows if row["properties"]]
    assert {table["negdec"] for table in headers} == {Decimal(-1)}
