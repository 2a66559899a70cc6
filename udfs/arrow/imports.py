"""Importing pyarrow without pandas."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager


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
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
