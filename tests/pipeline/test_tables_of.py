"""The law of pieces, for all tables: a capture decoded in pieces, with the states of its connections carried from one
to the next, gives the rows of one decode, wherever it is cut."""

from __future__ import annotations

import os
import random
from collections import Counter
from functools import cache
from itertools import pairwise, zip_longest
from pathlib import Path

import decoding
import golden
import numpy as np
import pyarrow as pa
import pytest
from pieces import BEGINNING, END, Lake, Rows, as_text, batches, between, in_pieces, piece, rows_of, same, times

from codec.packing import (
    Reader,
    StateError,
    Writer,
    seal,
    unseal,
)
from pipeline.tables.decoding import config
from udfs.conversation.tracker_states import restore_table, save_table
from udfs.tables import ACCOUNTS, STATES, tables_of
from udfs.tables.saved_states import digest

# Of each version: transactions that are open at a cut, returns, confirms, losses, frames and contents in many segments,
# several connections of one flow, credit, links attached by turns, encryption.
CAPTURES = (
    "08_amqplib_session.pcap", "091_confirms_and_return.pcap", "091_loss.pcap", "091_port_reuse.pcap", "091_tls12.pcap",
    "091_tx.pcap", "091_rpc_reply_to.pcap", "010_lowlevel_methods.pcap", "010_tx.pcap", "010_dtx.pcap",
    "10_qpidd_transactions.pcap", "10_rabbitmq_multi_frame_transfer.pcap", "10_qpidd_outcomes_drain.pcap",
    "mixed_0x_one_file.pcapng",
)  # fmt: skip
MANAGED = "brokers/10_rabbitmq4_anonymous_terminus.pcap"  # a queue is declared by a management request, then read
CUTS, PIECES, FEW, MANY = 2, 8, 50, 2000


@cache
def runs(name: str) -> pa.Table:
    """The runs of a capture, as the shuffle sorts them."""
    paths = [golden.CAPTURES / name] if name == MANAGED else golden.captures()[name].paths
    return decoding.in_flow_order(decoding.runs(paths)).combine_chunks()


@cache
def in_one_go(name: str) -> Rows:
    return rows_of(runs(name))


def check(name: str, cuts: list[int]) -> None:
    same(in_pieces(runs(name), cuts), in_one_go(name), f"{name} {cuts}")


def apart() -> list[list[str]]:
    """CAPTURES, those together that have no flow in common."""
    groups = list[tuple[list[str], set[bytes]]]()
    for name in CAPTURES:
        flows = set(runs(name)["flow"].drop_null().to_pylist())
        for names, used in groups:
            if not flows & used:
                names.append(name)
                used |= flows
                break
        else:
            groups.append(([name], flows))
    return [names for names, _ in groups]


def check_together(cuts: dict[str, list[int]]) -> None:
    """Captures without a common flow, a piece of each at a time: that takes hardly longer than a piece of one."""
    lake, expected = Lake(), Rows()
    pieces = [list(pairwise([BEGINNING, *cuts[name], END])) for name in cuts]
    for step in zip_longest(*pieces):
        parts = [between(runs(name), *ends) for name, ends in zip(cuts, step, strict=True) if ends is not None]
        lake.add(batches(decoding.in_flow_order(pa.concat_tables(parts))))
    for name in cuts:
        for table, rows in in_one_go(name).items():
            expected.setdefault(table, Counter()).update(rows)
    same(lake.rows(), expected, str(cuts))


def test_captures_cut_in_two_give_the_same_rows() -> None:
    for names in apart():
        moments = {name: times(runs(name))[1:] for name in names}
        cuts = {name: random.Random(name).sample(moments[name], min(CUTS, len(moments[name]))) for name in names}
        for number in range(CUTS):
            check_together({name: [of_name[number]] for name, of_name in cuts.items()})


def test_captures_cut_in_many_pieces_give_the_same_rows() -> None:
    """Behind every packet, where they are few."""
    for names in apart():
        cuts = {}
        for name in names:
            moments = times(runs(name))[1:]
            few = len(moments) <= FEW
            cuts[name] = moments if few else sorted(random.Random(name).sample(moments, PIECES - 1))
        check_together(cuts)


def test_queues_of_management_requests_are_carried() -> None:
    moments = times(runs(MANAGED))[1:]
    check(MANAGED, moments[24:54:10])


@pytest.mark.law
@pytest.mark.parametrize("name", golden.captures())
def test_every_capture_cut_behind_every_packet_gives_the_same_rows(name: str) -> None:
    moments = times(runs(name))[1:]
    check(name, moments if len(moments) <= MANY else sorted(random.Random(name).sample(moments, MANY)))


# What a rewritten capture has of its own: its packets, the times of some, the number that the first one gives.
OF_PACKETS = {
    "connection_id", "capture_file", "packet_no", "first_packet_no", "packets", "client_packets", "server_packets",
    "retransmitted_bytes", "out_of_order_segments", "ts", "opened_ts", "closed_ts", "tcp_origin",
}  # fmt: skip


@cache
def without_packets(name: str) -> Rows:
    """The rows of a capture but for packets and times; of times and latencies only whether there are any. Stalls are
    about both."""
    found: Rows = {}
    for table, _, rows in tables_of(runs(name).to_batches(max_chunksize=64), config(payload=True)):
        for row in rows.to_pylist() if table not in (ACCOUNTS, "stalls") else ():
            values = {name: value is None if name.endswith("_ns") else value for name, value in row.items()}
            text = as_text({name: value for name, value in values.items() if name not in OF_PACKETS})
            found.setdefault(table, Counter())[text] += 1
    return found


@pytest.mark.parametrize("name", [name for name, capture in golden.captures().items() if capture.origin != name])
def test_a_rewritten_capture_gives_the_rows_of_its_origin(name: str) -> None:
    """Segments of some bytes, swapped, doubled, overlapping; other link layers and clocks; rotated files."""
    same(without_packets(name), without_packets(golden.captures()[name].origin), name)


def test_connections_without_further_runs_are_finished() -> None:
    name = "091_tx.pcap"
    cut = times(runs(name))[-4]
    lake = Lake()
    lake.add(piece(runs(name), BEGINNING, cut))
    expected = lake.rows()
    assert lake.open
    lake.add(iter(()), keep_open=False)
    assert lake.open == []
    same(lake.final, expected, name)


def test_states_without_runs_are_unchanged() -> None:
    lake = Lake()
    lake.add(piece(runs("091_tx.pcap"), BEGINNING, times(runs("091_tx.pcap"))[-4]))
    assert lake.states
    assert list(tables_of(iter(()), config(), states=lake.states)) == []


def test_bytes_that_cannot_be_read_are_reported_by_flow() -> None:
    """And the connection is decoded from its middle."""
    table = runs("091_tx.pcap")
    flow = table["flow"].drop_null()[0].as_py()
    parts = list(tables_of(piece(table, times(table)[10], END), config(), states={flow: b"PAR1"}))
    errors = [row for part in parts if part.table == STATES for row in part.rows.to_pylist() if row["error"]]
    assert [(row["flow"], row["octets"], row["error"]) for row in errors] == [
        (flow, None, "not the state of a connection")
    ]
    (connection,) = (row for part in parts if part.table == "connections" for row in part.rows.to_pylist())
    assert connection["version_known"] is False


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs the files of Linux about processes")
def test_piece_after_piece_takes_no_more_memory() -> None:
    """Ten pieces once took 400 MB that were free and never given back."""
    moments = times(runs("091_tx.pcap"))[1:22]
    check("091_tx.pcap", moments[:1])
    before = resident_bytes()
    check("091_tx.pcap", moments)
    assert resident_bytes() - before < 200e6


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_tables_survive_their_bytes() -> None:
    """Rows of each connection, in their order; null, empty and nested values of all types in states."""
    parts = [("value", pa.binary()), ("metadata", pa.binary())]
    variant = pa.struct([pa.field(*part, nullable=False) for part in parts])
    kinds = [
        ("connection_id", pa.int64()), ("number", pa.int32()), ("text", pa.string()), ("truth", pa.bool_()),
        ("ts", pa.timestamp("us", "UTC")), ("variant", variant), ("texts", pa.list_(pa.string())),
    ]  # fmt: skip
    data = {"value": b"\0\1", "metadata": b"\1"}
    rows = [
        (7, 1, "x", True, 5, data, ["a", None]),
        (3, None, None, None, None, None, None),
        (7, -2, "", False, 6, data, []),
        (9, 0, "of another", None, 0, None, ["b"]),
    ]
    schema = pa.schema(kinds)
    table = pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], schema=schema)
    coded = table.set_column(2, "text", table["text"].dictionary_encode())
    writer = Writer(3)
    save_table(coded, schema, np.array([3, 5, 7]), writer)
    written = writer.data()
    assert restore_table(schema, Reader(written)) == table.take([1, 0, 2])
    assert restore_table(schema, Reader(written[2:])) == table.take([0, 2])
    assert restore_table(schema, Reader(written[1:2])) is None


def test_bytes_of_another_layout_and_damaged_ones_are_refused() -> None:
    layout = digest(["a"])
    data = seal(b"state", 1, layout)
    assert unseal(data, 1, layout) == b"state"
    for bad, why in ((data[:-1], "damaged"), (b"", "not the state"), (data[:4] + b"\0\2" + data[6:], "layout 2")):
        with pytest.raises(StateError, match=why):
            unseal(bad, 1, layout)
    with pytest.raises(StateError, match="layout"):
        unseal(data, 1, digest(["b"]))
