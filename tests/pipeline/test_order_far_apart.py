"""Directions that are so far apart in the capture that the decoder does not wait for them: no outcome is wrong.

Captures of every version are rewritten: one direction comes much later than the other, or stalls again and again. What
became of a message is then what it was before, or `unknown`; a message is never without a settlement that it got. By
hand: what would be settled by words about another incarnation of a channel, or about another transaction.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Iterable
from ipaddress import ip_address
from itertools import product

import golden
import numpy as np
import pika.frame
import pika.spec
import pytest
from pika_frames import PUBLISH, content, method
from test_order import CAPTURES, Move, connections, flows, moved_by_time, tables_of
from test_reassembly import HEADER, OPENING, Capture, Segment
from wire import CLIENT, FLOW, SERVER, Row

from codec.amqp.decoder import Decoder
from codec.compiler.limits import LIMITS
from codec.layers.stack import Layers
from codec.layers.tls_handshake import KeyLog
from udfs.decode.frame_rows import frame_rows

SECOND = 10**9
MORE = [*CAPTURES, "010_sessions.pcap", "10_qpidd_outcomes_drain.pcap", "10_mid_stream.pcap"]
LOGGED_IN = 16  # packets
APART = LIMITS.ack_ns + 2 * SECOND
OF_A_MESSAGE = ("packet_no", "operation", "channel", "exchange", "routing_key", "link", "body_sha256")
Rows = dict[str, list[Row]]


def stalled(segments: np.ndarray, direction: int, seed: int, first: int = 0) -> np.ndarray:
    """A packet every two seconds; behind the `first` ones those of a direction are stuck for a while again and again,
    then come at once."""
    selected = random.Random(seed)
    times = np.arange(len(segments)) * 2.0
    at = first
    while at < len(segments):
        at += selected.randrange(1, 12)
        end = at + selected.randrange(2, 30)
        stuck = np.flatnonzero(segments["direction"] == direction)
        stuck = stuck[(stuck >= at) & (stuck < end)]
        times[stuck] = np.maximum(times[stuck], 2.0 * end - 0.5)
        at = end
    order = np.argsort(times, kind="stable")
    moved = segments[order]
    moved["order_ns"] = (times[order] * SECOND).astype(np.int64)
    return moved


def messages(tables: Rows) -> dict[tuple[object, ...], list[Row]]:
    found = defaultdict[tuple[object, ...], list[Row]](list)
    for message in tables["messages"]:
        found[tuple(message[name] for name in OF_A_MESSAGE)].append(message)
    return found


def assert_nothing_wrong(was: Rows, result: Rows, what: str) -> Counter[str]:
    """No message has another outcome than it had, but `unknown`, nor another transaction; the outcomes."""
    before, now = messages(was), messages(result)
    outcomes = Counter[str]()
    for key, those in now.items():
        true = [message["outcome"] for message in before.get(key, [])]
        for message in those:
            outcomes[message["outcome"]] += 1
            if true and message["outcome"] != "unknown":
                assert message["outcome"] in true, (what, key)
                packets = [None, *(each["settled_packet"] for each in before[key])]  # a return is known without
                assert message["settled_packet"] in packets, (what, key)
            if true and message["transaction"] is not None:
                assert message["transaction"] in [each["transaction"] for each in before[key]], (what, key)
    assert sum(outcomes.values()) == len(was["messages"]), what
    return outcomes


def tables_in_orders(flow: bytes, data: np.ndarray, *orders: np.ndarray, log: KeyLog | None = None) -> list[Rows]:
    """The tables of each order of a flow's segments, decoded together as those of clients with other addresses: that
    takes hardly longer than one. A message knows the packet that settled it, which no order changes."""
    captured = [(flow[:31] + bytes([number]) + flow[32:], order, data) for number, order in enumerate(orders, 1)]
    tables = tables_of(captured, Layers(log) if log else None)
    found: list[Rows] = [defaultdict(list) for _ in orders]
    of_connection = {
        row["connection_id"]: found[max(ip_address(row[side]).packed[-1] for side in ("client_ip", "server_ip")) - 1]
        for row in tables["connections"]
    }
    for table, rows in tables.items():
        for row in rows:
            of_connection[row["connection_id"]][table].append(row)
    packets = {(row["connection_id"], row["frame_no"]): row["packet_no"] for row in tables["methods"]}
    for message in tables["messages"]:
        message["settled_packet"] = packets.get((message["connection_id"], message["settled_frame_no"]))
    return found


def all_moved(segments: np.ndarray, move: Move, steps: Iterable[int]) -> dict[str, np.ndarray]:
    """Either direction of each connection moved by each step."""
    return {
        f"direction {direction}, {move.__name__} {by}": np.concatenate(
            [move(part, direction, by) for part in connections(segments)]
        )
        for direction, by in product((0, 1), steps)
    }


@pytest.mark.parametrize("name", MORE)
def test_no_outcome_is_wrong_where_directions_are_far_apart(name: str) -> None:
    for flow in flows(name):
        assert_none_wrong(*flow, all_moved(flow[1], moved_by_time, (-1000 * SECOND, -APART, APART)))


def assert_none_wrong(
    flow: bytes, segments: np.ndarray, data: np.ndarray, moved: dict[str, np.ndarray], log: KeyLog | None = None
) -> Rows:
    """No order gives another outcome than the captured one, whose tables are returned."""
    was, *those = tables_in_orders(flow, data, segments, *moved.values(), log=log)
    for what, tables in zip(moved, those, strict=True):
        assert_nothing_wrong(was, tables, what)
    return was


@pytest.mark.parametrize("name", MORE)
def test_no_outcome_is_wrong_where_a_direction_stalls(name: str) -> None:
    for flow in flows(name):
        assert_none_wrong(*flow, all_moved(flow[1], stalled, range(3)))


@pytest.mark.parametrize("name", ["091_tls12.pcap", "091_tls13.pcap"])
def test_nor_is_one_inside_tls(name: str) -> None:
    """Where the handshake is in order; else nothing can be decrypted."""
    log = KeyLog((golden.CAPTURES / name.replace(".pcap", ".keylog.txt")).read_bytes())
    for flow, segments, data in flows(name):
        moved = {
            f"direction {direction}, stalls {seed}": stalled(segments, direction, seed, first=LOGGED_IN)
            for direction, seed in product((0, 1), range(12))
        }
        was = assert_none_wrong(flow, segments, data, moved, log)
        assert {message["outcome"] for message in was["messages"]} > {"acked"}


# ---- by hand -------------------------------------------------------------------------------------------------------


def captured(*steps: tuple[int, bytes], late: int | None = None, stuck: range | None = None) -> list[Segment]:
    """What both sides sent, a step a second, each after it has seen all before. The direction `late` comes so much
    later that nobody waits for it; with `stuck` only in those steps, behind which all of them come at once."""
    at, found = [0, 0], []
    for number, (side, data) in enumerate(steps):
        time = number * SECOND
        if side == late and stuck is None:
            time += APART + len(steps) * SECOND
        elif side == late and stuck is not None and number in stuck:
            time = stuck.stop * SECOND
        found.append((time, Segment(side, at[side], data, ack=at[1 - side])))
        at[side] += len(data)
    found.sort(key=lambda each: each[0])
    last = 0
    for time, segment in found:
        segment.ns = max(1000, time - last)
        last = time
    return [*OPENING, *(segment for _, segment in found)]


def of(segments: list[Segment]) -> Rows:
    ordered, data = Capture(segments=segments).segments_and_payload()
    (tables,) = tables_in_orders(FLOW, data, ordered)
    return tables


OPEN, OPENED = method(pika.spec.Channel.Open()), method(pika.spec.Channel.OpenOk())
CLOSE, CLOSED = method(pika.spec.Channel.Close(200, "done", 0, 0)), method(pika.spec.Channel.CloseOk())
SELECT, SELECTED = method(pika.spec.Confirm.Select()), method(pika.spec.Confirm.SelectOk())
HEARTBEAT = pika.frame.Heartbeat().marshal()
DELIVER = [content(pika.spec.Basic.Deliver("c", number, False, "e", "k")) for number in (1, 2)]


def outcomes(segments: list[Segment]) -> list[str]:
    """By packet of the message, as it was sent."""
    found = sorted(of(segments)["messages"], key=lambda message: (message["operation"], message["ts_ns"]))
    return [message["outcome"] for message in found]


TWICE_OPEN = [
    (CLIENT, HEADER + OPEN),
    (SERVER, OPENED),
    (CLIENT, SELECT),
    (SERVER, SELECTED),
    (CLIENT, PUBLISH),
    (SERVER, method(pika.spec.Basic.Nack(1))),
    (CLIENT, CLOSE),
    (SERVER, CLOSED),
    (CLIENT, OPEN),
    (SERVER, OPENED),
    (CLIENT, SELECT),
    (SERVER, SELECTED),
    (CLIENT, PUBLISH),
    (SERVER, method(pika.spec.Basic.Ack(1))),
]


def test_a_channel_that_was_opened_twice_takes_over_no_settlement() -> None:
    """Both publishes have tag 1; the first is nacked, the second confirmed."""
    assert outcomes(captured(*TWICE_OPEN)) == ["nacked", "confirmed"]
    for late in (CLIENT, SERVER):
        assert outcomes(captured(*TWICE_OPEN, late=late)) == ["unknown", "unknown"]


def test_a_recover_that_comes_late_requeues_nothing_that_was_sent_after_it() -> None:
    consume = method(pika.spec.Basic.Consume(queue="q", consumer_tag="c", no_ack=False))
    steps = [
        (CLIENT, HEADER + OPEN),
        (SERVER, OPENED),
        (CLIENT, consume),
        (SERVER, method(pika.spec.Basic.ConsumeOk("c")) + DELIVER[0]),
        (CLIENT, method(pika.spec.Basic.Recover(requeue=True))),
        (SERVER, method(pika.spec.Basic.RecoverOk()) + DELIVER[1]),
        (CLIENT, method(pika.spec.Basic.Ack(2))),
    ]
    assert outcomes(captured(*steps)) == ["requeued", "acked"]
    assert outcomes(captured(*steps, late=CLIENT)) == ["unknown", "acked"]
    assert outcomes(captured(*steps, late=SERVER)) == ["unknown", "unknown"]


def test_a_transaction_does_not_end_with_the_answer_to_another() -> None:
    commit, rollback = method(pika.spec.Tx.Commit()), method(pika.spec.Tx.Rollback())
    steps = [
        (CLIENT, HEADER + OPEN),
        (SERVER, OPENED),
        (CLIENT, method(pika.spec.Tx.Select())),
        (SERVER, method(pika.spec.Tx.SelectOk())),
        (CLIENT, PUBLISH + commit),
        (SERVER, method(pika.spec.Tx.CommitOk())),
        (CLIENT, PUBLISH + rollback),
        (SERVER, method(pika.spec.Tx.RollbackOk())),
    ]
    transactions = {late: [each["transaction"] for each in of(captured(*steps, late=late))["messages"]]
                    for late in (None, CLIENT, SERVER)}  # fmt: skip
    assert transactions == {None: ["committed", "rolled-back"], CLIENT: [None, None], SERVER: [None, None]}


def test_transactions_are_known_behind_one_that_ended_in_order() -> None:
    """The first answer is late, so that three transactions are in doubt; the third ends in order."""
    commit, done = (CLIENT, PUBLISH + method(pika.spec.Tx.Commit())), (SERVER, method(pika.spec.Tx.CommitOk()))
    start = [(CLIENT, HEADER + OPEN), (SERVER, OPENED), (CLIENT, method(pika.spec.Tx.Select()))]
    steps = [*start, (SERVER, method(pika.spec.Tx.SelectOk())), commit, done, commit, *[(CLIENT, HEARTBEAT)] * 15]
    steps += [done, commit, done, commit, done]
    late = captured(*steps, late=SERVER, stuck=range(5, 22))
    found = sorted(of(late)["messages"], key=lambda message: message["first_frame_no"])
    assert [message["transaction"] for message in found] == [None, None, None, "committed"]
    assert [each["transaction"] for each in of(captured(*steps))["messages"]] == ["committed"] * 4


def test_what_comes_when_all_is_in_order_again_is_known() -> None:
    """The server's first words are late; a publish behind them is confirmed, another one is not."""
    steps = [*TWICE_OPEN[:6], *[(CLIENT, HEARTBEAT)] * 15, (CLIENT, PUBLISH)]
    steps += [(SERVER, method(pika.spec.Basic.Ack(2))), (CLIENT, PUBLISH)]
    assert outcomes(captured(*steps, late=SERVER, stuck=range(20))) == ["nacked", "confirmed", "unsettled"]
    steps = [*TWICE_OPEN[:4], (CLIENT, PUBLISH), (SERVER, method(pika.spec.Basic.Nack(1)))]
    steps += [
        *[(SERVER, HEARTBEAT)] * 15,
        (CLIENT, PUBLISH),
        (SERVER, method(pika.spec.Basic.Ack(2))),
        (CLIENT, PUBLISH),
    ]
    assert outcomes(captured(*steps, late=CLIENT, stuck=range(4, 20))) == ["unknown", "confirmed", "unsettled"]


def test_frames_of_both_sides_are_noted() -> None:
    """The side that is read without what it has seen, and what it had seen."""
    decoder, notes = Decoder(), dict[str, list[str] | None]()
    segments = captured(*TWICE_OPEN[:4], (SERVER, HEARTBEAT), late=CLIENT)
    segments.insert(-2, Segment(SERVER, sum(len(data) for side, data in TWICE_OPEN[:4] if side == SERVER) + 8,
                                ack=len(HEADER + OPEN + SELECT), ns=APART))  # fmt: skip
    for batches in (decoder.feed(FLOW, *Capture(segments=segments).segments_and_payload()), decoder.finish()):
        for batch in batches:
            notes |= {
                row["name"] or row["frame_type"]: row["notes"]
                for row in frame_rows(batch, ["a.pcap"], False).to_pylist()
            }
    assert notes == {
        "channel.open-ok": ["peer-late"],
        "confirm.select-ok": ["peer-late"],
        "heartbeat": ["peer-late"],
        "protocol-header": ["captured-late"],
        "channel.open": ["captured-late"],
        "confirm.select": ["captured-late"],
    }
