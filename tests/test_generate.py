"""The generated benchmark capture is sound traffic to the second reader: whole streams, frames to the last byte."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import independent_tcp as tcp
import pytest

from benchmarks.generate import SEGMENT_BYTES, generate


@pytest.fixture(scope="module")
def traffic(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("generated") / "traffic.pcap"
    generate(path, 500_000, seed=3, connections=4)
    return path


def test_equal_arguments_give_equal_bytes(traffic: Path, tmp_path: Path) -> None:
    generate(tmp_path / "again.pcap", 500_000, seed=3, connections=4)
    assert (tmp_path / "again.pcap").read_bytes() == traffic.read_bytes()
    generate(tmp_path / "other.pcap", 500_000, seed=4, connections=4)
    assert (tmp_path / "other.pcap").read_bytes() != traffic.read_bytes()


def test_size_is_about_what_was_asked_for(traffic: Path) -> None:
    assert 0.9 < traffic.stat().st_size / 500_000 < 1.1


def test_streams_are_whole_and_frames_to_the_last_byte(traffic: Path) -> None:
    talks = tcp.connections(tcp.packets([traffic]))
    assert len(talks) == 4
    kinds: Counter[int | str] = Counter()
    for talk in talks:
        assert talk.whole
        for half in talk.halves.values():
            assert half.fin_at == len(half.data)
            frames, left = tcp.plain_frames(half)
            assert left == 0
            kinds.update(frame.kind for frame in frames)
    assert kinds["AMQP"] == 4
    assert kinds[2] == kinds[3] > 100


def test_packets_come_in_time_order_and_acknowledge_only_what_was_sent(traffic: Path) -> None:
    packets = tcp.packets([traffic])
    times = [packet.ts_ns for packet in packets]
    assert times == sorted(times)
    assert max(packet.wire_len for packet in packets) == SEGMENT_BYTES
    sent: dict[tuple[tcp.Endpoint, tcp.Endpoint], int] = {}
    for packet in packets:
        there, back = (packet.source, packet.target), (packet.target, packet.source)
        assert sent.get(there, packet.seq) == packet.seq
        sent[there] = (packet.seq + packet.wire_len + bool(packet.flags & (tcp.SYN | tcp.FIN))) % 2**32
        if packet.flags & tcp.ACK:
            assert packet.ack == sent[back]
