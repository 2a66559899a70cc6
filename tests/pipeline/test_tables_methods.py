"""Table methods: hot columns, and which reply belongs to which request."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession
from tables_support import STEP, Read, Script


def pipelined_gets() -> Script:
    """Three gets at once, answered in order: 3 -> 6, 4 -> 7, 5 -> 8."""
    script = Script().open()
    for _ in range(3):
        script.client("basic.get", queue="q", no_ack=False)
    script.server("basic.get-empty")
    script.server("basic.get-ok", delivery_tag=1)
    script.server("basic.get-empty")
    return script


def reply_without_request() -> Script:
    """The capture begins after a get was sent: its answer (1) is not the answer to the next get (2 -> 3)."""
    script = Script()
    script.server("basic.get-empty")
    script.client("basic.get", queue="q")
    script.server("basic.get-ok", delivery_tag=1)
    return script


def loss_between() -> Script:
    script = Script().open()
    script.client("queue.declare", queue="lost", no_wait=False)  # 3: its declare-ok is in the gap
    script.gap("server")
    script.client("queue.declare", queue="kept", no_wait=False)  # 5
    script.server("queue.declare-ok", queue="kept")
    return script


def hole_inside_a_frame() -> Script:
    script = Script().open()
    script.client("queue.declare", queue="q", no_wait=False)  # 3
    script.gap("server", channel=2)
    script.server("queue.declare-ok", queue="q")
    return script


def no_wait() -> Script:
    script = Script().open()
    script.client("queue.declare", queue="a", no_wait=True)  # 3
    script.client("queue.declare", queue="b", no_wait=False)  # 4
    script.server("queue.declare-ok", queue="b")
    return script


def both_ask() -> Script:
    """channel.flow goes both ways: each side's flow-ok answers the other's flow."""
    script = Script().open()
    script.server("channel.flow", active=False)  # 3
    script.client("channel.flow", active=True)  # 4
    script.server("channel.flow-ok", active=True)  # 5
    script.client("channel.flow-ok", active=False)  # 6
    return script


def two_lives() -> Script:
    """A get that the closed channel never answered is not answered in the channel's next life."""
    script = Script().open()
    script.client("basic.get", queue="q")  # 3
    script.asks("channel.close", reply_code=200, reply_text="bye")  # 4
    script.open()
    script.client("basic.get", queue="q")  # 8
    script.server("basic.get-empty")
    return script


def two_channels() -> Script:
    script = Script().open(1).open(2)
    script.client("basic.get", channel=1, queue="a")  # 5
    script.client("basic.get", channel=2, queue="b")  # 6
    script.server("basic.get-empty", channel=2)
    script.server("basic.get-ok", channel=1, delivery_tag=1)
    return script


def recovered() -> Script:
    script = Script().open()
    script.client("basic.recover", requeue=True)
    script.server("basic.recover-ok")
    return script


def both_stage_files() -> Script:
    """0-8, class file: each side opens, and stages what the other is ready for."""
    script = Script("0-8").open()
    script.client("file.open", identifier="a")  # 3
    script.server("file.open-ok")
    script.content("client", "file.stage", b"hello")  # 5
    script.server("file.open", identifier="b")  # 8
    script.client("file.open-ok")
    script.content("server", "file.stage", b"hello")
    return script


SCRIPTS = (
    pipelined_gets, reply_without_request, loss_between, hole_inside_a_frame, no_wait, both_ask, two_lives,
    two_channels, recovered, both_stage_files,
)  # fmt: skip


@pytest.fixture(scope="module")
def read(spark: SparkSession) -> Read:
    return Read(spark, {make.__name__: make() for make in SCRIPTS})


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


def test_only_frames_that_say_something_are_methods(read: Read) -> None:
    assert [name for (name,) in read.rows("methods", "loss_between", "name")] == [
        "channel.open", "channel.open-ok", "queue.declare", "queue.declare", "queue.declare-ok",
    ]  # fmt: skip
