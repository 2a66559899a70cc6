"""Runs and packets from kernels as Arrow record batches of bounded size, without a Python object per packet."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from ipaddress import IPv6Address

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from codec.net.protocols import TCP, skip_name, tunnel_name
from codec.net.runs import Runs, first_of, gather_payloads, group_flows
from codec.net.segments import FLOW_KEY_BYTES, SEGMENT
from udfs.source.splits import Account, Block

BATCH_BYTES = 16 * 1024 * 1024  # of one record batch, which is in the memory of the JVM twice
ROW_BYTES = 160  # of a packet row without file name and payload
IP_BYTES = 16

RUNS_SCHEMA = pa.schema(
    [
        ("flow", pa.binary()),
        ("order_ns", pa.int64()),
        ("capture_file", pa.string()),
        ("first_packet_no", pa.int64()),
        ("segments", pa.binary()),
        ("payload", pa.binary()),
        ("account", pa.string()),
    ]
)

PACKETS_SCHEMA = pa.schema(
    [
        ("capture_file", pa.string()),
        ("packet_no", pa.int64()),
        ("ts", pa.timestamp("us", tz="UTC")),
        ("ts_ns", pa.int64()),
        ("link_type", pa.int32()),
        ("packet_len", pa.int64()),
        ("captured_len", pa.int64()),
        ("encapsulation", pa.string()),
        ("src_ip", pa.string()),
        ("src_port", pa.int32()),
        ("dst_ip", pa.string()),
        ("dst_port", pa.int32()),
        ("tcp_flags", pa.int32()),
        ("seq", pa.int64()),
        ("ack", pa.int64()),
        ("window", pa.int32()),
        ("wire_len", pa.int64()),
        ("cap_len", pa.int64()),
        ("payload", pa.binary()),
        ("skipped", pa.string()),
        ("error", pa.string()),
    ]
)


def run_batches(runs: Runs, capture_file: str, refer: bool = False) -> Iterator[pa.RecordBatch]:
    """TCP_RUNS rows, in batches of about BATCH_BYTES; payload is null if they `refer` to the file."""
    first = runs.segments[runs.segment_offsets[:-1]]
    count = len(first)
    batch = pa.record_batch(
        [
            _binary(runs.keys, np.arange(count + 1) * FLOW_KEY_BYTES),
            pa.array(first["order_ns"]),
            pa.repeat(capture_file, count),
            pa.array(first["packet_no"]),
            _binary(runs.segments, runs.segment_offsets * SEGMENT.itemsize),
            _binary(runs.payload, runs.payload_offsets, np.full(count, refer)),
            pa.nulls(count, pa.string()),
        ],
        schema=RUNS_SCHEMA,
    )
    yield from _bounded(batch, np.diff(runs.segment_offsets) * SEGMENT.itemsize + np.diff(runs.payload_offsets))


def account_batch(account: Account) -> pa.RecordBatch:
    """The TCP_RUNS row with the account of a split."""
    row = {"capture_file": account.capture_file, "account": account.to_json()}
    return pa.RecordBatch.from_pylist([row], RUNS_SCHEMA)


def packet_batches(block: Block, capture_file: str, keep: NDArray[np.bool_] | None) -> Iterator[pa.RecordBatch]:
    """Rows of `pcap`, in batches of about BATCH_BYTES; of all packets, or only where `keep` is true."""
    records, (segments, keys, skip, tunnels, *_) = block.records, block.packets
    if keep is not None:
        records, segments, keys, skip, tunnels = records[keep], segments[keep], keys[keep], skip[keep], tunnels[keep]
    none = skip != TCP
    payload, offsets = gather_payloads(block.octets, segments)
    source, target = _addresses(keys, segments["direction"])
    low = (keys[:, 32].astype(np.int32) << 8) | keys[:, 33]
    high = (keys[:, 34].astype(np.int32) << 8) | keys[:, 35]
    from_high = segments["direction"] == 1
    ts_ns = np.ascontiguousarray(segments["ts_ns"])
    columns = {
        "capture_file": pa.repeat(capture_file, len(skip)),
        "packet_no": pa.array(np.ascontiguousarray(segments["packet_no"])),
        "ts": pa.array(ts_ns // 1000).cast(PACKETS_SCHEMA.field("ts").type),
        "ts_ns": pa.array(ts_ns),
        "link_type": pa.array(np.ascontiguousarray(records["link_type"]), mask=records["link_type"] < 0),
        "packet_len": pa.array(np.ascontiguousarray(records["wire_len"])),
        "captured_len": pa.array(np.ascontiguousarray(records["cap_len"])),
        "encapsulation": _encapsulations(tunnels),
        "src_ip": source,
        "src_port": pa.array(np.where(from_high, high, low), mask=none),
        "dst_ip": target,
        "dst_port": pa.array(np.where(from_high, low, high), mask=none),
        "payload": _binary(payload, offsets, none),
        "skipped": _skip_names(skip),
        "error": pa.nulls(len(skip), pa.string()),
    }
    for name, field in (("tcp_flags", "flags"), ("seq", "seq"), ("ack", "ack"), ("window", "window")):
        columns[name] = pa.array(segments[field].astype(np.int64), mask=none).cast(PACKETS_SCHEMA.field(name).type)
    for name in ("wire_len", "cap_len"):
        columns[name] = pa.array(segments[name].astype(np.int64), mask=none)
    batch = pa.record_batch([columns[name] for name in PACKETS_SCHEMA.names], schema=PACKETS_SCHEMA)
    yield from _bounded(batch, np.diff(offsets) + ROW_BYTES + len(capture_file))


def error_batch(account: Account) -> pa.RecordBatch:
    """The row of `pcap` with the error of a file."""
    return pa.RecordBatch.from_pylist([{"capture_file": account.capture_file, "error": account.error}], PACKETS_SCHEMA)


def _binary(data: NDArray[np.generic], offsets: NDArray[np.int64], none: NDArray[np.bool_] | None = None) -> pa.Array:
    """A binary column over the bytes of `data`, zero-copy; null where `none`."""
    valid = None if none is None else pa.array(~none).buffers()[1]
    buffers = [valid, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), len(offsets) - 1, buffers)


def _addresses(keys: NDArray[np.uint8], direction: NDArray[np.uint8]) -> tuple[pa.Array, pa.Array]:
    """Text of the source and target addresses; each distinct pair is formatted once."""
    pair_of, pairs = group_flows(keys, np.zeros(len(keys), np.int32))
    distinct = keys[first_of(pair_of, pairs)]
    texts = pa.array(
        [_text(row[at : at + IP_BYTES].tobytes(), bool(row.any())) for row in distinct for at in (0, 16)], pa.string()
    )
    source = 2 * pair_of + direction
    return texts.take(pa.array(source)), texts.take(pa.array(source ^ 1))


@cache
def _text(octets: bytes, known: bool) -> str | None:
    """Text of an address; None for a packet without an IP header."""
    if not known:
        return None
    address = IPv6Address(octets)
    return str(address.ipv4_mapped or address)


def _encapsulations(tunnels: NDArray[np.int64]) -> pa.Array:
    """Encapsulations of packets, outermost first; null: none. Each distinct stack is formatted once."""
    wrapped = tunnels[:, 0] != 0
    stacks, index = np.unique(tunnels[wrapped], axis=0, return_inverse=True)
    names = pa.array(
        [" / ".join(tunnel_name(int(tunnel)) for tunnel in stack if tunnel) for stack in stacks], pa.string()
    )
    places = np.zeros(len(tunnels), np.int64)
    places[wrapped] = index.reshape(-1)
    return names.take(pa.array(places, mask=~wrapped))


def _skip_names(skip: NDArray[np.int32]) -> pa.Array:
    codes, index = np.unique(skip, return_inverse=True)
    return pa.array([None if code == TCP else skip_name(int(code)) for code in codes], pa.string()).take(
        pa.array(index)
    )


def _bounded(batch: pa.RecordBatch, sizes: NDArray[np.int64]) -> Iterator[pa.RecordBatch]:
    """Slices of `batch` that hold about BATCH_BYTES each; `sizes` are the bytes of its rows."""
    if not len(sizes):
        return
    part = np.cumsum(sizes) // BATCH_BYTES
    starts = np.flatnonzero(np.diff(part, prepend=-1))
    for start, end in zip(starts, [*starts[1:], len(sizes)], strict=True):
        yield batch.slice(start, end - start)
