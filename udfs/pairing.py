"""Sorted messages in, flows out: the function that `mapInArrow` calls on partitions of publishes and deliveries.

Input: batches of the columns of `codec.pairing.Rows` and of the messages in `udfs.schemas.PARTS`, sorted by `key`,
`side`, `place` and time. Output: batches of PAIRED. Whole groups of one key are held, which are as a rule a publish and
its deliveries. Cost per batch, not per message: the kernel does the rest.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from pyspark.sql.types import BooleanType, DataType, LongType, StringType

from codec.pairing import DELIVERY, NOBODY, PUBLISH, Pairs, Rows, pairs_of
from udfs.schemas import OF_BOTH, PAIRED, PARTS
from udfs.settle import integers

ARROW_TYPES: dict[DataType, pa.DataType] = {
    LongType(): pa.int64(),
    StringType(): pa.string(),
    BooleanType(): pa.bool_(),
}
ARROW_FLOWS = pa.schema([(column.name, ARROW_TYPES[column.dataType]) for column in PAIRED.fields])


def pair_messages(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Sorted messages -> PAIRED rows, for `mapInArrow`."""
    held: list[pa.RecordBatch] = []
    for batch in batches:
        if batch.num_rows == 0:
            continue
        last = _last_group(batch)
        if last == 0 and held and held[-1]["key"][-1] == batch["key"][0]:
            held.append(batch)
            continue
        held.append(batch.slice(0, last))
        yield _flows(held)
        held = [batch.slice(last)]
    if held:
        yield _flows(held)


def _last_group(batch: pa.RecordBatch) -> int:
    """Where the group begins that further batches may go on with."""
    keys = integers(batch["key"])
    before = np.flatnonzero(keys != keys[-1])
    return int(before[-1]) + 1 if len(before) else 0


def _flows(held: list[pa.RecordBatch]) -> pa.RecordBatch:
    """The flows of whole groups."""
    messages = pa.Table.from_batches(held).combine_chunks()
    rows = Rows(*(integers(messages[name]) for name in Rows._fields))
    return _described(messages, rows, pairs_of(rows))


def _described(messages: pa.Table, rows: Rows, pairs: Pairs) -> pa.RecordBatch:
    numbers = np.arange(len(rows.key))
    firsts = np.flatnonzero((rows.side == DELIVERY) & (pairs.first == numbers))
    alone = np.flatnonzero((rows.side == PUBLISH) & (pairs.taken == 0))
    nobody = np.full(len(alone), NOBODY)
    places = {
        "publish": np.concatenate([pairs.publish[firsts], alone]),
        "first": np.concatenate([firsts, nobody]),
        "last": np.concatenate([pairs.last[firsts], nobody]),
    }
    delivered = len(firsts)
    either = np.concatenate([firsts, alone])
    columns = {name: _of(messages, name, either) for name in OF_BOTH}
    for part, shown in PARTS.items():
        columns |= {f"{part}_{name}": _of(messages, name, places[part]) for name in shown}
    repeats = np.concatenate([pairs.repeats[firsts], nobody])
    columns["repeats"] = pa.array(repeats, mask=np.arange(len(repeats)) >= delivered)
    columns["doubt"] = pa.array(np.concatenate([pairs.doubt[firsts], nobody]) == 1)
    return pa.RecordBatch.from_arrays([columns[name] for name in ARROW_FLOWS.names], schema=ARROW_FLOWS)


def _of(messages: pa.Table, name: str, places: np.ndarray) -> pa.Array:
    """A column's values at `places`; null where NOBODY is."""
    taken = messages[name].take(pa.array(places, mask=places == NOBODY))
    return taken.combine_chunks() if isinstance(taken, pa.ChunkedArray) else taken
