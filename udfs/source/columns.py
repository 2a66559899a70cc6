"""Runs and packets from kernels as Arrow record batches of bounded size, without a Python object per packet."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from functools import cache
from ipaddress import IPv6Address

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from codec.net.identity import IP_BYTES, IPV4_MAPPED, MAPPED_BYTES
from codec.net.protocols import TCP, skip_name, tunnel_name
from codec.net.runs import Runs, first_of, gather_payloads, group_flows
from codec.net.segments import FLOW_KEY_BYTES, SEGMENT
from udfs.arrow.dictionaries import each_once
from udfs.arrow.rows import stretches
from udfs.arrow.types import arrow_schema, binary_column
from udfs.decode.processes import SIGHTING, sightings_of
from udfs.schemas import PACKETS, TCP_RUNS
from udfs.source.splits import Account, Block

BATCH_BYTES = 16 * 1024 * 1024  # of one record batch, which is in the memory of the JVM twice
ROW_BYTES = 160  # of a packet row without file name and payload
IPV4_COMPATIBLE = bytes(MAPPED_BYTES)

RUNS_SCHEMA, PACKETS_SCHEMA = arrow_schema(TCP_RUNS), arrow_schema(PACKETS)


def run_batches(
    runs: Runs, capture_file: str, refer: bool = False, block: Block | None = None
) -> Iterator[pa.RecordBatch]:
    """TCP_RUNS rows, in batches of about BATCH_BYTES; payload is null if they `refer` to the file. `block`: the one
    that they are made of, if processes are wanted."""
    first = runs.segments[runs.segment_offsets[:-1]]
    count = len(first)
    batch = pa.record_batch(
        [
            binary_column(runs.keys, np.arange(count + 1) * FLOW_KEY_BYTES),
            pa.array(first["order_ns"]),
            pa.repeat(capture_file, count),
            pa.array(first["packet_no"]),
            binary_column(runs.segments, runs.segment_offsets * SEGMENT.itemsize),
            binary_column(runs.payload, runs.payload_offsets, np.full(count, not refer)),
            pa.nulls(count, pa.string()),
            *_processes(runs, block),
        ],
        schema=RUNS_SCHEMA,
    )
    yield from _bounded(batch, np.diff(runs.segment_offsets) * SEGMENT.itemsize + np.diff(runs.payload_offsets))


def _processes(runs: Runs, block: Block | None) -> tuple[pa.Array, pa.Array]:
    """The columns of TCP_RUNS about the processes of packets of a block."""
    kinds = [RUNS_SCHEMA.field(name).type for name in ("processes", "sightings")]
    count = len(runs.keys)
    chosen = np.flatnonzero(block.process_of * (block.packets.skip == TCP)) if block and len(block.process_of) else ()
    if block is None or not len(chosen):
        return pa.nulls(count, kinds[0]), pa.nulls(count, kinds[1])
    run_of = np.repeat(np.arange(count), np.diff(runs.segment_offsets))
    order = np.argsort(runs.segments["packet_no"], kind="stable")
    places = np.searchsorted(runs.segments["packet_no"][order], block.packets.segments["packet_no"][chosen])
    found = sightings_of(run_of[order[places]], block.process_of[chosen], block.packets.segments[chosen])
    distinct, index = np.unique(found.numbers, return_inverse=True)
    texts = pa.array([json.dumps(block.processes[number - 1]) for number in distinct.tolist()], pa.string())
    of_run = np.append(0, np.cumsum(np.bincount(found.runs, minlength=count)))
    valid = np.diff(of_run) > 0
    offsets = pa.array(of_run.astype(np.int32), mask=np.append(~valid, False))
    sizes = np.append(0, np.cumsum(np.bincount(found.sighting_runs, minlength=count)))
    return (
        pa.ListArray.from_arrays(offsets, texts.take(pa.array(index))).cast(kinds[0]),
        binary_column(found.sightings, sizes * SIGHTING.itemsize, valid),
    )


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
        "payload": binary_column(payload, offsets, ~none),
        "skipped": each_once(skip_name, skip, pa.string(), none),
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


def _addresses(keys: NDArray[np.uint8], direction: NDArray[np.uint8]) -> tuple[pa.Array, pa.Array]:
    """Text of the source and target addresses; each distinct pair is formatted once."""
    pair_of, pairs = group_flows(keys, np.zeros(len(keys), np.int32))
    distinct = keys[first_of(pair_of, pairs)]
    texts = pa.array(
        [
            address_text(row[at : at + IP_BYTES].tobytes()) if row.any() else None  # None: no IP header
            for row in distinct
            for at in (0, IP_BYTES)
        ],
        pa.string(),
    )
    source = 2 * pair_of + direction
    return texts.take(pa.array(source)), texts.take(pa.array(source ^ 1))


@cache
def address_text(octets: bytes) -> str:
    """The usual text of a 16-octet address; IPv4 ones are mapped (RFC 4291 section 2.5.5.2)."""
    if octets.startswith(IPV4_MAPPED):
        return socket.inet_ntop(socket.AF_INET, octets[MAPPED_BYTES:])
    if octets.startswith(IPV4_COMPATIBLE):  # inet_ntop would write its end in decimal (RFC 5952 section 5)
        return str(IPv6Address(octets))
    return socket.inet_ntop(socket.AF_INET6, octets)


def _encapsulations(tunnels: NDArray[np.int64]) -> pa.Array:
    """Encapsulations of packets, outermost first; null: none."""

    def names(stack: list[int]) -> str:
        return " / ".join(tunnel_name(tunnel) for tunnel in stack if tunnel)

    return each_once(names, tunnels, pa.string(), tunnels[:, 0] != 0)


def _bounded(batch: pa.RecordBatch, sizes: NDArray[np.int64]) -> Iterator[pa.RecordBatch]:
    """Slices of `batch` that hold about BATCH_BYTES each; `sizes` are the bytes of its rows."""
    for start, end in stretches(np.cumsum(sizes) // BATCH_BYTES):
        yield batch.slice(start, end - start)
