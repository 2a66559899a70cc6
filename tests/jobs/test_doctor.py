"""`wirehare doctor`: what a machine and a capture lack. Damaged captures are made with scapy, or of bytes as the pcapng
specification has them."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import golden
import pytest
from scapy.layers.inet import IP, TCP, UDP
from scapy.layers.l2 import Ether
from scapy.packet import Packet, Raw
from scapy.utils import rdpcap, wrpcap

from jobs.cli import main
from pipeline import diagnosis as doctor

HANDSHAKE = golden.CAPTURES / "091_handshake_ok.pcap"
Lines = list[tuple[str, str]]  # state, rest of the line


@pytest.fixture
def lines(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, Lines]]:
    """Runs the command on a capture: its exit code, and its lines about the capture."""
    monkeypatch.setattr(doctor, "machine", lambda _: [])

    def run(capture: Path, *options: str) -> tuple[int, Lines]:
        code = main(["doctor", str(capture), *options])
        printed = capsys.readouterr().out.splitlines()
        return code, [(line[:8].strip(), line[9:]) for line in printed]

    return run


def problems(found: Lines) -> list[str]:
    return [line for state, line in found if state == "problem"]


def tcp(sport: int, dport: int, flags: str, payload: bytes = b"", seq: int = 1, ack: int = 0) -> Packet:
    sides = [("10.0.0.1", sport), ("10.0.0.2", dport)]
    (source, _), (target, _) = sides if dport < sport else sides[::-1]
    result = (
        Ether()
        / IP(src=source, dst=target)
        / TCP(sport=sport, dport=dport, flags=flags, seq=seq, ack=ack)
        / Raw(payload)
    )
    result.time = 1_700_000_000
    return result


def written(directory: Path, packets: list[Packet]) -> Path:
    path = directory / "made.pcap"
    wrpcap(str(path), packets)
    return path


def test_a_whole_capture_has_no_problem(lines: Callable[..., tuple[int, Lines]]) -> None:
    code, found = lines(HANDSHAKE)
    assert (code, {state for state, _ in found}) == (0, {"ok"})
    assert any(line == "AMQP: in 1 of 1 connection" for _, line in found)


def test_a_short_snap_length_and_its_remedy(lines: Callable[..., tuple[int, Lines]]) -> None:
    code, found = lines(golden.CAPTURES / "091_snaplen96.pcap")
    (line,) = problems(found)  # the ends of packets are no loss
    assert code == 1
    assert line.startswith("CAP-04")
    assert "tcpdump -s 0" in line


def test_loss_and_a_beginning_mid_stream(lines: Callable[..., tuple[int, Lines]]) -> None:
    assert [line[:6] for line in problems(lines(golden.CAPTURES / "091_loss.pcap")[1])] == ["CAP-01"]
    code, found = lines(golden.CAPTURES / "091_mid_stream.pcap")
    assert code == 0
    assert [line[:6] for state, line in found if state == "note"] == ["CAP-02"]


def test_encrypted_connections(lines: Callable[..., tuple[int, Lines]]) -> None:
    capture = golden.CAPTURES / "091_tls13.pcap"
    (line,) = problems(lines(capture)[1])
    assert line.startswith("TLS: 1 of 1 TLS connection encrypted: no secrets 1 -> give the secrets: --keylog")
    (line,) = problems(lines(capture, "--keylog", str(golden.CAPTURES / "091_tls12.keylog.txt"))[1])
    assert line.startswith("key log: matches none of 1 TLS connection")
    code, found = lines(capture, "--keylog", str(golden.CAPTURES / "091_tls13.keylog.txt"))
    assert code == 0
    assert ("ok", "TLS: 1 TLS connection, decrypted") in found


def test_one_direction_only(lines: Callable[..., tuple[int, Lines]], tmp_path: Path) -> None:
    packets = [packet for packet in rdpcap(str(HANDSHAKE)) if packet[TCP].dport == 5672]
    assert [line[:6] for line in problems(lines(written(tmp_path, packets))[1])] == ["CAP-03"]


def test_a_clock_that_was_set_back(lines: Callable[..., tuple[int, Lines]], tmp_path: Path) -> None:
    packets = list(rdpcap(str(HANDSHAKE)))
    for packet in packets[5:]:
        packet.time -= 3600
    (line,) = problems(lines(written(tmp_path, packets))[1])
    assert line.startswith("made.pcap: times go back 1 times, by up to 36")


def test_segments_that_the_network_card_cuts(lines: Callable[..., tuple[int, Lines]], tmp_path: Path) -> None:
    """54 bytes of headers and 20000 of payload: 19.6 KB of 1024 bytes."""
    packets = [*rdpcap(str(HANDSHAKE)), tcp(50000, 80, "S"), tcp(50000, 80, "PA", bytes(20000), 2)]
    _, found = lines(written(tmp_path, packets))
    (line,) = (line for state, line in found if state == "note")
    assert line.startswith("made.pcap: 1 packet larger than any Ethernet frame, up to 19.6 KB")


def test_no_amqp(lines: Callable[..., tuple[int, Lines]], tmp_path: Path) -> None:
    request = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
    web = [tcp(50000, 80, "S"), tcp(80, 50000, "SA", ack=2), tcp(50000, 80, "PA", request, 2, 2)]
    (line,) = problems(lines(written(tmp_path, web))[1])
    assert line.startswith("AMQP: none in 1 connection; most to port 80 -> capture the port of the broker")
    datagram = Ether() / IP() / UDP(dport=53) / Raw(b"a")
    (line,) = problems(lines(written(tmp_path, [datagram]))[1])
    assert line.startswith("AMQP: none, and no TCP connection; packets: udp 1")


def test_packets_that_the_capturing_machine_lost(lines: Callable[..., tuple[int, Lines]], tmp_path: Path) -> None:
    """An interface statistics block (type 5) of interface 0 with option isb_ifdrop (5): 7."""
    options = struct.pack("<HHQHH", 5, 8, 7, 0, 0)
    size = 12 + 12 + len(options)
    block = struct.pack("<IIIII", 5, size, 0, 0, 0) + options + struct.pack("<I", size)
    path = tmp_path / "drops.pcapng"
    path.write_bytes((golden.CAPTURES / "091_ipv6.pcapng").read_bytes() + block)
    (line,) = problems(lines(path)[1])
    assert line.startswith("drops.pcapng: the capturing machine lost 7 packets -> enlarge its buffer")


def test_what_a_machine_lacks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemTotal: 4000000 kB\nMemAvailable:  100000 kB\n")
    (tmp_path / "mounts").write_text("a / ext4 rw 0 0\nserver:/a /data nfs4 rw 0 0\nb /database tmpfs rw 0 0\n")
    monkeypatch.setattr(doctor, "MEMORY_FACTS", tmp_path / "meminfo")
    monkeypatch.setattr(doctor, "MOUNTS", tmp_path / "mounts")
    monkeypatch.setattr(doctor, "PACKAGES", ("numpy", "no-such-package"))
    monkeypatch.setattr("codec.compiler.kernel.all_compiled", lambda: False)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    found = {check.about: check for check in doctor.machine("compile them")}
    assert {about: check.state for about, check in found.items() if check.state != "ok"} == {
        "packages": "problem",
        "kernels": "problem",
        "Java": "note",
        "memory": "problem",
    } | ({"temporary files": "note"} if found["temporary files"].state == "note" else {})
    assert found["kernels"].remedy.startswith("compile them")
    assert "apt install" in found["Java"].remedy
    assert doctor.file_system("/data/x") == "nfs4"
    assert doctor.file_system("/database") == "tmpfs"


def test_an_unknown_path_is_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["doctor", str(tmp_path / "nosuch.pcap")]) == 2
    assert "nosuch.pcap" in capsys.readouterr().err
