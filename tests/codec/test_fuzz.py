"""A short round of fuzzing, the same inputs each time; `make fuzz` goes on for as long as one likes."""

from __future__ import annotations

import random
from typing import Any

import numba
import numpy as np
import pytest
from fuzz import check, check_flows, decode, fuzz, seeds
from fuzz_modes import ATTACKS, attack_file, fuzzed
from guarded_arrays import KERNELS, NegativeIndex, guarded

from codec.amqp.decoder import Decoder
from codec.memory import as_records
from codec.protocol import rows as R


@pytest.mark.parametrize("count", [400, pytest.param(800, marks=pytest.mark.slow)])
def test_damaged_captures_give_rows_and_nothing_else(count: int) -> None:
    tally = fuzz(seed=1, count=count, seconds=600)
    assert tally.failures == []
    assert tally.inputs.total() == count
    # The damage is felt, and much is still decoded.
    assert all(tally.statuses[status] > count // 10 for status in ("ok", "partial", "malformed", "unknown"))


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


@pytest.mark.skipif(numba.config.DISABLE_JIT, reason="there is nothing to compare with")
def test_interpreted_kernels_give_the_same_rows_and_no_index_is_negative() -> None:
    found = fuzzed("interpreted", "--seed", "1", "--inputs", "24")
    assert (found.inputs, found.digest) == (24, fuzz(1, 24, 1e9).digest.hexdigest())


def test_the_attacks_for_every_mode_name_existing_test_files() -> None:
    assert [attack_file(name).name for name in ATTACKS] == [f"test_{name}.py" for name in ATTACKS]


def test_a_guarded_array_takes_no_negative_index() -> None:
    cells, records = guarded((np.zeros((4, 2)), as_records(np.zeros(3, "i4,i4"))))
    in_a_kernel: dict[str, Any] = {}  # only what stands in files of kernels is looked at
    code = "def take(array, key): return array[key]\ndef put(array, key): array[key] = 1"
    exec(compile(code, f"{KERNELS}/kernel.py", "exec"), in_a_kernel)
    take, put = in_a_kernel["take"], in_a_kernel["put"]
    for key in (-1, (0, -1), np.int64(-2), slice(-3, 2), slice(0, -1)):
        with pytest.raises(NegativeIndex):
            take(cells, key)
        with pytest.raises(NegativeIndex):
            put(cells[1:, 1:], key)
    with pytest.raises(NegativeIndex):
        take(records, -1)
    with pytest.raises(NegativeIndex):
        take(guarded(((1, 2), 3))[0], -1)
    assert take(cells, (3, 1)) == 0
    assert cells[-1, -1] == 0
