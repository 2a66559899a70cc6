"""How kernels are compiled, and where their machine code is kept.

`njit` compiles in nopython mode without the GIL. With NUMBA_DISABLE_JIT=1 the same functions run as plain Python: that is
the reference which the tests compare with, so kernels use no construct that only the compiler understands.

Machine code is cached in a directory named after a digest of all sources of this package: numba itself only looks at the
file of the function at hand, and would go on using a kernel whose callee in another file has changed. The directory is
`__pycache__/kernels-DIGEST` beside this file, or below the user's cache directory where that cannot be written (an
installed package on a cluster executor); NUMBA_CACHE_DIR overrides both.
"""

from __future__ import annotations

import functools
import hashlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numba

Kernel = TypeVar("Kernel", bound=Callable[..., Any])


def _writable(directory: Path) -> bool:
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            return True
    except OSError:
        return False


@functools.lru_cache
def cache_directory() -> str:
    """Where compiled kernels of exactly these sources are kept."""
    package = Path(__file__).parent
    digest = hashlib.sha256()
    for source in sorted(package.rglob("*.py")):
        digest.update(source.relative_to(package).as_posix().encode())
        digest.update(source.read_bytes())
    name = f"kernels-{digest.hexdigest()[:16]}"
    user_cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    for parent in (package / "__pycache__", user_cache / "wirehare"):
        if _writable(parent / name):
            return str(parent / name)
    return str(Path(tempfile.gettempdir()) / f"wirehare-{os.getuid()}" / name)


def compile_cached(**options: Any) -> Callable[[Kernel], Kernel]:
    """A decorator: `numba.njit` with these options, cached in `cache_directory`."""

    def compile_one(function: Kernel) -> Kernel:
        before = numba.config.CACHE_DIR
        numba.config.CACHE_DIR = before or cache_directory()  # read when the function is decorated
        try:
            compiled: Kernel = numba.njit(cache=True, nogil=True, **options)(function)
        finally:
            numba.config.CACHE_DIR = before
        return compiled

    return compile_one


def njit(function: Kernel) -> Kernel:
    """Compile `function` in nopython mode, cached, without the GIL."""
    return compile_cached()(function)
