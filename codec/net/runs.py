"""TCP segments -> runs: consecutive segments of one flow, both directions, with their payloads end to end.

Runs are shuffled instead of single packets. The boundaries between runs change nothing for a reader that takes the
segments in order. Flows are found with a hash table, in order of appearance, so runs are ordered by their first packet
and segments remain in file order. Cost: linear in segments and payload bytes; the table has random multipliers, since
addresses and ports are what strangers choose.
"""

from __future__ import annotations

import secrets
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from codec.capture.records import Bytes
from codec.compiler.kernel import njit
from codec.compiler.limits import LIMITS
from codec.cursor import byte_at, u32
from codec.net.headers import TCP
from codec.net.layers import FLOW_KEY_BYTES, SEGMENT, Packets

MULTIPLIER_BITS = 31  # a product with 32 bits stays inside 63


class Runs(NamedTuple):
    """Runs of one block. Offsets have one entry more than there are runs: run i is [offsets[i], offsets[i + 1]).

    keys: uint8 (runs, 36), flow keys. segments: SEGMENT, run after run; `payload_at` counts from the beginning of the
    run's payload. segment_offsets: int64, into `segments`. payload: uint8, captured payloads, run after run; empty
    where runs refer to the file. payload_offsets: int64, into `payload`.
    """

    keys: NDArray[np.uint8]
    segments: NDArray[np.void]
    segment_offsets: NDArray[np.int64]
    payload: Bytes
    payload_offsets: NDArray[np.int64]


def gather_runs(
    block: Bytes, packets: Packets, run_bytes: int = LIMITS.run_bytes, run_segments: int = LIMITS.run_segments
) -> Runs:
    """Runs of at most `run_bytes` payload bytes (more only for a single larger segment) and `run_segments` segments.

    Packets whose `skip` is not TCP are omitted; payloads are copied from `block`.
    """
    flow_of, flows = group_flows(packets.keys, packets.skip)
    run_of, flow_of_run, counts, sizes = _cut(packets.segments, flow_of, flows, run_bytes, run_segments)
    segment_offsets = np.concatenate([[0], np.cumsum(counts)])
    payload_offsets = np.concatenate([[0], np.cumsum(sizes)])
    segments = np.empty(segment_offsets[-1], SEGMENT)
    payload = np.empty(payload_offsets[-1], np.uint8)
    _gather(block, packets.segments, run_of, segment_offsets, payload_offsets, segments, payload)
    return Runs(
        packets.keys[first_of(flow_of, flows)][flow_of_run], segments, segment_offsets, payload, payload_offsets
    )


def refer_runs(
    packets: Packets, offset: int, run_bytes: int = LIMITS.run_bytes, run_segments: int = LIMITS.run_segments
) -> Runs:
    """As `gather_runs`, but without payloads: `payload_at` counts from the beginning of the file, of which the block of
    these packets begins at `offset`."""
    flow_of, flows = group_flows(packets.keys, packets.skip)
    run_of, flow_of_run, counts, _ = _cut(packets.segments, flow_of, flows, run_bytes, run_segments)
    segments = packets.segments[np.argsort(run_of, kind="stable")[np.count_nonzero(run_of < 0) :]]
    segments["payload_at"] += offset
    return Runs(
        packets.keys[first_of(flow_of, flows)][flow_of_run],
        segments,
        np.concatenate([[0], np.cumsum(counts)]),
        np.empty(0, np.uint8),
        np.zeros(len(counts) + 1, np.int64),
    )


def gather_payloads(
    block: Bytes, segments: NDArray[np.void], payload: Bytes | None = None
) -> tuple[Bytes, NDArray[np.int64]]:
    """Captured payloads of SEGMENTs that point into `block`, end to end (uint8, in `payload` if given), and their n + 1
    offsets (int64)."""
    offsets = np.concatenate([[0], np.cumsum(segments["cap_len"].astype(np.int64))])
    payload = np.empty(offsets[-1], np.uint8) if payload is None else payload
    data = block.view()
    data.flags.writeable = False  # those of Arrow are, and kernels are compiled for one kind of array
    _gather_payloads(data, segments, offsets, payload)
    return payload, offsets


def group_flows(keys: NDArray[np.uint8], skip: NDArray[np.int32]) -> tuple[NDArray[np.int32], int]:
    """Number the distinct rows of `keys` by first appearance, -1 where `skip` is not TCP; and the number of them."""
    slots = 16
    while slots < 2 * len(keys):
        slots *= 2
    flow_of = np.empty(len(keys), np.int32)
    return flow_of, int(_group(keys, skip, np.full(slots, -1, np.int32), flow_of, _multiplier(), _multiplier()))


def _multiplier() -> int:
    """A random odd number."""
    return secrets.randbits(MULTIPLIER_BITS) | 1 << (MULTIPLIER_BITS - 1) | 1


def first_of(group_of: NDArray[np.int32], groups: int) -> NDArray[np.int64]:
    """int64 (groups,): the first row of each group."""
    first = np.empty(groups, np.int64)
    rows = np.flatnonzero(group_of >= 0)[::-1]
    first[group_of[rows]] = rows  # the last assignment is the first row
    return first


@njit
def _group(keys, skip, table, flow_of, multiplier, last):
    """Open addressing with linear steps; `table` holds the first row of each flow, its length is a power of 2. Odd
    multipliers below 2**31, of each word and of all together."""
    mask = len(table) - 1
    flows = 0
    for i in range(len(skip)):
        flow_of[i] = -1
        if skip[i] != TCP:
            continue
        mixed = last
        for j in range(0, FLOW_KEY_BYTES, 4):
            mixed = (mixed ^ u32(keys[i], j, FLOW_KEY_BYTES)) * multiplier
            mixed = (mixed ^ (mixed >> 32)) & 0xFFFFFFFF
        slot = ((mixed * last) >> (MULTIPLIER_BITS - 1)) & mask
        while table[slot] >= 0 and not _equal(keys, int(table[slot]), i):
            slot = (slot + 1) & mask
        if table[slot] < 0:
            table[slot] = i
            flow_of[i] = flows
            flows += 1
        else:
            flow_of[i] = flow_of[table[slot]]
    return flows


@njit
def _equal(keys, a, b):
    same = 0
    while same < FLOW_KEY_BYTES and byte_at(keys[a], same) == byte_at(keys[b], same):
        same += 1
    return same == FLOW_KEY_BYTES


@njit
def _cut(segments, flow_of, flows, run_bytes, run_segments):
    """Number the runs by first segment; returns (run of each row or -1, flow, segments and bytes of each run)."""
    rows = len(flow_of)
    run_of = np.empty(rows, np.int64)
    open_run = np.full(flows, -1, np.int64)
    flow_of_run = np.empty(rows, np.int64)
    counts = np.zeros(rows, np.int64)
    sizes = np.zeros(rows, np.int64)
    runs = 0
    for i in range(rows):
        flow = int(flow_of[i])
        if flow < 0:
            run_of[i] = -1
            continue
        size = int(segments["cap_len"][i])
        run = int(open_run[flow])
        if run < 0 or counts[run] >= run_segments or sizes[run] + size > run_bytes:
            run = runs
            runs += 1
            open_run[flow] = run
            flow_of_run[run] = flow
        run_of[i] = run
        counts[run] += 1
        sizes[run] += size
    return run_of, flow_of_run[:runs], counts[:runs], sizes[:runs]


@njit
def _gather(block, segments, run_of, segment_offsets, payload_offsets, out, payload):
    next_segment = segment_offsets.copy()
    next_byte = payload_offsets.copy()
    for i in range(len(run_of)):
        run = int(run_of[i])
        if run < 0:
            continue
        at = int(next_segment[run])
        to = int(next_byte[run])
        begin = int(segments["payload_at"][i])
        size = int(segments["cap_len"][i])
        out[at] = segments[i]
        out["payload_at"][at] = to - int(payload_offsets[run])
        payload[to : to + size] = block[begin : begin + size]
        next_segment[run] = at + 1
        next_byte[run] = to + size


@njit
def _gather_payloads(block, segments, offsets, payload):
    for i in range(len(segments)):
        begin = int(segments["payload_at"][i])
        size = int(segments["cap_len"][i])
        to = int(offsets[i])
        payload[to : to + size] = block[begin : begin + size]
