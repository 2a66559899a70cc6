"""Flows to Community IDs; frames without secrets, anonymised addresses, pseudonyms."""

from __future__ import annotations

import socket

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from codec.amqp.redaction import blank_secrets
from codec.net.identity import IPPROTO_TCP, IPV4_MAPPED, flow_key, name_flows
from codec.pseudonyms import anonymise_ipv4, anonymise_ipv6, key_of, pseudonym
from udfs.arrow.types import binary_column, map_distinct_bytes
from udfs.functions.decode_functions import bytes_of, each_version

WITH_PORTS = (IPPROTO_TCP, 17, 132)  # TCP, UDP, SCTP (the Internet's protocol numbers)


def flow_id(
    ip: pa.Array,
    port: pa.Array,
    other_ip: pa.Array,
    other_port: pa.Array,
    protocol: pa.Array = None,
    seed: pa.Array = None,
) -> pa.Array:
    """Community ID, version 1, of each flow, the same for both orders of its ends; null where an address, a port, the
    protocol (TCP, UDP or SCTP by number) or the seed is invalid. Defaults: TCP, seed 0."""
    numbers = (_default(protocol, IPPROTO_TCP, ip), _default(seed, 0, ip))
    return map_distinct_bytes(_community, pa.string(), ip, port, other_ip, other_port, *numbers)


def _default(column: pa.Array, otherwise: int, like: pa.Array) -> pa.Array:
    return pa.repeat(pa.scalar(otherwise), len(like)) if column is None else column


def _community(ip: str, port: int, other_ip: str, other_port: int, protocol: int, seed: int) -> str | None:
    ends = [packed(ip), packed(other_ip)]
    short = all(0 <= number < 1 << 16 for number in (port, other_port, seed))
    if None in ends or not short or protocol not in WITH_PORTS:
        return None
    mapped = [IPV4_MAPPED + data if len(data) == 4 else data for data in ends if data]
    flow = flow_key(mapped[0] + port.to_bytes(2, "big"), mapped[1] + other_port.to_bytes(2, "big"))
    name: bytes = name_flows(np.frombuffer(flow, np.uint8)[None], seed, protocol).tobytes()
    return name.decode()


def packed(ip: str) -> bytes | None:
    """The 4 or 16 bytes of an address; None for an invalid address, or one with a zone."""
    try:
        return socket.inet_pton(socket.AF_INET6 if ":" in ip else socket.AF_INET, ip)
    except (OSError, ValueError):  # C rejects a text with a zero byte
        return None


def redact_frame(frame: pa.Array, version: pa.Array) -> pa.Array:
    """Each frame with its SASL responses and tokens replaced by asterisks, otherwise unchanged; null for bytes that
    are not one whole frame of a known method."""
    return each_version(version, [frame], _redact, pa.binary())


def _redact(version: int, frames: pa.Array) -> pa.Array:
    data, offsets = bytes_of(frames)
    return binary_column(data, offsets, blank_secrets(data, offsets, version))


def anonymise_ip(ip: pa.Array, key: pa.Array = None) -> pa.Array:
    """Each address (IPv4 or IPv6 as text) by Crypto-PAn under `key`: equal prefixes stay equal; null for an
    invalid address."""
    if key is None:
        raise ValueError(_keyless("amqp_anonymise_ip(ip, key)"))
    results = pa.nulls(len(ip), pa.string())
    for secret in key.unique():
        if secret.is_valid:
            mask = pc.and_(ip.is_valid(), pc.equal(key, secret).fill_null(False))
            results = pc.replace_with_mask(results, mask, _anonymised(ip.filter(mask), secret.as_py()))
    return results


def _anonymised(ips: pa.Array, secret: str | bytes) -> pa.Array:
    distinct = ips.dictionary_encode()
    addresses = [packed(ip) if ip is not None else None for ip in distinct.dictionary.to_pylist()]
    texts: list[str | None] = [None] * len(addresses)
    for width in (4, 16):
        rows = [i for i, data in enumerate(addresses) if data is not None and len(data) == width]
        data = np.frombuffer(b"".join(addresses[i] or b"" for i in rows), np.uint8).reshape(-1, width)
        for i, text in zip(rows, _texts(data, key_of(secret)), strict=True):
            texts[i] = text
    return pa.array(texts, pa.string()).take(distinct.indices)


def _texts(data: np.ndarray, key: bytes) -> list[str]:
    """Anonymised addresses, uint8 (n, 4 or 16), as text."""
    if data.shape[1] == 4:
        numbers = anonymise_ipv4(data.view(">u4").reshape(-1).astype(np.uint32), key)
        data, family = numbers.astype(">u4").view(np.uint8).reshape(-1, 4), socket.AF_INET
    else:
        data, family = anonymise_ipv6(data, key), socket.AF_INET6
    return [socket.inet_ntop(family, address) for address in data]


def pseudonyms(name: pa.Array, prefix: pa.Array, key: pa.Array = None) -> pa.Array:
    """'queue-3f9a2c71b0de' for each name with the prefix 'queue', the same digits for the same name under `key`."""
    if key is None:
        raise ValueError(_keyless("amqp_pseudonym(name, prefix, key)"))
    return map_distinct_bytes(lambda n, p, k: pseudonym(n, key_of(k), p), pa.string(), name, prefix, key)


def _keyless(call: str) -> str:
    return f"no key: call {call}, or register the functions with one, udfs.register(spark, key=...)"
