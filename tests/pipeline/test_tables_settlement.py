"""What became of each message: acknowledgements, confirms, returns, transactions.

A message of one body frame takes three frames: method, header, body.
"""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession
from tables_support import STEP, T0, Read, Script


def consuming(no_ack: bool = False) -> Script:
    """Frames 1 to 4: channel open, consumer 'c' on 'q'. Deliveries follow at 5, 8, 11, ..."""
    script = Script().open()
    script.consume(no_ack=no_ack)
    return script


def confirming() -> Script:
    """Frames 1 to 4: channel open, confirm mode. Publishes follow at 5, 8, 11, ..."""
    script = Script().open()
    script.asks("confirm.select", no_wait=False)
    return script


def acks_of_one_and_of_many() -> Script:
    script = consuming()
    for tag in (1, 2, 3, 4, 5):
        script.deliver(tag)  # 5 8 11 14 17
    script.client("basic.ack", delivery_tag=3, multiple=False)  # 20
    script.client("basic.ack", delivery_tag=4, multiple=True)  # 21: 1, 2 and 4; 3 has been settled
    return script


def ack_of_all_so_far() -> Script:
    script = consuming()
    script.deliver(1)  # 5
    script.deliver(2)  # 8
    script.client("basic.ack", delivery_tag=0, multiple=True)  # 11
    script.deliver(3)  # 12: after it
    return script


def tag_beyond_the_deliveries() -> Script:
    """'multiple' up to 9 when only 1 is there covers what is there; what it means for one that comes later, by a fault
    of the client or in a capture that is out of order, is not known."""
    script = consuming()
    script.deliver(1)  # 5
    script.client("basic.ack", delivery_tag=9, multiple=True)  # 8
    script.deliver(2)  # 9
    return script


def direct_replies_between() -> Script:
    """Deliveries of the direct reply-to consumer all carry tag 1; the highest tag stays that of the other consumer."""
    script = consuming()
    script.consume(queue="amq.rabbitmq.reply-to", tag="direct", no_ack=True)  # 5
    for tag in (1, 2):
        script.deliver(tag)  # 7 10
    script.deliver(1, consumer_tag="direct")  # 13
    script.client("basic.ack", delivery_tag=2, multiple=True)  # 16
    return script


def streaming() -> Script:
    """Class stream of 0-8 and 0-9: content without acknowledgements."""
    script = Script("0-8").open()
    script.asks("stream.consume", reply={"consumer_tag": "s"}, queue="q", consumer_tag="s", nowait=False)  # 3
    script.content("client", "stream.publish", b"x", exchange="e", routing_key="k", mandatory=True)  # 5
    script.content("server", "stream.deliver", b"x", consumer_tag="s", delivery_tag=1, exchange="e", queue="q")  # 8
    script.content("server", "stream.return", b"x", exchange="e", routing_key="k", reply_code=312, reply_text="NO")
    script.asks("stream.cancel", reply={"consumer_tag": "s"}, consumer_tag="s", nowait=False)  # 14
    return script


def refusals() -> Script:
    script = consuming()
    for tag in (1, 2, 3, 4):
        script.deliver(tag)  # 5 8 11 14
    script.client("basic.nack", delivery_tag=1, multiple=False, requeue=True)  # 17
    script.client("basic.nack", delivery_tag=2, multiple=False, requeue=False)
    script.client("basic.reject", delivery_tag=3, requeue=True)
    script.client("basic.reject", delivery_tag=4, requeue=False)
    return script


def recover() -> Script:
    script = consuming()
    script.deliver(1)  # 5
    script.deliver(2)  # 8
    script.client("basic.ack", delivery_tag=1, multiple=False)  # 11
    script.asks("basic.recover", requeue=True)  # 12
    script.deliver(3)  # 14: delivery 2 again
    return script


def recover_crossed_by_a_delivery() -> Script:
    """RabbitMQ 3.10.8 answers 406, "unknown delivery tag 2", when a client acknowledges such a delivery."""
    script = consuming()
    script.deliver(1)  # 5
    script.client("basic.recover", requeue=True)  # 8
    script.deliver(2)  # 9: sent before the server had read that
    script.server("basic.recover-ok")  # 12
    script.deliver(3)  # 13: delivery 1 again
    script.client("basic.ack", delivery_tag=2, multiple=False)  # 16
    return script


def cancelled_with_open_deliveries() -> Script:
    """What a consumer was sent can be acknowledged after it is cancelled; the rest stays open."""
    script = consuming()
    script.deliver(1)  # 5
    script.deliver(2)  # 8
    script.asks("basic.cancel", reply={"consumer_tag": "c"}, consumer_tag="c", no_wait=False)  # 11
    script.client("basic.ack", delivery_tag=2, multiple=False)  # 13
    return script


def closed_with_open_deliveries() -> Script:
    script = consuming()
    script.deliver(1)  # 5
    script.deliver(2)  # 8
    script.client("basic.ack", delivery_tag=1, multiple=False)  # 11
    script.asks("channel.close", reply_code=200, reply_text="")
    return script


def nothing_to_acknowledge() -> Script:
    script = consuming(no_ack=True)
    script.deliver(1)  # 5
    script.get(2, no_ack=True)  # 9
    script.get(3, no_ack=False)  # 13
    return script


def consumer_not_captured() -> Script:
    script = Script()
    script.deliver(7)  # 1
    script.deliver(8)  # 4
    script.client("basic.ack", delivery_tag=7, multiple=False)
    return script


def ack_may_be_lost() -> Script:
    script = consuming()
    script.deliver(1)  # 5
    script.gap("client")
    return script


def ack_of_many_behind_a_loss() -> Script:
    """What is lost may be a reject of delivery 1; delivery 2 is settled by its own number, 3 followed the loss."""
    script = consuming()
    script.deliver(1)  # 5
    script.deliver(2)  # 8
    script.gap("client")  # 11
    script.deliver(3)  # 12
    script.client("basic.ack", delivery_tag=2, multiple=False)  # 15
    script.client("basic.ack", delivery_tag=3, multiple=True)  # 16
    return script


def nack_of_many_behind_a_loss() -> Script:
    """RabbitMQ sets multiple in each nack: what is lost may be the ack of publish 1."""
    script = Script().open()
    script.asks("confirm.select")
    script.publish()  # 5
    script.gap("server")  # 8
    script.publish()  # 9
    script.server("basic.nack", delivery_tag=2, multiple=True)  # 12
    return script


def ack_may_be_lost_before_a_close_ok() -> Script:
    """The server has closed the channel; what the client sent until then, its close-ok included, is lost."""
    script = consuming()
    script.deliver(1)  # 5
    script.server("channel.close", reply_code=404, reply_text="no", class_id=0, method_id=0)  # 8
    script.gap("client")  # 9
    return script


def channel_reopened_without_a_close_ok() -> Script:
    """Nothing shows that the server had closed it, so nothing shows what it had confirmed."""
    script = confirming()
    script.publish()  # 5
    script.client("channel.close", reply_code=200, reply_text="", class_id=0, method_id=0)  # 8
    script.asks("channel.open")
    return script


def loss_of_the_wrong_side() -> Script:
    script = consuming()
    script.deliver(1)  # 5
    script.gap("server")
    return script


def tags_begin_anew_in_a_new_life() -> Script:
    script = consuming()
    script.deliver(1)  # 5
    script.asks("channel.close", reply_code=200, reply_text="")  # 8
    script.open()  # 10
    script.consume()  # 12
    script.deliver(1)  # 14
    script.client("basic.ack", delivery_tag=1, multiple=False)
    return script


def confirms() -> Script:
    script = Script().open()
    script.publish(b"before")  # 3
    script.asks("confirm.select", no_wait=False)  # 6
    for body in (b"1", b"2", b"3", b"4"):
        script.publish(body)  # 8 11 14 17
    script.server("basic.ack", delivery_tag=2, multiple=True)  # 20
    script.server("basic.nack", delivery_tag=3, multiple=False, requeue=True)  # 21
    return script


def select_again() -> Script:
    """A second confirm.select changes nothing: the broker goes on counting."""
    script = confirming()
    script.publish()  # 5
    script.asks("confirm.select", no_wait=False)
    script.publish()  # 10
    script.server("basic.ack", delivery_tag=2, multiple=False)
    return script


def publishes_may_be_lost() -> Script:
    script = confirming()
    script.publish()  # 5
    script.gap("client")
    script.publish()  # 9: its number is not known
    script.server("basic.ack", delivery_tag=3, multiple=True)
    return script


def return_in_confirm_mode() -> Script:
    script = confirming()
    script.publish(b"there", routing_key="no", mandatory=True)  # 5
    script.publish(b"back", routing_key="no", mandatory=True)  # 8
    script.content(
        "server", "basic.return", b"back", exchange="", routing_key="no", reply_code=312, reply_text="NO_ROUTE"
    )  # 11
    script.server("basic.ack", delivery_tag=2, multiple=True)  # 14
    return script


def returns_of_equal_publishes(*steps: str) -> Script:
    """Equal publishes in confirm mode, from frame 5 on; a message takes three frames."""
    script = confirming()
    for step in steps:
        what, _, tag = step.partition(" ")
        if what == "publish":
            script.publish(b"same", routing_key="no", mandatory=True)
        elif what == "return":
            script.content(
                "server", "basic.return", b"same", exchange="", routing_key="no", reply_code=312, reply_text="NO_ROUTE"
            )
        else:
            script.server("basic.ack", delivery_tag=int(tag), multiple=what == "ack-to")
    return script


def body_of_a_returned_publish_is_lost() -> Script:
    """Its broker says that it has it, and that a message with its routing key leads nowhere."""
    script = confirming()
    script.publish(b"there", routing_key="yes", mandatory=True)  # 5
    script.publish(b"back", routing_key="no", mandatory=True, seen=False)  # 8
    script.content(
        "server", "basic.return", b"back", exchange="", routing_key="no", reply_code=312, reply_text="NO_ROUTE"
    )  # 11
    script.server("basic.ack", delivery_tag=2, multiple=False)  # 14
    script.server("basic.ack", delivery_tag=1, multiple=False)  # 15
    return script


def body_of_a_return_is_lost() -> Script:
    """The second or the third came back; the first was confirmed before, the last has another routing key."""
    script = confirming()
    for routing_key in ("no", "no", "no", "yes"):
        script.publish(b"x", routing_key=routing_key, mandatory=True)  # 5 8 11 14
    script.server("basic.ack", delivery_tag=1, multiple=False)  # 17
    script.content(
        "server", "basic.return", b"x", exchange="", routing_key="no", reply_code=312, reply_text="NO_ROUTE", seen=False
    )  # 18
    for tag in (2, 3, 4):
        script.server("basic.ack", delivery_tag=tag, multiple=False)  # 21 22 23
    return script


def immediate_without_a_consumer() -> Script:
    script = Script().open()
    script.publish(b"now", immediate=True)  # 3
    script.content(
        "server", "basic.return", b"now", exchange="", routing_key="q", reply_code=313, reply_text="NO_CONSUMERS"
    )  # 6
    return script


def nearest_equal_publish_is_returned() -> Script:
    """Equal messages: the earlier was routed, the later comes back. What is not mandatory cannot come back."""
    script = Script().open()
    for mandatory in (True, True, False):
        script.publish(b"same", routing_key="no", mandatory=mandatory)  # 3 6 9
    script.content(
        "server", "basic.return", b"same", exchange="", routing_key="no", reply_code=312, reply_text="NO_ROUTE"
    )
    return script


def transactions() -> Script:
    script = Script().open()
    script.publish()  # 3: no transaction yet
    script.asks("tx.select")  # 6
    script.publish()  # 8
    script.asks("tx.commit")  # 11
    script.publish()  # 13
    script.asks("tx.rollback")  # 16
    script.publish()  # 18: never ended
    return script


def ack_rolled_back_then_committed() -> Script:
    script = Script().open()
    script.asks("tx.select")  # 3
    script.get(1)  # 6
    script.get(2)  # 10
    script.client("basic.ack", delivery_tag=2, multiple=True)  # 13
    script.asks("tx.rollback")  # 14
    script.client("basic.ack", delivery_tag=1, multiple=False)  # 16
    script.asks("tx.commit")  # 17
    return script


def recover_in_a_transaction() -> Script:
    """RabbitMQ (rabbit_channel): what a transaction has acknowledged is not outstanding until tx.rollback, so that
    basic.recover does not requeue it; after the rollback it can be acknowledged, or requeued."""
    script = Script().open()
    script.asks("tx.select")  # 3
    script.consume()  # 5
    for tag in (1, 2, 3):
        script.deliver(tag)  # 7 10 13
    script.client("basic.ack", delivery_tag=1, multiple=False)  # 16
    script.client("basic.ack", delivery_tag=3, multiple=False)  # 17
    script.client("basic.recover-async", requeue=True)  # 18: delivery 2
    script.asks("tx.rollback")  # 19
    script.client("basic.ack", delivery_tag=1, multiple=False)  # 21
    script.client("basic.recover-async", requeue=True)  # 22: delivery 3
    script.asks("tx.commit")  # 23
    return script


def transaction_on_a_channel_that_is_closed() -> Script:
    """RabbitMQ (rabbit_channel): a transaction ends with its channel; what was published in it goes nowhere."""
    script = Script().open()
    script.asks("tx.select")  # 3
    script.publish()  # 5
    script.get(1)  # 9
    script.client("basic.ack", delivery_tag=1, multiple=False)  # 12
    script.asks("channel.close", reply_code=200, reply_text="")  # 13
    return script


def transactions_on_a_connection_that_is_closed() -> Script:
    script = Script().open()
    script.asks("tx.select")  # 3
    script.publish()  # 5
    script.asks("tx.commit")  # 8
    script.publish()  # 10
    script.client("tx.commit")  # 13: without an answer
    script.publish()  # 14
    script.server("connection.close", 0, reply_code=320, reply_text="CONNECTION_FORCED", class_id=0, method_id=0)
    script.client("connection.close-ok", 0)
    return script


def acks_after_the_server_has_closed_the_channel() -> Script:
    """channel.close: "After sending this method, any received methods except Close and Close-OK MUST be discarded"."""
    script = consuming()
    for tag in (1, 2):
        script.deliver(tag)  # 5 8
    script.client("basic.ack", delivery_tag=1, multiple=False)  # 11
    script.server("channel.close", reply_code=406, reply_text="no", class_id=0, method_id=0)  # 12
    script.client("basic.ack", delivery_tag=2, multiple=False)  # 13
    script.client("channel.close-ok")
    script.open()  # 15
    script.consume()  # 17
    script.deliver(1)  # 19
    script.client("basic.ack", delivery_tag=1, multiple=False)  # 22
    return script


def acks_after_the_server_has_closed_the_connection() -> Script:
    script = consuming()
    script.deliver(1)  # 5
    script.server("connection.close", 0, reply_code=320, reply_text="CONNECTION_FORCED", class_id=0, method_id=0)  # 8
    script.client("basic.ack", delivery_tag=1, multiple=False)
    script.client("connection.close-ok", 0)
    return script


def commit_without_answer() -> Script:
    script = Script().open()
    script.asks("tx.select")
    script.publish()  # 5
    script.client("tx.commit")
    return script


def commit_may_be_lost() -> Script:
    """The rollback may be that of the next transaction."""
    script = Script().open()
    script.asks("tx.select")  # 3
    script.publish()  # 5
    script.get(1)  # 8
    script.client("basic.ack", delivery_tag=1, multiple=False)  # 12
    script.gap("client")
    script.publish()  # 14
    script.asks("tx.rollback")  # 17
    return script


def channel_whose_second_open_is_lost() -> Script:
    """Tags begin anew in the new life, of which the answer to its open tells."""
    script = consuming()
    script.deliver(1)  # 5
    script.client("channel.close", reply_code=200, reply_text="", class_id=0, method_id=0)  # 8
    script.server("channel.close-ok")
    script.gap("client")  # 10
    script.server("channel.open-ok")
    script.consume()  # 12
    script.deliver(1)  # 14
    script.client("basic.ack", delivery_tag=1, multiple=False)  # 17
    return script


def tx_refused_in_confirm_mode() -> Script:
    """RabbitMQ: 406, "cannot switch from confirm to tx mode". The confirm was sent before it read the tx.select."""
    script = confirming()
    script.publish()  # 5
    script.publish()  # 8
    script.client("tx.select")  # 11
    script.server("basic.ack", delivery_tag=1, multiple=False)  # 12
    script.server("channel.close", reply_code=406, reply_text="cannot switch from confirm to tx mode")
    script.client("channel.close-ok")
    return script


def confirms_refused_in_tx_mode() -> Script:
    script = Script().open()
    script.asks("tx.select")  # 3
    script.client("confirm.select", no_wait=False)  # 5
    script.publish()  # 6: not numbered
    script.server("channel.close", reply_code=406, reply_text="cannot switch from tx to confirm mode")
    script.client("channel.close-ok")
    return script


SCRIPTS = (
    cancelled_with_open_deliveries, closed_with_open_deliveries, immediate_without_a_consumer, acks_of_one_and_of_many,
    ack_of_all_so_far, tag_beyond_the_deliveries, direct_replies_between, streaming, refusals, recover,
    recover_crossed_by_a_delivery, ack_of_many_behind_a_loss, nack_of_many_behind_a_loss,
    nothing_to_acknowledge, consumer_not_captured, ack_may_be_lost,
    ack_may_be_lost_before_a_close_ok, channel_reopened_without_a_close_ok, loss_of_the_wrong_side,
    tags_begin_anew_in_a_new_life, confirms, select_again,
    publishes_may_be_lost, return_in_confirm_mode, body_of_a_returned_publish_is_lost, body_of_a_return_is_lost,
    nearest_equal_publish_is_returned, transactions,
    ack_rolled_back_then_committed, commit_without_answer, commit_may_be_lost, channel_whose_second_open_is_lost,
    tx_refused_in_confirm_mode, confirms_refused_in_tx_mode, recover_in_a_transaction,
    acks_after_the_server_has_closed_the_channel, acks_after_the_server_has_closed_the_connection,
    transaction_on_a_channel_that_is_closed, transactions_on_a_connection_that_is_closed,
)  # fmt: skip


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
    return Read(spark, {make.__name__: make() for make in SCRIPTS} | equal)


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
        "published",
        "delivered",
        "returned",
        "confirmed",
        "nacked",
        "acked",
        "rejected",
        "requeued",
        "unsettled",
    )
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
