"""The rows of every capture, written down once and compared after a change.

    python tests/support/row_digests.py record ROWS [CAPTURE_OR_FOLDER ...]
    python tests/support/row_digests.py compare ROWS [CAPTURE_OR_FOLDER ...] [--only GLOB] [--lines N]

`record` decodes each capture by this process alone, with the bytes of bodies, and writes the rows of all tables into
the folder ROWS, a file for each capture. `compare` decodes them again and prints, for each capture and table whose rows
differ, what differs: rows are matched by their columns of identity, and only columns with another value are printed.
Columns that one side lacks are named once. Exit status 1 if anything differs. Without captures, those of the tests.
"""

from __future__ import annotations

import argparse
import fnmatch
import gzip
import hashlib
import json
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

sys.path.insert(0, str(Path(__file__).parents[2]))

from codec.variant import decode
from pipeline import write
from pipeline.tables.processes import LocalProcesses

CAPTURES = Path(__file__).parents[1] / "captures"
ENDINGS = (".pcap", ".pcapng", ".pcap.gz", ".pcapng.gz", ".pcap.zst", ".pcap.lz4", ".cap")
KEY_LOG = ".keylog.txt"
# Columns by which a row is found again; those that a table lacks do not count.
IDENTITY = (
    "capture_file", "connection_id", "publish_connection_id", "deliver_connection_id", "direction", "sender", "channel",
    "channel_life", "link", "frame_no", "header_frame_no", "publish_frame_no", "deliver_frame_no", "first_frame_no",
    "opened_frame_no", "packet_no",
)  # fmt: skip
Rows = dict[str, list[dict[str, str]]]


def captures(paths: list[str]) -> dict[str, Path]:
    """Captures by name; of a folder those in it, and each folder in it as one capture of several files."""
    found: dict[str, Path] = {}
    for path in map(Path, paths or [str(CAPTURES)]):
        inside = sorted(path.iterdir()) if path.is_dir() else [path]
        found |= {each.name: each for each in inside if each.is_dir() or each.name.endswith(ENDINGS)}
    return found


def as_json(value: Any) -> Any:
    """A value of a column, of VARIANT what it means."""
    if isinstance(value, dict):
        if value.keys() == {"value", "metadata"}:
            return repr(decode(value["value"], value["metadata"]))
        return {name: as_json(part) for name, part in value.items()}
    if isinstance(value, list):
        return [as_json(part) for part in value]
    if isinstance(value, bytes):
        return hashlib.sha256(value).hexdigest()[:16] if len(value) > 32 else value.hex()
    return value if value is None or isinstance(value, str | int | float | bool) else str(value)


def rows(capture: Path) -> Rows:
    """The rows of all tables of a capture, each column as JSON; columns without a value are left out."""
    stem = capture.name.split(".")[0]
    logs = [str(log) for log in [capture.parent / f"{stem}{KEY_LOG}"] if log.is_file()]
    found: Rows = {}
    with tempfile.TemporaryDirectory() as folder:
        write(LocalProcesses(1), str(capture), f"{folder}/tables", payload=True, keylog=logs or None)
        for table in sorted(Path(folder, "tables").iterdir()):
            if not table.is_dir() or table.name.startswith(("_", ".")):
                continue
            parts = [pq.read_table(file, partitioning=None) for file in sorted(table.rglob("*.parquet"))]
            found[table.name] = sorted(
                (
                    {name: json.dumps(as_json(value)) for name, value in row.items() if value is not None}
                    for row in (pa.concat_tables(parts, promote_options="default").to_pylist() if parts else ())
                ),
                key=json.dumps,
            )
    for row in (row for own in found.values() for row in own):  # wherever the folder of captures is
        if "capture_file" in row:
            row["capture_file"] = json.dumps(json.loads(row["capture_file"]).rsplit("/", 1)[-1])
    return found


def identity(row: dict[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple((name, row[name]) for name in IDENTITY if name in row)


def digest(own: list[dict[str, str]]) -> str:
    """Does not depend on the order of rows."""
    return hashlib.sha256("\n".join(sorted(json.dumps(row, sort_keys=True) for row in own)).encode()).hexdigest()[:16]


def differences(before: list[dict[str, str]], after: list[dict[str, str]]) -> Iterator[str]:
    """One line for each row that only one side has, or that has other values."""
    texts = [Counter(json.dumps(row, sort_keys=True) for row in own) for own in (before, after)]
    gone, new = ([json.loads(text) for text in (one - other).elements()] for one, other in (texts, texts[::-1]))
    by_identity = defaultdict(list)
    for row in new:
        by_identity[identity(row)].append(row)
    for row in gone:
        partners = by_identity[identity(row)]
        at = " ".join(f"{name}={value}" for name, value in identity(row))
        if not partners:
            yield f"- {json.dumps(row)}"
            continue
        other = partners.pop(0)
        changed = [name for name in row.keys() | other.keys() if row.get(name) != other.get(name)]
        values = (f"{name}: {row.get(name)} -> {other.get(name)}" for name in sorted(changed))
        yield f"~ {at}: " + "; ".join(values)
    for row in (row for partners in by_identity.values() for row in partners):
        yield f"+ {json.dumps(row)}"


def columns(own: Rows) -> set[tuple[str, str]]:
    return {(table, name) for table, of_table in own.items() for row in of_table for name in row}


def compare(name: str, before: Rows, after: Rows, lines: int, ignored: set[tuple[str, str]]) -> bool:
    """Print what differs; whether anything does. `ignored`: columns that only one side knows."""
    differs = False
    for table in sorted(before.keys() | after.keys()):
        sides = [
            [{c: v for c, v in row.items() if (table, c) not in ignored} for row in side.get(table, [])]
            for side in (before, after)
        ]
        if digest(sides[0]) == digest(sides[1]):
            continue
        differs = True
        found = list(differences(*sides))
        print(f"{name} {table}: {len(sides[0])} rows, now {len(sides[1])}; {len(found)} differ")
        for line in found[:lines]:
            print("   ", line[:2000])
        if len(found) > lines:
            print(f"    ... {len(found) - lines} more")
    return differs


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("what", choices=["record", "compare"])
    arguments.add_argument("rows", type=Path)
    arguments.add_argument("captures", nargs="*")
    arguments.add_argument("--only", default="*", help="captures whose name matches")
    arguments.add_argument("--lines", type=int, default=12, help="differing rows printed for each table")
    given = arguments.parse_args()
    given.rows.mkdir(parents=True, exist_ok=True)
    decoded, recorded = {}, {}
    for name, path in captures(given.captures).items():
        file = given.rows / f"{name}.rows.json.gz"
        if not fnmatch.fnmatch(name, given.only) or (given.what == "compare" and not file.exists()):
            continue
        decoded[name] = rows(path)
        if given.what == "record":
            with gzip.open(file, "wt") as out:
                json.dump(decoded[name], out)
        else:
            recorded[name] = json.loads(gzip.decompress(file.read_bytes()))
    if given.what == "record":
        print(f"{len(decoded)} captures recorded in {given.rows}")
        return 0
    known = [set().union(*map(columns, side.values())) if side else set() for side in (recorded, decoded)]
    ignored = known[0] ^ known[1]
    for table, column in sorted(ignored):
        print(f"only {'before' if (table, column) in known[0] else 'now'}: {table}.{column}")
    differs = [compare(name, recorded[name], decoded[name], given.lines, ignored) for name in decoded]
    print(f"{sum(differs)} of {len(differs)} captures differ")
    return int(any(differs))


if __name__ == "__main__":
    sys.exit(main())
