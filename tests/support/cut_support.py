"""Tables for cuts without Spark, cuts into bytes, and readers of what came out that share no code with the product."""

from __future__ import annotations

import io
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import independent_tcp
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from decoder_rows import DECODED, decode_runs
from decoding import in_flow_order, rows_of, runs
from scapy.layers.inet import IP, TCP
from scapy.layers.l2 import Ether

from pipeline.extract import Choice, CutOptions, Result
from pipeline.extract.cutting import cut_rows
from udfs.decode.key_logs import SecretFiles

CAPTURES = Path(__file__).parents[1] / "captures"
NEEDS_TSHARK = pytest.mark.skipif(shutil.which("tshark") is None, reason="tshark is not installed")
TIMESTAMP = pa.timestamp("us", tz="UTC")

FRAMES = {
    "connection_id": pa.int64(), "frame_no": pa.int64(), "sender": pa.string(), "ts": TIMESTAMP,
    "capture_file": pa.string(), "first_packet_no": pa.int64(), "packet_no": pa.int64(), "stream_offset": pa.int64(),
    "size": pa.int64(), "version": pa.string(), "channel": pa.int32(), "frame_type": pa.string(), "name": pa.string(),
    "payload_size": pa.int64(), "status": pa.string(), "content_frame_no": pa.int64(), "notes": pa.list_(pa.string()),
}  # fmt: skip
CONNECTIONS = {
    "connection_id": pa.int64(), "client_ip": pa.string(), "client_port": pa.int32(), "server_ip": pa.string(),
    "server_port": pa.int32(), "opened_ts": TIMESTAMP, "closed_ts": TIMESTAMP, "conflicting_overlap_bytes": pa.int64(),
    "transport": pa.string(),
}  # fmt: skip
CAPTURE_FILES = {"capture_file": pa.string(), "byte_size": pa.int64(), "first_ts": TIMESTAMP, "last_ts": TIMESTAMP}
MESSAGES = dict.fromkeys(("connection_id", "first_frame_no", "settled_frame_no", "returned_frame_no"), pa.int64())
FINDINGS = {
    "connection_id": pa.int64(), "frame_no": pa.int64(), "capture_file": pa.string(), "packet_no": pa.int64(),
    "rule_id": pa.string(), "severity": pa.string(), "summary": pa.string(),
}  # fmt: skip
CHANNEL_COLUMNS = {"connection_id": pa.int64(), "channel": pa.int32(), "opened_ts": TIMESTAMP, "closed_ts": TIMESTAMP}
FLOW_ENDS = dict.fromkeys(
    [f"{end}_{name}" for end in ("publish", "deliver") for name in ("connection_id", "frame_no")], pa.int64()
)
TYPES = {
    "frames": FRAMES, "connections": CONNECTIONS, "captures": CAPTURE_FILES,
    "messages": {**MESSAGES, "message_id": pa.string()}, "findings": FINDINGS,
}  # fmt: skip
# Tables of which only what a row chooses is looked at.
OTHERS = {
    "channels": CHANNEL_COLUMNS,
    "links": CHANNEL_COLUMNS,
    "message_flows": FLOW_ENDS,
    "streams": {"connection_id": pa.int64()},
}


def moment(ns: int | None) -> datetime | None:
    """A time as TIMESTAMP columns have it: microseconds, rounded down."""
    return None if ns is None else datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=ns // 1000)


@dataclass
class Tables:
    """Plain rows by table, as `pipeline.extract.Rows` reads them; `decoded`: all decoded rows."""

    rows: dict[str, list[dict[str, Any]]]
    decoded: list[dict[str, Any]]

    def __call__(self, table: str, columns: Sequence[str], keys: pa.Table | None = None) -> pa.Table:
        rows = self.rows[table]
        if keys is not None:
            selected = {tuple(key.values()) for key in keys.to_pylist()}
            rows = [row for row in rows if tuple(row[name] for name in keys.column_names) in selected]
        return self.arrow(table, rows).select(list(columns))

    def arrow(self, table: str, rows: list[dict[str, Any]]) -> pa.Table:
        schema = pa.schema(list({**TYPES, **OTHERS}[table].items()))
        return pa.Table.from_pylist([{name: row.get(name) for name in schema.names} for row in rows], schema)

    def write(self, folder: Path) -> Path:
        """The tables as files, as `wirehare decode` leaves them."""
        for name, rows in self.rows.items():
            (folder / name).mkdir(parents=True)
            pq.write_table(self.arrow(name, rows), folder / name / "part.parquet")
        return folder

    @property
    def ids(self) -> list[int]:
        return [row["connection_id"] for row in self.rows["connections"]]

    def frames(self, name: str | None = None) -> list[dict[str, Any]]:
        """Decoded rows of frames, of those with this name, in order."""
        found = [row for row in self.decoded if row["kind"] == "frame" and name in (None, row["name"])]
        return sorted(found, key=lambda row: (row["connection_id"], row["frame_no"]))


def tables_of(paths: Iterable[Path], secrets: SecretFiles | None = None) -> Tables:
    """What decoding these captures gives, as far as a cut needs it; `secrets` as for `decode_runs`."""
    batches = in_flow_order(runs(list(paths))).combine_chunks().to_batches(max_chunksize=64)
    result = decode_runs(payload=True, secrets=secrets)(iter(batches))
    decoded = rows_of(pa.Table.from_batches(result, schema=DECODED))
    rows: dict[str, list[dict[str, Any]]] = {name: [] for name in TYPES}
    for row in decoded:
        facts = row["facts"] if row["kind"] == "connection" else row["arguments"]
        if row["kind"] == "frame":
            rows["frames"].append(row)
        elif row["kind"] == "connection":
            times = {"opened_ts": moment(facts["opened_ts_ns"]), "closed_ts": moment(facts["closed_ts_ns"])}
            rows["connections"].append({**facts, **times, "connection_id": row["connection_id"]})
        else:
            times = {"first_ts": moment(facts["first_ts_ns"]), "last_ts": moment(facts["last_ts_ns"])}
            rows["captures"].append({**facts, **times})
    rows["connections"].sort(key=lambda row: row["opened_ts_ns"])
    return Tables(rows, decoded)


def cut(tables: Tables, choice: Choice, path: Path, **how: Any) -> Result:
    """Cut to `path`."""
    sink = io.BytesIO()
    result = cut_rows(tables, choice, sink, CutOptions(**how))
    path.write_bytes(sink.getvalue())
    return result


def records(path: Path) -> list[tuple[int, int, bytes]]:
    """(time in ns, link type, bytes) of every packet."""
    return list(independent_tcp.records(path))


def tshark(path: Path, *arguments: str) -> list[str]:
    """What tshark prints; checksums are looked at where one is asked for (then wrong ones end the reassembly)."""
    options = [f"{protocol}.check_checksum:TRUE" for protocol in ("tcp", "udp", "ip")]
    inspect = options if any("checksum" in argument for argument in arguments) else []
    command = ["tshark", "-n", "-r", str(path), *(part for option in inspect for part in ("-o", option)), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


def fields(path: Path, *names: str, only: str = "") -> list[list[str]]:
    """Fields of every packet as tshark shows them; of the packets that a display filter passes."""
    selected = [part for name in names for part in ("-e", name)]
    lines = tshark(path, *(["-Y", only] if only else []), "-T", "fields", *selected)
    return [line.split("\t") for line in lines]


def rightly_summed(path: Path, count: int) -> list[tuple[int, bytes]]:
    """The first packets of a capture, with checksums that scapy has computed."""
    found = []
    for ns, _, data in records(path)[:count]:
        packet = Ether(data)
        for layer in (IP, TCP):
            if layer in packet:
                del packet[layer].chksum
        found.append((ns, bytes(packet)))
    return found
