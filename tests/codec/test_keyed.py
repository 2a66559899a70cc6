"""Numbers found by keys: the compiled table does what a dict does, for keys of any size."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from codec.conversation.channel_state import EMPTY, new_state
from codec.conversation.channel_tracker import (
    TYPE_KEY,
    TYPE_TEXT,
    queue_type_of,
    set_queue_type,
)
from codec.hashes.maps import (
    ABSENT,
    EPOCH,
    FARTHEST,
    MOST_PROBES,
    SLOTS,
    HashMap,
    clear,
    get,
    new_map,
    put,
    remove,
    slot_of,
    with_room,
)

BITS = st.integers(0, 62)
# Sparse ones too, as of numbers that are put together in one word: channel, handle, kind.
KEYS = st.one_of(
    st.integers(0, (1 << 63) - 1), st.lists(BITS, max_size=4).map(lambda bits: sum({1 << bit for bit in bits}))
)


@given(st.dictionaries(KEYS, st.integers(0, 1 << 40), max_size=50), KEYS)
def test_entries_that_were_put_are_found(entries: dict[int, int], other: int) -> None:
    table = new_map(4)
    clear(table)  # an epoch above 0
    for key, value in entries.items():
        table = with_room(table, 1)
        put(table, key, value)
    assert {key: get(table, key) for key in entries} == entries
    assert get(table, other) == entries.get(other, ABSENT)


@given(st.lists(st.tuples(KEYS, st.booleans()), max_size=50), st.randoms(use_true_random=False))
def test_removed_entries_are_not_found_and_all_others_are(steps: list[tuple[int, bool]], chance: Any) -> None:
    table, entries = new_map(4), dict[int, int]()
    clear(table)
    for number, (key, puts) in enumerate(steps):
        if puts:
            table = with_room(table, 1)
            put(table, key, number)
            entries[key] = number
        else:
            gone = chance.choice([key, *entries])
            remove(table, gone)
            entries.pop(gone, None)
        assert {known: get(table, known) for known in entries} == entries
        assert table.used[0] == len(entries)
    for key, _ in steps:
        assert get(table, key) == entries.get(key, ABSENT)


@given(KEYS)
def test_a_place_is_the_same_compiled_and_interpreted(key: int) -> None:
    """Products above 63 bits are undefined to the compiler, which has taken one for 0 where it knew the sign."""
    table = new_map()
    clear(table)
    interpreted: Any = vars(slot_of).get("__wrapped__", slot_of)
    with np.errstate(all="raise"):
        assert slot_of(table, key) == interpreted(table, np.int64(key))


def colliding(table: HashMap, count: int) -> list[int]:
    """Keys that begin at the same slot of this table, which only who knows its multipliers can choose."""
    by_slot: dict[int, list[int]] = {}
    key = 0
    while True:
        key += 1
        of_slot = by_slot.setdefault(int(slot_of(table, key)), [])
        of_slot.append(key)
        if len(of_slot) == count:
            return of_slot


def test_keys_that_share_a_slot_are_moved_to_a_table_where_they_do_not() -> None:
    table = new_map(1 << 10)
    clear(table)
    keys = colliding(table, MOST_PROBES + 20)
    for number, key in enumerate(keys):
        put(table, key, number)
    assert table.used[FARTHEST] == len(keys) - 1
    moved = with_room(table, 0)
    assert moved.used[FARTHEST] <= MOST_PROBES
    assert moved.used[EPOCH] == table.used[EPOCH]
    assert [get(moved, key) for key in keys] == list(range(len(keys)))


def test_tables_have_multipliers_of_their_own() -> None:
    """Keys that share a slot of one table do not in another; nothing is known of the slots of a process."""
    first, second = new_map(1 << 10), new_map(1 << 10)
    clear(first)
    clear(second)
    keys = colliding(first, 40)
    assert len({int(slot_of(second, key)) for key in keys}) > 20


@given(st.integers(0, 40), st.integers(1, 1 << 30))
def test_keys_at_regular_distances_spread(shift: int, step: int) -> None:
    """As ids of channels, deliveries and commands are, in any bits of a key."""
    table, count = new_map(1 << 10), 400
    clear(table)
    for number in range(count):
        put(table, (number * step << shift) & ((1 << 62) - 1), number)
    assert table.used[FARTHEST] < MOST_PROBES


@pytest.mark.parametrize("queue", [EMPTY + 1, EMPTY + 4, 1 << 20])
def test_keys_put_by_a_caller_are_found_by_the_general_lookup(queue: int) -> None:
    state = new_state()
    clear(state.found_by)
    set_queue_type(state, queue, 7)
    assert (queue_type_of(state, queue), get(state.found_by, TYPE_KEY | queue) & TYPE_TEXT) == (7, 7)


@given(st.integers(0, 3000), st.integers(1, 1 << 20))
def test_entries_move_to_more_slots_as_they_become_more(count: int, step: int) -> None:
    """The table has room for all of them from the beginning, and uses few slots for few."""
    table = with_room(new_map(4), count)
    clear(table)
    table.used[SLOTS] = 4
    for number in range(count):
        put(table, number * step, number)
    assert table.used[SLOTS] <= max(4, 4 * count)
    assert [get(table, number * step) for number in range(count)] == [*range(count)]
    clear(table)
    assert get(table, 0) == ABSENT
