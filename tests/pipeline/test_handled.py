"""When deliveries that are settled together were handled: frames of 0-9-1 by pika, times and estimates by hand."""

from __future__ import annotations

import pika.frame
import pika.spec
import pytest
from local_rows import LocalTables
from pika_frames import content, method
from wire import CLIENT, SERVER, Wire

SPACE_NS = 30_000


def acknowledged(*acknowledgements: tuple[int, bool]) -> Wire:
    """Five deliveries, one a microsecond; then each acknowledgement (tag, whether of all before), SPACE_NS later."""
    wire = Wire(syn=False)
    for tag in range(1, 6):
        wire.add(SERVER, content(pika.spec.Basic.Deliver("c", tag, False, "", "q")))
    for tag, multiple in acknowledgements:
        wire.waited_ns += SPACE_NS
        wire.add(CLIENT, method(pika.spec.Basic.Ack(tag, multiple)))
    return wire


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> LocalTables:
    together = acknowledged()
    together.waited_ns += SPACE_NS
    together.add(CLIENT, b"".join(method(pika.spec.Basic.Ack(tag)) for tag in range(1, 6)))
    wires = {
        "multiple": acknowledged((3, True), (5, True)),
        "alone": acknowledged(*((tag, False) for tag in range(1, 6))),
        "in one packet": together,
    }
    return LocalTables(tmp_path_factory.mktemp("handled") / "wires.pcap", wires)


def handled(written: LocalTables, name: str) -> list[int | None]:
    """Since the first delivery, ns."""
    rows = written.rows("messages", name, "last_ts_ns", "handled_ts_ns")
    begin = rows[0][0]
    return [None if ns is None else ns - begin for _, ns in rows]


def test_messages_of_one_acknowledgement_take_equal_time_one_after_the_other(written: LocalTables) -> None:
    # Three are settled 35,000 ns after the first came: 11,666 ns each. The others follow, until 31,000 ns later.
    assert handled(written, "multiple") == [11_666, 23_332, 34_998, 35_000 + 15_500, 35_000 + 31_000]


def test_messages_that_are_settled_alone_have_no_estimate(written: LocalTables) -> None:
    assert handled(written, "alone") == [None] * 5


def test_acknowledgements_of_their_own_in_one_packet_are_alone(written: LocalTables) -> None:
    assert handled(written, "in one packet") == [None] * 5


def test_estimates_do_not_depend_on_pieces(written: LocalTables) -> None:
    written.check_pieces()
