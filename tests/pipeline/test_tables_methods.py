"""Table methods: hot columns, and which reply belongs to which request."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession
from tables_support import STEP, Read, Script

SCRIPTS = {
    # Three gets at once, answered in order: 3 -> 6, 4 -> 7, 5 -> 8.
    "pipelined_gets": Script().open()
    .client("basic.get", queue="q", no_ack=False).client("basic.get", queue="q", no_ack=False)
    .client("basic.get", queue="q", no_ack=False)
    .server("basic.get-empty").server("basic.get-ok", delivery_tag=1).server("basic.get-empty"),
    # The capture begins after a get was sent: its answer (1) is not the answer to the next get (2 -> 3).
    "reply_without_request": Script()
    .server("basic.get-empty").client("basic.get", queue="q").server("basic.get-ok", delivery_tag=1),
    "loss_between": Script().open()
    .client("queue.declare", queue="lost", no_wait=False).gap("server")  # 3: its declare-ok is in the gap
    .asks("queue.declare", reply={"queue": "durable"}, queue="durable", no_wait=False),  # 5
    "hole_inside_a_frame": Script().open()
    .client("queue.declare", queue="q", no_wait=False)  # 3
    .gap("server", channel=2).server("queue.declare-ok", queue="q"),
    "no_wait": Script().open()
    .client("queue.declare", queue="a", no_wait=True)  # 3
    .asks("queue.declare", reply={"queue": "b"}, queue="b", no_wait=False),  # 4
    # channel.flow goes both ways: each side's flow-ok answers the other's flow.
    "both_ask": Script().open()
    .server("channel.flow", active=False).client("channel.flow", active=True)  # 3 4
    .server("channel.flow-ok", active=True).client("channel.flow-ok", active=False),  # 5 6
    # A get that the closed channel never answered is not answered in the channel's next incarnation.
    "two_lives": Script().open()
    .client("basic.get", queue="q").asks("channel.close", reply_code=200, reply_text="bye")  # 3 4
    .open().client("basic.get", queue="q").server("basic.get-empty"),  # 6 8
    "two_channels": Script().open(1).open(2)
    .client("basic.get", channel=1, queue="a").client("basic.get", channel=2, queue="b")  # 5 6
    .server("basic.get-empty", channel=2).server("basic.get-ok", channel=1, delivery_tag=1),
    "recovered": Script().open().asks("basic.recover", requeue=True),
    # 0-8, class file: each side opens, and stages what the other is ready for.
    "both_stage_files": Script("0-8").open()
    .asks("file.open", identifier="a").content("client", "file.stage", b"hello")  # 3 5
    .server("file.open", identifier="b").client("file.open-ok").content("server", "file.stage", b"hello"),  # 8
}  # fmt: skip


@pytest.fixture(scope="module")
def read(spark: SparkSession) -> Read:
    return Read(spark, SCRIPTS)


def pairs(read: Read, script: str) -> dict[int, int]:
    found = read.rows("methods", script, "frame_no", "reply_frame_no")
    return {request: reply for request, reply in found if reply is not None}


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("pipelined_gets", {1: 2, 3: 6, 4: 7, 5: 8}),
        ("reply_without_request", {2: 3}),
        ("loss_between", {1: 2, 5: 6}),
        ("hole_inside_a_frame", {1: 2, 3: 5}),
        ("no_wait", {1: 2, 4: 5}),
        ("both_ask", {1: 2, 3: 6, 4: 5}),
        ("two_lives", {1: 2, 4: 5, 6: 7, 8: 9}),
        ("two_channels", {1: 2, 3: 4, 5: 8, 6: 7}),
        ("recovered", {1: 2, 3: 4}),
        ("both_stage_files", {1: 2, 3: 4, 8: 9}),
    ],
)
def test_requests_are_answered_in_the_order_they_were_asked(read: Read, script: str, expected: dict[int, int]) -> None:
    assert pairs(read, script) == expected


def test_request_names_its_reply_and_how_long_it_took(read: Read) -> None:
    rows = read.rows("methods", "pipelined_gets", "name", "reply_name", "reply_latency_ns")
    assert rows[2:5] == [
        ("basic.get", "basic.get-empty", 3 * STEP),
        ("basic.get", "basic.get-ok", 3 * STEP),
        ("basic.get", "basic.get-empty", 3 * STEP),
    ]


def test_hot_columns_hold_the_arguments_as_written(read: Read) -> None:
    rows = read.rows("methods", "two_lives", "name", "queue", "delivery_tag", "reply_code", "reply_text")
    assert rows[2] == ("basic.get", "q", None, None, None)
    assert rows[3] == ("channel.close", None, None, 200, "bye")


def test_only_method_frames_are_methods(read: Read) -> None:
    assert [name for (name,) in read.rows("methods", "loss_between", "name")] == [
        "channel.open", "channel.open-ok", "queue.declare", "queue.declare", "queue.declare-ok",
    ]  # fmt: skip
