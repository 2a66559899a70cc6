"""Table stalls, of TCP, in a connection by scapy: what Wireshark's analysis says of the same packets is beside each
step (TShark 4, `-Y tcp.analysis.flags`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from local_rows import check_pieces, tables_of_captures
from scapy.layers.inet import IP, TCP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Ether
from scapy.packet import Packet, Raw
from scapy.utils import wrpcap

MS = 0.001
HEARTBEAT = b"\x08\0\0\0\0\0\0\xce"
STARTED = 1_700_000_000


class Talk:
    """A connection of client 'c' and server 's'; the round trip takes 0.4 ms. Addresses and identifications as hosts
    of IPv4 or IPv6 write them."""

    def __init__(self, version: int) -> None:
        self.version, self.now, self.packets = version, 0.0, list[Packet]()
        self.seq, self.ids = {"c": 1000, "s": 5000}, {"c": 100, "s": 7000}
        self.send("c", flags="S").wait(0.2).send("s", flags="SA").wait(0.2).send("c")
        self.wait(1).send("c", b"AMQP\0\0\x09\x01").wait(0.2).send("s")

    def wait(self, ms: float) -> Talk:
        self.now += ms * MS
        return self

    def packet(self, who: str, data: bytes, flags: str, window: int, seq: int | None, ack: int | None) -> Packet:
        other = "s" if who == "c" else "c"
        self.ids[who] += 1
        ends: dict[str, Any] = {"src": f"10.0.0.{1 + (who == 's')}", "dst": f"10.0.0.{1 + (who == 'c')}"}
        network: Any = IP(**ends, id=self.ids[who])
        if self.version == 6:
            addresses: dict[str, Any] = {end: f"fd00::{address[-1]}" for end, address in ends.items()}
            network = IPv6(**addresses)
        ports: dict[str, Any] = {"sport": 40000, "dport": 5672} if who == "c" else {"sport": 5672, "dport": 40000}
        numbers: dict[str, Any] = {"seq": seq or self.seq[who], "ack": ack or self.seq[other]}
        clock = [("NOP", None), ("NOP", None), ("Timestamp", (int(self.now * 1000) + 1, 0))]
        if flags == "S":
            numbers["ack"] = 0
        if seq is None:
            self.seq[who] += len(data) + ("S" in flags or "F" in flags)
        tcp = TCP(**ports, **numbers, flags=flags, window=window, options=clock)
        packet: Packet = Ether(src="02:00:00:00:00:01", dst="02:00:00:00:00:02") / network / tcp / Raw(data)
        return packet

    def send(
        self, who: str, data: bytes = b"", flags: str = "A", window: int = 65535, seq: int | None = None,
        ack: int | None = None,
    ) -> Talk:  # fmt: skip
        return self.captured(self.packet(who, data, flags, window, seq, ack))

    def captured(self, packet: Packet) -> Talk:
        packet.time = STARTED + self.now
        self.packets.append(packet)
        return self

    def lose(self, who: str, data: bytes) -> Packet:
        """A packet that is not captured."""
        return self.packet(who, data, "A", 65535, None, None)


def talk(version: int) -> list[Packet]:
    t = Talk(version)
    # Packet 7 closes the window of the server: tcp.analysis.zero_window.
    t.wait(1).send("c", HEARTBEAT * 100).wait(0.2).send("s", window=0).wait(80).send("s", window=5000).wait(5)
    # Packet 9 is not acknowledged; 10 and 11 are tcp.analysis.retransmission.
    first = t.seq["c"]
    t.send("c", HEARTBEAT * 50).wait(200).send("c", HEARTBEAT * 50, seq=first)
    t.wait(400).send("c", HEARTBEAT * 50, seq=first).wait(0.2).send("s").wait(50)
    # A segment is lost before the capture; packet 13 comes after it, 15 is tcp.analysis.retransmission.
    lost = t.seq["c"]
    t.lose("c", HEARTBEAT * 60)
    t.send("c", HEARTBEAT * 60).wait(0.1).send("s", ack=lost).wait(30).send("c", HEARTBEAT * 60, seq=lost)
    t.wait(0.1).send("s").wait(50)
    # Packet 18 is packet 17, captured once more after 25 ms; Wireshark takes it for tcp.analysis.retransmission.
    t.send("c", HEARTBEAT * 7).wait(25).captured(t.packets[-1].copy()).wait(0.1).send("s").wait(50)
    # Packet 21 was overtaken by 20: tcp.analysis.out_of_order.
    overtaken = t.lose("c", HEARTBEAT * 10)
    t.send("c", HEARTBEAT * 10).wait(0.1).captured(overtaken).wait(0.1).send("s").wait(50)
    # Packet 23 is acknowledged after 40 ms by 24, then 25 follows at once: Nagle's algorithm.
    t.send("c", HEARTBEAT).wait(40).send("s").wait(0.1).send("c", HEARTBEAT * 2).wait(0.2).send("s").wait(50)
    # The next one waited for an answer, not for an acknowledgement.
    t.send("c", HEARTBEAT).wait(40).send("s", HEARTBEAT).wait(0.1).send("c", HEARTBEAT * 2).wait(0.2).send("s")
    return t.wait(20).send("c", flags="FA").send("s", flags="FA").send("c").packets


@pytest.fixture(scope="module", params=[4, 6])
def capture(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tcp") / f"ipv{request.param}.pcap"
    wrpcap(str(path), talk(request.param))
    return path


def stalls(capture: Path) -> list[dict[str, Any]]:
    return sorted(tables_of_captures([capture])["stalls"], key=lambda row: row["from_ns"])


def test_stalls_are_those_that_wireshark_sees_but_no_copies(capture: Path) -> None:
    rows = stalls(capture)
    # The second retransmission ends the stall that the first one would.
    assert [(row["kind"], row["packet_no"], row["bytes"]) for row in rows] == [
        ("zero-window", 7, None),
        ("retransmission", 9, 2 * 50 * 8),
        ("retransmission", 13, 60 * 8),
        ("nagle", 23, 2 * 8),
    ]
    us = [round(row["stall_ns"] / 1000) for row in rows]
    assert us == pytest.approx([80_000, 600_000, 30_100, 40_100], abs=1)
    assert {(row["side"], row["resumed"]) for row in rows} == {("client", True)}


def test_the_packets_are_those_of_the_capture(capture: Path) -> None:
    assert all(row["frame_no"] is None and row["capture_file"].endswith(capture.name) for row in stalls(capture))


def test_stalls_of_tcp_are_the_same_in_pieces(capture: Path) -> None:
    if capture.name == "ipv4.pcap":
        check_pieces(capture)
