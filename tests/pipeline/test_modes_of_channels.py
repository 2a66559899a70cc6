"""Channels whose request for a mode was not captured: what only happens in a mode proves it from there on."""

from __future__ import annotations

import pika.spec
from encode_0_10 import message, one_frame
from pika_frames import PUBLISH, method
from test_order import flows, rows_of, tables_of
from test_reassembly import Segment
from wire import CLIENT, SERVER

from udfs.conversation.roles import MODES, PROVES_MODE

COMMIT, COMMIT_OK = method(pika.spec.Tx.Commit()), method(pika.spec.Tx.CommitOk())
ROLLBACK, ROLLBACK_OK = method(pika.spec.Tx.Rollback()), method(pika.spec.Tx.RollbackOk())


def segments_of(*parts: tuple[int, bytes]) -> list[Segment]:
    """Each part acknowledges all before it; the capture begins with the first one."""
    segments, at = [], [0, 0]
    for direction, data in parts:
        segments.append(Segment(direction, at[direction], data, ack=at[1 - direction]))
        at[direction] += len(data)
    return segments


def test_a_commit_proves_a_channel_with_transactions() -> None:
    """The first publish is in a transaction whose beginning is not known."""
    tables = rows_of(
        segments_of(
            (CLIENT, PUBLISH), (CLIENT, COMMIT), (SERVER, COMMIT_OK),
            (CLIENT, PUBLISH), (CLIENT, ROLLBACK), (SERVER, ROLLBACK_OK),
            (CLIENT, PUBLISH), (CLIENT, COMMIT), (SERVER, COMMIT_OK),
        )
    )  # fmt: skip
    messages = sorted(tables["messages"], key=lambda row: row["first_frame_no"])
    assert [row["transaction"] for row in messages] == [None, "rolled-back", "committed"]
    assert [row["mode"] for row in tables["channels"]] == ["tx"]


def test_replies_without_their_requests_prove_a_channel_with_transactions() -> None:
    assert [row["mode"] for row in rows_of(segments_of((SERVER, COMMIT_OK), (SERVER, ROLLBACK_OK)))["channels"]] == [
        "tx"
    ]
    assert set(PROVES_MODE.values()) <= set(MODES.values())


def test_an_acknowledgement_of_the_server_proves_a_channel_with_confirms() -> None:
    """Which publish is meant is not known: those before the capture were numbered as well."""
    parts = [(CLIENT, PUBLISH), (SERVER, method(pika.spec.Basic.Ack(41))), (CLIENT, PUBLISH)]
    tables = rows_of(segments_of(*parts, (SERVER, method(pika.spec.Basic.Ack(42)))))
    assert [(row["delivery_tag"], row["outcome"]) for row in tables["messages"]] == [(None, "unknown")] * 2
    assert [row["mode"] for row in tables["channels"]] == ["confirm"]


def test_a_commit_on_a_channel_with_confirms_is_an_error_of_the_client() -> None:
    select = (CLIENT, method(pika.spec.Channel.Open()) + method(pika.spec.Confirm.Select()))
    tables = rows_of(segments_of(select, (CLIENT, COMMIT), (CLIENT, PUBLISH), (SERVER, method(pika.spec.Basic.Ack(1)))))
    assert [row["mode"] for row in tables["channels"]] == ["confirm"]
    assert [row["outcome"] for row in tables["messages"]] == ["confirmed"]


def test_a_commit_proves_a_session_of_0_10_with_transactions() -> None:
    transfer = b"".join(message(b"hello"))
    commit, rollback = one_frame("tx.commit", {}, 1), one_frame("tx.rollback", {}, 1)
    known = one_frame("session.command-point", {"command-id": 7, "command-offset": 0}, 1)
    done = [one_frame("session.completed", {"commands": [(7, last)]}, 1) for last in (8, 10)]
    tables = rows_of(
        segments_of(
            (CLIENT, known + transfer + commit), (SERVER, done[0]), (CLIENT, transfer + rollback), (SERVER, done[1])
        )
    )  # fmt: skip
    messages = sorted(tables["messages"], key=lambda row: row["first_frame_no"])
    assert [row["transaction"] for row in messages] == [None, "rolled-back"]
    assert [row["mode"] for row in tables["channels"]] == ["tx"]


def test_the_transaction_of_a_delivery_is_unknown_where_its_last_acknowledgement_may_be() -> None:
    """It was acknowledged in a transaction that was rolled back; then bytes of the client are lost."""
    got = method(pika.spec.Basic.GetOk(7, False, "e", "k", 0)) + PUBLISH[-22:]
    ack = method(pika.spec.Basic.Ack(7))
    parts = [
        (CLIENT, method(pika.spec.Tx.Select())), (SERVER, method(pika.spec.Tx.SelectOk())),
        (CLIENT, method(pika.spec.Basic.Get(0, "q"))), (SERVER, got),
        (CLIENT, ack + ROLLBACK), (SERVER, ROLLBACK_OK), (CLIENT, ack), (CLIENT, COMMIT), (SERVER, COMMIT_OK),
    ]  # fmt: skip
    segments = segments_of(*parts)
    for lost, transaction, outcome in ((None, "committed", "acked"), (6, None, "unknown")):
        captured = [segment for i, segment in enumerate(segments) if i != lost]
        (message,) = rows_of(captured)["messages"]
        assert (message["transaction"], message["outcome"]) == (transaction, outcome)


def test_deliveries_are_unknown_where_the_answer_to_their_commit_is_lost() -> None:
    """A capture of 0-10: packet 50 completes the commit of the second acceptance of two deliveries; the first one was
    rolled back."""
    for lost, expected in ((None, ("acked", "committed")), (50, ("unknown", None))):
        tables = tables_of([(flow, s[s["packet_no"] != lost], data) for flow, s, data in flows("010_tx.pcap")])
        deliveries = [row for row in tables["messages"] if row["operation"] == "deliver"]
        assert [(row["outcome"], row["transaction"]) for row in deliveries] == [expected] * 2
