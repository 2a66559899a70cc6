"""What became of each message: acknowledgements, confirms, returns, transactions.

A message of one body frame takes three frames: method, header, body.
"""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession
from tables_support import STEP, T0, Read, Script


def consuming(no_ack: bool = False) -> Script:
    """Frames 1 to 4: channel open, consumer 'c' on 'q'. Deliveries follow at 5, 8, 11, ..."""
    return Script().open().consume(no_ack=no_ack)


def confirming() -> Script:
    """Frames 1 to 4: channel open, confirm mode. Publishes follow at 5, 8, 11, ..."""
    return Script().open().asks("confirm.select", no_wait=False)


def transacting() -> Script:
    """Frames 1 to 4: channel open, transactions."""
    return Script().open().asks("tx.select")


# Behind the steps, the numbers of their first frames.
OF_DELIVERIES = {
    "acks_of_one_and_of_many": consuming()
    .deliver(1).deliver(2).deliver(3).deliver(4).deliver(5)  # 5 8 11 14 17
    .ack(3).ack(4, multiple=True),  # 20 21: 1, 2 and 4; 3 has been settled
    "ack_of_all_so_far": consuming().deliver(1).deliver(2).ack(0, multiple=True).deliver(3),  # 5 8 11 12
    # 'multiple' up to 9 when only 1 is there covers what is there; what it means for one that comes later, by a fault
    # of the client or in a capture that is out of order, is not known.
    "tag_beyond_the_deliveries": consuming().deliver(1).ack(9, multiple=True).deliver(2),  # 5 8 9
    # Deliveries of the direct reply-to consumer all carry tag 1; the highest tag stays that of the other consumer.
    "direct_replies_between": consuming()
    .consume(queue="amq.rabbitmq.reply-to", tag="direct", no_ack=True)  # 5
    .deliver(1).deliver(2).deliver(1, consumer_tag="direct").ack(2, multiple=True),  # 7 10 13 16
    # Class stream of 0-8 and 0-9: content without acknowledgements.
    "streaming": Script("0-8").open()
    .asks("stream.consume", reply={"consumer_tag": "s"}, queue="q", consumer_tag="s", nowait=False)  # 3
    .content("client", "stream.publish", b"x", exchange="e", routing_key="k", mandatory=True)  # 5
    .content("server", "stream.deliver", b"x", consumer_tag="s", delivery_tag=1, exchange="e", queue="q")  # 8
    .content("server", "stream.return", b"x", exchange="e", routing_key="k", reply_code=312, reply_text="NO")  # 11
    .asks("stream.cancel", reply={"consumer_tag": "s"}, consumer_tag="s", nowait=False),  # 14
    "refusals": consuming()
    .deliver(1).deliver(2).deliver(3).deliver(4)  # 5 8 11 14
    .client("basic.nack", delivery_tag=1, multiple=False, requeue=True)  # 17
    .client("basic.nack", delivery_tag=2, multiple=False, requeue=False)
    .client("basic.reject", delivery_tag=3, requeue=True)
    .client("basic.reject", delivery_tag=4, requeue=False),
    "recover": consuming()
    .deliver(1).deliver(2).ack(1)  # 5 8 11
    .asks("basic.recover", requeue=True).deliver(3),  # 12 14: delivery 2 again
    # RabbitMQ 3.10.8 answers 406, "unknown delivery tag 2", when a client acknowledges such a delivery.
    "recover_crossed_by_a_delivery": consuming()
    .deliver(1).client("basic.recover", requeue=True).deliver(2)  # 5 8 9: sent before the server had read that
    .server("basic.recover-ok").deliver(3).ack(2),  # 12 13 16: delivery 1 again
    # What a consumer was sent can be acknowledged after it is cancelled; the rest stays open.
    "cancelled_with_open_deliveries": consuming()
    .deliver(1).deliver(2)  # 5 8
    .asks("basic.cancel", reply={"consumer_tag": "c"}, consumer_tag="c", no_wait=False).ack(2),  # 11 13
    "closed_with_open_deliveries": consuming().deliver(1).deliver(2).ack(1).shut(),  # 5 8 11
    "nothing_to_acknowledge": consuming(no_ack=True).deliver(1).get(2, no_ack=True).get(3),  # 5 9 13
    "consumer_not_captured": Script().deliver(7).deliver(8).ack(7),  # 1 4 7
    "ack_may_be_lost": consuming().deliver(1).gap("client"),  # 5
    # What is lost may be a reject of delivery 1; delivery 2 is settled by its own number, 3 followed the loss.
    "ack_of_many_behind_a_loss": consuming()
    .deliver(1).deliver(2).gap("client").deliver(3).ack(2).ack(3, multiple=True),  # 5 8 11 12 15 16
    # The server has closed the channel; what the client sent until then, its close-ok included, is lost.
    "ack_may_be_lost_before_a_close_ok": consuming().deliver(1).closed(404, "no").gap("client"),  # 5 8 9
    "loss_of_the_wrong_side": consuming().deliver(1).gap("server"),  # 5
    "tags_begin_anew_in_a_new_life": consuming()
    .deliver(1).shut().open().consume().deliver(1).ack(1),  # 5 8 10 12 14 17
    # channel.close: "After sending this method, any received methods except Close and Close-OK MUST be discarded".
    "acks_after_the_server_has_closed_the_channel": consuming()
    .deliver(1).deliver(2).ack(1).closed(406, "no").ack(2).client("channel.close-ok")  # 5 8 11 12 13 14
    .open().consume().deliver(1).ack(1),  # 15 17 19 22
    "acks_after_the_server_has_closed_the_connection": consuming()
    .deliver(1).closed(320, "CONNECTION_FORCED", 0).ack(1).client("connection.close-ok", 0),  # 5 8
    # Tags begin anew in the new incarnation, which the reply to its open proves.
    "channel_whose_second_open_is_lost": consuming().deliver(1)  # 5
    .client("channel.close", reply_code=200, reply_text="", class_id=0, method_id=0).server("channel.close-ok")  # 8
    .gap("client").server("channel.open-ok").consume().deliver(1).ack(1),  # 10 11 12 14 17
}  # fmt: skip
OF_PUBLISHES = {
    "confirms": Script().open().publish(b"before").asks("confirm.select", no_wait=False)  # 3 6
    .publish(b"1").publish(b"2").publish(b"3").publish(b"4")  # 8 11 14 17
    .ack(2, multiple=True, by="server")  # 20
    .server("basic.nack", delivery_tag=3, multiple=False, requeue=True),  # 21
    # A second confirm.select changes nothing: the broker goes on counting.
    "select_again": confirming()
    .publish().asks("confirm.select", no_wait=False).publish().ack(2, by="server"),  # 5 8 10 13
    # RabbitMQ sets multiple in each nack: what is lost may be the ack of publish 1.
    "nack_of_many_behind_a_loss": Script().open().asks("confirm.select")
    .publish().gap("server").publish().server("basic.nack", delivery_tag=2, multiple=True),  # 5 8 9 12
    # Nothing shows that the server had closed it, so nothing shows what it had confirmed.
    "channel_reopened_without_a_close_ok": confirming().publish()  # 5
    .client("channel.close", reply_code=200, reply_text="", class_id=0, method_id=0).open(),  # 8
    "publishes_may_be_lost": confirming()
    .publish().gap("client").publish().ack(3, multiple=True, by="server"),  # 5 8 9: its number is not known
    "return_in_confirm_mode": confirming()
    .publish(b"there", routing_key="no", mandatory=True)  # 5
    .publish(b"back", routing_key="no", mandatory=True)  # 8
    .returned(b"back", "no").ack(2, multiple=True, by="server"),  # 11 14
    # Its broker says that it has it, and that a message with its routing key leads nowhere.
    "body_of_a_returned_publish_is_lost": confirming()
    .publish(b"there", routing_key="yes", mandatory=True)  # 5
    .publish(b"back", routing_key="no", mandatory=True, seen=False)  # 8
    .returned(b"back", "no").ack(2, by="server").ack(1, by="server"),  # 11 14 15
    # The second or the third came back; the first was confirmed before, the last has another routing key.
    "body_of_a_return_is_lost": confirming()
    .publish(routing_key="no", mandatory=True).publish(routing_key="no", mandatory=True)  # 5 8
    .publish(routing_key="no", mandatory=True).publish(routing_key="yes", mandatory=True)  # 11 14
    .ack(1, by="server").returned(b"x", "no", seen=False)  # 17 18
    .ack(2, by="server").ack(3, by="server").ack(4, by="server"),  # 21 22 23
    "immediate_without_a_consumer": Script().open()
    .publish(b"now", immediate=True).returned(b"now", "q", 313, "NO_CONSUMERS"),  # 3 6
    # Equal messages: the earlier was routed, the later comes back. What is not mandatory cannot come back.
    "nearest_equal_publish_is_returned": Script().open()
    .publish(b"same", routing_key="no", mandatory=True).publish(b"same", routing_key="no", mandatory=True)  # 3 6
    .publish(b"same", routing_key="no").returned(b"same", "no"),  # 9 12
    # RabbitMQ: 406, "cannot switch from confirm to tx mode". The confirm was sent before it read the tx.select.
    "tx_refused_in_confirm_mode": confirming()
    .publish().publish().client("tx.select").ack(1, by="server")  # 5 8 11 12
    .server("channel.close", reply_code=406, reply_text="cannot switch from confirm to tx mode")
    .client("channel.close-ok"),
}  # fmt: skip
OF_TRANSACTIONS = {
    "transactions": Script().open().publish().asks("tx.select")  # 3 6: no transaction yet
    .publish().asks("tx.commit").publish().asks("tx.rollback").publish(),  # 8 11 13 16 18: never ended
    "ack_rolled_back_then_committed": transacting()
    .get(1).get(2).ack(2, multiple=True).asks("tx.rollback").ack(1).asks("tx.commit"),  # 6 10 13 14 16 17
    # RabbitMQ (rabbit_channel): what a transaction has acknowledged is not outstanding until tx.rollback, so that
    # basic.recover does not requeue it; after the rollback it can be acknowledged, or requeued.
    "recover_in_a_transaction": transacting().consume()
    .deliver(1).deliver(2).deliver(3).ack(1).ack(3)  # 7 10 13 16 17
    .client("basic.recover-async", requeue=True)  # 18: delivery 2
    .asks("tx.rollback").ack(1)  # 19 21
    .client("basic.recover-async", requeue=True).asks("tx.commit"),  # 22 23: delivery 3
    # RabbitMQ (rabbit_channel): a transaction ends with its channel; what was published in it goes nowhere.
    "transaction_on_a_channel_that_is_closed": transacting().publish().get(1).ack(1).shut(),  # 5 9 12 13
    "transactions_on_a_connection_that_is_closed": transacting()
    .publish().asks("tx.commit").publish().client("tx.commit").publish()  # 5 8 10 13 14: a commit without an answer
    .closed(320, "CONNECTION_FORCED", 0).client("connection.close-ok", 0),
    # RabbitMQ (rabbit_channel) closes the channel with 406, "partial tx completion", if a part of it was not done.
    "commit_cut_off_by_a_close": transacting().publish().get(1).ack(1).client("tx.commit")  # 5 9 12 13
    .closed(406, "partial tx completion").client("channel.close-ok"),
    "rollback_cut_off_by_a_close": transacting().publish().get(1).ack(1).client("tx.rollback")  # 5 9 12 13
    .closed(541, "INTERNAL_ERROR", 0).client("connection.close-ok", 0),
    "commit_without_answer": transacting().publish().client("tx.commit"),  # 5
    # The rollback may be that of the next transaction.
    "commit_may_be_lost": transacting().publish().get(1).ack(1).gap("client").publish().asks("tx.rollback"),  # 5 9 14
    "confirms_refused_in_tx_mode": transacting()
    .client("confirm.select", no_wait=False).publish()  # 5 6: not numbered
    .server("channel.close", reply_code=406, reply_text="cannot switch from tx to confirm mode")
    .client("channel.close-ok"),
}  # fmt: skip
SCRIPTS = OF_DELIVERIES | OF_PUBLISHES | OF_TRANSACTIONS


def returns_of_equal_publishes(*steps: str) -> Script:
    """Equal publishes in confirm mode, from frame 5 on; a message takes three frames."""
    script = confirming()
    for step in steps:
        what, _, tag = step.partition(" ")
        if what == "publish":
            script.publish(b"same", routing_key="no", mandatory=True)
        elif what == "return":
            script.returned(b"same", "no")
        else:
            script.ack(int(tag), multiple=what == "ack-to", by="server")
    return script


# RabbitMQ sends basic.return before the basic.ack of the same publish, and that right after it
# (https://www.rabbitmq.com/docs/confirms, "When Will Published Messages Be Confirmed"). Steps -> outcomes of publishes,
# and for each that was returned, the frame of the return.
EQUAL_PUBLISHES = {
    # 5 8 11, acked in 14, returned in 15, acked in 18, returned in 19
    "publish,publish,publish,ack 1,return,ack 2,return,ack 3": [
        ("confirmed", None), ("returned", 15), ("returned", 19),
    ],
    "publish,publish,return,ack 1,ack 2": [("returned", 11), ("confirmed", None)],
    "publish,publish,return,ack 2,ack 1": [("confirmed", None), ("returned", 11)],
    "publish,publish,publish,ack 1,return,return,ack-to 3": [("confirmed", None), ("returned", 15), ("returned", 18)],
    "publish,return,publish,ack-to 2": [("returned", 8), ("confirmed", None)],
    "publish,return,publish,return,ack 2,ack 1": [("returned", 8), ("returned", 14)],
    "publish,publish,return": [("unsettled", None), ("returned", 11)],  # no confirm was captured
    "publish,ack 1,return,publish,ack 2": [("confirmed", None), ("confirmed", None)],  # of a publish not captured
}  # fmt: skip


@pytest.fixture(scope="module")
def read(spark: SparkSession) -> Read:
    equal = {steps: returns_of_equal_publishes(*steps.split(",")) for steps in EQUAL_PUBLISHES}
    return Read(spark, SCRIPTS | equal)


@pytest.mark.parametrize("steps", EQUAL_PUBLISHES)
def test_which_of_equal_publishes_was_returned(read: Read, steps: str) -> None:
    rows = read.rows("messages", steps, "operation", "outcome", "returned_frame_no")
    assert [row[1:] for row in rows if row[0] == "publish"] == EQUAL_PUBLISHES[steps]


# Script -> (first_frame_no, outcome, frame whose time it was settled at).
OUTCOMES: dict[str, list[tuple[int, str, int | None]]] = {
    "acks_of_one_and_of_many": [
        (5, "acked", 21), (8, "acked", 21), (11, "acked", 20), (14, "acked", 21), (17, "unsettled", None),
    ],
    "ack_of_all_so_far": [(5, "acked", 11), (8, "acked", 11), (12, "unsettled", None)],
    "tag_beyond_the_deliveries": [(5, "acked", 8), (9, "unknown", None)],
    "direct_replies_between": [(7, "acked", 16), (10, "acked", 16), (13, "presettled", None)],
    "streaming": [(5, "returned", 11), (8, "presettled", None), (11, "presettled", None)],
    "refusals": [(5, "requeued", 17), (8, "rejected", 18), (11, "requeued", 19), (14, "rejected", 20)],
    "recover": [(5, "acked", 11), (8, "requeued", 12), (14, "unsettled", None)],
    "recover_crossed_by_a_delivery": [(5, "requeued", 8), (9, "requeued", 12), (13, "unsettled", None)],
    "cancelled_with_open_deliveries": [(5, "unsettled", None), (8, "acked", 13)],
    "closed_with_open_deliveries": [(5, "acked", 11), (8, "unsettled", None)],
    "immediate_without_a_consumer": [(3, "returned", 6), (6, "presettled", None)],
    "nothing_to_acknowledge": [(5, "presettled", None), (9, "presettled", None), (13, "unsettled", None)],
    "consumer_not_captured": [(1, "acked", 7), (4, "unknown", None)],
    "ack_may_be_lost": [(5, "unknown", None)],
    "ack_may_be_lost_before_a_close_ok": [(5, "unknown", None)],
    "channel_reopened_without_a_close_ok": [(5, "unknown", None)],
    "ack_of_many_behind_a_loss": [(5, "unknown", None), (8, "acked", 15), (12, "acked", 16)],
    "nack_of_many_behind_a_loss": [(5, "unknown", None), (9, "nacked", 12)],
    "loss_of_the_wrong_side": [(5, "unsettled", None)],
    "tags_begin_anew_in_a_new_life": [(5, "unsettled", None), (14, "acked", 17)],
    "confirms": [
        (3, "unknown", None), (8, "confirmed", 20), (11, "confirmed", 20), (14, "nacked", 21), (17, "unsettled", None),
    ],
    "select_again": [(5, "unsettled", None), (10, "confirmed", 13)],
    "publishes_may_be_lost": [(5, "confirmed", 12), (9, "unknown", None)],
    "body_of_a_returned_publish_is_lost": [(5, "confirmed", 15), (8, "unknown", None), (11, "presettled", None)],
    "body_of_a_return_is_lost": [
        (5, "confirmed", 17), (8, "unknown", None), (11, "unknown", None), (14, "confirmed", 23),
        (18, "presettled", None),
    ],
    "return_in_confirm_mode": [(5, "confirmed", 14), (8, "returned", 11), (11, "presettled", None)],
    "nearest_equal_publish_is_returned": [
        (3, "unknown", None), (6, "returned", 12), (9, "unknown", None), (12, "presettled", None),
    ],
    "ack_rolled_back_then_committed": [(6, "acked", 17), (10, "unsettled", None)],
    "channel_whose_second_open_is_lost": [(5, "unsettled", None), (14, "acked", 17)],
    "tx_refused_in_confirm_mode": [(5, "confirmed", 12), (8, "unsettled", None)],
    "confirms_refused_in_tx_mode": [(6, "unknown", None)],
    "recover_in_a_transaction": [(7, "acked", 23), (10, "requeued", 18), (13, "requeued", 22)],
    "acks_after_the_server_has_closed_the_channel": [(5, "acked", 11), (8, "unsettled", None), (19, "acked", 22)],
    "acks_after_the_server_has_closed_the_connection": [(5, "unsettled", None)],
    "transaction_on_a_channel_that_is_closed": [(5, "unknown", None), (9, "unsettled", None)],
    "commit_cut_off_by_a_close": [(5, "unknown", None), (9, "unknown", None)],
    "rollback_cut_off_by_a_close": [(5, "unknown", None), (9, "unsettled", None)],
    "commit_may_be_lost": [(5, "unknown", None), (9, "unknown", None), (14, "unknown", None)],
}  # fmt: skip


@pytest.mark.parametrize("script", OUTCOMES)
def test_outcome_of_each_message(read: Read, script: str) -> None:
    rows = read.rows("messages", script, "first_frame_no", "outcome", "settled_ts_ns", "settle_latency_ns")
    assert rows == [
        (frame, outcome, settled and T0 + STEP * settled, settled and STEP * (settled - frame))
        for frame, outcome, settled in OUTCOMES[script]
    ]


@pytest.mark.parametrize(
    ("script", "tags"),
    [
        ("confirms", [None, 1, 2, 3, 4]),
        ("select_again", [1, 2]),
        ("publishes_may_be_lost", [1, None]),
        ("acks_of_one_and_of_many", [1, 2, 3, 4, 5]),
    ],
)
def test_publishes_are_numbered_as_the_broker_counts_them(read: Read, script: str, tags: list[int | None]) -> None:
    assert [tag for (tag,) in read.rows("messages", script, "delivery_tag")] == tags


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("transactions", [(3, None), (8, "committed"), (13, "rolled-back"), (18, None)]),
        ("ack_rolled_back_then_committed", [(6, "committed"), (10, "rolled-back")]),
        ("transaction_on_a_channel_that_is_closed", [(5, "rolled-back"), (9, "rolled-back")]),
        ("transactions_on_a_connection_that_is_closed", [(5, "committed"), (10, None), (14, "rolled-back")]),
        ("recover_in_a_transaction", [(7, "committed"), (10, None), (13, None)]),
        ("commit_cut_off_by_a_close", [(5, None), (9, None)]),
        ("rollback_cut_off_by_a_close", [(5, "rolled-back"), (9, "rolled-back")]),
        ("commit_without_answer", [(5, None)]),
        ("commit_may_be_lost", [(5, None), (9, None), (14, "rolled-back")]),
    ],
)
def test_transaction_of_publishes_and_acknowledgements(
    read: Read, script: str, expected: list[tuple[int, str]]
) -> None:
    assert read.rows("messages", script, "first_frame_no", "transaction") == expected


def test_channel_counts_what_became_of_its_messages(read: Read) -> None:
    counted = (
        "published", "delivered", "returned", "confirmed", "nacked", "acked", "rejected", "requeued", "unsettled",
    )  # fmt: skip
    assert read.one("channels", "refusals", *counted) == (0, 4, 0, 0, 0, 0, 2, 2, 0)
    assert read.one("channels", "confirms", *counted) == (5, 0, 0, 2, 1, 0, 0, 0, 1)
    assert read.one("channels", "return_in_confirm_mode", *counted) == (2, 0, 1, 2, 0, 0, 0, 0, 0)


def test_messages_and_consumers_of_class_stream(read: Read) -> None:
    """0-8 specification, class stream: publish, deliver and return carry content."""
    rows = read.rows("messages", "streaming", "operation", "exchange", "link", "queue", "body_size")
    assert rows == [("publish", "e", None, None, 1), ("deliver", "e", "s", "q", 1), ("return", "e", None, None, 1)]
    links = read.rows("links", "streaming", "kind", "name", "queue", "no_ack", "transfers")
    assert links == [("consumer", "s", "q", True, 1)]
    assert read.one("channels", "streaming", "published", "delivered", "returned") == (1, 1, 1)


@pytest.mark.parametrize(
    ("script", "mode"),
    [
        ("confirms", "confirm"),
        ("transactions", "tx"),
        ("refusals", "none"),
        ("tx_refused_in_confirm_mode", "confirm"),
        ("confirms_refused_in_tx_mode", "tx"),
    ],
)
def test_mode_of_the_channel(read: Read, script: str, mode: str) -> None:
    assert read.one("channels", script, "mode") == (mode,)


@pytest.mark.parametrize(
    ("script", "settled"),
    [
        ("acks_of_one_and_of_many", [(21, None), (21, None), (20, None), (21, None), (None, None)]),
        ("nothing_to_acknowledge", [(None, None), (None, None), (None, None)]),
        # A publish that comes back is confirmed all the same.
        ("return_in_confirm_mode", [(14, None), (14, 11), (None, None)]),
        # The frame of the acknowledgement, not of the commit that makes it hold.
        ("ack_rolled_back_then_committed", [(16, None), (None, None)]),
    ],
)
def test_frame_that_settles_and_frame_that_returns(
    read: Read, script: str, settled: list[tuple[int | None, int | None]]
) -> None:
    assert read.rows("messages", script, "settled_frame_no", "returned_frame_no") == settled
