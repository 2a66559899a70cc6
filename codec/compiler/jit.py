"""How kernels are compiled.

`njit` compiles in nopython mode without the GIL. With NUMBA_DISABLE_JIT=1, or after `interpret()`, the same functions
run as plain Python: that is the reference which the tests compare with, so kernels use no construct that only the
compiler understands. It is also how small captures are decoded before any kernel has been compiled: compiling takes
minutes, and interpreted kernels decode some 50 KB a second.
What Python calls becomes machine code, together with all kernels that it calls (`codec.compiler.linking`). numba, which
takes a process 0.3 s to import, comes with the first call: processes that only plan import modules of kernels and call
none.

Machine code is cached (`codec.compiler.cache`) in a directory named after a digest of the sources that a kernel is made
of: its own file and all files of this package that it imports, directly or not. (numba itself only looks at the file of
the function at hand, and would go on using a kernel whose callee in another file has changed.) Settings that make other
machine code of the same sources are part of the digest. Nothing in it depends on where the package stands, so that an
environment that is packed with its kernels and unpacked elsewhere compiles nothing.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

from codec.compiler.places import PACKAGE

DISABLE = "NUMBA_DISABLE_JIT"  # numba's own name for it
Kernel = TypeVar("Kernel", bound=Callable[..., Any])

_IMPORT = re.compile(r"^\s*(?:from|import)\s+(codec(?:\.\w+)*)(?:\s+import\s+(\([^)]*\)|[^\n]*))?", re.MULTILINE)


@functools.cache
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


@functools.cache
def _octets_digest(source: Path) -> bytes:
    return hashlib.sha256(source.read_bytes()).digest()


@functools.cache
def kernels_digest(source: Path) -> str:
    """Digest of `source`, of every file of this package that it is made of, and of the compiler's settings."""
    made_of: set[Path] = set()
    pending = [source]
    while pending:
        path = pending.pop()
        if path not in made_of:
            made_of.add(path)
            pending += imported(path)
    import numba

    settings = {name: str(getattr(numba.config, name)) for name in ("BOUNDSCHECK", "OPT")}
    digest = hashlib.sha256(repr(settings).encode())
    for path in sorted(made_of):
        digest.update(path.relative_to(PACKAGE).as_posix().encode())
        digest.update(_octets_digest(path))
    return digest.hexdigest()[:16]


def interpreted() -> bool:
    """Whether kernels run as plain Python, if they were not called before."""
    return os.environ.get(DISABLE, "0").strip() not in ("", "0")


def interpret() -> None:
    """Run kernels as plain Python from now on: those that this process has not called yet, and all of processes that it
    starts."""
    os.environ[DISABLE] = "1"


class LazyKernel:
    """A kernel that becomes one of numba's dispatchers (`codec.compiler.linking.KernelDispatcher`) when it is first
    called, or
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
        """The dispatcher, cached if the kernel is of this package."""
        from codec.compiler.cache import KernelCache
        from codec.compiler.linking import KernelDispatcher

        source = Path(self._function.__code__.co_filename)
        compiled: Any = KernelDispatcher(self._function, {}, self._options)
        if PACKAGE in source.parents:
            compiled._cache = KernelCache(self._function, f"kernels-{kernels_digest(source)}")
        else:
            compiled.enable_caching()
        return compiled


def compile_cached(**options: Any) -> Callable[[Kernel], Kernel]:
    """A decorator: a kernel with these options of `numba.njit`."""

    def compile_one(function: Kernel) -> Kernel:
        return function if interpreted() else cast(Kernel, LazyKernel(function, options))

    return compile_one


def njit(function: Kernel) -> Kernel:
    """Compile `function` in nopython mode, cached, without the GIL."""
    return compile_cached()(function)
