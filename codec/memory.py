"""Arrays as kernels need them, large ones of which little is used, and copies of bytes."""

from __future__ import annotations

import math
import mmap
from typing import Any, Literal

import numpy as np
from numpy.typing import DTypeLike, NDArray

from codec.compiler.kernel import kernel


def as_kernel_array(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """The values, read-only and contiguous: kernels are compiled for one kind of array."""
    values = np.ascontiguousarray(values)
    values.flags.writeable = False
    return values


def readonly(array: np.ndarray) -> np.ndarray:
    """A read-only view, for the same reason."""
    view = array.view()
    view.flags.writeable = False
    return view


class Record(np.void):  # type: ignore[misc]  # final in the stubs only
    """An element whose fields are attributes, ten times as fast as those of `np.record`."""

    def __getattr__(self, name: str) -> Any:
        return self[name]

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value


def as_records(array: np.ndarray) -> np.ndarray:
    """The structured array with elements that have its fields as attributes, as interpreted kernels read them. (Those
    of `np.recarray` have, too, but each slice of one takes ten microseconds.)"""
    return array.view(np.dtype((Record, array.dtype)))


def sparse_zeros(shape: int | tuple[int, ...], kind: DTypeLike, order: Literal["C", "F"] = "C") -> NDArray[np.generic]:
    """Zeros of which only the pages in use take memory and time. `np.zeros` writes all of them if it is given memory
    that was freed before, and asks for pages of 2 MB."""
    size = math.prod(shape if isinstance(shape, tuple) else (shape,)) * np.dtype(kind).itemsize
    if not size:
        return np.zeros(shape, kind, order)
    pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return np.frombuffer(pages, kind).reshape(shape, order=order)


@kernel
def copy_bytes(to, at, buf, start, end):
    """`to[at:]` = `buf[start:end]`."""
    # indexes from 0 on need no check for negative values, so LLVM vectorises these loops
    source, target = buf[start:end], to[at : at + end - start]
    for i in range(len(source)):
        target[i] = source[i]
