"""The state of a connection's layers as JSON values: saved after one capture, restored with the next.

It has the secrets of the connection and is part of `ConnectionState` only on request (`Layers(carry=True)`): keep such
states as private as a key log.
"""

from __future__ import annotations

import dataclasses
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from codec.amqp.connections.connection import CONNECTION
from codec.amqp.connections.parts import STREAM_ARRAYS, file_numbers, renumber_all, retain_used_files, stream_arrays
from codec.layers.chunks import NO_CHUNKS, Attempt, Chunks, Layer, joined
from codec.layers.deflate import Inflater
from codec.layers.ordered import Tcp, begin_anew
from codec.layers.tls import handshake
from codec.layers.tls.ciphers import Cipher, cipher, keys_13
from codec.layers.tls.handshake import Opener
from codec.layers.tls.hello import Hello
from codec.layers.tls.keylog import CLIENT_RANDOM
from codec.layers.tls.records import Tls
from codec.layers.tls.suites import SUITES
from codec.layers.websocket import SIDE, WebSocket
from codec.memory import as_records
from codec.net.segments import SEGMENT
from codec.tcp.direction import DIRECTION, MARK, PIECE, Stream, enlarged

Value = Any  # of JSON
_ARRAYS = {
    "connection": CONNECTION,
    "directions": DIRECTION,
    **{f"{name}{side}": kind for side in (0, 1) for name, kind in (
        ("bytes", np.dtype("u1")), ("marks", MARK), ("pieces", PIECE), ("pool", np.dtype("u1")),
    )},
    "held": SEGMENT,
}  # fmt: skip
# Attributes with plain values. Ciphers are derived from secrets again.
_TLS = ("early_suite", "reason", "alpn", "budget", "output_bytes", "early_accepted", "limits", "waiting_bytes")
_TLS_SIDE = tuple(
    field.name for field in dataclasses.fields(handshake.Side) if field.name not in ("cipher", "trying", "stages")
)
_WEBSOCKET = ("reason", "subprotocol", "asked", "accepted", "output_bytes", "limits", "expanded")


def to_json(value: Value) -> Value:
    """Octets as a JSON value; everything else unchanged."""
    return {"base64": b64encode(value).decode()} if isinstance(value, bytes | bytearray) else value


def from_json(value: Value) -> Value:
    """The inverse of `to_json`."""
    return b64decode(value["base64"]) if isinstance(value, dict) and set(value) == {"base64"} else value


def _set_all(layer: Layer, names: Sequence[str], state: Mapping[str, Value]) -> None:
    for name in names:
        value = state[name]
        setattr(layer, name, list(value) if isinstance(value, list) else value)


def save_tcp(tcp: Tcp, held: np.ndarray, files: Sequence[str]) -> dict[str, Value]:
    """The TCP of a connection, and `held` events of it; `files`: capture files by number."""
    directions = np.array(tcp.directions)
    arrays: dict[str, np.ndarray] = {"connection": np.array(tcp.connection), "directions": directions}
    arrays["held"] = np.array(held)
    for side in (0, 1):
        arrays |= {f"{name}{side}": array for name, array in stream_arrays(tcp, side, directions).items()}
    arrays, used = retain_used_files(arrays, files)
    return {"files": used} | {name: to_json(arrays[name].tobytes()) for name in _ARRAYS}


def restore_tcp(state: Mapping[str, Value], number: Callable[[str], int], tcp: Tcp) -> tuple[Tcp, np.ndarray]:
    """The inverse of `save_tcp`, in the arrays of `tcp`; `number` gives the number of a capture file."""
    arrays = {name: np.frombuffer(from_json(state[name]), kind) for name, kind in _ARRAYS.items()}
    arrays = renumber_all(arrays, file_numbers(state["files"], number))
    begin_anew(tcp)
    tcp.connection[:] = arrays["connection"]
    tcp.directions[:] = arrays["directions"]
    streams = []
    for side in (0, 1):
        room = {}
        for name in STREAM_ARRAYS:
            array, room[name] = arrays[f"{name}{side}"], getattr(tcp.streams[side], name)
            while len(array) > len(room[name]):
                room[name] = enlarged(room[name])
            room[name][: len(array)] = array
        streams.append(Stream(**room))
    return tcp._replace(streams=(streams[0], streams[1])), as_records(arrays["held"])


def _save_hello(hello: Hello | None) -> Value:
    if hello is None:
        return None
    extensions = {str(kind): octets.hex() for kind, octets in hello.extensions.items()}
    return [hello.version, hello.random.hex(), hello.session.hex(), hello.suites, extensions]


def _restore_hello(state: Value) -> Hello | None:
    if state is None:
        return None
    version, random, session, suites, extensions = state
    found = {int(kind): bytes.fromhex(octets) for kind, octets in extensions.items()}
    return Hello(version, bytes.fromhex(random), bytes.fromhex(session), tuple(suites), found)


def save_tls(tls: Tls) -> dict[str, Value]:
    """A TLS layer, with its secrets."""
    sides = [
        {name: to_json(getattr(side, name)) for name in _TLS_SIDE}
        | {
            "open": side.cipher is not None,
            "trying": _save_stage(side.trying),
            "stages": [_save_stage(stage) for stage in side.stages],
        }
        for side in tls.sides
    ]
    return {
        "client": tls.client,
        "secrets": {label.decode(): [secret.hex() for secret in secrets] for label, secrets in tls.secrets.items()},
        "sides": sides,
        "hellos": [_save_hello(hello) for hello in tls.hellos],
        "suite": next((code for code, suite in SUITES.items() if suite is tls.suite), None),
        "early": [to_json(part) for part in tls.waiting_early],
        **{name: getattr(tls, name) for name in _TLS},
    }


def _save_stage(stage: Sequence[Opener]) -> Value:
    return [[opener.label.decode(), opener.secret.hex()] for opener in stage]


def restore_tls(state: Mapping[str, Value]) -> Tls:
    """The inverse of `save_tls`."""
    secrets = {
        label.encode(): tuple(bytes.fromhex(secret) for secret in candidates)
        for label, candidates in state["secrets"].items()
    }
    tls = Tls(state["client"], secrets)
    _set_all(tls, _TLS, state)
    tls.hellos = [_restore_hello(hello) for hello in state["hellos"]]
    tls.suite = None if state["suite"] is None else SUITES[state["suite"]]
    waiting = [from_json(part) for part in state["early"]]
    tls.waiting_early = [part if isinstance(part, int) else bytearray(part) for part in waiting]
    for direction, (side, known) in enumerate(zip(tls.sides, state["sides"], strict=True)):
        for name in _TLS_SIDE:
            value = from_json(known[name])
            if isinstance(value, list):
                value = [tuple(each) for each in value]
            setattr(side, name, bytearray(value) if isinstance(getattr(side, name), bytearray) else value)
        side.trying = _restore_stage(tls, direction, known["trying"])
        side.stages = [_restore_stage(tls, direction, stage) for stage in known["stages"]]
        if known["open"]:
            side.cipher = _restore_cipher(tls, direction, side)
    return tls


def _restore_stage(tls: Tls, direction: int, stage: Value) -> list[Opener]:
    return [
        opener for label, secret in stage for opener in tls.openers(direction, label.encode(), [bytes.fromhex(secret)])
    ]


def _restore_cipher(tls: Tls, direction: int, side: handshake.Side) -> Cipher:
    """The cipher that has authenticated records of a direction."""
    if side.early and tls.early_suite is not None:
        suite = SUITES[tls.early_suite]
        return cipher(suite, keys_13(suite, side.secret))
    (opener,) = tls.openers(direction, CLIENT_RANDOM, [side.secret])
    return opener.cipher


def save_websocket(layer: WebSocket) -> dict[str, Value]:
    """A WebSocket layer."""
    held = [layer.held[side, : layer.state["held"][side]].tobytes() for side in (0, 1)]
    inflaters = [_all_to_json(each.state()) if each is not None else None for each in layer.inflaters]
    return {
        "client": layer.client,
        "state": to_json(layer.state.tobytes()),
        "held": [to_json(octets) for octets in held],
        "inflaters": inflaters,
        **{name: getattr(layer, name) for name in _WEBSOCKET},
    }


def restore_websocket(state: Mapping[str, Value]) -> WebSocket:
    """The inverse of `save_websocket`."""
    layer = WebSocket(state["client"])
    _set_all(layer, _WEBSOCKET, state)
    layer.state[:] = np.frombuffer(from_json(state["state"]), SIDE)
    for side, octets in enumerate(map(from_json, state["held"])):
        layer.held[side, : len(octets)] = np.frombuffer(octets, np.uint8)
    layer.inflaters = [
        Inflater.restore({name: from_json(value) for name, value in each.items()}) if each is not None else None
        for each in state["inflaters"]
    ]
    return layer


def _all_to_json(values: Mapping[str, Value]) -> dict[str, Value]:
    return {name: to_json(value) for name, value in values.items()}


def save_layer(layer: Layer) -> dict[str, Value]:
    """A layer, by its kind."""
    if isinstance(layer, Tls):
        return {"tls": save_tls(layer)}
    assert isinstance(layer, WebSocket)
    return {"websocket": save_websocket(layer)}


def holds_secrets(state: Mapping[str, Value]) -> bool:
    """Whether the state of a connection has TLS secrets."""
    return any("tls" in attempt["layer"] for attempt in state["stack"])


def restore_layer(state: Mapping[str, Value]) -> Layer:
    """The inverse of `save_layer`."""
    return restore_tls(state["tls"]) if "tls" in state else restore_websocket(state["websocket"])


def save_attempt(attempt: Attempt) -> dict[str, Value]:
    """A layer and its input that waits (`codec.layers.connection.Attempt`)."""
    waiting = None
    if attempt.waiting is not None:
        chunks = joined(NO_CHUNKS, *attempt.waiting)
        waiting = [column.tolist() for column in chunks[:4]] + [to_json(chunks.octets.tobytes())]
    return {"layer": save_layer(attempt.layer), "waiting": waiting, "cost": attempt.cost, "passes": attempt.passes}


def restore_attempt(state: Mapping[str, Value]) -> Attempt:
    """The inverse of `save_attempt`."""
    waiting = None
    if state["waiting"] is not None:
        *columns, octets = state["waiting"]
        waiting = [Chunks._make([*np.array(columns, np.int64), np.frombuffer(from_json(octets), np.uint8)])]
    return Attempt(restore_layer(state["layer"]), waiting, state["cost"], state["passes"])
