"""Every limit that a connection can run into is named in its facts, whatever else the rows say of it; below the limit
nothing is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import classic_frames as classic
import numpy as np
import proton
import pytest
from encode_0_10 import FIRST_FRAME, FIRST_SEGMENT, LAST_FRAME, LAST_SEGMENT, segment
from encode_0_10 import frame as segment_frame
from test_amqp_1_0_streams import HEADER, transfer
from wire import CLIENT, FLOW, SERVER, Row, Wire, give_up, take_facts

from codec.amqp.decoder import Decoder
from codec.compiler.limits import LIMITS
from codec.net.layers import ACK, SEGMENT, SYN

V = "0-9-1"
HTTP = b"GET / HTTP/1.1\r\nHost: example\r\n\r\n"


def says(*wire_bytes: bytes) -> Wire:
    """A connection whose client says this, a segment each."""
    wire = Wire()
    for data in wire_bytes:
        wire.add(CLIENT, data)
    return wire


def tables(depth: int) -> Wire:
    """queue.declare with tables in each other, `depth` of them."""
    nested: dict[str, Any] = {}
    for _ in range(depth - 1):
        nested = {"t": nested}
    return says(classic.protocol_header(V) + classic.method(V, "queue.declare", queue="q", arguments=nested))


def array(elements: int) -> Wire:
    """queue.declare with an array of booleans, two bytes each on the wire. In VARIANT each is an byte, and three for
    where it begins."""
    data = b"t\x01" * elements
    data = b"\x01aA" + len(data).to_bytes(4, "big") + data
    arguments = b"\0\0\x01q\0" + len(data).to_bytes(4, "big") + data
    return says(classic.protocol_header(V) + classic.frame(1, 1, b"\0\x32\0\x0a" + arguments))


def midway(size: int) -> Wire:
    """So many bytes of another protocol, from the middle."""
    wire = Wire(syn=False)
    for _ in range(0, size, 65_536):
        wire.add(CLIENT, (HTTP * (65_536 // len(HTTP) + 1))[:65_536])
    return wire


def in_stretches(holes: int) -> Wire:
    """The same in short stretches with a hole behind each; nobody acknowledges what comes at the end."""
    wire = Wire(syn=False)
    for _ in range(holes):
        wire.add(CLIENT, HTTP)
        wire.lose(CLIENT, 100)
    wire.add(CLIENT, HTTP)
    for _ in range(holes + 1):
        give_up(wire, CLIENT)
    return wire


def in_frames(size: int) -> Wire:
    """A segment of 0-10 of so many bytes in frames of 65,535."""
    chunk, flags = bytes(65_523), FIRST_SEGMENT | LAST_SEGMENT
    parts = [segment_frame(1, segment("queue.declare", {}), 1, flags | FIRST_FRAME)]
    parts += [segment_frame(1, chunk, 1, flags)] * (size // len(chunk))
    parts.append(segment_frame(1, b"", 1, flags | LAST_FRAME))
    return says(b"AMQP\x01\x01\0\x0a" + b"".join(parts))


def in_transfers(size: int) -> Wire:
    """A message of 1.0 with application properties of so many bytes, in transfers of 64 KB."""
    message = proton.Message(body=b"x", properties={"p": "v" * size}).encode()
    parts = [message[at : at + 65_536] for at in range(0, len(message), 65_536)]
    return says(HEADER, *(transfer(0, part, more=part is not parts[-1]) for part in parts))


def hello(size: int) -> Wire:
    """A TLS handshake record that holds a ClientHello of so many bytes."""
    message = b"\x01" + (size - 4).to_bytes(3, "big") + b"\x03\x03" + bytes(size - 6)
    return says(b"\x16\x03\x01" + len(message).to_bytes(2, "big") + message)


def limits(wire: Wire) -> list[str]:
    names: list[str] = wire.rows()[1]["limits"]
    return names


@pytest.mark.parametrize(
    ("wire_of", "below", "above", "name"),
    [
        (tables, LIMITS.nesting_depth, LIMITS.nesting_depth + 1, "nesting depth"),
        (array, LIMITS.variant_bytes // 4 - 1000, LIMITS.variant_bytes // 4, "decoded value size"),
        (midway, LIMITS.detect_bytes, LIMITS.detect_bytes + 65_536, "search for frames"),
        (in_stretches, LIMITS.detect_spans // 2 - 1, LIMITS.detect_spans // 2, "search for frames"),
        (in_frames, LIMITS.segment_bytes // 2, LIMITS.segment_bytes + 65_536, "segment size"),
        (in_transfers, LIMITS.delivery_bytes - 65_536, LIMITS.delivery_bytes + 65_536, "delivery size"),
        (lambda times: says(classic.protocol_header(V) * times), LIMITS.offers, LIMITS.offers + 1, "protocol headers"),
        (hello, LIMITS.hello_bytes - 5, LIMITS.hello_bytes - 4, "hello size"),
    ],
)
def test_a_limit_that_is_reached_is_named(wire_of: Callable[[int], Wire], below: int, above: int, name: str) -> None:
    assert limits(wire_of(below)) == []
    assert limits(wire_of(above)) == [name]


def test_a_message_above_the_limit_has_its_body_and_no_properties() -> None:
    rows, _ = in_transfers(LIMITS.delivery_bytes + 65_536).rows()
    last = rows[-1]
    assert (last["properties"], last["digest"] is not None) == ({"body_kind": "value"}, True)


def test_facts_wait_for_the_values_of_the_last_rows() -> None:
    """The values of rows are decoded when they are handed out, which may be long after their connection has ended."""
    decoder, found = Decoder(), []
    for number, wire in enumerate((tables(LIMITS.nesting_depth + 1), tables(1), Wire())):
        flow = FLOW[:-1] + bytes([number])
        segments, payload = np.array(wire.segments, SEGMENT), np.frombuffer(wire.payload or b"\0", np.uint8)
        found += list(decoder.feed(flow, segments, payload))
    assert (found, take_facts(decoder)) == ([], [])
    assert sum(len(batch.cells) for batch in decoder.finish()) == 4
    reached = {fact.facts["client_port"]: fact.facts["limits"] for fact in take_facts(decoder)}
    assert sorted(map(tuple, reached.values())) == [(), (), ("nesting depth",)]


def test_another_connection_of_the_flow_has_a_new_state() -> None:
    wire = tables(LIMITS.nesting_depth + 1)
    wire.add(CLIENT, b"", ACK | 1)
    wire.seq = [9_000_000, 8_000_000]
    wire.add(CLIENT, b"", SYN)
    wire.add(SERVER, b"", SYN | ACK)
    wire.add(CLIENT, classic.protocol_header(V))
    decoder = Decoder()
    segments, payload = np.array(wire.segments, SEGMENT), np.frombuffer(wire.payload, np.uint8)
    rows: list[Row] = []
    for batches in (decoder.feed(FLOW, segments, payload), decoder.finish()):
        rows += [row for batch in batches for row in batch.cells]
    assert len(rows) == 3
    assert [fact.facts["limits"] for fact in take_facts(decoder)] == [["nesting depth"], []]
