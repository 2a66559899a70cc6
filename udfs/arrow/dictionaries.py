"""Columns of few texts: what the decoder has as numbers becomes codes of words, and no text is copied for a row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray


class Words(NamedTuple):
    """Texts by number. `words`: each of them once; `codes` int32: which one a number stands for, the last of them what
    -1 does; -1: null."""

    words: pa.StringArray
    codes: NDArray[np.int32]

    @classmethod
    def of(cls, texts: Sequence[str | None]) -> Words:
        """Number n stands for `texts[n]`."""
        encoded = pa.array([*texts, None], pa.string()).dictionary_encode()
        return cls(encoded.dictionary, encoded.indices.fill_null(-1).to_numpy())

    def column(self, numbers: NDArray[np.int64]) -> pa.DictionaryArray:
        """The texts of `numbers`, coded; -1 is null."""
        codes = self.codes[numbers]
        return pa.DictionaryArray.from_arrays(pa.array(codes, mask=missing(codes)), self.words)


def missing(values: NDArray[np.signedinteger]) -> NDArray[np.bool_] | None:
    """Where values are negative, which stands for null; None: nowhere."""
    negative = values < 0
    return negative if negative.any() else None
