"""How an ingest works."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.lake.layout import NS


@dataclass(frozen=True)
class Options:
    """How an ingest works; times in ns. See `pipeline.ingest`."""

    pair_ns: int = 3600 * NS
    forget_ns: int = 7 * 24 * 3600 * NS
    late_ns: int = 300 * NS
    settle_ns: int = 30 * NS
    batch_bytes: int = 2 << 30
    state_bytes: int = 8 << 30
    carry_secrets: bool = False
