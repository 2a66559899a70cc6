"""Groups of files with the same connections: what one task of a decode has written, by what is in the files.

    groups = groups_of({"frames": ["tables/frames/part-0.parquet", ...], ...}, 1 << 30)

Files that have rows of one connection are in one group; small groups are put together. So are the files of a lake,
whose connections are spread over its batches: DuckDB spills what does not fit.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

import duckdb

from codec.tables import TABLES
from udfs.findings.views import reading

GROUP_BYTES = 32 << 20  # of Parquet files, for which it is worth to plan all queries again

Files = Mapping[str, Sequence[str]]


def groups_of(files: Files, most_bytes: int = GROUP_BYTES) -> list[Files]:
    """The files by table, in groups of up to `most_bytes` where connections allow that; at least one. Raises
    duckdb.Error for files that cannot be read."""
    sizes = {path: os.path.getsize(path) for paths in files.values() for path in paths}
    if sum(sizes.values()) <= most_bytes:
        return [files]
    leads = joined_files(files)
    of_group: dict[str, list[str]] = {}
    for path in sizes:
        of_group.setdefault(leads.get(path, ""), []).append(path)
    bins: list[tuple[int, set[str]]] = []
    rest = of_group.pop("", [])  # without connections
    for paths in sorted(of_group.values(), key=lambda paths: sum(map(sizes.__getitem__, paths))):
        size = sum(map(sizes.__getitem__, paths))
        if bins and bins[-1][0] + size <= most_bytes:
            bins[-1] = (bins[-1][0] + size, bins[-1][1] | {*paths})
        else:
            bins.append((size, {*paths}))
    first = bins[0][1] if bins else set[str]()
    first |= {*rest}
    return [
        {name: [path for path in paths if path in group] for name, paths in files.items()}
        for group in (paths for _, paths in bins or [(0, first)])
    ]


def joined_files(files: Files) -> dict[str, str]:
    """Each file with rows of a connection -> one of the files that have rows of the same connections, directly or
    through others."""
    read = " UNION ".join(
        f"SELECT DISTINCT filename, connection_id FROM ({reading(paths, with_names=True)})"
        for name, paths in files.items()
        if paths and "connection_id" in TABLES[name].names
    )
    if not read:
        return {}
    leads: dict[str, str] = {}

    def lead(path: str) -> str:
        while leads.setdefault(path, path) != path:
            path = leads[path]
        return path

    with duckdb.connect() as connection:
        pairs = connection.execute(f"""
            SELECT DISTINCT min(filename) OVER (PARTITION BY connection_id), filename
            FROM ({read}) WHERE connection_id IS NOT NULL""").fetchall()
    for first, other in pairs:
        leads[lead(other)] = lead(first)
    return {path: lead(path) for path in leads}
