"""Compiling, linking and caching of kernels, and the limits of the decoder. Here: the directories of machine code."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

CACHE_DIR = "NUMBA_CACHE_DIR"  # a variable of numba
PACKAGE = Path(__file__).resolve().parents[1]
PACKAGE_CACHE = PACKAGE / "__pycache__"


def bases() -> list[Path]:
    """The parent directories of cached kernels, in order of precedence."""
    if os.environ.get(CACHE_DIR):
        return [Path(os.environ[CACHE_DIR]).resolve()]
    found = [PACKAGE_CACHE]
    with suppress(RuntimeError):  # a user without a home directory
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        found.append(cache.resolve() / "wirehare")
    return found
