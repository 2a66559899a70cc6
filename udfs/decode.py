"""Runs in, decoded rows out: the function that `mapInArrow` calls on every partition of sorted runs.

Input: batches of `TCP_RUNS` rows, flow by flow, each flow ordered by (order_ns, capture_file, first_packet_no).
Output: batches of `DECODED` rows: frames, the facts of every TCP connection, and the accounts of the splits, which
pass through.

Runs of one flow may overlap in time when several files captured it: a run is decoded only up to the first packet of
the run that follows, so that packets are taken strictly in the order (order_ns, file, packet_no) however they were
cut. Nothing is held but the connection at hand and the runs that overlap. Cost per run, not per packet: the kernels
do the rest.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from codec.amqp import rows as R
from codec.amqp.decoder import Batch, Decoder, Facts
from codec.amqp.names import NAMES
from codec.amqp.notes import note_names
from codec.amqp.versions import BODY, ERRORS, FRAME_TYPES, STATUSES, VERSIONS
from codec.net.runs import gather_payloads
from codec.net.segments import SEGMENT
from codec.variant import encode
from udfs.arrow import TIMESTAMP, VARIANT, arrow_schema
from udfs.payloads import Payloads
from udfs.schemas import DECODED
from udfs.words import Words, missing

ARROW_DECODED = arrow_schema(DECODED)

# Two hexadecimal digits for each octet.
_DIGITS = np.frombuffer(b"".join(b"%02x" % octet for octet in range(256)), np.uint16)


class Files:
    """Capture files met so far, by number."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.numbers: dict[str, int] = {}

    def number(self, name: str) -> int:
        """The number of `name`, given on first sight."""
        number = self.numbers.setdefault(name, len(self.names))
        if number == len(self.names):
            self.names.append(name)
        return number


_SENDERS, _VERSIONS, _FRAME_TYPES = Words.of(("client", "server")), Words.of(VERSIONS), Words.of(FRAME_TYPES)
_NAMES, _STATUSES, _ERRORS = Words.of(NAMES), Words.of(STATUSES), Words.of(ERRORS)


def _integers(cells: np.ndarray, column: int, kind: type[np.signedinteger], nullable: bool = True) -> pa.Array:
    values = cells[:, column].astype(kind)
    return pa.array(values, mask=missing(values) if nullable else None)


def _named(cells: np.ndarray, column: int, words: Words) -> pa.Array:
    return words.column(cells[:, column])


def _binary(heap: np.ndarray, ends: np.ndarray, valid: np.ndarray | None) -> pa.Array:
    """Binary array over a heap of values end to end; `valid` False: null."""
    offsets = np.zeros(len(ends) + 1, np.int32)
    offsets[1:] = ends
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(heap.tobytes())]
    if valid is not None:
        buffers[0] = pa.py_buffer(np.packbits(valid, bitorder="little").tobytes())
    return pa.Array.from_buffers(pa.binary(), len(ends), buffers)


def variant_column(value: np.ndarray, metadata: np.ndarray, cells: np.ndarray, at: int) -> pa.Array:
    """VARIANT column from the heaps of a writer: null where a row wrote nothing."""
    ends = np.ascontiguousarray(cells[:, at])
    valid = np.diff(ends, prepend=0) > 0
    children = [_binary(value, ends, None), _binary(metadata, np.ascontiguousarray(cells[:, at + 1]), None)]
    return pa.StructArray.from_arrays(children, fields=list(VARIANT), mask=pa.array(~valid))


def _notes(cells: np.ndarray) -> pa.Array:
    """Names of what is noted; null where nothing is. Each distinct set is put into words once."""
    kind = pa.list_(pa.string())
    if not cells[:, R.NOTES].any():
        return pa.nulls(len(cells), kind)
    masks, index = np.unique(cells[:, R.NOTES], return_inverse=True)
    names = pa.array([note_names(int(mask)) for mask in masks], kind)
    return names.take(pa.array(index.reshape(-1)))


def _digests(batch: Batch) -> pa.Array:
    """SHA-256 in hex for the rows that have one."""
    valid = batch.cells[:, R.DIGEST] == 1
    text = _DIGITS[batch.digest[valid]].view(np.uint8)
    ends = np.cumsum(np.where(valid, 64, 0), dtype=np.int64)
    return _binary(text.reshape(-1), ends, valid).view(pa.string())


class Rows(NamedTuple):
    """A batch of the stream decoder, and what its rows are shown with."""

    batch: Batch
    files: list[str]
    keep_payload: bool


def _payload(rows: Rows) -> pa.Array:
    cells = rows.batch.cells
    if not rows.keep_payload:
        return pa.nulls(len(cells), pa.binary())
    ends = cells[:, R.PAYLOAD_END] - rows.batch.payload_from
    has_payload = (cells[:, R.TYPE] == BODY) | (np.diff(ends, prepend=0) > 0)
    return _binary(rows.batch.payload, ends, has_payload)


# The columns of rows of kind 'frame'.
_OF_FRAMES: dict[str, Callable[[Rows], pa.Array]] = {
    "kind": lambda rows: pa.repeat(pa.scalar("frame"), len(rows.batch.cells)),
    "connection_id": lambda rows: _integers(rows.batch.cells, R.CONNECTION, np.int64, False),
    "frame_no": lambda rows: _integers(rows.batch.cells, R.FRAME_NO, np.int64, False),
    "sender": lambda rows: _named(rows.batch.cells, R.SENDER, _SENDERS),
    "ts": lambda rows: pa.array(rows.batch.cells[:, R.TS] // 1000).cast(TIMESTAMP),
    "ts_ns": lambda rows: _integers(rows.batch.cells, R.TS, np.int64, False),
    "first_ts_ns": lambda rows: _integers(rows.batch.cells, R.FIRST_TS, np.int64, False),
    "capture_file": lambda rows: _named(rows.batch.cells, R.FILE, Words.of(rows.files)),
    "first_packet_no": lambda rows: _integers(rows.batch.cells, R.FIRST_PACKET, np.int64),
    "packet_no": lambda rows: _integers(rows.batch.cells, R.PACKET, np.int64),
    "stream_offset": lambda rows: _integers(rows.batch.cells, R.OFFSET, np.int64),
    "size": lambda rows: _integers(rows.batch.cells, R.SIZE, np.int64),
    "version": lambda rows: _named(rows.batch.cells, R.VERSION, _VERSIONS),
    "version_known": lambda rows: pa.array(rows.batch.cells[:, R.KNOWN] == 1),
    "channel": lambda rows: _integers(rows.batch.cells, R.CHANNEL, np.int32),
    "frame_type": lambda rows: _named(rows.batch.cells, R.TYPE, _FRAME_TYPES),
    "class_id": lambda rows: _integers(rows.batch.cells, R.CLASS, np.int32),
    "method_id": lambda rows: _integers(rows.batch.cells, R.METHOD_ID, np.int32),
    "code": lambda rows: _integers(rows.batch.cells, R.CODE, np.int64),
    "name": lambda rows: _named(rows.batch.cells, R.NAME, _NAMES),
    "arguments": lambda rows: variant_column(
        rows.batch.arguments, rows.batch.arguments_metadata, rows.batch.cells, R.ARGUMENTS_END
    ),
    "properties": lambda rows: variant_column(
        rows.batch.properties, rows.batch.properties_metadata, rows.batch.cells, R.PROPERTIES_END
    ),
    "body_size": lambda rows: _integers(rows.batch.cells, R.BODY_SIZE, np.int64),
    "payload_size": lambda rows: _integers(rows.batch.cells, R.PAYLOAD_SIZE, np.int64),
    "payload": _payload,
    "status": lambda rows: _named(rows.batch.cells, R.STATUS, _STATUSES),
    "error": lambda rows: _named(rows.batch.cells, R.ERROR, _ERRORS),
    "notes": lambda rows: _notes(rows.batch.cells),
    "content_frame_no": lambda rows: _integers(rows.batch.cells, R.CONTENT, np.int64),
    "body_sha256": lambda rows: _digests(rows.batch),
}


def frame_rows(
    batch: Batch,
    files: list[str],
    keep_payload: bool,
    names: Sequence[str] = ARROW_DECODED.names,
    coded: bool = False,
) -> pa.RecordBatch:
    """A batch of the stream decoder as DECODED rows of kind 'frame', with the columns `names`; `coded`: texts that the
    decoder has as numbers are columns with a dictionary (`udfs.words`), which Spark does not read."""
    rows = Rows(batch, files, keep_payload)
    columns = [_OF_FRAMES[name](rows) for name in names]
    if not coded:
        columns = [column.cast(ARROW_DECODED.field(name).type) for name, column in zip(names, columns, strict=True)]
    return pa.RecordBatch.from_arrays(columns, names=list(names))


def fact_rows(kind: str, rows: list[dict[str, Any]]) -> pa.RecordBatch:
    """DECODED rows of kind 'connection' or 'capture': `facts` as VARIANT in arguments, other columns by name."""
    columns = []
    for column in ARROW_DECODED:
        if column.name == "kind":
            columns.append(pa.repeat(pa.scalar(kind), len(rows)))
        elif column.name == "arguments":
            encoded = [encode(row["facts"]) for row in rows]
            children = [pa.array([part[i] for part in encoded], pa.binary()) for i in (0, 1)]
            columns.append(pa.StructArray.from_arrays(children, fields=list(VARIANT)))
        else:
            columns.append(pa.array([row.get(column.name) for row in rows], column.type))
    return pa.RecordBatch.from_arrays(columns, schema=ARROW_DECODED)


def connection_rows(ended: list[Facts]) -> pa.RecordBatch:
    """The facts of connections that have ended as DECODED rows of kind 'connection'."""
    return fact_rows(
        "connection",
        [
            {
                "connection_id": fact.connection_id,
                "ts": fact.first_ns // 1000,
                "ts_ns": fact.first_ns,
                "version": VERSIONS[fact.version],
                "version_known": fact.version_known,
                "facts": fact.facts,
            }
            for fact in ended
        ],
    )


class FlowOrder:
    """Puts the segments of one flow in their order (order_ns, file, packet_no) across runs that overlap in time."""

    def __init__(self) -> None:
        self.segments = np.zeros(0, SEGMENT)
        self.payload = np.zeros(0, np.uint8)
        self.names: list[str] = []

    def add(
        self, segments: np.ndarray, payload: np.ndarray, file: int, names: list[str]
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Take the next run; gives what comes before its first packet: nothing that follows can precede that."""
        self.names = names
        segments = segments.copy()
        segments["file"] = file
        if len(self.segments) and len(segments):
            ready = self._before(segments[0])
            if ready:
                yield self.segments[:ready], self.payload
                self.segments = self.segments[ready:]
        if not len(self.segments):
            self.segments, self.payload = segments, payload
            return
        # Only what is needed of both: they may be maps of large parts of a file.
        (held, held_ends), (added, added_ends) = (
            gather_payloads(*part) for part in ((self.payload, self.segments), (payload, segments))
        )
        self.segments["payload_at"] = held_ends[:-1]
        segments["payload_at"] = added_ends[:-1] + len(held)
        self.payload = np.concatenate([held, added])
        merged = np.concatenate([self.segments, segments])
        rank = {number: place for place, number in enumerate(sorted(range(len(names)), key=names.__getitem__))}
        places = np.array([rank[i] for i in range(len(names))])[merged["file"]]
        self.segments = merged[np.lexsort((merged["packet_no"], places, merged["order_ns"]))]

    def rest(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """The flow has no more runs."""
        if len(self.segments):
            yield self.segments, self.payload
        self.segments = np.zeros(0, SEGMENT)

    def _before(self, first: Any) -> int:
        """How many waiting segments come before `first`."""
        waiting = self.segments
        earlier = int(np.searchsorted(waiting["order_ns"], first["order_ns"], "left"))
        name = self.names[first["file"]]
        while earlier < len(waiting) and waiting["order_ns"][earlier] == first["order_ns"]:
            other = self.names[waiting["file"][earlier]]
            if (other, waiting["packet_no"][earlier]) >= (name, first["packet_no"]):
                break
            earlier += 1
        return earlier


def decode_runs(
    payload: bool = False, coded: bool = False
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function for `mapInArrow` over sorted runs; `payload`: also hand out the bytes of content bodies; `coded` as
    for `frame_rows`."""

    def decode(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        decoder = Decoder(payload)
        files = Files()
        order = FlowOrder()
        payloads = Payloads()
        flow: bytes | None = None

        def feed(parts: Iterator[tuple[np.ndarray, np.ndarray]]) -> Iterator[pa.RecordBatch]:
            for segments, octets in parts:
                assert flow is not None
                for rows in decoder.feed(flow, segments, octets):
                    yield frame_rows(rows, files.names, payload, coded=coded)

        try:
            for batch in batches:
                for i in range(batch.num_rows):
                    account = batch["account"][i].as_py()
                    if account is not None:
                        facts = json.loads(account)
                        yield fact_rows("capture", [{"capture_file": facts["capture_file"], "facts": facts}])
                    key = batch["flow"][i].as_py()
                    if key is None:
                        continue
                    if key != flow:
                        yield from feed(order.rest())
                        flow = key
                    run = np.frombuffer(batch["segments"][i].as_buffer(), SEGMENT)
                    capture = batch["capture_file"][i].as_py()
                    if batch["payload"][i].is_valid:
                        octets = np.frombuffer(batch["payload"][i].as_buffer(), np.uint8)
                    else:
                        run, octets = payloads.of(capture, run)
                    file = files.number(capture)
                    yield from feed(order.add(run, octets, file, files.names))
                if len(decoder.facts) > 1000:
                    yield connection_rows(decoder.take_facts())
            yield from feed(order.rest())
            for rows in decoder.finish():
                yield frame_rows(rows, files.names, payload, coded=coded)
            if decoder.facts:
                yield connection_rows(decoder.take_facts())
        finally:
            payloads.close()

    return decode
