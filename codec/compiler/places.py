"""Where compiled kernels may be kept, and whether all of them are; no compiler is needed to ask.

The places, in the order in which they are looked at:

    NUMBA_CACHE_DIR                         and nothing else, where it is set
    __pycache__ beside this file
    wirehare in the user's cache directory

`codec.compiler.cache` says which of them are trusted. Once all kernels have been compiled (`udfs.warm`), a directory
that is named after all sources says so: `all_compiled`."""

from __future__ import annotations

import functools
import hashlib
import os
import sys
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]
BESIDE = PACKAGE / "__pycache__"
CACHE_DIR = "NUMBA_CACHE_DIR"
SETTINGS = ("NUMBA_OPT", "NUMBA_BOUNDSCHECK")  # which make other machine code of the same sources


def bases() -> list[Path]:
    """Where directories of kernels may be, in the order in which they are looked at."""
    if os.environ.get(CACHE_DIR):
        return [Path(os.environ[CACHE_DIR]).resolve()]
    found = [BESIDE]
    with suppress(RuntimeError):  # a user without a home
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        found.append(cache.resolve() / "wirehare")
    return found


@functools.cache
def complete_name() -> str:
    """Name of the directory that says that all kernels of these sources are compiled."""
    made_by = [version("numba"), sys.implementation.cache_tag, *map(os.environ.get, SETTINGS)]
    digest = hashlib.sha256(repr(made_by).encode())
    for path in sorted(PACKAGE.rglob("*.py")):
        digest.update(path.relative_to(PACKAGE).as_posix().encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return f"complete-{digest.hexdigest()[:16]}"


def all_compiled() -> bool:
    """Whether all kernels of these sources have been compiled on this machine, or come with the environment."""
    return any((base / complete_name()).is_dir() for base in bases())
