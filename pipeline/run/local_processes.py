"""Processes of this machine that do the work of `pipeline.run.exchange`.

    with LocalProcesses() as processes:
        pipeline.write(processes, "captures", "tables")

They are started as programs of their own (`pipeline.run.worker`), not forked or spawned: the main module is not
imported again, and Ctrl-C on a terminal does not reach them.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Self, TypeVar

from codec.compiler.kernel import DISABLE, interpreted, while_cold
from codec.errors import WirehareError
from pipeline.run import scratch, worker
from udfs.arrow.spill_files import LOCAL_DIRECTORIES
from udfs.workers.process_setup import ALLOCATOR
from udfs.workers.progress import REFRESH_SECONDS

Item = TypeVar("Item")
Result = TypeVar("Result")
Process = subprocess.Popen[bytes]

PROCESS_BYTES = 16 << 20  # of captures, for which another process is worth its start
INTERPRETED_BYTES = 512 << 10  # the same where kernels are interpreted, which takes a process a second or two
COMPILE_BYTES = 2 << 20  # interpreted, for which a process that compiles is worth its start
COMPILED = "compiled"  # a file with a byte for each kernel that was compiled
TASKS = 2  # per process after a shuffle, so that processes end at about the same time
PROCESS_MEMORY = 1536 << 20  # a process takes up to 1.1 GB
CONTAINER_MEMORY = Path("/sys/fs/cgroup/memory.max")  # of control groups, version 2
ROOT = str(Path(worker.__file__).parents[2])  # an entry of sys.path may be relative to another directory
PRELOADED = ["udfs.sink.writers", "udfs.pairing.flows", "udfs.source.sources"]


class Interrupted(WirehareError):
    """Work was cancelled by `LocalProcesses.interruptAll`."""


class ProcessLost(WirehareError):
    """A process ended before its work was done."""


class LocalProcesses:
    """Used instead of a Spark session, for captures of this machine. The work is done by `number` processes, or by this
    one alone; without a number by as many as `use_for` finds useful, up to `most`. They are started when they are first
    needed and stay until `close`, so that kernels are loaded once. Calls must not overlap.

    While kernels are not compiled (`codec.compiler.kernel.interpret`), processes interpret them, and one compiles what
    the captures need. When it is done, compiled processes take the place of the others and begin their tasks anew:
    the result of a task is that of one process."""

    def __init__(self, number: int | None = None, most: int | None = None) -> None:
        self.number, self._fixed, self._most = number or 1, number is not None, most
        self._interrupted = False
        self._thread: int | None = None  # which may be interrupted
        self._stage = 0
        self._futures = list[Future[Any]]()  # of the current stage
        self._processes = list[Process]()
        self._lock = threading.Lock()  # of the processes, after the start of a task
        self._elsewhere = False  # work is done: this process interprets kernels, others compile them
        self._compiler: Process | None = None
        self._compiled = False  # what is needed
        self._superseded = set[Process]()  # those that interpreted
        self._directory: tempfile.TemporaryDirectory[str] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def use_for(self, size: int, decode: Callable[[str], object] | None = None) -> Self:
        """Start as many processes as captures of `size` bytes keep busy, and end the others. This process works alone
        if none can be started. `decode`: call it with the name of a new directory, in a process, to compile what the
        captures need."""
        if not self._fixed:
            interpret, most = interpreted() and not self._compiled, self._most or most_processes()
            compiling = decode if while_cold() and interpret and size >= COMPILE_BYTES and most > 1 else None
            wanted = size // (INTERPRETED_BYTES if interpret else PROCESS_BYTES)
            self.number = max(1, min(most - (compiling is not None), wanted))
            self._end_compiler()
            if compiling:
                self._compile(compiling)
        needed = self.number if self.number > 1 or self._elsewhere else 0
        self._end_processes(needed)
        if needed:
            try:
                self._started()
            except ProcessLost:
                self._end_compiler()
                self._end_processes()
                self.number, self._elsewhere = 1, False
        return self

    @property
    def stages(self) -> dict[int, tuple[int, int]]:
        """The current stage, if there is one: number -> (completed tasks, all tasks)."""
        futures = self._futures
        return {self._stage: (sum(future.done() for future in futures), len(futures))} if futures else {}

    @property
    def tasks(self) -> int:
        """The number of tasks after a shuffle."""
        return TASKS * max(self.number, 2) if self.number > 1 or self._elsewhere else 1

    @property
    def compiled_kernels(self) -> int | None:
        """How many kernels are compiled so far while all are interpreted; None when that is over."""
        with suppress(OSError):  # it has just ended
            return Path(self.directory, COMPILED).stat().st_size if self._compiler else None
        return None

    @property
    def directory(self) -> str:
        """A private directory for temporary files, removed by `close`."""
        if self._directory is None:
            self._directory = tempfile.TemporaryDirectory(dir=scratch.directories({}).partition(",")[0])
        return self._directory.name

    def run(self, function: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
        """The results of a function for each item. Raises its errors, Interrupted, ProcessLost; then processes and
        temporary files are gone."""
        self._stage += 1
        try:
            with self._interruptible():
                if not self._elsewhere and (self.number == 1 or len(items) == 1):
                    return [function(item) for item in items]
                return self._in_processes(function, items)
        except BaseException:
            self.close()
            raise
        finally:
            self._futures = []

    def interruptAll(self) -> None:
        """Cancel the work, as `SparkSession.interruptAll` does; called from another thread."""
        self._interrupted = True
        with self._lock:
            for process in self._processes:
                process.kill()
        if self._thread is not None:  # interpreted kernels run for minutes without checking a flag
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._thread), ctypes.py_object(Interrupted))

    def close(self) -> None:
        """End the processes, remove temporary files. They can be used again."""
        self._end_compiler()
        self._end_processes()
        self._interrupted = False
        if self._directory is not None:
            self._directory.cleanup()
            self._directory = None

    def _in_processes(self, function: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
        idle = SimpleQueue[Process]()
        for process in self._started():
            idle.put(process)
        threads = ThreadPoolExecutor(self.number)
        try:
            self._futures = [threads.submit(self._call, idle, function, item) for item in items]
            for future in as_completed(self._futures):
                future.result()
            return [future.result() for future in self._futures]
        except BaseException:
            threads.shutdown(wait=False, cancel_futures=True)
            self._end_processes()  # those that are still at work: what they write must not appear later
            if self._interrupted:
                raise Interrupted("the work was interrupted") from None
            raise
        finally:
            threads.shutdown()

    def _started(self) -> list[Process]:
        """`number` processes; those that have ended meanwhile are replaced. Raises ProcessLost."""
        self._processes = [process for process in self._processes if process.poll() is None]
        while len(self._processes) < self.number:
            try:
                self._processes.append(_start(self.directory, self._compiled))
            except OSError as error:
                raise ProcessLost(f"a process could not be started: {error}") from error
        return self._processes[: self.number]

    def _end_processes(self, but: int = 0) -> None:
        """Kill all processes but `but` of them, and wait until they have ended."""
        with self._lock:
            self._processes, processes = self._processes[:but], self._processes[but:]
        _end(processes)

    def _compile(self, decode: Callable[[str], object]) -> None:
        """Start a process that compiles what `decode` needs. If none can be started, kernels stay interpreted."""
        path = Path(self.directory, COMPILED)
        path.touch()
        with suppress(OSError):
            self._compiler = process = _start(self.directory, compiled=True)
            self._elsewhere = True
            wait = partial(self._await_compiler, process, partial(compile_for, decode), str(path))
            threading.Thread(target=wait, name="compiler", daemon=True).start()

    def _await_compiler(self, process: Process, function: Callable[[str], None], path: str) -> None:
        """Send the call; when it has compiled all, end the processes that interpret: `_call` has others do their
        work."""
        try:
            _answer(process, function, path)
        except Exception:  # it is killed, or fails as the decode will: kernels stay interpreted
            return
        with self._lock:
            if self._compiler is process:
                self._compiler, self._compiled = None, True
                self._superseded.update(self._processes)
                for each in self._processes:
                    each.kill()
        _end([process])

    def _end_compiler(self) -> None:
        with self._lock:
            process, self._compiler = self._compiler, None
        _end([process] if process else [])

    def _call(self, idle: SimpleQueue[Process], function: Callable[[Item], Result], item: Item) -> Result:
        process = idle.get()
        try:
            return _answer(process, function, item)
        except ProcessLost:
            with self._lock:
                if self._interrupted or process not in self._superseded or process not in self._processes:
                    raise
                at = self._processes.index(process)
                _end([process])
                process = self._processes[at] = _start(self.directory, compiled=True)
            return _answer(process, function, item)
        finally:
            idle.put(process)

    @contextmanager
    def _interruptible(self) -> Iterator[None]:
        """In the body, `interruptAll` raises Interrupted wherever this thread is."""
        self._thread = threading.get_ident()
        try:
            if self._interrupted:
                raise Interrupted("the work was interrupted")
            yield
        finally:
            self._thread = None


def most_processes() -> int:
    """One for each core that this process may use, as far as the machine or the container has memory for them."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(cores, memory_limit() // PROCESS_MEMORY))


def memory_limit() -> int:
    """Bytes of memory that the machine has, or that its container may have."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with suppress(OSError, ValueError):  # no such file, or 'max'
        memory = min(memory, int(CONTAINER_MEMORY.read_text()))
    return memory


def compile_for(decode: Callable[[str], object], path: str) -> None:
    """Call `decode` with a directory; meanwhile the file `path` gets a byte for each kernel that is compiled."""
    from codec.compiler.linking import lowered

    done = threading.Event()

    def tell() -> None:
        with open(path, "ab", buffering=0) as file:
            told = 0
            while not done.wait(REFRESH_SECONDS):
                told += file.write(bytes(len(lowered) - told))

    telling = threading.Thread(target=tell)
    telling.start()
    try:
        with tempfile.TemporaryDirectory(dir=os.path.dirname(path)) as directory:
            decode(directory)
    finally:
        done.set()
        telling.join()


def _start(directory: str, compiled: bool) -> Process:
    """A process whose temporary files go to `directory`; `compiled`: its kernels are, though this process interprets
    them. Raises OSError."""
    environment = {**ALLOCATOR, **os.environ, LOCAL_DIRECTORIES: directory}
    if compiled:
        del environment[DISABLE]
    process = subprocess.Popen(
        [sys.executable, "-P", worker.__file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
        process_group=0,  # Ctrl-C reaches the group of the terminal: the first process decides
    )
    assert process.stdin is not None
    pickle.dump(([*sys.path, ROOT], PRELOADED), process.stdin)
    process.stdin.flush()
    return process


def _end(processes: Sequence[Process]) -> None:
    """Kill processes, and wait until they have ended."""
    for process in processes:
        process.kill()
    for process in processes:
        process.wait()
        for pipe in (process.stdin, process.stdout):
            with suppress(OSError):  # of a request that was not sent
                assert pipe is not None
                pipe.close()


def _reason(process: Process) -> str:
    """Why a process has ended, as the end of a sentence."""
    with suppress(subprocess.TimeoutExpired):
        process.wait(1)
    status = process.returncode
    return ", perhaps for lack of memory" if status == -signal.SIGKILL else f" (exit status {status})"


def _answer(process: Process, function: Callable[[Item], Result], item: Item) -> Result:
    """The result of a call in a process. Raises the function's errors and ProcessLost."""
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        pickle.dump(pickle.dumps((function, item)), process.stdin)
        process.stdin.flush()
        answer = pickle.load(process.stdout)
    except (EOFError, OSError, ValueError, pickle.UnpicklingError) as error:  # of a pipe that has no other end
        raise ProcessLost(f"a process ended before its work was done{_reason(process)}") from error
    result: Result
    result, raised = pickle.loads(answer)
    if raised is not None:
        raise raised
    return result
