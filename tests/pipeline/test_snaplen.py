"""Frames that a snaplen has cut show what was captured of them: as tshark does, and no value that the complete frame
does not have."""

from __future__ import annotations

import gzip
import json
import re
import struct
from functools import cache
from pathlib import Path
from typing import Any

import decoding
import golden
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from classic_frames import method, protocol_header
from make_snaplen_golden import GOLDEN, NAMES, SNAPLEN
from wire import CLIENT, SERVER, Wire

from udfs.arrow.types import Numbers
from udfs.conversation.frame_batch import FrameBatch
from udfs.conversation.performatives import performatives

Row = dict[str, Any]
SPANS = {"gap", "skipped", "tls", "foreign"}
CUT_VALUES = "bytes of these values are missing from the capture"
# Fields of a login whose end is missing are not shown; in all of this only these are cut in a login.
OF_LOGINS = {"connection.start", "connection.start-ok", "connection.secure", "sasl-mechanisms", "sasl-init"}
PCAP_ORDERS = {b"\xd4\xc3\xb2\xa1": "<", b"\x4d\x3c\xb2\xa1": "<", b"\xa1\xb2\xc3\xd4": ">", b"\xa1\xb2\x3c\x4d": ">"}


def cut(data: bytes, snaplen: int) -> bytes:
    """A pcap as captured with a snaplen."""
    order, at = PCAP_ORDERS[data[:4]], 24
    parts = [data[:24]]
    while at + 16 <= len(data):
        seconds, fraction, captured, original = struct.unpack_from(order + "4I", data, at)
        size = min(captured, snaplen)
        parts += [struct.pack(order + "4I", seconds, fraction, size, original), data[at + 16 : at + 16 + size]]
        at += 16 + captured
    return b"".join(parts)


def cut_pcapng(data: bytes, snaplen: int) -> bytes:
    """The same of a little-endian pcapng: its enhanced packet blocks without their options."""
    at, parts = 0, []
    while at < len(data):
        kind, size = struct.unpack_from("<II", data, at)
        block = data[at : at + size]
        if kind == 6:
            interface, high, low, captured, original = struct.unpack_from("<5I", block, 8)
            captured = min(captured, snaplen)
            packet = block[28 : 28 + captured].ljust(-(-captured // 4) * 4, b"\0")
            head = struct.pack("<7I", 6, 32 + len(packet), interface, high, low, captured, original)
            block = head + packet + struct.pack("<I", 32 + len(packet))
        parts.append(block)
        at += size
    return b"".join(parts)


def frames(path: Path) -> list[Row]:
    rows = decoding.rows_of(decoding.decode_table(decoding.in_flow_order(decoding.runs([path]))))
    return [row for row in rows if row["kind"] == "frame"]


@cache
def uncut_frames(name: str) -> list[Row]:
    return frames(golden.CAPTURES / name)


def cut_frames(folder: Path, name: str, snaplen: int) -> list[Row]:
    data = (golden.CAPTURES / name).read_bytes()
    path = folder / name
    path.write_bytes(cut_pcapng(data, snaplen) if name.endswith(".pcapng") else cut(data, snaplen))
    return frames(path)


# ---- as tshark shows them -------------------------------------------------------------------------------------------

SASL = {"sasl.mechanisms": "sasl-mechanisms", "sasl.init": "sasl-init", "sasl.outcome": "sasl-outcome"}


def names_in(info: str, version: str) -> list[str]:
    """The frames that tshark names in the column Info, in our words."""
    info = re.sub(r"\[.*?\]", "", info)
    if version in ("0-8", "0-9", "0-9-1"):
        words = re.findall(r"Content-Header|Content-Body|\b[A-Z][a-z]+\.[A-Z][A-Za-z-]+", info)
        kinds = {"Content-Header": "header", "Content-Body": "body"}
        return [kinds.get(word, word.lower()) for word in words]
    info = re.sub(r"tx\.\S+", "tx", info)  # tshark names each of its commands after the one before
    words = info.replace("Protocol-Header 0-10", "").replace("Protocol-Header 1-0-0", "").split()
    return [SASL.get(word, {"message-body": "body", "(empty)": ""}.get(word, word)) for word in words]


def named(row: Row) -> str:
    if row["frame_type"] in ("header", "body"):
        return str(row["frame_type"])
    return "tx" if row["version"] == "0-10" and (row["name"] or "").startswith("tx.") else row["name"] or ""


@pytest.mark.parametrize("name", NAMES)
def test_frames_that_tshark_shows_of_a_cut_packet_are_there(name: str, tmp_path: Path) -> None:
    rows = cut_frames(tmp_path, name, SNAPLEN)
    found: dict[int, list[Row]] = {}
    for row in rows:
        if row["frame_type"] not in SPANS | {"protocol-header"}:
            found.setdefault(row["first_packet_no"], []).append(row)
    version = golden.captures()[name].versions[0]
    compared = 0
    for packet, info in json.loads(GOLDEN.read_text())[name].items():
        own = found.get(int(packet), [])
        names = names_in(info, version)
        assert [named(row) for row in own][: len(names)] == names, (packet, info)
        compared += len(names)
        (tag,) = [re.search(r"\bx=(\S*) rk=(\S*)", info)]
        if tag and own and own[0]["name"] in ("basic.publish", "basic.return"):
            assert (own[0]["arguments"]["exchange"], own[0]["arguments"]["routing_key"]) == tag.groups()
        kind = re.search(r"Content-Header type=(\S+)", info)
        if kind:
            (header,) = [row for row in own if row["frame_type"] == "header"]
            assert header["properties"]["content_type"] == kind[1]
    assert compared >= 10


# ---- as the complete frame has it -----------------------------------------------------------------------------------


def is_part(value: Any, complete: Any) -> bool:
    """Whether a value has nothing that `complete` does not have."""
    if isinstance(value, dict) and isinstance(complete, dict):
        return all(name in complete and is_part(part, complete[name]) for name, part in value.items())
    if isinstance(value, list) and isinstance(complete, list):
        return len(value) <= len(complete) and all(map(is_part, value, complete))
    return bool(value == complete)


@pytest.mark.parametrize("snaplen", [80, 96, 128, 160, 230])
@pytest.mark.parametrize("name", NAMES)
def test_a_cut_frame_has_the_captured_part_of_the_values_of_the_complete_frame(
    name: str, snaplen: int, tmp_path: Path
) -> None:
    known = {(row["connection_id"], row["sender"], row["stream_offset"]): row for row in uncut_frames(name)}
    partial = 0
    for row in cut_frames(tmp_path, name, snaplen):
        if row["frame_type"] in SPANS:
            continue
        full = known[row["connection_id"], row["sender"], row["stream_offset"]]
        for column in ("frame_type", "channel", "size", "version", "first_packet_no", "first_ts_ns"):
            assert row[column] in (full[column], None), (column, row, full)
        if row["status"] != "partial":
            continue
        partial += 1
        assert row["payload_size"] is None or row["payload_size"] <= full["payload_size"]
        assert row["notes"] in (None, []), row
        if row["name"] is None:
            assert row["arguments"] is None
            continue
        assert row["name"] == full["name"]
        assert is_part(row["arguments"] or {}, full["arguments"] or {})
        assert is_part(row["properties"] or {}, full["properties"] or {})
        if row["error"] != CUT_VALUES and row["frame_type"] != "body" and row["arguments"]:
            assert row["arguments"] == full["arguments"]
    assert partial or snaplen == 230


@pytest.mark.parametrize("name", NAMES)
def test_every_frame_that_begins_a_packet_is_there(name: str, tmp_path: Path) -> None:
    """Where a packet begins with a frame, and 40 bytes and more of it were captured: what method or class it is."""
    rows = {(row["connection_id"], row["sender"], row["stream_offset"]) for row in cut_frames(tmp_path, name, 160)}
    ends: dict[tuple[int, str], int] = {}
    missing = []
    for row in sorted(uncut_frames(name), key=lambda row: (row["connection_id"], row["sender"], row["stream_offset"])):
        side = row["connection_id"], row["sender"]
        begins = row["first_packet_no"] > ends.get(side, 0)
        ends[side] = row["packet_no"]
        # a body of its own packet may go on in the next, which nobody can tell from chance
        sure = row["frame_type"] not in SPANS | {"body"}
        if begins and sure and (*side, row["stream_offset"]) not in rows:
            missing.append(row)
    assert [row["name"] for row in missing] == []


# Eight bytes of a packet are the header of its first frame, which suffices where the capture has a protocol header
# (with a snaplen of 96, IPv6 leaves ten). Twelve include the method, which is needed where it begins later.
FIRST_BYTES = {
    "091_declare_publish_consume_ack.pcap": 8,
    "08_amqplib_session.pcap": 8,
    "010_cpp_send_receive.pcap": 8,
    "10_qpidd_proton_send_receive.pcap": 8,
    "091_mid_stream.pcap": 12,
    "010_mid_stream.pcap": 12,
    "10_mid_stream.pcap": 12,
}
HEADERS_BELOW = 14 + 20 + 32  # Ethernet, IPv4, TCP with timestamps


@pytest.mark.parametrize("name", FIRST_BYTES)
def test_the_first_bytes_of_packets_show_which_frames_begin_them(name: str, tmp_path: Path) -> None:
    rows = cut_frames(tmp_path, name, HEADERS_BELOW + FIRST_BYTES[name])
    found = {(row["first_packet_no"], row["size"], row["channel"]) for row in rows if row["frame_type"] not in SPANS}
    expected = set()
    lines = gzip.decompress((golden.CAPTURES / f"{name}.frames.jsonl.gz").read_bytes()).splitlines()
    for frame in map(json.loads, lines):
        channel = next((node["s"] for node in frame["f"] if node["n"] == "amqp.channel"), None)
        if frame["i"] == 1 and frame["size"] < 1448:
            expected.add((frame["frame"], frame["size"], None if channel is None else int(channel)))
    assert len(expected) > 20
    assert expected <= found


# ---- what became of messages ----------------------------------------------------------------------------------------


def cut_table(folder: Path, name: str) -> pa.RecordBatch:
    path = folder / name
    path.write_bytes(cut((golden.CAPTURES / name).read_bytes(), SNAPLEN))
    table = decoding.decode_table(decoding.in_flow_order(decoding.runs([path])))
    (batch,) = table.filter(pc.equal(table["kind"], "frame")).combine_chunks().to_batches()
    return batch


def test_a_disposition_whose_end_is_missing_settles_nothing(tmp_path: Path) -> None:
    """`first` and `last` of four are there, `settled` and `state` are not."""
    frames = cut_table(tmp_path, "10_qpidd_transactions.pcap")
    found = performatives(FrameBatch(frames), Numbers([""]))
    assert found is not None
    rows = found.rows()
    own = frames.take(pa.array(found.at))
    cut_ones = np.array([error == CUT_VALUES for error in own["error"].to_pylist()])
    dispositions = cut_ones & np.array([name == "disposition" for name in own["name"].to_pylist()])
    arguments = decoding.variants(pa.chunked_array([own["arguments"]]))
    assert [arguments[i] for i in np.flatnonzero(dispositions)][:1] == [{"first": 1, "last": 4, "role": True}]
    assert dispositions.sum() == 4
    assert not rows.readable[cut_ones].any()
    assert (rows.range_at[1:] == rows.range_at[:-1])[cut_ones].all()
    assert rows.hides[dispositions].all()


def test_an_acknowledgement_whose_end_is_missing_settles_nothing() -> None:
    """0-9-1: `multiple` is in the last byte of the method: 01 0001 0000000d 003c0050 0000000000000007 | 01 ce"""
    wire = Wire()
    wire.add(CLIENT, protocol_header("0-9-1"))
    wire.add(SERVER, method("0-9-1", "basic.ack", delivery_tag=7, multiple=True), captured=19)
    wire.add(SERVER, method("0-9-1", "basic.ack", delivery_tag=8, multiple=True))
    rows, _ = wire.rows()
    acks = [row for row in rows if row["name"] == "basic.ack"]
    assert [row["arguments"] for row in acks] == [{"delivery_tag": 7}, {"delivery_tag": 8, "multiple": True}]
    assert [row["error"] for row in acks] == [CUT_VALUES, None]
    batch = pa.RecordBatch.from_pydict({name: [row[name] for row in acks] for name in ("status", "error")})
    assert FrameBatch(batch).cut.tolist() == [True, False]
