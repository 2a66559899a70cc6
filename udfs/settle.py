"""Settlement events in, settled messages out: the function that `mapInArrow` calls on partitions of sorted events.

Input: batches of EVENT columns, ledger by ledger, each ledger in the order of frames, openings first. Output: batches
of SETTLED. Nothing is held but the ledger at hand, of that what is outstanding. Cost per batch, not per event: the
kernel does the rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from codec.settled import has_notes
from codec.settlement import (
    OUTSTANDING,
    Events,
    Settled,
    end_ledger,
    new_ledger,
    new_settled,
    settle,
    with_room,
)
from codec.text import escaped
from udfs.rows import integers

TRANSACTIONS = ("committed", "rolled-back")  # COMMITTED, ROLLED_BACK
ARROW_SETTLED = pa.schema(
    [
        ("connection_id", pa.int64()),
        ("frame_no", pa.int64()),
        ("outcome", pa.string()),
        ("settled_ts_ns", pa.int64()),
        ("settled_frame_no", pa.int64()),
        ("transaction", pa.string()),
        ("ledger", pa.int64()),
    ]
)


class Numbers:
    """Texts met so far, numbered from 1; 0 is null."""

    def __init__(self, texts: Iterable[str] = ()) -> None:
        self.texts = list(texts)
        self.numbers = {text: number for number, text in enumerate(self.texts, start=1)}

    def of(self, column: pa.Array) -> NDArray[np.int64]:
        """The number of each text; not writeable, as `integers`."""
        encoded = column.dictionary_encode()
        # Spark hands on octets from the wire that are not UTF-8.
        octets = encoded.dictionary.cast(pa.binary()).to_pylist()
        numbers = [self._number(escaped(text)) for text in octets]
        found: NDArray[np.int64] = np.array([0, *numbers])[encoded.indices.fill_null(-1).to_numpy() + 1]
        found.flags.writeable = False
        return found

    def _number(self, text: str) -> int:
        number = self.numbers.setdefault(text, len(self.texts) + 1)
        if number > len(self.texts):
            self.texts.append(text)
        return number

    def column(self, numbers: NDArray[np.int64]) -> pa.Array:
        """The texts of `numbers`."""
        # Only those that are there: all texts met so far would be too many for every batch.
        distinct, places = np.unique(numbers, return_inverse=True)
        texts = [self.texts[number - 1] if number else None for number in distinct.tolist()]
        return pa.array(texts, pa.string()).take(pa.array(places))


def settle_events(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Sorted events (columns of `pipeline.tables.settlement.EVENT`) -> SETTLED rows, for `mapInArrow`."""
    outcomes, transactions = Numbers(), Numbers(TRANSACTIONS)
    ledger = new_ledger()

    def shown(rows: Settled, n: int) -> pa.RecordBatch:
        open_still = rows.settled_frame_no[:n] < 0
        columns = {
            "connection_id": pa.array(rows.connection[:n]),
            "frame_no": pa.array(rows.frame_no[:n]),
            "outcome": outcomes.column(rows.outcome[:n]),
            "settled_ts_ns": pa.array(rows.settled_ns[:n], mask=open_still),
            "settled_frame_no": pa.array(rows.settled_frame_no[:n], mask=open_still),
            "transaction": transactions.column(rows.transaction[:n]),
            "ledger": pa.array(rows.ledger[:n]),
        }
        return pa.RecordBatch.from_arrays([columns[name] for name in ARROW_SETTLED.names], schema=ARROW_SETTLED)

    for batch in batches:
        events = Events(
            connection=integers(batch["connection_id"]),
            ledger=integers(batch["ledger"]),
            frame_no=integers(batch["frame_no"]),
            opens=integers(batch["opens"]),
            first=integers(batch["first"]),
            last=integers(batch["last"]),
            outcome=outcomes.of(batch["outcome"]),
            final=integers(batch["final"]),
            effective_ns=integers(batch["effective_ts_ns"]),
            transaction=transactions.of(batch["transaction"]),
        )
        openings = int(events.opens.sum())
        ledger = with_room(ledger, openings, has_notes(events))
        rows = new_settled(int(ledger.state[OUTSTANDING]) + openings)
        n = int(settle(ledger, events, rows))
        if n:
            yield shown(rows, n)
    rows = new_settled(int(ledger.state[OUTSTANDING]))
    n = int(end_ledger(ledger, rows, 0))
    if n:
        yield shown(rows, n)
