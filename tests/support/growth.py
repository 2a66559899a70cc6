"""Whether time grows with the input, and no faster, on a machine that may have other work."""

from __future__ import annotations

from collections.abc import Callable

import pytest

LEAST_SECONDS = 0.02  # below this, a clock and a cache say more than the code
SPREAD = 2.0  # how much more than its share the larger input may take
ROUNDS = 8


def assert_linear(seconds_of: Callable[[int], float], sizes: tuple[int, int], spread: float = SPREAD) -> None:
    """Fail unless an input of the larger size takes at most `spread` times its share of seconds.

    `seconds_of`: the processor's seconds for an input of a size. The least of some rounds count: other work on the
    machine adds to them and never takes away. What is quadratic takes the square of the share, each time.
    """
    small, large = sizes
    assert large / small > spread, "what is quadratic would pass"
    least = dict.fromkeys(sizes, float("inf"))
    for _ in range(ROUNDS):
        for size in sizes:
            least[size] = min(least[size], seconds_of(size))
        if least[large] <= spread * large / small * max(least[small], LEAST_SECONDS):
            return
    pytest.fail(f"seconds by size: {least}")
