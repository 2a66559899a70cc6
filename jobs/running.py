"""How jobs run as commands: exit codes, errors that end a run in one line, the parser."""

from __future__ import annotations

import argparse
import os
import platform
import re
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, NamedTuple, NoReturn

# Nothing else here that takes long to import: until signals are taken care of, Ctrl-C is a traceback.
from codec.errors import WirehareError
from jobs.stopping import INTERRUPTED, Asked, Stopped, stoppable

OK, FOUND, USAGE, UNREADABLE, FAILED = 0, 1, 2, 3, 4
# What a shell reports of a program that SIGPIPE ends. Not OK: what was to be said, a verdict perhaps, was not heard.
UNHEARD = 128 + 13

STOPPED = "the previous output, if any, is as it was"  # what a job leaves when it is stopped, if it does not say

NO_SPACE = "No space left on device"  # strerror of ENOSPC, as Java and Arrow quote it too

EXIT_CODES = """exit codes:
  0  done
  2  bad usage, or no capture found; nothing was written
  3  done, but some captures could not be read to their end (see the table captures)
  4  Spark or the file system failed; the previous output is as it was
  130  stopped by Ctrl-C or SIGTERM; the previous output is as it was
"""


class UsageError(WirehareError):
    """What is asked for cannot be done; the message is one line that says why."""


class Ending(NamedTuple):
    """How a job ends when an error is raised: its exit code, and what is said after the error."""

    code: int
    advice: str = ""


Endings = Mapping[type[Exception], Ending]  # the nearest class of an error counts


class Parser(argparse.ArgumentParser):
    """An argument parser that raises UsageError; `commands` are the parsers of its sub-commands by name."""

    commands: Mapping[str, argparse.ArgumentParser]

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{self.prog}: {message} (see {self.prog} --help)")

    def arguments(self, words: Sequence[str]) -> argparse.Namespace:
        """What the words of a command line ask for. Raises UsageError."""
        from udfs.source.suggestions import meant, unknown

        command = next((word for word in words if not word.startswith("-")), None)
        if command is not None and command not in self.commands:
            self.error(unknown("command", command, self.commands))
        found, left = self.parse_known_args(words)
        if left:
            parser = self.commands[str(command)]
            options = [option for action in parser._actions for option in action.option_strings]
            hint = meant(left[0].partition("=")[0], options) if left[0].startswith("-") else ""
            parser.error(f"unrecognized arguments: {' '.join(left)}{hint}")
        return found


class Version(argparse.Action):
    """Print the version, which is looked up for that only, and end."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> NoReturn:
        from importlib.metadata import PackageNotFoundError, version

        try:
            shown = version("wirehare")
        except PackageNotFoundError:  # sources that were never installed
            shown = "(not installed)"
        print(f"wirehare {shown}, pyspark {version('pyspark')}, Python {platform.python_version()}")
        parser.exit()


def command_line(jobs: Sequence[str]) -> Parser:
    """The parser of the whole command, with one sub-parser for each of these modules."""
    parser = Parser(prog="wirehare", description="AMQP wire captures to tables, on Spark.")
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
        sub.add_argument("-q", "--quiet", action="store_true", help="print what went wrong, and nothing else")
        sub.set_defaults(run=job.run, prog=sub.prog, endings=job.endings, stopped=getattr(job, "STOPPED", STOPPED))
    parser.commands = commands.choices
    return parser


def run(argv: Sequence[str], jobs: Sequence[str]) -> int:
    """Run that one of `jobs` (names of modules) which `argv` begins with; the exit code."""
    try:
        try:
            return ended(argv, jobs)
        finally:
            print(end="", flush=True)  # here, where it can be answered for, not when the interpreter ends
    except BrokenPipeError:
        fall_silent()
        return UNHEARD


def fall_silent() -> None:
    """Who read our output has seen enough (`| head`): what the interpreter still has for it goes nowhere."""
    for stream in filter(None, (sys.stdout, sys.stderr)):
        try:
            stream.flush()
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def run_alone(job: str) -> int:
    """Run a job (the name of its module) with the arguments of this process; the exit code."""
    return run([job.rpartition(".")[2], *sys.argv[1:]], [job])


def ended(words: Sequence[str], jobs: Sequence[str]) -> int:
    """The exit code of the run that the words of a command line ask for; an error is one line on stderr."""
    leaves = STOPPED
    try:
        with stoppable() as asked:
            from jobs.console import complain, quiet
            from udfs.source.files import masked

            try:
                arguments = command_line(jobs).arguments(words)
            except UsageError as error:
                complain(masked(str(error), *words))
                return USAGE
            leaves = arguments.stopped
            quiet(arguments.quiet)
            return carried_out(arguments, words, asked)
    except (KeyboardInterrupt, Stopped):
        print(f"wirehare: stopped; {leaves}", file=sys.stderr, flush=True)
        return INTERRUPTED


def carried_out(arguments: argparse.Namespace, words: Sequence[str], asked: Asked) -> int:
    """The exit code of a job. Raises Stopped."""
    from jobs.console import complain
    from udfs.source.files import masked

    try:
        return int(arguments.run(arguments))
    except BrokenPipeError:  # nobody listens: nothing more is said
        raise
    except Exception as error:  # also what Spark, Java, a file system may raise
        if asked.stop:  # its work was ended, or the JVM was asked as well
            raise Stopped from error
        code, line = outcome(error, {UsageError: Ending(USAGE), **arguments.endings()})
        complain(masked(f"{arguments.prog}: {line}", *words))
        return code


def outcome(error: Exception, endings: Endings) -> tuple[int, str]:
    """The exit code of an error, and the line that tells of it."""
    for kind in type(error).__mro__:
        if kind in endings:
            return endings[kind].code, f"{error}{endings[kind].advice}"
    return FAILED, cause(error)


def cause(error: BaseException) -> str:
    """One line for what went wrong at the root: the last cause in a chain that may cross Java and Python workers."""
    if NO_SPACE.lower() in str(error).lower():
        return f"{NO_SPACE}, for the output or for what Spark keeps meanwhile (SPARK_LOCAL_DIRS, TMPDIR)"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    causes = [line for line in lines if re.match(r"(Caused by: )?[\w.$]+(Error|Exception): (?!Traceback)", line)]
    return (causes or lines or [type(error).__name__])[-1 if causes else 0].removeprefix("Caused by: ")
