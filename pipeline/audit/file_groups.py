"""Groups of files with the same connections: what one task of a decode has written, by what is in the files.

    groups = groups_of({"frames": ["tables/frames/part-0.parquet", ...], ...}, 1 << 30)

Files that have rows of one connection are in one group; small groups are put together. So are the files of a lake,
whose connections are spread over its batches: DuckDB spills what does not fit.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence

import duckdb

from codec.tables import TABLES
from udfs.findings.program import reading

GROUP_BYTES = 32 << 20  # of Parquet files, for which it is worth to plan all queries again

Files = Mapping[str, Sequence[str]]


def groups_of(files: Files, most_bytes: int = GROUP_BYTES) -> list[Files]:
    """The files by table, in groups of up to `most_bytes` where connections allow that; at least one. Raises
    duckdb.Error for files that cannot be read."""
    sizes = {path: os.path.getsize(path) for paths in files.values() for path in paths}
    if sum(sizes.values()) <= most_bytes:
        return [files]
    groups = grouped(sizes, joined_files(pairs_of(files)), most_bytes)
    return [{name: [path for path in paths if path in group] for name, paths in files.items()} for group in groups]


def grouped(sizes: Mapping[str, int], leads: Mapping[str, str], most_bytes: int) -> list[set[str]]:
    """The paths (`sizes`: bytes) in groups of up to `most_bytes`, those with the same lead in one; at least one group.
    Paths without a lead, which have no connections, are in the first."""
    of_lead: dict[str, list[str]] = {}
    for path in sizes:
        of_lead.setdefault(leads.get(path, ""), []).append(path)
    rest = of_lead.pop("", [])
    groups, size = [set[str]()], 0
    for of_paths, paths in sorted((sum(map(sizes.__getitem__, paths)), paths) for paths in of_lead.values()):
        if groups[-1] and size + of_paths > most_bytes:
            groups.append(set())
            size = 0
        groups[-1].update(paths)
        size += of_paths
    groups[0].update(rest)
    return groups


def pairs_of(files: Files) -> Iterable[tuple[str, str]]:
    """Pairs of files that have rows of the same connection: each file with the first that has it."""
    read = " UNION ".join(
        f"SELECT DISTINCT filename, connection_id FROM ({reading(paths, with_names=True)})"
        for name, paths in files.items()
        if paths and "connection_id" in TABLES[name].names
    )
    if not read:
        return []
    with duckdb.connect() as connection:
        return connection.execute(f"""
            SELECT DISTINCT min(filename) OVER (PARTITION BY connection_id), filename
            FROM ({read}) WHERE connection_id IS NOT NULL""").fetchall()


def joined_files(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Each file in pairs -> one of the files that it is in a pair with, directly or through others."""
    leads: dict[str, str] = {}

    def lead(path: str) -> str:
        while leads.setdefault(path, path) != path:
            leads[path] = path = leads[leads[path]]
        return path

    for first, other in pairs:
        leads[lead(other)] = lead(first)
    return {path: lead(path) for path in leads}
