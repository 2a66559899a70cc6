"""A line on stderr that says what goes on, how much of it is done and how long it will take."""

from __future__ import annotations

import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

REFRESH_SECONDS = 0.25  # on a terminal
LOG_SECONDS = 10.0  # elsewhere


def time_left(part: float, seconds: float, since: float = 0) -> str:
    """', about 40 s left', `since` seconds after `seconds` for this part of the work; empty while it is too early to
    say."""
    if part < 0.05 or part >= 1 or seconds < 2:
        return ""
    left = max(seconds * (1 - part) / part - since, 1)
    return f", about {left:.0f} s left" if left < 100 else f", about {left / 60:.0f} min left"


@contextmanager
def progress_line(line: Callable[[float], str]) -> Iterator[None]:
    """While the body runs, show `line(seconds since its start)`: redrawn on a terminal and cleared at the end, a new
    line every LOG_SECONDS in a log."""
    finished = threading.Event()
    thread = threading.Thread(target=_show, args=(line, finished), name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        finished.set()
        thread.join()


def _show(line: Callable[[float], str], finished: threading.Event) -> None:
    started, terminal = time.monotonic(), sys.stderr.isatty()
    while not finished.wait(REFRESH_SECONDS if terminal else LOG_SECONDS):
        text = line(time.monotonic() - started)
        if terminal:
            text = "\r\x1b[K" + text[: shutil.get_terminal_size().columns - 1]
        print(text, end="" if terminal else "\n", file=sys.stderr, flush=True)
    if terminal:
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)
