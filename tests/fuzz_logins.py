"""Fuzzing logins: damaged ones of all versions and mechanisms, and a search for their secrets in all that is shown.

A part of `tests/fuzz.py`; alone: `python tests/fuzz_logins.py --seconds 600`.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Iterator
from itertools import islice

from logins import Login, Searcher, damaged, logins

BATCH = 200  # damaged frames of one login at a time


def inputs(rng: random.Random) -> Iterator[tuple[Login, int, bytes]]:
    """Logins without end, the place of a frame, and its octets."""
    every = logins()
    while True:
        login = rng.choice(every)
        place, other = rng.choice(login.bearers), rng.choice(rng.choice(every).frames)[1]
        changed = list(damaged(login, place, rng, other, spliced=1000))
        for octets in rng.sample(changed, BATCH):
            yield login, place, octets


def fuzz_logins(seed: int, count: int, seconds: float) -> tuple[int, list[str]]:
    """Try inputs until `count` of them or `seconds` are over: how many, and those that show a piece of the secret."""
    searcher, started, tried = Searcher(), time.monotonic(), 0
    failures: list[str] = []
    for login, place, octets in islice(inputs(random.Random(f"logins {seed}")), count):
        if time.monotonic() - started > seconds:
            break
        tried += 1
        try:
            shown = searcher.leaks(login, place, octets)
        except Exception as error:
            shown, searcher = [f"{type(error).__name__}: {error}"], Searcher()
        if shown:
            failures.append(f"login {login.version} {login.mechanism}, frame {place}: {shown[:3]} of {octets.hex()}")
    return tried, failures


def main() -> int:
    parser = argparse.ArgumentParser(description="Damaged logins, searched for their secrets.")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--inputs", type=int, default=10**9, help="at most so many")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    chosen = parser.parse_args()
    tried, failures = fuzz_logins(chosen.seed, chosen.inputs, chosen.seconds)
    print(f"seed {chosen.seed}: {tried:,} damaged logins, failures: {len(failures)}")
    for line in failures[:20]:
        print(f"  {line}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
