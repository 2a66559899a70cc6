"""Arrays whose indexes must not be negative.

Counted from the end, a negative index is legal in Python and in compiled kernels, with bounds checks too; in a kernel
that computes it from hostile bytes it is an error that would go unseen.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from codec.amqp import batches, decoder
from codec.amqp.decoder import Decoder
from codec.compiler import PACKAGE
from codec.framing import connection_state as parts
from codec.framing import connection_state as state

KERNELS = str(PACKAGE)
NO_KERNELS = {module.__file__ for module in (batches, decoder, parts, state)}  # Python, where -1 is the last row


class NegativeIndex(AssertionError):
    """An index or an end of a slice below zero."""


def _check(key: Any) -> None:
    for part in key if isinstance(key, tuple) else (key,):
        ends = (part.start, part.stop) if isinstance(part, slice) else (part,)
        negative = any(isinstance(end, int | np.integer) and end < 0 for end in ends)
        code = sys._getframe(2).f_code
        if negative and code.co_filename.startswith(KERNELS) and code.co_filename not in NO_KERNELS:
            raise NegativeIndex(f"index {key} in {code.co_name}")


class Checked:
    """Checks the keys of the class beside it."""

    def __getitem__(self, key: Any) -> Any:
        _check(key)
        return super().__getitem__(key)  # type: ignore[misc]

    def __setitem__(self, key: Any, value: Any) -> None:
        _check(key)
        super().__setitem__(key, value)  # type: ignore[misc]


class Guarded(Checked, np.ndarray):
    """An array."""


class GuardedTuple(Checked, tuple):  # type: ignore[type-arg]
    """A tuple."""


def guarded(value: Any) -> Any:
    """`value`, which holds arrays in tuples of tuples, with all of them guarded."""
    if isinstance(value, np.ndarray):
        return value.view(Guarded)
    if isinstance(value, tuple):
        parts = [guarded(part) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else GuardedTuple(parts)
    return value


def guard(of: Decoder) -> None:
    """Guard what a decoder reads and writes by computed indexes."""
    of.state, of.arguments, of.properties = guarded(of.state), guarded(of.arguments), guarded(of.properties)
    of.definitions = {family: guarded(tables) for family, tables in of.definitions.items()}


def guard_all() -> None:
    """Every decoder from now on."""
    plain = Decoder.__init__

    def init(self: Decoder, *arguments: Any, **named: Any) -> None:
        plain(self, *arguments, **named)
        guard(self)

    Decoder.__init__ = init  # type: ignore[method-assign]
