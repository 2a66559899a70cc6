"""Frames as an attacker writes them: every one ends in rows, frames before and after it are read, no byte is lost.

Where the other families of attacks are tried:

* tables one byte short or long, unknown tags, equal names, nesting to the limit and beyond, arrays of nothing:
  test_field_table, test_amqp_0_10, test_amqp_1_0, test_variant; methods and properties cut or too long, flag words
  without end: test_classic, test_classic_headers; packing flags of no field: test_amqp_0_10
* data offsets outside of the frame, sizes below the frame header, performatives of the wrong layer, aborted deliveries,
  handles used again, sections that make no sense: test_amqp_1_0_streams; in the tables: test_tables_1_0_written
* frame headers with flaws, segments without beginning or end: test_amqp_0_10_streams
* other protocols and TLS on the port of AMQP: test_detection; 0-9-1 servers that say any version:
  test_version_agreement
* copies that conflict, data in a SYN, sequence numbers that wrap, keep-alives, ports used again: test_reassembly; the
  rest of TCP: test_hostile_tcp
* pcapng blocks of absurd length, packets before their interface, odd resolutions: test_capture_pcapng; damaged files
  and gzip bombs: test_capture_unreadable; other bombs: below
* several files, copies, clocks that differ: test_several_captures
* cost: test_hostile_cost; lost bytes: test_loss; random damage: test_fuzz

A weakness that remains: bytes that happen to be the beginning of a frame of up to 1 MiB (or the frame_max agreed on)
are awaited to their end. If the stream ends before that, all behind them is its unfinished tail, frames too. `ACK_9`
has no such bytes, so that tests of other things do not depend on it; test_frames_behind_a_feigned_size_* are about it.
"""

from __future__ import annotations

import hashlib
import re
import struct
from pathlib import Path
from typing import Any

import encode_0_10 as encode
import pika.frame
import pika.spec
import pyarrow as pa
import pytest
from encode_1_0 import frame, performative
from fuzz import PARTS
from test_amqp_1_0_streams import CLOSE, FLOW_FRAME, sections_of, transfer
from test_source import accounts
from test_source import rows as read
from wire import CLIENT, SERVER, Row, Wire

from codec.compiler.limits import LIMITS, Limits
from udfs.source.sources import TcpRunsReader

CLASSIC_HEADER, SEGMENTED_HEADER, DESCRIBED_HEADER = b"AMQP\0\0\x09\x01", b"AMQP\x01\x01\0\x0a", b"AMQP\0\1\0\0"
ACK = pika.frame.Method(1, pika.spec.Basic.Ack(7)).marshal()
SYNC = encode.one_frame("execution.sync", {}, 1)
# On this channel no part of the frame looks like the beginning of another, which would be awaited to its end.
ACK_9 = pika.frame.Method(9, pika.spec.Basic.Ack(7)).marshal()
FAMILIES = {"classic": (CLASSIC_HEADER, ACK_9), "0-10": (SEGMENTED_HEADER, SYNC), "1.0": (DESCRIBED_HEADER, FLOW_FRAME)}
BEHIND = 300  # frames
every_family = pytest.mark.parametrize("family", FAMILIES)


def stream(*data: bytes) -> tuple[list[Row], Row]:
    """Rows and facts of a connection whose client sends this; every byte of it is in one row and in the ledger."""
    wire = Wire()
    sent = b"".join(data)
    for start in range(0, len(sent), 50_000):
        wire.add(CLIENT, sent[start : start + 50_000])
    rows, facts = wire.rows()
    assert sum(row["size"] for row in rows) == len(sent)
    assert sum(facts["client"][part] for part in PARTS) == facts["client"]["payload_bytes"] == len(sent)
    return rows, facts


def columns_of(rows: list[Row], *columns: str) -> list[tuple[Any, ...]]:
    return [tuple(row[column] for column in columns) for row in rows]


# ---- frame headers --------------------------------------------------------------------------------------------------


def feigned(family: str, size: int) -> bytes:
    """The beginning of a frame that claims `size`."""
    if family == "classic":
        return struct.pack(">BHI", 3, 1, size)
    if family == "0-10":
        return struct.pack(">BBHBBHI", 15, 1, size & 0xFFFF, 0, 1, 1, 0)
    return struct.pack(">IBBH", size, 2, 0, 0)


@every_family
@pytest.mark.parametrize("size", [0, 1, 7, 8, 11, 12, 2**24 + 1, 2**31 - 1, 2**31, 2**32 - 1])
def test_frames_around_a_false_size_are_read(family: str, size: int) -> None:
    header, good = FAMILIES[family]
    if family == "0-10" and size > 12:
        size = 0  # its sizes have 16 bits: what is cut off is tried by the others
    rows, _ = stream(header, good, feigned(family, size), good * BEHIND)
    offsets = [row["offset"] for row in rows if row["status"] == "ok" and row["size"] == len(good)]
    behind = len(header) + len(good) + len(feigned(family, size))
    assert offsets[0] == len(header)
    # the first one behind may be taken for the contents of the feigned frame
    assert offsets[-BEHIND + 1 :] == [behind + number * len(good) for number in range(1, BEHIND)]


# From its third byte on, ACK reads: type 1, channel 0, this size (01 | 0000 | 000d003c, then method 60.80).
FEIGNED_BY_ACK = 0x000D003C


@pytest.mark.parametrize("count", [1, 300, FEIGNED_BY_ACK // len(ACK) - 2])
def test_frames_after_a_false_size_are_hidden_where_the_stream_ends_before_it(count: int) -> None:
    """A body of one byte takes the type of the frame behind it: what follows its end byte looks like a method of 852
    KB. Nothing tells that it is none before it ends; all its bytes are in one row, and in the ledger as tail."""
    rows, facts = stream(CLASSIC_HEADER, ACK, feigned("classic", 1), ACK * count)
    hidden = count * len(ACK) - 2
    assert columns_of(rows[1:], "frame_type", "status", "error", "size") == [
        ("method", "ok", None, len(ACK)),
        ("body", "malformed", NO_HEADER, 9),
        ("skipped", "partial", "the capture ends inside a frame", hidden),
    ]
    assert facts["client"]["tail_bytes"] == hidden


def test_frames_after_a_false_size_are_read_where_the_stream_continues() -> None:
    count = FEIGNED_BY_ACK // len(ACK) + 10
    rows, facts = stream(CLASSIC_HEADER, ACK, feigned("classic", 1), ACK * count)
    assert sum(row["status"] == "ok" and row["size"] == len(ACK) for row in rows) == count  # the first and count - 1
    assert (facts["client"]["tail_bytes"], facts["client"]["skipped_bytes"]) == (0, len(ACK) - 2)


@every_family
def test_a_frame_that_never_ends_is_the_tail(family: str) -> None:
    header, good = FAMILIES[family]
    rows, facts = stream(header, good, feigned(family, 5000), b"\x01" * 1000)
    assert columns_of(rows[2:], "frame_type", "status", "error") == [
        ("skipped", "partial", "the capture ends inside a frame")
    ]
    assert facts["client"]["tail_bytes"] == len(feigned(family, 5000)) + 1000


def test_a_wrong_end_byte_makes_a_frame_malformed_and_hides_no_other() -> None:
    wrong = ACK[:-1] + b"\xcf"
    rows, _ = stream(CLASSIC_HEADER, wrong, ACK)
    assert columns_of(rows[1:], "name", "status", "error") == [
        ("basic.ack", "malformed", "frame end octet is not 0xCE"),
        ("basic.ack", "ok", None),
    ]
    lying = struct.pack(">BHI", 3, 1, 3 * len(ACK)) + 3 * ACK + b"\0" + ACK
    rows, _ = stream(CLASSIC_HEADER, lying)
    assert [row["name"] for row in rows if row["status"] == "ok"][1:] == ["basic.ack"] * 4


def test_agreed_frame_sizes_above_the_limit_have_no_effect() -> None:
    """tune-ok with frame_max 2^32-1, then frames above the limit of 16 MiB where the boundary is lost."""
    tune_ok = pika.frame.Method(0, pika.spec.Connection.TuneOk(0, 2**32 - 1, 0)).marshal()
    huge = struct.pack(">BHI", 3, 1, LIMITS.frame_bytes) + bytes(LIMITS.frame_bytes) + b"\xce"
    rows, _ = stream(CLASSIC_HEADER, tune_ok, b"\x77" * 20, huge, ACK)
    assert columns_of(rows[2:], "frame_type", "size") == [("skipped", 20 + len(huge)), ("method", len(ACK))]


def test_agreed_frame_sizes_below_the_minimum_have_no_effect() -> None:
    tune_ok = pika.frame.Method(0, pika.spec.Connection.TuneOk(0, 1, 0)).marshal()
    rows, _ = stream(CLASSIC_HEADER, tune_ok, b"\x77" * 20, ACK)
    assert columns_of(rows[2:], "frame_type", "size") == [("skipped", 20), ("method", len(ACK))]


def test_a_channel_above_the_maximum_is_a_row() -> None:
    tune_ok = pika.frame.Method(0, pika.spec.Connection.TuneOk(5, 4096, 0)).marshal()
    beyond = pika.frame.Method(65535, pika.spec.Basic.Ack(7)).marshal()
    rows, _ = stream(CLASSIC_HEADER, tune_ok, beyond, ACK)
    assert columns_of(rows[2:], "name", "channel", "status") == [("basic.ack", 65535, "ok"), ("basic.ack", 1, "ok")]


@every_family
def test_protocol_headers_over_and_over(family: str) -> None:
    header, good = FAMILIES[family]
    others = [other for other, _ in FAMILIES.values()] + [b"AMQP\x03\x01\0\0", b"AMQP\x09\x09\x09\x09"]
    rows, facts = stream(header, *(others * 100), header, good)
    assert {row["frame_type"] for row in rows[:-1]} == {"protocol-header"}
    assert (rows[-1]["status"], rows[-1]["size"]) == ("ok", len(good))
    assert len(facts["versions_offered"]) < 20


# ---- contents -------------------------------------------------------------------------------------------------------

PUBLISH = pika.frame.Method(1, pika.spec.Basic.Publish(exchange="e", routing_key="k")).marshal()


def header(size: int, channel: int = 1) -> bytes:
    data: bytes = pika.frame.Header(channel, size, pika.spec.BasicProperties()).marshal()
    return data


def body(data: bytes, channel: int = 1) -> bytes:
    written: bytes = pika.frame.Body(channel, data).marshal()
    return written


NO_HEADER, NO_METHOD = "content body without its header", "content header without the method that announces it"
LONG = "content body is longer than its header declared"
SHA256_ABC = hashlib.sha256(b"abc").hexdigest()


@pytest.mark.parametrize(
    ("frames", "expected"),
    [
        # number of the first frame of its content (-1: none) and error, of each frame after the protocol header
        ([PUBLISH, header(2), body(b"abc")], [(2, None), (2, None), (2, LONG)]),
        ([PUBLISH, header(5), body(b"abc"), ACK, body(b"d")], [(2, None)] * 3 + [(-1, None), (-1, NO_HEADER)]),
        ([header(3), body(b"abc")], [(-1, NO_METHOD), (-1, NO_HEADER)]),
        ([body(b"abc")], [(-1, NO_HEADER)]),
        ([PUBLISH, body(b"abc")], [(2, None), (-1, NO_HEADER)]),
        ([PUBLISH, header(3, channel=2), body(b"abc", channel=2)], [(2, None), (-1, NO_METHOD), (-1, NO_HEADER)]),
        ([PUBLISH, header(3), body(b"abc", channel=2)], [(2, None), (2, None), (-1, NO_HEADER)]),
        ([PUBLISH, header(3), header(3), body(b"abc")], [(2, None), (2, None), (-1, NO_METHOD), (-1, NO_HEADER)]),
        ([PUBLISH, header(0), body(b"abc")], [(2, None), (2, None), (-1, NO_HEADER)]),
        ([PUBLISH, header(2**63), body(b"abc")], [(2, None), (2, None), (2, None)]),
        ([PUBLISH, PUBLISH, header(3)], [(2, None), (3, None), (3, None)]),
    ],
)  # fmt: skip
def test_contents_that_do_not_fit_have_no_digest(frames: list[bytes], expected: list[tuple[int, str | None]]) -> None:
    rows, _ = stream(CLASSIC_HEADER, *frames, PUBLISH, header(3), body(b"abc"))
    assert columns_of(rows[1:-3], "content", "error") == expected
    assert [row["digest"] for row in rows[1:-1] if row["body_size"] != 0] == [None] * (
        len(rows) - 2 - sum(row["body_size"] == 0 for row in rows)
    )
    assert rows[-1]["digest"] == SHA256_ABC


def test_contents_of_both_directions_and_many_channels_stay_apart() -> None:
    wire = Wire()
    wire.add(CLIENT, CLASSIC_HEADER)
    deliver = pika.spec.Basic.Deliver(consumer_tag="t", delivery_tag=1, exchange="e", routing_key="k")
    sides = {CLIENT: pika.spec.Basic.Publish(exchange="e", routing_key="k"), SERVER: deliver}
    for step in range(3):
        for channel in range(1, 30):
            for side, method in sides.items():
                text = b"%d %d" % (channel, side)
                data = (pika.frame.Method(channel, method).marshal(), header(len(text), channel), body(text, channel))
                wire.add(side, data[step])
    rows, _ = wire.rows()
    digests = {(row["sender"], row["channel"]): row["digest"] for row in rows if row["frame_type"] == "body"}
    assert digests == {
        (("server", "client")[side], channel): hashlib.sha256(b"%d %d" % (channel, side)).hexdigest()
        for side in sides
        for channel in range(1, 30)
    }


# ---- deliveries and commands ----------------------------------------------------------------------------------------


def test_delivery_ids_wrap() -> None:
    frames = [transfer(0, sections_of(b"abc"), number) for number in (2**32 - 2, 2**32 - 1, 0, 1)]
    rows, _ = stream(DESCRIBED_HEADER, *frames)
    assert [row["arguments"]["delivery_id"] for row in rows[1:]] == [2**32 - 2, 2**32 - 1, 0, 1]
    assert len({row["digest"] for row in rows[1:]}) == 1
    assert rows[1]["digest"] is not None


def test_ranges_whose_ends_are_swapped_are_shown_as_they_are() -> None:
    completed = encode.one_frame("session.completed", {"commands": [(5, 2), (2**32 - 1, 0)]}, 1)
    rows, _ = stream(SEGMENTED_HEADER, completed, SYNC)
    ranges = [{"lower": 5, "upper": 2}, {"lower": 2**32 - 1, "upper": 0}]
    assert (rows[1]["status"], rows[1]["arguments"]) == ("ok", {"commands": ranges})


# ---- values ---------------------------------------------------------------------------------------------------------

DEEP = 20_000


def test_nesting_of_any_depth_is_malformed_and_no_recursion() -> None:
    nested = b""
    for _ in range(400):
        nested = b"\x01nF" + struct.pack(">I", len(nested)) + nested
    declare = struct.pack(">HHH", 50, 10, 0) + b"\x01q\0" + struct.pack(">I", len(nested)) + nested
    rows, _ = stream(CLASSIC_HEADER, struct.pack(">BHI", 1, 1, len(declare)) + declare + b"\xce", ACK)
    assert columns_of(rows[1:], "status", "error") == [
        ("malformed", "values are nested above the decoder's limit"),
        ("ok", None),
    ]
    for data in (b"\0" * DEEP, b"\0\x53\x01" * DEEP, b"\xc0\xff\xff" * DEEP):
        opened = b"\xd0" + struct.pack(">II", 4 + 1 + len(data), 1) + data
        rows, _ = stream(DESCRIBED_HEADER, frame(b"\0\x53\x10" + opened + b"\x40"), CLOSE)
        assert rows[1]["status"] == "malformed"
        assert rows[2]["status"] == "ok"


def with_table(length: int) -> bytes:
    """queue.declare whose table says that it is so much longer than it is."""
    table = b"\x01at\x01\x01bS\0\0\0\x01x"
    declare = struct.pack(">HHH", 50, 10, 0) + b"\x01q\0" + struct.pack(">I", len(table) + length) + table
    return struct.pack(">BHI", 1, 1, len(declare)) + declare + b"\xce"


def with_map(count: int) -> bytes:
    """queue.declare of 0-10 whose map of one entry says that it has so many."""
    data = encode.one_frame("queue.declare", {"queue": "q", "arguments": {"k": ("str8", "v")}}, 1)
    assert data.count(b"\0\0\0\x01\x01k") == 1
    return data.replace(b"\0\0\0\x01\x01k", struct.pack(">I", count) + b"\x01k")


def with_odd_map(count: int) -> bytes:
    """open of 1.0 with properties (its tenth field) {"k": true}, a map of so many values."""
    fields = b"\xa1\x01c" + b"\x40" * 8 + b"\xc1\x05" + bytes([count]) + b"\xa1\x01k\x41"
    return frame(b"\0\x53\x10\xc0" + bytes([1 + len(fields), 10]) + fields)


@pytest.mark.parametrize(
    ("family", "data", "sound"),
    [
        *(("classic", with_table(length), length == 0) for length in (-1, 0, 1)),
        *(("0-10", with_map(count), count == 1) for count in (0, 1, 2, 2**32 - 1)),
        *(("1.0", with_odd_map(count), count == 2) for count in (0, 1, 2, 3, 255)),
        ("1.0", frame(b"\0" * 8, doff=255), False),
    ],
)
def test_lengths_and_counts_that_are_not_those_of_the_contents(family: str, data: bytes, sound: bool) -> None:
    opening, good = FAMILIES[family]
    rows, _ = stream(opening, data, good)
    assert [row["size"] for row in rows[1:]] == [len(data), len(good)]
    assert [row["status"] for row in rows[1:]] == ["ok" if sound else "malformed", "ok"]


NAMES = ["\0", "<script>alert(1)</script>", "'; DROP TABLE frames; --", "\x1b[2J", "\u202e\ufeff", "é" * 127, "x" * 255]


@pytest.mark.parametrize("name", NAMES)
def test_names_are_shown_unchanged(name: str) -> None:
    declare = pika.frame.Method(1, pika.spec.Queue.Declare(queue=name, arguments={name[:100]: name})).marshal()
    (row,) = stream(CLASSIC_HEADER, declare)[0][1:]
    assert (row["status"], row["arguments"]["queue"]) == ("ok", name)
    assert row["arguments"]["arguments"] == {name[:100]: name}
    (row,) = stream(SEGMENTED_HEADER, encode.one_frame("queue.declare", {"queue": name}, 1))[0][1:]
    assert (row["status"], row["arguments"]["queue"]) == ("ok", name)
    (row,) = stream(DESCRIBED_HEADER, frame(performative(0x10, name)))[0][1:]
    assert (row["status"], row["arguments"]) == ("ok", {"container_id": name})


# ---- bombs ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compression", ["gzip", "zstd", "lz4"])
def test_endless_expansion_stops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compression: str) -> None:
    monkeypatch.setattr("udfs.source.capture_bytes.LIMITS", Limits(expansion_ratio=100, expansion_grace=64 * 1024))
    bomb = tmp_path / "bomb.pcap"
    with pa.CompressedOutputStream(pa.OSFile(str(bomb), "wb"), compression) as out:
        out.write(struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 101) + bytes(8 * 1024 * 1024))
    (account,) = accounts(read(TcpRunsReader, bomb))
    assert "expands more than 100 times" in account["error"]
    assert 0 < account["packets"] < 8 * 1024 * 1024 // 16


# ---- the page about all this ----------------------------------------------------------------------------------------


def test_the_page_on_robustness_names_tests_that_exist() -> None:
    page = (Path(__file__).parents[2] / "docs" / "robustness.md").read_text()
    named = set(re.findall(r"`(test_\w+)`", page))
    assert len(named) > 15
    assert [name for name in sorted(named) if not any(Path(__file__).parents[1].rglob(f"{name}.py"))] == []
