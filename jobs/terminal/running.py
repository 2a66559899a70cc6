"""Running jobs as commands: the parser, exit codes, errors printed as one line, and how a job is stopped.

Ctrl-C and SIGTERM end a job with one line, whatever it is doing. All calls to Spark run in a worker thread. The main
thread, which receives the signals, only waits for it (`run_interruptibly`). An exception in the middle of a py4j call
would leave the reply in the socket, where the next call would read it as its own.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import os
import platform
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from importlib import import_module
from threading import Thread
from types import FrameType
from typing import Any, NoReturn, Protocol, TypeVar

# No slow imports here: until the signal handlers are set, Ctrl-C prints a traceback.
from codec.errors import WirehareError

OK, FOUND, USAGE, UNREADABLE, FAILED, DAMAGED = 0, 1, 2, 3, 4, 5
# What a shell reports for a program that SIGPIPE ends. Not OK: output was lost, perhaps the verdict.
BROKEN_PIPE = 128 + 13

STOPPED = "the previous output, if any, is as it was"  # default of a job's STOPPED: its output after an interruption

NO_SPACE = "No space left on device"  # strerror of ENOSPC, as Java and Arrow quote it too

EXIT_CODES = """exit codes:
  0  done
  2  bad usage, or no capture found; nothing was written
  3  done, but some captures could not be read to their end (see the table captures)
  4  Spark, a process or the file system failed; the previous output is as it was
  130  stopped by Ctrl-C or SIGTERM; the previous output is as it was
"""


class UsageError(WirehareError):
    """The arguments are invalid; the message is one line that says why."""


# By the name of the nearest class of an error: exit code, and what follows its message. Those of a job come first.
ExitStatuses = Mapping[str, tuple[int, str]]
EXIT_STATUSES: ExitStatuses = {
    **dict.fromkeys(("UsageError", "PathError", "KeyLogError", "OutputError"), (USAGE, "")),
    "DamagedLakeError": (DAMAGED, ""),  # of any job that reads a lake
}


class Parser(argparse.ArgumentParser):
    """An argument parser that raises UsageError; `commands`: the parsers of its sub-commands by name."""

    commands: Mapping[str, argparse.ArgumentParser]

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{self.prog}: {message} (see {self.prog} --help)")

    def arguments(self, words: Sequence[str]) -> argparse.Namespace:
        """Parse the words of a command line. Raises UsageError."""
        from udfs.source.options import meant, unknown

        command = next((word for word in words if not word.startswith("-")), None)
        if command is not None and command not in self.commands:
            self.error(unknown("command", command, self.commands))
        parser = self.commands[command] if command else self
        options = [option for action in parser._actions for option in action.option_strings]

        def refuse(left: Sequence[str]) -> NoReturn:
            hint = meant(left[0].partition("=")[0], options) if left[0].startswith("-") else ""
            parser.error(f"unrecognized arguments: {' '.join(left)}{hint}")

        try:
            found, left = self.parse_known_args(words)
        except UsageError:
            # A misspelt option is the cause when a required one is missing.
            long = [word for word in words if word.startswith("--") and word != "--"]
            if strange := [word for word in long if not any(each.startswith(word.split("=")[0]) for each in options)]:
                refuse(strange)
            raise
        late = getattr(found, "late", None)
        if late and len(left) == 1 and not left[0].startswith("-") and getattr(found, late) is None:
            setattr(found, late, left.pop())
        if left:
            refuse(left)
        return found


class Version(argparse.Action):
    """Print the version and exit; it is looked up only here."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> NoReturn:
        from importlib.metadata import PackageNotFoundError, version

        try:
            installed = version("wirehare")
        except PackageNotFoundError:  # sources that were never installed
            installed = "(not installed)"
        print(f"wirehare {installed}, pyspark {version('pyspark')}, Python {platform.python_version()}")
        parser.exit()


def command_line(jobs: Sequence[str]) -> Parser:
    """The parser of the whole command, with one sub-parser per module in `jobs`."""
    parser = Parser(
        prog="wirehare", description="Decode AMQP packet captures into tables, audit them, cut packets out of them."
    )
    parser.add_argument("--version", action=Version, nargs=0, help="show the version and exit")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name in jobs:
        job = import_module(name)
        about = str(job.__doc__).partition("\n")[0]
        sub = commands.add_parser(
            name.rpartition(".")[2],
            help=about.rstrip("."),
            description=about,
            epilog=job.EPILOG,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        job.add_arguments(sub)
        sub.add_argument("-q", "--quiet", action="store_true", help="print errors only")
        sub.set_defaults(
            run=job.run,
            prog=sub.prog,
            exit_statuses={**EXIT_STATUSES, **getattr(job, "EXIT_STATUSES", {})},
            stopped=getattr(job, "STOPPED", STOPPED),
        )
    parser.commands = commands.choices
    return parser


def run(argv: Sequence[str], jobs: Sequence[str]) -> int:
    """Run the job of `jobs` (module names) that `argv` starts with; return the exit code."""
    try:
        try:
            return exit_code_of(argv, jobs)
        finally:
            print(end="", flush=True)  # flush here, where a failure sets the exit code, not at interpreter exit
    except BrokenPipeError:
        discard_output()
        return BROKEN_PIPE


def discard_output() -> None:
    """The reader of our output is gone (`| head`): discard what is still buffered."""
    for stream in filter(None, (sys.stdout, sys.stderr)):
        try:
            stream.flush()
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def run_standalone(job: str) -> NoReturn:
    """Run one job (a module name) with the arguments of this process, and end the process."""
    end_process(run([job.rpartition(".")[2], *sys.argv[1:]], [job]))


def end_process(exit_code: int) -> NoReturn:
    """Call the exit handlers and end the process. Python would also take a million objects of loaded modules apart,
    which takes 0.2 s to 0.6 s."""
    atexit._run_exitfuncs()
    for stream in filter(None, (sys.stdout, sys.stderr)):
        with contextlib.suppress(OSError, ValueError):  # `run` has flushed what counts
            stream.flush()
    os._exit(exit_code)


def exit_code_of(words: Sequence[str], jobs: Sequence[str]) -> int:
    """Run a command line and return its exit code; an error is one line on stderr."""
    leaves = STOPPED
    try:
        with signals_handled() as stop_request:
            from jobs.terminal.console import print_error, set_quiet

            try:
                arguments = command_line(jobs).arguments(words)
            except UsageError as error:
                from udfs.source.capture_bytes import masked

                print_error(masked(str(error), *words))
                return USAGE
            leaves = arguments.stopped
            set_quiet(arguments.quiet)
            try:
                return run_job(arguments, words, stop_request)
            finally:
                set_quiet(False)
    except (KeyboardInterrupt, Stopped):
        print(f"wirehare: stopped; {leaves}", file=sys.stderr, flush=True)
        return INTERRUPTED


def run_job(arguments: argparse.Namespace, words: Sequence[str], stop_request: StopRequest) -> int:
    """Run a job and return its exit code. Raises Stopped."""
    from jobs.terminal.console import print_error

    try:
        return int(arguments.run(arguments))
    except BrokenPipeError:  # nobody reads the output
        raise
    except Exception as error:  # including errors of Spark, Java and file systems
        if stop_request.requested:  # the error follows from the cancellation
            raise Stopped from error
        from udfs.source.capture_bytes import masked

        code, line = outcome(error, arguments.exit_statuses)
        print_error(masked(f"{arguments.prog}: {line}", *words))
        return code


def outcome(error: Exception, exit_statuses: ExitStatuses) -> tuple[int, str]:
    """The exit code and the message for an error."""
    for kind in type(error).__mro__:
        if kind.__name__ in exit_statuses:
            code, advice = exit_statuses[kind.__name__]
            return code, f"{error}{advice}"
    return FAILED, cause(error)


def cause(error: BaseException) -> str:
    """The root cause in one line: the last cause in a chain that may cross Java and Python workers."""
    if NO_SPACE.lower() in str(error).lower():
        return f"{NO_SPACE}, for the output or for temporary files (SPARK_LOCAL_DIRS, TMPDIR)"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    causes = [line for line in lines if re.match(r"(Caused by: )?[\w.$]+(Error|Exception): (?!Traceback)", line)]
    return (causes or lines or [type(error).__name__])[-1 if causes else 0].removeprefix("Caused by: ")


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


def wait(seconds: float) -> None:
    """Wait in the thread of a job. Raises Stopped once the run was asked to stop, which `time.sleep` would not hear."""
    until = time.monotonic() + seconds
    while True:
        if stop_request.requested:
            raise Stopped
        left = until - time.monotonic()
        if left <= 0:
            return
        time.sleep(min(left, CANCEL_INTERVAL_S))


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


class Cancellable(Protocol):
    """What runs the jobs or queries of some work: a Spark session, local processes, a session of DuckDB."""

    def interruptAll(self) -> object: ...


def run_interruptibly(work: Callable[[], Result], sessions: Sequence[Cancellable] = ()) -> Result:
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
