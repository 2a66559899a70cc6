"""Directions that a capture shows out of order: rows are those of the order that the peers saw.

Captures of every version are rewritten: one direction is moved by some packets or milliseconds, as two interfaces, two
sniffers or two clocks do it. Packets keep their numbers and times, so that rows must be equal to the last cell; only
the connection's number, which its first packet gives, may be another. What orders them again are acknowledgement
numbers only, which the decoder's rows do not show.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from functools import cache
from itertools import combinations
from pathlib import Path

import golden
import numpy as np
import pika.spec
import pytest
from fuzz import runs_of
from pika_frames import PUBLISH, method
from test_reassembly import HEADER, OPENING, Capture, Segment
from wire import CLIENT, FLOW, SERVER, Row, take_facts

from codec.amqp.decoder import Decoder
from codec.compiler.limits import LIMITS
from codec.layers.stack import Layers
from codec.net.layers import ACK, FIN, SYN
from codec.protocol import rows as R
from pipeline.tables.decoding import config
from udfs.conversation.frame_batch import FrameBatch
from udfs.decode.frame_rows import frame_rows
from udfs.tables import Tables

CAPTURES = [
    "08_qpid_dialect_refused.pcap",
    "09_qpid_client.pcap",
    "091_confirms_and_return.pcap",
    "091_declare_publish_consume_ack.pcap",
    "091_channel_exceptions.pcap",
    "091_tx.pcap",
    "091_rpc_reply_to.pcap",
    "091_tiny_segments.pcap",
    "091_port_reuse.pcap",
    "091_tls13.pcap",
    "010_lowlevel_methods.pcap",
    "010_tx.pcap",
    "010_tiny_segments.pcap",
    "10_qpidd_all_types.pcap",
    "10_qpidd_transactions.pcap",
    "10_rabbitmq_settle_modes.pcap",
    "10_tiny_segments.pcap",
]
# What follows from capture times or from which packet came first.
TIMES = {"opened_ts_ns", "closed_ts_ns", "tcp_rtt_ns"}

every_capture = pytest.mark.parametrize("name", CAPTURES)


@cache
def flows(name: str) -> list[tuple[bytes, np.ndarray, np.ndarray]]:
    """(flow, its segments in the order of the capture, their bytes) of a capture."""
    (path,) = golden.captures()[name].paths
    return complete_flows(path)


def complete_flows(path: Path) -> list[tuple[bytes, np.ndarray, np.ndarray]]:
    found: dict[bytes, tuple[list[np.ndarray], bytes]] = {}
    for flow, segments, payload in runs_of(path):
        parts, data = found.get(flow, ([], b""))
        moved = segments.copy()
        moved["payload_at"] += len(data)
        found[flow] = [*parts, moved], data + payload
    return [
        (flow, np.concatenate(parts), np.frombuffer(bytearray(data or b"\0"), np.uint8))
        for flow, (parts, data) in found.items()
    ]


@cache
def the_decoder() -> Decoder:
    return Decoder()


def decoded(flow: bytes, segments: np.ndarray, payload: np.ndarray) -> tuple[np.ndarray, list[Row]]:
    """Cells of the rows, without the connection's number, and what is known of the connections."""
    decoder, cells = the_decoder(), [np.zeros((0, len(R.COLUMNS)), np.int64)]
    for batches in (decoder.feed(flow, segments, payload), decoder.finish()):
        cells += [batch.cells.copy() for batch in batches]
    rows = np.concatenate(cells)
    rows[:, R.CONNECTION] = 0
    facts = [{name: value for name, value in each.facts.items() if name not in TIMES} for each in take_facts(decoder)]
    return rows, facts


Move = Callable[[np.ndarray, int, int], np.ndarray]  # segments, a direction, how far


def moved_by_packets(segments: np.ndarray, direction: int, packets: int) -> np.ndarray:
    """A direction so many packets of the connection earlier (negative) or later; order within it as it was. All come
    at once, so that no wait takes too long."""
    indices = np.arange(len(segments)) + np.where(segments["direction"] == direction, packets + 0.5, 0)
    moved = segments[np.argsort(indices, kind="stable")]
    moved["order_ns"] = segments["order_ns"].min()
    return moved


def moved_by_time(segments: np.ndarray, direction: int, ns: int) -> np.ndarray:
    """A direction of a clock that is so much behind (negative) or ahead."""
    times = segments["ts_ns"] + np.where(segments["direction"] == direction, ns, 0)
    moved = segments[np.argsort(times, kind="stable")]
    moved["order_ns"] = np.maximum.accumulate(np.sort(times))
    return moved


def connections(segments: np.ndarray) -> list[np.ndarray]:
    """The connections of a flow: its segments from one client's SYN to the next."""
    opening = (segments["flags"] & (SYN | ACK)) == SYN
    return [part for part in np.split(segments, np.flatnonzero(opening)) if len(part)]


# Columns that count over all rows before.
RUNNING = [R.FRAME_NO, R.CONTENT, R.BYTES_END, R.PAYLOAD_END, R.ARGUMENTS_END, R.ARGUMENTS_META_END, R.PROPERTIES_END]
RUNNING += [R.PROPERTIES_META_END]


def acknowledges(segments: np.ndarray, one: np.ndarray, other: np.ndarray) -> bool:
    """Whether the packet of row `one` says that the bytes of row `other`, of the other direction, arrived before."""
    (by,), (of,) = (segments[segments["packet_no"] == row[R.PACKET]] for row in (one, other))
    return bool((int(by["ack"]) - int(of["seq"]) - 1) % 2**32 < 2**31)


def assert_same(name: str, move: Move, direction: int, by: int) -> None:
    """The same rows; only those may change places of which neither side had seen the other's."""
    what = f"direction {direction} by {by}"
    for flow, segments, payload in flows(name):
        other = np.concatenate([move(part, direction, by) for part in connections(segments)])
        rows, facts = decoded(flow, segments, payload)
        found, other_facts = decoded(flow, other, payload)
        assert facts == other_facts, what
        assert len(rows) == len(found), what
        # The round trip is a difference between the times of both directions.
        for each in (rows, found):
            each[:, R.RTT] = 0
        changed = np.flatnonzero((rows != found).any(axis=1))
        if not len(changed):
            continue
        indices = [(row[R.CONNECTION], row[R.DIRECTION], row[R.OFFSET], row[R.SIZE]) for row in rows]
        order = [indices.index((row[R.CONNECTION], row[R.DIRECTION], row[R.OFFSET], row[R.SIZE])) for row in found]
        assert (np.delete(rows[order], RUNNING, axis=1) == np.delete(found, RUNNING, axis=1)).all(), what
        for first, second in combinations(changed.tolist(), 2):
            if order[first] > order[second]:
                assert found[first, R.DIRECTION] != found[second, R.DIRECTION], what
                assert not acknowledges(segments, found[first], found[second]), what
                assert not acknowledges(segments, found[second], found[first]), what


@every_capture
@pytest.mark.parametrize("packets", [-6, -1, 1, 2, 6])
def test_a_direction_shifted_by_packets_changes_no_row(name: str, packets: int) -> None:
    for direction in (0, 1):
        assert_same(name, moved_by_packets, direction, packets)


@every_capture
@pytest.mark.parametrize("milliseconds", [-3000, -1, 20, 3000])
def test_a_direction_shifted_by_milliseconds_changes_no_row(name: str, milliseconds: int) -> None:
    for direction in (0, 1):
        assert_same(name, moved_by_time, direction, milliseconds * 10**6)


def test_every_version_is_among_the_captures() -> None:
    assert {version for name in CAPTURES for version in golden.captures()[name].versions} == {
        "0-8",
        "0-9",
        "0-9-1",
        "0-10",
        "1.0",
    }


# ---- by hand: what a client and a server sent, and when it was captured --------------------------------------------

SELECT, SELECT_OK = method(pika.spec.Confirm.Select()), method(pika.spec.Confirm.SelectOk())
ACKED = method(pika.spec.Basic.Ack(1))
BEGUN = len(HEADER) + len(SELECT)
START = Segment(CLIENT, 0, HEADER + SELECT)
STARTED = Segment(SERVER, 0, SELECT_OK, ack=BEGUN)
SENT = Segment(CLIENT, BEGUN, PUBLISH, ack=len(SELECT_OK))
CONFIRMED = Segment(SERVER, len(SELECT_OK), ACKED, ack=BEGUN + len(PUBLISH))
NAMES = ["confirm.select", "confirm.select-ok", "basic.publish", "basic", "basic.ack"]
LATER = LIMITS.ack_ns + 10**6


def names(segments: list[Segment]) -> list[str]:
    rows, _ = Capture(segments=segments).decoded()
    return [row["name"] for row in sorted(rows, key=lambda row: row["frame_no"]) if row["name"]]


def again(segment: Segment, **changes: int) -> Segment:
    return Segment(**{**vars(segment), **changes})


def test_a_confirm_that_was_captured_before_its_publish_comes_after_it() -> None:
    assert names([*OPENING, START, STARTED, SENT, CONFIRMED]) == NAMES
    assert names([*OPENING, START, STARTED, CONFIRMED, SENT]) == NAMES
    assert names([*OPENING, STARTED, CONFIRMED, START, SENT]) == NAMES
    assert names([OPENING[1], STARTED, CONFIRMED, OPENING[0], START, SENT]) == NAMES
    # the client's direction is early: what it acknowledges was not captured yet
    handshake_ends = Segment(CLIENT, 0)
    assert names([OPENING[0], handshake_ends, START, SENT, OPENING[1], STARTED, CONFIRMED]) == NAMES


def rows_of(segments: list[Segment]) -> dict[str, list[Row]]:
    return tables_of([(FLOW, *Capture(segments=segments).segments_and_payload())])


def tables_of(
    captured: list[tuple[bytes, np.ndarray, np.ndarray]], layers: Layers | None = None
) -> dict[str, list[Row]]:
    """Rows of the tables that workers make of flows."""
    decoder, tables, found = Decoder(layers=layers), Tables(config()), defaultdict[str, list[Row]](list)
    for batches in (*(decoder.feed(*flow) for flow in captured), decoder.finish()):
        for batch in batches:
            for table, rows in tables.feed(FrameBatch(frame_rows(batch, ["a.pcap"], False, encoded=True), batch.cells)):
                found[table] += rows.to_pylist()
    for table, rows in tables.finish():
        found[table] += rows.to_pylist()
    found["connections"] = [{"connection_id": fact.connection_id, **fact.facts} for fact in take_facts(decoder)]
    return found


def test_a_latency_is_not_known_where_the_answer_was_captured_first() -> None:
    """Times are those of the capture, which here are of two clocks; what became of the message is known."""
    for early, known in ((False, True), (True, False)):
        segments = [STARTED, CONFIRMED, START, SENT] if early else [START, STARTED, SENT, CONFIRMED]
        tables = rows_of([*OPENING, *segments])
        (message,) = tables["messages"]
        (reply,) = (method for method in tables["methods"] if method["reply_frame_no"] is not None)
        assert message["outcome"] == "confirmed"
        assert (message["settled_ts_ns"] > message["ts_ns"]) == known
        assert message["settle_latency_ns"] == (message["settled_ts_ns"] - message["ts_ns"] if known else None)
        assert reply["reply_latency_ns"] == (1000 if known else None)


def test_a_message_whose_settlement_was_captured_too_early_is_unknown() -> None:
    """That nobody settled it would be wrong. One that is sent when all is in order again is unsettled."""
    heartbeat = Segment(SERVER, CONFIRMED.at + len(ACKED), ack=CONFIRMED.ack, ns=LATER)
    another = Segment(CLIENT, SENT.at + len(PUBLISH), PUBLISH, ack=CONFIRMED.at + len(ACKED), ns=LATER + 1000)
    tables = rows_of([*OPENING, START, STARTED, CONFIRMED, heartbeat, SENT, another])
    assert [(message["delivery_tag"], message["outcome"]) for message in tables["messages"]] == [
        (1, "unknown"),
        (2, "unsettled"),
    ]
    (channel,) = tables["channels"]
    assert (channel["published"], channel["confirmed"], channel["unsettled"]) == (2, 0, 1)


def settled_too_early(segments: np.ndarray, sent: int, settled: int) -> np.ndarray | None:
    """The packet `settled` right before the packet `sent`, which it does not acknowledge: nothing tells their order.
    None where other bytes of its side are between them."""
    packets = segments["packet_no"].tolist()
    first, last = packets.index(sent), packets.index(settled)
    between = segments[first:last]
    if ((between["direction"] == segments["direction"][last]) & (between["wire_len"] > 0)).any() or first >= last:
        return None
    moved = segments[[*range(first), last, *range(first, last), *range(last + 1, len(segments))]]
    moved["flags"][first] ^= ACK
    moved["order_ns"] = segments["order_ns"]
    return moved


@pytest.mark.parametrize(
    ("name", "operation"),
    [
        ("08_amqplib_session.pcap", "deliver"),
        ("091_confirms_and_return.pcap", "publish"),
        ("091_declare_publish_consume_ack.pcap", "deliver"),
        ("010_lowlevel_methods.pcap", "deliver"),
        ("10_rabbitmq_settle_modes.pcap", "publish"),
        ("10_qpidd_all_types.pcap", "deliver"),
    ],
)
def test_a_message_settled_too_early_in_the_capture_is_unknown_in_every_version(name: str, operation: str) -> None:
    """What settles all that is there names no message: there is nothing to tell that it came too early."""
    ((flow, segments, data),) = flows(name)
    tables = tables_of([(flow, segments, data)])
    naming = (row for row in tables["methods"] if row["delivery_tag"] or not row["name"].startswith("basic."))
    packets = {row["frame_no"]: row["packet_no"] for row in naming}
    tried = 0
    for message in tables["messages"]:
        if message["operation"] != operation or message["settled_frame_no"] not in packets:
            continue
        moved = settled_too_early(segments, message["packet_no"], packets[message["settled_frame_no"]])
        if moved is not None and tried < 3:
            tried += 1
            (found,) = (
                row
                for row in tables_of([(flow, moved, data)])["messages"]
                if (row["packet_no"], row["operation"], row["body_sha256"])
                == (message["packet_no"], operation, message["body_sha256"])
            )
            assert (found["outcome"], found["settled_ts_ns"]) == ("unknown", None)
    assert tried


def test_a_wait_ends_with_its_time() -> None:
    """The publish comes too late: whether it was before the confirm is not asked for ever."""
    heartbeat = Segment(SERVER, CONFIRMED.at + len(ACKED), ack=CONFIRMED.ack, ns=LATER)
    early = [*NAMES[:2], "basic.ack", "basic.publish", "basic"]
    assert names([*OPENING, START, STARTED, CONFIRMED, heartbeat, SENT]) == early


def test_a_wait_ends_after_so_many_segments() -> None:
    bare = [Segment(SERVER, CONFIRMED.at + len(ACKED), ack=BEGUN)] * LIMITS.ack_segments
    assert names([*OPENING, START, STARTED, CONFIRMED, *bare[:-1], SENT]) == NAMES
    assert names([*OPENING, START, STARTED, CONFIRMED, *bare, SENT])[2] == "basic.ack"


def test_a_wait_ends_when_the_bytes_are_missing() -> None:
    """The packet with the publish was lost, and the next one of the client shows it: the data of the server follows."""
    after = SENT.at + len(PUBLISH)
    select = Segment(CLIENT, after, SELECT, ack=len(SELECT_OK) + len(ACKED))
    acknowledgements = [Segment(SERVER, CONFIRMED.at + len(ACKED), ack=after + len(SELECT), ns=6_000_000)] * 2
    rows, _ = Capture(segments=[*OPENING, START, STARTED, CONFIRMED, select, *acknowledgements]).decoded()
    order = [row["name"] or row["frame_type"] for row in rows]
    assert order == ["protocol-header", *NAMES[:2], "gap", "basic.ack", "confirm.select"]


def test_a_retransmission_does_not_wait_for_data_that_waits_for_it() -> None:
    """The publish was lost and sent again, when its confirm had arrived: each acknowledges the other."""
    sent_again = again(SENT, ack=len(SELECT_OK) + len(ACKED))
    assert names([*OPENING, START, STARTED, CONFIRMED, sent_again]) == NAMES


def test_a_single_direction_does_not_wait() -> None:
    server = [STARTED, CONFIRMED]
    assert names([OPENING[1], *server]) == ["confirm.select-ok", "basic.ack"]
    assert names(server) == ["confirm.select-ok", "basic.ack"]


def test_a_fin_counts_as_acknowledged() -> None:
    fin = Segment(CLIENT, SENT.at + len(PUBLISH), flags=FIN | ACK)
    late = again(CONFIRMED, ack=CONFIRMED.ack + 1)
    for segments in ([SENT, fin, late], [late, SENT, fin], [fin, late, SENT], [SENT, late, fin]):
        assert names([*OPENING, START, STARTED, *segments]) == NAMES


def test_acknowledgements_of_missing_data_delay_rows_for_a_bounded_time() -> None:
    lie = again(STARTED, ack=10**6)
    assert names([*OPENING, START, lie, again(SENT, ns=LATER), CONFIRMED]) == NAMES


def test_a_loss_comes_after_what_the_peer_sent_before_the_last_of_its_bytes() -> None:
    """Two confirms of the server are lost, one after the other; the second publish was sent between them. That of the
    third, which acknowledges both, is captured."""
    confirms = len(SELECT_OK), len(SELECT_OK) + len(ACKED), len(SELECT_OK) + 2 * len(ACKED)
    publishes = [Segment(CLIENT, BEGUN + i * len(PUBLISH), PUBLISH, ack=at) for i, at in enumerate(confirms)]
    third = method(pika.spec.Basic.Ack(3))
    confirmed = Segment(SERVER, confirms[2], third, ack=BEGUN + 3 * len(PUBLISH))
    tables = rows_of([*OPENING, START, STARTED, *publishes, confirmed])
    frames = sorted(tables["frames"], key=lambda row: row["frame_no"])
    order = [row["name"] or row["frame_type"] for row in frames if row["frame_type"] != "header"]
    assert order[3:] == ["basic.publish", "basic.publish", "gap", "basic.publish", "basic.ack"]
    messages = sorted(tables["messages"], key=lambda row: row["first_frame_no"])
    assert [row["outcome"] for row in messages] == ["unknown", "unknown", "confirmed"]


# ---- a capture that begins in the middle ----------------------------------------------------------------------------


@every_capture
def test_frames_of_a_capture_that_begins_in_the_middle_have_the_order_of_their_packets(name: str) -> None:
    """One direction is detected before the other: what the other one sent meanwhile is not numbered behind it. Bodies
    at the beginning, which are detected by what follows them, have no name."""
    for flow, segments, payload in flows(name):
        for first in range(1, len(segments), max(1, len(segments) // 25)):
            rows, _ = decoded(flow, segments[first:], payload)
            packets = rows[(rows[:, R.NAME] >= 0) & (rows[:, R.STATUS] == 0), R.PACKET]
            assert (np.diff(packets) >= 0).all(), first


def test_a_request_before_the_detection_gets_its_reply() -> None:
    """Two frames of the server are needed to detect the protocol; of the client there is one, which came before."""
    consume = method(pika.spec.Basic.Consume(queue="q", consumer_tag="t"))
    consume_ok = method(pika.spec.Basic.ConsumeOk("t"))
    cancel = method(pika.spec.Basic.Cancel("t"))
    cancel_ok = method(pika.spec.Basic.CancelOk("t"))
    both = consume_ok + method(pika.spec.Basic.ConsumeOk("u"))
    tables = rows_of(
        [
            Segment(CLIENT, 0, consume),
            Segment(SERVER, 0, both, ack=len(consume)),
            Segment(CLIENT, len(consume), cancel, ack=len(both)),
            Segment(SERVER, len(both), cancel_ok, ack=len(consume) + len(cancel)),
        ]
    )
    assert [(row["frame_no"], row["name"], row["reply_frame_no"]) for row in tables["methods"]] == [
        (2, "basic.consume-ok", None),
        (3, "basic.consume-ok", None),
        (5, "basic.cancel-ok", None),
        (1, "basic.consume", 2),
        (4, "basic.cancel", 5),
    ]
