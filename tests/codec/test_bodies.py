"""The hash on a completed content is that of the body put together from the bytes of the stream by a second reader."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import golden
import independent_tcp as tcp
import pytest
from decoding import decoded
from expected import ExpectedConnection, captured, expected, is_complete, shift_between
from golden import Capture

CAPTURES = [c for c in golden.captures().values() if set(c.versions) <= set(golden.CLASSIC)]
WITH_CONTENT = {(60, 40), (60, 50), (60, 60), (60, 71)}  # basic.publish, return, deliver, get-ok

every_capture = pytest.mark.parametrize("capture", CAPTURES, ids=lambda capture: capture.file)


@dataclass(frozen=True)
class Content:
    """A message in one direction: its frames by stream offset, method first, and its body."""

    sender: golden.Endpoint
    frames: tuple[tcp.Frame, ...]
    body: bytes

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.body).hexdigest()


def contents(half: tcp.Half) -> list[Content]:
    """Contents of a complete direction: a method with content, its header, bodies up to the declared size."""
    open_contents: dict[int, list[tcp.Frame]] = {}
    found = []
    for frame in tcp.plain_frames(half)[0]:
        channel = frame.channel or 0
        if frame.kind == 1 and (frame.class_id, frame.method_id) in WITH_CONTENT:
            open_contents[channel] = [frame]
        elif frame.kind in (2, 3) and channel in open_contents:
            open_contents[channel].append(frame)
            header = open_contents[channel][1]
            body = b"".join(part.payload for part in open_contents[channel][2:])
            if len(body) == int.from_bytes(header.payload[4:12], "big"):
                found.append(Content(half.sender, tuple(open_contents.pop(channel)), body))
    return found


def complete_contents(capture: Capture, connection: ExpectedConnection, index: int) -> list[tuple[Content, int]]:
    """Contents of the origin that are complete in this capture, each with what to add to its offsets here."""
    source = capture.file if is_complete(capture) else capture.made_from
    assert source is not None
    found = []
    for sender, origin in captured(source)[index].halves.items():
        half = connection.captured.halves[sender]
        if half.base is None or connection.content != "amqp":
            continue
        shift = shift_between(half, origin)
        for content in contents(origin):
            spans = [(frame.offset + shift, frame.offset + shift + frame.size) for frame in content.frames]
            if all(captured_between(half, start, stop) for start, stop in spans):
                found.append((content, shift))
    return found


def captured_between(half: tcp.Half, start: int, stop: int) -> bool:
    return start >= 0 and stop <= len(half.arrival) and None not in half.arrival[start:stop]


@every_capture
def test_the_last_frame_has_the_hash_of_the_body(capture: Capture) -> None:
    for index, (reference, connection) in enumerate(zip(expected(capture.file), decoded(capture.file), strict=True)):
        rows = {(row["sender"], row["stream_offset"]): row for row in connection.rows if row["frame_type"] != "gap"}
        hashes = {}
        for content, shift in complete_contents(capture, reference, index):
            side = reference.side(content.sender)
            hashes[side, content.frames[-1].offset + shift] = content.sha256
            method, *others = [rows[side, frame.offset + shift] for frame in content.frames]
            assert {row["content_frame_no"] for row in (method, *others)} == {method["frame_no"]}
            assert b"".join(row["payload"] or b"" for row in others[1:]) == content.body
        assert hashes == {key: row["body_sha256"] for key, row in rows.items() if row["body_sha256"] is not None}


@every_capture
def test_content_frames_point_to_a_method_that_carries_content(capture: Capture) -> None:
    for connection in decoded(capture.file):
        rows: dict[int, dict[str, Any]] = {row["frame_no"]: row for row in connection.rows}
        for row in connection.rows:
            if row["content_frame_no"] is None:
                assert row["frame_type"] != "method" or (row["class_id"], row["method_id"]) not in WITH_CONTENT
            else:
                first = rows[row["content_frame_no"]]
                carries = first["frame_type"] == "method" and (first["class_id"], first["method_id"]) in WITH_CONTENT
                assert carries or first["frame_type"] == "header"  # the header when only the method was lost
                assert (first["sender"], first["channel"]) == (row["sender"], row["channel"])


@every_capture
def test_as_many_contents_are_complete_as_tshark_shows_headers(capture: Capture) -> None:
    """Guards the tests above against an empty reading. A capture may end inside its last content."""
    connections = expected(capture.file)
    if not is_complete(capture) or not any(connection.content == "amqp" for connection in connections):
        pytest.skip("tshark shows other frames than are complete here")
    headers = [frame for frame in golden.golden_frames(capture.origin) if frame.kind == 2]
    found = [c for index, reference in enumerate(connections) for c in complete_contents(capture, reference, index)]
    cut = any(tcp.plain_frames(half)[1] for reference in connections for half in reference.captured.halves.values())
    assert len(headers) - cut <= len(found) <= len(headers)
