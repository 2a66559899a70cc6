"""Counting deliveries anew costs the same however many consumers a channel has: steps are counted."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from codec.conversation import channel_state as S
from codec.conversation.channel_stalls import count_delivery
from codec.conversation.channel_tracker import _new_link
from codec.hashes.maps import clear

pytestmark = pytest.mark.usefixtures("plain_kernels")
LOSSES, PREFETCH = 20, 2


class Counting:
    """Records, and how often one of them was looked up."""

    def __init__(self, records: Any) -> None:
        self.records, self.lookups = records, 0

    def __getitem__(self, at: int) -> Any:
        self.lookups += 1
        return self.records[at]


def lookups(consumers: int) -> int:
    """Of consumers, for LOSSES deliveries, each after frames of the client were lost."""
    state = S.with_room(S.new_state(), max(consumers, LOSSES))
    clear(state.found_by)
    state.numbers[[S.FREE_LINK, S.FREE_UNACKED]] = S.NONE
    slot = state.slots[1]
    S.begin_incarnation(state, 1, 0)
    slot.prefetch_new = PREFETCH
    links = [_new_link(state, slot, 1, tag) for tag in range(1, consumers + 1)]
    counting: Any = Counting(state.links)
    state = state._replace(links=counting)
    names = ("delivery_tag", "ts_ns", "channel", "frame_no", "packet_no", "file")
    rows = SimpleNamespace(**{name: np.arange(1, LOSSES + 1) for name in names})
    for i in range(LOSSES):
        state.numbers[S.LOSSES_CLIENT] += 1
        count_delivery(state, None, rows, i, slot, links[i % 2])
    last = counting.records[links[(LOSSES - 1) % 2]]
    assert (slot.unacked, last.unacked) == (1, 1), "what is lost may have acknowledged those before"
    assert last.stall_from[0] == S.NONE, "one of two that its prefetch allows"
    return int(counting.lookups)


def test_a_loss_costs_the_same_for_few_and_for_many_consumers() -> None:
    assert lookups(1000) == lookups(10)
