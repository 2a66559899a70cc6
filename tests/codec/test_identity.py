"""Numbers of connections and Community IDs are those that hashlib gives."""

from __future__ import annotations

import base64
import hashlib

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from codec.net.identity import IPV4_MAPPED, connection_number, name_flows, new_scratch

V4, V6 = st.binary(min_size=4, max_size=4).map(IPV4_MAPPED.__add__), st.binary(min_size=16, max_size=16)
PORTS = st.binary(min_size=2, max_size=2)
ENDS = st.one_of(*(st.tuples(st.tuples(ip, PORTS), st.tuples(ip, PORTS)).map(sorted) for ip in (V4, V6)))
SCRATCH = new_scratch()


@settings(max_examples=100, deadline=None)
@given(ENDS, st.integers(-(2**63), 2**63 - 1), st.integers(0, 2**32 - 1), st.integers(0, 5000))
def test_connection_number(ends: list[tuple[bytes, bytes]], ts_ns: int, seq: int, times: int) -> None:
    (low, low_port), (high, high_port) = ends
    flow = low + high + low_port + high_port
    named = flow + ts_ns.to_bytes(8, "big", signed=True) + seq.to_bytes(4, "big")
    named += times.to_bytes(4, "big") if times else b""
    expected = int.from_bytes(hashlib.blake2b(named, digest_size=8).digest(), "big") >> 1
    assert int(connection_number(np.frombuffer(flow, np.uint8), ts_ns, seq, times, SCRATCH)) == expected


@settings(max_examples=100, deadline=None)
@given(st.lists(ENDS, min_size=1, max_size=3), st.integers(0, 65535), st.sampled_from([6, 17, 132]))
def test_community_ids(flows: list[list[tuple[bytes, bytes]]], seed: int, protocol: int) -> None:
    """The bytes of the specification: seed, addresses, protocol, a zero, ports."""
    keys, expected = b"", []
    for (low, low_port), (high, high_port) in flows:
        keys += low + high + low_port + high_port
        mapped = low.startswith(IPV4_MAPPED) and high.startswith(IPV4_MAPPED)
        addresses = low[12:] + high[12:] if mapped else low + high
        data = seed.to_bytes(2, "big") + addresses + bytes([protocol, 0]) + low_port + high_port
        expected.append(b"1:" + base64.b64encode(hashlib.sha1(data).digest()))
    names = name_flows(np.frombuffer(keys, np.uint8).reshape(-1, 36), seed, protocol)
    assert [name.tobytes() for name in names] == expected
