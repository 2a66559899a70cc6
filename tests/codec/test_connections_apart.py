"""Connections that follow each other on the same addresses and ports, and packets that belong to none of them.

The ledger of each is compared with the second reader (independent_tcp), which keeps its own copy of every byte.
"""

from __future__ import annotations

from dataclasses import replace

import independent_tcp as tcp
import pika.frame
import pika.spec
import pytest
from test_reassembly import FRAMES, OPENING, SPANS, STREAM, WRAP, Capture, Segment, spans
from wire import CLIENT, SERVER, Row, Wire

from codec.net.layers import (
    ACK,
    FIN,
    RST,
    SYN,
)

PORTS = {CLIENT: 40000, SERVER: 5672}
ANOTHER = 500_000  # how far initial sequence numbers of two connections are apart
DELIVERY = pika.frame.Method(1, pika.spec.Basic.Deliver("tag", 1, False, "e", "k")).marshal() + b"".join(FRAMES[2:4])
IN_THE_MIDDLE = [
    Segment(CLIENT, SPANS[9][0], STREAM[SPANS[9][0] :], ack=900),
    Segment(SERVER, 900, DELIVERY, ack=len(STREAM)),
]


def moved(segments: list[Segment], by: int = ANOTHER) -> list[Segment]:
    """The same with other sequence numbers."""
    return [replace(each, at=each.at + by, ack=each.ack + by) for each in segments]


def second_reader(capture: Capture) -> list[tcp.Connection]:
    packets = []
    for number, each in enumerate(capture.segments):
        source, target = (("10.0.0.1", PORTS[side]) for side in (each.direction, 1 - each.direction))
        seq = (capture.first[each.direction] + each.at - bool(each.flags & SYN)) % WRAP
        ack = (capture.first[1 - each.direction] + each.ack) % WRAP if each.flags & ACK else 0
        wire = len(each.data) if each.wire is None else each.wire
        packets.append(tcp.Packet(number, "", number, 0, source, target, seq, ack, each.flags, wire, each.data))
    return tcp.connections(packets)


def accounted(segments: list[Segment]) -> tuple[list[Row], list[Row]]:
    """Rows and facts; the ledger of each connection is that of the second reader."""
    capture = Capture(segments=segments)
    rows, facts = capture.decoded()
    expected = second_reader(capture)
    assert len(facts) == len(expected)
    for fact, connection in zip(facts, expected, strict=True):
        for side, port in (("client", 40000), ("server", 5672)):
            half = connection.halves["10.0.0.1", port]
            missing = sum(size for _, size in half.holes())
            assert fact[side]["payload_bytes"] == len(half.data) - missing
            assert fact[side]["missing_bytes"] == missing
            assert fact[side]["outside_bytes"] == half.outside
        of_rows = sum(fact[side]["payload_bytes"] for side in ("client", "server"))
        assert of_rows == sum(fact[side]["frame_bytes"] + fact[side]["skipped_bytes"] for side in ("client", "server"))
    assert {row["sender"] for row in rows} <= {"client", "server"}
    return rows, facts


@pytest.mark.parametrize("heard", [IN_THE_MIDDLE, IN_THE_MIDDLE[:1], IN_THE_MIDDLE[1:]])
def test_a_syn_ack_whose_syn_was_lost_begins_another_connection(heard: list[Segment]) -> None:
    again = moved([OPENING[1], Segment(CLIENT, 0, STREAM)])
    rows, facts = accounted([*heard, *again])
    assert [fact["client"]["packets"] for fact in facts] == [sum(s.direction == CLIENT for s in heard), 1]
    assert [fact["roles_from"] for fact in facts] == ["method", "syn"]
    assert [row for row in rows if row["frame_type"] == "gap"] == []
    assert {row["sender"] for row in rows if row["name"] == "basic.publish"} >= {"client"}


def test_a_syn_ack_after_a_complete_connection_begins_another_one() -> None:
    first = [*OPENING, Segment(CLIENT, 0, STREAM)]
    rows, facts = accounted([*first, *moved([OPENING[1], Segment(CLIENT, 0, STREAM)])])
    assert [fact["client"]["frame_bytes"] for fact in facts] == [len(STREAM)] * 2
    assert spans(rows) == sorted(SPANS * 2)


def test_a_late_syn_ack_does_not_begin_a_connection() -> None:
    """Its SYN was captured, or what it acknowledges is where the stream of the client begins."""
    late = [Segment(CLIENT, 0, STREAM[:700]), OPENING[1], Segment(CLIENT, 700, STREAM[700:])]
    for segments in ([OPENING[0], *late], late, [OPENING[1], OPENING[0], late[0], late[2]]):
        rows, (fact,) = accounted(segments)
        assert spans(rows) == SPANS
        assert {row["sender"] for row in rows} == {"client"}
        assert fact["roles_from"] == ("header" if segments is late else "syn")


def test_a_syn_ack_may_acknowledge_the_data_of_its_syn() -> None:
    """TCP Fast Open (RFC 7413)."""
    opening = [Segment(CLIENT, 0, STREAM[:50], SYN), Segment(SERVER, 0, flags=SYN | ACK, ack=50)]
    rows, (fact,) = Capture(segments=[*opening, Segment(CLIENT, 50, STREAM[50:])]).decoded()
    assert spans(rows) == SPANS
    assert fact["client"]["packets"] == 2


def test_rows_before_a_late_syn_ack_have_a_sender() -> None:
    """These frames do not tell who sends them: either side may acknowledge. The SYN-ACK that comes later tells."""
    ack = pika.frame.Method(1, pika.spec.Basic.Ack(7)).marshal()
    rows, (fact,) = accounted([Segment(SERVER, 0, ack * 5), OPENING[1], Segment(SERVER, len(ack) * 5, ack * 5)])
    assert [row["sender"] for row in rows] == ["server"] * 10
    assert fact["roles_from"] == "syn"


@pytest.mark.parametrize("flags", [RST, RST | ACK])
def test_the_payload_of_a_reset_is_counted_outside_the_stream(flags: int) -> None:
    """RFC 9293 section 3.5.3: a RST may hold text that tells why."""
    reason = b"no such service"
    opened = [*OPENING, Segment(CLIENT, 0, STREAM), Segment(SERVER, 0, reason, flags, ack=len(STREAM))]
    rows, (fact,) = accounted(opened)
    assert spans(rows) == SPANS
    assert (fact["server"]["outside_bytes"], fact["server"]["payload_bytes"]) == (len(reason), 0)
    assert fact["tcp_end"] == "rst"


def test_a_reset_of_an_unknown_connection_is_counted() -> None:
    rows, (fact,) = accounted([Segment(SERVER, 0, b"closed", RST)])
    assert rows == []
    assert fact["server"]["outside_bytes"] == 6


def test_a_fin_that_is_acknowledged_by_another_one_came_first() -> None:
    """Whichever was captured first."""
    fins = [Segment(CLIENT, len(STREAM), flags=FIN | ACK), Segment(SERVER, 0, flags=FIN | ACK, ack=len(STREAM) + 1)]
    for order in (fins, fins[::-1]):
        _, (fact,) = accounted([*OPENING, Segment(CLIENT, 0, STREAM), *order])
        assert (fact["tcp_end"], fact["tcp_end_by"]) == ("fin", "client")


@pytest.mark.parametrize("sizes", [[100], [40, 60, 500], [700, 33]])
def test_bytes_cut_by_the_snaplen_are_recovered_from_smaller_retransmitted_segments(sizes: list[int]) -> None:
    """A segment of which 8 bytes were captured got lost behind the sniffer; its copies are small enough."""
    lost = Segment(CLIENT, 0, STREAM[:8], wire=len(STREAM))
    again: list[Segment] = []
    at = 8
    while at < len(STREAM):
        size = sizes[len(again) % len(sizes)]
        again.append(Segment(CLIENT, at, STREAM[at : at + size]))
        at += size
    for answers in ([], [Segment(SERVER, 0, ack=8)]):
        rows, (fact,) = accounted([*OPENING, lost, *answers, *again])
        assert spans(rows) == SPANS
        assert fact["client"]["retransmitted_bytes"] == 0


def test_bytes_cut_by_the_snaplen_are_missing_once_later_data_or_its_acknowledgement_was_captured() -> None:
    cut_at = SPANS[9][0]
    cut = Segment(CLIENT, 0, STREAM[:8], wire=cut_at)
    rest = Segment(CLIENT, cut_at, STREAM[cut_at:])
    copy = Segment(CLIENT, 8, STREAM[8:cut_at])
    for behind in ([rest], [Segment(SERVER, 0, ack=cut_at), rest]):
        rows, (fact,) = accounted([*OPENING, cut, *behind])
        assert spans(rows) == [SPANS[0], *SPANS[9:]]
        assert fact["client"]["missing_bytes"] == cut_at - 8
        _, (late,) = Capture(segments=[*OPENING, cut, *behind, copy]).decoded()  # too late for its place
        assert late["client"]["missing_bytes"] == cut_at - 8
        assert late["client"]["retransmitted_bytes"] == cut_at - 8
    answered = [Segment(SERVER, 0, ack=cut_at), Segment(CLIENT, 8, STREAM[8:cut_at]), rest]
    _, (fact,) = Capture(segments=[*OPENING, cut, *answered]).decoded()
    assert fact["client"]["missing_bytes"] == cut_at - 8  # the peer has it: nobody sends it again


@pytest.mark.parametrize("alive", [b"", b"\0"], ids=["without data", "with one byte"])
@pytest.mark.parametrize("side", [CLIENT, SERVER])
def test_keep_alives_do_not_end_a_silence(side: int, alive: bytes) -> None:
    """Data, five keep-alives 5 s apart with their answers, data again: 30 s of silence."""
    wire = Wire()
    wire.add(side, b"AMQP\x00\x00\x09\x01"[: 8 if side == CLIENT else 4])
    for _ in range(5):
        wire.waited_ns += 5_000_000_000
        wire.seq[side] -= 1  # one before the next byte
        wire.add(side, alive)
        wire.seq[side] += 1 - len(alive)
        wire.add(1 - side, b"")
    wire.waited_ns += 5_000_000_000
    wire.add(side, b"AMQP")
    _, facts = wire.rows()
    name = "client" if side == CLIENT else "server"
    assert facts[name]["packets"] == 1 + 1 + 5 + 1  # a SYN, data, keep-alives, data
    assert 30_000_000_000 <= facts[name]["max_silence_ns"] < 30_000_001_000
