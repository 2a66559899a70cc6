"""Logins of all versions and mechanisms, damaged, and where a piece of their secret is looked for: everywhere.

A login is a conversation up to tune (1.0: the SASL layer); `damaged` gives its client frames with flipped bits, other
lengths, other types, splices. `leaks` decodes a conversation, bodies included, and looks in all that leaves the decoder
and in what `amqp_redact` makes of the frame for any four bytes of the secret in a row; `leaking` looks for it in the
rows of all tables of many.
"""

from __future__ import annotations

import base64
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import classic_frames
import encode_0_10
import encode_1_0
import fuzz_tables
import numpy as np
import proton
from classic_support import fact_table, long_prefixed, shortstr
from wire import CLIENT, FLOW, SERVER, Wire, take_facts

from codec.amqp.decoder import Decoder
from codec.amqp.redaction import blank_secrets
from codec.protocol import rows as R
from codec.protocol.versions import VERSIONS
from udfs.arrow.arrays import to_int64
from udfs.decode.frame_rows import frame_rows

PIECE = 4
NUMBERS = ("code", "class_id", "method_id", "body_size")  # of frames, which may be bytes of a secret
Damaged = tuple[bytes, int | None]  # bytes of a frame, and how many are in the snaplen (None: all)
PASSWORD = b"hunter2!Kx9#qZ"
TOKEN = b"eyJhbGciOiJFUzI1NiJ9." + base64.urlsafe_b64encode(bytes(range(7, 157, 2))) + b".c2lnbmF0dXJlMDQyNw"
PROOF = b"v0X8v3Bz2T0CJGbJQyF0XHI4Ts="
DIGEST = b"b913a602c7eda7a495b4e6e7334d3890"


def amqplain(*entries: tuple[bytes, bytes]) -> bytes:
    return b"".join(shortstr(name) + b"S" + long_prefixed(value) for name, value in entries)


# Mechanism -> (initial response, response to a challenge or None, the secret in them).
MECHANISMS: dict[str, tuple[bytes, bytes | None, bytes]] = {
    "PLAIN": (b"\0alice\0" + PASSWORD, None, PASSWORD),
    "PLAIN ": (b"\0\0" + TOKEN, None, TOKEN),  # a token for a password, no user; the blank is taken off
    "AMQPLAIN": (amqplain((b"LOGIN", b"alice"), (b"PASSWORD", PASSWORD)), None, PASSWORD),
    "AMQPLAIN ": (amqplain((b"PASSWORD", PASSWORD), (b"LOGIN", b"alice")), None, PASSWORD),
    "EXTERNAL": (PASSWORD, None, PASSWORD),
    "ANONYMOUS": (PASSWORD, None, PASSWORD),
    "CRAM-MD5": (b"", b"alice " + DIGEST, DIGEST),
    "SCRAM-SHA-256": (b"n,,n=alice,r=rOprNGfwEbeRWgbNEkqO", b"c=biws,r=rOprNGfwEbeRWgbNEkqO,p=" + PROOF, PROOF),
    "OAUTHBEARER": (b"n,a=alice,\x01auth=Bearer " + TOKEN + b"\x01\x01", None, TOKEN),
    "XOAUTH2": (b"user=alice\x01auth=Bearer " + TOKEN + b"\x01\x01", None, TOKEN),
    "RABBIT-CR-DEMO": (b"alice", b"My password is " + PASSWORD, PASSWORD),
}


@dataclass(frozen=True)
class Login:
    """`frames` from (direction, bytes); `secret_frames`: places of those that contain the secret."""

    version: str
    mechanism: str
    frames: tuple[tuple[int, bytes], ...]
    secret_frames: tuple[int, ...]
    secret: bytes


def _classic(version: str, mechanism: str, first: bytes, second: bytes | None) -> list[tuple[int, bytes]]:
    about = {"product": "Wire", "platform": "Python"}
    start_ok = {"client_properties": about, "mechanism": mechanism, "response": first, "locale": "en_US"}
    frames = [
        (CLIENT, classic_frames.protocol_header(version)),
        (SERVER, classic_frames.method(version, "connection.start", 0, **_start(version))),
        (CLIENT, classic_frames.method(version, "connection.start-ok", 0, **start_ok)),
    ]
    if second is not None:
        frames.append((SERVER, classic_frames.method(version, "connection.secure", 0, challenge=b"go on")))
        frames.append((CLIENT, classic_frames.method(version, "connection.secure-ok", 0, response=second)))
    return [*frames, (SERVER, classic_frames.method(version, "connection.tune", 0, frame_max=131072))]


def _start(version: str) -> dict[str, Any]:
    numbers = fact_table(version)["protocol_header"]["start_version"]
    return {"version_major": numbers["major"], "version_minor": numbers["minor"], "mechanisms": "PLAIN"}


def _v0_10(mechanism: str, first: bytes, second: bytes | None) -> list[tuple[int, bytes]]:
    about = {"product": ("str16", "Wire")}
    start_ok = {"client-properties": about, "mechanism": mechanism, "response": first, "locale": "en_US"}
    frames = [
        (CLIENT, b"AMQP\x01\x01\x00\x0a"),
        (SERVER, encode_0_10.one_frame("connection.start", {"mechanisms": ("str16", ["PLAIN"])})),
        (CLIENT, encode_0_10.one_frame("connection.start-ok", start_ok)),
    ]
    if second is not None:
        frames.append((SERVER, encode_0_10.one_frame("connection.secure", {"challenge": b"go on"})))
        frames.append((CLIENT, encode_0_10.one_frame("connection.secure-ok", {"response": second})))
    return [*frames, (SERVER, encode_0_10.one_frame("connection.tune", {"channel-max": 100}))]


def sasl(code: int, *fields: Any) -> bytes:
    """A SASL frame of 1.0."""
    return encode_1_0.frame(encode_1_0.performative(code, *fields), kind=encode_1_0.SASL)


def _v1_0(mechanism: str, first: bytes, second: bytes | None) -> list[tuple[int, bytes]]:
    frames = [
        (CLIENT, b"AMQP\x03\x01\x00\x00"),
        (SERVER, b"AMQP\x03\x01\x00\x00" + sasl(0x40, proton.symbol("PLAIN"))),
        (CLIENT, sasl(0x41, proton.symbol(mechanism), first, "host")),
    ]
    if second is not None:
        frames += [(SERVER, sasl(0x42, b"go on")), (CLIENT, sasl(0x43, second))]
    return [*frames, (SERVER, sasl(0x44, proton.ubyte(0)))]


def login_frames(version: str, mechanism: str, first: bytes, second: bytes | None = None) -> list[tuple[int, bytes]]:
    """(direction, bytes) of a login with this initial response, and with a response to a challenge."""
    if version in ("0-10", "1.0"):
        return (_v0_10 if version == "0-10" else _v1_0)(mechanism, first, second)
    return _classic(version, mechanism, first, second)


def logins() -> list[Login]:
    """Every mechanism in every version; and the token that a 0-9-1 client renews."""
    found = []
    for version in ("0-8", "0-9", "0-9-1", "0-10", "1.0"):
        for name, (first, second, secret) in MECHANISMS.items():
            mechanism = name.strip()
            frames = login_frames(version, mechanism, first, second)
            secret_frames = tuple(i for i, (_, data) in enumerate(frames) if secret in data)
            found.append(Login(version, mechanism, tuple(frames), secret_frames, secret))
    update = classic_frames.method("0-9-1", "connection.update-secret", 0, new_secret=TOKEN, reason="refresh")
    frames = [*_classic("0-9-1", "EXTERNAL", b"", None), (CLIENT, update)]
    return [*found, Login("0-9-1", "update-secret", tuple(frames), (len(frames) - 1,), TOKEN)]


# ---- damage ---------------------------------------------------------------------------------------------------------


def resized(version: str, data: bytes) -> bytes:
    """A frame whose own size is true again."""
    if version == "1.0":
        return len(data).to_bytes(4, "big") + data[4:]
    if version == "0-10":
        return data[:2] + (len(data) & 0xFFFF).to_bytes(2, "big") + data[4:]
    return data[:3] + max(len(data) - 8, 0).to_bytes(4, "big") + data[7:]


def flips(data: bytes) -> Iterator[bytes]:
    """Each bit turned over in turn."""
    for bit in range(8 * len(data)):
        changed = bytearray(data)
        changed[bit >> 3] ^= 0x80 >> (bit & 7)
        yield bytes(changed)


def lengths(data: bytes) -> Iterator[bytes]:
    """At every place a length of one, two or four bytes, from none to all that follows."""
    for at in range(len(data)):
        rest = len(data) - at
        for size in {*range(0, rest + 2, 1 + rest // 24), rest, 5, 20, 21}:
            for width in (1, 2, 4):
                if at + width <= len(data) and size < 1 << (8 * width):
                    yield data[:at] + size.to_bytes(width, "big") + data[at + width :]


def types(data: bytes, version: str) -> Iterator[bytes]:
    """Every frame type; methods by their numbers, controls, descriptors, constructors; and two of them at once."""
    indices = {"0-10": (0, 1, 5, 12, 13, 14), "1.0": (4, 5, 8, 9, 10, 11, 14)}.get(version, (0, 1, 2, 8, 10))
    for at in indices:
        for byte in range(256):
            yield data[:at] + bytes([byte]) + data[at + 1 :]
    for kind in range(10):
        for byte in range(96):
            yield (
                data[: indices[1]]
                + bytes([kind])
                + data[indices[1] + 1 : indices[-1]]
                + bytes([byte])
                + data[indices[-1] + 1 :]
            )


def splices(rng: random.Random, data: bytes, other: bytes) -> bytes:
    """Stretches taken out, doubled, moved, or brought from another frame; a few bytes changed as well."""
    for _ in range(rng.randint(1, 3)):
        start = rng.randrange(len(data) + 1)
        end = min(len(data), start + rng.randint(0, rng.choice((2, 8, 64))))
        at = rng.randrange(len(data) + 1)
        way = rng.randrange(5)
        if way == 0:
            data = data[:start] + data[end:]
        elif way == 1:
            data = data[:at] + data[start:end] + data[at:]
        elif way == 2:
            data = data[:start] + other[start:end] + data[end:]
        elif way == 3:
            data = data[:at] + other[start:end] + data[at:]
        else:
            data = data[:start] + bytes(rng.choice((0, 1, 5, 0x53, 255)) for _ in data[start:end][:4]) + data[end:]
    return data


def damaged(login: Login, index: int, rng: random.Random, other: bytes, spliced: int = 300) -> Iterator[bytes]:
    """The frame at `index`, damaged in every way; with its own size as damaged, and made true again."""
    data = login.frames[index][1]
    for ways in (flips(data), lengths(data), types(data, login.version)):
        yield from ways
    for _ in range(spliced):
        changed = splices(rng, data, other)
        if copies_nothing(login, data, other, changed):
            yield changed
            yield resized(login.version, changed)


def copies_nothing(login: Login, data: bytes, other: bytes, changed: bytes) -> bool:
    """Whether no piece of the secret stands in `changed` that was not there: one that is copied into a name is a
    name."""
    return not any(piece in other or changed.count(piece) > data.count(piece) for piece in pieces(login))


def conversation(login: Login, index: int, data: bytes, captured: int | None = None) -> Wire:
    """The login with `bytes` for the frame at `index`, of which `captured` are in the snaplen."""
    wire = Wire()
    for i, (direction, frame) in enumerate(login.frames):
        wire.add(direction, data if i == index else frame, captured=captured if i == index else None)
    return wire


# ---- search ---------------------------------------------------------------------------------------------------------


@cache
def pieces(login: Login) -> set[bytes]:
    """Every four bytes of the secret that occur nowhere else in the conversation."""
    rest = b"\n".join(data.replace(login.secret, b"\n") for _, data in login.frames)
    found = {login.secret[at : at + PIECE] for at in range(len(login.secret) - PIECE + 1)}
    return {piece for piece in found if piece not in rest}


class Searcher:
    """Decodes conversations, and looks for pieces of the secret."""

    def __init__(self) -> None:
        self.decoder = Decoder(keep_payload=True)

    def leaks(self, login: Login, index: int, data: bytes, captured: int | None = None) -> list[str]:
        """Where a piece appears when the frame at `index` has become `bytes`, of which `captured` are in the snaplen:
        columns, facts, or 'redacted'."""
        outputs = self.outputs(conversation(login, index, data, captured))
        outputs["redacted"] = redacted(login.version, data[:captured])
        secrets = pieces(login)
        return [f"{name}: {piece!r}" for name, text in outputs.items() for piece in secrets if piece in text]

    def leaking(self, login: Login, index: int, changed: Sequence[Damaged]) -> list[str]:
        """The same for many at once, in every column of every table, and what each of them redacted leaves."""
        secrets = pieces(login)
        connections = [conversation(login, index, *each) for each in changed]
        rows = fuzz_tables.tables([[(FLOW, *wire.arrays())] for wire in connections], payload=True)
        fuzz_tables.check(rows)
        found = []
        for table, batches in rows.items():
            texts = dict.fromkeys([*batches[0].schema.names, "numbers"], b"")
            for batch in batches:
                for name, column in zip(batch.schema.names, batch.columns, strict=True):
                    texts[name] += b"\n" + fuzz_tables.bytes_of(column)
                if table == "frames":
                    numbers = {name: to_int64(batch[name]) for name in NUMBERS}
                    numbers["both"] = (numbers["class_id"] << 16) + numbers["method_id"]
                    texts["numbers"] += b"\n".join(column.astype(">i8").tobytes() for column in numbers.values())
            found += [
                f"{table}.{name}: {piece!r}" for name, text in texts.items() for piece in secrets if piece in text
            ]
        for data, captured in changed:
            blanked = redacted(login.version, data[:captured])
            found += [f"redacted: {piece!r} of {data.hex()}" for piece in secrets if piece in blanked]
        return found

    def outputs(self, wire: Wire) -> dict[str, bytes]:
        """All that leaves the decoder: bytes of each column, numbers as text and as bytes; facts."""
        found: dict[str, bytes] = {}
        segments, data = wire.arrays()
        payload = np.frombuffer(bytearray(data or b"\0"), np.uint8)
        for batches in (self.decoder.feed(FLOW, segments, payload), self.decoder.finish()):
            for batch in batches:
                rows = frame_rows(batch, ["a.pcap"], True)
                for name, column in zip(rows.schema.names, rows.columns, strict=True):
                    found[name] = found.get(name, b"") + fuzz_tables.bytes_of(column)
                numbers = batch.cells[:, [R.CODE, R.CLASS, R.METHOD_ID, R.BODY_SIZE]]
                found["numbers"] = found.get("numbers", b"") + numbers.astype(">i8").tobytes()
                ids = (numbers[:, 1] << 16) + numbers[:, 2]
                found["numbers"] += b"\n" + ids.astype(">i8").tobytes()
        found["facts"] = b"\n".join(repr(facts).encode() for facts in take_facts(self.decoder))
        return found


def redacted(version: str, data: bytes) -> bytes:
    """What `amqp_redact` hands out for a frame."""
    buffer = np.frombuffer(bytearray(data or b"\0"), np.uint8).copy()
    vouched = blank_secrets(buffer, np.array([0, len(data)], np.int64), VERSIONS.index(version))
    return buffer.tobytes() if vouched.all() else b""
