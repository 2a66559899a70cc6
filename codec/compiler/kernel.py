"""The decorators of kernels, when kernels are compiled, and where machine code is stored.

    njit      compiles a function in nopython mode without the GIL
    kernel    the same without reference counts: for functions that allocate nothing
    inlined   a `kernel` that is inlined into its callers, with all kernels that it calls
    outlined  a `kernel` that is not, even when an `inlined` one calls it

With NUMBA_DISABLE_JIT=1, or after `interpret()`, the same functions run as plain Python. The tests compare compiled
kernels with that reference. Small captures are decoded in this way until the kernels are compiled: compiling takes
minutes; interpreted kernels decode about 400 KB a second. A kernel that Python calls is compiled together with all
kernels that it calls (`codec.compiler.linking`). The first call imports numba, which takes 0.3 s: a process that only
plans imports modules of kernels and calls none.

Machine code is cached on disk (`codec.compiler.cache`), in a directory named after a digest of the kernel's sources:
its file and all files of this package that it imports, directly or not, but not their path, so that an environment can
be moved with its kernels. (numba compares only the file of the function, and would reuse a kernel whose callee in
another file has changed.) The directories, in order of precedence:

    NUMBA_CACHE_DIR                         and no other, when it is set
    machine_code in this package            that of a wheel, for a level of processors (`codec.compiler.levels`)
    __pycache__ in this package
    wirehare in the user's cache directory

After all kernels have been compiled (`udfs.warm`), a directory named after all sources marks that: `all_compiled`.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import os
import re
import sys
import warnings
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar, cast

from codec.compiler import CACHE_DIR, PACKAGE, bases
from codec.compiler.levels import machine_code

DISABLE = "NUMBA_DISABLE_JIT"  # a variable of numba
COLD = "2"  # its value where kernels are interpreted because they are not compiled
SETTINGS = ("NUMBA_OPT", "NUMBA_BOUNDSCHECK")  # they change the machine code of the same sources
Kernel = TypeVar("Kernel", bound=Callable[..., Any])

_IMPORT = re.compile(r"^\s*(?:from|import)\s+(codec(?:\.\w+)*)(?:\s+import\s+(\([^)]*\)|[^\n]*))?", re.MULTILINE)


@functools.cache
def complete_name() -> str:
    """Name of the directory that marks that all kernels of these sources are compiled."""
    compiler = [version("numba"), sys.implementation.cache_tag, *map(os.environ.get, SETTINGS)]
    digest = hashlib.sha256(repr(compiler).encode())
    for path in sorted(PACKAGE.rglob("*.py")):
        digest.update(path.relative_to(PACKAGE).as_posix().encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return f"complete-{digest.hexdigest()[:16]}"


def all_compiled() -> bool:
    """Whether all kernels of these sources are compiled, on this machine or in the environment as it was installed."""
    packaged = None if os.environ.get(CACHE_DIR) else machine_code()
    return any((base / complete_name()).is_dir() for base in (*([packaged] if packaged else ()), *bases()))


@functools.cache
def imported(source: Path) -> list[Path]:
    """The files of this package that the import statements of `source` name."""
    found = []
    for module, names in _IMPORT.findall(source.read_text("utf-8")):
        path = PACKAGE.joinpath(*module.split(".")[1:])
        # a name imported from a package may be a module of it
        for candidate in (path, *(path / name for name in re.findall(r"\w+", names))):
            for file in (candidate.with_suffix(".py"), candidate / "__init__.py"):
                if file.is_file():
                    found.append(file)
    return found


@functools.cache
def _file_digest(source: Path) -> bytes:
    text = source.read_bytes()
    if b"\ndef layouts(" in text:  # all that kernels take from this module: its documentation compiles nothing anew
        module = ".".join((PACKAGE.name, *source.relative_to(PACKAGE).with_suffix("").parts))
        return hashlib.sha256(repr(importlib.import_module(module).layouts()).encode()).digest()
    return hashlib.sha256(text).digest()


@functools.cache
def kernels_digest(source: Path) -> str:
    """Digest of `source`, of every file of this package that it imports, directly or not, and of numba's settings."""
    sources: set[Path] = set()
    pending = [source]
    while pending:
        path = pending.pop()
        if path not in sources:
            sources.add(path)
            pending += imported(path)
    import numba

    settings = {name: str(getattr(numba.config, name)) for name in ("BOUNDSCHECK", "OPT")}
    digest = hashlib.sha256(repr(settings).encode())
    for path in sorted(sources):
        digest.update(path.relative_to(PACKAGE).as_posix().encode())
        digest.update(_file_digest(path))
    return digest.hexdigest()[:16]


def interpreted() -> bool:
    """Whether kernels that this process has not called yet run as plain Python."""
    return os.environ.get(DISABLE, "0").strip() not in ("", "0")


def interpret() -> None:
    """Run kernels as plain Python from now on: those that this process has not called yet, and all kernels of its child
    processes."""
    if not interpreted():
        os.environ[DISABLE] = COLD
    _wrap_silently()


def while_cold() -> bool:
    """Whether kernels run as plain Python because `interpret` was called."""
    return os.environ.get(DISABLE) == COLD


def _wrap_silently() -> None:
    """Numbers of hashes wrap by design, which compiled code does silently. `seterr` is about this thread alone."""
    import numpy as np

    np.seterr(over="ignore")
    warnings.filterwarnings("ignore", "overflow encountered in", RuntimeWarning)


if interpreted():
    _wrap_silently()


class LazyKernel:
    """A kernel that becomes a numba dispatcher (`codec.compiler.linking.KernelDispatcher`) when it is first called, or
    when a kernel that calls it is compiled. It has all attributes of that dispatcher."""

    def __init__(self, function: Callable[..., Any], options: dict[str, Any]) -> None:
        functools.update_wrapper(self, function)
        self._function, self._options = function, options

    def __call__(self, *args: Any) -> Any:
        return self._called(*args)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # of protocols that dispatchers do not have
            raise AttributeError(name)
        return getattr(self.dispatcher, name)

    @functools.cached_property
    def _called(self) -> Callable[..., Any]:
        return self._function if interpreted() else self.dispatcher

    @functools.cached_property
    def dispatcher(self) -> Any:
        """The dispatcher; its machine code is cached on disk."""
        from codec.compiler.cache import KernelCache
        from codec.compiler.linking import KernelDispatcher

        source = Path(self._function.__code__.co_filename)
        compiled: Any = KernelDispatcher(self._function, {}, self._options)
        if PACKAGE in source.parents:
            compiled._cache = KernelCache(self._function, f"kernels-{kernels_digest(source)}")
        else:
            compiled.enable_caching()
        return compiled


def _compile(function: Kernel, **options: Any) -> Kernel:
    """A kernel with these options of `numba.njit`."""
    return function if interpreted() else cast(Kernel, LazyKernel(function, options))


def njit(function: Kernel) -> Kernel:
    """Compile `function` in nopython mode, cached, without the GIL."""
    return _compile(function)


def kernel(function: Kernel) -> Kernel:
    """Compile `function` as `njit` does, without reference counts. It may slice arrays, but not allocate them.

    numba counts references to every array of every NamedTuple that a compiled function receives: often an atomic
    instruction for each array of each call. Functions over writers and tables (some 40 arrays) spend nine tenths of
    their time on that. numba does not compile a function without counts that allocates ("NRT required but not
    enabled").
    """
    return _compile(function, _nrt=False)


def inlined(function: Kernel) -> Kernel:
    """`kernel`, inlined into its callers with all kernels that it calls, since numba passes the option on: for
    functions that the hot path calls in one or two places. A call that passes a writer and the tables costs some
    hundred stores."""
    return _compile(function, _nrt=False, forceinline=True)


def outlined(function: Kernel) -> Kernel:
    """`kernel`, not inlined into an `inlined` caller, nor is what it calls: for what the hot path seldom calls. Without
    it LLVM gets a copy of such code for each call of the caller, and compiles for minutes."""
    return _compile(function, _nrt=False, forceinline=False)
