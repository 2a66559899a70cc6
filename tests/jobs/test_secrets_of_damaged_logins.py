"""Damaged logins through a complete nightly run: no piece of a secret is in a table, the report, its JSON, or what was
cut out and redacted to be shared."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
from logins import logins
from night import WIRES, connections, odd_connections, of_odd

from codec.tables import TABLES
from jobs.cli import main
from jobs.terminal.running import UNREADABLE

# Shorter pieces stand in words of the report ("hunter2", "counter"), and in hashes.
PIECE, HEX_PIECE = 6, 12
HEX_DIGITS = frozenset(b"0123456789abcdef")


def contents_of(folder: Path, cut: Path) -> bytes:
    """All that the night leaves, and a redacted cut of all packets of the capture with the logins."""
    tables, where = folder / "tables", f"capture_file = '{(folder / 'captures' / WIRES).as_uri()}'"
    assert main(["cut", str(tables), "--where", where, "--whole", "--redact", "-o", str(cut)]) == UNREADABLE
    rows = [
        str(row).encode()
        for table in (*TABLES, "findings")
        for file in (tables / table).glob("*.parquet")
        for row in of_odd(pq.read_table(file), folder).to_pylist()
    ]
    return b"\n".join([*rows, *(path.read_bytes() for path in (folder / "audit.html", folder / "audit.json", cut))])


def pieces(secret: bytes) -> set[bytes]:
    """Pieces that nothing else shows."""
    size = HEX_PIECE if HEX_DIGITS.issuperset(secret) else PIECE
    return {secret[at : at + size] for at in range(len(secret) - size + 1)}


def test_no_output_has_a_piece_of_a_secret(night: Path, tmp_path: Path) -> None:
    selected = list(connections())
    sound = b"\n".join(data.replace(login.secret, b"\n") for login in logins() for _, data in login.frames)
    fragments = {piece for login, _, _ in selected for piece in pieces(login.secret) if piece not in sound}
    assert len(fragments) > 100
    captured = (night / "captures" / WIRES).read_bytes()
    assert any(piece in captured for piece in fragments)
    assert len(odd_connections(night)) > len(selected)
    output = contents_of(night, tmp_path / "cut.pcapng")
    assert [piece for piece in sorted(fragments) if piece in output] == []
