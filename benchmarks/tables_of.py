"""What the rows of all tables cost, without Spark and Parquet: `python -m benchmarks.tables_of CAPTURE`.

Reads the runs of a capture, then makes all tables of them twice in this process, and prints a line for each: `first`
loads or compiles the kernels, `second SECONDS ROWS` is the figure, in processor seconds. --profile prints where they
go, function by function.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import time

import pyarrow as pa

from pipeline.tables.decoding import config, source_options
from udfs.source.sources import in_run_order, read_runs
from udfs.tables import tables_of


def rows_of(runs: list[pa.RecordBatch]) -> int:
    """Make all tables; how many rows they have."""
    return sum(part.rows.num_rows for part in tables_of(iter(runs), config()))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tables_of", description="Cost of all rows.")
    parser.add_argument("capture")
    parser.add_argument("--profile", metavar="N", type=int, default=0, help="print the N most expensive functions")
    given = parser.parse_args()
    start = time.process_time()
    runs = in_run_order(read_runs(source_options([given.capture], {})))
    print(f"read {time.process_time() - start:.2f}")
    for name in ("first", "second"):
        start = time.process_time()
        rows = rows_of(runs)
        print(f"{name} {time.process_time() - start:.2f} {rows}")
    if given.profile:
        profile = cProfile.Profile()
        profile.runcall(rows_of, runs)
        pstats.Stats(profile).sort_stats("tottime").print_stats(given.profile)


if __name__ == "__main__":
    main()
