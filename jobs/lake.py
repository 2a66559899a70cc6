"""Show a lake, compact its small files, or drop old days.

Without an option: its last batches, its days, its tables and open connections. Safe beside a running ingest and beside
readers. Spark is not needed.
"""

from __future__ import annotations

import argparse
import re
from collections import Counter
from typing import TYPE_CHECKING

from jobs.terminal.console import print_result, table
from jobs.terminal.running import OK, USAGE

if TYPE_CHECKING:
    from pipeline.lake.log import Log

EPILOG = """examples:
  wirehare lake lake
  wirehare lake lake --compact
  wirehare lake lake --expire 90d

exit codes:
  0  done
  2  bad usage, or no lake
  4  the file system failed; the lake is as it was
  5  the lake is damaged, or other users can change it
"""
EXIT_STATUSES = {"LakeError": (USAGE, "")}
BATCHES = 10  # listed
DAYS = 14


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("lake", metavar="LAKE", help="directory or URI that `wirehare ingest` fills")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--compact", action="store_true", help="compact the small files of past days")
    what.add_argument(
        "--expire", metavar="DAYS", type=days, help="drop what ended more than so many days before the latest day: 90d"
    )


def days(text: str) -> int:
    """A number of days, as 90d or 90."""
    found = re.fullmatch(r"(\d+)d?", text.strip())
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of days; expected one like 90d")
    return int(found[1])


def run(arguments: argparse.Namespace) -> int:
    from pipeline.lake.confinement import content_of
    from pipeline.lake.lake_files import compact, expire
    from pipeline.lake.log import Log
    from pipeline.lake.opening import open_lake, open_to_change
    from pipeline.output.formatting import plural

    changes = arguments.compact or arguments.expire is not None
    log = Log((open_to_change if changes else open_lake)(arguments.lake), arguments.lake)
    if changes:
        done = compact(log) if arguments.compact else expire(log, arguments.expire)
        what = f"compacted into {done.added:,}" if arguments.compact else "dropped"
        print_result(f"{plural(done.removed, 'file')} {what}; {plural(done.deleted, 'old file')} deleted")
        return OK
    with content_of(log.root):
        text = overview(log)
    print_result(text)
    return OK


def overview(log: Log) -> str:
    """The lake's last batches, days, tables and open connections, as text."""
    from codec.tables import TABLES
    from pipeline.lake.lake_files import read_rows
    from pipeline.output.formatting import plural, size

    last = log.batch("captures")
    if not last:
        return f"{log.root.display_name}: no batch yet"
    files = {name: log.files(name, last) for name in TABLES}
    of_day: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    for name, some in files.items():
        for file in some:
            key = "open" if file.open else str(file.day or "no day")
            of_day[key] += file.rows if name == "messages" else 0
            sizes[key] += file.size
    batches = read_rows(log.root, "batches", sorted(log.files("batches", last), key=lambda file: file.path)[-BATCHES:])
    columns = ("batch", "started_ts", "files", "packets", "frames", "messages", "open_connections", "seconds")
    states = log.files("states", last)
    over = sum(map(bool, read_rows(log.root, "states", states, ["over"])["over"].to_pylist()))
    late = f", {over:,} ended by TCP (late copies of packets may still arrive)" if over else ""
    return "\n".join(
        [
            table("Last batches", columns, [[row[name] for name in columns] for row in batches.to_pylist()]),
            table(
                "Days (what ended there), and what is still open",
                ("day", "messages", "size"),
                [[day, of_day[day], size(sizes[day])] for day in sorted(sizes)[-DAYS:]],
            ),
            table(
                "Tables",
                ("table", "rows", "files", "size"),
                [
                    [name, sum(file.rows for file in some), len(some), size(sum(file.size for file in some))]
                    for name, some in files.items()
                ],
            ),
            f"Batch {last:,}. {plural(sum(file.rows for file in states) - over, 'connection')} open{late}; states take "
            + size(sum(file.size for file in states)),
        ]
    )
