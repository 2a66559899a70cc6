"""Which classic version a connection is of: its protocol header, the server's connection.start, and where there is
neither, the frames. Bytes by hand, after the 0-8, 0-9 and 0-9-1 documents."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import golden
import numpy as np
import pytest
from classic_support import long_prefixed, shortstr
from decoding import connections, decode_table, decoded, in_flow_order, rows_of, runs
from pcap_files import records
from wire import CLIENT, FLOW, SERVER, Row, Wire, batch_rows

from codec.amqp import batches, decoder
from codec.net.layers import SEGMENT

HEADER_0_8, HEADER_0_9, HEADER_0_9_1 = b"AMQP\x01\x01\x08\x00", b"AMQP\x01\x01\x00\x09", b"AMQP\x00\x00\x09\x01"
METHOD, OOB_METHOD, OOB_HEADER = 1, 4, 5


def frame(kind: int, channel: int, payload: bytes) -> bytes:
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + b"\xce"


def method(channel: int, class_id: int, method_id: int, arguments: bytes = b"", kind: int = METHOD) -> bytes:
    return frame(kind, channel, struct.pack(">HH", class_id, method_id) + arguments)


def start(major: int, minor: int) -> bytes:
    """connection.start: version, server-properties, mechanisms, locales."""
    return method(
        0, 10, 10, bytes([major, minor]) + long_prefixed(b"") + long_prefixed(b"PLAIN") + long_prefixed(b"en")
    )


def publish(ticket: int) -> bytes:
    """basic.publish (ticket, exchange, routing-key, bits), a header without properties, and a body of one byte."""
    arguments = struct.pack(">H", ticket) + shortstr(b"") + shortstr(b"q") + b"\x00"
    return method(1, 60, 40, arguments) + frame(2, 1, struct.pack(">HHQH", 60, 0, 1, 0)) + frame(3, 1, b"x")


ACK = method(1, 60, 80, struct.pack(">QB", 7, 0))  # the same in all three
CLOSE_0_8 = method(0, 10, 60, struct.pack(">H", 200) + shortstr(b"bye") + struct.pack(">HH", 0, 0))
OPEN_OK_0_8, OPEN_OK = method(1, 20, 11), method(1, 20, 11, long_prefixed(b""))


def conversation(*sent: tuple[int, bytes], syn: bool = True) -> tuple[list[Row], Row]:
    wire = Wire(syn)
    for direction, data in sent:
        wire.add(direction, data)
    return wire.rows()


def versions(rows: list[Row]) -> set[tuple[str | None, bool]]:
    return {(row["version"], row["known"]) for row in rows if row["frame_type"] != "protocol-header"}


# ---- connection.start -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("header", "numbers", "version"),
    [(HEADER_0_8, (8, 0), "0-8"), (HEADER_0_9, (0, 9), "0-9"), (HEADER_0_9_1, (0, 9), "0-9-1")],
)
def test_a_server_that_agrees_adds_no_version(header: bytes, numbers: tuple[int, int], version: str) -> None:
    rows, facts = conversation((CLIENT, header), (SERVER, start(*numbers)), (CLIENT, ACK))
    assert versions(rows) == {(version, True)}
    assert facts["versions_offered"] == [f"client {version}"]


def test_a_server_that_starts_with_8_0_makes_it_0_8() -> None:
    rows, facts = conversation((CLIENT, HEADER_0_9_1), (SERVER, start(8, 0)), (CLIENT, CLOSE_0_8))
    assert versions(rows) == {("0-8", True)}
    assert [row["name"] for row in rows] == [None, "connection.start", "connection.close"]
    assert rows[0]["version"] == "0-9-1"
    assert facts["versions_offered"] == ["client 0-9-1", "server 0-8"]


def test_a_start_with_0_9_excludes_0_8() -> None:
    """Nothing tells 0-9 from 0-9-1 here."""
    rows, facts = conversation((CLIENT, HEADER_0_8), (SERVER, start(0, 9)), (CLIENT, ACK + publish(0)))
    assert versions(rows) == {("0-9-1", False)}
    assert facts["versions_offered"] == ["client 0-8", "server 0-9"]


def test_after_a_start_with_0_9_a_method_only_in_0_9_decides() -> None:
    """message.ok, class 120, method 500."""
    rows, _ = conversation((CLIENT, HEADER_0_8), (SERVER, start(0, 9)), (CLIENT, ACK), (SERVER, method(1, 120, 500)))
    assert versions(rows) == {("0-9", False)}
    assert rows[-1]["name"] == "message.ok"


@pytest.mark.parametrize(
    ("numbers", "version", "known", "offered"), [((8, 0), "0-8", True, "0-8"), ((0, 9), "0-9-1", False, "0-9")]
)
@pytest.mark.parametrize("syn", [True, False])
def test_start_counts_where_no_header_was_captured(
    numbers: tuple[int, int], version: str, known: bool, offered: str, syn: bool
) -> None:
    wire = Wire(syn)
    wire.add(SERVER, b"")
    if syn:
        wire.lose(CLIENT, 8)
    wire.add(SERVER, start(*numbers))
    wire.add(SERVER, ACK)
    rows, facts = wire.rows()
    assert {row["version"] for row in rows if row["name"]} == {version}
    assert {row["known"] for row in rows if row["name"]} == {known}
    assert facts["versions_offered"] == [f"server {offered}"]


def test_unknown_version_numbers_change_nothing() -> None:
    rows, facts = conversation((CLIENT, HEADER_0_9), (SERVER, start(0, 95)), (CLIENT, ACK))
    assert versions(rows) == {("0-9", True)}
    assert facts["versions_offered"] == ["client 0-9", "server 0.95"]


@pytest.mark.parametrize("header", [b"AMQP\x01\x01\x00\x0a", b"AMQP\x00\x01\x00\x00", b"AMQP\x00\x00\x09\x00"])
def test_a_classic_server_may_answer_any_header(header: bytes) -> None:
    rows, facts = conversation((CLIENT, header), (SERVER, start(8, 0)), (CLIENT, ACK), (SERVER, CLOSE_0_8))
    assert versions(rows) == {("0-8", True)}
    assert [row["name"] for row in rows[1:]] == ["connection.start", "basic.ack", "connection.close"]
    assert facts["versions_offered"][1] == "server 0-8"


def test_only_the_first_start_of_a_server_counts() -> None:
    rows, facts = conversation((CLIENT, HEADER_0_9_1 + start(8, 0)), (SERVER, start(0, 9) + start(8, 0)))
    assert versions(rows) == {("0-9-1", True)}
    assert facts["versions_offered"] == ["client 0-9-1"]


def test_a_start_that_does_not_fit_does_not_count() -> None:
    rows, _ = conversation((CLIENT, HEADER_0_9_1), (SERVER, method(0, 10, 10, b"\x08\x00")))
    assert versions(rows) == {("0-9-1", True)}
    assert rows[-1]["status"] == "malformed"


# ---- frames ---------------------------------------------------------------------------------------------------------

CREDIT = method(1, 60, 200, shortstr(b"c") + struct.pack(">IB", 1, 0))  # basic.credit, of RabbitMQ's 0-9-1
FILE_ACK = method(1, 70, 90, struct.pack(">QB", 1, 0))  # file.ack, of 0-8 and 0-9
TEST_STRING_OK = method(1, 120, 21, long_prefixed(b"r"))  # of 0-8; 0-9 has class message there, without method 21


@pytest.mark.parametrize(
    ("telling", "version"),
    [
        (b"", "0-9-1"),
        (publish(0), "0-9-1"),
        (publish(1), "0-8"),  # reserved-1 of 0-9-1 is zero
        (publish(1) + OPEN_OK, "0-9"),  # 0-8 has no channel-id in channel.open-ok
        (OPEN_OK, "0-9-1"),
        (OPEN_OK_0_8, "0-8"),
        (CLOSE_0_8, "0-8"),  # class 10, method 60 is connection.blocked (reason) later
        (method(0, 10, 60, shortstr(b"low on memory")), "0-9-1"),
        (FILE_ACK, "0-8"),
        (FILE_ACK + OPEN_OK, "0-9"),
        (TEST_STRING_OK, "0-8"),
        (method(1, 120, 500), "0-9"),  # message.ok
        (CREDIT, "0-9-1"),
        (publish(1) + CREDIT, "0-9-1"),  # some clients of 0-9-1 send a ticket
        (method(1, 60, 20, b"\0\0" + shortstr(b"q") + shortstr(b"") + b"\0"), "0-8"),  # consume without a table
        (method(1, 60, 80, struct.pack(">QB", 8, 1), kind=OOB_METHOD), "0-8"),
    ],
)
def test_the_version_of_a_stream_without_a_header_is_detected_from_its_frames(telling: bytes, version: str) -> None:
    rows, _ = conversation((CLIENT, ACK), (CLIENT, ACK + telling), syn=False)
    assert versions(rows) == {(version, False)}
    assert {row["status"] for row in rows} == {"ok"}


def test_rows_before_the_frame_that_decides_the_version_have_its_names() -> None:
    """Class 60, method 110 is basic.recover in 0-9-1, recover-sync in 0-8 as RabbitMQ has it."""
    recover = method(1, 60, 110, b"\x01")
    rows, _ = conversation((CLIENT, ACK + recover), (CLIENT, OPEN_OK_0_8), syn=False)
    assert [row["name"] for row in rows] == ["basic.ack", "basic.recover-sync", "channel.open-ok"]
    assert [row["arguments"] for row in rows[1:]] == [{"requeue": True}, {}]


def test_a_lost_boundary_is_found_by_the_frames_of_any_version() -> None:
    rows, _ = conversation((CLIENT, b"garbage" + CLOSE_0_8 + OPEN_OK_0_8), syn=False)
    assert [row["name"] for row in rows] == [None, "connection.close", "channel.open-ok"]
    assert {row["version"] for row in rows} == {"0-8"}


def test_numbers_that_mean_another_method_elsewhere_do_not_tell_the_client() -> None:
    """Class 10, method 61 is connection.close-ok in 0-8 and connection.unblocked, of servers only, in 0-9-1."""
    rows, facts = conversation((CLIENT, ACK + method(0, 10, 61)), (CLIENT, ACK), syn=False)
    assert {row["sender"] for row in rows} == {"client"}
    assert facts["roles_from"] == "port"


def test_the_version_is_final_after_256_rows() -> None:
    rows, _ = conversation((CLIENT, 256 * ACK), (CLIENT, OPEN_OK_0_8), syn=False)
    assert versions(rows) == {("0-9-1", False)}
    assert (rows[-1]["name"], rows[-1]["status"]) == ("channel.open-ok", "malformed")


@pytest.mark.parametrize("others", range(250, 256))
def test_rows_wait_for_their_version_when_a_batch_is_full(others: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of another connection fill the batch up before the version of this one is known."""
    monkeypatch.setattr(batches, "BATCH_ROWS", 256)
    before, wire = Wire(), Wire(syn=False)
    before.add(CLIENT, HEADER_0_9_1 + ACK * (others - 1))
    for data in [ACK, ACK, publish(0), ACK, OPEN_OK_0_8, ACK]:
        wire.add(CLIENT, data)
    decoding, found = decoder.Decoder(), []
    for flow, stream in ((FLOW[:-1] + b"!", before), (FLOW, wire)):
        segments, payload = np.array(stream.segments, SEGMENT), np.frombuffer(bytearray(stream.payload), np.uint8)
        found += [batch_rows(batch) for batch in decoding.feed(flow, segments, payload)]
    found += [batch_rows(batch) for batch in decoding.finish()]
    assert len(found) > 1
    rows = [row for batch in found for row in batch]
    assert versions(rows[:others]) == {("0-9-1", True)}
    assert versions(rows[others:]) == {("0-8", False)}
    assert [row["name"] for row in rows[others:]].count("channel.open-ok") == 1


def test_out_of_band_frames_are_read_like_those_in_band() -> None:
    """Frame types 4 and 5 of 0-8 and 0-9 have the payloads of 1 and 2; their content is not that of the channel."""
    header = struct.pack(">HHQH", 60, 0, 1, 0x8000) + shortstr(b"a/b")
    out_of_band = publish(1)[: -2 * 8 - 14 - 1]
    assert out_of_band[-1:] == b"\xce"
    rows, _ = conversation((CLIENT, HEADER_0_8 + b"\x04" + out_of_band[1:] + frame(OOB_HEADER, 1, header) + publish(1)))
    assert [row["frame_type"] for row in rows[1:]] == ["oob-method", "oob-header", "method", "header", "body"]
    assert {row["status"] for row in rows} == {"ok"}
    assert rows[1]["arguments"] == rows[3]["arguments"]
    assert (rows[1]["name"], rows[2]["properties"], rows[2]["body_size"]) == (
        "basic.publish",
        {"content_type": "a/b"},
        1,
    )
    assert [row["content"] for row in rows[1:]] == [-1, -1, 4, 4, 4]


# ---- captures that begin in the middle ------------------------------------------------------------------------------


def beginning_at(packet_no: int, file: str, directory: Path) -> Path:
    """The capture without the packets before `packet_no`."""
    header, packets = records(golden.CAPTURES / file)
    path = directory / file
    path.write_bytes(header + b"".join(packets[packet_no - 1 :]))
    return path


@pytest.mark.parametrize("packet_no", [5, 7, 21, 61])
@pytest.mark.parametrize(
    ("file", "version"),
    [
        ("08_amqplib_session.pcap", "0-8"),
        ("08_qpid_client.pcap", "0-8"),
        ("09_qpid_client.pcap", "0-9-1"),  # its tickets are zero, and it sends nothing that 0-9-1 lacks
    ],
)
def test_a_capture_without_its_beginning_gives_the_same_frames(
    file: str, version: str, packet_no: int, tmp_path: Path
) -> None:
    """From packet 5 on there is the server's connection.start, which settles 0-8."""
    table = decode_table(in_flow_order(runs([beginning_at(packet_no, file, tmp_path)])))
    (found,), (complete,) = connections(rows_of(table)), decoded(file)
    assert versions_of(found.rows) == {(version, packet_no == 5 and version == "0-8")}
    assert len(found.rows) >= 25
    there = {(row["sender"], row["packet_no"] - packet_no + 1, row["name"], str(values(row))) for row in complete.rows}
    for row in found.rows:
        assert row["status"] == "ok"
        assert (row["sender"], row["packet_no"], row["name"], str(values(row))) in there


def versions_of(rows: list[Row]) -> set[tuple[str, bool]]:
    return {(row["version"], row["version_known"]) for row in rows}


def values(row: Row) -> tuple[Any, ...]:
    """What a row says; 0-9-1 has `arguments` where 0-9 has `filter`."""
    arguments = {"arguments" if key == "filter" else key: value for key, value in (row["arguments"] or {}).items()}
    return (
        row["size"],
        row["channel"],
        row["body_size"],
        row["body_sha256"],
        sorted(arguments.items()),
        row["properties"],
    )


# ---- limits ---------------------------------------------------------------------------------------------------------

HUGE = 1 << 25  # above the limit of 16 MiB


@pytest.mark.parametrize(
    ("data", "limits"),
    [
        (struct.pack(">BHI", 3, 1, HUGE) + bytes(20), ["frame size"]),
        (struct.pack(">BHIHH", 1, 1, HUGE, 60, 40) + bytes(20), ["frame size"]),
        (struct.pack(">BHI", 0x47, 1, HUGE) + bytes(20), []),  # 0x47 is not a frame type
        (struct.pack(">BHIHH", 1, 1, HUGE, 61, 40) + bytes(20), []),  # there is no class 61
        (struct.pack(">BHI", 8, 0, HUGE) + bytes(20), []),  # a heartbeat is empty
        (struct.pack(">BHIH", 2, 1, HUGE, 10) + bytes(20), []),  # class 10 has no content
    ],
)
def test_only_the_beginning_of_a_frame_reaches_the_size_limit(data: bytes, limits: list[str]) -> None:
    _, facts = conversation((CLIENT, HEADER_0_9_1 + data))
    assert facts["limits"] == limits
