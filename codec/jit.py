"""How kernels are compiled.

`njit` compiles in nopython mode without the GIL. With NUMBA_DISABLE_JIT=1 the same functions run as plain Python:
that is the reference which the tests compare with, so kernels use no construct that only the compiler understands.
What Python calls becomes machine code, together with all kernels that it calls (`codec.linking`).

Machine code is cached (`codec.kernel_cache`) in a directory named after a digest of the sources that a kernel is made
of: its own file and all files of this package that it imports, directly or not. (numba itself only looks at the file of
the function at hand, and would go on using a kernel whose callee in another file has changed.) Settings that make other
machine code of the same sources are part of the digest. Nothing in it depends on where the package stands, so that an
environment that is packed with its kernels and unpacked elsewhere compiles nothing.
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import numba

from codec.kernel_cache import PACKAGE, KernelCache
from codec.linking import KernelDispatcher

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
    settings = {name: str(getattr(numba.config, name)) for name in ("BOUNDSCHECK", "OPT")}
    digest = hashlib.sha256(repr(settings).encode())
    for path in sorted(made_of):
        digest.update(path.relative_to(PACKAGE).as_posix().encode())
        digest.update(_octets_digest(path))
    return digest.hexdigest()[:16]


def compile_cached(**options: Any) -> Callable[[Kernel], Kernel]:
    """A decorator: a kernel with these options of `numba.njit`, cached if it is of this package."""

    def compile_one(function: Kernel) -> Kernel:
        if numba.config.DISABLE_JIT:
            return function
        source = Path(function.__code__.co_filename)
        compiled: Any = KernelDispatcher(function, {}, options)
        if PACKAGE in source.parents:
            compiled._cache = KernelCache(function, f"kernels-{kernels_digest(source)}")
        else:
            compiled.enable_caching()
        return cast(Kernel, compiled)

    return compile_one


def njit(function: Kernel) -> Kernel:
    """Compile `function` in nopython mode, cached, without the GIL."""
    return compile_cached()(function)
