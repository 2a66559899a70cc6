"""TLS and WebSocket decoded in pieces, with states carried, give the rows of one decode."""

from __future__ import annotations

import random
import ssl
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from test_connection_state import Rows
from test_tls import conversation
from test_websocket import AMQP_091, PROXY_LINE, REQUEST, compressed, upgraded
from tls_peers import Peers, wire_of
from wire import CLIENT, FLOW, SERVER, Wire

from codec.amqp.decoder import CarriedStates, Decoder
from codec.framing.connection_state import ConnectionState
from codec.layers.stack import Layers
from codec.layers.tls_handshake import KeyLog
from codec.net.layers import SEGMENT
from udfs.decode.flow_order import Files

CUTS = 3  # of each kind


def segments_of(wire: Wire) -> tuple[np.ndarray, np.ndarray]:
    return np.array(wire.segments, SEGMENT), np.frombuffer(bytearray(wire.payload), np.uint8)


def in_one_piece(wire: Wire, log: KeyLog) -> tuple[pa.Table, dict[int, Any]]:
    files, rows = Files(), Rows()
    files.number("a.pcap")
    decoder = Decoder(keep_payload=True, layers=Layers(log))
    rows.take(decoder.feed(FLOW, *segments_of(wire)), files)
    rows.end(decoder, files)
    return rows.table(), rows.facts


def pieces(
    wire: Wire, log: KeyLog, cuts: list[int], carry: bool = True
) -> tuple[pa.Table, dict[int, Any], list[bytes]]:
    """The same, cut before these segments."""
    (segments, payload), rows, states = segments_of(wire), Rows(), list[bytes]()
    every: list[bytes] = []
    for number, (first, end) in enumerate(zip([0, *cuts], [*cuts, len(segments)], strict=True)):
        files = Files()
        for other in range(number % 3):
            files.number(f"another {other}")
        part = segments[first:end].copy()
        part["file"] = files.number("a.pcap")
        carried = CarriedStates((ConnectionState.from_bytes(state) for state in states), files)
        decoder = Decoder(keep_payload=True, carried=carried, layers=Layers(log, carry=carry))
        rows.take(decoder.feed(FLOW, part, payload), files)
        rows.end(decoder, files)
        states = [state.to_bytes() for state in carried.states.values()]
        every += states
    files = Files()
    for state in map(ConnectionState.from_bytes, states):
        decoder = Decoder(keep_payload=True, carried=CarriedStates([state], files), layers=Layers(log, carry=carry))
        rows.take(decoder.feed(state.flow, np.zeros(0, SEGMENT), np.zeros(0, np.uint8)), files)
        decoder.carried = None
        rows.end(decoder, files)
    return rows.table(), rows.facts, every


def wires() -> dict[str, tuple[Wire, KeyLog]]:
    sent = conversation()[0]
    found = {}
    for name, version, ciphers in (
        ("tls13", ssl.TLSVersion.TLSv1_3, ""),
        ("tls12", ssl.TLSVersion.TLSv1_2, ""),
        ("tls12-cbc", ssl.TLSVersion.TLSv1_2, "ECDHE-RSA-AES128-SHA"),
    ):
        peers = Peers(version, ciphers)
        found[name] = wire_of(peers.exchange(sent), 200), KeyLog(peers.key_log)
    found["websocket"] = wire_of(upgraded(sent), 200), KeyLog()
    peers = Peers()
    found["websocket in tls"] = wire_of(peers.exchange(upgraded(sent)), 200), KeyLog(peers.key_log)
    found["compressed"] = wire_of(compressed(sent), 50), KeyLog()
    found["compressed, fresh"] = wire_of(compressed(sent, b"; server_no_context_takeover", False), 50), KeyLog()
    found["compressed, loss"] = wire_of(compressed(sent), 50).without({40, 70}), KeyLog()
    found["websocket, loss"] = wire_of(upgraded(sent), 50).without({40, 41, 90, 130}), KeyLog()
    found["refused"] = wire_of([(CLIENT, REQUEST), (SERVER, AMQP_091)], 30), KeyLog()
    found["unanswered"] = wire_of([(CLIENT, PROXY_LINE), (CLIENT, REQUEST)], 30), KeyLog()
    found["proxy"] = wire_of([(CLIENT, PROXY_LINE), *upgraded(sent)], 200), KeyLog()
    peers = Peers()
    security = [(CLIENT, b"AMQP\x02\x01\0\0"), (SERVER, b"AMQP\x02\x01\0\0")]
    found["after a header"] = wire_of([*security, *peers.exchange(sent)], 200), KeyLog(peers.key_log)
    peers = Peers()
    found["loss"] = wire_of(peers.exchange(sent), 1 << 16).without({15, 16, 30}), KeyLog(peers.key_log)
    return found


WIRES = wires()


@pytest.mark.parametrize("name", WIRES)
def test_pieces_give_the_rows_of_one_decode(name: str) -> None:
    wire, log = WIRES[name]
    rows, facts = in_one_piece(wire, log)
    draw = random.Random(name)
    indices = range(1, len(wire.segments))
    cuts = [[index] for index in draw.sample(indices, min(CUTS, len(indices)))]
    cuts += [sorted(draw.sample(indices, min(count, len(indices)))) for count in (5, 9)]
    for some in cuts:
        found, known, _ = pieces(wire, log, some)
        assert found.equals(rows), some
        assert known == facts, some


def test_states_contain_secrets_only_on_request() -> None:
    """Without it the connection ends with the piece; what follows is TLS."""
    wire, log = WIRES["tls13"]
    (secrets,) = log._known.values()
    middle = len(wire.segments) // 2
    _, facts, states = pieces(wire, log, [middle], carry=False)
    for state in map(ConnectionState.from_bytes, states):
        assert state.layers is None
        text = repr((state.layers, {name: array.tobytes() for name, array in state.arrays.items()}))
        assert not any(secret.hex() in text or repr(secret)[2:-1] in text for (secret,) in secrets.values())
    assert sorted(fact["content"] for fact in (each.facts for each in facts.values())) == ["amqp", "tls"]
