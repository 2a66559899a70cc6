"""How a job is stopped: Ctrl-C and SIGTERM end it with one line, whatever it is doing.

What talks to Spark runs in a thread of its own, and the main thread, which signals interrupt, only waits for it
(`attended`). An exception in the middle of a question to the JVM would leave the answer on the line, to be taken for
the answer to the next question.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from threading import Thread
from types import FrameType
from typing import NoReturn, Protocol, TypeVar

SIGNALS = (signal.SIGINT, signal.SIGTERM)
INTERRUPTED = 130
AT_ONCE = "wirehare: stopped at once; what this run has left aside, the next one for the same output removes\n"
AGAIN_S = 0.2  # planning starts jobs yet that nobody waits for

Result = TypeVar("Result")


class Stopped(BaseException):
    """The run was asked to end: unwinds as an interrupt does, so that staged output is removed."""


class Asked:
    """Whether the run was asked to end; where that hits code that swallows exceptions, this still tells."""

    stop = False
    later = False  # whoever set this looks at `stop` himself, and soon


asked = Asked()  # signals are for the whole process, so this is too


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Run the body to its end; Stopped is raised then, if a signal came meanwhile."""
    asked.later = True
    try:
        yield
    finally:
        asked.later = False
    if asked.stop:
        raise Stopped


@contextlib.contextmanager
def stoppable() -> Iterator[Asked]:
    """In the body, the first signal raises Stopped in the main thread, and the second one ends the process."""
    asked.stop = False

    def stop(number: int, frame: FrameType | None) -> None:
        asked.stop = True
        for each in SIGNALS:
            signal.signal(each, end)
        if not asked.later:
            raise Stopped

    def end(number: int, frame: FrameType | None) -> NoReturn:
        os.write(sys.stderr.fileno(), AT_ONCE.encode())
        os._exit(INTERRUPTED)

    before = {}
    with contextlib.suppress(ValueError):  # not the main thread: whoever started it decides about signals
        for each in SIGNALS:
            before[each] = signal.signal(each, stop)
    try:
        yield asked
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


class Session(Protocol):
    """Where work is done: of Spark, or `pipeline.tables.exchange.ThisProcess`."""

    def interruptAll(self) -> object:
        """End what is being done."""
        ...


def attended(work: Callable[[], Result], sessions: Sequence[Session] = ()) -> Result:
    """What `work` gives, in a thread of its own. When the run is stopped meanwhile, the jobs of `sessions`, to which
    `work` may add, are cancelled until the thread has ended: it removes what it has left aside."""
    outcome: Future[Result] = Future()

    def run() -> None:
        try:
            outcome.set_result(work())
        except BaseException as error:
            outcome.set_exception(error)

    thread = Thread(target=run, name="work", daemon=True)
    try:
        with uninterrupted():  # once begun, the thread is waited for
            thread.start()
        return outcome.result()
    except Stopped:
        while thread.is_alive():
            for spark in tuple(sessions):
                with contextlib.suppress(Exception):  # where the JVM is gone, so are its tasks
                    spark.interruptAll()
            thread.join(AGAIN_S)
        raise
