"""TCP as captures show it: reordered, repeated, overlapping, cut, lost, wrapped, used again. pika writes the stream."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pika.frame
import pika.spec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wire import CLIENT, FLOW, SERVER, Row, batch_rows, take_facts

from codec.amqp.decoder import Decoder
from codec.compiler.limits import LIMITS
from codec.net.layers import (
    ACK,
    FIN,
    RST,
    SEGMENT,
    SYN,
)

WRAP = 1 << 32
HEADER = pika.frame.ProtocolHeader(0, 9, 1).marshal()


def publish(number: int, size: int) -> list[bytes]:
    method = pika.spec.Basic.Publish(exchange="e", routing_key=f"key.{number}")
    return [
        pika.frame.Method(1, method).marshal(),
        pika.frame.Header(1, size, pika.spec.BasicProperties(message_id=str(number))).marshal(),
        pika.frame.Body(1, bytes([number]) * size).marshal(),
    ]


FRAMES = [HEADER, *(data for number in range(8) for data in publish(number, 20 + 97 * number))]
STREAM = b"".join(FRAMES)
SPANS = [(sum(map(len, FRAMES[:i])), len(data)) for i, data in enumerate(FRAMES)]


@dataclass
class Segment:
    """`at`: stream offset of `data`; `wire`: its length on the wire where the snaplen cut it; `ack`: stream offset."""

    direction: int
    at: int
    data: bytes = b""
    flags: int = ACK
    ack: int = 0
    wire: int | None = None
    ns: int = 1000


@dataclass
class Capture:
    """Segments in capture order; the numbers are put in at the end. `first`: sequence number of stream offset 0."""

    first: tuple[int, int] = (7000, 1000)  # by direction
    segments: list[Segment] = field(default_factory=list)

    def segments_and_payload(self) -> tuple[np.ndarray, np.ndarray]:
        """SEGMENTs, and their bytes."""
        payload, ns, numbered = b"", 0, []
        for i, segment in enumerate(self.segments):
            ns += segment.ns
            seq = (self.first[segment.direction] + segment.at - bool(segment.flags & SYN)) % WRAP
            ack = (self.first[1 - segment.direction] + segment.ack) % WRAP if segment.flags & ACK else 0
            wire = len(segment.data) if segment.wire is None else segment.wire
            captured, flags = len(segment.data), segment.flags
            numbered.append(
                (ns, ns, i + 1, len(payload), seq, ack, wire, captured, 0, 0, flags, segment.direction, 0, 0)
            )
            payload += segment.data
        return np.array(numbered, SEGMENT), np.frombuffer(bytearray(payload or b"\0"), np.uint8)

    def decoded(self) -> tuple[list[Row], list[Row]]:
        decoder = Decoder()
        found: list[Row] = []
        for batches in (decoder.feed(FLOW, *self.segments_and_payload()), decoder.finish()):
            for batch in batches:
                found += batch_rows(batch)
        return found, [facts.facts for facts in take_facts(decoder)]


OPENING = [Segment(CLIENT, 0, flags=SYN), Segment(SERVER, 0, flags=SYN | ACK)]


def spans(rows: list[Row]) -> list[tuple[int, int]]:
    return sorted((row["offset"], row["size"]) for row in rows if row["frame_type"] not in ("gap", "skipped"))


def cut(sizes: list[int]) -> list[Segment]:
    """STREAM in segments of these sizes, again and again."""
    found: list[Segment] = []
    at = 0
    while at < len(STREAM):
        size = sizes[len(found) % len(sizes)]
        found.append(Segment(CLIENT, at, STREAM[at : at + size]))
        at += size
    return found


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(2, 400), min_size=1, max_size=6),  # one old byte would be a keep-alive
    st.randoms(use_true_random=False),
    st.sampled_from([7000, WRAP - 1, WRAP - 1500, 0]),
)
def test_order_copies_overlaps_and_wrap_change_nothing(sizes: list[int], random: Any, first: int) -> None:
    segments = cut(sizes)
    for _ in range(4):  # swap neighbours, repeat, and send again what straddles two segments
        i = random.randrange(len(segments))
        j = min(len(segments) - 1, i + random.randrange(3))
        segments[i], segments[j] = segments[j], segments[i]
        again = max(0, min(segments[i].at, len(STREAM) - 60) - random.randrange(50))
        segments.insert(i, Segment(CLIENT, again, STREAM[again : again + random.randrange(2, 300)]))
    rows, (facts,) = Capture((first, 1000), OPENING + segments).decoded()
    assert spans(rows) == SPANS
    assert {row["status"] for row in rows} == {"ok"}
    assert facts["client"]["payload_bytes"] == len(STREAM)
    assert facts["client"]["missing_bytes"] == 0
    assert facts["conflicting_overlap_bytes"] == 0
    sent = sum(len(segment.data) for segment in segments)
    assert facts["client"]["retransmitted_bytes"] == sent - len(STREAM)


def test_the_first_copy_of_a_byte_wins_and_a_different_one_is_counted() -> None:
    late = Segment(CLIENT, 40, bytes(STREAM[i] ^ 0xFF for i in range(40, 60)))
    waiting = [Segment(CLIENT, 300, STREAM[300:400]), replace(late, at=310, data=b"\0" * 5)]
    rest = [Segment(CLIENT, 100, STREAM[100:300]), Segment(CLIENT, 400, STREAM[400:])]
    rows, (facts,) = Capture(segments=[*OPENING, Segment(CLIENT, 0, STREAM[:100]), late, *waiting, *rest]).decoded()
    assert spans(rows) == SPANS
    different = sum(STREAM[i] != 0 for i in range(310, 315))
    assert facts["conflicting_overlap_bytes"] == 20 + different


def test_a_hole_is_declared_when_the_peer_acknowledged_past_it_and_a_bound_has_passed() -> None:
    """It is too late then for a copy of the missing bytes; without an acknowledgement the connection has to end."""
    at, size = SPANS[4]  # a publish; the hole is this whole frame
    lost = [Segment(CLIENT, 0, STREAM[:at]), Segment(CLIENT, at + size, STREAM[at + size :])]
    copy, answer = Segment(CLIENT, at, STREAM[at : at + size]), Segment(SERVER, 0, ack=len(STREAM), ns=1)
    in_time = [answer, replace(answer, ns=LIMITS.reorder_ns), copy]
    in_segments = [answer] * (LIMITS.reorder_patience + 1) + [copy]
    unanswered = [Segment(SERVER, 0, ack=at), Segment(SERVER, 0, ack=at, ns=LIMITS.reorder_ns)]
    end = [Segment(SERVER, 0, STREAM[:0], FIN | ACK, ack=at)]
    for between in (in_time, in_segments, unanswered):
        rows, (facts,) = Capture(segments=[*OPENING, *lost, *between, *end]).decoded()
        assert spans(rows) == [span for span in SPANS if span[0] != at]
        (gap,) = [row for row in rows if row["frame_type"] == "gap"]
        assert (gap["offset"], gap["size"]) == (at, size)
        assert facts["client"]["missing_bytes"] == size
        assert facts["client"]["frame_bytes"] == len(STREAM) - size


@pytest.mark.parametrize(("segments", "ns"), [(0, 1000), (1, 63_000_000), (200, 1000), (200, 900_000)])
def test_data_captured_after_its_acknowledgement_is_not_lost(segments: int, ns: int) -> None:
    """... so many segments, each so much later than the one before."""
    late = Segment(CLIENT, 200, STREAM[200:300], ns=ns)
    early = [Segment(CLIENT, 0, STREAM[:200]), Segment(CLIENT, 300, STREAM[300:]), Segment(SERVER, 0, ack=len(STREAM))]
    between = [Segment(SERVER, 0, ack=len(STREAM), ns=ns)] * segments
    rows, (facts,) = Capture(segments=[*OPENING, *early, *between, late]).decoded()
    assert spans(rows) == SPANS
    assert facts["client"]["missing_bytes"] == 0
    assert facts["client"]["out_of_order_segments"] == 1


def test_bytes_cut_by_the_snaplen_are_a_hole_when_later_data_comes() -> None:
    at, size = SPANS[6]  # a body: 8 bytes of frame around it
    cut_short = Segment(CLIENT, at, STREAM[at : at + 20], wire=size)
    rows, (facts,) = Capture(
        segments=[*OPENING, Segment(CLIENT, 0, STREAM[:at]), cut_short, Segment(CLIENT, at + size, STREAM[at + size :])]
    ).decoded()
    torn = next(row for row in rows if row["offset"] == at and row["frame_type"] == "body")
    assert (torn["status"], torn["size"], torn["payload_size"], torn["digest"]) == ("partial", size, 20 - 7, None)
    assert spans(rows) == SPANS
    assert facts["client"]["missing_bytes"] == size - 20


def test_keep_alives_are_neither_data_nor_retransmissions() -> None:
    alive = [Segment(CLIENT, len(STREAM) - 1), Segment(CLIENT, len(STREAM) - 1, b"\0")]
    rows, (facts,) = Capture(segments=[*OPENING, Segment(CLIENT, 0, STREAM), *alive]).decoded()
    assert spans(rows) == SPANS
    assert facts["client"]["retransmitted_bytes"] == 0
    assert facts["conflicting_overlap_bytes"] == 0


def test_a_keep_alive_does_not_fill_in_what_the_snaplen_cut_off() -> None:
    at, size = SPANS[6]
    cut_short = Segment(CLIENT, at, STREAM[at : at + 20], wire=size)
    alive = Segment(CLIENT, at + size - 1, b"\0")
    rest = Segment(CLIENT, at + size, STREAM[at + size :])
    whole, (facts,) = Capture(segments=[*OPENING, Segment(CLIENT, 0, STREAM[:at]), cut_short, alive, rest]).decoded()
    assert spans(whole) == SPANS
    assert [row["size"] for row in whole if row["frame_type"] == "gap"] == [size - 20]
    assert facts["client"]["missing_bytes"] == size - 20


def test_a_syn_may_carry_data_and_both_ends_consume_a_number() -> None:
    opening = [Segment(CLIENT, 0, STREAM[:50], SYN), Segment(SERVER, 0, flags=SYN | ACK)]
    # the sequence number of a SYN is one before its data; the segment above says so by `at` 0
    end = [Segment(CLIENT, len(STREAM), flags=FIN | ACK), Segment(SERVER, 0, flags=FIN | ACK, ack=len(STREAM) + 1)]
    rows, (facts,) = Capture(segments=[*opening, Segment(CLIENT, 50, STREAM[50:]), *end]).decoded()
    assert spans(rows) == SPANS
    assert (facts["tcp_end"], facts["tcp_end_by"]) == ("fin", "client")
    assert facts["client"]["missing_bytes"] == 0


def test_a_new_syn_on_the_same_ports_is_another_connection() -> None:
    first = [*OPENING, Segment(CLIENT, 0, STREAM), Segment(SERVER, 0, flags=RST)]
    capture = Capture(segments=first)
    shift = 500_000  # the second connection has other initial numbers
    again = [
        replace(segment, at=segment.at + shift, ack=segment.ack + shift)
        for segment in [*OPENING, Segment(CLIENT, 0, STREAM)]
    ]
    capture.segments = [*first, again[0], replace(again[0]), *again[1:]]  # its SYN is sent twice
    rows, facts = capture.decoded()
    assert [fact["tcp_end"] for fact in facts] == ["rst", "none"]
    assert [fact["client"]["frame_bytes"] for fact in facts] == [len(STREAM)] * 2
    assert spans(rows) == sorted(SPANS * 2)


def test_the_version_of_a_capture_that_begins_in_the_middle_is_detected_from_its_frames() -> None:
    at = SPANS[9][0] + 30  # inside a body
    rows, (facts,) = Capture(segments=[Segment(CLIENT, at, STREAM[at:])]).decoded()
    assert [(row["offset"] + at, row["size"]) for row in rows if row["frame_type"] != "skipped"] == SPANS[10:]
    (skipped,) = [row for row in rows if row["frame_type"] == "skipped"]
    assert (skipped["offset"], skipped["size"]) == (0, SPANS[10][0] - at)
    assert not facts["syn_captured"]
    assert {row["known"] for row in rows} == {False}
