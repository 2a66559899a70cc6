"""Wrong secrets for a client random, which anybody on the wire sees, beside the genuine ones: in key logs, in blocks of
captures, before and after them, of every stage. The connection is decrypted all the same."""

from __future__ import annotations

import re
import ssl
from collections.abc import Callable, Iterable
from functools import cache
from itertools import permutations
from pathlib import Path
from typing import Any

import decoding
import golden
import pytest
from decoder_rows import decode_runs
from test_tls import assert_complete, conversation
from test_tls_carried import in_one_piece, pieces
from tls_forged import Forged, secrets_capture, wrong_lines
from tls_peers import Peers, Sent, wire_of
from wire import CLIENT, Wire, write_capture

from codec.compiler.limits import LIMITS
from codec.layers.stack import Layers
from codec.layers.tls_ciphers import Aead
from codec.layers.tls_handshake import (
    KeyLog,
    Secrets,
    joined_secrets,
    newest,
)
from udfs.decode.key_logs import SecretFiles

TLS12, TLS13 = ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3
CBC = "ECDHE-RSA-AES128-SHA256"


@cache
def connection(
    version: ssl.TLSVersion = TLS13, ciphers: str = "", resumed: bool = False
) -> tuple[list[Sent], list[bytes]]:
    """Flights of a connection made by OpenSSL, and the lines of its key log."""
    peers = Peers(version, ciphers)
    if resumed:
        peers.exchange(conversation()[0])
        peers.session = peers.resumable
    before = len(peers.key_log) if resumed else 0
    flights = peers.exchange(conversation()[0])
    lines = peers.key_log[before:].splitlines(keepends=True)
    return flights, [line for line in lines if not line.startswith(b"#") and line.strip()]


def of_traffic(lines: Iterable[bytes]) -> list[bytes]:
    return [line for line in lines if b"_TRAFFIC_SECRET_0 " in line]


def of_handshake(lines: Iterable[bytes]) -> list[bytes]:
    return [line for line in lines if b"_HANDSHAKE_" in line]


# Lines of a key log, of the genuine ones.
POISONED: dict[str, Callable[[list[bytes]], list[bytes]]] = {
    "wrong ones first": lambda lines: wrong_lines(lines) + lines,
    "wrong ones last": lambda lines: lines + wrong_lines(lines),
    "as many as are tried": lambda lines: (
        [line for number in range(LIMITS.secret_candidates - 1) for line in wrong_lines(lines, number)] + lines
    ),
    "a thousand times the same": lambda lines: wrong_lines(lines) * 20 + lines,
}
OF_TLS13 = {
    "of the handshake, the genuine ones of the traffic alone": lambda lines: (
        of_traffic(lines) + wrong_lines(of_handshake(lines))
    ),
    "of the traffic": lambda lines: wrong_lines(of_traffic(lines)) + lines,
    "of one side": lambda lines: wrong_lines([line for line in lines if line.startswith(b"SERVER")]) + lines,
}


@pytest.mark.parametrize("poisoned", POISONED.values(), ids=POISONED)
@pytest.mark.parametrize(("version", "ciphers"), [(TLS13, ""), (TLS12, ""), (TLS12, CBC)], ids=["1.3", "1.2", "CBC"])
@pytest.mark.parametrize("resumed", [False, True], ids=["new", "resumed"])
def test_the_secrets_that_authenticate_count(
    version: ssl.TLSVersion, ciphers: str, resumed: bool, poisoned: Callable[[list[bytes]], list[bytes]]
) -> None:
    flights, lines = connection(version, ciphers, resumed)
    rows, facts = wire_of(flights).rows(Layers(KeyLog(b"".join(poisoned(lines)))))
    assert_complete(rows, facts)
    assert (facts["tls"]["resumed"], facts["undecoded_reason"], facts["limits"]) == (resumed, None, [])


@pytest.mark.parametrize("poisoned", OF_TLS13.values(), ids=OF_TLS13)
def test_wrong_secrets_of_single_stages(poisoned: Callable[[list[bytes]], list[bytes]]) -> None:
    flights, lines = connection()
    rows, facts = wire_of(flights).rows(Layers(KeyLog(b"".join(poisoned(lines)))))
    assert_complete(rows, facts)
    assert facts["undecoded_reason"] is None


@pytest.mark.parametrize("name", ["tls13_early_data", "tls13_early_data_refused"])
def test_early_data_beside_wrong_secrets(name: str, tmp_path: Path) -> None:
    """The rows are those with the genuine secrets alone, which test_tls_recorded compares with tshark."""
    path = golden.CAPTURES / f"{name}.pcapng"
    lines = [
        found.group() + b"\n" for found in re.finditer(rb"[A-Z_0-9]+ [0-9a-f]{64} [0-9a-f]{64,96}", path.read_bytes())
    ]
    assert any(line.startswith(b"CLIENT_EARLY_TRAFFIC_SECRET") for line in lines)
    (tmp_path / "stranger.pcapng").write_bytes(secrets_capture(wrong_lines(lines)))
    runs = decoding.in_flow_order(decoding.runs([path])).to_batches()
    found = []
    for files in ((str(path),), (str(tmp_path / "stranger.pcapng"), str(path))):
        batches = decode_runs(secrets=SecretFiles((), files))(iter(runs))
        found.append([row for batch in batches for row in batch.to_pylist()])
    assert found[0] == found[1]


def test_the_order_of_the_files_does_not_matter(tmp_path: Path) -> None:
    """Captures with secrets in blocks, a stranger's among them; each file has some hundred wrong ones of its own."""
    flights, lines = connection()
    write_capture(tmp_path / "connection.pcap", [wire_of(flights)])
    wrong = [line for number in range(100) for line in wrong_lines(lines, number)]
    (tmp_path / "genuine.pcapng").write_bytes(secrets_capture(lines))
    (tmp_path / "stranger.pcapng").write_bytes(secrets_capture(wrong))
    names = [str(tmp_path / name) for name in ("connection.pcap", "genuine.pcapng", "stranger.pcapng")]
    runs = decoding.in_flow_order(decoding.runs([Path(names[0])])).to_batches()
    found = []
    for order in permutations(names):
        batches = decode_runs(secrets=SecretFiles((), order))(iter(runs))
        found.append([row for batch in batches for row in batch.to_pylist()])
    assert all(rows == found[0] for rows in found)
    assert sum(row["kind"] == "frame" for row in found[0]) == len(conversation()[1])


@pytest.mark.parametrize("version", [TLS12, TLS13])
@pytest.mark.parametrize("of_label", [b"", b"CLIENT_TRAFFIC", b"SERVER_HANDSHAKE", b"CLIENT_RANDOM"])
def test_blocks_are_read_where_no_secret_of_the_key_logs_authenticates(
    tmp_path: Path, version: ssl.TLSVersion, of_label: bytes
) -> None:
    """The key log has wrong secrets of every label, or of one."""
    flights, lines = connection(version)
    log, genuine = tmp_path / "keys.txt", tmp_path / "genuine.pcapng"
    log.write_bytes(b"".join(line for line in wrong_lines(lines) if line.startswith(of_label)))
    genuine.write_bytes(secrets_capture(lines))
    rows, facts = wire_of(flights).rows(Layers(SecretFiles((str(log),), (str(genuine),)).open()))
    assert_complete(rows, facts)


def test_a_connection_that_began_before_the_capture_beside_wrong_secrets() -> None:
    flights, lines = connection()
    wire = Wire(syn=False)
    for way, data in flights[-40:]:
        wire.add(way, data)
    genuine, poisoned = (
        wire.rows(Layers(KeyLog(b"".join(log)))) for log in (lines, wrong_lines(lines) + wrong_lines(lines, 1) + lines)
    )
    assert genuine == poisoned
    assert genuine[1]["tls"]["decrypted"]


@pytest.mark.parametrize(("version", "ciphers"), [(TLS13, ""), (TLS12, ""), (TLS12, CBC)], ids=["1.3", "1.2", "CBC"])
def test_pieces_beside_wrong_secrets_give_the_rows_of_one_decode(version: ssl.TLSVersion, ciphers: str) -> None:
    """Cut everywhere in the handshake, where no candidate has authenticated yet, and in some of the rest."""
    flights, lines = connection(version, ciphers)
    wire, log = wire_of(flights, 300), KeyLog(b"".join(wrong_lines(lines) + lines))
    rows, facts = in_one_piece(wire, log)
    for cut in (*range(1, 22), 30, 50):
        found, known, _ = pieces(wire, log, [cut])
        assert found.equals(rows), cut
        assert known == facts, cut


@pytest.mark.parametrize("lost", [{13}, {14, 15}, {12, 13, 14, 15, 16}])
def test_a_loss_beside_wrong_secrets(lost: set[int]) -> None:
    flights, lines = connection()
    wire = wire_of(flights, 1 << 16).without(lost)
    genuine, poisoned = (wire.rows(Layers(KeyLog(b"".join(log)))) for log in (lines, wrong_lines(lines) + lines))
    assert genuine == poisoned


def test_wrong_secrets_alone_are_named() -> None:
    """The connection is what it is without secrets, and `undecoded_reason` says why."""
    for version in (TLS12, TLS13):
        flights, lines = connection(version)
        for wrong in (lines, of_traffic(lines) or lines, of_handshake(lines) + of_traffic(lines) or lines):
            rows, facts = wire_of(flights).rows(Layers(KeyLog(b"".join(wrong_lines(wrong)))))
            assert [row["frame_type"] for row in rows] == ["tls", "tls"]
            assert (facts["undecoded_reason"], facts["tls"]["decrypted"]) == ("authentication failed", False)


def test_candidates_are_bounded_and_those_of_all_sources_take_turns() -> None:
    many = [{b"x": tuple(bytes([source, number]) for number in range(100))} for source in range(4)]
    one_way, other_way = joined_secrets(many)[b"x"], joined_secrets(many[::-1])[b"x"]
    assert one_way == other_way
    assert len(one_way) == LIMITS.secret_candidates
    assert {secret[0] for secret in one_way[:4]} == {0, 1, 2, 3}
    known: Secrets = {b"x": (b"y",)}
    sources = [[(bytes([source, number]), known) for number in range(100)] for source in range(4)]
    assert newest(sources) == newest(sources[::-1])
    assert len(newest(sources)) == LIMITS.trial_connections


def test_what_many_candidates_cost_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A million lines of one client random: a connection tries a few of them."""
    known = Forged()
    lines = [line for number in range(2000) for line in wrong_lines(known.lines(), number)]
    really = Aead.open
    opened = []

    def counted(*arguments: Any) -> bytes | None:
        opened.append(1)
        return really(*arguments)

    monkeypatch.setattr(Aead, "open", counted)
    wire = wire_of([*known.opening(), (CLIENT, known.client.record(b"AMQP\0\0\x09\x01"))])
    _, facts = wire.rows(Layers(KeyLog(b"".join(lines))))
    assert facts["undecoded_reason"] == "authentication failed"
    assert 0 < len(opened) <= 6 * LIMITS.secret_candidates
