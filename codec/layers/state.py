"""The state of a connection's layers as a value: exported after one capture, restored with the next.

It has the secrets of the connection and is part of `ConnectionState` where that is requested (`Layers(carry=True)`):
such states must be kept as private as a key log.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from codec.amqp import rows as R
from codec.amqp.connections.connection import CONNECTION
from codec.amqp.connections.state import file_names, renumbered, stream_arrays, with_files
from codec.layers import websocket
from codec.layers.ordered import Tcp, new_tcp
from codec.layers.stretches import Layer
from codec.layers.tls import handshake
from codec.layers.tls.ciphers import cipher, keys_13
from codec.layers.tls.hello import Hello
from codec.layers.tls.records import Tls
from codec.layers.tls.suites import SUITES, TLS12
from codec.layers.websocket import WebSocket
from codec.tcp.direction import DIRECTION, MARK, PIECE

Value = Any  # of JSON
_STREAM = {"bytes": np.dtype("u1"), "marks": MARK, "pieces": PIECE, "pool": np.dtype("u1")}
_ARRAYS = {
    "connection": CONNECTION,
    "directions": DIRECTION,
    **{f"{name}{side}": kind for side in (0, 1) for name, kind in _STREAM.items()},
}
# Fields of a TLS side that are plain values; ciphers are derived from secrets again.
_PLAIN = tuple(
    field.name for field in dataclasses.fields(handshake.Side) if field.name not in ("cipher", "next_cipher", "stages")
)


def packed(value: Value) -> Value:
    """Octets as a JSON value; everything else unchanged."""
    return {"hex": bytes(value).hex()} if isinstance(value, bytes | bytearray) else value


def unpacked(value: Value) -> Value:
    """The inverse of `packed`."""
    return bytes.fromhex(value["hex"]) if isinstance(value, dict) and set(value) == {"hex"} else value


def tcp_state(tcp: Tcp, files: Sequence[str]) -> dict[str, Value]:
    """The TCP of a connection; `files`: capture files by number."""
    directions = np.array(tcp.directions)
    arrays: dict[str, np.ndarray] = {"connection": np.array(tcp.connection)}
    for side in (0, 1):
        arrays |= {f"{name}{side}": array for name, array in stream_arrays(tcp, side, directions).items()}
    arrays |= {"directions": directions, "cells": np.zeros((0, len(R.COLUMNS)), np.int64)}
    arrays, used = renumbered(arrays, files)
    return {"files": used} | {name: packed(arrays[name].tobytes()) for name in _ARRAYS}


def tcp_of(state: Mapping[str, Value], number: Callable[[str], int]) -> Tcp:
    """The inverse of `tcp_state`; `number` of a capture file here."""
    places = file_names(state["files"], number)
    arrays = {name: with_files(np.frombuffer(unpacked(state[name]), kind), places) for name, kind in _ARRAYS.items()}
    tcp = new_tcp()
    tcp.connection[:] = arrays["connection"]
    tcp.directions[:] = arrays["directions"]
    streams = []
    for side in (0, 1):
        rooms = {}
        for name in _STREAM:
            array, room = arrays[f"{name}{side}"], getattr(tcp.streams[side], name)
            if len(array) > len(room):
                room = np.zeros(2 * len(array), room.dtype)
                room = room.view(np.recarray) if name in ("marks", "pieces") else room
            room[: len(array)] = array
            rooms[name] = room
        streams.append(tcp.streams[side]._replace(**rooms))
    return tcp._replace(streams=(streams[0], streams[1]))


def _hello_state(hello: Hello | None) -> Value:
    if hello is None:
        return None
    return {
        "version": hello.version,
        "random": hello.random.hex(),
        "session": hello.session.hex(),
        "suites": hello.suites,
        "extensions": {str(kind): octets.hex() for kind, octets in hello.extensions.items()},
    }


def _hello_of(state: Value) -> Hello | None:
    if state is None:
        return None
    extensions = {int(kind): bytes.fromhex(octets) for kind, octets in state["extensions"].items()}
    random, session = bytes.fromhex(state["random"]), bytes.fromhex(state["session"])
    return Hello(state["version"], random, session, tuple(state["suites"]), extensions)


def tls_state(tls: Tls) -> dict[str, Value]:
    """A TLS layer, with its secrets."""
    sides = [
        {name: packed(getattr(side, name)) for name in _PLAIN}
        | {
            "open": side.cipher is not None,
            "next": side.next_cipher is not None,
            "stages": [packed(secret) for secret, _ in side.stages],
        }
        for side in tls.sides
    ]
    return {
        "client": tls.client,
        "secrets": {label.decode(): packed(secret) for label, secret in tls.known_secrets.items()},
        "sides": sides,
        "hellos": [_hello_state(hello) for hello in tls.hellos],
        "suite": next((number for number, suite in SUITES.items() if suite is tls.suite), None),
        "early_suite": tls.early_suite,
        "reason": tls.reason,
        "alpn": tls.alpn,
        "budget": tls.budget,
        "plain_bytes": tls.plain_bytes,
        "early": [packed(part) for part in tls.waiting_early],
        "accepted": tls.early_accepted,
        "limits": tls.limits,
    }


def tls_of(state: Mapping[str, Value]) -> Tls:
    """The inverse of `tls_state`."""
    tls = Tls(state["client"], {label.encode(): unpacked(secret) for label, secret in state["secrets"].items()})
    tls.hellos = [_hello_of(hello) for hello in state["hellos"]]
    tls.suite = None if state["suite"] is None else SUITES[state["suite"]]
    tls.early_suite, tls.reason, tls.alpn = state["early_suite"], state["reason"], state["alpn"]
    tls.budget, tls.plain_bytes = state["budget"], list(state["plain_bytes"])
    tls.waiting_early = [unpacked(part) for part in state["early"]]
    tls.early_accepted, tls.limits = state["accepted"], state["limits"]
    of_12 = tls.ciphers_12() if tls.suite is not None and tls.suite.version == TLS12 else None
    for way, (side, known) in enumerate(zip(tls.sides, state["sides"], strict=True)):
        for name in _PLAIN:
            value = unpacked(known[name])
            if isinstance(value, list):
                value = [tuple(each) for each in value]
            setattr(side, name, bytearray(value) if isinstance(getattr(side, name), bytearray) else value)
        if of_12 is not None:
            mine = of_12[0 if way == tls.client else 1]
            side.cipher, side.next_cipher = mine if known["open"] else None, mine if known["next"] else None
            continue
        suite = SUITES[state["early_suite"]] if side.early and state["early_suite"] is not None else tls.suite
        if known["open"] and suite is not None:
            side.cipher = cipher(suite, keys_13(suite, side.secret))
        if tls.suite is not None:
            secrets = [unpacked(secret) for secret in known["stages"]]
            side.stages = [(secret, cipher(tls.suite, keys_13(tls.suite, secret))) for secret in secrets]
    return tls


def websocket_state(layer: WebSocket) -> dict[str, Value]:
    """A WebSocket layer."""
    sides = [
        {field.name: packed(getattr(side, field.name)) for field in dataclasses.fields(side)} for side in layer.sides
    ]
    named = ("client", "reason", "subprotocol", "accepted", "plain_bytes")
    return {"sides": sides} | {name: getattr(layer, name) for name in named}


def websocket_of(state: Mapping[str, Value]) -> WebSocket:
    """The inverse of `websocket_state`."""
    layer = WebSocket(state["client"])
    layer.reason, layer.subprotocol = state["reason"], state["subprotocol"]
    layer.accepted, layer.plain_bytes = state["accepted"], list(state["plain_bytes"])
    sides = []
    for known in state["sides"]:
        values = {name: unpacked(value) for name, value in known.items()}
        sides.append(websocket.Side(**values | {"pending": bytearray(values["pending"])}))
    layer.sides = (sides[0], sides[1])
    return layer


def layer_state(layer: Layer) -> dict[str, Value]:
    """A layer, by its kind."""
    if isinstance(layer, Tls):
        return {"tls": tls_state(layer)}
    assert isinstance(layer, WebSocket)
    return {"websocket": websocket_state(layer)}


def holds_secrets(state: Mapping[str, Value]) -> bool:
    """Whether the state of a connection has TLS secrets."""
    return any("tls" in layer for layer in state["stack"])


def layer_of(state: Mapping[str, Value]) -> Layer:
    """The inverse of `layer_state`."""
    return tls_of(state["tls"]) if "tls" in state else websocket_of(state["websocket"])
