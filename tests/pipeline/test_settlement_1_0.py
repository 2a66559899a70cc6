"""Who decides the outcome of a delivery of 1.0: its receiver, its sender, or a broker that takes it back.

Packet n of a connection is captured n microseconds after it began; performatives are as qpid-proton encodes them.
Expected values follow from the core specification, 2.6.12, 2.7.5 and 2.7.6, and from what RabbitMQ 4.3 (a consumer
time-out) and Azure Service Bus (a lock that was lost) do.
"""

from __future__ import annotations

from typing import Any

import encode_1_0 as P
import proton
import pytest
from encode_1_0 import described
from local_rows import LocalTables
from test_tables_1_0_written import RECEIVES, SENDS, attach, disposed, moved, receiving, sending
from wire import CLIENT, SERVER, START_S, Wire, give_up

ACCEPTED, RELEASED, MODIFIED = (described(code) for code in (P.ACCEPTED, P.RELEASED, P.MODIFIED))
RECEIVED = described(0x23, proton.uint(0), proton.ulong(0))  # how much of a delivery is there (3.4.1)
FIRST, AFTER = 7, 8  # packets: what is sent on a link, and the first answer
LAST_ID = 2**32 - 1


def rejected(condition: str, info: dict[Any, Any] | None = None) -> Any:
    return described(P.REJECTED, described(P.ERROR, proton.symbol(condition), "no", info))


def by_broker(state: Any, first: int = 0, last: int | None = None, settled: bool = False) -> bytes:
    return disposed(SENDS, first, last, settled, state)


def by_client(state: Any, first: int = 0, last: int | None = None, settled: bool = True) -> bytes:
    return disposed(RECEIVES, first, last, settled, state)


def delivered(*answers: tuple[int, bytes]) -> Wire:
    """A delivery, and one packet for each answer."""
    wire = receiving()
    wire.add(SERVER, moved(0))
    for side, answer in answers:
        wire.add(side, answer)
    return wire


def scripts() -> dict[str, Wire]:
    wires = {
        "time-out": delivered((SERVER, by_broker(RELEASED)), (CLIENT, by_client(ACCEPTED))),
        "time-out, modified": delivered((SERVER, by_broker(MODIFIED)), (CLIENT, by_client(ACCEPTED))),
        "time-out, settled": delivered((SERVER, by_broker(RELEASED, settled=True)), (CLIENT, by_client(ACCEPTED))),
        "time-out, no answer": delivered((SERVER, by_broker(RELEASED))),
        "time-out, then settled": delivered(
            (SERVER, by_broker(RELEASED)), (CLIENT, by_client(ACCEPTED, settled=False)),
            (SERVER, by_broker(ACCEPTED, settled=True)),
        ),
        "received": delivered((SERVER, by_broker(RECEIVED)), (CLIENT, by_client(ACCEPTED))),
        "accepted by its sender": delivered((SERVER, by_broker(ACCEPTED)), (CLIENT, by_client(RELEASED))),
        "time-out, too late": delivered(
            (CLIENT, by_client(ACCEPTED, settled=False)), (SERVER, by_broker(RELEASED)),
            (SERVER, by_broker(ACCEPTED, settled=True)),
        ),
        "settled before the time-out": delivered((CLIENT, by_client(ACCEPTED)), (SERVER, by_broker(RELEASED))),
        "two settlements": delivered(
            (CLIENT, by_client(RELEASED, settled=False)), (SERVER, by_broker(RELEASED, settled=True))
        ),
    }  # fmt: skip
    for condition in ("com.microsoft:message-lock-lost", "com.microsoft:session-lock-lost", "amqp:internal-error"):
        wires[condition] = delivered(
            (CLIENT, by_client(ACCEPTED, settled=False)), (SERVER, by_broker(rejected(condition), settled=True))
        )
    wires["rejected by both"] = delivered(
        (CLIENT, by_client(rejected("a:b"), settled=False)), (SERVER, by_broker(rejected("a:b"), settled=True))
    )

    # Of four deliveries the broker takes three back, over the highest number; two are settled afterwards.
    wire = wires["ranges"] = receiving()
    numbers = [LAST_ID - 1, LAST_ID, 0, 1]
    wire.add(SERVER, b"".join(moved(number) for number in numbers))
    wire.add(SERVER, by_broker(RELEASED, LAST_ID, 1))
    wire.add(CLIENT, by_client(ACCEPTED, LAST_ID - 1, 0))
    # Delivered again over another link, and accepted there.
    wire = wires["delivered again"] = delivered((SERVER, by_broker(RELEASED)))
    wire.add(CLIENT, attach("again", 1, RECEIVES, source="q"))
    wire.add(SERVER, attach("again", 1, SENDS, source="q") + moved(1, 1))
    wire.add(CLIENT, by_client(ACCEPTED, 0, 1))

    # What outcomes state beside their name: of a publish (RabbitMQ 4.3), of a delivery, settled by either side.
    why = {proton.symbol("queue"): "q", proton.symbol("reason"): proton.symbol("maxlen")}
    wire = wires["texts of a publish"] = sending()
    wire.add(CLIENT, moved(0) + moved(1) + moved(2))
    wire.add(SERVER, disposed(RECEIVES, 0, 1, outcome=rejected("amqp:resource-limit-exceeded", why)))
    wire.add(SERVER, disposed(RECEIVES, 2, outcome=rejected("amqp:not-allowed")))
    annotated = described(P.MODIFIED, True, False, {proton.symbol("x-opt-why"): "again"})
    wires["texts of a delivery"] = delivered((CLIENT, by_client(annotated)))
    wires["texts, settled by the sender"] = delivered(
        (CLIENT, by_client(rejected("a:b", {proton.symbol("line"): 7}), settled=False)),
        (SERVER, by_broker(rejected("a:b"), settled=True)),
    )
    wires["texts in a transaction"] = delivered((CLIENT, by_client(described(P.TRANSACTIONAL, b"T", annotated))))

    # A client's word on its own publish changes nothing: the broker decides.
    wire = wires["publish"] = sending()
    wire.add(CLIENT, moved(0))
    wire.add(CLIENT, disposed(SENDS, 0, settled=False, outcome=RELEASED))
    wire.add(SERVER, disposed(RECEIVES, 0, outcome=ACCEPTED))

    # The first of two transfers says that the delivery is settled; the receiver states an outcome before the second.
    for side, begun, other in ((SERVER, receiving, CLIENT), (CLIENT, sending, SERVER)):
        who = "broker" if side == SERVER else "client"
        begins, rest = moved(0, more=True, settled=True), moved(0, first=False, payload=b"")
        for settled in (False, True):
            answer = disposed(RECEIVES, 0, settled=settled, outcome=ACCEPTED)
            script = f"settled by the {who}, answered {'with' if settled else 'without'} settlement"
            for end, last in (
                ("", rest),
                (", aborted", moved(0, first=False, payload=b"", aborted=True)),
                (", cut", b""),
            ):
                wire = wires[script + end] = begun()
                wire.add(side, begins)
                wire.add(other, answer)
                wire.add(side, last)
            wire = wires[f"{script}, lost"] = begun()
            wire.add(side, begins)
            wire.add(other, answer)
            wire.lose(side, len(rest))
            give_up(wire, side)
    wire = wires["settled by the receiver first"] = receiving()
    wire.add(SERVER, moved(0, more=True))
    wire.add(CLIENT, by_client(RELEASED))
    wire.add(SERVER, moved(0, first=False, payload=b"", more=True, settled=True))
    wire.add(SERVER, moved(0, first=False, payload=b"", settled=True))
    return wires


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> LocalTables:
    return LocalTables(tmp_path_factory.mktemp("settlement") / "wires.pcap", scripts())


def settled(written: LocalTables, script: str) -> list[tuple[str, int | None]]:
    """Outcome, and packet of the settlement, of each message."""
    begins_ns = (START_S + list(scripts()).index(script)) * 10**9
    rows = written.rows("messages", script, "outcome", "settled_ts_ns")
    return [(outcome, ns and (ns - begins_ns) // 1000) for outcome, ns in rows]


@pytest.mark.parametrize(
    ("script", "outcome", "packet"),
    [
        ("time-out", "released", AFTER), ("time-out, modified", "modified", AFTER),
        ("time-out, settled", "released", AFTER), ("time-out, no answer", "released", AFTER),
        ("time-out, then settled", "released", AFTER), ("received", "acked", AFTER + 1),
        ("accepted by its sender", "released", AFTER + 1), ("time-out, too late", "acked", AFTER + 2),
        ("settled before the time-out", "acked", AFTER), ("two settlements", "released", AFTER + 1),
    ],
)  # fmt: skip
def test_a_broker_takes_back_what_its_receiver_has_not_answered(
    written: LocalTables, script: str, outcome: str, packet: int
) -> None:
    """Whatever the receiver states then only unlocks it; other states of the sender change nothing."""
    assert settled(written, script) == [(outcome, packet)]


def test_a_broker_takes_back_ranges_of_deliveries(written: LocalTables) -> None:
    accepted, back = ("acked", AFTER + 1), ("released", AFTER)
    assert settled(written, "ranges") == [accepted, back, back, back]


def test_what_was_taken_back_is_delivered_again(written: LocalTables) -> None:
    assert settled(written, "delivered again") == [("released", AFTER), ("acked", AFTER + 3)]


@pytest.mark.parametrize(
    ("condition", "outcome"),
    [
        ("com.microsoft:message-lock-lost", "released"), ("com.microsoft:session-lock-lost", "released"),
        ("amqp:internal-error", "unknown"), ("rejected by both", "rejected"),
    ],
)  # fmt: skip
def test_a_settlement_that_the_broker_refuses_is_none(written: LocalTables, condition: str, outcome: str) -> None:
    """Azure rejects the settlement of a message whose lock was lost: the message is in its queue again."""
    assert settled(written, condition) == [(outcome, AFTER + 1)]


@pytest.mark.parametrize(
    ("script", "texts"),
    [
        (
            "texts of a publish",
            [("amqp:resource-limit-exceeded: no", '{"queue":"q","reason":"maxlen"}')] * 2
            + [("amqp:not-allowed: no", None)],
        ),
        ("texts of a delivery", [(None, '{"x-opt-why":"again"}')]),
        ("texts, settled by the sender", [("a:b: no", '{"line":7}')]),
        ("texts in a transaction", [(None, None)]),  # whose end was not captured: there is no outcome
        ("com.microsoft:message-lock-lost", [("com.microsoft:message-lock-lost: no", None)]),
        ("received", [(None, None)]),
    ],
)
def test_messages_have_the_error_and_the_info_of_their_outcome(
    written: LocalTables, script: str, texts: list[tuple[str | None, str | None]]
) -> None:
    assert written.rows("messages", script, "outcome_error", "outcome_info") == texts


def test_a_publisher_does_not_take_back_what_it_has_published(written: LocalTables) -> None:
    assert settled(written, "publish") == [("confirmed", AFTER + 1)]


@pytest.mark.parametrize("answered", ["with", "without"])
@pytest.mark.parametrize("who", ["broker", "client"])
@pytest.mark.parametrize(
    ("end", "outcome"),
    [("", "presettled"), (", aborted", "aborted"), (", cut", "presettled"), (", lost", "presettled")],
)
def test_no_answer_changes_what_its_sender_has_settled(
    written: LocalTables, answered: str, who: str, end: str, outcome: str
) -> None:
    script = f"settled by the {who}, answered {answered} settlement{end}"
    assert written.rows("messages", script, "outcome") == [(outcome,)]


def test_what_its_receiver_has_settled_its_sender_does_not_settle_again(written: LocalTables) -> None:
    assert settled(written, "settled by the receiver first") == [("released", AFTER)]


def test_in_pieces_they_are_settled_alike(written: LocalTables) -> None:
    written.check_pieces()
