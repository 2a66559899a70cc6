"""A process that stands by and does contenders by name, so that what one of them takes can be told from the others."""

from __future__ import annotations

import multiprocessing
import time
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from types import TracebackType

from benchmarks import contenders
from benchmarks.contenders import CONTENDERS, Task
from benchmarks.processes import peaks

PREPARE = "prepare"


@dataclass
class Measured:
    """Of each run of one contender: seconds by the clock and of the processors, and peak bytes by kind and process."""

    seconds: list[float] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)
    peaks: list[dict[str, list[int]]] = field(default_factory=list)


class Standing:
    """The process. `measure` does a contender in it and adds its figures to `to`."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=serve, args=(theirs,))
        self.process.start()
        theirs.close()

    def __enter__(self) -> Standing:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.pipe.close()  # which ends it
        self.process.join()

    def do(self, name: str, task: Task) -> float:
        """Seconds of the clock. Raises RuntimeError with what went wrong there."""
        self.pipe.send((name, task))
        try:
            answer = self.pipe.recv()
        except EOFError:
            raise RuntimeError(f"{name}: its process has ended") from None
        if isinstance(answer, str):
            raise RuntimeError(f"{name}: {answer}")
        return float(answer)

    def measure(self, name: str, task: Task, to: Measured) -> None:
        """Do it and add to its figures."""
        pid = self.process.pid
        assert pid is not None
        of_commands = CONTENDERS[name].place == "command"
        with peaks(pid, itself=not of_commands) as seen:
            to.seconds.append(self.do(name, task))
        to.processor.append(seen.processor)
        to.peaks.append({kind: sorted(found.values(), reverse=True) for kind, found in seen.bytes.items()})


def serve(pipe: Connection) -> None:
    """Do what is asked for until nobody asks any more."""
    while True:
        try:
            name, task = pipe.recv()
        except (EOFError, ConnectionResetError):
            return
        action = contenders.prepare if name == PREPARE else CONTENDERS[name].run
        started = time.perf_counter()
        try:
            action(task)
        except Exception as error:
            pipe.send(f"{type(error).__name__}: {str(error)[:500]}")
        else:
            pipe.send(time.perf_counter() - started)
