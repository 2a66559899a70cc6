"""A transaction of 1.0 that stays open while messages go by: its state is bounded."""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest
from test_conversation import FRAMES, opening, performative, table

from benchmarks.processes import RESET_PEAK, peak_bytes
from codec.compiler.limits import Limits
from codec.variant import encode
from pipeline.tables.decoding import config
from udfs.arrow.types import VARIANT
from udfs.conversation.frame_batch import FrameBatch
from udfs.tables import conversation
from udfs.tables.conversation import Conversation

BATCH = 1 << 14
INSIDE = {"type": "transactional-state", "txn_id": b"t"}
FIRST = 0x11000000  # of delivery ids, which take four bytes each
MOST_BYTES = 1250  # a message, and BESIDES; 1.1 KB and 250 MB were measured
BESIDES = 250_000_000


def declaring() -> list[dict[str, object]]:
    """A link for messages, one to the coordinator, and a transaction that is declared on it."""
    frames = opening({"type": "coordinator"})
    declare = {"content_frame_no": len(frames) + 1, "properties": {"body": {"type": "declare"}}}
    return [*frames, performative("client", "transfer", handle=1, delivery_id=1, **declare)]


def with_numbers(arguments: dict[str, object], numbers: np.ndarray) -> pa.StructArray:
    """The same VARIANT for each of `numbers`, which stand in it where FIRST is."""
    value, metadata = encode(arguments)
    data = np.tile(np.frombuffer(value, np.uint8), (len(numbers), 1))
    marker, at = FIRST.to_bytes(4, "little"), -1
    while (at := value.find(marker, at + 1)) >= 0:
        data[:, at : at + 4] = numbers.astype("<u4").view(np.uint8).reshape(-1, 4)
    ends = pa.py_buffer(np.arange(len(numbers) + 1, dtype=np.int32) * len(value))
    values = pa.Array.from_buffers(pa.binary(), len(numbers), [None, ends, pa.py_buffer(data)])
    return pa.StructArray.from_arrays([values, pa.repeat(pa.scalar(metadata), len(numbers))], fields=list(VARIANT))


def accepted_transfers(count: int) -> Iterator[pa.RecordBatch]:
    """So many transfers of the client, each accepted at once, in the transaction, which is committed at last."""
    begun = declaring()
    yield from table(begun).to_batches()
    transfer = {"content_frame_no": 1, "body_sha256": "a", "properties": {}, "state": INSIDE}
    accepted = {"role": True, "settled": True, "state": {**INSIDE, "outcome": {"type": "accepted"}}}
    models = (
        performative("client", "transfer", handle=0, delivery_id=FIRST, **transfer),
        performative("server", "disposition", first=FIRST, **accepted),
    )
    rows = table([*models] * BATCH).combine_chunks()
    for first in range(0, count, BATCH):
        size = min(BATCH, count - first)
        numbers = FIRST + first + np.arange(size)
        frame_no = len(begun) + 1 + 2 * first + np.arange(2 * size)
        parts = [with_numbers(model["arguments"], numbers) for model in models]
        arguments = pa.concat_arrays(parts).take(pa.array(np.arange(2 * size).reshape(2, size).T.reshape(-1)))
        columns = {name: rows[name].combine_chunks().slice(0, 2 * size) for name in FRAMES.names}
        columns |= {"frame_no": pa.array(frame_no), "ts_ns": pa.array(frame_no * 1000), "arguments": arguments}
        columns["content_frame_no"] = pa.array(frame_no, mask=frame_no % 2 == len(begun) % 2)
        yield pa.RecordBatch.from_arrays([columns[name] for name in FRAMES.names], schema=FRAMES)
    last = len(begun) + 1 + 2 * count
    body = {"content_frame_no": last, "properties": {"body": {"type": "discharge", "txn_id": b"t", "fail": False}}}
    ends = [
        performative("client", "transfer", handle=1, delivery_id=2, **body),
        performative("server", "disposition", first=2, role=True, settled=True, state={"type": "accepted"}),
    ]
    rows = table(ends)
    for name, step in (("frame_no", 1), ("ts_ns", 1000)):
        indices = pa.array([step * last, step * (last + 1)])
        rows = rows.set_column(FRAMES.get_field_index(name), FRAMES.field(name), indices)
    yield from rows.combine_chunks().to_batches()


def outcomes_of(count: int) -> tuple[list[str], Conversation]:
    found, followed = list[str](), Conversation(config())
    for batch in accepted_transfers(count):
        for name, rows in followed.feed(FrameBatch(batch)):
            found += rows["outcome"].to_pylist() if name == "messages" else []
    for name, rows in followed.finish():
        found += rows["outcome"].to_pylist() if name == "messages" else []
    return found, followed


def test_outcomes_of_emitted_messages_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the limit; before that, all of them wait for the end of the transaction."""
    monkeypatch.setattr(conversation, "LIMITS", Limits(outstanding_messages=1000))
    monkeypatch.setattr(conversation, "WAITING_BYTES", 0)
    followed, events = Conversation(config()), []
    for batch in accepted_transfers(8 * BATCH):
        for _ in followed.feed(FrameBatch(batch)):
            pass
        events.append(followed._sessions.record_bytes)
    # For the last two frames, nothing final is looked for: the discharge and its disposition are an event each, of 15
    # numbers of 8 bytes.
    assert max(events[4:-1]) <= events[3]
    assert events[-1] - events[3] <= 2 * 15 * 8
    assert followed.over_limit == {7}


@pytest.mark.parametrize("count", [100_000, pytest.param(1_000_000, marks=pytest.mark.slow)])
def test_many_transfers_in_one_open_transaction(count: int) -> None:
    with open("/proc/self/clear_refs", "w") as refs:
        refs.write(RESET_PEAK)
    before = peak_bytes(os.getpid())
    outcomes, followed = outcomes_of(count)
    assert outcomes == ["confirmed"] * count
    assert not followed.over_limit
    assert peak_bytes(os.getpid()) - before < BESIDES + count * MOST_BYTES
