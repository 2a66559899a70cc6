"""What a cut to be shared still shows: lengths, headers, methods, right checksums; no body, no secret, no address."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pika.spec
import pytest
from cut_support import CAPTURES, NEEDS_TSHARK, Tables, cut, fields, records, rightly_summed, tables_of
from encapsulations import MACS
from pcap_files import pcap
from pika_frames import method
from scapy.layers.inet import IP, fragment
from scapy.layers.l2 import Ether
from uris import SECRET, URI, VERSIONS, frames_of
from wire import CLIENT, SERVER, Wire, write_capture

from codec.pseudonyms import key_of
from pipeline.extract import Choice

KEY = key_of(b"a passphrase")
BARE, BARE_6 = CAPTURES / "091_confirms_and_return.pcap", CAPTURES / "091_ipv6.pcapng"
# All versions; bodies of many frames, in tiny segments, out of order, sent twice, cut off, lost; sequence numbers that
# wrap; a stream that begins in the middle of a body; loopback, cooked and raw links; IPv6.
EVERY = [
    "08_amqplib_session.pcap", "09_qpid_client.pcap", "091_confirms_and_return.pcap", "091_ipv6.pcapng",
    "091_big_message_many_bodies.pcap", "091_tiny_segments.pcap", "091_reorder_dup_overlap.pcap",
    "091_snaplen96.pcap", "091_loss.pcap", "091_seq_wrap.pcap", "091_mid_frame.pcap", "091_sll2_any.pcap",
    "091_bsd_loopback.pcap", "091_raw_ip.pcap", "091_bad_password.pcap", "010_auth.pcap", "010_big_message.pcap",
    "010_tiny_segments.pcap", "10_qpidd_all_types.pcap", "10_rabbitmq_multi_frame_transfer.pcap",
    "10_tiny_segments.pcap", "10_rabbitmq_bad_auth.pcap",
]  # fmt: skip
TORN = ("091_loss.pcap", "091_mid_frame.pcap", "091_snaplen96.pcap")  # of their torn frames the headers stay
WINDOW = 8  # bytes of a body that must not be found


def readable(tables: Tables) -> set[bytes]:
    """Stretches of all bodies: what somebody would look for."""
    found = set()
    for row in tables.frames():
        payload = row["payload"] or b""
        last = max(0, len(payload) - WINDOW)
        for at in (*range(0, last, 3), last):
            part = payload[at : at + WINDOW]
            if len(set(part)) > 3:
                found.add(part)
    return found


def passwords(path: Path) -> set[bytes]:
    """SASL PLAIN responses and the passwords of the captures' clients, as pika, proton and qpid write them."""
    wire_bytes = b"".join(data for _, _, data in records(path))
    known = [b"\0guest\0guest", b"\0guest\0wrong", b"PASSWORDS\0\0\0\x05guest"]
    return {secret for secret in known if secret in wire_bytes}


@pytest.mark.parametrize("name", EVERY)
def test_bodies_and_secrets_are_gone_and_lengths_stay(name: str, tmp_path: Path) -> None:
    tables = tables_of([CAPTURES / name])
    cut(tables, Choice(set(tables.ids)), tmp_path / "whole.pcapng")
    cut(tables, Choice(set(tables.ids)), tmp_path / "cut.pcapng", redact=True)
    before, after = records(tmp_path / "whole.pcapng"), records(tmp_path / "cut.pcapng")
    assert [(ts, link, len(data)) for ts, link, data in after] == [(ts, link, len(data)) for ts, link, data in before]
    wire_bytes = (tmp_path / "cut.pcapng").read_bytes()
    assert [part for part in readable(tables) if part in wire_bytes] == []
    assert [part for part in passwords(CAPTURES / name) if part in wire_bytes] == []
    after_all = tables_of([tmp_path / "cut.pcapng"]).frames()
    bodies = [row["payload"] for row in after_all if row["frame_type"] == "body" and row["status"] == "ok"]
    assert [body for body in bodies if body.strip(b"*")] == []
    # facts about the frames stay: the same rows as before, but for bodies and users
    columns = ["frame_no", "sender", "stream_offset", "size", "version", "channel", "frame_type", "name", "ts_ns"]
    if all(row["status"] == "ok" for row in tables.frames()):
        found, expected = (
            [[row[column] for column in columns] for row in each] for each in (after_all, tables.frames())
        )
        assert found == expected


def test_the_originals_have_bodies_and_passwords_to_look_for() -> None:
    assert sum(len(readable(tables_of([CAPTURES / name]))) for name in EVERY[:5]) > 100
    assert sum(len(passwords(CAPTURES / name)) for name in EVERY) > 10


@NEEDS_TSHARK
@pytest.mark.parametrize("name", [name for name in EVERY[::2] if name not in TORN])
def test_tshark_dissects_the_same_with_checksums_as_right_as_before(name: str, tmp_path: Path) -> None:
    tables = tables_of([CAPTURES / name])
    cut(tables, Choice(set(tables.ids)), tmp_path / "whole.pcapng")
    cut(tables, Choice(set(tables.ids)), tmp_path / "cut.pcapng", redact=True, key=KEY)
    columns = ["frame.time_epoch", "frame.len", "tcp.seq_raw", "tcp.nxtseq", "_ws.col.Info"]
    columns += ["tcp.checksum.status", "ip.checksum.status"]
    assert fields(tmp_path / "cut.pcapng", *columns) == fields(tmp_path / "whole.pcapng", *columns)


@NEEDS_TSHARK
def test_a_redacted_transfer_is_one_data_section(tmp_path: Path) -> None:
    tables = tables_of([CAPTURES / "10_rabbitmq_multi_frame_transfer.pcap"])
    cut(tables, Choice(set(tables.ids)), tmp_path / "cut.pcapng", redact=True)
    assert fields(tmp_path / "cut.pcapng", "frame.number", only="_ws.malformed") == []
    for row, again in zip(
        tables.frames("transfer"), tables_of([tmp_path / "cut.pcapng"]).frames("transfer"), strict=True
    ):
        size = row["payload_size"]
        assert len(again["payload"]) == size
        # 1.0 part 3 section 3.2.6: descriptor 0x75, then vbin32 (0xb0) or vbin8 (0xa0) with the length
        head = b"\0Su\xb0" + (size - 8).to_bytes(4, "big") if size >= 8 else b"\0Su\xa0" + bytes([size - 5])
        assert again["payload"] == head + b"*" * (size - len(head))


def in_pieces(path: Path) -> Tables:
    """Write a capture of datagrams in pieces; its tables."""
    rng, packets = random.Random(3), []
    for number, (ns, data) in enumerate(rightly_summed(BARE, 60)):
        packet = Ether(data)
        packet[IP].id = number + 1
        parts = [(ns, bytes(Ether(**MACS) / part)) for part in fragment(packet[IP], fragsize=40)]
        rng.shuffle(parts)
        packets += parts
    path.write_bytes(pcap(packets))
    return tables_of([path])


# Sizes of headers of the PROXY protocol: the shortest line, a usual one, the longest; binary ones with addresses, and
# with so many TLVs that no line is as long.
LINES = [b"PROXY UNKNOWN", b"PROXY TCP4 192.168.0.1 192.168.0.11 56324 5672", b"PROXY UNKNOWN".ljust(105, b"f")]
SIGNATURE = bytes.fromhex("0d0a0d0a000d0a515549540a")
ADDRESSES = bytes.fromhex("c0a80001 c0a8000b dc04 1628")
PROXY_HEADERS = [
    *(line + b"\r\n" for line in LINES),
    SIGNATURE + bytes.fromhex("2111 000c") + ADDRESSES,
    SIGNATURE + bytes.fromhex("2111 0113") + ADDRESSES + bytes.fromhex("04 0104") + b"t" * 260,
]


@pytest.mark.parametrize("header", PROXY_HEADERS)
def test_a_header_of_the_proxy_protocol_loses_its_addresses_and_is_still_one(header: bytes, tmp_path: Path) -> None:
    wire = Wire()
    wire.add(CLIENT, header)
    wire.add(CLIENT, bytes.fromhex("414d5150 00000901") + method(pika.spec.Connection.TuneOk(0, 131072, 60), 0))
    wire.add(SERVER, b"")
    write_capture(tmp_path / "whole.pcap", [wire])
    tables = tables_of([tmp_path / "whole.pcap"])
    cut(tables, Choice(set(tables.ids)), tmp_path / "cut.pcapng", redact=True)
    data = (tmp_path / "cut.pcapng").read_bytes()
    assert [part for part in (ADDRESSES, b"192.168", b"ttt", b"fff") if part in data] == []
    columns = ["frame_no", "sender", "stream_offset", "size", "frame_type", "name", "status", "error"]
    before, after = tables.frames(), tables_of([tmp_path / "cut.pcapng"]).frames()
    assert len(before) == 3
    assert [[row[name] for name in columns] for row in after] == [[row[name] for name in columns] for row in before]


def test_fragments_come_along_and_are_blanked(tmp_path: Path) -> None:
    tables = in_pieces(tmp_path / "fragmented.pcap")
    cut(tables, Choice(set(tables.ids)), tmp_path / "whole.pcapng")
    assert records(tmp_path / "whole.pcapng") == records(tmp_path / "fragmented.pcap")
    result = cut(tables, Choice(set(tables.ids)), tmp_path / "cut.pcapng", redact=True, key=KEY)
    assert result.blanked > 20
    data = (tmp_path / "cut.pcapng").read_bytes()
    assert [part for part in readable(tables_of([BARE])) if part in data] == []
    assert b"guest" not in data


@NEEDS_TSHARK
@pytest.mark.parametrize("how", [{"redact": True}, {"key": KEY}, {"redact": True, "key": KEY}])
def test_fragments_are_put_together_to_packets_with_right_checksums(how: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "fragmented.pcap"
    tables = in_pieces(path)
    cut(tables, Choice(set(tables.ids)), tmp_path / "cut.pcapng", **how)
    columns = ["frame.number", "tcp.seq_raw", "tcp.len", "tcp.checksum.status", "ip.checksum.status"]
    before, after = (fields(each, *columns, only="tcp") for each in (path, tmp_path / "cut.pcapng"))
    assert after == before
    assert {each[3] for each in after} == {"1"}  # good


def test_copies_that_differ_are_blanked(tmp_path: Path) -> None:
    """A second copy of a packet with other bytes at the place of a method: nobody vouches for it."""
    packets = rightly_summed(BARE, 60)
    index = next(i for i, (_, data) in enumerate(packets) if b"no.such.queue" in data)
    packets.insert(index + 1, (packets[index][0], packets[index][1].replace(b"no.such.queue", b"my.secret.is.")))
    (tmp_path / "copies.pcap").write_bytes(pcap(packets))
    tables = tables_of([tmp_path / "copies.pcap"])
    assert tables.rows["connections"][0]["conflicting_overlap_bytes"] > 0
    result = cut(tables, Choice(set(tables.ids)), tmp_path / "cut.pcapng", redact=True)
    wire_bytes = (tmp_path / "cut.pcapng").read_bytes()
    assert b"my.secret.is." not in wire_bytes
    assert b"no.such.queue" in wire_bytes
    assert result.blanked >= 1


def test_padding_behind_a_packet_is_blanked(tmp_path: Path) -> None:
    """A frame shorter than 60 bytes is filled up, by bad drivers with what was in memory."""
    packets = [(ns, data + b"remembered" if len(data) < 70 else data) for ns, data in rightly_summed(BARE, 12)]
    (tmp_path / "padded.pcap").write_bytes(pcap(packets))
    tables = tables_of([tmp_path / "padded.pcap"])
    cut(tables, Choice(set(tables.ids)), tmp_path / "cut.pcapng", redact=True)
    assert b"remembered" not in (tmp_path / "cut.pcapng").read_bytes()
    assert [len(data) for _, _, data in records(tmp_path / "cut.pcapng")] == [len(data) for _, data in packets]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_password_in_a_uri_is_gone(version: str, tmp_path: Path) -> None:
    """In frames of any size, cut into packets anywhere."""
    wire = Wire()
    for side, wire_bytes in frames_of(version, URI):
        for at in range(0, len(wire_bytes), 37):
            wire.add(side, wire_bytes[at : at + 37])
    write_capture(tmp_path / "whole.pcap", [wire])
    assert SECRET.encode() in b"".join(data[40:] for _, _, data in records(tmp_path / "whole.pcap"))
    tables = tables_of([tmp_path / "whole.pcap"])
    cut(tables, Choice(set(tables.ids)), tmp_path / "cut.pcapng", redact=True)
    payloads = b"".join(data[40:] for _, _, data in records(tmp_path / "cut.pcapng"))
    assert [part for part in (SECRET, SECRET[:5], SECRET[5:]) if part.encode() in payloads] == []
    assert payloads.count(b"AMQP") >= 1
