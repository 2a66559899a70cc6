"""Runs and packets from kernels as Arrow record batches of bounded size, without a Python object per packet."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from ipaddress import IPv6Address
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from codec.net.headers import TCP, skip_name, tunnel_name
from codec.net.identity import IP_BYTES, IPV4_MAPPED, MAPPED_BYTES
from codec.net.layers import FLOW_KEY_BYTES, SEGMENT
from codec.net.runs import Runs, first_of, gather_payloads, group_flows
from codec.tables import PACKETS, TCP_RUNS
from udfs.arrow.arrays import equal_runs
from udfs.arrow.types import arrow_schema, binary_column, map_distinct
from udfs.source.connection_processes import SIGHTING, sightings_of
from udfs.source.splits import Account, Block

BATCH_BYTES = 16 * 1024 * 1024  # of one record batch, which is in the memory of the JVM twice
ROW_BYTES = 160  # of a packet row without file name and payload
FLOW_PORTS = 2 * IP_BYTES  # where the ports begin in a flow key
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
    rows = np.flatnonzero(block.process_of * (block.packets.skip == TCP)) if block and len(block.process_of) else ()
    if block is None or not len(rows):
        return pa.nulls(count, kinds[0]), pa.nulls(count, kinds[1])
    run_of = np.repeat(np.arange(count), np.diff(runs.segment_offsets))
    order = np.argsort(runs.segments["packet_no"], kind="stable")
    indices = np.searchsorted(runs.segments["packet_no"][order], block.packets.segments["packet_no"][rows])
    found = sightings_of(run_of[order[indices]], block.process_of[rows], block.packets.segments[rows])
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


def packet_batches(
    block: Block, capture_file: str, keep: NDArray[np.bool_] | None, names: Sequence[str] = PACKETS_SCHEMA.names
) -> Iterator[pa.RecordBatch]:
    """Rows of `pcap` with the columns `names`, in batches of about BATCH_BYTES; of all packets, or only where `keep` is
    true."""
    records, (segments, keys, skip, tunnels, *_) = block.records, block.packets
    if keep is not None:
        records, segments, keys, skip, tunnels = records[keep], segments[keep], keys[keep], skip[keep], tunnels[keep]
    none = skip != TCP
    sizes = np.zeros(len(skip), np.int64)
    columns = dict[str, pa.Array]()
    if "payload" in names:
        payload, offsets = gather_payloads(block.data, segments)
        columns["payload"], sizes = binary_column(payload, offsets, ~none), np.diff(offsets)
    if "src_ip" in names or "dst_ip" in names:
        columns["src_ip"], columns["dst_ip"] = _addresses(keys, segments["direction"])
    others: Mapping[str, Callable[[], pa.Array]] = {
        "capture_file": lambda: pa.repeat(capture_file, len(skip)),
        "ts": lambda: pa.array(segments["ts_ns"] // 1000),
        "link_type": lambda: pa.array(np.ascontiguousarray(records["link_type"]), mask=records["link_type"] < 0),
        "encapsulation": lambda: _encapsulations(tunnels),
        "skipped": lambda: map_distinct(skip_name, skip, pa.string(), none),
        "error": lambda: pa.nulls(len(skip), pa.string()),
    }
    for name in names:
        if name in NUMBERS:
            values = NUMBERS[name](records, segments, keys)
            columns[name] = pa.array(values, mask=none if name in OF_SEGMENTS else None)
        elif name not in columns:
            columns[name] = others[name]()
    schema = pa.schema([PACKETS_SCHEMA.field(name) for name in names])
    batch = pa.record_batch([columns[name].cast(schema.field(name).type) for name in names], schema=schema)
    yield from _bounded(batch, sizes + ROW_BYTES + len(capture_file))


def _port(keys: NDArray[np.uint8], of_low: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Ports of the low side of the flow keys, or of the high side."""
    at = np.where(of_low, FLOW_PORTS, FLOW_PORTS + 2)
    rows = np.arange(len(keys))
    ports: NDArray[np.int64] = 256 * keys[rows, at].astype(np.int64) + keys[rows, at + 1]
    return ports


Numbers = Callable[[NDArray[Any], NDArray[Any], NDArray[np.uint8]], NDArray[np.int64]]
# Columns of numbers, from records, segments and flow keys; those of OF_SEGMENTS are null without TCP.
NUMBERS: Mapping[str, Numbers] = {
    "packet_no": lambda records, segments, keys: segments["packet_no"].astype(np.int64),
    "ts_ns": lambda records, segments, keys: segments["ts_ns"].astype(np.int64),
    "packet_len": lambda records, segments, keys: records["wire_len"].astype(np.int64),
    "captured_len": lambda records, segments, keys: records["cap_len"].astype(np.int64),
    "src_port": lambda records, segments, keys: _port(keys, segments["direction"] == 0),
    "dst_port": lambda records, segments, keys: _port(keys, segments["direction"] == 1),
    "tcp_flags": lambda records, segments, keys: segments["flags"].astype(np.int64),
    "seq": lambda records, segments, keys: segments["seq"].astype(np.int64),
    "ack": lambda records, segments, keys: segments["ack"].astype(np.int64),
    "window": lambda records, segments, keys: segments["window"].astype(np.int64),
    "wire_len": lambda records, segments, keys: segments["wire_len"].astype(np.int64),
    "cap_len": lambda records, segments, keys: segments["cap_len"].astype(np.int64),
}
OF_SEGMENTS = ("src_port", "dst_port", "tcp_flags", "seq", "ack", "window", "wire_len", "cap_len")

COMPARISONS: Mapping[str, Callable[[NDArray[np.int64], Any], NDArray[np.bool_]]] = {
    "EqualTo": np.equal,
    "GreaterThan": np.greater,
    "GreaterThanOrEqual": np.greater_equal,
    "LessThan": np.less,
    "LessThanOrEqual": np.less_equal,
    "In": lambda values, wanted: np.isin(values, np.array(wanted, np.int64)),
}


class Condition(NamedTuple):
    """That a number of NUMBERS compares with `value` as COMPARISONS has it, or does not (`negated`); false where it is
    null."""

    column: str
    comparison: str
    value: int | list[int]
    negated: bool = False


def matches(block: Block, conditions: Iterable[Condition]) -> NDArray[np.bool_]:
    """Which packets of a block meet all conditions."""
    segments, keys, skip, *_ = block.packets
    found = np.ones(len(skip), np.bool_)
    for column, comparison, value, negated in conditions:
        found &= COMPARISONS[comparison](NUMBERS[column](block.records, segments, keys), value) != negated
        if column in OF_SEGMENTS:
            found &= skip == TCP
    return found


def error_batch(account: Account, names: Sequence[str] = PACKETS_SCHEMA.names) -> pa.RecordBatch:
    """The row of `pcap` with the error of a file."""
    row = {"capture_file": account.capture_file, "error": account.error}
    return pa.RecordBatch.from_pylist([row], PACKETS_SCHEMA).select(list(names))


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
def address_text(data: bytes) -> str:
    """The usual text of a 16-byte address; IPv4 ones are mapped (RFC 4291 section 2.5.5.2)."""
    if data.startswith(IPV4_MAPPED):
        return socket.inet_ntop(socket.AF_INET, data[MAPPED_BYTES:])
    if data.startswith(IPV4_COMPATIBLE):  # inet_ntop would write its end in decimal (RFC 5952 section 5)
        return str(IPv6Address(data))
    return socket.inet_ntop(socket.AF_INET6, data)


def _encapsulations(tunnels: NDArray[np.int64]) -> pa.Array:
    """Encapsulations of packets, outermost first; null: none."""

    def names(stack: list[int]) -> str:
        return " / ".join(tunnel_name(tunnel) for tunnel in stack if tunnel)

    return map_distinct(names, tunnels, pa.string(), tunnels[:, 0] != 0)


def _bounded(batch: pa.RecordBatch, sizes: NDArray[np.int64]) -> Iterator[pa.RecordBatch]:
    """Slices of `batch` that hold about BATCH_BYTES each; `sizes` are the bytes of its rows."""
    for start, end in equal_runs(np.cumsum(sizes) // BATCH_BYTES):
        yield batch.slice(start, end - start)
