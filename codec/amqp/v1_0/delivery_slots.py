"""Deliveries of AMQP 1.0 in several transfers: a slot for each, by direction, channel and handle.

A slot is valid while its epoch equals that of its direction. A new connection, or a lost frame boundary, starts a new
epoch, so nothing is joined across a loss. Memory is bounded: a delivery without a slot is not joined; a delivery
without a free block continues without properties. Cost: constant per transfer, plus the octets copied.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from codec.compiler.kernel import kernel
from codec.compiler.limits import LIMITS
from codec.hashes.digest import Digests, begin, new_digests
from codec.memory import as_records, sparse_zeros
from codec.variant.writer import copy_bytes

SLOTS = LIMITS.open_deliveries  # per direction
PROBES = LIMITS.delivery_probes
BLOCK = 512
BLOCKS = max(1, LIMITS.delivery_bytes // BLOCK)  # per direction
HEAD = LIMITS.section_head_bytes

DELIVERY = np.dtype(
    [
        ("key", "i8"),  # channel << 32 | handle
        ("epoch", "i8"),
        ("frame_no", "i8"),  # of its first transfer
        ("delivery_id", "i8"),  # -1 not known
        ("whole", "i8"),  # 1 while no octet of the body is missing
        ("broken", "i8"),  # 0, LOST or NO_SECTION
        ("limited", "i8"),  # 1: sections were not stored
        ("withheld", "i8"),  # 1: it hands a token over (codec.amqp.v1_0.tokens)
        ("section", "i8"),  # the last section, -1 none yet
        ("foreign", "i8"),  # 1: its format is none of the specification's; 2: a batch of Azure
        ("resumed", "i8"),  # 1: it may begin anywhere in the message (part 2, section 2.6.13)
        ("body", "i8"),  # section of the body, -1 not yet
        ("body_size", "i8"),
        ("what", "i8"),  # STORE ... for the `left` octets that remain of the current section
        ("left", "i8"),
        ("first_block", "i8"),  # -1 none
        ("last_block", "i8"),
        ("stored", "i8"),  # octets in its blocks
        ("head_size", "i8"),  # octets of the head of a section so far
    ],
    align=True,
)


class Deliveries(NamedTuple):
    """`slots` DELIVERY (2, SLOTS); `heads` uint8, HEAD for each of them; `blocks` uint8, BLOCK for each of 2 * BLOCKS;
    `next_block` int64 (2 * BLOCKS,); `pool` int64 (2, 4): epoch, open deliveries, blocks ever used, first free block +
    1; `digests`: one state per slot, and one more; `fields` int64 (16,): offsets of the fields of the current
    performative."""

    slots: np.ndarray
    heads: np.ndarray
    blocks: np.ndarray
    next_block: np.ndarray
    pool: np.ndarray
    digests: Digests
    fields: np.ndarray


EPOCH, OPEN, USED, FREE = range(4)
IN_PLACE = np.int64(2 * SLOTS)  # the digest of a delivery in one transfer


def new_deliveries() -> Deliveries:
    """Room for the deliveries of a connection; unused pages are never touched."""
    pool = np.zeros((2, 4), np.int64)
    pool[:, EPOCH] = 1
    return Deliveries(
        as_records(sparse_zeros((2, SLOTS), DELIVERY)),
        sparse_zeros(2 * SLOTS * HEAD, np.uint8),
        sparse_zeros(2 * BLOCKS * BLOCK, np.uint8),
        sparse_zeros(2 * BLOCKS, np.int64),
        pool,
        new_digests(2 * SLOTS + 1),
        np.zeros(16, np.int64),
    )


@kernel
def reset_deliveries(dl, direction):
    """A frame boundary was lost, or a connection begins: no open delivery of `direction` may continue."""
    pool = dl.pool[direction]
    pool[EPOCH] += 1
    pool[OPEN] = 0
    pool[USED] = 0
    pool[FREE] = 0


@kernel
def _home(key):
    return ((((key >> 32) * 31 + key) & 0xFFFFFFFF) * 0x61C88647 >> 16) % SLOTS


@kernel
def find(dl, direction, key):
    """The slot of the open delivery with `key`, or -1."""
    if dl.pool[direction, OPEN] == 0:
        return -1
    home = _home(key)
    for i in range(PROBES):
        slot = (home + i) % SLOTS
        r = dl.slots[direction, slot]
        if r.key == key and r.epoch == dl.pool[direction, EPOCH]:
            return slot
    return -1


@kernel
def claim(dl, direction, key, frame_no, delivery_id):
    """A slot for a new delivery, or -1 when none is free."""
    home = _home(key)
    for i in range(PROBES):
        slot = (home + i) % SLOTS
        r = dl.slots[direction, slot]
        if r.epoch != dl.pool[direction, EPOCH]:
            r.key = key
            r.epoch = dl.pool[direction, EPOCH]
            r.frame_no = frame_no
            r.delivery_id = delivery_id
            r.whole = 1
            r.broken = 0
            r.limited = 0
            r.withheld = 0
            r.section = -1
            r.foreign = r.resumed = 0
            r.body = -1
            r.body_size = 0
            r.left = 0
            r.first_block = -1
            r.stored = 0
            r.head_size = 0
            begin(dl.digests, direction * SLOTS + slot)
            dl.pool[direction, OPEN] += 1
            return slot
    return -1


@kernel
def release(dl, direction, slot):
    """End the delivery and free its blocks."""
    r = dl.slots[direction, slot]
    r.epoch = 0
    pool = dl.pool[direction]
    pool[OPEN] -= 1
    if r.first_block >= 0:
        dl.next_block[r.last_block] = pool[FREE] - 1
        pool[FREE] = r.first_block + 1


@kernel
def store(dl, direction, r, buf, start, end):
    """Append `buf[start:end]` to the blocks of a delivery, which becomes `limited` when no block is free."""
    pool = dl.pool[direction]
    at = start
    while at < end and not r.limited:
        within = int(r.stored) % BLOCK
        if within == 0:
            if pool[FREE] > 0:
                fresh = int(pool[FREE]) - 1
                pool[FREE] = dl.next_block[fresh] + 1
            elif pool[USED] < BLOCKS:
                fresh = direction * BLOCKS + int(pool[USED])
                pool[USED] += 1
            else:
                r.limited = 1
                return
            dl.next_block[fresh] = -1
            if r.first_block < 0:
                r.first_block = fresh
            else:
                dl.next_block[r.last_block] = fresh
            r.last_block = fresh
        n = min(BLOCK - within, end - at)
        copy_bytes(dl.blocks, int(r.last_block) * BLOCK + within, buf, at, at + n)
        r.stored += n
        at += n
