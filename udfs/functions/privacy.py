"""Data that is safe to share: frames without their secrets, anonymised addresses, pseudonyms of names."""

from __future__ import annotations

import socket

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from codec.amqp.redaction import blank_secrets
from codec.pseudonyms import anonymise_ipv4, anonymise_ipv6, key_of, pseudonym
from udfs.functions.columns import binary_of, by_distinct, each_version, octets_of
from udfs.functions.naming import packed


def redact_frame(frame: pa.Array, version: pa.Array) -> pa.Array:
    """Each frame with its SASL responses and tokens replaced by asterisks, otherwise unchanged; null for octets that
    are not one whole frame of a known method."""
    return each_version(version, [frame], _redact, pa.binary())


def _redact(version: int, frames: pa.Array) -> pa.Array:
    octets = octets_of(frames)
    return binary_of(octets, blank_secrets(*octets, version))


def anonymise_ip(ip: pa.Array, key: pa.Array = None) -> pa.Array:
    """Each address (IPv4 or IPv6 as text) by Crypto-PAn under `key`: equal prefixes stay equal; null for an
    invalid address."""
    if key is None:
        raise ValueError(_keyless("amqp_anonymise_ip(ip, key)"))
    results = pa.nulls(len(ip), pa.string())
    for secret in key.unique():
        if secret.is_valid:
            chosen = pc.and_(ip.is_valid(), pc.equal(key, secret).fill_null(False))
            results = pc.replace_with_mask(results, chosen, _anonymised(ip.filter(chosen), secret.as_py()))
    return results


def _anonymised(ips: pa.Array, secret: str | bytes) -> pa.Array:
    distinct = ips.dictionary_encode()
    addresses = [packed(ip) if ip is not None else None for ip in distinct.dictionary.to_pylist()]
    shown: list[str | None] = [None] * len(addresses)
    for width in (4, 16):
        places = [i for i, octets in enumerate(addresses) if octets is not None and len(octets) == width]
        held = np.frombuffer(b"".join(addresses[i] or b"" for i in places), np.uint8).reshape(-1, width)
        for i, text in zip(places, _texts(held, key_of(secret)), strict=True):
            shown[i] = text
    return pa.array(shown, pa.string()).take(distinct.indices)


def _texts(octets: np.ndarray, key: bytes) -> list[str]:
    """Anonymised addresses, uint8 (n, 4 or 16), as text."""
    if octets.shape[1] == 4:
        numbers = anonymise_ipv4(octets.view(">u4").reshape(-1).astype(np.uint32), key)
        octets, family = numbers.astype(">u4").view(np.uint8).reshape(-1, 4), socket.AF_INET
    else:
        octets, family = anonymise_ipv6(octets, key), socket.AF_INET6
    return [socket.inet_ntop(family, address) for address in octets]


def pseudonyms(name: pa.Array, prefix: pa.Array, key: pa.Array = None) -> pa.Array:
    """'queue-3f9a2c71b0de' for each name with the prefix 'queue', the same digits for the same name under `key`."""
    if key is None:
        raise ValueError(_keyless("amqp_pseudonym(name, prefix, key)"))
    return by_distinct([name, prefix, key], lambda n, p, k: pseudonym(n, key_of(k), p), pa.string())


def _keyless(call: str) -> str:
    return f"no key: call {call}, or register the functions with one, udfs.register(spark, key=...)"
