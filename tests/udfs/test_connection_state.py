"""The law of pieces: decoding a capture in pieces, with the states of connections carried from one to the next, gives
the rows and facts of decoding it in one go, wherever it is cut."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from itertools import pairwise
from typing import Any

import decoding
import encode_0_10 as encode
import golden
import numpy as np
import pyarrow as pa
import pytest
from encode_0_10 import FIRST_FRAME, FIRST_SEGMENT, LAST_FRAME, LAST_SEGMENT
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from test_loss import FAMILIES, written
from wire import CLIENT, FLOW, Wire, take_facts

from codec.amqp.batches import Batch
from codec.amqp.decoder import CarriedStates, Decoder
from codec.framing.connection_state import ConnectionState
from codec.net.layers import SEGMENT
from codec.net.runs import gather_payloads
from codec.packing import StateError
from udfs.decode.flow_order import Files, flows_in_order
from udfs.decode.frame_rows import frame_rows

Flows = dict[bytes, tuple[np.ndarray, np.ndarray]]
# Of each version; swapped and doubled packets, frames and contents over many segments, cut packets, a connection seen
# from its middle, logins. test_tables_of cuts others: with losses, encryption, transactions, several connections.
CAPTURES = (
    "09_qpid_client.pcap", "091_big_message_many_bodies.pcap", "091_mid_frame.pcap", "091_reorder_dup_overlap.pcap",
    "091_seq_wrap.pcap", "091_snaplen96.pcap", "091_tiny_segments.pcap", "010_big_message.pcap",
    "010_mid_stream.pcap", "010_tiny_segments.pcap", "10_mid_stream.pcap", "10_tiny_segments.pcap",
)  # fmt: skip
CUTS, PIECES = 4, 10


@cache
def flows(name: str) -> tuple[Files, Flows]:
    """The segments of a capture by flow, in order, and the bytes that they point into."""
    files, parts = Files(), dict[bytes, list[tuple[np.ndarray, np.ndarray]]]()
    runs = decoding.in_flow_order(decoding.runs(golden.captures()[name].paths)).combine_chunks().to_batches()
    for group in flows_in_order(runs, files):
        if isinstance(group, str):  # the account of a split
            continue
        begins = [0, *group.ends[:-1].tolist()]
        for flow, begin, end in zip(group.flows, begins, group.ends.tolist(), strict=True):
            parts.setdefault(flow.tobytes(), []).append((group.segments[begin:end].copy(), group.payload))
    return files, {flow: _in_one(found) for flow, found in parts.items()}


def _in_one(parts: list[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    segments, wire_bytes, size = [], [], 0
    for run, data in parts:
        gathered, ends = gather_payloads(data, run)
        run["payload_at"] = ends[:-1] + size
        segments.append(run)
        wire_bytes.append(gathered)
        size += len(gathered)
    return np.concatenate(segments), np.concatenate(wire_bytes)


class Rows:
    """What decoders hand out: rows, copied at once, and facts."""

    def __init__(self) -> None:
        self.batches: list[pa.RecordBatch] = []
        self.facts: dict[int, Any] = {}

    def take(self, batches: Iterator[Batch], files: Files) -> None:
        for batch in batches:
            sink = pa.BufferOutputStream()
            rows = frame_rows(batch, files.names, True)
            with pa.ipc.new_stream(sink, rows.schema) as writer:
                writer.write_batch(rows)
            self.batches.append(pa.ipc.open_stream(sink.getvalue()).read_next_batch())

    def end(self, decoder: Decoder, files: Files) -> None:
        self.take(decoder.finish(), files)
        self.facts |= {facts.connection_id: facts for facts in take_facts(decoder, files.names)}

    def table(self) -> pa.Table:
        order = [("connection_id", "ascending"), ("frame_no", "ascending")]
        return pa.Table.from_batches(self.batches).sort_by(order).combine_chunks()


def in_one_go(files: Files, found: Flows) -> tuple[pa.Table, dict[int, Any]]:
    """All rows and facts of flows."""
    rows, decoder = Rows(), Decoder(keep_payload=True)
    for flow, (segments, data) in found.items():
        rows.take(decoder.feed(flow, segments, data), files)
    rows.end(decoder, files)
    return rows.table(), rows.facts


def in_pieces(known: Files, found: Flows, cuts: list[int]) -> tuple[pa.Table, dict[int, Any]]:
    """The same, cut before the packets of these times (order_ns). Each piece has a decoder and numbers of files of its
    own."""
    rows, states = Rows(), list[bytes]()
    bounds = [np.iinfo(np.int64).min, *cuts, np.iinfo(np.int64).max]
    for piece, (first, end) in enumerate(pairwise(bounds)):
        files = Files()
        for other in range(piece % 3):
            files.number(f"another {other}")
        numbers = np.array([files.number(file) for file in known.names])
        carried = CarriedStates((ConnectionState.from_bytes(state) for state in states), files)
        decoder = Decoder(keep_payload=True, carried=carried)
        for flow, (segments, data) in found.items():
            part = segments[(segments["order_ns"] >= first) & (segments["order_ns"] < end)]
            if len(part):
                part["file"] = numbers[part["file"]]
                rows.take(decoder.feed(flow, part, data), files)
        rows.end(decoder, files)
        states = [state.to_bytes() for state in carried.states.values()]
    files = Files()
    for state in map(ConnectionState.from_bytes, states):
        decoder = Decoder(keep_payload=True, carried=CarriedStates([state], files))
        rows.take(decoder.feed(state.flow, np.zeros(0, SEGMENT), np.zeros(0, np.uint8)), files)
        decoder.carried = None  # there is no next piece
        rows.end(decoder, files)
    return rows.table(), rows.facts


def times(found: Flows) -> list[int]:
    """Where they can be cut."""
    every = np.concatenate([segments["order_ns"] for segments, _ in found.values()])
    return [int(time) for time in np.unique(every)[1:]]


@pytest.mark.parametrize("name", CAPTURES)
def test_a_capture_in_pieces_gives_the_rows_of_one_decode(name: str) -> None:
    files, found = flows(name)
    selected = random.Random(name)
    cuts = [[time] for time in selected.sample(times(found), CUTS)]
    cuts.append(sorted(selected.sample(times(found), PIECES - 1)))
    check_pieces(files, found, cuts)


def check_pieces(files: Files, found: Flows, cuts: list[list[int]]) -> None:
    table, facts = in_one_go(files, found)
    for cut in cuts:
        pieces, facts_of_pieces = in_pieces(files, found, cut)
        assert pieces.equals(table), cut
        assert facts_of_pieces == facts, cut


def split_0_10() -> list[bytes]:
    """Two commands of several frames each on two channels, one between the frames of the other."""
    declare = encode.segment("queue.declare", {"queue": "q" * 90, "alternate-exchange": "x" * 200})
    parts = [declare[at : at + 40] for at in range(0, len(declare), 40)]
    flags = [FIRST_SEGMENT | LAST_SEGMENT | (FIRST_FRAME if part is parts[0] else 0) for part in parts]
    flags[-1] |= LAST_FRAME
    mixed = [
        encode.frame(1, part, channel, flag) for part, flag in zip(parts, flags, strict=True) for channel in (1, 2)
    ]
    point = [encode.one_frame("session.command-point", {"command-id": 7, "command-offset": 0}, n) for n in (1, 2)]
    return [b"AMQP\x01\x01\x00\x0a", *point, *mixed, *encode.message(b"b" * 30)]


@pytest.mark.parametrize("family", [*FAMILIES, split_0_10])
@pytest.mark.parametrize("with_header", [True, pytest.param(False, marks=pytest.mark.slow)])
@settings(max_examples=15, deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate))  # decoders are large
@given(data=st.data())
def test_pieces_of_streams_with_holes_and_swapped_segments(
    family: Callable[[], list[bytes]], with_header: bool, data: st.DataObject
) -> None:
    frames = family()[0 if with_header else 1 :]
    size = sum(map(len, frames))
    key, segments, wire_bytes = written(frames, data.draw(st.lists(st.integers(1, size - 1), max_size=40)))[1:]
    lost = data.draw(st.sets(st.integers(3, len(segments) - 1), max_size=4))
    order = np.array([i for i in range(len(segments)) if i not in lost])
    for i in data.draw(st.lists(st.integers(0, len(order) - 2), max_size=6)):
        order[[i, i + 1]] = order[[i + 1, i]]
    again = data.draw(st.lists(st.sampled_from(order.tolist()), max_size=4))
    segments = segments[np.concatenate([order, np.array(again, np.int64)])]
    segments["order_ns"] = segments["packet_no"] = segments["ts_ns"] = np.arange(1, len(segments) + 1) * 1_000_000
    cuts = data.draw(st.sets(st.sampled_from(segments["order_ns"][1:].tolist()), min_size=1, max_size=PIECES - 1))
    files = Files()
    files.number("written")
    check_pieces(files, {key: (segments, wire_bytes)}, [sorted(cuts)])


@pytest.mark.parametrize("family", [*FAMILIES, split_0_10])
@pytest.mark.parametrize("first", [8, pytest.param(0, marks=pytest.mark.slow)])
def test_a_piece_for_every_segment_around_holes(family: Callable[[], list[bytes]], first: int) -> None:
    """Also before the protocol is detected, and inside frames that lost bytes."""
    data = b"".join(family())[first:]
    parts = [data[at : at + 7] for at in range(0, len(data), 7)]
    for lost in ({1}, {4, len(parts) // 2, len(parts) - 3}):
        wire = Wire()
        for count, part in enumerate(parts):
            if count in lost:
                wire.lose(CLIENT, len(part))
            else:
                wire.add(CLIENT, part)
        segments, files = np.array(wire.segments, SEGMENT), Files()
        files.number("written")
        segments["order_ns"] *= 10_000_000  # a hole that is acknowledged is certain with the next segment
        found = {FLOW: (segments, np.frombuffer(wire.payload, np.uint8))}
        check_pieces(files, found, [times(found)])


def a_state() -> ConnectionState:
    files, found = flows("091_tx.pcap")
    carried = CarriedStates([], files)
    decoder = Decoder(carried=carried)
    flow, (segments, data) = next(iter(found.items()))
    for _ in decoder.feed(flow, segments[: len(segments) // 2], data):
        pass
    for _ in decoder.finish():
        pass
    (state,) = carried.states.values()
    return state


def test_a_state_survives_its_bytes() -> None:
    state = a_state()
    again = ConnectionState.from_bytes(state.to_bytes())
    assert again.to_bytes() == state.to_bytes()
    assert again.connection_id == state.connection_id
    assert not again.tcp_ended


def test_state_that_few_streams_need_is_carried_too() -> None:
    """Stretches seen before the protocol is known, and the flags of a 0-10 frame that lost bytes."""
    files, found = flows("091_tx.pcap")
    flow, (segments, data) = next(iter(found.items()))
    decoder, again = Decoder(), Decoder()
    for _ in decoder.feed(flow, segments[:5], data):
        pass
    decoder.state.spans.used[:] = 1, 2
    decoder.state.spans.pending["length"][:, :2] = [[11, 12], [21, 22]]
    decoder.state.assemblies.numbers[2:4] = 5, 9
    saved = ConnectionState.of(decoder.state, files.names, 0, 1)
    saved.restore_into(again.state, files.number)
    assert again.state.spans.used.tolist() == [1, 2]
    assert again.state.spans.pending["length"][:, :2].tolist() == [[11, 0], [21, 22]]
    assert again.state.assemblies.numbers[2:4].tolist() == [5, 9]


def test_bytes_that_are_not_a_state_of_this_layout_are_refused_in_one_line() -> None:
    data = a_state().to_bytes()
    for bad, why in (
        (b"", "not the state of a connection"),
        (b"PAR1" + data[4:], "not the state of a connection"),
        (data[:4] + b"\x00\x63" + data[6:], "layout 99-"),
        (data[:6] + bytes(8) + data[14:], "layout [0-9]+-0000000000000000"),
        (data[:-1], "damaged"),
        (data[:40] + bytes([data[40] ^ 1]) + data[41:], "damaged"),
    ):
        with pytest.raises(StateError, match=why) as caught:
            ConnectionState.from_bytes(bad)
        assert "\n" not in str(caught.value)


def test_an_idle_connection_is_carried_to_the_end() -> None:
    state = replace(a_state(), flow=bytes(36))
    carried = CarriedStates([state], Files())
    for _ in Decoder(carried=carried).finish():
        pass
    assert carried.states == {bytes(36): state}
