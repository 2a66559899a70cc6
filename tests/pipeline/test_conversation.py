"""Sessions, links and messages of AMQP 0-10 and 1.0 as workers follow them, without Spark."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import decoding
import golden
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from codec.compiler.limits import Limits
from codec.conversation.session_state import NAMES, OUTCOME_OF, ROLES
from codec.names import SIDES
from codec.protocol.versions import fact_table
from codec.variant import encode
from pipeline.tables.decoding import config
from udfs.arrow.fields import text_or_hex, to_hex, valid_utf8
from udfs.arrow.types import VARIANT
from udfs.conversation import sessions
from udfs.conversation.frame_batch import FrameBatch
from udfs.decode.frame_rows import ARROW_FRAMES
from udfs.tables import conversation
from udfs.tables.conversation import Conversation

# Transactions of both kinds, credit, drained links, messages in many frames, sessions one after the other.
CAPTURES = (
    "010_dtx.pcap", "010_lowlevel_methods.pcap", "010_sessions.pcap", "10_qpidd_transactions.pcap",
    "10_qpidd_outcomes_drain.pcap", "10_rabbitmq_multi_frame_transfer.pcap", "10_mid_stream.pcap",
)  # fmt: skip
TABLES = ("channels", "links", "messages", "methods")
FRAMES = ARROW_FRAMES


def followed(frames: pa.Table, size: int) -> dict[str, list[str]]:
    """What workers make of frames that come in batches of `size` rows, each row as text."""
    conversation, found = Conversation(config(True)), {name: list[str]() for name in TABLES}
    batches = frames.combine_chunks().to_batches(max_chunksize=size)
    fed = (conversation.feed(FrameBatch(batch)) for batch in batches)
    for parts in (*fed, conversation.finish()):
        for table, rows in parts:
            found[table] += map(str, rows.to_pylist())
    return {name: sorted(rows) for name, rows in found.items()}


@pytest.fixture(scope="module")
def captured() -> pa.Table:
    """The frames of several captures, connection after connection."""
    paths = [path for name in CAPTURES for path in golden.captures()[name].paths]
    rows = decoding.decode_table(decoding.in_flow_order(decoding.runs(paths)))
    return rows.filter(pc.equal(rows["kind"], "frame")).drop_columns(["kind"])


@pytest.fixture(scope="module")
def at_once(captured: pa.Table) -> dict[str, list[str]]:
    return followed(captured, captured.num_rows)


@pytest.mark.parametrize("size", [7, 70])
def test_rows_do_not_depend_on_how_long_messages_wait(
    captured: pa.Table, at_once: dict[str, list[str]], size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages leave once they are settled, where there are too many to wait for the end of their connection."""
    monkeypatch.setattr(conversation, "WAITING_BYTES", 0)
    monkeypatch.setattr(sessions, "FEW_SLOTS", 0)
    assert followed(captured, size) == at_once


@pytest.mark.parametrize(("size", "most"), [(1, 150), (70, 1000)])
def test_rows_do_not_depend_on_where_batches_end(captured: pa.Table, size: int, most: int) -> None:
    """Of frame after frame the first ones of each connection are enough."""
    frames = captured.filter(pc.field("frame_no") <= most)
    at_once = followed(frames, frames.num_rows)
    assert all(at_once.values())
    assert followed(frames, size) == at_once


def table(frames: list[dict[str, Any]]) -> pa.Table:
    """Frames of one connection, a microsecond apart, from dicts of columns; VARIANT as Python values."""
    columns = {}
    for field in FRAMES:
        if field.type == VARIANT:
            encoded = [encode(frame.get(field.name) or {}) for frame in frames]
            mask = pa.array([field.name not in frame for frame in frames])
            parts = [pa.array([part[i] for part in encoded], pa.binary()) for i in (0, 1)]
            columns[field.name] = pa.StructArray.from_arrays(parts, fields=list(VARIANT), mask=mask)
        else:
            columns[field.name] = pa.array([frame.get(field.name) for frame in frames], field.type)
    numbers = pa.array(range(1, len(frames) + 1))
    columns |= {"connection_id": pa.repeat(7, len(frames)), "frame_no": numbers, "ts_ns": pc.multiply(numbers, 1000)}
    return pa.table(columns, schema=FRAMES)


def performative(sender: str, name: str, /, **arguments: Any) -> dict[str, Any]:
    content: dict[str, Any] = {
        key: arguments.pop(key)
        for key in ("content_frame_no", "body_sha256", "payload", "properties")
        if key in arguments
    }
    return {"sender": sender, "version": "1.0", "channel": 0, "frame_type": "amqp", "name": name, "status": "ok",
            "arguments": arguments, **content}  # fmt: skip


ATTACH: dict[str, Any] = {"role": False, "source": {}, "initial_delivery_count": 0}


def opening(target: dict[str, Any]) -> list[dict[str, Any]]:
    """A session, a link 'a' for messages, and a link 'b' of the client to `target`."""
    return [
        performative("client", "begin"),
        performative("server", "begin", remote_channel=0),
        performative("client", "attach", name="a", handle=0, target={"address": "q"}, **ATTACH),
        performative("server", "attach", name="a", handle=0, role=True, target={"address": "q"}, source={}),
        performative("client", "attach", name="b", handle=1, target=target, **ATTACH),
    ]


def test_messages_of_two_links_lie_between_each_other() -> None:
    """Both in two frames of the same channel and sender; frames come one by one."""
    attach = {**ATTACH, "source": {"address": "s"}}
    frames = [
        performative("client", "begin"),
        performative("server", "begin", remote_channel=0),
        performative("client", "attach", name="a", handle=0, target={"address": "A"}, **attach),
        performative("client", "attach", name="b", handle=1, target={"address": "B"}, **attach),
        performative("client", "transfer", handle=0, delivery_id=0, content_frame_no=5, payload=b"a1"),
        performative("client", "transfer", handle=1, delivery_id=1, content_frame_no=6, payload=b"b1"),
        performative("client", "transfer", handle=0, content_frame_no=5, payload=b"a2", body_sha256="a", properties={}),
        performative("client", "transfer", handle=1, content_frame_no=6, payload=b"b2", body_sha256="b", properties={}),
    ]
    conversation = Conversation(config(payload=True))
    rows: list[tuple[str, pa.RecordBatch]] = []
    for batch in table(frames).to_batches(max_chunksize=1):
        rows += conversation.feed(FrameBatch(batch))
    rows += conversation.finish()
    messages = [row for part, batch in rows if part == "messages" for row in batch.to_pylist()]
    found = [tuple(row[n] for n in ("link", "address", "first_frame_no", "last_frame_no", "body")) for row in messages]
    assert sorted(found) == [("a", "A", 5, 7, b"a1a2"), ("b", "B", 6, 8, b"b1b2")]


@pytest.mark.parametrize("in_transactions", [False, True])
def test_above_the_limit_the_oldest_messages_are_emitted_unsettled(
    monkeypatch: pytest.MonkeyPatch, in_transactions: bool
) -> None:
    """In a connection with transactions all messages wait for its end, also those that are settled."""
    monkeypatch.setattr(conversation, "LIMITS", Limits(outstanding_messages=2))
    frames = opening({"type": "coordinator"} if in_transactions else {"address": "q"})
    if in_transactions:
        declares = {"content_frame_no": len(frames) + 1, "properties": {"body": {"type": "declare"}}}
        frames.append(performative("client", "transfer", handle=1, delivery_id=100, **declares))
    for number in range(9):
        content = {"content_frame_no": len(frames) + 1, "body_sha256": "a", "properties": {}}
        frames.append(performative("client", "transfer", handle=0, delivery_id=number, **content))
        if number == 0:
            accepted = {"state": {"type": "accepted"}, "settled": True}
            frames.append(performative("server", "disposition", role=True, first=0, last=0, **accepted))
    rows: list[dict[str, Any]] = []
    monkeypatch.setattr(conversation, "WAITING_BYTES", 0)
    of_all = Conversation(config())
    batches = table(frames).to_batches(max_chunksize=1)
    for parts in (
        *(of_all.feed(FrameBatch(batch)) for batch in batches),
        of_all.finish(),
    ):
        rows += [row for name, batch in parts if name == "messages" for row in batch.to_pylist()]
    outcomes = [row["outcome"] for row in sorted(rows, key=lambda row: row["first_frame_no"])]
    unknown = outcomes.count("unknown")
    assert unknown > 0
    assert outcomes == ["confirmed", *["unknown"] * unknown, *["unsettled"] * (8 - unknown)]
    assert of_all.over_limit == {7}


def replies(frames: list[dict[str, Any]], settled_at: int = 0) -> tuple[dict[int, int | None], int]:
    """Frame by frame: requests and their reply_frame_no; how many rows have left once frame `settled_at` was read."""
    followed, found, left = Conversation(config()), dict[int, int | None](), 0

    def take(parts: Iterator[tuple[str, pa.RecordBatch]]) -> None:
        for name, rows in parts:
            if name == "methods":
                found.update((row["frame_no"], row["reply_frame_no"]) for row in rows.to_pylist())

    for batch in table(frames).to_batches(max_chunksize=1):
        take(followed.feed(FrameBatch(batch)))
        if batch["frame_no"][0].as_py() == settled_at:
            take(followed.settle())
            left = len(found)
    take(followed.finish())
    return found, left


def of_0_10(sender: str, name: str, /, **answers: Any) -> dict[str, Any]:
    return {**performative(sender, name, **answers), "version": "0-10", "frame_type": "command"}


def flows(count: int) -> list[dict[str, Any]]:
    """A session and commands, from 0 on, that frames from 3 on hold."""
    grant = {"destination": "d", "unit": 0, "value": 1}
    return [
        of_0_10("client", "session.attach", name=b"s"),
        of_0_10("server", "session.attached", name=b"s"),
        *(of_0_10("client", "message.flow", command_id=number, **grant) for number in range(count)),
    ]


def test_of_too_many_commands_the_oldest_leave_without_a_reply(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversation, "LIMITS", Limits(outstanding_messages=2))
    monkeypatch.setattr(conversation, "WAITING_BYTES", 0)
    frames = [*flows(40), of_0_10("server", "session.completed", commands=[{"lower": 0, "upper": 39}])]
    found, left = replies(frames, settled_at=42)
    assert left == 40
    assert [found[frame_no] for frame_no in (1, 3, 4, 41, 42)] == [2, None, None, 43, 43]


def test_commands_leave_once_both_sides_have_ended_their_session() -> None:
    """The session goes on, under the same name, only with a timeout."""
    ends = [of_0_10("client", "session.detach", name=b"s"), of_0_10("server", "session.detached", name=b"s", code=0)]
    found, left = replies([*flows(4), *ends], settled_at=8)
    assert left == 8
    assert {frame_no: reply for frame_no, reply in found.items() if reply} == {1: 2, 7: 8}
    timeout = of_0_10("server", "session.timeout", timeout=300)
    again = [*flows(0), of_0_10("server", "session.completed", commands=[{"lower": 0, "upper": 1}])]
    found, _ = replies([*flows(2), timeout, *ends, *again])
    assert [found[frame_no] for frame_no in (1, 3, 4, 6, 8)] == [2, 10, 10, 7, 9]


def test_the_end_of_a_session_is_no_reply_to_the_next_one_on_its_channel() -> None:
    """The client begins it before the server ends the first one."""
    frames = [
        performative("client", "begin"),
        performative("server", "begin", remote_channel=0),
        performative("client", "end"),
        performative("client", "begin"),
        performative("server", "end"),
        performative("server", "begin", remote_channel=0),
        performative("client", "end"),
        performative("server", "end"),
    ]
    found, _ = replies(frames)
    assert found[3] in (5, None)
    assert {frame_no: reply for frame_no, reply in found.items() if frame_no != 3 and reply} == {1: 2, 4: 6, 7: 8}


def test_attaches_of_one_channel_are_answered_in_order() -> None:
    """The client detaches and attaches another session before the server has answered anything."""
    completed = {"commands": [{"lower": 0, "upper": 0}]}
    frames = [
        *(
            of_0_10("client", name, **given)
            for session in (b"s", b"t")
            for name, given in (
                ("session.attach", {"name": session}),
                ("queue.declare", {"queue": "q", "command_id": 0}),
                ("session.detach", {"name": session}),
            )
        ),
        *(
            of_0_10("server", name, **given)
            for session in (b"s", b"t")
            for name, given in (
                ("session.attached", {"name": session}),
                ("session.completed", completed),
                ("session.detached", {"name": session, "code": 0}),
            )
        ),
    ]
    found, _ = replies(frames)
    assert {frame_no: reply for frame_no, reply in found.items() if reply} == {n: n + 6 for n in range(1, 7)}


def lives(frames: list[dict[str, Any]]) -> list[str]:
    """The numbers of incarnations in table channels."""
    rows = followed(table(frames), len(frames))["channels"]
    return sorted(re.findall(r"'channel_incarnation': (\d+)", " ".join(rows)))


def test_a_session_that_is_ended_twice_is_one_session() -> None:
    """The detach of the client crosses the exception of the server, which has detached the session already."""
    ended = of_0_10("server", "session.detached", name=b"s", code=0)
    refused = of_0_10("server", "execution.exception", command_id=0, error_code=404)
    asked = of_0_10("client", "session.detach", name=b"s")
    assert lives([*flows(1), asked, refused, ended, ended]) == ["1"]
    assert lives([*flows(1), refused, ended, asked, ended]) == ["1"]


def test_frames_after_both_ends_of_a_session_are_of_another_one() -> None:
    """Its begins were lost."""
    over = [performative(side, "end") for side in ("client", "server")]
    lost: list[dict[str, Any]] = [{"sender": side, "version": "1.0", "frame_type": "gap"} for side in SIDES]
    frames = [*opening({"address": "q"}), *over, *lost, performative("client", "attach", name="c", handle=0, **ATTACH)]
    assert lives(frames) == ["0", "1"]


def test_an_attach_may_be_refused_with_detached() -> None:
    found, _ = replies([flows(0)[0], of_0_10("server", "session.detached", name=b"s", code=1)])
    assert found == {1: 2, 2: None}


def test_every_name_with_a_role_is_in_the_specification() -> None:
    known = {
        f"{class_['name']}.{method['name']}"
        for class_ in fact_table("0-10")["classes"]
        for kind in ("controls", "commands")
        for method in class_[kind]
    }
    performatives = {"open", "begin", "attach", "flow", "transfer", "disposition", "detach", "end", "close"}  # 1.0, 2.7
    of_sasl = {f"sasl-{name}" for name in ("mechanisms", "init", "challenge", "response", "outcome")}  # 1.0, 5.3.3
    assert {name for name in NAMES if "." not in name} == performatives | of_sasl
    assert {name for name in NAMES if "." in name} <= known
    assert {name for name in OUTCOME_OF if "." in name} <= {name for name in ROLES if ROLES[name].get("settles")}


def test_bytes_as_text() -> None:
    data = pa.array([b"\x00\xff", None, "é".encode(), b"", b"plain"], pa.binary())
    assert to_hex(data).to_pylist() == ["00ff", None, "c3a9", "", "706c61696e"]
    assert to_hex(data.slice(2, 2)).to_pylist() == ["c3a9", ""]
    assert text_or_hex(data).to_pylist() == ["00ff", None, "é", "", "plain"]
    assert valid_utf8(data).to_pylist() == [None, None, "é", "", "plain"]
    assert to_hex(pa.nulls(2, pa.binary())).to_pylist() == [None, None]
    assert np.array_equal(text_or_hex(data.slice(3)).is_valid(), [True, True])
