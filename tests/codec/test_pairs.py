"""Pairs numbered and found by hash: what a dict of tuples does, whatever the pairs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from codec.conversation.settlement import Frames
from codec.conversation.states import find_ids, group_ids
from codec.hashes import maps as hashed
from codec.hashes.maps import MOST_PROBES, Pairs

NUMBERS = st.one_of(st.integers(-3, 3), st.integers(-(1 << 63), (1 << 63) - 1))
LISTS = st.lists(st.tuples(NUMBERS, NUMBERS), max_size=60)


def columns(pairs: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    return tuple(np.array([pair[at] for pair in pairs], np.int64) for at in (0, 1))  # type: ignore[return-value]


@given(LISTS, LISTS)
def test_pairs_have_the_numbers_that_a_dict_gives_them(
    pairs: list[tuple[int, int]], others: list[tuple[int, int]]
) -> None:
    known = dict[tuple[int, int], int]()
    expected = [known.setdefault(pair, len(known)) for pair in pairs]
    found = Pairs(*columns(pairs))
    assert found.numbers.tolist() == expected
    assert found.count == len(known)
    assert [pairs[row] for row in found.rows] == list(known)
    wanted = [*pairs, *others]
    assert found.find(*columns(wanted)).tolist() == [pairs.index(pair) if pair in known else -1 for pair in wanted]


@given(LISTS, LISTS)
def test_sets_of_frames(frames: list[tuple[int, int]], others: list[tuple[int, int]]) -> None:
    assert Frames(*columns(frames)).among(*columns(others)).tolist() == [other in frames for other in others]


@given(st.lists(st.tuples(NUMBERS, st.integers(0, 2), st.integers(0, 2)), min_size=1, max_size=40))
def test_rows_of_three_columns_are_numbered(rows: list[tuple[int, int, int]]) -> None:
    known = dict[tuple[int, int, int], int]()
    expected = [known.setdefault(row, len(known)) for row in rows]
    assert group_ids(*(np.array(column, np.int64) for column in zip(*rows, strict=True))).tolist() == expected


def test_the_first_place_of_several_counts() -> None:
    assert find_ids(np.array([7, 5, 7]), np.array([5, 7, 9])).tolist() == [1, 0, -1]
    assert find_ids(np.array([7]), np.array([5, 7])).tolist() == [-1, 0]


def test_pairs_that_share_a_slot_get_other_multipliers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hashed, "MULTIPLIERS", np.zeros(4, np.int64))  # all pairs begin at the same slot
    count = 4 * MOST_PROBES
    first = np.arange(count)
    found = Pairs(first, first)
    assert found.numbers.tolist() == list(range(count))
    assert found.find(first, first).tolist() == list(range(count))
    assert found.find(first, first + 1).tolist() == [-1] * count
