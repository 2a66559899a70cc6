"""Flows are told apart by a hash table whose slots nobody outside of the process can choose."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from codec.net import runs
from codec.net.headers import TCP
from codec.net.layers import FLOW_KEY_BYTES
from codec.net.runs import group_flows

COUNT, SLOTS = 400, 1024
OURS = (0x45D9F3B1 & 0x7FFFFFFF | 1, 0x119DE1F3 | 1 << 30)


def keys_of(numbers: np.ndarray) -> np.ndarray:
    """Flow keys that differ in their last eight bytes: an address and two ports."""
    keys = np.zeros((len(numbers), FLOW_KEY_BYTES), np.uint8)
    keys[:, -8:] = numbers.astype(">u8").view(np.uint8).reshape(-1, 8)
    return keys


def slots_of(keys: np.ndarray, multiplier: int, last: int) -> np.ndarray:
    """The slot of each key with these multipliers, by Python's integers."""
    found = []
    for key in keys.tolist():
        mixed = last
        for at in range(0, FLOW_KEY_BYTES, 4):
            mixed = (mixed ^ int.from_bytes(bytes(key[at : at + 4]), "big")) * multiplier
            mixed = (mixed ^ (mixed >> 32)) & 0xFFFFFFFF
        found.append(((mixed * last) >> 30) & (SLOTS - 1))
    return np.array(found)


def table_of(keys: np.ndarray, multipliers: tuple[int, int]) -> np.ndarray:
    """Which slots are used after all keys."""
    table, flow_of = np.full(SLOTS, -1, np.int32), np.empty(len(keys), np.int32)
    group: Any = runs._group
    assert group(keys, np.full(len(keys), TCP, np.int32), table, flow_of, *multipliers) == len(keys)
    return np.flatnonzero(table >= 0)


@pytest.fixture(scope="module")
def selected() -> np.ndarray:
    """Keys that share few slots of a table with known multipliers."""
    keys = keys_of(np.arange(1, 40 * COUNT))
    slots = slots_of(keys, *OURS)
    return keys[np.flatnonzero(slots < SLOTS // 32)[:COUNT]]


def test_selected_keys_crowd_one_table_and_spread_in_another(selected: np.ndarray) -> None:
    assert len(selected) == COUNT
    crowded = table_of(selected, OURS)
    assert crowded.max() < COUNT + SLOTS // 32, "all in one run of slots"
    for _ in range(5):
        others = (runs._multiplier(), runs._multiplier())
        gaps = np.diff(table_of(selected, others))
        assert np.count_nonzero(gaps > 1) > COUNT // 8


def test_flows_have_the_same_numbers_whatever_the_slots(selected: np.ndarray) -> None:
    twice = np.concatenate([selected, selected[::-1]])
    skip = np.full(len(twice), TCP, np.int32)
    for _ in range(3):
        flow_of, flows = group_flows(twice, skip)
        assert flows == COUNT
        assert flow_of.tolist() == [*range(COUNT), *reversed(range(COUNT))]
