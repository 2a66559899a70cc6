"""Tables channels and links: incarnations of channel numbers, and consumers."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession
from tables_support import Read, Script, at

SCRIPTS = {
    "number_used_again": Script().open()  # 1, 2
    .asks("basic.qos", prefetch_size=0, prefetch_count=10)  # 3
    .asks("basic.qos", prefetch_size=0, prefetch_count=5)  # 5
    .server("channel.close", reply_code=404, reply_text="NOT_FOUND - no queue 'x'", class_id=50, method_id=10)  # 7
    .client("channel.close-ok").open().asks("confirm.select", no_wait=False)  # 8 9 11
    .asks("channel.close", reply_code=200, reply_text="Normal shutdown"),  # 13
    "open_before_the_capture": Script()
    .publish(channel=3)
    .asks("queue.purge", channel=4, reply={"message_count": 1}, queue="q", no_wait=False)
    .asks("connection.close", channel=0, reply_code=200, reply_text="bye"),
    "consumers": Script().open()
    .consume(queue="a", tag="mine")  # 3
    .asks("basic.consume", reply={"consumer_tag": "amq.ctag-1"}, queue="b", consumer_tag="", no_ack=True,
          exclusive=True)  # 5
    .client("basic.consume", queue="c", consumer_tag="quick", no_wait=True, no_ack=False, exclusive=False)  # 7
    .deliver(1, consumer_tag="mine").deliver(2, consumer_tag="amq.ctag-1").deliver(3, consumer_tag="mine")  # 8 11 14
    .server("basic.cancel", consumer_tag="mine", no_wait=True)  # 17
    .asks("basic.cancel", reply={"consumer_tag": "amq.ctag-1"}, consumer_tag="amq.ctag-1", no_wait=False)  # 18
    .shut(),  # 20
    # Consumers of queues whose declarations state a type, or none, or are refused.
    "declared_queues": Script().open()
    .asks("queue.declare", reply={"queue": "a"}, queue="a", arguments={"x-queue-type": "quorum"})
    .asks("queue.declare", reply={"queue": "b"}, queue="b", arguments={"x-max-length": 5})
    .asks("queue.declare", reply={"queue": "s"}, queue="s", arguments={"x-queue-type": "stream"})
    .client("queue.declare", queue="n", no_wait=True, arguments={"x-queue-type": "classic"})
    .asks("queue.declare", reply={"queue": "n"}, queue="n", passive=True, arguments={"x-queue-type": "quorum"})
    .consume("a", "of a").consume("b", "of b").consume("s", "of s").consume("n", "of n")
    .consume("", "of the last")  # n
    .asks("basic.consume", reply={"consumer_tag": "of an offset"}, queue="read", consumer_tag="",
          arguments={"x-stream-offset": "first"})
    .open(2).client("queue.declare", 2, queue="a", arguments={"x-queue-type": "classic"})
    .server("channel.close", 2, reply_code=406, reply_text="PRECONDITION_FAILED")
    .open(3).consume("a", "of a again", channel=3),
    "consumer_refused": Script().open()
    .client("basic.consume", queue="none", consumer_tag="c", no_wait=False, no_ack=False)
    .server("channel.close", reply_code=404, reply_text="NOT_FOUND"),
    "consumer_before_the_capture": Script().deliver(10, consumer_tag="old").deliver(11, consumer_tag="old"),
}  # fmt: skip


@pytest.fixture(scope="module")
def read(spark: SparkSession) -> Read:
    return Read(spark, SCRIPTS)


def test_each_opening_of_a_channel_number_is_a_row(read: Read) -> None:
    assert read.rows("channels", "number_used_again", "channel", "channel_incarnation", "opened_ts", "closed_ts") == [
        (1, 1, at(1), at(7)),
        (1, 2, at(9), at(13)),
    ]


def test_channel_says_who_closed_it_and_why(read: Read) -> None:
    assert read.rows("channels", "number_used_again", "close_initiator", "close_code", "close_text") == [
        ("server", 404, "NOT_FOUND - no queue 'x'"),
        ("client", 200, "Normal shutdown"),
    ]


def test_prefetch_is_the_last_one_set_and_mode_that_of_the_incarnation(read: Read) -> None:
    assert read.rows("channels", "number_used_again", "prefetch_count", "prefetch_size", "mode") == [
        (5, 0, "none"),
        (None, None, "confirm"),
    ]


def test_a_channel_that_was_open_before_the_capture_is_incarnation_0(read: Read) -> None:
    assert read.rows(
        "channels", "open_before_the_capture", "channel", "channel_incarnation", "opened_ts", "published"
    ) == [
        (3, 0, None, 1),
        (4, 0, None, 0),
    ]


def test_consumers_are_links(read: Read) -> None:
    rows = read.rows(
        "links", "consumers", "name", "queue", "no_ack", "exclusive", "opened_ts", "closed_ts", "transfers"
    )
    assert rows == [
        ("mine", "a", False, False, at(3), at(17), 2),
        ("amq.ctag-1", "b", True, True, at(5), at(18), 1),
        ("quick", "c", False, False, at(7), at(20), 0),
    ]


def test_consumer_cancelled_by_the_server_has_an_error(read: Read) -> None:
    errors = dict(read.rows("links", "consumers", "name", "error"))
    assert errors == {"mine": "basic.cancel by the server", "amq.ctag-1": None, "quick": None}


def test_consumer_that_was_refused_is_no_link(read: Read) -> None:
    assert read.rows("links", "consumer_refused", "name") == []


def test_consumer_known_by_its_deliveries_only(read: Read) -> None:
    row = read.one("links", "consumer_before_the_capture", "kind", "name", "queue", "opened_ts", "transfers")
    assert row == ("consumer", "old", None, None, 2)


def test_consumer_has_the_type_that_its_queue_was_declared_with(read: Read) -> None:
    assert sorted(read.rows("links", "declared_queues", "name", "queue", "queue_type")) == [
        ("of a", "a", "quorum"),
        ("of a again", "a", "quorum"),
        ("of an offset", "read", "stream"),
        ("of b", "b", None),
        ("of n", "n", "classic"),
        ("of s", "s", "stream"),
        ("of the last", "n", "classic"),
    ]
