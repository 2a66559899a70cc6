"""Connections with layers for the fuzzer: TLS with its key log, WebSocket, a header of the PROXY protocol and 0-RTT
data around the streams of other captures, with records and frames between them that no library sends.

A part of `tests/support/fuzz.py`. The secrets are those of `key_log`, wrong ones among them.
"""

from __future__ import annotations

import random
import re
import tempfile
from collections.abc import Iterable, Iterator
from functools import cache

import golden
import numpy as np
from fuzz_tables import Run
from mutations import mutated, mutated_segments
from tls_forged import ALERT, CHANGE_CIPHER_SPEC, DATA, HANDSHAKE, TICKET, Forged, Sealer, record, wrong_lines
from tls_peers import Sent
from wire import CLIENT, FLOW, SERVER, Wire

from udfs.decode.key_logs import FoundSecrets, SecretFiles

NAMES = 16  # of forged connections: their client randoms and secrets
LINE = re.compile(rb"[A-Z_0-9]{8,40} [0-9a-f]{64} [0-9a-f]{64,96}")
REQUEST = b"GET /amqp HTTP/1.1\r\nHost: mq\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n"
ANSWER = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n"
PROXY = (b"PROXY TCP4 192.0.2.1 192.0.2.2 1024 5672\r\n", bytes.fromhex("0d0a0d0a000d0a515549540a 20 00 0000"))
LARGEST_STREAM = 20_000  # bytes of a stream that is wrapped


class OfHandshakes(SecretFiles):
    """The same, but not for connections that began before the capture."""

    def open(self) -> FoundSecrets:
        found = super().open()
        found.recent = list  # type: ignore[method-assign]
        return found


@cache
def secrets(trials: bool = True) -> SecretFiles:
    """A key log of the small captures of the tests, with the lines beside them or in them, and of forged connections;
    of every fourth it has wrong secrets as well. The file stays until the process ends. Without `trials` connections
    that began before the capture, which cost half a second each, are not decrypted."""
    if not trials:
        return OfHandshakes(secrets().key_logs)
    lines = [line for number in range(NAMES) for line in Forged(b"%d" % number).lines()]
    for path in sorted([*golden.CAPTURES.glob("*keylog*"), *golden.CAPTURES.glob("*tls*.pcapng")]):
        lines += [found.group() + b"\n" for found in LINE.finditer(path.read_bytes())]
    log = tempfile.NamedTemporaryFile(suffix=".txt")  # noqa: SIM115
    log.write(b"".join(wrong_lines(lines[::4]) + lines))
    log.flush()
    _OPEN.append(log)
    return SecretFiles((log.name,))


_OPEN: list[object] = []


def conversation(runs: Iterable[Run]) -> list[Sent]:
    """What both sides of a capture sent, in the order of its segments, and no more than is quick to decode."""
    sent, size = list[Sent](), 0
    for _, segments, payload in runs:
        for segment in segments:
            begin, length = int(segment["payload_at"]), int(segment["cap_len"])
            if length and size < LARGEST_STREAM:
                sent.append((int(segment["direction"]), payload[begin : begin + length]))
                size += length
    return sent


def forged(rng: random.Random, runs: list[Run], other: bytes) -> list[Run]:
    """A stream of a capture inside of layers, damaged on some floor."""
    sent = conversation(runs)
    if rng.random() < 0.3:
        sent = [(way, mutated(rng, data, other)) for way, data in sent]
    if rng.random() < 0.5:
        sent = in_websocket(rng, sent)
    if rng.random() < 0.7:
        sent = in_tls(rng, sent)
    if rng.random() < 0.2:
        sent = [(CLIENT, rng.choice(PROXY)), *sent]
    if rng.random() < 0.3:
        sent = [(way, mutated(rng, data, other) if rng.random() < 0.1 else data) for way, data in sent]
    segments, payload = in_segments(rng, sent).arrays()
    if rng.random() < 0.6:
        segments = mutated_segments(rng, segments)
    if rng.random() < 0.2:
        segments = segments[rng.randrange(len(segments)) :]
    if rng.random() < 0.3:
        payload = mutated(rng, payload, other)[: len(payload)].ljust(len(payload), b"\0")
    return [(FLOW, segments, payload)] if len(segments) else []


def in_segments(rng: random.Random, sent: list[Sent]) -> Wire:
    """Segments of one size or of many, with what a side sends at once split or not; some are lost."""
    wire, size = Wire(syn=rng.random() < 0.9), rng.choice((1, 40, 300, 1400, 60_000))
    size = max(size, sum(len(data) for _, data in sent) // 400)
    for way, data in sent:
        for at in range(0, len(data), size):
            if rng.random() < 0.01:
                wire.lose(way, len(data[at : at + size]))
            else:
                wire.add(way, data[at : at + size])
    return wire


def in_websocket(rng: random.Random, sent: list[Sent]) -> list[Sent]:
    """Messages in frames, masked ones from the client, some in fragments, with control frames between them."""
    flights = [(CLIENT, REQUEST), (SERVER, ANSWER if rng.random() < 0.9 else b"HTTP/1.1 404 Not Found\r\n\r\n")]
    for way, data in sent:
        middle = rng.randrange(len(data) + 1) if rng.random() < 0.2 else len(data)
        flights.append((way, frame(rng, way, data[:middle], 2, middle == len(data))))
        if rng.random() < 0.1:
            flights.append((way, frame(rng, way, b"alive"[: rng.randrange(6)], rng.choice((8, 9, 10, 3)))))
        if middle < len(data):
            flights.append((way, frame(rng, way, data[middle:], 0)))
    return flights


def frame(rng: random.Random, way: int, content: bytes, opcode: int, final: bool = True) -> bytes:
    """A frame of WebSocket (RFC 6455, section 5.2)."""
    size = len(content)
    length = bytes([size]) if size < 126 else b"\x7e" + size.to_bytes(2, "big")
    if size >= 1 << 16:
        length = b"\x7f" + size.to_bytes(8, "big")
    head = bytes([0x80 * final | opcode])
    if way == SERVER:
        return head + length + content
    mask = rng.randbytes(4)
    masked = np.frombuffer(content, np.uint8) ^ np.resize(np.frombuffer(mask, np.uint8), size)
    return head + bytes([length[0] | 0x80]) + length[1:] + mask + masked.tobytes()


def in_tls(rng: random.Random, sent: list[Sent]) -> list[Sent]:
    """TLS 1.3, often with 0-RTT data, which may be refused, and with odd records everywhere."""
    known = Forged(b"%d" % rng.randrange(NAMES))
    early, accept = rng.random() < 0.3, rng.random() < 0.7
    flights, at = [known.hello(early)], 0
    if early:
        at = next((i for i, (way, _) in enumerate(sent) if way == SERVER), len(sent))
        sealer = known.sealers["early"]
        flights += [(CLIENT, b"".join(sealed(rng, sealer, data))) for _, data in sent[:at]]
        at = at if accept else 0
    flights.append(known.answer(early and accept))
    if early and accept and rng.random() < 0.9:
        flights.append((CLIENT, known.sealers["early"].record(b"\x05\0\0\0", HANDSHAKE)))
    flights.append(known.finished())
    for way, data in sent[at:]:
        flights.append((way, b"".join(sealed(rng, known.client if way == CLIENT else known.server, data))))
    odd = rng.choice((0, 0, 0.02, 0.2))
    return [part for flight in flights for part in ([flight, odd_one(rng, known)] if rng.random() < odd else [flight])]


def sealed(rng: random.Random, sealer: Sealer, data: bytes) -> Iterator[bytes]:
    """Records of one write, some with padding, and records of other kinds between them."""
    size = rng.choice((1 << 14, 1000, 50, max(1, len(data) // 40)))
    for at in range(0, len(data), size):
        yield sealer.record(data[at : at + size], DATA, rng.choice((0, 0, 0, 1, 300)))
        if rng.random() < 0.05:
            kind = rng.randrange(6)
            if kind == 0:
                yield sealer.update()
            elif kind == 1:
                yield sealer.record(TICKET * rng.randint(1, 3), HANDSHAKE)
            elif kind == 2:
                yield sealer.record(b"\x01\x00", ALERT)
            elif kind == 3:
                yield sealer.record(b"", rng.choice((DATA, 0)), rng.randrange(4))
            elif kind == 4:
                yield record(CHANGE_CIPHER_SPEC, b"\x01")
            else:
                yield sealer.record(b"\x18\0\0\1\0" * rng.randint(1, 3), HANDSHAKE)


def odd_one(rng: random.Random, known: Forged) -> Sent:
    """Records in clear that have no place here."""
    result = (
        record(ALERT, b"\x01\x00"), record(CHANGE_CIPHER_SPEC, b"\x01"), record(HANDSHAKE, b""), record(DATA, b""),
        record(HANDSHAKE, bytes(4)), record(DATA, rng.randbytes(40)), known.hello()[1], known.answer()[1],
    )  # fmt: skip
    return rng.choice((CLIENT, SERVER)), rng.choice(result) * rng.choice((1, 1, 3, 50))
