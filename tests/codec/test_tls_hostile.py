"""Damaged and hostile TLS and WebSocket: nothing raises, the ledger holds, cost is bounded."""

from __future__ import annotations

import random
import ssl
import time

import numpy as np
import pytest
from test_tls import PARTS, conversation
from test_tls_carried import segments_of
from test_websocket import upgraded
from tls_peers import Peers, Sent
from wire import CLIENT, SERVER, Wire, give_up

from codec.compiler.limits import HANDSHAKE, LIMITS, TRIAL
from codec.layers import stack
from codec.layers.chunks import Chunks
from codec.layers.stack import Layers
from codec.layers.tls import trial
from codec.layers.tls.keylog import KeyLog
from codec.layers.tls.records import Tls

INPUTS = 10  # of each kind

KINDS = {
    "tls13": (ssl.TLSVersion.TLSv1_3, ""),
    "tls12": (ssl.TLSVersion.TLSv1_2, ""),
    "cbc": (ssl.TLSVersion.TLSv1_2, "ECDHE-RSA-AES128-SHA256"),
}


def mutated(flights: list[Sent], draw: random.Random) -> Wire:
    """Octets flipped, segments lost (with and without an acknowledgement), doubled, swapped, cut."""
    wire = Wire()
    parts = [
        (way, octets[at : at + size])
        for way, octets in flights
        for size in [draw.choice([20, 100, 600, 1400])]
        for at in range(0, len(octets), size)
    ]
    for _ in range(draw.randrange(3)):
        at = draw.randrange(len(parts) - 1)
        parts[at], parts[at + 1] = parts[at + 1], parts[at]
    for way, octets in parts:
        chance = draw.random()
        if chance < 0.03:
            damaged = bytearray(octets)
            damaged[draw.randrange(len(damaged))] ^= 1 << draw.randrange(8)
            wire.add(way, bytes(damaged))
        elif chance < 0.06:
            wire.lose(way, len(octets))
        elif chance < 0.08:
            wire.seq[way] += len(octets)
        elif chance < 0.1:
            wire.add(way, octets)
            wire.seq[way] -= len(octets)
            wire.add(way, octets)
        elif chance < 0.12:
            wire.add(way, octets[: len(octets) // 2])
        else:
            wire.add(way, octets)
    for way in (CLIENT, SERVER):
        give_up(wire, way)
    return wire


def flights_of(kind: str) -> tuple[list[Sent], KeyLog]:
    sent = conversation()[0]
    if kind == "websocket":
        return upgraded(sent), KeyLog()
    peers = Peers(*KINDS.get(kind, KINDS["tls13"]))
    flights = peers.exchange(upgraded(sent) if kind == "both" else sent)
    return flights, KeyLog(peers.key_log)


@pytest.mark.parametrize("kind", [*KINDS, "websocket", "both"])
def test_damaged_streams_give_rows_and_a_byte_ledger(kind: str) -> None:
    flights, log = flights_of(kind)
    for seed in range(INPUTS):
        _, facts = mutated(flights, random.Random(f"{kind} {seed}")).rows(Layers(log))
        for side in ("client", "server"):
            ledger = facts[side]
            assert ledger["payload_bytes"] == sum(ledger[part] for part in PARTS), seed
            assert all(ledger[part] >= 0 for part in (*PARTS, "decrypted_bytes", "missing_bytes")), seed


def chunk(direction: int, content: bytes | int) -> Chunks:
    """One stretch; a negative number: so many octets are missing."""
    octets = content if isinstance(content, bytes) else b""
    columns = np.array([[0], [direction], [0], [content if isinstance(content, int) else len(content)]])
    return Chunks._make([*columns, np.frombuffer(bytearray(octets), np.uint8)])


def test_trials_after_holes_are_paid_from_a_budget() -> None:
    """A hostile stream behind a hole: heads of records everywhere, none of which opens."""
    flights, log = flights_of("tls13")
    (secrets,) = log._known.values()
    tls = Tls(CLIENT, secrets)
    for way, octets in flights[:8]:
        tls.read(chunk(way, octets))
    assert not tls.sides[CLIENT].stopped
    tls.read(chunk(CLIENT, -(1 << 20)))
    taken, started = 0, time.process_time()
    while not tls.sides[CLIENT].stopped and taken < 4 << 20:
        tls.read(chunk(CLIENT, b"\x17\x03\x03\x00\x40" * 2000))
        taken += 10_000
    spent = time.process_time() - started
    assert tls.sides[CLIENT].stopped
    assert tls.limits == TRIAL
    assert spent < 20
    assert tls.budget <= LIMITS.trial_grace + LIMITS.trial_rate * (taken + sum(len(octets) for _, octets in flights))


@pytest.mark.parametrize(("digits", "suites"), [(96, 1), (64, 4)], ids=["SHA-384", "SHA-256"])
def test_secrets_of_many_connections_cost_no_more_than_those_of_one(
    digits: int, suites: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A key log of 100 connections, none of which is the one that began before the capture; `suites`: of TLS 1.3 with
    a hash of this length."""
    lines = (
        f"{side}_TRAFFIC_SECRET_0 {number:064x} {number:0{digits}x}"
        for number in range(100)
        for side in ("CLIENT", "SERVER")
    )
    known = KeyLog("\n".join(lines).encode()).recent()
    assert [secrets[b"CLIENT_TRAFFIC_SECRET_0"][-1] for secrets in known] == list(range(99, 67, -1))  # the newest 32
    tried = []
    monkeypatch.setattr(trial, "number_of", lambda *arguments: tried.append(arguments[-1]))
    assert trial.match_secrets(b"\x17\x03\x03\x00\x20" + bytes(32), known) is None
    assert sum(tried) <= LIMITS.trial_numbers * suites
    assert len(tried) == 2 * LIMITS.trial_connections * suites


def test_secrets_are_tried_without_success_on_a_bounded_number_of_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of connections that began before the capture, and a key log of others."""
    tried = []
    monkeypatch.setattr(stack, "match_secrets", lambda octets, known: tried.append(octets))
    layers = Layers(KeyLog(b"CLIENT_TRAFFIC_SECRET_0 " + b"ab" * 32 + b" " + b"cd" * 32))
    wire = Wire(syn=False)
    for _ in range(4):
        wire.add(CLIENT, b"\x17\x03\x03\x00\x40" + bytes(64))
    segments, payload = segments_of(wire)
    segments = segments.view(np.recarray)
    count = 0
    for number in range(1000):
        flow = np.frombuffer(number.to_bytes(36, "big"), np.uint8)[None]
        parts = list(layers.feed(flow, np.array([len(segments)]), segments, payload))
        count += sum(len(part.segments) for part in parts)
    assert count == 1000 * len(segments)
    assert len(tried) == stack.TRIED_RECORDS * stack.TRIED_CONNECTIONS


@pytest.mark.parametrize("more", [0, 1])
def test_a_message_of_the_handshake_above_the_limit_is_named(more: int) -> None:
    tls = Tls(CLIENT, {b"CLIENT_RANDOM": bytes(48)})
    head = b"\x0b" + (LIMITS.handshake_bytes + more).to_bytes(3, "big")
    tls.read(chunk(CLIENT, b"\x16\x03\x03\x00\x04" + head))
    assert tls.limits == HANDSHAKE * more


@pytest.mark.parametrize(
    "octets", [b"\x16\x03\x01\xff\xff" + bytes(60), b"GET / HTTP/1.1\r\nUpgrade: websocket\r\n" + bytes(90)]
)
def test_a_handshake_that_never_ends_is_abandoned(octets: bytes) -> None:
    wire = Wire()
    wire.add(CLIENT, octets)
    for _ in range(40):
        wire.add(CLIENT, b"x" * 1400)
    rows, facts = wire.rows(Layers())
    assert rows
    assert facts["client"]["payload_bytes"] == sum(facts["client"][part] for part in PARTS)
