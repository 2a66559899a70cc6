"""Damaged logins through a complete nightly run: no piece of a secret is in a table, the report, its JSON, or what was
cut out and redacted to be shared."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest
from logins import logins
from night import WIRES, connections, night
from once import Once

from jobs.cli import main
from pipeline.schemas import TABLES

# Shorter pieces stand in words of the report ("hunter2", "counter"), and in hashes.
PIECE, HEX_PIECE = 6, 12
HEX_DIGITS = frozenset(b"0123456789abcdef")


def contents_of(folder: Path, cut: Path) -> bytes:
    """All that the night leaves, and a redacted cut of all of its packets."""
    tables = folder / "tables"
    assert main(["cut", str(tables), "--where", "true", "--whole", "--redact", "-o", str(cut)]) == 0
    rows = [
        str(row).encode()
        for table in (*TABLES, "findings")
        for file in (tables / table).glob("*.parquet")
        for row in pq.read_table(file).to_pylist()
    ]
    return b"\n".join([*rows, *(path.read_bytes() for path in (folder / "audit.html", folder / "audit.json", cut))])


def pieces(secret: bytes) -> set[bytes]:
    """Pieces that nothing else shows."""
    size = HEX_PIECE if HEX_DIGITS.issuperset(secret) else PIECE
    return {secret[at : at + size] for at in range(len(secret) - size + 1)}


@pytest.mark.usefixtures("spark")
def test_no_output_has_a_piece_of_a_secret(once: Once, tmp_path: Path) -> None:
    chosen = list(connections())
    sound = b"\n".join(octets.replace(login.secret, b"\n") for login in logins() for _, octets in login.frames)
    fragments = {piece for login, _, _ in chosen for piece in pieces(login.secret) if piece not in sound}
    assert len(fragments) > 100
    folder = once("night", night)
    captured = (folder / "captures" / WIRES).read_bytes()
    assert any(piece in captured for piece in fragments)
    output = contents_of(folder, tmp_path / "cut.pcapng")
    assert [piece for piece in sorted(fragments) if piece in output] == []
