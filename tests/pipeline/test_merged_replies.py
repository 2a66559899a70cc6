"""One reply may serve several requests: of 1.0 a flow (2.7.4, echo), of 0-10 the controls of class session (completed,
merged-reply). Packets of a connection are a microsecond apart."""

from __future__ import annotations

import pytest
from local_rows import LocalTables
from test_tables_0_10 import control
from test_tables_0_10 import opened as opened_0_10
from test_tables_1_0_written import RECEIVES, SENDS, attach, flow, sending
from wire import CLIENT, SERVER, Wire


def scripts() -> dict[str, Wire]:
    wires = {}
    wire = wires["flush"] = opened_0_10()
    for _ in range(3):
        wire.add(CLIENT, control("session.flush", completed=True))  # packets 5, 6, 7
    wire.add(CLIENT, control("session.flush", confirmed=True))
    wire.add(SERVER, control("session.completed", commands=[]))  # 9
    wire.add(CLIENT, control("session.flush", completed=True))  # 10
    wire.add(SERVER, control("session.completed", commands=[]))  # 11
    wire.add(SERVER, control("session.completed", commands=[]))  # unasked

    wire = wires["timely reply"] = opened_0_10()
    wire.add(SERVER, control("session.completed", commands=[], timely_reply=True))  # 5
    wire.add(SERVER, control("session.completed", commands=[], timely_reply=True))  # 6
    wire.add(CLIENT, control("session.known-completed", commands=[]))

    wire = wires["echo"] = sending()
    wire.add(SERVER, attach("r", 1, SENDS, source="q"))
    wire.add(CLIENT, attach("r", 5, RECEIVES, source="q"))
    for credit in (1, 2, 3):
        wire.add(CLIENT, flow(0, credit, handle=5, echo=True))  # 9, 10, 11
    wire.add(CLIENT, flow(echo=True))  # 12, of the session
    wire.add(SERVER, flow(0, 3, handle=0))  # 13, of the other link
    wire.add(SERVER, flow(0, 3, handle=1))  # 14

    wire = wires["lost"] = opened_0_10()
    wire.add(CLIENT, control("session.flush", completed=True))
    wire.lose(SERVER, len(control("session.completed", commands=[])))
    wire.add(CLIENT, control("session.flush", completed=True))
    wire.add(SERVER, control("session.completed", commands=[]))
    return wires


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> LocalTables:
    return LocalTables(tmp_path_factory.mktemp("replies") / "wires.pcap", scripts())


@pytest.mark.parametrize(
    ("script", "name", "waited_us"),
    [
        ("flush", "session.flush", [9 - 5, 9 - 6, 9 - 7, None, 11 - 10]),
        ("timely reply", "session.completed", [7 - 5, 7 - 6]),
        ("echo", "flow", [14 - 9, 14 - 10, 14 - 11, 13 - 12, None, None]),
    ],
)
def test_a_reply_serves_all_requests_before_it(
    written: LocalTables, script: str, name: str, waited_us: list[int | None]
) -> None:
    rows = written.rows("methods", script, "name", "sender", "reply_latency_ns")
    asked = [latency for of, sender, latency in rows if of == name and (script, sender) != ("flush", "server")]
    assert asked == [us and us * 1000 for us in waited_us]


def test_no_reply_serves_a_request_before_a_loss(written: LocalTables) -> None:
    rows = written.rows("methods", "lost", "name", "reply_frame_no")
    assert [frame_no is None for name, frame_no in rows if name == "session.flush"] == [True, False]


def test_in_pieces_they_have_the_same_replies(written: LocalTables) -> None:
    written.check_pieces()
