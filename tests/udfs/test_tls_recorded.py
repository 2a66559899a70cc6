"""TLS recorded on loopback: RabbitMQ's own TLS with pika, py-amqp and proton (the latter two through a relay), and
OpenSSL's tools for 0-RTT data and renegotiation. Secrets are in the captures; `*.frames.json` is what tshark 4.0 found
with them: the lengths of the frames by packet."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import decoding
import golden
import pyarrow as pa
from decoder_rows import decode_runs
from test_tls import PARTS, all_frames, conversation
from wire import CLIENT

from udfs.decode.key_logs import SecretFiles

END_BYTES = 8  # of a classic frame that its length does not count


def decoded(name: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Frames, and the facts of connections, for which the ledger holds."""
    path = golden.CAPTURES / f"{name}.pcapng"
    runs = decoding.in_flow_order(decoding.runs([path]))
    result = decode_runs(secrets=SecretFiles((), (str(path),)))(iter(runs.to_batches()))
    rows = decoding.rows_of(pa.Table.from_batches(result))
    facts = [row["facts"] for row in rows if row["kind"] == "connection"]
    for fact in facts:
        for side in ("client", "server"):
            assert fact[side]["payload_bytes"] == sum(fact[side][part] for part in PARTS)
    return [row for row in rows if row["kind"] == "frame"], facts


def of_tshark(name: str) -> Counter[tuple[int, int]]:
    packets = json.loads((golden.CAPTURES / f"{name}.frames.json").read_text())
    return Counter((packet["frame"], length) for packet in packets for length in packet["lengths"])


def of_packets(rows: list[dict[str, Any]]) -> Counter[tuple[int, int]]:
    """Packet and length of frames, as tshark shows them."""
    return Counter(
        (row["packet_no"], row["size"] - (0 if row["version"] == "1.0" else END_BYTES))
        for row in rows
        if row["frame_type"] not in ("protocol-header", "skipped")
    )


def sent(rows: list[dict[str, Any]], side: str) -> list[int]:
    return sorted(row["size"] for row in rows if row["sender"] == side and row["frame_type"] != "skipped")


def test_traffic_of_a_broker_gives_the_frames_of_tshark() -> None:
    rows, facts = decoded("tls_rabbitmq")
    assert of_packets(rows) == of_tshark("tls_rabbitmq")
    assert {row["status"] for row in rows} == {"ok"}
    assert [fact["tls"]["decrypted"] for fact in facts] == [True] * 9
    assert Counter(fact["tls"]["resumed"] for fact in facts) == {False: 8, True: 1}
    assert len({fact["tls"]["cipher_suite"] for fact in facts}) >= 5
    assert {row["version"] for row in rows} == {"0-9-1", "1.0"}


def test_early_data_is_read_where_the_server_accepts_it() -> None:
    """The client sent its first 600 bytes as 0-RTT data; both sides together what a capture in clear has."""
    rows, (fact,) = decoded("tls13_early_data")
    assert fact["tls"]["resumed"]
    assert sorted((row["sender"], row["size"]) for row in rows) == all_frames()
    from_server = Counter(
        {key: count for key, count in of_packets(rows).items() if key in of_tshark("tls13_early_data")}
    )
    assert from_server == of_tshark("tls13_early_data")


def test_early_data_that_the_server_refuses_is_not_part_of_the_stream() -> None:
    """The first 600 bytes of the client are refused; what follows begins inside a frame."""
    rows, (fact,) = decoded("tls13_early_data_refused")
    stream = b"".join(data for way, data in conversation()[0] if way == CLIENT)
    assert fact["client"]["decrypted_bytes"] == len(stream) - 600
    start, frames = 8, []  # behind the protocol header
    while start < len(stream):
        size = int.from_bytes(stream[start + 3 : start + 7], "big") + END_BYTES
        frames.append((start, size))
        start += size
    whole = [(start, size) for start, size in frames if start >= 600]
    assert sent(rows, "client") == sorted(size for _, size in whole)
    assert fact["client"]["skipped_bytes"] == whole[0][0] - 600
    assert fact["client"]["foreign_bytes"] == 0
    assert sent(rows, "server") == sorted(size for side, size in all_frames() if side == "server")


def test_a_renegotiation_is_reported_and_later_data_is_not_read() -> None:
    rows, (fact,) = decoded("tls12_renegotiation")
    assert fact["undecoded_reason"] == "renegotiation"
    assert sent(rows, "client") == [8]
    assert sent(rows, "server") == [504]
    assert not of_packets(rows) - of_tshark("tls12_renegotiation")
