"""Damaged and hostile TLS and WebSocket: nothing raises, the ledger holds, cost is bounded."""

from __future__ import annotations

import json
import random
import ssl
import time
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
from test_tls import PARTS, conversation
from test_tls_carried import segments_of
from test_websocket import upgraded
from tls_forged import (
    ALERT,
    CHANGE_CIPHER_SPEC,
    DATA,
    HANDSHAKE,
    TICKET,
    Forged,
    client_hello,
    in_records,
    message,
    record,
    server_hello,
)
from tls_peers import Peers, Sent
from wire import CLIENT, SERVER, Wire, give_up

from codec.compiler.limits import EARLY_DATA, LIMITS, TRIAL
from codec.compiler.limits import HANDSHAKE as HANDSHAKE_SIZE
from codec.layers import stack
from codec.layers import (
    tls_handshake as handshake,
)
from codec.layers import (
    tls_handshake as hello,
)
from codec.layers import (
    tls_records as records,
)
from codec.layers import (
    tls_recovery as trial,
)
from codec.layers.chunks import Chunks
from codec.layers.connection import restore_tls, save_tls
from codec.layers.stack import Layers
from codec.layers.tls_ciphers import SUITES, Aead
from codec.layers.tls_handshake import RETRY, KeyLog, Secrets
from codec.layers.tls_records import Tls
from codec.layers.tls_recovery import TRIAL_BYTES
from codec.memory import as_records, readonly
from codec.net.layers import FLOW_BYTES

INPUTS = 10  # of each kind

KINDS = {
    "tls13": (ssl.TLSVersion.TLSv1_3, ""),
    "tls12": (ssl.TLSVersion.TLSv1_2, ""),
    "cbc": (ssl.TLSVersion.TLSv1_2, "ECDHE-RSA-AES128-SHA256"),
}


def mutated(flights: list[Sent], draw: random.Random) -> Wire:
    """Bytes flipped, segments lost (with and without an acknowledgement), doubled, swapped, cut."""
    wire = Wire()
    parts = [
        (way, data[at : at + size])
        for way, data in flights
        for size in [draw.choice([20, 100, 600, 1400])]
        for at in range(0, len(data), size)
    ]
    for _ in range(draw.randrange(3)):
        at = draw.randrange(len(parts) - 1)
        parts[at], parts[at + 1] = parts[at + 1], parts[at]
    for way, data in parts:
        chance = draw.random()
        if chance < 0.03:
            damaged = bytearray(data)
            damaged[draw.randrange(len(damaged))] ^= 1 << draw.randrange(8)
            wire.add(way, bytes(damaged))
        elif chance < 0.06:
            wire.lose(way, len(data))
        elif chance < 0.08:
            wire.seq[way] += len(data)
        elif chance < 0.1:
            wire.add(way, data)
            wire.seq[way] -= len(data)
            wire.add(way, data)
        elif chance < 0.12:
            wire.add(way, data[: len(data) // 2])
        else:
            wire.add(way, data)
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
    """One stretch; a negative number: so many bytes are missing."""
    data = content if isinstance(content, bytes) else b""
    columns = np.array([[0], [direction], [0], [content if isinstance(content, int) else len(content)]])
    return Chunks._make([*columns, np.frombuffer(bytearray(data), np.uint8)])


def test_trials_after_holes_are_paid_from_a_budget() -> None:
    """A hostile stream behind a hole: heads of records everywhere, none of which opens."""
    flights, log = flights_of("tls13")
    (secrets,) = log._known.values()
    tls = Tls(CLIENT, secrets)
    for way, data in flights[:8]:
        tls.read(chunk(way, data))
    assert not tls.sides[CLIENT].stopped
    tls.read(chunk(CLIENT, -(1 << 20)))
    used, started = 0, time.process_time()
    while not tls.sides[CLIENT].stopped and used < 4 << 20:
        tls.read(chunk(CLIENT, b"\x17\x03\x03\x00\x40" * 2000))
        used += 10_000
    spent = time.process_time() - started
    assert tls.sides[CLIENT].stopped
    assert tls.limits == TRIAL
    assert spent < 20
    assert tls.budget <= LIMITS.trial_grace + LIMITS.trial_rate * (used + sum(len(data) for _, data in flights))


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
    assert [secrets[b"CLIENT_TRAFFIC_SECRET_0"][0][-1] for secrets in known] == list(range(99, 67, -1))  # the newest 32
    tried = []
    monkeypatch.setattr(trial, "number_of", lambda *arguments: tried.append(arguments[-1]))
    assert trial.match_secrets(b"\x17\x03\x03\x00\x20" + bytes(32), known) is None
    assert sum(tried) <= LIMITS.trial_numbers * suites
    assert len(tried) == 2 * LIMITS.trial_connections * suites


def test_secrets_are_tried_without_success_on_a_bounded_number_of_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of connections that began before the capture, and a key log of others."""
    tried = []
    monkeypatch.setattr(stack, "match_secrets", lambda data, known: tried.append(data))
    layers = Layers(KeyLog(b"CLIENT_TRAFFIC_SECRET_0 " + b"ab" * 32 + b" " + b"cd" * 32))
    wire = Wire(syn=False)
    for _ in range(4):
        wire.add(CLIENT, b"\x17\x03\x03\x00\x40" + bytes(64))
    segments, payload = segments_of(wire)
    segments, payload = readonly(as_records(segments)), readonly(payload)  # as the decoder gives them
    count = 0
    for number in range(1000):
        flow = np.frombuffer(number.to_bytes(FLOW_BYTES, "big"), np.uint8)[None]
        parts = list(layers.feed(flow, np.array([len(segments)]), segments, payload))
        count += sum(len(part.segments) for part in parts)
    assert count == 1000 * len(segments)
    assert len(tried) == stack.TRIED_RECORDS * stack.TRIED_CONNECTIONS


@pytest.mark.parametrize(("share", "connections"), [(1.0, 16), (0.25, 64)])
def test_connections_whose_secrets_are_found_count_as_well(
    share: float, connections: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thousands of connections with a record of one secret, which is found after others were tried. It is tried last
    for the next connection."""
    known = KeyLog(b"".join(line for number in range(3) for line in Forged(b"%d" % number).lines())).recent()
    first = []

    def found(data: bytes, given: list[Secrets]) -> trial.Match:
        first.append(given[0])
        return trial.Match(given[0], SUITES[0x1301], True, given[0], share)

    monkeypatch.setattr(stack, "match_secrets", found)
    layers = Layers(KeyLog(b"".join(line for number in range(3) for line in Forged(b"%d" % number).lines())))
    wire = Wire(syn=False)
    wire.add(CLIENT, b"\x17\x03\x03\x00\x40" + bytes(64))
    segments, payload = segments_of(wire)
    segments, payload = readonly(as_records(segments)), readonly(payload)  # as the decoder gives them
    for number in range(200):
        flow = np.frombuffer(number.to_bytes(FLOW_BYTES, "big"), np.uint8)[None]
        list(layers.feed(flow, np.array([len(segments)]), segments, payload))
    assert len(first) == connections
    assert first[:4] == [*known, known[0]]


@pytest.mark.parametrize("more", [0, 1])
def test_a_message_of_the_handshake_above_the_limit_is_named(more: int) -> None:
    tls = Tls(CLIENT, {b"CLIENT_RANDOM": (bytes(48),)})
    head = b"\x0b" + (LIMITS.handshake_bytes + more).to_bytes(3, "big")
    tls.read(chunk(CLIENT, b"\x16\x03\x03\x00\x04" + head))
    assert tls.limits == HANDSHAKE_SIZE * more


@pytest.mark.parametrize(
    "data", [b"\x16\x03\x01\xff\xff" + bytes(60), b"GET / HTTP/1.1\r\nUpgrade: websocket\r\n" + bytes(90)]
)
def test_a_handshake_that_never_ends_is_abandoned(data: bytes) -> None:
    wire = Wire()
    wire.add(CLIENT, data)
    for _ in range(40):
        wire.add(CLIENT, b"x" * 1400)
    rows, facts = wire.rows(Layers())
    assert rows
    assert facts["client"]["payload_bytes"] == sum(facts["client"][part] for part in PARTS)


# ---- runs of small records: what Python does for each of them, counted --------------------------------------------

SMALL = 1500  # records of a run
FEW = 40  # steps that a connection takes whatever is in it
HEADER = b"AMQP\0\0\x09\x01"
Run = tuple[list[Sent], bytes]  # what is sent, the key log


def after_hello(result: Callable[[Forged], Sent], early: bool = False) -> Run:
    known = Forged()
    return [known.hello(early), result(known)], b"".join(known.lines())


def after_opening(result: Callable[[Forged], bytes], way: int = CLIENT) -> Run:
    known = Forged()
    return [*known.opening(), (way, result(known))], b"".join(known.lines())


def sealed(content: bytes, kind: int = DATA, padding: int = 0) -> Callable[[Forged], bytes]:
    return lambda known: b"".join(known.client.record(content, kind, padding) for _ in range(SMALL))


def in_early_data(content: bytes) -> Run:
    """0-RTT data whose records are accepted."""
    known = Forged()
    data = (CLIENT, b"".join(known.sealers["early"].record(content) for _ in range(SMALL)))
    return [known.hello(early=True), data, known.answer(accept_early=True)], b"".join(known.lines())


def early_suites() -> Run:
    """30,000 offered suites, and records that none of them opens."""
    known = Forged()
    return [known.hello(True, [0x1301, 0x1302, 0x1303] * 10_000), (CLIENT, record(DATA, b"x") * SMALL)], b"".join(
        known.lines()
    )


def early_refused(body: bytes) -> Run:
    """0-RTT data that nothing opens, before and after the ServerHello."""
    known = Forged()
    data = (CLIENT, record(DATA, body) * SMALL)
    return [known.hello(early=True), data, known.answer(), data], b"".join(known.lines())


def never_opened() -> Run:
    """The key log lacks the secrets of the handshake, and those of the traffic fit nothing."""
    known = Forged()
    other = Forged(b"other")
    other.random = known.random
    return [known.hello(), known.answer(), (CLIENT, record(DATA, bytes(17)) * SMALL)], b"".join(
        other.lines("client", "server")
    )


FRAGMENTS = b"".join(record(HANDSHAKE, message(11, bytes(9000))[at : at + 1]) for at in range(SMALL))
PASSED_OVER: dict[str, Run] = {
    "change cipher spec in clear": after_hello(lambda _: (CLIENT, record(CHANGE_CIPHER_SPEC, b"\1") * SMALL)),
    "change cipher spec in TLS 1.3": after_opening(lambda _: record(CHANGE_CIPHER_SPEC, b"\1") * SMALL),
    "change cipher spec of the server": after_opening(lambda _: record(CHANGE_CIPHER_SPEC, b"\1") * SMALL, SERVER),
    "change cipher spec between data": after_opening(
        lambda known: b"".join(known.client.record(b"x") + record(CHANGE_CIPHER_SPEC, b"\1") for _ in range(SMALL))
    ),
    "alerts in clear": after_hello(lambda _: (CLIENT, record(ALERT, b"\1\0") * SMALL)),
    "alerts": after_opening(sealed(b"\1\0", ALERT)),
    "alerts between data": after_opening(
        lambda known: b"".join(known.client.record(b"x", kind) for kind in (ALERT, DATA) * (SMALL // 2))
    ),
    "data without content": after_opening(sealed(b"")),
    "padding alone": after_opening(sealed(b"", 0, 20)),
    "handshake records without content": after_hello(lambda _: (CLIENT, record(HANDSHAKE, b"") * SMALL)),
    "requests for a hello": after_hello(lambda _: (SERVER, record(HANDSHAKE, bytes(4)) * SMALL)),
    "a message in fragments of a byte": after_hello(lambda _: (SERVER, FRAGMENTS)),
    "hellos of the client": after_hello(lambda known: (CLIENT, known.hello()[1] * SMALL)),
    "hellos of the client in one record": after_hello(
        lambda known: (CLIENT, in_records(client_hello(known.random) * SMALL, 16_000))
    ),
    "requests for another hello": after_hello(lambda _: (SERVER, in_records(server_hello(RETRY)) * SMALL)),
    "hellos of the server": after_opening(lambda known: known.answer()[1][:90] * SMALL, SERVER),
    "tickets": after_opening(sealed(TICKET, HANDSHAKE)),
    "tickets between data": after_opening(
        lambda known: b"".join(
            known.client.record(TICKET, HANDSHAKE) + known.client.record(b"x") for _ in range(SMALL // 2)
        )
    ),
    "0-RTT data without content": in_early_data(b""),
    "0-RTT data of a byte": in_early_data(b"x"),
    "0-RTT data and 30,000 suites": early_suites(),
    "0-RTT data that are refused": early_refused(b"x"),
    "empty 0-RTT data that are refused": early_refused(b""),
    "data of which no record is opened": never_opened(),
}  # fmt: skip


class Steps:
    """What Python did for the records of a connection."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.count: Counter[str] = Counter()
        for where, name in (
            (Tls, "_record"), (Tls, "_bulk"), (hello, "client_hello"), (hello, "server_hello"), (Aead, "open"),
            (handshake, "keys_13"), (records, "keys_13"), (handshake, "next_secret"),
        ):  # fmt: skip
            self._watch(patch, where, name)

    def _watch(self, patch: pytest.MonkeyPatch, where: object, name: str) -> None:
        really = getattr(where, name)

        def counted(*arguments: object) -> object:
            self.count[name] += 1
            return really(*arguments)

        patch.setattr(where, name, counted)


def read(run: Run) -> tuple[Tls, list[tuple[int, bytes | int]]]:
    """A TLS layer that was given a run, and its output."""
    sent, log = run
    (secrets,) = KeyLog(log)._known.values()
    tls, output = Tls(CLIENT, secrets), []
    for way, data in sent:
        output += tls.read(chunk(way, data)).contents()
    return tls, output


@pytest.mark.parametrize("run", PASSED_OVER.values(), ids=PASSED_OVER)
def test_small_records_are_passed_over_by_kernels(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = Steps(monkeypatch).count
    tls, _ = read(run)
    tried = (LIMITS.trial_grace + LIMITS.trial_rate * sum(len(data) for _, data in run[0])) // TRIAL_BYTES
    refused = tried // 2 if tls.limits & TRIAL else records.REFUSED if tls.why_unread() else 0
    assert steps["_record"] <= FEW + refused, steps
    assert steps["_bulk"] <= FEW + refused + SMALL // records.BULK, steps
    assert steps["open"] <= FEW + 2 * refused, steps
    assert steps["keys_13"] + steps["next_secret"] <= FEW, steps
    assert steps["client_hello"] + steps["server_hello"] <= 2 * handshake.HELLOS


@pytest.mark.parametrize("data", [0, 1, 5])
def test_an_update_of_keys_costs_one_derivation(data: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """`data`: records between two updates."""
    known = Forged()
    updates = (known.client.update() + b"".join(known.client.record(b"x") for _ in range(data)) for _ in range(SMALL))
    sent = [*known.opening(), (CLIENT, b"".join(updates) + known.client.record(HEADER))]
    steps = Steps(monkeypatch).count
    _, output = read((sent, b"".join(known.lines())))
    assert b"".join(content for _, content in output if isinstance(content, bytes)) == b"x" * data * SMALL + HEADER
    assert steps["next_secret"] == SMALL
    assert steps["keys_13"] <= SMALL + FEW
    assert steps["_record"] + steps["_bulk"] <= (data + 2) * SMALL + FEW


def test_updates_of_keys_in_one_record_cost_one_cipher(monkeypatch: pytest.MonkeyPatch) -> None:
    known = Forged()
    sent = [*known.opening(), (CLIENT, known.client.record(b"\x18\0\0\1\0" * SMALL, HANDSHAKE))]
    steps = Steps(monkeypatch).count
    read((sent, b"".join(known.lines())))
    assert steps["keys_13"] <= FEW


def test_heads_of_records_after_a_hole_are_tried_within_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """In chunks of a byte as well, each of which may complete a record that is possible."""
    known = Forged()
    (secrets,) = KeyLog(b"".join(known.lines()))._known.values()
    for heads in (b"\x17\3\3\0\0", b"\x17\3\3\0\x40", b"\x17\3\3\x30\0"):
        tls = Tls(CLIENT, secrets)
        for way, data in [*known.opening(), (CLIENT, known.client.record(HEADER))]:
            tls.read(chunk(way, data))
        known = Forged()
        tls.read(chunk(CLIENT, -5000))
        steps = Steps(monkeypatch).count
        tls.read(chunk(CLIENT, heads * 8000))
        for _ in range(200):
            tls.read(chunk(CLIENT, b"\x17"))
        monkeypatch.undo()
        used = 40_200 + 2000
        assert steps["open"] <= (LIMITS.trial_grace + LIMITS.trial_rate * used) / TRIAL_BYTES


# ---- 0-RTT data ---------------------------------------------------------------------------------------------------


def early(*parts: bytes | int, accept: bool = True, cut: bool = False) -> tuple[Tls, list[tuple[int, bytes | int]]]:
    """0-RTT data in records of these contents, or lost ones of so many bytes, the answer of the server, and output."""
    known = Forged()
    (secrets,) = KeyLog(b"".join(known.lines()))._known.values()
    tls, output = Tls(CLIENT, secrets), []
    tls.read(chunk(*known.hello(early=True)))
    for part in parts:
        data = known.sealers["early"].record(bytes(part) if isinstance(part, int) else part)
        output += tls.read(chunk(CLIENT, -len(data) if isinstance(part, int) else data)).contents()
        if cut:
            tls = restore_tls(json.loads(json.dumps(save_tls(tls))))
    output += tls.read(chunk(*known.answer(accept))).contents()
    return tls, merge_neighbours(output)


def merge_neighbours(output: list[tuple[int, bytes | int]]) -> list[tuple[int, bytes | int]]:
    """Neighbours of one direction and kind together."""
    found: list[tuple[int, bytes | int]] = []
    for way, content in output:
        last = found[-1] if found else (way, 0.5)
        if last[0] == way and type(last[1]) is type(content):
            found[-1] = way, last[1] + content  # type: ignore[operator]
        else:
            found.append((way, content))
    return found


@pytest.mark.parametrize("cut", [False, True])
def test_early_data_wait_with_their_holes(cut: bool) -> None:
    """A record of 300 bytes is lost among them."""
    _, output = early(HEADER, b"", b"a" * 300, 300, b"b" * 300, cut=cut)
    assert output == [(CLIENT, HEADER + b"a" * 300), (CLIENT, -300), (CLIENT, b"b" * 300)]
    _, output = early(HEADER, b"a" * 300, 300, b"b" * 300, accept=False, cut=cut)
    assert output == []


def test_early_data_beyond_the_limit_are_a_hole() -> None:
    """64 KB wait; the stream goes on behind those that did not."""
    tls, output = early(*[b"a" * 16_000] * 5)
    waited = LIMITS.early_bytes // 16_000 * 16_000
    assert output == [(CLIENT, b"a" * waited), (CLIENT, waited - 80_000)]
    assert tls.limits == EARLY_DATA
