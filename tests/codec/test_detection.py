"""Other protocols are never taken for AMQP, from the start or from the middle: neither a port nor one frame that fits
by chance decides. A single frame does if it is all that was captured of a direction, or all between two holes."""

from __future__ import annotations

import random
from collections.abc import Callable

import encode_0_10
import encode_1_0
import pika.frame
import pika.spec
import pytest
from pika_frames import method
from wire import CLIENT, SERVER, Wire, give_up, rows_of

STREAMS = 150  # of each kind


def http(rng: random.Random) -> bytes:
    request = b"GET /%d HTTP/1.1\r\nHost: h%d\r\n\r\n" % (rng.randrange(9999), rng.randrange(99))
    return request * rng.randrange(1, 20)


def redis(rng: random.Random) -> bytes:
    return b"".join(b"*2\r\n$3\r\nGET\r\n$4\r\nk%03d\r\n" % rng.randrange(999) for _ in range(rng.randrange(1, 60)))


def mqtt(rng: random.Random) -> bytes:
    connect = b"\x10\x10\x00\x04MQTT\x04\x02\x00\x3c\x00\x04abcd"
    return connect + b"".join(b"\x30\x0a\x00\x05topic" + rng.randbytes(3) for _ in range(rng.randrange(40)))


def noise(rng: random.Random) -> bytes:
    return rng.randbytes(rng.randrange(1, 6000))


def tls_records(rng: random.Random) -> bytes:
    records = [rng.randbytes(rng.randrange(30, 800)) for _ in range(rng.randrange(1, 8))]
    return b"".join(b"\x17\x03\x03" + len(record).to_bytes(2, "big") + record for record in records)


def zeros(rng: random.Random) -> bytes:
    return bytes(rng.randrange(1, 4000))


def bytes_that_frames_begin_and_end_with(rng: random.Random) -> bytes:
    return bytes(rng.choice(b"\x00\x01\x02\x03\x08\x0a\x0c\x0f\x10\x53\xce\xc0") for _ in range(rng.randrange(1, 3000)))


def text_with_one_frame(rng: random.Random) -> bytes:
    frame: bytes = pika.frame.Method(1, pika.spec.Basic.Ack(rng.randrange(1 << 32))).marshal()
    return b"AMQP is mentioned here\n" * rng.randrange(3) + frame + b"and a line of text\n" * rng.randrange(1, 30)


KINDS = [http, redis, mqtt, noise, tls_records, zeros, bytes_that_frames_begin_and_end_with, text_with_one_frame]


@pytest.mark.parametrize("from_start", [True, False], ids=["from_start", "from the middle"])
@pytest.mark.parametrize("kind", KINDS)
def test_another_protocol_is_not_amqp(kind: Callable[[random.Random], bytes], from_start: bool) -> None:
    rng = random.Random(f"{kind.__name__} {from_start}")
    wires = []
    for _ in range(STREAMS // 2):
        wire = Wire(syn=from_start)
        for direction in (CLIENT, SERVER):
            data = kind(rng)
            data = data if from_start or kind is text_with_one_frame else data[rng.randrange(len(data)) :]
            while data:
                size = rng.randrange(1, 1461)
                wire.add(direction, data[:size])
                data = data[size:]
        wires.append(wire)
    for rows, facts in rows_of(wires):
        assert facts["content"] in ("foreign", "tls")
        assert {row["frame_type"] for row in rows} <= {"foreign", "tls"}
        assert sorted(row["sender"] for row in rows) == ["client", "server"]


@pytest.mark.parametrize("kind", KINDS)
def test_another_protocol_is_not_amqp_where_the_snaplen_cut_its_packets(kind: Callable[[random.Random], bytes]) -> None:
    rng = random.Random(kind.__name__)
    wires = []
    for _ in range(STREAMS):
        wire = Wire(syn=False)
        snaplen = rng.randrange(30, 60)
        for direction in (CLIENT, SERVER):
            data = kind(rng)
            while data:
                size = rng.randrange(1, 1461)
                wire.add(direction, data[:size], captured=snaplen)
                data = data[size:]
        wires.append(wire)
    for rows, facts in rows_of(wires):
        assert facts["content"] in ("foreign", "tls")
        assert {row["frame_type"] for row in rows} <= {"foreign", "tls"}


# of each family a frame of the client, and one of the server: how a connection ends
LAST_FRAMES = {
    "0-9-1": (
        method(pika.spec.Connection.Close(200, "bye", 0, 0), 0),
        method(pika.spec.Connection.CloseOk(), 0),
        ["connection.close", "connection.close-ok"],
    ),
    "0-10": (
        encode_0_10.one_frame("connection.close", {"reply-code": 200, "reply-text": "bye"}),
        encode_0_10.one_frame("connection.close-ok", {}),
        ["connection.close", "connection.close-ok"],
    ),
    "1.0": (
        encode_1_0.frame(encode_1_0.performative(encode_1_0.END)),
        encode_1_0.frame(encode_1_0.performative(encode_1_0.CLOSE)),
        ["end", "close"],
    ),
}


@pytest.mark.parametrize("version", LAST_FRAMES)
def test_the_last_frames_of_a_connection_that_began_before_the_capture(version: str) -> None:
    client, server, names = LAST_FRAMES[version]
    wire = Wire(syn=False)
    wire.add(CLIENT, client)
    wire.add(SERVER, server)
    rows, facts = wire.rows()
    assert facts["content"] == "amqp"
    assert [(row["version"], row["known"], row["name"], row["status"], row["sender"]) for row in rows] == [
        (version, False, names[0], "ok", "client"),
        (version, False, names[1], "ok", "server"),
    ]


@pytest.mark.parametrize("version", LAST_FRAMES)
def test_a_single_frame_before_a_hole_may_be_followed_by_the_beginning_of_another(version: str) -> None:
    frame, _, names = LAST_FRAMES[version]
    wire = Wire(syn=False)
    wire.add(CLIENT, frame + frame[:-1])
    wire.lose(CLIENT, 1)
    give_up(wire, CLIENT)
    wire.add(CLIENT, frame)
    rows, _ = wire.rows()
    assert [(row["name"], row["status"]) for row in rows if row["frame_type"] != "gap"] == [
        (names[0], "ok"),
        (names[0], "partial"),
        (names[0], "ok"),
    ]


@pytest.mark.parametrize("version", LAST_FRAMES)
def test_a_single_frame_among_other_bytes_is_not_amqp(version: str) -> None:
    frame, *_ = LAST_FRAMES[version]
    for data in (b"\r\n" + frame, frame + b"\r\n", frame[1:], frame[:-1]):
        wire = Wire(syn=False)
        wire.add(CLIENT, data)
        rows, facts = wire.rows()
        assert (facts["content"], [row["frame_type"] for row in rows]) == ("foreign", ["foreign"])
