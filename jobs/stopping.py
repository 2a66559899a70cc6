"""How a job is stopped: Ctrl-C and SIGTERM end it with one line, whatever it is doing.

All calls to Spark run in a worker thread. The main thread, which receives the signals, only waits for it
(`run_interruptibly`). An exception in the middle of a py4j call would leave the reply in the socket, where the next
call would read it as its own.
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
from typing import TYPE_CHECKING, NoReturn, TypeVar

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pipeline.tables.processes import LocalProcesses

SIGNALS = (signal.SIGINT, signal.SIGTERM)
INTERRUPTED = 130
KILLED_MESSAGE = "wirehare: killed; the next run with the same output removes the temporary files of this one\n"
CANCEL_INTERVAL_S = 0.2  # cancelled again and again, because planning may still start jobs

Result = TypeVar("Result")


class Stopped(BaseException):
    """The run was asked to stop. Unwinds like KeyboardInterrupt, so that staged output is removed."""


class StopRequest:
    """Whether the run was asked to stop; still set where some code has swallowed the exception."""

    requested = False
    deferred = False  # the code that sets this checks `requested` itself soon after


stop_request = StopRequest()  # one for the process, as signals are


@contextlib.contextmanager
def signals_deferred() -> Iterator[None]:
    """Run the body to its end; then raise Stopped if a signal arrived meanwhile."""
    stop_request.deferred = True
    try:
        yield
    finally:
        stop_request.deferred = False
    if stop_request.requested:
        raise Stopped


@contextlib.contextmanager
def signals_handled() -> Iterator[StopRequest]:
    """In the body, the first signal raises Stopped in the main thread; the second one ends the process."""
    stop_request.requested = False

    def request_stop(number: int, frame: FrameType | None) -> None:
        stop_request.requested = True
        for each in SIGNALS:
            signal.signal(each, end)
        if not stop_request.deferred:
            raise Stopped

    def end(number: int, frame: FrameType | None) -> NoReturn:
        os.write(sys.stderr.fileno(), KILLED_MESSAGE.encode())
        os._exit(INTERRUPTED)

    before = {}
    with contextlib.suppress(ValueError):  # not the main thread: the caller decides about signals
        for each in SIGNALS:
            before[each] = signal.signal(each, request_stop)
    try:
        yield stop_request
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def run_interruptibly(work: Callable[[], Result], sessions: Sequence[SparkSession | LocalProcesses] = ()) -> Result:
    """Call `work` in a thread and return its result. If the run is stopped meanwhile, cancel the jobs of `sessions`
    (to which `work` may append) until the thread has ended and removed its temporary files."""
    outcome: Future[Result] = Future()

    def run() -> None:
        try:
            outcome.set_result(work())
        except BaseException as error:
            outcome.set_exception(error)

    thread = Thread(target=run, name="work", daemon=True)
    try:
        with signals_deferred():  # a thread that was started is always joined
            thread.start()
        return outcome.result()
    except Stopped:
        while thread.is_alive():
            for spark in tuple(sessions):
                with contextlib.suppress(Exception):  # where the JVM is gone, so are its tasks
                    spark.interruptAll()
            thread.join(CANCEL_INTERVAL_S)
        raise
