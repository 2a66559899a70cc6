"""Steps of a ladder: labels of frames, and folding. No Spark."""

from __future__ import annotations

import json
import re
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plots_support import MILLISECOND, SECOND, frame

from pipeline import plots
from pipeline.output.formatting import plain_text
from pipeline.plots.steps import Step, add_silences, fold_repeats, kind, label, steps

WIDE = 200


def row(
    name: str | None, /, sender: str = "client", at_ns: int = 0, number: int = 1, **arguments: Any
) -> dict[str, Any]:
    """A frame as the ladder fetches it: arguments as JSON."""
    blank = {"arguments": json.dumps(arguments), "content_frame_no": None, "payload_size": None, "body_size": None}
    return {**blank, "body": None, **frame(number, at_ns, sender, name)}


def content(number: int, of: int, frame_type: str, **more: Any) -> dict[str, Any]:
    """A content header or body of the method that is frame `of`."""
    return {**row(None, number=number), "frame_type": frame_type, "content_frame_no": of, **more}


def line(*keys: str, every_ns: int = 1) -> list[Step]:
    """A step for each key, one every `every_ns`."""
    return [Step(at * every_ns, key, 1, "client", 1, at, "messages", name=key) for at, key in enumerate(keys)]


@pytest.mark.parametrize(
    ("frame", "expected"),
    [
        (row("basic.publish", exchange="e", routing_key="eu.1", mandatory=True), "basic.publish e → eu.1 mandatory"),
        (row("basic.publish", exchange="", routing_key="q"), "basic.publish (default) → q"),
        (row("basic.ack", delivery_tag=7, multiple=False), "basic.ack #7"),
        (row("channel.close", reply_code=404, reply_text="NOT_FOUND - no q"), "channel.close 404 NOT_FOUND - no q"),
        (row("connection.tune", frame_max=4096, heartbeat=60), "connection.tune heartbeat 60 s frame max 4096"),
        (row("basic.qos", prefetch_count=0, prefetch_size=0), "basic.qos"),
        (row("disposition", first=3, last=3, state={"type": "accepted"}), "disposition #3 accepted"),
        (row("disposition", first=3, last=9, role=True), "disposition #3 to #9"),
        (row("attach", name="l1", source={"address": "a"}, target={"address": "b"}), "attach a → b l1"),
        # A delivery tag of 1.0 is bytes, which JSON has as base64.
        (row("transfer", delivery_tag="AAEC", delivery_id=4), "transfer #4"),
        (row("message.accept", transfers=[{"lower": 0, "upper": 2}]), "message.accept #0 to #2"),
        ({**row(None), "frame_type": "gap", "size": 1418}, "1,418 bytes not captured"),
        ({**row(None), "frame_type": "heartbeat"}, "heartbeat"),
        (
            {**row(None, protocol_id=3, major=1, minor=0, revision=0), "frame_type": "protocol-header"},
            "protocol header 3 1 0 0 (SASL)",
        ),
        ({**row("basic.deliver", exchange="e", routing_key="k"), "status": "partial"}, "basic.deliver e → k partial"),
    ],
)  # fmt: skip
def test_the_label_of_a_frame_is_its_name_and_key_arguments(frame: dict[str, Any], expected: str) -> None:
    assert label(frame, WIDE) == expected


@pytest.mark.parametrize(
    ("frame", "expected"),
    [
        (row("basic.publish"), "messages"),
        (row("message.transfer"), "messages"),
        (row("transfer"), "messages"),
        (row("basic.ack"), "settlement"),
        (row("disposition"), "settlement"),
        (row("queue.declare"), "queues, links"),
        (row("attach"), "queues, links"),
        (row("session.attach"), "connection, channel"),
        (row("connection.close", reply_code=200), "connection, channel"),
        (row("connection.close", reply_code=320), "error"),
        (row("basic.return", reply_code=312), "error"),
        (row("detach", error={"condition": "amqp:not-found"}), "error"),
        (row("sasl-outcome", code=0), "connection, channel"),
        (row("sasl-outcome", code=1), "error"),
        ({**row("queue.declare"), "status": "malformed"}, "error"),
        ({**row(None), "frame_type": "skipped"}, "lost or not AMQP"),
    ],
)
def test_the_kind_of_a_frame_is_known_in_every_version(frame: dict[str, Any], expected: str) -> None:
    assert kind(frame) == expected


def test_a_content_is_one_step_with_its_method() -> None:
    frames = [
        row("basic.publish", number=1, exchange="e", routing_key="k"),
        content(2, 1, "header", body_size=3000),
        content(3, 1, "body", payload_size=2000),
        row("basic.ack", number=4, delivery_tag=1),
        content(5, 1, "body", payload_size=1000, status="partial"),
        content(6, 99, "body", payload_size=1),  # its method is not among them
    ]
    found = steps(frames, WIDE)
    # 3000 / 1024 = 2.93
    assert [step.label for step in found] == ["basic.publish e → k 2.9 KB partial", "basic.ack #1", "body"]
    assert [step.frames for step in found] == [4, 1, 1]
    assert [step.whole for step in found] == [False, True, True]


def test_without_a_header_bodies_are_summed() -> None:
    frames = [
        row("message.transfer", number=1, destination="d"),
        *(content(n, 1, "body", payload_size=300) for n in (2, 3)),
    ]
    assert [step.label for step in steps(frames, WIDE)] == ["message.transfer d 600 B"]


def test_a_label_is_cut_to_the_width_between_two_lifelines() -> None:
    long = label(row("basic.publish", exchange="e" * 200, routing_key="k" * 200), 40)
    assert len(long) == 40
    assert long.startswith("basic.publish eeee")
    assert long.endswith("…")


def test_a_long_silence_is_one_step() -> None:
    found = add_silences([*line("a", "b"), Step(5 * SECOND, "c", 1, "client", name="c")], SECOND)
    assert [step.label for step in found] == ["a", "b", "5.0 s of silence", "c"]
    assert found[2].sender is None


def test_repeated_steps_are_folded() -> None:
    folded = fold_repeats(line("open", *["publish"] * 6, "close", every_ns=MILLISECOND))
    # The second to the sixth publish: from 1 ms to 6 ms.
    assert [step.label for step in folded] == ["open", "publish", "publish, 5 times more: 5.0 ms in all", "close"]
    assert sum(step.frames for step in folded) == 8


def test_a_pattern_of_several_steps_is_folded() -> None:
    folded = fold_repeats(line(*["publish", "confirm"] * 10, every_ns=MILLISECOND))
    assert [step.label for step in folded] == ["publish", "confirm", "the 2 steps above, 9 times more: 19.0 ms in all"]


def test_three_equal_steps_are_not_folded() -> None:
    assert [step.label for step in fold_repeats(line(*"aaabc"))] == list("aaabc")


@given(st.lists(st.sampled_from("abc"), max_size=60))
def test_folding_loses_no_frame(keys: list[str]) -> None:
    assert sum(step.frames for step in fold_repeats(line(*keys))) == len(keys)


@given(st.text(), st.integers(min_value=12, max_value=60))
def test_a_name_in_a_picture_is_short_and_shows_what_is_invisible(text: str, length: int) -> None:
    inside = plain_text(text, length).removeprefix("\u2068").removesuffix("\u2069")
    assert len(inside) <= length
    assert not [c for c in inside if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")]


def test_bidirectional_marks_cannot_reorder_a_label() -> None:
    text = label(row("basic.publish", exchange="pay\u202eeno\x00", routing_key="k"), WIDE)
    assert text == "basic.publish pay[U+202E]eno[U+0000] → k"
    alef_bet = "\u05d0\u05d1"
    assert label(row("queue.declare", queue=alef_bet), WIDE) == f"queue.declare \u2068{alef_bet}\u2069"


def test_every_picture_is_in_the_documentation() -> None:
    text = (Path(__file__).parents[2] / "docs/pictures.md").read_text()
    assert sorted(re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE)) == sorted(plots.__all__)
    images = re.findall(r"\]\((images/\w+\.svg)\)", text)
    assert images
    assert [name for name in images if not (Path(__file__).parents[2] / "docs" / name).is_file()] == []
