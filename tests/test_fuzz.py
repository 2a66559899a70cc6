"""A short round of fuzzing, the same inputs each time; `make fuzz` goes on for as long as one likes."""

from __future__ import annotations

import random

import numpy as np
import pytest
from fuzz import check, check_flows, decode, fuzz, seeds

from codec.amqp import rows as R
from codec.amqp.decoder import Decoder


def test_damaged_captures_give_rows_and_nothing_else() -> None:
    tally = fuzz(seed=1, count=1200, seconds=60)
    assert tally.failures == []
    assert tally.inputs.total() == 1200
    # The damage is felt, and much is still decoded.
    assert all(tally.statuses[status] > 100 for status in ("ok", "partial", "malformed", "unknown"))


def test_the_checks_see_a_broken_ledger_rows_without_sender_and_overlapping_rows() -> None:
    _, runs = random.Random(1).choice(seeds())
    found = list(decode(Decoder(), runs))
    cells, facts = found[0]
    others = [known for _, known in found[1:]]
    check(cells, facts)
    check_flows(runs, [facts, *others])
    with pytest.raises(AssertionError):
        check(cells, facts | {"client": facts["client"] | {"frame_bytes": facts["client"]["frame_bytes"] + 1}})
    nobodys = cells.copy()
    nobodys[0, R.SENDER] = -1
    with pytest.raises(AssertionError):
        check(nobodys, facts)
    with pytest.raises(AssertionError):
        check(cells[cells[:, R.OFFSET] > 0], facts)
    with pytest.raises(AssertionError):
        check_flows(runs, [*others, facts | {"server": facts["server"] | {"packets": facts["server"]["packets"] + 1}}])
    with pytest.raises(AssertionError):
        check_flows(runs, [*others, facts | {"server": facts["server"] | {"outside_bytes": 2}}])
    doubled = np.concatenate([cells, cells[cells[:, R.SIZE] > 0][:1]])
    with pytest.raises(AssertionError):
        check(doubled, facts)
