"""Captures with the packets of only one direction, as a mirror port of one direction has them: what the other side did
is not known, and its bytes are missing as far as they were acknowledged."""

from __future__ import annotations

from typing import Any

import pika.spec
import pytest
from pika_frames import PUBLISH, method
from test_order import flows, rows_of, tables_of
from test_reassembly import HEADER, OPENING, Segment
from wire import CLIENT, SERVER

from codec.net.layers import FIN, SYN

CAPTURES = [
    "08_amqplib_session.pcap",
    "09_qpid_client.pcap",
    "091_confirms_and_return.pcap",
    "091_declare_publish_consume_ack.pcap",
    "091_tx.pcap",
    "010_cpp_send_receive.pcap",
    "010_tx.pcap",
    "10_qpidd_proton_send_receive.pcap",
    "10_rabbitmq_settle_modes.pcap",
]
Row = dict[str, Any]
OF_MESSAGE = ("operation", "exchange", "routing_key", "body_sha256", "body_size")


def one_direction(name: str, direction: int, first: int) -> dict[str, list[Row]]:
    """Tables of the packets of a direction from number `first` on."""
    return tables_of([(flow, s[s["direction"] == direction][first:], data) for flow, s, data in flows(name)])


def messages(tables: dict[str, list[Row]]) -> dict[tuple[Any, ...], list[str]]:
    found: dict[tuple[Any, ...], list[str]] = {}
    for row in sorted(tables["messages"], key=lambda row: (row["connection_id"], row["first_frame_no"])):
        found.setdefault(tuple(row[name] for name in OF_MESSAGE), []).append(row["outcome"])
    return found


@pytest.mark.parametrize("first", [0, 3], ids=["from the SYN", "from the middle"])
@pytest.mark.parametrize("direction", [0, 1])
@pytest.mark.parametrize("name", CAPTURES)
def test_messages_that_lost_bytes_may_have_settled_are_unknown(name: str, direction: int, first: int) -> None:
    both_directions, found = messages(tables_of(flows(name))), messages(one_direction(name, direction, first))
    for message, outcomes in found.items():
        assert set(outcomes) <= {"unknown", *(set(both_directions[message]) & {"presettled"})}


@pytest.mark.parametrize("direction", [0, 1])
@pytest.mark.parametrize("name", CAPTURES)
def test_bytes_of_the_other_side_are_missing(name: str, direction: int) -> None:
    """All of them are acknowledged in these captures; of its FIN one more is, which nothing tells from a byte."""
    for flow, segments, data in flows(name):
        if (segments["flags"] & SYN).sum() != 2:
            continue
        seen = segments["direction"] == direction
        tables = tables_of([(flow, segments[seen], data)])
        sent = int(segments["wire_len"][~seen].sum())
        (gap,) = [row for row in tables["frames"] if row["frame_type"] == "gap"]
        assert gap["size"] - sent in (0, int((segments["flags"][~seen] & FIN > 0).any()))
        for stream in tables["streams"]:
            own = int(segments["wire_len"][seen].sum())
            expected = (0, gap["size"]) if stream["sender"] == gap["sender"] else (own, 0)
            assert (stream["payload_bytes"], stream["missing_bytes"]) == expected


CLOSE = method(pika.spec.Channel.Close(200, "", 0, 0))
OPEN_CONFIRM = method(pika.spec.Channel.Open()) + method(pika.spec.Confirm.Select())


def of_client(*parts: tuple[bytes, int]) -> list[Segment]:
    """Segments of the client with these bytes, which acknowledge so many bytes of the server."""
    segments, at = [], 0
    for data, ack in parts:
        segments.append(Segment(CLIENT, at, data, ack=ack))
        at += len(data)
    return segments


def outcomes(segments: list[Segment]) -> list[str]:
    rows = sorted(rows_of(segments)["messages"], key=lambda row: row["first_frame_no"])
    return [row["outcome"] for row in rows]


def test_messages_are_unknown_also_on_a_channel_that_was_closed_or_reopened() -> None:
    parts = [
        (HEADER + OPEN_CONFIRM, 0),
        (PUBLISH, 100),
        (CLOSE, 121),
        (OPEN_CONFIRM, 133),
        (PUBLISH, 160),
        (CLOSE, 181),
    ]
    assert outcomes([OPENING[0], *of_client(*parts)]) == ["unknown", "unknown"]


def test_a_silent_peer_has_settled_nothing() -> None:
    """The client acknowledges no byte of the server: it did not send any."""
    segments = of_client((OPEN_CONFIRM, 500), (PUBLISH, 500), (PUBLISH, 500))
    assert outcomes(segments) == ["unsettled", "unsettled"]
    assert not [row for row in rows_of(segments)["frames"] if row["frame_type"] == "gap"]


def test_bytes_acknowledged_before_a_direction_begins_are_missing() -> None:
    """The server's direction begins at 700; the client has acknowledged 500, then 700."""
    reply = Segment(SERVER, 700, method(pika.spec.Basic.Ack(2)), ack=len(OPEN_CONFIRM) + 2 * len(PUBLISH))
    segments = [*of_client((OPEN_CONFIRM, 500), (PUBLISH, 600), (PUBLISH, 700)), reply]
    gaps = [row for row in rows_of(segments)["frames"] if row["frame_type"] == "gap"]
    assert [(row["sender"], row["size"]) for row in gaps] == [("server", 200)]
    assert outcomes(segments) == ["unknown", "confirmed"]


def test_a_late_segment_is_the_beginning_of_its_direction() -> None:
    """It is captured after its acknowledgement: nothing is missing."""
    reply = Segment(SERVER, 500, method(pika.spec.Basic.Ack(1)), ack=len(OPEN_CONFIRM) + len(PUBLISH))
    segments = [*of_client((OPEN_CONFIRM, 500), (PUBLISH, 521)), reply]
    assert not [row for row in rows_of(segments)["frames"] if row["frame_type"] == "gap"]
