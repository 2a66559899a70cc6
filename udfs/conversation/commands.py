"""Commands to a transaction coordinator of 1.0: transfers whose body is one, and no message (4.2, 4.5)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from udfs.arrow.fields import fields, inside, values_of
from udfs.arrow.rows import is_among, one_of, picked


@dataclass(frozen=True)
class Commands:
    """`carriers`: names of frames that may carry one; `types`: of bodies that are one."""

    carriers: tuple[str, ...]
    types: tuple[str, ...]

    def of(self, frames: pa.RecordBatch) -> pa.StringArray:
        """Of each of `frames` (with `name`, `properties`) the command that it carries, or null."""
        carries = is_among(frames["name"], *self.carriers)
        if not carries.any():
            return pa.nulls(frames.num_rows, pa.string())
        bodies = inside(values_of(frames["properties"].take(pa.array(np.flatnonzero(carries)))), "body")
        kinds = fields(bodies, {"type": "string"})["type"]
        kinds = pc.if_else(one_of(kinds, self.types), kinds, pa.scalar(None, pa.string()))
        return picked(kinds, np.where(carries, np.cumsum(carries) - 1, -1))
