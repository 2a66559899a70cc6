"""Dictionary-encoded texts: numbers that kernels have for texts become dictionary indices, without a copy per row."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from codec.text import escaped

FEW_TEXTS = 64
MOST_TEXTS = 1 << 16  # remembered for later connections


class TextTable(NamedTuple):
    """Texts by number. `texts`: each distinct one once; `indices` int32: index in `texts` by number, the last entry for
    number -1; -1: null."""

    texts: pa.StringArray
    indices: NDArray[np.int32]

    @classmethod
    def of(cls, texts: Sequence[str | None]) -> TextTable:
        """Number n stands for `texts[n]`."""
        encoded = pa.array([*texts, None], pa.string()).dictionary_encode()
        return cls(encoded.dictionary, encoded.indices.fill_null(-1).to_numpy())

    def column(self, numbers: NDArray[np.int64]) -> pa.DictionaryArray:
        """The texts of `numbers`, dictionary-encoded; -1 is null."""
        return pa.DictionaryArray.from_arrays(nullable(self.indices[numbers]), self.texts)


def missing(values: NDArray[np.signedinteger]) -> NDArray[np.bool_] | None:
    """Where values are negative, which means null; None: nowhere."""
    negative = values < 0
    return negative if negative.any() else None


def nullable(values: NDArray[np.signedinteger]) -> pa.Array:
    """A column of integers; negative ones are null."""
    return pa.array(values, mask=missing(values))


def each_once(
    made: Callable[[Any], Any], keys: NDArray[Any], kind: pa.DataType, where: NDArray[np.bool_] | None = None
) -> pa.Array:
    """What `made` gives for each of `keys` (numbers, or rows of numbers); it is called once for each distinct one. Null
    elsewhere than `where`."""
    chosen = np.ones(len(keys), np.bool_) if where is None else where
    if not chosen.any():
        return pa.nulls(len(keys), kind)
    distinct, index = np.unique(keys[chosen], axis=0 if keys.ndim > 1 else None, return_inverse=True)
    places = np.full(len(keys), -1)
    places[chosen] = index.reshape(-1)
    return pa.array([made(key) for key in distinct.tolist()], kind).take(nullable(places))


def by_distinct(function: Callable[..., Any], kind: pa.DataType, *columns: pa.Array) -> pa.Array:
    """`function` of the values of each row, called once for each distinct row; null where one of `columns` is null."""
    codes = columns[0].dictionary_encode().indices
    for column in columns[1:]:
        encoded = column.dictionary_encode()
        # Numbers stay below rows², however many columns follow.
        number = pc.add(pc.multiply(codes.cast(pa.int64()), len(encoded.dictionary)), encoded.indices.cast(pa.int64()))
        codes = number.dictionary_encode().indices
    distinct, first = np.unique(codes.fill_null(-1), return_index=True)
    places = pa.array(first[distinct >= 0])
    rows = zip(*(column.take(places).to_pylist() for column in columns), strict=True)
    return pa.array([function(*row) for row in rows], kind).take(codes)


class Numbers:
    """Texts seen so far, numbered from 1; 0 is null."""

    def __init__(self, texts: Iterable[str] = ()) -> None:
        self.texts = list(texts)
        self.numbers = {text: number for number, text in enumerate(self.texts, start=1)}

    def of(self, column: pa.Array) -> NDArray[np.int64]:
        """The number of each text; not writeable, as `integers`."""
        if column.null_count == len(column):
            nothing = np.zeros(len(column), np.int64)
            nothing.flags.writeable = False
            return nothing
        encoded = column.dictionary_encode()
        # Spark passes octets from the wire on that are not UTF-8.
        octets = encoded.dictionary.cast(pa.binary()).to_pylist()
        numbers = self.numbered(escaped(text) for text in octets)
        found: NDArray[np.int64] = np.array([0, *numbers])[encoded.indices.fill_null(-1).to_numpy() + 1]
        found.flags.writeable = False
        return found

    def numbered(self, texts: Iterable[str]) -> list[int]:
        return [self._number(text) for text in texts]

    def _number(self, text: str) -> int:
        number = self.numbers.setdefault(text, len(self.texts) + 1)
        if number > len(self.texts):
            self.texts.append(text)
        return number

    def column(self, numbers: NDArray[np.int64]) -> pa.Array:
        if len(self.texts) <= FEW_TEXTS:
            return pa.array([None, *self.texts], pa.string()).take(pa.array(numbers))
        # Only the texts of this batch: all texts seen so far would be too many.
        used = np.zeros(len(self.texts) + 1, np.bool_)
        used[numbers] = True
        own = [None, *(self.texts[number - 1] for number in np.flatnonzero(used[1:]) + 1)]
        used[0] = True
        return pa.array(own, pa.string()).take(pa.array((np.cumsum(used) - 1)[numbers]))
