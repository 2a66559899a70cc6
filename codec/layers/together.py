"""The layers of many short connections, whose TCP `codec.layers.short` has put in order: as
`codec.layers.connection.LayeredConnection` reads one, but one call of each kernel for all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from codec.amqp.connections.layered import SUMMARY_BYTES, summary
from codec.compiler.kernel import kernel
from codec.layers import short as S
from codec.layers.chunks import NO_CHUNKS, Chunks, Layer
from codec.layers.connection import EndedLayers, LayerStack, merge
from codec.layers.short import Short
from codec.memory import as_records
from codec.net.segments import ENDS_LAYERS, SEGMENT

FROM, TO, PACKETS_FROM, OF, CHUNKS, STEP_COLUMNS = 0, 1, 2, 3, 4, 5  # columns of `steps`


class Read(NamedTuple):
    """`segments`: of all connections, those of one up to its `ends` (int64), with its summary; `payload`: their bytes;
    `ended`: what remains of each."""

    segments: np.ndarray
    ends: np.ndarray
    payload: np.ndarray
    ended: list[EndedLayers]


@kernel
def merge_all(events, steps, event, direction, begin, size, totals, payload_at, out, ends):
    """`merge` for each row of `steps` int64 (n, STEP_COLUMNS): events, the first whose packets are written, the index
    of its connection in `totals` int64 (m, TOTALS, 2), the end of its chunks. Then its summary: that of the first
    connection has its payload at `payload_at`. `ends` int64 (m,): of its segments."""
    count = first = 0
    for k in range(len(steps)):
        step = steps[k]
        of, end = int(step[OF]), int(step[CHUNKS])
        count += merge(
            events[step[FROM] : step[TO]], int(step[PACKETS_FROM]), event[first:end], direction[first:end],
            begin[first:end], size[first:end], totals[of], out[count:],
        )  # fmt: skip
        if k + 1 == len(steps) or steps[k + 1, OF] != of:
            out[count] = events[step[TO] - 1]
            g = out[count]
            g.wire_len, g.cap_len, g.payload_at = 0, 0, payload_at + SUMMARY_BYTES * of
            g["flags"] = ENDS_LAYERS
            count += 1
        ends[of] = count
        first = end


class _Output:
    """Collects the chunks of connections, and the steps in which they become segments."""

    def __init__(self) -> None:
        self.columns: list[tuple[np.ndarray, ...]] = [NO_CHUNKS[:4]]
        self.octets: list[np.ndarray] = []
        self.steps: list[tuple[int, int, int, int, int]] = []
        self.used = self.chunks = 0

    def add(self, found: Chunks, begin: int, end: int, packets_from: int, of: int) -> None:
        """Add chunks of events `begin` to `end` of connection `of`."""
        if len(found.event):
            self.columns.append((found.event, found.direction, found.begin + self.used, found.size))
            self.octets.append(found.octets)
            self.used += len(found.octets)
            self.chunks += len(found.event)
        self.steps.append((begin, end, packets_from, of, self.chunks))


def read_all(short: Short, layers: Sequence[Layer], number: int) -> Read:
    """Read the first connections of `short`, which begin with these layers; their facts are numbered from `number`."""
    out, stacks, count = _Output(), list[LayerStack](), len(layers)
    rows, packets = short.rows[:count].tolist(), short.wire[:count, :, 0].tolist()
    for k, (row, layer) in enumerate(zip(rows, layers, strict=True)):
        stack, first, end = LayerStack(layer), row[S.EVENTS_FROM], row[S.EVENTS_TO]
        stacks.append(stack)
        before = first
        for to, chunks in _steps(short, row):
            out.add(stack.through(chunks), first, to, before - first, k)
            before = to
        rest = stack.rest(end - first, packets[k])
        if len(rest.event):
            out.add(rest, first, end + 1, end + 1 - first, k)
    event, direction, begin, size = (np.concatenate(column) for column in zip(*out.columns, strict=True))
    segments = np.empty(out.chunks + int(short.tcp.used[0]) + count, SEGMENT)
    ends, totals = np.zeros(count, np.int64), short.totals[:count]
    merge_all(
        short.tcp.out, np.array(out.steps), event, direction, begin, size, totals, out.used, as_records(segments), ends
    )
    ended = [
        stack.ended(dict(zip(S.WIRE, wire, strict=True)), of)
        for stack, wire, of in zip(stacks, short.wire[:count].transpose(0, 2, 1), totals, strict=True)
    ]
    summaries = summary(np.arange(number, number + count), np.array([each.counted for each in ended]))
    return Read(segments[: ends[-1]], ends, np.concatenate([*out.octets, summaries]), ended)


def _steps(short: Short, row: list[int]) -> Iterator[tuple[int, Chunks]]:
    """(end of the events, their chunks) of a connection, as `LayeredConnection` reads them: those of the segment with a
    header of the PROXY protocol, of the other segments, and of the end."""
    first, begin, end = row[S.EVENTS_FROM], row[S.CHUNKS_FROM], row[S.CHUNKS_TO]
    octets = short.tcp.octets[row[S.OCTETS_FROM] : row[S.OCTETS_TO]]
    cuts = [row[S.FED_TO]] if row[S.FED_TO] == row[S.EVENTS_TO] else [row[S.FED_TO], row[S.EVENTS_TO]]
    if row[S.HEADER]:
        cuts.insert(0, row[S.FIRST_TO])
    chunks = Chunks._make([*(column[begin:end] for column in short.chunks), octets])
    if len(cuts) == 1:
        yield cuts[0], chunks
        return
    stops = np.searchsorted(chunks.event, np.array(cuts) - first).tolist()
    for cut, start, stop in zip(cuts, [0, *stops], stops, strict=False):
        yield cut, chunks.part(start, stop)
