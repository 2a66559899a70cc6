"""Messages of streams: each reader begins where it wants, again and again, and offsets say which message it is.

Connections of 0-9-1 are written by hand, as bytes; random streams are simulated, and written down as rows.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest
from classic_frames import method
from test_flows_labels import BROKER, Row, V, consuming, flows_of, message, messages, opened, paired, publishing
from wire import CLIENT, SERVER, Wire

OFFSET = "x-stream-offset"
STREAM = {"x-queue-type": "stream"}


def declared(had: int | None = None, **arguments: Any) -> Wire:
    """A connection that declares the stream, and is told how many messages it has; `had` None: without an answer."""
    wire = opened()
    wire.add(CLIENT, method(V, "queue.declare", queue="q", durable=True, arguments={**STREAM, **arguments}))
    if had is not None:
        wire.add(SERVER, method(V, "queue.declare-ok", queue="q", message_count=had, consumer_count=0))
    return wire


def reading(*offsets: int, tag: str = "c") -> Wire:
    """A connection with a reader that is delivered these messages, all with the same body."""
    asked: Row = {"arguments": {OFFSET: offsets[0]}}
    return consuming(*({"headers": {OFFSET: offset}} for offset in offsets), tag=tag, **asked)


def pairs(rows: list[Row]) -> list[tuple[int | None, bool | None]]:
    """Of each delivery in order: which publish (from 0 on) it is, and whether that is ambiguous."""
    published = sorted({row["publish_frame_no"] for row in rows if row["publish_frame_no"]})
    delivered = sorted((row for row in rows if row["deliver_frame_no"]), key=lambda row: row["deliver_ts_ns"])
    return [
        (published.index(row["publish_frame_no"]) if row["publish_frame_no"] else None, row["ambiguous"])
        for row in delivered
    ]


def test_equal_messages_are_told_apart_by_their_offsets(tmp_path: Path) -> None:
    """Of five the last two are read, then all, then the middle one twice."""
    readers = [reading(3, 4), reading(0, 1, 2, 3, 4), reading(2), reading(2)]
    rows = flows_of(tmp_path / "a.pcap", [declared(0), publishing(*[{}] * 5), *readers])
    assert pairs(rows) == [(n, False) for n in (3, 4, 0, 1, 2, 3, 4, 2, 2)]
    assert {row["redeliveries"] for row in rows} == {0}


def test_messages_of_before_the_capture_have_no_publish(tmp_path: Path) -> None:
    """The stream had three messages when it was declared: the publishes have offsets from 3 on."""
    rows = flows_of(tmp_path / "a.pcap", [declared(3), publishing({}, {}), reading(1, 2, 3, 4)])
    assert pairs(rows) == [(None, None), (None, None), (0, False), (1, False)]


def test_a_unique_message_says_where_the_others_are(tmp_path: Path) -> None:
    """Nothing is known of the stream but that the second publish has offset 8."""
    sent = publishing({}, {"headers": {"only": 1}}, {}, {})
    seen = consuming(
        *({"headers": {OFFSET: offset, **({"only": 1} if offset == 8 else {})}} for offset in (6, 7, 8, 9, 10, 11)),
        arguments={OFFSET: 6},
    )  # fmt: skip
    rows = flows_of(tmp_path / "a.pcap", [declared(), sent, seen])
    assert pairs(rows) == [(None, None), (0, False), (1, False), (2, False), (3, False), (None, None)]


def test_where_nothing_says_which_it_is_the_pair_is_ambiguous(tmp_path: Path) -> None:
    rows = flows_of(tmp_path / "a.pcap", [declared(), publishing({}, {}, {}), reading(7, 8)])
    assert {doubt for _, doubt in pairs(rows)} == {True}


def test_a_stream_that_was_deleted_begins_with_offset_0_again(tmp_path: Path) -> None:
    again = declared(0)
    again.add(CLIENT, method(V, "queue.delete", queue="q"))
    again.add(SERVER, method(V, "queue.delete-ok", message_count=2))
    wires = [declared(0), publishing({}, {}), reading(0, 1), again, publishing({}, {}, {}), reading(0, 2)]
    rows = flows_of(tmp_path / "a.pcap", wires)
    delivered = sorted((row for row in rows if row["deliver_frame_no"]), key=lambda row: row["deliver_ts_ns"])
    publishers = [row["publish_connection_id"] for row in delivered]
    assert publishers[:2] == [publishers[0]] * 2
    assert publishers[2:] == [publishers[2]] * 2
    assert publishers[0] != publishers[2]
    assert [index for index, _ in pairs(delivered)] == [0, 1, 0, 2]


def test_a_client_may_publish_what_it_read_from_a_stream_with_its_header(tmp_path: Path) -> None:
    """The header is the broker's only in deliveries: what is published has no offset yet."""
    rows = flows_of(tmp_path / "a.pcap", [declared(0), publishing({"headers": {OFFSET: 5}}), reading(0)])
    assert pairs(rows) == [(0, False)]


# ---- random streams -------------------------------------------------------------------------------------------------


def simulated(random: Random, version: str) -> tuple[list[Row], dict[int, int], str, bool]:
    """Messages of a stream, the publish (frame) of each delivery (frame), 0 if it was not captured, and its facts.
    Bodies are few, publishers and readers several; some messages are older than the capture."""
    to: Row = {"exchange": "", "routing_key": "q"} if version == V else {"address": "/queues/q"}
    at_reader: Row = {"queue": "q", **to} if version == V else to
    old, bodies = random.choice([0, 0, 3, 20]), random.choice([1, 2, 5, 1000])
    lost = random.choice([0, 0, 0.1])
    stream = [(f"{random.randrange(bodies):02}", 0) for _ in range(old)]
    rows: list[Row] = []
    origin: dict[int, int] = {}
    at = 10
    for _ in range(random.randrange(1, 25)):
        at += 10
        body = f"{random.randrange(bodies):02}"
        if random.random() >= lost:
            rows.append(message(version, "publish", 0, at, random.choice([1, 2]), body_sha256=body, headers=None, **to))
            stream.append((body, at))
        else:
            stream.append((body, 0))
        if random.random() < 0.3:
            first = random.randrange(len(stream))
            for offset in range(first, min(len(stream), first + random.randrange(1, 12))):
                at += 1
                content, sent = stream[offset]
                where = {
                    "link": f"l{at}",
                    "queue_offset": offset,
                    "body_sha256": content,
                    "headers": None,
                    **at_reader,
                }
                rows.append(message(version, "deliver", 0, at, 3, **where))
                origin[at] = sent
    return rows, origin, random.choice([f"q\nq\0{5}\0{old}\n", "q\n"]), lost > 0


@pytest.mark.parametrize("version", [V, "1.0"])
def test_pairs_of_random_streams_are_true_or_ambiguous(version: str) -> None:
    """If all publishes were captured, and the number of earlier messages, all pairs are true and sure. If a publish is
    missing, or the number is unknown, none that is wrong is sure."""
    found = Counter[tuple[bool, bool, bool]]()
    for seed in range(60):
        rows, origin, facts, lossy = simulated(Random(seed), version)
        told = "\0" in facts
        for row in paired(messages(*rows), {**BROKER, "streams": facts}):
            if row["deliver_frame_no"] is not None:
                is_true = (row["publish_frame_no"] or 0) == origin[row["deliver_frame_no"]]
                doubtful = row["ambiguous"] is not False and (row["match"] != "none" or not is_true)
                found[told and not lossy, is_true, doubtful] += 1
    assert {key[1:] for key in found if key[0]} == {(True, False)}
    assert found[False, False, False] == 0  # a delivery without a pair claims nothing
    assert found.total() > 400
