"""Rows of table messages for the messages in a batch of Azure, instead of one row for the batch.

The batch is one delivery: its messages share its frames, link, outcome and settlement. Each has its own properties,
size and hash, and its index in the batch. Python works per batch of frames.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from udfs.arrow.fields import heap_of, taken
from udfs.arrow.rows import Index, is_there, numbers_of, picked
from udfs.conversation.frames import FrameBatch

INSIDE = "inside"  # column of decoded frames: the messages in the batch that each frame completes
Integers = NDArray[np.int64]


class Batches:
    """The batches that frames complete."""

    def __init__(self, frames: FrameBatch) -> None:
        rows = frames.rows.filter(frames[INSIDE].is_valid())
        self._lists = rows[INSIDE]
        self._index = Index(numbers_of(rows["connection_id"]), numbers_of(rows["content_frame_no"]))

    def __len__(self) -> int:
        return len(self._lists)

    def of(self, connections: Integers, contents: Integers) -> Expanded:
        """The rows of some contents, one for each message in those that are batches."""
        return Expanded(self._lists, self._index.find(connections, contents))


class Expanded:
    """Rows for contents: `content` int64 (n,), the index of the content of each row; `batch_index`: column."""

    def __init__(self, lists: pa.ListArray, of_content: Integers) -> None:
        """`of_content`: the index of each content in `lists`, -1 where it is no batch."""
        ends = numbers_of(lists.offsets)
        begins, counts = (np.append(each, of_none) for each, of_none in ((ends[:-1], 0), (np.diff(ends), 1)))
        counts = counts[of_content]
        self.content = np.repeat(np.arange(len(of_content)), counts)
        self.first = np.cumsum(counts) - counts  # row of each content
        index = np.arange(len(self.content)) - np.repeat(self.first, counts)
        self._is_inside = (of_content >= 0)[self.content]
        self._at = np.where(self._is_inside, begins[of_content][self.content] + index, -1)
        self._messages = lists.values
        self.batch_index = pa.array(index.astype(np.int32), mask=~self._is_inside)

    def column(self, name: str, of_rows: pa.Array) -> pa.Array:
        """A column of the rows: that of the message in a batch, else `of_rows`."""
        both = pa.concat_arrays([of_rows, self._messages.field(name).cast(of_rows.type)])
        return picked(both, np.where(self._is_inside, len(of_rows) + self._at, np.arange(len(of_rows))))

    def bodies(self, of_contents: pa.Array) -> pa.Array:
        """The bytes of each message among those of its content."""
        heap = heap_of(of_contents)
        begins, sizes = heap.ends[:-1][self.content], np.diff(heap.ends)[self.content]
        offset, size = (numbers_of(picked(self._messages.field(name), self._at)) for name in ("offset", "size"))
        valid = is_there(of_contents)[self.content] & (~self._is_inside | (offset + size <= sizes))
        return taken(
            heap.octets,
            np.where(self._is_inside, begins + offset, begins),
            np.where(self._is_inside, size, sizes),
            valid,
        )
