"""What processes of workers and jobs set up: file modes and memory of Python workers, garbage collection of what they
import, whether they interpret kernels, and imports without pandas.

A JVM that is started here has a umask that makes all files private (`pipeline.run.scratch`), and its Python workers
would inherit it: compiled kernels, for example, could not be shared. So workers restore the user's umask, and make
files with bytes of captures `private` until they are published.
"""

from __future__ import annotations

import gc
import os
import re
import sys
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager, suppress

# Environment of processes that decode. pyarrow's allocator (mimalloc, documentation of its options) would give freed
# memory back to the system, which clears it again for the next batch: 5 % of the time. To keep it takes 90 MB more.
ALLOCATOR = {"MIMALLOC_PURGE_DELAY": "-1"}
NEW_OBJECTS = 50_000  # 700 by default
OLDEST = 2  # generation of objects, for the garbage collector
USER_UMASK = "WIREHARE_UMASK"  # octal umask of the user, and the id of the process that started the JVM
WHILE_COLD = "WIREHARE_INTERPRET_WHILE_COLD"  # in the environment of Spark's workers


def collect_rarely() -> None:
    """Let Python look for cycles of garbage after many new objects only: it would do so hundreds of times while
    modules are imported and kernels are loaded."""
    gc.set_threshold(NEW_OBJECTS)


def interpret_in_workers(environment: MutableMapping[str, str], wanted: bool) -> None:
    """In the `environment` of workers that are started later, perhaps on other machines: whether those without compiled
    kernels interpret them."""
    if wanted:
        environment[WHILE_COLD] = "1"
    else:
        environment.pop(WHILE_COLD, None)


def interpret_while_cold() -> None:
    """In such a worker, before it imports kernels: interpret them if they are not compiled on this machine."""
    if WHILE_COLD in os.environ:
        from codec.compiler.kernel import all_compiled, interpret

        if not all_compiled():
            interpret()


def umask_setting() -> str:
    """The value of USER_UMASK that this process sets."""
    return f"{umask():o} {os.getpid()}"


def restore_umask() -> None:
    """In such a worker: set the umask of the user again."""
    mode, _, process = os.environ.get(USER_UMASK, "").partition(" ")
    if mode and int(process) != os.getpid():
        os.umask(int(mode, 8))


@contextmanager
def private() -> Iterator[None]:
    """Only the user can read files that such a worker creates inside."""
    if USER_UMASK not in os.environ:
        yield
        return
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)


def umask() -> int:
    """The umask of the user: that of this process, except while it starts a JVM."""
    mode = os.environ.get(USER_UMASK, "").partition(" ")[0]
    if mode:
        return int(mode, 8)
    with suppress(OSError), open("/proc/self/status", encoding="utf-8") as status:  # Linux: nothing is changed
        found = re.search(r"^Umask:\s*([0-7]+)$", status.read(), re.MULTILINE)
        if found:
            return int(found[1], 8)
    current = os.umask(0o077)
    os.umask(current)
    return current


def collect_less() -> None:
    """In a Python worker of Spark: after a full collection, what was imported is not visited again. Spark collects
    after every task, which took a tenth of a second each time."""
    if "pyspark.worker" not in sys.modules:
        return
    modules = 0

    def freeze(phase: str, collected: Mapping[str, int]) -> None:
        nonlocal modules
        if phase == "stop" and collected["generation"] == OLDEST and len(sys.modules) > modules:
            modules = len(sys.modules)
            gc.freeze()

    gc.callbacks.append(freeze)


class _NoPandas:
    """A finder that finds no pandas (`importlib.abc.MetaPathFinder`)."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: object = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError(name, name=name)


@contextmanager
def without_pandas() -> Iterator[None]:
    """In the body, pyarrow does not import pandas to know its types, which takes a second. Until a call needs pandas
    (`to_pandas`) it does not know objects of pandas: only for processes that make no arrays of them."""
    finder = _NoPandas()
    # A new list each time: an import in another thread goes through the old one, and would miss the finder behind one
    # that is removed.
    sys.meta_path = [finder, *sys.meta_path]
    try:
        yield
    finally:
        sys.meta_path = [each for each in sys.meta_path if each is not finder]
