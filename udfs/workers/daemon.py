"""The process that forks Python workers, for a JVM that is started here: Spark's own (`pyspark.daemon`), which prints a
traceback for each worker whose results nobody waits for any more, because a query had enough rows or the JVM has ended.
Started by the JVM: `spark.python.daemon.module`."""

from __future__ import annotations

import sys
import traceback
from typing import Any

import pyspark.worker  # noqa: F401  (the daemon forks workers that run it; `collect_less` looks for it)
from pyspark import daemon

from udfs.workers.process_setup import collect_less

GONE = (BrokenPipeError, ConnectionResetError)  # the other end of a socket


def _is_about_failure() -> bool:
    """Whether the exception that is being handled is more than a closed socket."""
    return not isinstance(sys.exc_info()[1], GONE)


class _Tracebacks:
    """Stands in for the module `traceback` there."""

    format_exc = staticmethod(traceback.format_exc)

    @staticmethod
    def print_exc() -> None:
        if _is_about_failure():
            traceback.print_exc()


def _print(*values: Any, **options: Any) -> None:
    if _is_about_failure():
        print(*values, **options)


if __name__ == "__main__":
    collect_less()  # for the workers that it forks; this package was imported before `pyspark.worker`
    # Names that its functions look up there.
    vars(daemon).update(traceback=_Tracebacks, print=_print)
    daemon.manager()
