"""Captures in which connections of several versions stand side by side. test_golden.py compares the classic ones."""

from __future__ import annotations

import gzip
import json
from typing import Any

import golden
import golden_0_10
import golden_1_0
import pytest
from decoding import Connection, decoded
from expected import captured

HEADERS = "0x_all_protocol_headers.pcap"
MIXED = "mixed_0x_one_file.pcapng"
PARTS = (
    "08_qpid_client.pcap",
    "09_qpid_client.pcap",
    "091_sll2_any.pcap",
    "010_tx.pcap",
    "10_qpidd_transactions.pcap",
    "091_ipv6.pcapng",
)

START = b"\x01\x00\x00"  # how a connection.start begins: a method on channel 0, then the size, class 10, method 10
# For each connection: bytes after "AMQP" in the header of the client; what the server answers (its own header, or the
# version numbers in its connection.start); versions_offered; the version of the connection and of its last row.
ASKED: list[tuple[bytes, bytes, list[str], str | None]] = [
    (b"\x01\x01\x08\x00", START + b"\x08\x00", ["client 0-8"], "0-8"),
    (b"\x01\x01\x00\x09", START + b"\x00\x09", ["client 0-9"], "0-9"),
    (b"\x01\x01\x09\x01", START + b"\x08\x00", ["client 0-8"], "0-8"),
    (b"\x00\x00\x09\x00", b"AMQP\x00\x00\x09\x01", ["client 0.0.9.0", "server 0-9-1"], "0-9-1"),
    (b"\x00\x00\x09\x01", START + b"\x00\x09", ["client 0-9-1"], "0-9-1"),
    (b"\x00\x00\x08\x00", b"AMQP\x00\x00\x09\x01", ["client 0.0.8.0", "server 0-9-1"], "0-9-1"),
    (b"\x01\x01\x00\x0a", b"AMQP\x00\x00\x09\x01", ["client 0-10", "server 0-9-1"], "0-9-1"),
    (b"\x00\x01\x00\x00", b"AMQP\x00\x01\x00\x00", ["client 1.0", "server 1.0"], "1.0"),
    (b"\x03\x01\x00\x00", b"AMQP\x03\x01\x00\x00", ["client 1.0", "server 1.0"], "1.0"),
    (b"\x02\x01\x00\x00", b"AMQP\x03\x01\x00\x00", ["client 1.0", "server 1.0"], "1.0"),
]


def test_every_protocol_header_gets_the_answer_that_its_bytes_show() -> None:
    found = decoded(HEADERS)
    for reassembled, connection, (asked, answer, offered, version) in zip(captured(HEADERS), found, ASKED, strict=True):
        assert reassembled.client is not None
        client = bytes(reassembled.halves[reassembled.client].data)
        (server,) = [bytes(half.data) for end, half in reassembled.halves.items() if end != reassembled.client]
        assert client == b"AMQP" + asked
        # the size, class and method stand between the channel and the version numbers
        assert server[:3] + server[11:13] == answer if answer.startswith(START) else server[:8] == answer
        assert connection.facts["versions_offered"] == offered
        assert connection.rows[-1]["version"] == version
        assert [row["frame_type"] for row in connection.rows[:2]] == [
            "protocol-header",
            "method" if answer.startswith(START) else "protocol-header",
        ]


def frames_in_tshark(file: str) -> dict[tuple[int, int], list[dict[str, Any]]]:
    """tshark's frames of a capture by (number of the stream, port of the sender), those of classic streams left out."""
    with gzip.open(golden.CAPTURES / f"{file}.frames.jsonl.gz", "rt") as lines:
        frames = [json.loads(line) for line in lines]
    others = {frame["stream"] for frame in frames if frame["kind"].startswith(("0-10 ", "1.0 "))}
    found: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for frame in frames:
        if frame["stream"] in others:
            found.setdefault((frame["stream"], frame["srcport"]), []).append(frame)
    return found


def frame_disagreements(frame: dict[str, Any], row: dict[str, Any]) -> list[str]:
    if frame["kind"].startswith("0-10 "):
        return list(golden_0_10.frame_disagreements(frame, row))
    return list(golden_1_0.frame_disagreements(frame["f"], row)) if frame["kind"].startswith("1.0 ") else []


@pytest.mark.parametrize(("file", "streams"), [(HEADERS, 1), (MIXED, 2)])
def test_frames_of_0_10_and_1_0_are_those_that_tshark_shows(file: str, streams: int) -> None:
    in_tshark = frames_in_tshark(file)
    assert len({stream for stream, _port in in_tshark}) == streams
    for (stream, port), frames in in_tshark.items():
        connection = decoded(file)[stream]
        sender = "client" if port == connection.facts["client_port"] else "server"
        rows = [row for row in connection.rows if row["sender"] == sender]
        assert [row["packet_no"] for row in rows] == [frame["frame"] for frame in frames]
        assert {row["status"] for row in rows} == {"ok"}
        assert [line for frame, row in zip(frames, rows, strict=True) for line in frame_disagreements(frame, row)] == []


def without_its_file(connection: Connection) -> tuple[Any, ...]:
    """A connection apart from the place of its packets in the capture."""
    index = {"file", "capture_file", "packet_no", "first_packet_no"}
    rows = [{key: value for key, value in row.items() if key not in index} for row in connection.rows]
    facts = {name: fact for name, fact in connection.facts.items() if name not in index}
    return connection.first_ns, facts, rows


def test_a_merged_capture_gives_the_connections_of_its_parts() -> None:
    parts = [without_its_file(connection) for part in PARTS for connection in decoded(part)]
    assert [without_its_file(c) for c in decoded(MIXED)] == sorted(parts, key=lambda part: part[0])
