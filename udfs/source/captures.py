"""Table captures: one row per capture file, summed over the accounts of its splits."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from codec.tables import Table
from udfs.arrow.types import arrow_schema


def captures_of(accounts: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Accounts (`udfs.source.splits.Account`) -> rows of table captures, plus `first_ts_ns` and `last_ts_ns`.
    Counts of the splits of a capture are added; of other values the largest counts."""
    splits: dict[str, list[dict[str, Any]]] = {}
    for account in accounts:
        splits.setdefault(account["capture_file"], []).append(account)
    return [_capture(name, of_file) for name, of_file in sorted(splits.items())]


def capture_rows(captures: Iterable[dict[str, Any]], schema: Table) -> pa.Table:
    """The rows in Arrow; `schema`: of table captures."""
    rows = [{**row, "skipped_packets": list(row["skipped_packets"].items())} for row in captures]
    return pa.table(
        {field.name: pa.array([row[field.name] for row in rows], field.type) for field in arrow_schema(schema)}
    )


@dataclass(frozen=True)
class MakeCaptures:
    """The function for `mapInArrow` over a single partition: accounts as JSON -> rows of `schema`, that of table
    captures."""

    schema: Table

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        accounts = [json.loads(text) for batch in batches for text in batch.column(0).to_pylist()]
        yield from capture_rows(captures_of(accounts), self.schema).to_batches()


def _capture(name: str, splits: list[dict[str, Any]]) -> dict[str, Any]:
    def largest(key: str) -> Any:
        return max((split[key] for split in splits if split[key] is not None), default=None)

    def smallest(key: str) -> Any:
        return min((split[key] for split in splits if split.get(key) is not None), default=None)

    skipped: Counter[str] = Counter()
    for split in splits:
        skipped.update(split["skipped"])
    first_ns, last_ns, size = smallest("first_ts_ns"), largest("last_ts_ns"), largest("byte_size")
    return {
        "capture_file": name,
        **{key: largest(key) for key in ("format", "compression", "snaplen", "dropped", "truncated")},
        "link_types": sorted({kind for split in splits for kind in split["link_types"]}),
        "byte_size": size if size is not None and size >= 0 else None,
        "packets": sum(split["packets"] for split in splits),
        "first_ts_ns": first_ns,
        "last_ts_ns": last_ns,
        "first_ts": None if first_ns is None else first_ns // 1000,
        "last_ts": None if last_ns is None else last_ns // 1000,
        "error": smallest("error") or smallest("doubt"),
        "skipped_packets": dict(skipped),
    }
