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
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from codec.amqp.decoder import Decoder, Facts
from codec.amqp.versions import VERSIONS
from codec.net.runs import gather_payloads
from codec.net.segments import SEGMENT
from codec.variant import encode
from udfs.arrow import VARIANT
from udfs.frame_rows import ARROW_DECODED, frame_rows
from udfs.payloads import Payloads


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
