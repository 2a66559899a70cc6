"""A cut of a connection inside TLS or WebSocket: all its packets, its secrets only where they are asked for, or the
same connection in clear."""

from __future__ import annotations

import base64
import tempfile
from pathlib import Path

import independent_tcp
import pytest
from cut_support import CAPTURES, NEEDS_TSHARK, cut, fields, records, tables_of
from scapy.layers.inet import IP
from test_cut_anonymised import KEY, addresses
from test_cut_redacted import readable
from test_tls import conversation
from test_websocket import upgraded
from tls_peers import Peers, wire_of
from wire import write_capture

from codec.capture.pcapng import SecretsWalker
from jobs.cli import main
from pipeline.extract import Choice, CutError
from udfs.decode.key_logs import SecretFiles

LOG = CAPTURES / "091_tls13.keylog.txt"


@pytest.mark.parametrize("redact", [False, True])
def test_a_frame_of_a_decrypted_connection_takes_its_connection_along(tmp_path: Path, redact: bool) -> None:
    path = CAPTURES / "091_tls13_dsb.pcapng"
    tables = tables_of([path], SecretFiles((), (str(path),)))
    publish = tables.frames("basic.publish")[0]
    cut(
        tables, Choice(frames={(publish["connection_id"], publish["frame_no"])}), tmp_path / "cut.pcapng", redact=redact
    )
    assert records(tmp_path / "cut.pcapng") == records(path)  # what is encrypted is nobody's to read
    data = (tmp_path / "cut.pcapng").read_bytes()
    for line in LOG.read_text().splitlines():
        if not line.startswith("#"):
            secret = bytes.fromhex(line.split()[2])
            assert not any(form in data for form in (secret, secret.hex().encode(), base64.b64encode(secret)))


def test_the_payload_of_websocket_is_blanked_when_it_is_redacted(tmp_path: Path) -> None:
    path = tmp_path / "websocket.pcap"
    write_capture(path, [wire_of(upgraded(conversation()[0]))])
    tables = tables_of([path])
    (connection,) = tables.ids
    publish = tables.frames("basic.publish")[0]
    cut(tables, Choice(frames={(connection, publish["frame_no"])}), tmp_path / "cut.pcapng")
    assert [data for _, _, data in records(tmp_path / "cut.pcapng")] == [data for _, _, data in records(path)]
    cut(tables, Choice({connection}), tmp_path / "redacted.pcapng", redact=True)
    packets = independent_tcp.packets([tmp_path / "redacted.pcapng"])
    assert sum(len(packet.payload) for packet in packets) > 1000
    assert not any(packet.payload.strip(b"*") for packet in packets)


def lines_of(log: bytes) -> list[bytes]:
    """The lines that decrypt."""
    return sorted(line for line in log.splitlines() if line.strip() and not line.startswith((b"#", b"EXPORTER")))


def block_of(path: Path) -> list[bytes]:
    """The lines of the Decryption Secrets Blocks of a capture."""
    import numpy as np

    found, _ = SecretsWalker().walk(np.frombuffer(bytearray(path.read_bytes()), np.uint8))
    return [line for log in found for line in lines_of(log)]


def test_secrets_come_along_where_they_are_asked_for(tmp_path: Path) -> None:
    """Of two connections the block holds the secrets of the one that is cut."""
    peers = [Peers(), Peers()]
    write_capture(tmp_path / "two.pcap", [wire_of(each.exchange(conversation()[0])) for each in peers])
    (tmp_path / "keys.txt").write_bytes(peers[0].key_log + peers[1].key_log)
    tables = tables_of([tmp_path / "two.pcap"])  # nothing was decrypted then
    first, second = tables.ids
    log = (str(tmp_path / "keys.txt"),)
    result = cut(tables, Choice({second}), tmp_path / "cut.pcapng", secrets=True, key_logs=log)
    assert (result.connections, result.problems) == (1, [])
    assert block_of(tmp_path / "cut.pcapng") == lines_of(peers[1].key_log)
    again = tables_of([tmp_path / "cut.pcapng"], SecretFiles((), (str(tmp_path / "cut.pcapng"),)))
    assert [row["tls"]["decrypted"] for row in again.rows["connections"]] == [True]
    cut(tables, Choice({first, second}), tmp_path / "both.pcapng", secrets=True, key_logs=log)
    assert sorted(block_of(tmp_path / "both.pcapng")) == lines_of((tmp_path / "keys.txt").read_bytes())
    none = cut(tables, Choice({first}), tmp_path / "none.pcapng", secrets=True)
    assert none.problems == [f"connection {first}: no secrets (no secrets)"]
    assert block_of(tmp_path / "none.pcapng") == []


@NEEDS_TSHARK
def test_tshark_decrypts_a_cut_with_its_secrets(tmp_path: Path) -> None:
    path = CAPTURES / "091_tls13.pcap"
    tables = tables_of([path])
    cut(tables, Choice(set(tables.ids)), tmp_path / "cut.pcapng", secrets=True, key_logs=(str(LOG),))
    methods = fields(tmp_path / "cut.pcapng", "amqp.method.class", "amqp.method.method", only="amqp")
    assert methods == fields(CAPTURES / "091_tls13_dsb.pcapng", "amqp.method.class", "amqp.method.method", only="amqp")
    assert len(methods) > 20


@NEEDS_TSHARK
@pytest.mark.parametrize("name", ["091_tls12", "091_tls13"])
def test_a_connection_rewritten_in_clear_has_the_frames_that_tshark_decrypts(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, names = CAPTURES / f"{name}_dsb.pcapng", ("amqp.method.class", "amqp.method.method", "amqp.type")
    tables = tables_of([path])
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    result = cut(tables, Choice(set(tables.ids)), tmp_path / "clear.pcapng", decrypted=True)
    assert list(temporary.iterdir()) == []
    assert (result.connections, result.captures, result.problems) == (1, [path.name], [])

    def flat(found: list[list[str]]) -> list[tuple[str, ...]]:
        """Frames one after the other: a packet may have several."""
        return [frame for row in found for frame in zip(*(cell.split(",") for cell in row), strict=False)]

    rewritten = fields(tmp_path / "clear.pcapng", *names, only="amqp")
    assert flat(rewritten) == flat(fields(path, *names, only="amqp"))
    assert fields(tmp_path / "clear.pcapng", "frame.number", only="tls || tcp.checksum.status == 0") == []
    assert not fields(tmp_path / "clear.pcapng", "frame.number", only="tcp.analysis.lost_segment")
    data = (tmp_path / "clear.pcapng").read_bytes()
    for line in block_of(path):
        secret = bytes.fromhex(line.split()[2].decode())
        assert not any(form in data for form in (secret, secret.hex().encode(), base64.b64encode(secret)))


@pytest.mark.parametrize("name", ["091_declare_publish_consume_ack.pcap", "10_rabbitmq_proton_send_receive.pcap"])
def test_rewritten_and_redacted_the_bodies_are_blank_and_the_frames_are_there(tmp_path: Path, name: str) -> None:
    """WebSocket inside TLS; what a redacted cut of the capture in clear shows is what it shows."""
    payloads, peers = conversation(name)[0], Peers()
    write_capture(tmp_path / "wss.pcap", [wire_of(peers.exchange(upgraded(payloads)))])
    write_capture(tmp_path / "clear.pcap", [wire_of(payloads)])
    (tmp_path / "keys.txt").write_bytes(peers.key_log)
    streams = []
    for source, how in (
        ("wss.pcap", {"decrypted": True, "key_logs": (str(tmp_path / "keys.txt"),)}),
        ("clear.pcap", {}),
    ):
        tables = tables_of([tmp_path / source])
        target = tmp_path / f"{source}.pcapng"
        cut(tables, Choice(set(tables.ids)), target, redact=True, **how)
        (row,) = tables_of([target]).rows["connections"]
        assert row["transport"] == "tcp"
        sent: dict[bool, bytes] = {True: b"", False: b""}
        for packet in independent_tcp.packets([target]):
            sent[packet.source[1] == 5672] += packet.payload
        streams.append(sent)
    assert streams[0] == streams[1]
    assert b"*****" in streams[0][False] + streams[0][True]


@NEEDS_TSHARK
@pytest.mark.parametrize(("redact", "key"), [(True, None), (False, KEY), (True, KEY)])
def test_what_is_rewritten_in_clear_can_be_shared(tmp_path: Path, redact: bool, key: bytes | None) -> None:
    """RabbitMQ with pika, py-amqp and proton inside TLS. tshark finds the same frames as without these options, scapy
    the addresses; passwords and bodies, or addresses, are gone; and so is what only the handshake contains."""
    path = CAPTURES / "tls_rabbitmq.pcapng"
    tables = tables_of([path], SecretFiles((), (str(path),)))
    choice = Choice(set(tables.ids))
    rewritten, shared = tmp_path / "rewritten.pcapng", tmp_path / "shared.pcapng"
    cut(tables, choice, rewritten, decrypted=True)
    result = cut(tables, choice, shared, decrypted=True, redact=redact, key=key)
    assert (result.connections, result.problems) == (9, [])
    names = ("frame.time_epoch", "frame.len", "tcp.seq_raw", "amqp.method.class", "amqp.method.method", "amqp.type",
             "amqp.performative", "tcp.checksum.status", "ip.checksum.status")  # fmt: skip
    found = fields(shared, *names)
    assert found == fields(rewritten, *names)
    assert len([row for row in found if row[5]]) > 50
    before, after = rewritten.read_bytes(), shared.read_bytes()
    secret = {part for part in (b"\0guest\0guest", *readable(tables)) if part in before}
    assert b"\0guest\0guest" in secret
    assert len(secret) > 10
    assert {part for part in secret if part in after} == (set() if redact else secret)
    seen = [
        {address for _, _, data in records(each) for address in addresses(IP(data))} for each in (rewritten, shared)
    ]
    assert seen[0] == {"127.0.0.1"}
    assert ("127.0.0.1" in seen[1]) == (key is None)
    handshake = b"mq.example"  # the name that the clients asked for, and of the certificate
    assert handshake in path.read_bytes()
    assert handshake not in after


def test_connections_in_clear_are_cut_with_those_that_are_rewritten(tmp_path: Path) -> None:
    """Of the connection in clear only a message; of the other one everything, though only a frame was chosen."""
    payloads, peers = conversation()[0], Peers()
    write_capture(tmp_path / "two.pcap", [wire_of(peers.exchange(payloads)), wire_of(payloads)])
    (tmp_path / "keys.txt").write_bytes(peers.key_log)
    log = (str(tmp_path / "keys.txt"),)
    tables = tables_of([tmp_path / "two.pcap"], SecretFiles(log))
    frames = tables.frames("basic.publish")
    selected = {(frame["connection_id"], frame["frame_no"]) for frame in frames}
    result = cut(tables, Choice(frames=selected), tmp_path / "cut.pcapng", decrypted=True, key_logs=log)
    assert (result.connections, result.captures) == (2, ["two.pcap"])
    again = tables_of([tmp_path / "cut.pcapng"])
    assert [row["transport"] for row in again.rows["connections"]] == ["tcp", "tcp"]
    counts = [sum(frame["connection_id"] == each for frame in again.frames()) for each in again.ids]
    before = [sum(frame["connection_id"] == each for frame in tables.frames()) for each in tables.ids]
    assert counts[0] == before[0] == before[1]
    assert 0 < counts[1] < before[1]
    times = [ns for ns, *_ in records(tmp_path / "cut.pcapng")]
    assert times == sorted(times)


def test_findings_comment_on_packets_in_clear(tmp_path: Path) -> None:
    path = CAPTURES / "091_tls13_dsb.pcapng"
    tables = tables_of([path])
    (connection,) = tables.ids
    publish = tables_of([path], SecretFiles((), (str(path),))).frames("basic.publish")[0]
    finding = {
        "connection_id": connection, "frame_no": None, "capture_file": publish["capture_file"], "severity": "info",
        "packet_no": publish["packet_no"], "rule_id": "XX-01", "summary": "a publish",
    }  # fmt: skip
    selected = Choice({connection})
    selected.add("findings", tables.arrow("findings", [finding]))
    cut(tables, selected, tmp_path / "clear.pcapng", decrypted=True)
    data = (tmp_path / "clear.pcapng").read_bytes()
    text = f"XX-01 info: a publish (packet {publish['packet_no']} of {path.name})".encode()
    assert data.count(text) == 1


def test_without_secrets_nothing_is_rewritten(tmp_path: Path) -> None:
    tables = tables_of([CAPTURES / "091_tls13.pcap"])
    (connection,) = tables.ids
    with pytest.raises(CutError, match=f"connection {connection}: not decrypted \\(no secrets\\)"):
        cut(tables, Choice({connection}), tmp_path / "clear.pcapng", decrypted=True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--with-secrets", "--redact"], "--with-secrets: secrets show what --redact hides"),
        (["--keylog", str(LOG)], "--keylog: packets are cut as they are"),
        (["--decrypted", "--keylog", "/nowhere/keys.txt"], "no such file"),
    ],
)
def test_bad_usage_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    assert main(["cut", str(tmp_path), "--connection", "1", "-o", str(tmp_path / "x.pcapng"), *options]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "x.pcapng").exists()
