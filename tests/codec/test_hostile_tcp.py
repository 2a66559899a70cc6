"""TCP as no stack sends it, or seldom: what is there is read, what is not is counted. See also test_reassembly."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fuzz import PARTS
from test_reassembly import FRAMES, OPENING, SPANS, STREAM, Capture, Segment, spans
from wire import CLIENT, SERVER, Row

from codec.net.layers import (
    ACK,
    FIN,
    RST,
    SYN,
)

END_OF_2106 = 4_323_542_400 * 10**9 - 10**9  # a pcap's 32 bits of seconds end in February 2106


def accounted(capture: Capture) -> tuple[list[Row], Row]:
    """Rows and facts of the one connection in `capture`, whose ledger adds up."""
    rows, (facts,) = capture.decoded()
    for side in ("client", "server"):
        assert facts[side]["payload_bytes"] == sum(facts[side][part] for part in PARTS)
        assert min(facts[side][name] for name in (*PARTS, "missing_bytes", "max_silence_ns")) >= 0
    return rows, facts


def test_data_after_a_fin_is_read() -> None:
    at = SPANS[9][0]
    fin = Segment(CLIENT, 0, STREAM[:at], FIN | ACK)
    rows, facts = accounted(Capture(segments=[*OPENING, fin, Segment(CLIENT, at, STREAM[at:])]))
    assert spans(rows) == SPANS
    assert (facts["tcp_end"], facts["tcp_end_by"]) == ("fin", "client")


def test_a_reset_inside_a_frame_leaves_a_tail() -> None:
    at, size = SPANS[6]
    cut = at + size // 2
    rows, facts = accounted(
        Capture(segments=[*OPENING, Segment(CLIENT, 0, STREAM[:cut]), Segment(CLIENT, cut, flags=RST)])
    )
    assert spans(rows) == SPANS[:6]
    assert facts["client"]["tail_bytes"] == cut - at
    assert (rows[-1]["status"], rows[-1]["error"]) == ("partial", "the capture ends inside a frame")
    assert facts["tcp_end"] == "rst"


def test_data_after_a_reset_is_read() -> None:
    at = SPANS[6][0]
    segments = [Segment(CLIENT, 0, STREAM[:at]), Segment(CLIENT, at, flags=RST), Segment(CLIENT, at, STREAM[at:])]
    rows, _ = accounted(Capture(segments=[*OPENING, *segments]))
    assert spans(rows) == SPANS


def test_both_sides_open_at_once() -> None:
    """RFC 9293 figure 8: two SYN cross, both are answered by a SYN with an acknowledgement."""
    opening = [Segment(side, 0, flags=flags) for flags in (SYN, SYN | ACK) for side in (CLIENT, SERVER)]
    rows, facts = accounted(Capture(segments=[*opening, Segment(CLIENT, 0, STREAM)]))
    assert spans(rows) == SPANS
    assert {row["sender"] for row in rows} == {"client"}
    assert facts["client"]["missing_bytes"] == facts["server"]["missing_bytes"] == 0


@pytest.mark.parametrize("size", [1, 65_535])
def test_segments_of_one_byte_and_of_the_largest_size(size: int) -> None:
    data = STREAM + b"".join(FRAMES[1:]) * 20
    segments = [Segment(CLIENT, at, data[at : at + size]) for at in range(0, len(data), size)]
    rows, _ = accounted(Capture(segments=[*OPENING, *segments]))
    assert len(spans(rows)) == len(FRAMES) + 20 * (len(FRAMES) - 1)
    assert {row["status"] for row in rows} == {"ok"}


@pytest.mark.parametrize("far", [1 << 30, (1 << 31) - 5000, 1 << 31, (1 << 32) - (1 << 30) - 5000])
def test_segments_far_outside_any_window_are_skipped_and_reported(far: int) -> None:
    stray = Segment(CLIENT, 500 + far, b"stray")
    segments = [Segment(CLIENT, 0, STREAM[:500]), stray, Segment(CLIENT, 500, STREAM[500:])]
    rows, facts = accounted(Capture(segments=[*OPENING, *segments]))
    assert spans(rows) == SPANS
    assert facts["limits"] == ["segment out of window"]
    assert facts["client"]["missing_bytes"] == 0


@pytest.mark.parametrize("lost", [1 << 30, (1 << 31) - 5000, 1 << 31, (1 << 32) - (1 << 30)])
def test_a_loss_larger_than_a_window_is_a_hole_once_both_sides_are_past_it(lost: int) -> None:
    """As in a ring of captures of which one is missing."""
    at, size = SPANS[6]
    segments = [
        Segment(CLIENT, 0, STREAM[:at]),
        Segment(SERVER, 0, ack=lost + at),
        Segment(CLIENT, lost + at, STREAM[at : at + size]),
        Segment(SERVER, 0, ack=lost + at + size),
        Segment(CLIENT, lost + at + size, STREAM[at + size :]),
    ]
    rows, facts = accounted(Capture(segments=[*OPENING, *segments]))
    assert spans(rows) == [*SPANS[:6], *((lost + begin, length) for begin, length in SPANS[6:])]
    assert [(row["offset"], row["size"]) for row in rows if row["frame_type"] == "gap"] == [(at, lost)]
    assert facts["client"]["missing_bytes"] == lost
    assert (facts["client"]["outside_bytes"], facts["limits"]) == (0, [])


def test_data_before_the_acknowledgement_after_such_a_hole_is_skipped() -> None:
    at, size = SPANS[6]
    lost = 1 << 30
    segments = [
        Segment(CLIENT, 0, STREAM[:at]),
        Segment(CLIENT, lost + at, STREAM[at : at + size]),
        Segment(SERVER, 0, ack=lost + at + size),
        Segment(CLIENT, lost + at + size, STREAM[at + size :]),
    ]
    rows, facts = accounted(Capture(segments=[*OPENING, *segments]))
    assert spans(rows) == [*SPANS[:6], *((lost + begin, length) for begin, length in SPANS[7:])]
    assert (facts["client"]["missing_bytes"], facts["client"]["outside_bytes"]) == (lost + size, size)
    assert facts["limits"] == ["segment out of window"]


def test_acknowledgements_of_what_was_never_sent_lose_nothing() -> None:
    lie = Segment(SERVER, 0, ack=len(STREAM) + 5000)
    between = [Segment(CLIENT, 0, STREAM[:700]), lie, replace(lie, ns=10**9), Segment(CLIENT, 700, STREAM[700:])]
    rows, facts = accounted(Capture(segments=[*OPENING, *between]))
    assert spans(rows) == SPANS
    assert facts["client"]["missing_bytes"] == 5000


def test_times_that_go_backwards_and_end_in_2106() -> None:
    capture = Capture(
        segments=[*OPENING, Segment(CLIENT, 0, STREAM[:700]), Segment(CLIENT, 700, STREAM[700:], ns=-5000)]
    )
    capture.segments[0].ns = END_OF_2106
    try:
        rows, facts = accounted(capture)
    finally:
        capture.segments[0].ns = 1000
    assert spans(rows) == SPANS
    assert facts["opened_ts_ns"] == END_OF_2106
    assert facts["closed_ts_ns"] >= END_OF_2106


def test_a_syn_in_the_middle_of_everything() -> None:
    """One that does not continue what was seen begins another connection; nothing of either is lost."""
    first = [*OPENING, Segment(CLIENT, 0, STREAM[:700])]
    again = [Segment(CLIENT, 10**6, flags=SYN), Segment(CLIENT, 10**6, STREAM)]
    rows, facts = Capture(segments=[*first, *again]).decoded()
    assert [fact["client"]["payload_bytes"] for fact in facts] == [700, len(STREAM)]
    before_syn = [span for span in SPANS if sum(span) <= 700]
    assert spans(rows) == sorted(before_syn + SPANS)
