"""Fuzzing: damaged captures and streams through readers and decoder. `python tests/support/fuzz.py --inputs 10000`.

It runs with the kernels as they are compiled; with NUMBA_BOUNDSCHECK=1 each index is checked, and interpreted, with
NUMBA_DISABLE_JIT=1, none may be negative either. tests/support/fuzz_modes.py compares the three.

Whatever the bytes are, the contract holds: rows of all tables and no exception; of each direction the ledger adds up,
rows do not overlap, gaps are the missing bytes; text is UTF-8; time is linear in the size. An input that breaks it is
named with the seed that makes it again. Damaged in turn: the bytes of the streams, the TCP segments, both, the capture
file; two connections are put on the same addresses and ports, the beginning of either lost; and streams are put inside
of TLS, WebSocket, and behind a header of the PROXY protocol (tests/support/fuzz_layers.py). All are decoded with the
secrets of the captures. Logins come after that.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import decoding
import fuzz_tables
import golden
import numba
import numpy as np
from fuzz_layers import forged, secrets
from fuzz_logins import fuzz_logins
from fuzz_tables import Run
from guarded_arrays import guard, guarded
from mutations import merged, mutated, mutated_segments

from codec.amqp.decoder import Decoder
from codec.layers.stack import Layers
from codec.names import SIDES
from codec.net.layers import SEGMENT
from codec.protocol import rows as R
from codec.protocol.versions import FRAME_TYPES, STATUSES
from codec.tables import LEDGER
from udfs.decode.connection_rows import COUNTED_AS

WAYS = ("stream", "segments", "both", "file", "merged", "layers")
TOGETHER = 100  # inputs of which tables are made at once
ALL_SPELLED, EVERY_SPELLED = 2, 8  # groups of these that are spelled out: the first ones, and every so many
ROUND = (100, 1_000, 10_000)  # numbers of inputs after which the digest is printed, the last one every time
PARTS = ("frame_bytes", "skipped_bytes", "tls_bytes", "websocket_bytes", "foreign_bytes", "tail_bytes")
LARGEST = 64 * 1024  # captures above this cost time and teach nothing new
# Processor time that an input may take: what Python does for any input, and per byte fifty times what kernels need.
GRACE_SECONDS, SECONDS_PER_BYTE = 1.0, 10e-6
OF_LOGINS = 0.2  # of the time is spent on damaged logins, which are searched for their secrets
if numba.config.DISABLE_JIT or numba.config.BOUNDSCHECK:
    GRACE_SECONDS, SECONDS_PER_BYTE = 10.0, 1e-3
WARMING_UP = 40  # inputs that may have to wait for kernels to be compiled or loaded
GAP = FRAME_TYPES.index("gap")
OPAQUE = [FRAME_TYPES.index("tls"), FRAME_TYPES.index("foreign")]
Ledgers = dict[str, dict[str, int]]  # of a connection, by side


@dataclass
class Tally:
    """What was tried and what came of it."""

    inputs: Counter[str] = field(default_factory=Counter)
    rows: int = 0  # of frames
    all_rows: int = 0  # of all tables
    groups: int = 0
    statuses: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    slowest: float = 0.0
    digest: hashlib._Hash = field(default_factory=hashlib.sha256)  # of all rows, values and facts


def new_decoder() -> Decoder:
    """A decoder; where it is interpreted, no index may be negative."""
    decoder = Decoder(layers=Layers(secrets().open()))
    if numba.config.DISABLE_JIT:
        guard(decoder)
    return decoder


def runs_of(path: Path) -> list[Run]:
    """The runs of one capture, in the order in which the shuffle hands them out."""
    runs = decoding.in_flow_order(decoding.runs([path])).select(["flow", "segments", "payload"]).to_pylist()
    return [(run["flow"], np.frombuffer(run["segments"], SEGMENT), run["payload"]) for run in runs if run["flow"]]


@cache
def seeds() -> list[tuple[Path, list[Run]]]:
    """The small captures of the tests, of every version, intact and damaged."""
    paths = sorted(golden.CAPTURES.glob("*.pcap*"))
    return [(path, runs) for path in paths if path.stat().st_size <= LARGEST and (runs := runs_of(path))]


def decode(
    decoder: Decoder, runs: list[Run], digest: hashlib._Hash | None = None
) -> Iterator[tuple[np.ndarray, Ledgers]]:
    """(cells of its rows, ledgers) of each connection; the decoder is as new afterwards. `digest` takes values."""
    cells: dict[int, list[np.ndarray]] = {}

    def keep(batches: Iterator[Any]) -> None:
        for batch in batches:
            if digest is not None:
                for heap in (batch.arguments, batch.arguments_metadata, batch.properties, batch.properties_metadata):
                    digest.update(heap.tobytes())
            for connection in np.unique(batch.cells[:, R.CONNECTION]):
                cells.setdefault(int(connection), []).append(batch.cells[batch.cells[:, R.CONNECTION] == connection])

    for flow, segments, payload in runs:
        data = np.frombuffer(bytearray(payload or b"\0"), np.uint8)
        keep(decoder.feed(flow, segments, guarded(data) if numba.config.DISABLE_JIT else data))
    keep(decoder.finish())
    for connection_id, ledgers in ended(decoder):
        rows = cells.pop(connection_id, [np.zeros((0, len(R.COLUMNS)), np.int64)])
        yield np.concatenate(rows), ledgers
    assert not cells, "rows of a connection without facts"


def ended(decoder: Decoder) -> Iterator[tuple[int, Ledgers]]:
    """Connections that have ended, and the ledgers of their sides."""
    for concluded in decoder.take_ended():
        for connection, directions in zip(concluded.connections, concluded.directions, strict=True):
            client = int(connection["client"])
            sides = zip(SIDES, (directions[client], directions[1 - client]), strict=True)
            yield int(connection["connection_id"]), {side: ledger_of(directions) for side, directions in sides}


def ledger_of(direction: np.void) -> dict[str, int]:
    """A record of the decoder by the names of `codec.tables.LEDGER`."""
    return {name: int(direction[COUNTED_AS.get(name, name)]) for name in LEDGER.names}


def check(cells: np.ndarray, facts: Ledgers) -> None:
    """The contract, for one connection: every row has its sender, and those of a direction are its ledger."""
    senders = {(int(way), int(side)) for way, side in np.unique(cells[:, [R.DIRECTION, R.SENDER]], axis=0)}
    assert senders in ({(0, 0), (1, 1)}, {(0, 1), (1, 0)}) or (len(senders) < 2 and {s for _, s in senders} <= {0, 1})
    ledgers = {side: facts[("client", "server")[side]] for _, side in senders}
    for ledger in (facts["client"], facts["server"]):
        assert ledger["payload_bytes"] == sum(ledger[part] for part in PARTS), ledger
        assert min(ledger[name] for name in (*PARTS, "missing_bytes", "outside_bytes")) >= 0, ledger
    silent = [facts[side] for number, side in enumerate(("client", "server")) if number not in ledgers]
    layered = [ledger["tls_bytes"] + ledger["websocket_bytes"] for ledger in silent]
    assert [ledger["payload_bytes"] for ledger in silent] == layered, "bytes without a row"
    for direction, side in senders:
        check_direction(cells[cells[:, R.DIRECTION] == direction], ledgers[side])
    if len(cells):
        assert (np.sort(cells[:, R.FRAME_NO]) == np.arange(1, len(cells) + 1)).all(), "frame numbers"
        assert ((cells[:, R.STATUS] >= 0) & (cells[:, R.STATUS] < len(STATUSES))).all()


def check_direction(own: np.ndarray, ledger: dict[str, int]) -> None:
    """The rows of one direction do not overlap, and hold each byte of its ledger once."""
    gaps, rows = own[own[:, R.TYPE] == GAP], own[own[:, R.TYPE] != GAP]
    rows = rows[np.argsort(rows[:, R.OFFSET], kind="stable")]
    ends = rows[:, R.OFFSET] + rows[:, R.SIZE]
    assert (rows[1:, R.OFFSET] >= ends[:-1]).all(), "rows of a direction overlap"
    if not np.isin(rows[:, R.TYPE], OPAQUE).any():  # what is not AMQP ends as one row, holes or not
        missing, outside = int(gaps[:, R.SIZE].sum()), ledger["tls_bytes"] + ledger["websocket_bytes"]
        assert missing == ledger["missing_bytes"], ledger
        # A frame that lost bytes may extend beyond the last known byte.
        ends = np.minimum(ends, ledger["payload_bytes"] - outside + missing)
        inside = sum(
            int(np.maximum(0, np.minimum(ends, at + size) - np.maximum(rows[:, R.OFFSET], at)).sum())
            for at, size in gaps[:, [R.OFFSET, R.SIZE]].tolist()
        )
        assert int((ends - rows[:, R.OFFSET]).sum()) - inside == ledger["payload_bytes"] - outside, ledger


def check_flows(runs: list[Run], found: list[Ledgers]) -> None:
    """An independent sum: each packet, and each byte that was captured, is in the ledger of one connection. A copy of
    one byte may be a keep-alive, which is not counted; where packets were cut, copies are counted as sent."""
    ledgers = [facts[side] for facts in found for side in ("client", "server")]
    segments = np.concatenate([segments for _, segments, _ in runs]) if runs else np.zeros(0, SEGMENT)
    assert sum(ledger["packets"] for ledger in ledgers) == len(segments), "packets"
    captured = int(segments["cap_len"].sum())
    counted = sum(ledger["payload_bytes"] + ledger["outside_bytes"] for ledger in ledgers)
    assert counted <= captured, (counted, captured)
    if (segments["cap_len"] == segments["wire_len"]).all():
        counted += sum(ledger["retransmitted_bytes"] for ledger in ledgers)
        assert 0 <= captured - counted <= int((segments["wire_len"] == 1).sum()), (counted, captured)


def damaged(rng: random.Random, way: str, scratch: Path) -> list[Run]:
    """The runs of a capture, damaged in the way named."""
    path, runs = rng.choice(seeds())
    other_path, other_runs = rng.choice(seeds())
    if way == "merged":
        return merged_runs(rng, runs, other_runs)
    if way == "layers":
        return forged(rng, runs, other_runs[0][2])
    if way == "file":
        scratch.write_bytes(mutated(rng, path.read_bytes(), other_path.read_bytes()))
        return runs_of(scratch)
    changed = []
    for flow, segments, payload in runs:
        if way in ("segments", "both"):
            segments = mutated_segments(rng, segments)
        if way in ("stream", "both"):
            data = mutated(rng, payload, rng.choice(other_runs)[2])
            payload = data[: len(payload)].ljust(len(payload), b"\0")  # segments point into it
        changed.append((flow, segments, payload))
    return changed


def merged_runs(rng: random.Random, runs: list[Run], other_runs: list[Run]) -> list[Run]:
    """A connection of a capture and one of another, on the addresses and ports of the first; half of them damaged."""
    flow, _, _ = rng.choice(runs)
    segments, payload = merged(rng, of_flow(runs, flow), of_flow(other_runs, rng.choice(other_runs)[0]))
    return [(flow, mutated_segments(rng, segments) if rng.random() < 0.5 else segments, payload)]


def of_flow(runs: list[Run], flow: bytes) -> tuple[np.ndarray, bytes]:
    """All segments of a flow, and their payload."""
    parts, data = [], b""
    for key, segments, payload in runs:
        if key == flow:
            parts.append(segments.copy())
            parts[-1]["payload_at"] += len(data)
            data += payload
    return np.concatenate(parts), data


def sound(largest: float) -> tuple[int, str]:
    """Every capture of the tests of up to `largest` bytes, as it is: how many there are, and a digest of all rows."""
    decoder, digest = new_decoder(), hashlib.sha256()
    paths = sorted(path for path in golden.CAPTURES.glob("*.pcap*") if not path.name.endswith(".jsonl.gz"))
    paths = [path for path in paths if path.stat().st_size <= largest]
    for path in paths:
        runs, known = runs_of(path), []
        for cells, facts in decode(decoder, runs, digest):
            check(cells, facts)
            known.append(facts)
            digest.update(cells.tobytes() + json.dumps(facts).encode())
        check_flows(runs, known)
        rows = fuzz_tables.tables([runs], payload=True, secrets=secrets())
        fuzz_tables.check(rows)
        digest.update(fuzz_tables.spelled_out(rows))
    return len(paths), digest.hexdigest()


def fuzz(seed: int, count: int, seconds: float, keep: Path | None = None) -> Tally:
    """Try inputs until `count` of them or `seconds` are over; those that fail are written to folder `keep`."""
    tally, started = Tally(), time.monotonic()
    decoder = new_decoder()
    seeds()
    together: list[tuple[str, list[Run]]] = []
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder) / "damaged.pcap"
        for number in range(count):
            if time.monotonic() - started > seconds:
                break
            way = WAYS[number % len(WAYS)]
            name = f"seed {seed}, input {number} ({way})"
            rng = random.Random(f"{seed} {number}")
            tally.inputs[way] += 1
            busy = time.process_time()
            try:
                together.append((name, []))  # even where it fails: groups are the same in each mode
                runs = damaged(rng, way, scratch)
                together[-1] = name, runs
                known = []
                for cells, facts in decode(decoder, runs, tally.digest):
                    check(cells, facts)
                    known.append(facts)
                    tally.rows += len(cells)
                    tally.digest.update(cells.tobytes() + json.dumps(facts).encode())
                    for status, times in zip(*np.unique(cells[:, R.STATUS], return_counts=True), strict=True):
                        tally.statuses[STATUSES[int(status)]] += int(times)
                check_flows(runs, known)
                spent = time.process_time() - busy
                size = sum(len(segments) * 100 + len(payload) for _, segments, payload in runs)
                if number >= WARMING_UP:
                    assert spent < GRACE_SECONDS + SECONDS_PER_BYTE * size, f"{spent:.1f} s for {size} bytes"
                tally.slowest = max(tally.slowest, spent)
            except Exception as error:
                tally.failures.append(f"{name}: {type(error).__name__}: {error}")
                print(tally.failures[-1], flush=True)
                decoder = new_decoder()
                if keep is not None and way == "file":
                    keep.mkdir(parents=True, exist_ok=True)
                    (keep / f"{seed}-{number}.pcap").write_bytes(scratch.read_bytes())
            if len(together) == TOGETHER:
                fuzz_together(together, tally)
                together = []
            if number + 1 in ROUND or (number + 1) % ROUND[-1] == 0:
                print(
                    f"after {number + 1} inputs: {tally.digest.hexdigest()}, {len(tally.failures)} failures", flush=True
                )
        fuzz_together(together, tally)
    return tally


def fuzz_together(inputs: list[tuple[str, list[Run]]], tally: Tally) -> None:
    """Make all tables of these inputs; when that fails, of each one separately, to find which it is."""
    if not inputs:
        return
    spelled = tally.groups < ALL_SPELLED or tally.groups % EVERY_SPELLED == 0
    tally.groups += 1
    try:
        tally.all_rows += made_tables([runs for _, runs in inputs], tally, spelled)
    except Exception as error:
        found = []
        for name, runs in inputs:
            try:
                made_tables([runs], tally, spelled)
            except Exception as own:
                found.append(f"{name}, tables: {type(own).__name__}: {own}")
        together = f"{inputs[0][0]} to {inputs[-1][0]}, tables of all: {type(error).__name__}: {error}"
        tally.failures += found or [together]


def made_tables(inputs: list[list[Run]], tally: Tally, spelled: bool) -> int:
    """How many rows all tables have, which are checked; `spelled`: every value is looked at, and in the digest, and
    connections that began before the capture are decrypted as well."""
    rows = fuzz_tables.tables(inputs, secrets=secrets(trials=spelled))
    fuzz_tables.check(rows)
    if spelled:
        tally.digest.update(fuzz_tables.spelled_out(rows))
    return sum(batch.num_rows for batches in rows.values() for batch in batches)


def main() -> int:
    parser = argparse.ArgumentParser(description="Damaged captures through readers and decoder.")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="at most so long")
    parser.add_argument(
        "--inputs", type=int, default=10_000, help="at most so many captures, and as many logins (10000)"
    )
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--keep", type=Path, default=Path("fuzz-failures"), help="folder for captures that fail")
    parser.add_argument(
        "--largest", type=float, default=float("inf"), help="with --captures: those of up to so many bytes"
    )
    parser.add_argument("--captures", action="store_true", help="all captures of the tests as they are, and no other")
    selected = parser.parse_args()
    if selected.captures:
        number, digest = sound(selected.largest)
        print(f"{number:,} inputs, captures as they are\ndigest of rows, values and facts: {digest}")
        return 0
    tally = fuzz(selected.seed, selected.inputs, selected.seconds * (1 - OF_LOGINS), selected.keep)
    print(f"seed {selected.seed}: {tally.inputs.total():,} inputs {dict(tally.inputs)}, {tally.rows:,} frames")
    print(f"{tally.all_rows:,} rows of all tables")
    print(f"frames by status: {dict(tally.statuses)}; slowest input {tally.slowest:.2f} s of processor time")
    print(f"digest of rows, values and facts: {tally.digest.hexdigest()}")
    tried, leaks = fuzz_logins(selected.seed, selected.inputs, selected.seconds * OF_LOGINS)
    print(f"{tried:,} damaged logins")
    failures = tally.failures + leaks
    print(f"failures: {len(failures)}")
    for line in failures[:20]:
        print(f"  {line}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
