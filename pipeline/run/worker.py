"""The program of a process of `pipeline.run.local_processes`: it calls functions that arrive on standard input,
pickled, and writes their results, or their errors, to standard output.

It ends when standard input is closed, whatever it is doing: the process that started it has ended.
"""

from __future__ import annotations

import gc
import importlib
import os
import pickle
import signal
import sys
import traceback
from contextlib import suppress
from io import TextIOWrapper
from queue import SimpleQueue
from threading import Thread
from typing import BinaryIO, cast


def main() -> None:
    """Answer requests until there are no more."""
    requests, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a function prints must not get between the answers
    # Whole lines, at once: processes print at the same time, and do not flush when they end.
    cast(TextIOWrapper, sys.stdout).reconfigure(line_buffering=True, write_through=False)
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)  # printing to a terminal must not stop it
    sys.path[:], modules = pickle.load(requests)
    received = SimpleQueue[bytes]()
    Thread(target=_receive, args=(requests, received), daemon=True).start()
    from udfs.workers.process_setup import collect_rarely, without_pandas  # not above: it is found through the path

    collect_rarely()
    with without_pandas():
        for module in modules:
            importlib.import_module(module)
    gc.freeze()  # what was imported stays: the collector need not visit it again and again
    while True:
        pickle.dump(_answer(received.get()), answers)
        answers.flush()


def _receive(requests: BinaryIO, received: SimpleQueue[bytes]) -> None:
    try:
        while True:
            received.put(pickle.load(requests))
    finally:
        os._exit(0)


def _answer(request: bytes) -> bytes:
    """The pickled result of a pickled call, or the error that it raised."""
    try:
        function, item = pickle.loads(request)
        return pickle.dumps((function(item), None))
    except BaseException as error:
        trace = traceback.format_exc()
        with suppress(Exception):
            error.add_note(f"In a local process:\n{trace}")
            answer = pickle.dumps((None, error))
            pickle.loads(answer)  # some errors cannot be made again
            if isinstance(error, Exception):
                return answer
        return pickle.dumps((None, RuntimeError(trace)))


if __name__ == "__main__":
    with suppress(EOFError):  # the process that started this one has ended at once
        main()
