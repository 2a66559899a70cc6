"""The command `wirehare`: one sub-command per job."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import NoReturn

from jobs.terminal import running
from udfs.workers.process_setup import collect_rarely

NAMES = (
    "decode", "explain", "diff", "audit", "report", "nightly", "sql", "cut", "ingest", "lake", "doctor", "rules",
    "rule", "schema",
)  # fmt: skip
JOBS = tuple(f"jobs.{name}" for name in NAMES)


def command_line() -> running.Parser:
    return running.command_line(JOBS)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the sub-command that `argv` names; the exit code."""
    return running.run(sys.argv[1:] if argv is None else argv, JOBS)


def program() -> NoReturn:
    """The command `wirehare`: run the sub-command that the arguments of this process name, and end the process."""
    collect_rarely()
    running.end_process(main())


if __name__ == "__main__":
    program()
