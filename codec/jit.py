"""How kernels are compiled, and where their machine code is kept.

`njit` compiles in nopython mode without the GIL. With NUMBA_DISABLE_JIT=1 the same functions run as plain Python:
that is the reference which the tests compare with, so kernels use no construct that only the compiler understands.
What Python calls becomes machine code, together with all kernels that it calls (`codec.linking`).

Machine code is cached in a directory named after a digest of the sources that a kernel is made of: its own file and
all files of this package that it imports, directly or not. (numba itself only looks at the file of the function at
hand, and would go on using a kernel whose callee in another file has changed.) The directory is
`__pycache__/kernels-DIGEST` beside this file, or below the user's cache directory where that cannot be written (an
installed package on a cluster executor); NUMBA_CACHE_DIR overrides both. Nothing in it depends on where the package
stands, so that an environment that is packed with its kernels and unpacked elsewhere compiles nothing.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
from numba.core import caching

from codec.linking import KernelDispatcher

Kernel = TypeVar("Kernel", bound=Callable[..., Any])

PACKAGE = Path(__file__).resolve().parent
_IMPORT = re.compile(r"^\s*(?:from|import)\s+(codec(?:\.\w+)*)(?:\s+import\s+(\([^)]*\)|[^\n]*))?", re.MULTILINE)


def _writable(directory: Path) -> bool:
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            return True
    except OSError:
        return False


def imported(source: Path) -> list[Path]:
    """The files of this package that `source` names in import statements."""
    found = []
    for module, names in _IMPORT.findall(source.read_text("utf-8")):
        path = PACKAGE.joinpath(*module.split(".")[1:])
        # what is imported from a package may be a module of it
        for candidate in (path, *(path / name for name in re.findall(r"\w+", names))):
            for file in (candidate.with_suffix(".py"), candidate / "__init__.py"):
                if file.is_file():
                    found.append(file)
    return found


@functools.lru_cache
def sources_digest(source: Path) -> str:
    """Digest of `source` and of every file of this package that it is made of."""
    made_of: set[Path] = set()
    pending = [source]
    while pending:
        path = pending.pop()
        if path not in made_of:
            made_of.add(path)
            pending += imported(path)
    digest = hashlib.sha256()
    for path in sorted(made_of):
        digest.update(path.relative_to(PACKAGE).as_posix().encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


@functools.lru_cache
def cache_directory(source: Path) -> str:
    """Where the compiled kernels of exactly this `source` file, and what it imports, are kept."""
    name = f"kernels-{sources_digest(source)}"
    user_cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    for parent in (PACKAGE / "__pycache__", user_cache / "wirehare"):
        if _writable(parent / name):
            return str(parent / name)
    return str(Path(tempfile.gettempdir()) / f"wirehare-{os.getuid()}" / name)


@contextmanager
def kept_in(directory: str) -> Iterator[None]:
    """Kernels decorated inside are kept in `directory` itself; numba would add a digest of the path of their source."""
    locator: Any = caching._CacheLocator
    before = numba.config.CACHE_DIR, locator.__dict__["get_suitable_cache_subpath"]
    numba.config.CACHE_DIR = directory
    locator.get_suitable_cache_subpath = classmethod(lambda cls, source: "")
    try:
        yield
    finally:
        numba.config.CACHE_DIR, locator.get_suitable_cache_subpath = before


def compile_cached(**options: Any) -> Callable[[Kernel], Kernel]:
    """A decorator: a kernel with these options of `numba.njit`, cached in `cache_directory`."""

    def compile_one(function: Kernel) -> Kernel:
        if numba.config.DISABLE_JIT:
            return function
        source = Path(function.__code__.co_filename)
        ours = not numba.config.CACHE_DIR and PACKAGE in source.parents
        with kept_in(cache_directory(source)) if ours else nullcontext():  # numba asks when the function is decorated
            compiled: Any = KernelDispatcher(function, {}, options)
            compiled.enable_caching()
        return cast(Kernel, compiled)

    return compile_one


def njit(function: Kernel) -> Kernel:
    """Compile `function` in nopython mode, cached, without the GIL."""
    return compile_cached()(function)
