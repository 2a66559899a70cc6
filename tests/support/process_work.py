"""Work for local processes that decode nothing, in a module that they load at once."""

from __future__ import annotations

import os
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from codec.compiler.kernel import interpreted

LATER = 0.2  # seconds


def identify(number: int) -> int:
    time.sleep(0.1)
    return os.getpid()


def kill(number: int) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@dataclass(frozen=True)
class WriteLater:
    """Number 0 fails; the others write a file, each a little later."""

    directory: str

    def __call__(self, number: int) -> None:
        if not number:
            raise OSError("no space")
        time.sleep(LATER)
        Path(self.directory, str(number)).touch()


def group(number: int) -> int:
    return os.getpgrp()


class Unlike(Exception):
    """Can be pickled, but not made again."""

    def __init__(self, one: str, other: str) -> None:
        super().__init__(f"{one}, not {other}")


def fail(number: int) -> NoReturn:
    raise Unlike("this", "that")


def leave(number: int) -> NoReturn:
    sys.exit("this function leaves")


def abort(number: int) -> NoReturn:
    os._exit(3)


def interpreted_late(number: int) -> tuple[int, bool]:
    """The number, and whether kernels are interpreted; then a minute later."""
    late = interpreted()
    time.sleep(60 if late and number else 0)
    return number, late


def decode(directory: str) -> None:
    """Compiles nothing, in three seconds: by then another process has begun to interpret."""
    if interpreted() or os.listdir(directory):
        raise ValueError("the compiler interprets, or has a directory that others use")
    time.sleep(3)


def fail_to_decode(directory: str) -> NoReturn:
    raise OSError("no space")


def loaded(module: str) -> bool:
    return module in sys.modules


def say(number: int) -> int:
    print("a line for people")
    return number


def wait_for_ever(directory: str) -> None:
    time.sleep(600)
