"""Digests of the rows that captures decode to, which do not depend on their order; and what differs after a change.

    python -m tests.support.row_digests make FILE [CAPTURE_OR_DIRECTORY ...] [--rows DIRECTORY]
    python -m tests.support.row_digests check FILE [CAPTURE_OR_DIRECTORY ...] [--rows DIRECTORY]

`make` decodes each capture, with and without the bytes of bodies, and writes the digest of each table and of the
findings into FILE; with `--rows` also the rows as Parquet, a directory for each capture. `check` decodes them again and
prints each table whose digest is another one. Given the rows that `make` has written, it prints what differs: rows are
matched by their columns of identity, and only columns with another value are printed. Exit status 1 if anything
differs. Without captures, those of the tests. A directory means the captures in it, and each directory in it as one
capture of several files.

A line of FILE is a capture: by table that has rows their number, their digest, and the digest of the rows with the
bytes of bodies if that is another one. Findings are those of all captures in one audit, in which no two captures have
a connection in common.
"""

from __future__ import annotations

import argparse
import fnmatch
import hashlib
import json
import shutil
import sys
import tempfile
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from codec.variant import decode
from pipeline import write
from pipeline.audit import findings_in
from pipeline.run.local_processes import LocalProcesses

CAPTURES = Path(__file__).parents[1] / "captures"
SHIPPED = CAPTURES / "DIGESTS.json"
ENDINGS = (".pcap", ".pcapng", ".pcap.gz", ".pcapng.gz", ".pcap.zst", ".pcap.lz4", ".cap")
KEY_LOG = ".keylog.txt"
FINDINGS = "findings"
# Columns by which a row is found again; those that a table lacks do not count.
IDENTITY = (
    "capture_file", "connection_id", "publish_connection_id", "deliver_connection_id", "direction", "sender", "channel",
    "channel_incarnation", "link", "frame_no", "header_frame_no", "publish_frame_no", "deliver_frame_no",
    "first_frame_no", "opened_frame_no", "packet_no", "rule_id",
)  # fmt: skip
CAPTURE_BITS = 16  # the last ones of the id of a connection say in an audit of all captures which one has it
HEX_DIGITS = 12  # of a digest
MINUTE = 60  # s
# What becomes of columns with such endings, for no two captures to have it in common.
OWN = (
    ("_connection_id", f"(({{0}} >> {CAPTURE_BITS} << {CAPTURE_BITS}) | capture_number)"),
    ("_tcp_origin", "{0} + capture_number"),
    ("_ts_ns", f"{{0}} + capture_number * {MINUTE * 10**9}"),
    ("_ts", f"{{0}} + to_seconds({MINUTE} * capture_number)"),
)
Tables = dict[str, pa.Table]  # by name, each value as JSON; of a column without values nothing remains
Digests = dict[str, str]  # by table


def captures(paths: Iterable[str | Path]) -> dict[str, Path]:
    """Captures by name; of a directory those in it, and each directory in it as one capture of several files."""
    found: dict[str, Path] = {}
    for path in map(Path, paths):
        inside = sorted(path.iterdir()) if path.is_dir() else [path]
        for each in inside:
            if (each.is_dir() or each.name.endswith(ENDINGS)) and found.setdefault(each.name, each) != each:
                raise ValueError(f"two captures are named {each.name}: {found[each.name]}, {each}")
    return found


def key_logs(capture: Path) -> list[str] | None:
    log = capture.with_name(f"{capture.name.split('.')[0]}{KEY_LOG}")
    return [str(log)] if log.is_file() else None


def write_tables(capture: Path, directory: Path, payload: bool, runner: Any = None) -> None:
    """Write the tables of a capture below `directory`. `runner`: a session of Spark; None: this process alone."""
    with LocalProcesses(1) if runner is None else nullcontext(runner) as runner:
        write(runner, str(capture), str(directory), payload=payload, keylog=key_logs(capture))


def parquet_files(directory: Path) -> dict[str, list[Path]]:
    """The files of tables below a directory, by table."""
    tables = (path for path in sorted(directory.iterdir()) if path.is_dir() and path.name[0] not in "._")
    return {table.name: sorted(table.rglob("*.parquet")) for table in tables}


def tables_in(directory: Path, folder: Path) -> Tables:
    """The tables below a directory, of captures in `folder`."""
    return {
        name: as_json([pq.read_table(file, partitioning=None) for file in files], folder)
        for name, files in parquet_files(directory).items()
    }


def as_json(parts: Iterable[pa.Table], folder: Path) -> pa.Table:
    """Rows with each value as JSON, columns in order of their names; paths of captures begin below `folder`."""
    rows = pa.concat_tables(parts, promote_options="default")
    names = sorted(
        name for name, column in zip(rows.column_names, rows.columns, strict=True) if column.null_count < len(rows)
    )
    return pa.table({name: column_as_json(rows[name], f"{folder.resolve().as_uri()}/") for name in names})


def column_as_json(column: pa.ChunkedArray, folder: str) -> pa.Array:
    """Each value as JSON, of VARIANT what it means."""
    if pa.types.is_nested(column.type):
        texts, known = list[str | None](), dict[str, str]()
        for value in column.to_pylist():
            key = repr(value)
            if key not in known:
                known[key] = json.dumps(meaning(value)).replace(folder, "")
            texts.append(None if value is None else known[key])
        return pa.array(texts, pa.string())
    coded = column.combine_chunks().dictionary_encode()
    coded = coded if isinstance(coded, pa.DictionaryArray) else coded.combine_chunks()
    values = [json.dumps(meaning(value)).replace(folder, "") for value in coded.dictionary.to_pylist()]
    return pa.array(values, pa.string()).take(coded.indices)


def meaning(value: Any) -> Any:
    """A value of a column as JSON has it; of long bytes their hash."""
    if isinstance(value, dict):
        if value.keys() == {"value", "metadata"}:
            return repr(decode(value["value"], value["metadata"]))
        return {name: meaning(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [meaning(part) for part in value]
    if isinstance(value, bytes):
        return hashlib.sha256(value).hexdigest()[:16] if len(value) > 32 else value.hex()
    return value if value is None or isinstance(value, str | int | float | bool) else str(value)


def texts(rows: pa.Table) -> list[str]:
    """Each row as a text with its columns that are not null."""
    columns = [
        [None if value is None else f"{name}={value}" for value in column.to_pylist()]
        for name, column in zip(rows.column_names, rows.columns, strict=True)
    ]
    return [" ".join(filter(None, row)) for row in zip(*columns, strict=True)]


def digest(rows: pa.Table) -> str:
    """The number of rows and a digest that does not depend on their order."""
    joined = "\n".join(sorted(texts(rows)))
    return f"{len(rows)} {hashlib.sha256(joined.encode()).hexdigest()[:HEX_DIGITS]}"


def digests(tables: Mapping[str, pa.Table]) -> Digests:
    """Of tables that have rows."""
    return {name: digest(rows) for name, rows in sorted(tables.items()) if len(rows)}


def both(without: Digests, with_payload: Digests) -> Digests:
    """The texts of FILE for a capture, of the digests without and with the bytes of bodies."""
    return {
        table: each if each == with_payload[table] else f"{each} {with_payload[table].partition(' ')[2]}"
        for table, each in without.items()
    }


def expected(of_capture: Digests, payload: bool) -> Digests:
    """The digests of a capture without, or with, the bytes of bodies, from the texts of FILE."""
    found = {}
    for table, text in of_capture.items():
        number, *either = text.split()
        found[table] = f"{number} {either[-1 if payload else 0]}"
    return found


def capture_number(name: str) -> int:
    return zlib.crc32(name.encode()) & ((1 << CAPTURE_BITS) - 1)


def write_together(directories: Mapping[str, Path], folder: Path) -> None:
    """Write one directory of tables below `folder` from those of several captures, by name, in which no two captures
    have a connection, or a time, in common: numbers of captures replace the last bits of ids, are added to what
    identifies a connection on both sides of a NAT, and are the minutes by which all packets are moved."""
    numbers = {name: capture_number(name) for name in directories}
    assert len({*numbers.values()}) == len(numbers), "two captures have one number: more CAPTURE_BITS"
    files = defaultdict[str, list[tuple[str, int]]](list)
    for name, directory in directories.items():
        for table, own in parquet_files(directory).items():
            files[table] += [(str(file), numbers[name]) for file in own]
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.execute("CREATE TABLE files (filename VARCHAR, capture_number BIGINT)")
        connection.executemany(
            "INSERT INTO files VALUES (?, ?)", [row for of_table in files.values() for row in of_table]
        )
        for table, of_table in files.items():
            read = "read_parquet($files, union_by_name = true, hive_partitioning = false, filename = true)"
            given = {"files": [file for file, _ in of_table]}
            columns = [column for column, *_ in connection.execute(f"DESCRIBE SELECT * FROM {read}", given).fetchall()]
            replaced = [
                f"{text.format(column)} AS {column}"
                for column in columns
                for ending, text in OWN
                if f"_{column}".endswith(ending)
            ]
            replacing = f"REPLACE ({', '.join(replaced)})" if replaced else ""
            (folder / table).mkdir(parents=True)
            connection.execute(
                f"COPY (SELECT * EXCLUDE (filename, capture_number) {replacing} "
                f"FROM {read} JOIN files USING (filename)) TO '{folder / table / 'part-0.parquet'}' (FORMAT parquet)",
                given,
            )


def findings_of(directories: Mapping[str, Path], found: Mapping[str, Path], find: Callable[[Path], pa.Table]) -> Tables:
    """The findings about each capture. `directories` of their tables, and `found`: the captures, both by name; `find`
    audits a directory of tables."""
    with tempfile.TemporaryDirectory() as folder:
        write_together(directories, Path(folder))
        findings = find(Path(folder))
    names = {capture_number(name): name for name in directories}
    uris = {path.resolve().as_uri(): name for name, path in found.items()}
    owners, rows = list[str](), list[dict[str, Any]]()
    for row in findings.to_pylist():
        if row["connection_id"] is None:
            uri = row["capture_file"] or ""
            owners.append(uris.get(uri, uris.get(uri.rpartition("/")[0], "")))
            rows.append(row)
        else:
            number = row["connection_id"] & ((1 << CAPTURE_BITS) - 1)
            owners.append(names[number])
            ts = row["ts"] and row["ts"] - timedelta(seconds=MINUTE * number)
            rows.append({**row, "connection_id": row["connection_id"] >> CAPTURE_BITS, "ts": ts})
    findings = pa.Table.from_pylist(rows, findings.schema)
    owner = pa.array(owners, pa.string())
    return {
        name: as_json([findings.filter(pa.compute.equal(owner, name))], found[name].parent if name else CAPTURES)
        for name in (*directories, *({""} & {*owners}))
    }


def find_here(directory: Path) -> pa.Table:
    """The findings about a directory of tables, in this process."""
    return findings_in({name: [*map(str, files)] for name, files in parquet_files(directory).items()})


def find_on_spark(spark: Any) -> Callable[[Path], pa.Table]:
    """The same in a task of Spark."""
    import pipeline

    def find(directory: Path) -> pa.Table:
        return pipeline.to_arrow(pipeline.findings(pipeline.load(spark, str(directory))))

    return find


def rows_of_all(found: Mapping[str, Path], payload: bool, with_findings: bool = True) -> dict[str, Tables]:
    """The tables of all captures, by name; with the findings if they are wanted."""
    with tempfile.TemporaryDirectory() as folder:
        directories = {name: Path(folder, name) for name in found}
        result = dict[str, Tables]()
        for name, path in found.items():
            write_tables(path, directories[name], payload)
            result[name] = tables_in(directories[name], path.parent)
        if with_findings:
            for name, findings in findings_of(directories, found, find_here).items():
                result.setdefault(name, {})[FINDINGS] = findings
    return result


def identity(row: dict[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple((name, row[name]) for name in IDENTITY if name in row)


def not_null(rows: pa.Table, ignored: Iterable[str] = ()) -> list[dict[str, str]]:
    """Each row without its columns that are null, and without those to ignore."""
    names = [name for name in rows.column_names if name not in {*ignored}]
    return [{name: value for name, value in row.items() if value is not None} for row in rows.select(names).to_pylist()]


def differences(before: list[dict[str, str]], after: list[dict[str, str]]) -> Iterator[str]:
    """One line for each row that only one side has, or that has other values."""
    of_rows = [Counter(json.dumps(row, sort_keys=True) for row in own) for own in (before, after)]
    gone, new = ([json.loads(text) for text in (one - other).elements()] for one, other in (of_rows, of_rows[::-1]))
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


def rows_file(rows: Path, payload: bool, name: str, table: str) -> Path:
    """Where the rows of a table of a capture are below the directory `rows`."""
    return rows / ("with payload" if payload else "without payload") / (name or "all captures") / f"{table}.parquet"


def make(file: Path, found: Mapping[str, Path], rows: Path | None) -> int:
    of_payload = {}
    for payload in (False, True):
        result = rows_of_all(found, payload)
        of_payload[payload] = {name: digests(tables) for name, tables in result.items()}
        for name, tables in result.items() if rows else ():
            for table, own in tables.items():
                path = rows_file(rows or Path(), payload, name, table)
                path.parent.mkdir(parents=True, exist_ok=True)
                pq.write_table(own, path, compression="zstd")
    lines = (
        f"{json.dumps(name)}: {json.dumps(both(without, of_payload[True][name]))}"
        for name, without in sorted(of_payload[False].items())
    )
    file.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    print(f"{len(found)} captures: {file}" + (f", rows in {rows}" if rows else ""))
    return 0


def check(file: Path, found: Mapping[str, Path], rows: Path | None, lines: int, with_findings: bool) -> int:
    known: dict[str, Digests] = json.loads(file.read_text())
    for name in found.keys() - known.keys():
        print(f"{name}: not in {file}")
    found = {name: path for name, path in found.items() if name in known}
    differing = set[str]()
    for payload in (False, True):
        for name, tables in rows_of_all(found, payload, with_findings).items():
            before, after = expected(known.get(name, {}), payload), digests(tables)
            if not with_findings:
                before.pop(FINDINGS, None)
            for table in sorted(before.keys() | after.keys()):
                if before.get(table) != after.get(table):
                    differing.add(name)
                    with_or_without = "with payload" if payload else "without payload"
                    print(f"{name} {table} {with_or_without}: {before.get(table)}, now {after.get(table)}")
                    if rows and table in tables and (former := rows_file(rows, payload, name, table)).exists():
                        print_differences(pq.read_table(former), tables[table], lines)
    print(f"{len(differing)} of {len(found)} captures differ")
    return int(bool(differing))


def print_differences(before: pa.Table, after: pa.Table, lines: int) -> None:
    """Print the rows that differ. Columns that all rows of one side lack are named once."""
    ignored = {*before.column_names} ^ {*after.column_names}
    for name in sorted(ignored):
        print(f"    only {'before' if name in before.column_names else 'now'}: column {name}")
    found = list(differences(not_null(before, ignored), not_null(after, ignored)))
    for line in found[:lines]:
        print("   ", line[:2000])
    if len(found) > lines:
        print(f"    ... {len(found) - lines} more")


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.support.row_digests",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("what", choices=["make", "check"])
    parser.add_argument("file", type=Path, help="of digests")
    parser.add_argument("captures", nargs="*", default=[str(CAPTURES)])
    parser.add_argument("--rows", type=Path, help="directory of the rows that `make` writes and `check` compares with")
    parser.add_argument("--only", default="*", help="check captures whose name matches, without findings")
    parser.add_argument("--lines", type=int, default=12, help="differing rows printed for each table")
    given = parser.parse_args()
    found = captures(given.captures)
    if given.what == "make":
        if given.rows:
            shutil.rmtree(given.rows, ignore_errors=True)
        return make(given.file, found, given.rows)
    selected = {name: path for name, path in found.items() if fnmatch.fnmatch(name, given.only)}
    return check(given.file, selected, given.rows, given.lines, given.only == "*")


if __name__ == "__main__":
    sys.exit(main())
