"""Damaged logins through the whole of a night: no piece of a secret is in a table, the report, its JSON, or what was
cut out and redacted to be shared."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from logins import Login, conversation, copies_nothing, damaged, logins
from wire import write_capture

from jobs.cli import main
from pipeline.schemas import TABLES

OF_EACH = 6  # ways to damage each frame that bears a secret
# Shorter pieces stand in words of the report ("hunter2", "counter"), and in hashes.
PIECE, HEX_PIECE = 6, 12
HEX_DIGITS = frozenset(b"0123456789abcdef")


def of_night(captures: Path, folder: Path) -> bytes:
    """All that a night leaves of some captures, and a redacted cut of all of their packets."""
    folder.mkdir()
    tables, report, document, cut = (folder / name for name in ("tables", "r.html", "r.json", "cut.pcapng"))
    arguments = ["--output", tables, "--report", report, "--json", document, "--payload", "--fail-on", "never"]
    assert main(["nightly", str(captures), *map(str, arguments)]) == 0
    assert main(["cut", str(tables), "--where", "true", "--whole", "--redact", "-o", str(cut)]) == 0
    rows = [
        str(row).encode()
        for table in (*TABLES, "findings")
        for file in (tables / table).glob("*.parquet")
        for row in pq.read_table(file).to_pylist()
    ]
    return b"\n".join([*rows, report.read_bytes(), document.read_bytes(), cut.read_bytes()])


def pieces(secret: bytes) -> set[bytes]:
    """Pieces that nothing else shows."""
    size = HEX_PIECE if HEX_DIGITS.issuperset(secret) else PIECE
    return {secret[at : at + size] for at in range(len(secret) - size + 1)}


def talks() -> Iterator[tuple[Login, int, bytes]]:
    """A login, which of its frames is damaged, and what it becomes."""
    rng = random.Random(0)
    for login in logins():
        for place in login.bearers:
            sound = login.frames[place][1]
            ways = list(damaged(login, place, rng, b"", 20))
            rng.shuffle(ways)
            telling = (octets for octets in ways if copies_nothing(login, sound, b"", octets))
            yield from ((login, place, octets) for octets in islice(telling, OF_EACH))


@pytest.mark.usefixtures("spark")
def test_no_output_has_a_piece_of_a_secret(tmp_path: Path) -> None:
    chosen = list(talks())
    wires = [conversation(login, place, octets) for login, place, octets in chosen]
    write_capture(tmp_path / "damaged.pcap", wires)
    sound = b"\n".join(octets.replace(login.secret, b"\n") for login in logins() for _, octets in login.frames)
    wanted = {piece for login, _, _ in chosen for piece in pieces(login.secret) if piece not in sound}
    assert len(wanted) > 100
    assert any(piece in wire.payload for wire in wires for piece in wanted)
    left = of_night(tmp_path / "damaged.pcap", tmp_path / "damaged")
    assert [piece for piece in sorted(wanted) if piece in left] == []
