"""Table messages: contents put together, properties in columns, and where a delivery came from."""

from __future__ import annotations

import hashlib

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from tables_support import Read, Script, at

PROPERTIES = {
    "content_type": "text/plain",
    "content_encoding": "gzip",
    "headers": {"x-retries": 3},
    "delivery_mode": 2,
    "priority": 7,
    "correlation_id": "c-1",
    "reply_to": "answers",
    "expiration": "60000",
    "message_id": "m-1",
    "timestamp": 1580702706,  # 2020-02-03T04:05:06Z, in seconds as on the wire
    "type": "order",
    "user_id": "guest",
    "app_id": "shop",
}


def contents() -> Script:
    script = Script().open()
    script.publish(b"three parts", parts=3, properties=PROPERTIES, exchange="x", routing_key="k")  # 3 to 7
    script.publish(b"", properties={"expiration": "soon"})  # 8, 9
    script.publish(b"half of it", parts=2, seen=False)  # 10 to 13, the last a gap
    script.client("basic.publish", exchange="", routing_key="bare")  # 14: nothing follows
    script.frames[-1]["content_frame_no"] = 14
    return script


def interleaved_channels() -> Script:
    """Two contents at once on two channels, one from each side."""
    script = Script().open(1).open(2).publish(b"first", channel=1)
    script.content("server", "basic.deliver", b"second", channel=2, consumer_tag="c", delivery_tag=1)
    bodies = [i for i, row in enumerate(script.frames) if row["frame_type"] == "body"]
    frames = script.frames
    frames[bodies[0]]["payload"], frames[bodies[1]]["payload"] = b"first", b"second"
    return script


SCRIPTS = {
    "contents": contents(),
    "interleaved_channels": interleaved_channels(),
    "queues": Script().open()
    .asks("queue.declare", reply={"queue": "amq.gen-1"}, queue="", no_wait=False)  # 3
    .consume(queue="", tag="mine")  # 5: '' is amq.gen-1
    .asks("basic.consume", reply={"consumer_tag": "ctag-9"}, queue="other", consumer_tag="", no_ack=False)  # 7
    .deliver(1, consumer_tag="mine").deliver(2, consumer_tag="ctag-9")  # 9 12
    .asks("queue.declare", reply={"queue": "amq.gen-2"}, queue="", no_wait=False)  # 15
    .deliver(3, consumer_tag="mine").get(4, queue="").get(5, queue="third"),  # 17 of amq.gen-1, 21 of amq.gen-2, 25
    # A consumer tag is free again after the cancel; deliveries belong to the consumer of their time.
    "tag_used_again": Script().open()
    .consume(queue="a", tag="c").deliver(1)  # 3 5
    .asks("basic.cancel", reply={"consumer_tag": "c"}, consumer_tag="c", no_wait=False)  # 8
    .consume(queue="b", tag="c", no_ack=True).deliver(2),  # 10 12
}  # fmt: skip


@pytest.fixture(scope="module")
def read(spark: SparkSession) -> Read:
    return Read(spark, SCRIPTS, payload=True)


def test_contents_are_put_together_from_their_frames(read: Read) -> None:
    columns = ("first_frame_no", "last_frame_no", "packet_no", "body_size", "body_captured", "complete", "body")
    assert read.rows("messages", "contents", *columns) == [
        (3, 7, 3, 11, 11, True, b"three parts"),
        (8, 9, 8, 0, 0, True, b""),
        (10, 12, 10, 10, 5, False, b"half "),
        (14, 14, 14, None, 0, False, None),
    ]


def test_digest_is_that_of_the_whole_body(read: Read) -> None:
    digests = [digest for (digest,) in read.rows("messages", "contents", "body_sha256")]
    assert digests == [hashlib.sha256(b"three parts").hexdigest(), hashlib.sha256(b"").hexdigest(), None, None]


def test_message_is_dated_by_its_first_frame(read: Read) -> None:
    assert [ts for (ts,) in read.rows("messages", "contents", "ts")] == [at(3), at(8), at(10), at(14)]


def test_properties_are_columns(read: Read) -> None:
    names = [name for name in PROPERTIES if name not in ("headers", "delivery_mode", "timestamp")]
    row = read.rows("messages", "contents", *names, "durable", "ttl_ms")[0]
    assert row == (*(PROPERTIES[name] for name in names), True, 60000)


def test_properties_keep_their_types_in_variant(read: Read) -> None:
    first = read.tables.messages.filter(F.col("message_id") == "m-1").select(
        F.expr("headers:`x-retries`::int"), F.expr("properties:priority::int"), F.expr("cast(timestamp as long)")
    )
    assert [tuple(row) for row in first.collect()] == [(3, 7, 1580702706)]


def test_expiration_that_is_no_number_has_no_ttl(read: Read) -> None:
    assert read.rows("messages", "contents", "expiration", "ttl_ms", "durable")[1] == ("soon", None, False)


def test_contents_of_several_channels_do_not_mix(read: Read) -> None:
    assert read.rows("messages", "interleaved_channels", "channel", "sender", "operation", "body") == [
        (1, "client", "publish", b"first"),
        (2, "server", "deliver", b"second"),
    ]


def test_delivery_knows_its_queue_and_consumer(read: Read) -> None:
    assert read.rows("messages", "queues", "operation", "link", "queue") == [
        ("deliver", "mine", "amq.gen-1"),
        ("deliver", "ctag-9", "other"),
        ("deliver", "mine", "amq.gen-1"),
        ("get", None, "amq.gen-2"),
        ("get", None, "third"),
    ]


def test_delivery_belongs_to_the_consumer_of_its_time(read: Read) -> None:
    assert read.rows("messages", "tag_used_again", "queue", "outcome") == [("a", "unsettled"), ("b", "presettled")]
    assert read.rows("links", "tag_used_again", "queue", "no_ack", "transfers", "closed_ts") == [
        ("a", False, 1, at(8)),
        ("b", True, 1, None),
    ]
