"""Whether two directories of tables have the same rows, in any order: `python tools/same_tables.py ONE OTHER`.

Prints a line for each table, with the numbers of rows; exits with 1 where they differ. DuckDB compares: an independent
reader of the files, also of VARIANT, which it compares as JSON.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import duckdb


def files(directory: Path, table: str) -> str:
    """What DuckDB reads a table from."""
    names = str(directory / table / "**" / "*.parquet").replace("'", "''")
    return f"read_parquet('{names}', hive_partitioning = false, union_by_name = true)"


def compare(one: Path, other: Path, table: str) -> tuple[int, int]:
    """(rows in both, rows in only one of them)."""
    with duckdb.connect() as connection:
        described = connection.sql(f"DESCRIBE SELECT * FROM {files(one, table)}").fetchall()
        columns = ", ".join(
            f'CAST("{name}" AS JSON) AS "{name}"' if "VARIANT" in kind else f'"{name}"' for name, kind, *_ in described
        )
        first, second = (f"SELECT {columns} FROM {files(directory, table)}" for directory in (one, other))
        total = connection.sql(f"SELECT count(*) FROM ({first})").fetchall()[0][0]
        different = connection.sql(
            f"SELECT count(*) FROM (({first} EXCEPT ALL {second}) UNION ALL ({second} EXCEPT ALL {first}))"
        ).fetchall()[0][0]
    return total, different


def main() -> int:
    parser = argparse.ArgumentParser(prog="python tools/same_tables.py", description="Compares tables.")
    parser.add_argument("one", type=Path)
    parser.add_argument("other", type=Path)
    selected = parser.parse_args()
    failed = False
    for directory in sorted(path for path in selected.one.iterdir() if path.is_dir() and not path.name.startswith("_")):
        total, different = compare(selected.one, selected.other, directory.name)
        failed |= different > 0
        print(f"{directory.name:<15}{total:>8,} rows  {'equal' if not different else f'{different:,} differ'}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
