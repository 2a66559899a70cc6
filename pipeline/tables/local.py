"""The pipelines of `pipeline.tables.exchange` in processes of this machine, without Spark.

    rows = Local(LocalProcesses(4), sources).then(function, SCHEMA).by_bucket().then(other, SCHEMA).collected()

A JVM takes five seconds to start, and each Python worker of Spark two more. Local work needs no JVM; rows that change
the process go through Arrow files.
"""

from __future__ import annotations

import ctypes
import heapq
import importlib
import multiprocessing
import os
import signal
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol, Self, TypeVar

import pyarrow as pa
from pyspark.sql.types import StructType

from codec.errors import WirehareError
from pipeline.output import scratch
from udfs.arrow.shuffle import Buckets, SortedFile, column_buckets, read_sorted, write_sorted
from udfs.arrow.spool import LOCAL_DIRECTORIES
from udfs.pairing.schemas import PARTITIONED

Function = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
Item = TypeVar("Item")
Result = TypeVar("Result")

PROCESS_BYTES = 16 << 20  # of captures, for which another process is worth its start
PROCESS_MEMORY = 1536 << 20  # a process takes up to 1.1 GB
CONTAINER_MEMORY = Path("/sys/fs/cgroup/memory.max")  # of control groups, version 2
PRELOADED = ["udfs.sink.writers", "udfs.pairing.flows", "udfs.source.sources"]
TASKS = 2  # per process after a shuffle, so that processes end at about the same time


class Interrupted(WirehareError):
    """Work was cancelled by `LocalProcesses.interruptAll`."""


class ProcessLost(WirehareError):
    """A process that took part in the work ended before its time."""


class LocalProcesses:
    """Used instead of a Spark session: the work is done by `number` processes, or by this one alone; `use_for` takes up
    to `most` of them (None: `most_processes`). A process imports the main module again, which must therefore do its
    work under `if __name__ == "__main__"`. Close it at the end; it can be used again."""

    def __init__(self, number: int = 1, most: int | None = None) -> None:
        self.number, self._most = number, most
        self._interrupted = False
        self._thread: int | None = None  # which may be interrupted
        self._stage = 0
        self._futures = list[Future[Any]]()  # of the current stage
        self._pool: ProcessPoolExecutor | None = None
        self._size = 0  # of the pool
        self._open_end: Connection | None = None  # of a pipe: when it is closed the processes exit
        self._directory: tempfile.TemporaryDirectory[str] | None = None

    def use_for(self, size: int) -> Self:
        """Use as many processes as captures of this size keep busy; start them now. Where the system has no shared
        memory for a pool, this process works alone."""
        self.number = max(1, min(self._most or most_processes(), size // PROCESS_BYTES))
        if self.number > 1:
            try:
                self._submit(_nothing, range(self.number))
            except (OSError, ImportError, NotImplementedError):
                self._end_processes()
                self.number = 1
        return self

    @property
    def stages(self) -> dict[int, tuple[int, int]]:
        """The current stage, if there is one: number -> (completed tasks, all tasks)."""
        futures = self._futures
        return {self._stage: (sum(future.done() for future in futures), len(futures))} if futures else {}

    @property
    def directory(self) -> str:
        """A private directory for temporary files, removed by `close`."""
        if self._directory is None:
            self._directory = tempfile.TemporaryDirectory(dir=scratch.directories({}).partition(",")[0])
        return self._directory.name

    def run(self, function: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
        """The results of a function for each item. Raises its errors, Interrupted, ProcessLost."""
        self._stage += 1
        try:
            with self._interruptible():
                if self.number == 1 or len(items) == 1:
                    return [function(item) for item in items]
                return self._in_pool(function, items)
        finally:
            self._futures = []

    def interruptAll(self) -> None:
        """Cancel the work, as of a session; called from another thread."""
        self._interrupted = True
        if self._open_end is not None:
            self._open_end.close()
        if self._thread is not None:  # interpreted kernels run for minutes without checking a flag
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._thread), ctypes.py_object(Interrupted))

    def close(self) -> None:
        """End the processes, remove temporary files."""
        self._end_processes()
        if self._directory is not None:
            self._directory.cleanup()
            self._directory = None

    def _in_pool(self, function: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
        try:
            self._futures = self._submit(function, items)
            return [future.result() for future in self._futures]
        except BaseException as error:
            self._end_processes()  # those that are still at work: what they write must not appear later
            if not isinstance(error, BrokenProcessPool):
                raise
            if self._interrupted:
                raise Interrupted from None
            raise ProcessLost("a process ended before its work was done, perhaps for lack of memory") from error

    def _submit(self, function: Callable[[Item], Result], items: Sequence[Item]) -> list[Future[Result]]:
        try:
            return _submitted(self._processes(), function, items)
        except BrokenProcessPool:  # a process has ended since the last work
            if self._interrupted:
                raise
            self._end_processes()
            return _submitted(self._processes(), function, items)

    def _processes(self) -> ProcessPoolExecutor:
        if self._size < self.number:
            self._end_processes()
        if self._pool is None:
            context = multiprocessing.get_context("spawn")  # a fork server fails where TMPDIR is long
            other_end, self._open_end = context.Pipe(duplex=False)
            self._pool = ProcessPoolExecutor(self.number, context, _begin, (other_end, self.directory))
            self._size = self.number
        return self._pool

    def _end_processes(self) -> None:
        """End the processes at once and wait for that."""
        pool, self._pool, self._size = self._pool, None, 0
        if self._open_end is not None:
            self._open_end.close()
        if pool is not None:
            pool.shutdown(cancel_futures=True)

    @contextmanager
    def _interruptible(self) -> Iterator[None]:
        """In the body, `interruptAll` raises Interrupted wherever this thread is."""
        self._thread = threading.get_ident()
        try:
            if self._interrupted:
                raise Interrupted
            yield
        finally:
            self._thread = None


def most_processes() -> int:
    """One for each core that this process may use, as far as the machine or the container has memory for them."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with suppress(OSError, ValueError):  # no such file, or 'max'
        memory = min(memory, int(CONTAINER_MEMORY.read_text()))
    return max(1, min(cores, memory // PROCESS_MEMORY))


def _submitted(
    pool: ProcessPoolExecutor, function: Callable[[Item], Result], items: Sequence[Item]
) -> list[Future[Result]]:
    """Submit tasks. Processes that this starts ignore Ctrl-C, which reaches all processes: the first one decides."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        return [pool.submit(function, item) for item in items]
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _begin(pipe: Connection, directory: str) -> None:
    """Called at the start of each process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_exit_with, args=(pipe,), daemon=True).start()
    os.environ[LOCAL_DIRECTORIES] = directory
    for module in PRELOADED:
        importlib.import_module(module)


def _nothing(number: int) -> None:
    """A task that starts a process."""


def _exit_with(pipe: Connection) -> None:
    """Exit when the other end of the pipe is closed: by `interruptAll`, or because its process has ended."""
    try:
        pipe.recv_bytes()
    except (EOFError, OSError):
        os._exit(1)


class Source(Protocol):
    """The input of a task."""

    @property
    def files(self) -> Sequence[SortedFile]:
        """Temporary files that it reads."""
        ...

    def __call__(self) -> Iterator[pa.RecordBatch]:
        """The rows."""
        ...


@dataclass(frozen=True)
class Batches:
    """A source of these rows."""

    rows: Sequence[pa.RecordBatch]
    files: Sequence[SortedFile] = ()

    def __call__(self) -> Iterator[pa.RecordBatch]:
        return iter(self.rows)


@dataclass(frozen=True)
class Applied:
    """The rows of a source after a function."""

    source: Source
    function: Function

    @property
    def files(self) -> Sequence[SortedFile]:
        return self.source.files

    def __call__(self) -> Iterator[pa.RecordBatch]:
        return self.function(self.source())


@dataclass(frozen=True)
class Shuffled:
    """The rows of some buckets."""

    files: Sequence[SortedFile]
    buckets: Sequence[int]
    order: Sequence[str]

    def __call__(self) -> Iterator[pa.RecordBatch]:
        return read_sorted(self.files, self.buckets, self.order)


@dataclass(frozen=True)
class _Write:
    """Writes the rows of a source for a shuffle."""

    directory: str
    buckets_of: Buckets
    order: Sequence[str]

    def __call__(self, source: Source) -> list[SortedFile]:
        return write_sorted(source(), self.directory, self.buckets_of, self.order)


@dataclass(frozen=True)
class Local:
    """Rows in processes of this machine, to be used once; lazy, except that a shuffle computes its input."""

    processes: LocalProcesses
    sources: Sequence[Source]

    def then(self, function: Function, schema: StructType | str) -> Local:
        return Local(self.processes, [Applied(source, function) for source in self.sources])

    def partitioned(self, function: Function) -> Local:
        return self.then(function, PARTITIONED)

    def with_rows(self, others: Local) -> Local:
        return Local(self.processes, [*self.sources, *others.sources])

    def by_bucket(self) -> Local:
        return self.shuffled(column_buckets)

    def shuffled(self, buckets_of: Buckets, order: Sequence[str] = ()) -> Local:
        """The rows of each bucket in one task, in this order."""
        write = _Write(self.processes.directory, buckets_of, order)
        files = [file for written in self._run(write) for file in written]
        tasks = TASKS * self.processes.number if self.processes.number > 1 else 1
        return Local(self.processes, [Shuffled(files, buckets, order) for buckets in _balanced(files, tasks)])

    def collected(self) -> list[dict[str, Any]]:
        return [row for batches in self._run(_all) for each in batches for row in each.to_pylist()]

    def _run(self, function: Callable[[Source], Result]) -> list[Result]:
        results = self.processes.run(function, self.sources)
        for path in {file.path for source in self.sources for file in source.files}:
            os.unlink(path)
        return results


def _all(source: Source) -> list[pa.RecordBatch]:
    return list(source())


def _balanced(files: Sequence[SortedFile], tasks: int) -> list[list[int]]:
    """The buckets of these files in up to `tasks` groups of about the same size, the largest group first."""
    sizes = Counter[int]()
    for file in files:
        for bucket, size in zip(file.buckets, file.sizes, strict=True):
            sizes[bucket] += size
    groups = [(0, number, list[int]()) for number in range(tasks)]
    for bucket, size in sizes.most_common():
        filled, number, buckets = groups[0]
        buckets.append(bucket)
        heapq.heapreplace(groups, (filled + size, number, buckets))
    return [buckets for _, _, buckets in sorted(groups, reverse=True) if buckets]
