"""Closed TCP windows: how long a side read nothing."""

from __future__ import annotations

from wire import CLIENT, SERVER, Wire

from codec.net.layers import ACK, RST, SYN

HEADER = b"AMQP\0\0\x09\x01"


def closed_ns(wire: Wire) -> tuple[int, int]:
    """Of client and server; packet n was captured at n ns."""
    _, facts = wire.rows()
    return facts["client"]["zero_window_ns"], facts["server"]["zero_window_ns"]


def test_a_window_is_closed_until_the_side_announces_another() -> None:
    wire = Wire()  # packets 1 and 2
    wire.add(CLIENT, HEADER)
    wire.add(CLIENT, b"", window=0)  # packet 4
    wire.add(SERVER, b"")
    wire.add(CLIENT, b"", window=0)
    wire.add(CLIENT, b"", window=1)  # packet 7
    wire.add(SERVER, b"", window=0)  # packet 8
    wire.add(SERVER, b"", window=9)  # packet 9
    wire.add(CLIENT, b"", window=0)  # packet 10
    wire.add(CLIENT, b"", window=9)  # packet 11
    assert closed_ns(wire) == (3 + 1, 1)


def test_a_window_stays_closed_to_the_end_of_the_connection() -> None:
    wire = Wire()
    wire.add(CLIENT, HEADER)
    wire.add(SERVER, b"", window=0)  # packet 4
    wire.add(CLIENT, b"")
    wire.add(CLIENT, b"")  # packet 6
    assert closed_ns(wire) == (0, 2)


def test_windows_of_syn_and_rst_segments_are_ignored() -> None:
    wire = Wire(syn=False)
    wire.add(CLIENT, b"", SYN, window=0)
    wire.add(SERVER, b"", SYN | ACK, window=0)
    wire.add(CLIENT, HEADER)
    wire.add(SERVER, b"", RST | ACK, window=0)
    wire.add(CLIENT, b"")
    assert closed_ns(wire) == (0, 0)
