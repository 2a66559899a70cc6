"""Short connections with layers are read many at once: the same rows as one after the other."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest
from fuzz import damaged
from fuzz_layers import secrets
from test_websocket import rows_and_facts
from tls_forged import Forged
from tls_peers import wire_of
from wire import CLIENT, FLOW, SERVER, Wire

from codec.amqp.decoder import Decoder
from codec.layers import short
from codec.layers.stack import Layers
from codec.layers.tls_handshake import KeyLog

CONNECTIONS = 20 if numba.config.DISABLE_JIT else 150
Run = tuple[np.ndarray, bytes]  # segments, payload
AMQP, HEADER = b"AMQP\0\0\x09\x01", b"AMQP\x03\x01\x00\x00"
ASKS = b"GET / HTTP/1.1\r\nUpgrade: websocket\r\n\r\n"
AGREES = b"HTTP/1.1 101 Switching Protocols\r\n\r\n"
FRAME = b"\x82\x88\0\0\0\0" + AMQP  # the mask is zero


def one_after_the_other(*runs: Run) -> Run:
    """Connections one after the other on the same addresses and ports, with other sequence numbers."""
    parts, data, packets = [], b"", 0
    for number, (segments, payload) in enumerate(runs):
        part = segments.copy()
        for name in ("seq", "ack"):
            part[name] += number * 1_000_000
        part["payload_at"] += len(data)
        for name in ("order_ns", "ts_ns", "packet_no"):
            part[name] += packets
        packets = int(max(part["packet_no"].max(), part["order_ns"].max(), part["ts_ns"].max()))
        parts.append(part)
        data += payload
    return np.concatenate(parts), data


def of_each(runs: list[Run], log: Any) -> tuple[Any, Any]:
    """(rows, facts) of the runs, each of a flow of its own, read one after the other and in one call."""
    flows = [FLOW[:-2] + (1024 + number).to_bytes(2, "big") + bytes(4) for number in range(len(runs))]
    apart, together = Decoder(layers=Layers(log(), together=False)), Decoder(layers=Layers(log()))
    batches: list[Any] = []
    for flow, (segments, payload) in zip(flows, runs, strict=True):
        batches += apart.feed(flow, segments, np.frombuffer(bytearray(payload or b"\0"), np.uint8))
    one = rows_and_facts(apart, [*batches, *apart.finish()])
    at, moved = 0, []
    for segments, payload in runs:
        moved.append(segments.copy())
        moved[-1]["payload_at"] += at
        at += len(payload)
    data = np.frombuffer(bytearray(b"".join(payload for _, payload in runs) or b"\0"), np.uint8)
    ends = np.cumsum([len(segments) for segments in moved])
    keys = np.frombuffer(b"".join(flows), np.uint8).reshape(len(flows), -1)
    batches = [*together.feed_flows(keys, ends, np.concatenate(moved), data), *together.finish()]
    other = rows_and_facts(together, batches)
    assert together.layers is not None
    assert not together.layers._reasons, "reasons of no connection"
    assert not together.layers._ended, "facts of no connection"
    return one, other


@pytest.mark.parametrize("seed", range(4))
def test_damaged_connections_have_the_same_rows(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)

    def drawn() -> Run:
        while True:
            for _, segments, payload in damaged(rng, "layers", tmp_path / "a.pcap"):
                return segments, payload

    runs = [drawn() for _ in range(CONNECTIONS)]
    runs = [
        one_after_the_other(run, *(drawn() for _ in range(rng.randrange(1, 3)))) if rng.random() < 0.2 else run
        for run in runs
    ]
    one, other = of_each(runs, lambda: secrets(trials=False).open())
    assert other[1] == one[1]
    assert other[0] == one[0]
    assert {facts["transport"] for _, facts in one[1]} >= {"tcp", "tls"}


def upgraded(*before: tuple[int, bytes]) -> Run:
    """A connection over WebSocket."""
    wire = wire_of([*before, (CLIENT, ASKS), (SERVER, AGREES), (CLIENT, FRAME)])
    return wire.arrays()


def test_connections_on_the_same_ports_have_the_layers_of_each() -> None:
    forged = Forged()
    encrypted = wire_of([*forged.opening(), (CLIENT, forged.client.record(AMQP))]).arrays()
    clear = wire_of([(CLIENT, AMQP)]).arrays()
    kinds = [upgraded(), encrypted, clear, upgraded(), upgraded()]
    one, other = of_each(
        [one_after_the_other(*kinds), upgraded(), encrypted, clear], lambda: KeyLog(b"".join(forged.lines()))
    )
    transports = [facts["transport"] for _, facts in one[1]]
    of_kinds = ["websocket", "tls", "tcp", "websocket", "websocket"]
    assert transports == [*of_kinds, "websocket", "tls", "tcp"]
    assert other == one


def test_tls_after_a_header_of_amqp_is_upgraded() -> None:
    """Whether a header came before is known to the decoder, which is asked for each of these connections."""
    runs, lines = [], b""
    for number in range(8):
        forged = Forged(b"%d" % number)
        lines += b"".join(forged.lines())
        before = [(CLIENT, HEADER), (SERVER, HEADER)] if number % 2 else []
        runs.append(wire_of([*before, *forged.opening(), (CLIENT, forged.client.record(AMQP))]).arrays())
    one, other = of_each(runs, lambda: KeyLog(lines))
    assert [facts["tls"]["mode"] for _, facts in one[1]] == ["implicit", "upgraded"] * 4
    assert other == one


@pytest.mark.parametrize("extra", [-1, 0, 1])
def test_a_connection_is_short_up_to_a_number_of_segments(extra: int, monkeypatch: pytest.MonkeyPatch) -> None:
    wire = wire_of([(CLIENT, ASKS), (SERVER, AGREES)])
    while len(wire.segments) < 2 + short.SHORT_SEGMENTS + 1 + extra:
        wire.add(CLIENT, FRAME)
    one, other = of_each([wire.arrays(), upgraded(), upgraded()], KeyLog)
    assert other == one


def test_a_segment_that_has_copies_of_bytes_before_it_begins_no_layer() -> None:
    """The last byte of a header of the PROXY protocol is sent again, with a ClientHello: its first byte is old, so that
    TLS does not begin there, and each byte is counted once."""
    proxy = bytes.fromhex("0d0a0d0a000d0a515549540a 20 00 0000")
    forged, wire = Forged(), Wire()
    hello = forged.hello()[1]
    wire.add(CLIENT, proxy)
    wire.seq[CLIENT] -= 1
    wire.add(CLIENT, hello)
    one, other = of_each([wire.arrays(), wire.arrays()], lambda: KeyLog(b"".join(forged.lines())))
    assert other == one
    for _, facts in one[1]:
        client = facts["client"]
        assert client["payload_bytes"] == len(proxy) + len(hello) - 1
        assert client["retransmitted_bytes"] == 1


@pytest.mark.parametrize("late", [CLIENT, SERVER])
def test_a_late_syn_inside_of_a_layer_leaves_each_packet_and_byte_counted_once(late: int) -> None:
    """After a header of the PROXY protocol TLS does not begin at the SYN, which comes late, before another ClientHello:
    layers begin twice in what is one connection."""
    forged, wire = Forged(), Wire()
    hello, answer = forged.hello(), forged.answer()
    for sent in [
        (CLIENT, b"PROXY UNKNOWN\r\n"),
        hello,
        answer,
        forged.finished(),
        (CLIENT, forged.client.record(AMQP)),
    ]:
        wire.add(*sent)
    first, at = wire.segments.pop(0 if late == CLIENT else 1), len(wire.segments) + 1
    wire.segments.append((at, at, at, *first[3:]))
    wire.add(*hello)
    for _ in range(3):
        wire.add(CLIENT, forged.client.record(FRAME))
        wire.add(SERVER, forged.server.record(AMQP))
    one, other = of_each([wire.arrays(), wire.arrays()], lambda: KeyLog(b"".join(forged.lines())))
    assert other == one
    for _, facts in one[1]:
        for side, direction in (("client", CLIENT), ("server", SERVER)):
            own = [segment for segment in wire.segments if segment[11] == direction]
            assert facts[side]["packets"] == len(own)
            assert facts[side]["payload_bytes"] == sum(segment[6] for segment in own)
            assert facts[side]["tls_bytes"] >= 0
