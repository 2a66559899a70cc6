"""Fuzzing logins: damaged ones of all versions and mechanisms, and a search for their secrets in all tables.

A part of `tests/support/fuzz.py`; by itself: `python tests/support/fuzz_logins.py --seconds 600`.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Iterator

from logins import Damaged, Login, Searcher, damaged, logins

BATCH = 200  # damaged frames of one login at a time


def inputs(rng: random.Random) -> Iterator[tuple[Login, int, list[Damaged]]]:
    """Logins without end, the place of a frame, and some of the ways to damage it."""
    every = logins()
    while True:
        login = rng.choice(every)
        index, other = rng.choice(login.secret_frames), rng.choice(rng.choice(every).frames)[1]
        changed = list(damaged(login, index, rng, other, spliced=1000))
        selected = rng.sample(changed, BATCH)
        yield login, index, [(data, rng.choice((None, rng.randint(1, max(1, len(data) - 1))))) for data in selected]


def fuzz_logins(seed: int, count: int, seconds: float) -> tuple[int, list[str]]:
    """Try inputs until `count` of them or `seconds` are over: how many, and those that show a piece of the secret."""
    searcher, started, tried = Searcher(), time.monotonic(), 0
    failures: list[str] = []
    for login, index, changed in inputs(random.Random(f"logins {seed}")):
        if tried >= count or time.monotonic() - started > seconds:
            break
        changed = changed[: count - tried]
        tried += len(changed)
        if searched(searcher, login, index, changed):  # which of them?
            which = f"login {login.version} {login.mechanism}, frame {index}"
            one_by_one = [(each, searched(searcher, login, index, [each])) for each in changed]
            named = [
                f"{which}: {leaks[:3]} of {captured} bytes of {data.hex()}"
                for (data, captured), leaks in one_by_one
                if leaks
            ]
            failures += named or [f"{which}: {len(changed)} together"]
    return tried, failures


def searched(searcher: Searcher, login: Login, index: int, changed: list[Damaged]) -> list[str]:
    """Pieces of the secret that were found, or the error."""
    try:
        return searcher.leaking(login, index, changed)
    except Exception as error:
        return [f"{type(error).__name__}: {error}"]


def main() -> int:
    parser = argparse.ArgumentParser(description="Damaged logins, searched for their secrets.")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--inputs", type=int, default=10**9, help="at most so many")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    selected = parser.parse_args()
    tried, failures = fuzz_logins(selected.seed, selected.inputs, selected.seconds)
    print(f"seed {selected.seed}: {tried:,} damaged logins, failures: {len(failures)}")
    for line in failures[:20]:
        print(f"  {line}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
