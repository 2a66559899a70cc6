"""The Delta logs of a lake: the files of its tables, and atomic changes to them.

    log = Log(location("lake"))
    log.files("frames", batch=12)                  # as of that batch
    log.commit("frames", 13, add=[...], remove=[...])

delta-rs (package `deltalake`) writes the logs; we write the Parquet files. Each batch is one commit per table, with its
number as application transaction, so that a retried commit is recognised.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Collection, Iterable, Iterator
from datetime import date
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, unquote

import pyarrow as pa
import pyarrow.fs

from pipeline.lake.confinement import (
    DOCUMENT_BYTES,
    PUBLIC,
    check_files,
    check_log,
    content_of,
    create_directory,
    damaged,
    data_path,
    delete_file,
)
from pipeline.lake.layout import APP, LOG, NS, DamagedLakeError, LakeError, LakeFile, lake_tables
from pipeline.output.location import PRIVATE, Location
from udfs.sink.parquet import spark_json
from udfs.source.capture_bytes import parts_of
from udfs.source.lake_states import DAY, OPEN

if TYPE_CHECKING:
    from deltalake import DeltaTable

LATER_TABLES = ("stalls", "oddities")  # earlier releases did not write them; a lake has them from its next batch on
VERSION = re.compile(r"\d{20}(?=\.)", re.ASCII)  # prefix of the names of its files
COMMIT = re.compile(r"\d{20}\.json", re.ASCII)
KEPT_VERSIONS = 64  # of a table, at least: readers may need older ones (`Log.as_of`)
TRIES = 5  # of a commit that conflicts with another one (compaction)
CONFIGURATION = {
    "delta.checkpointInterval": "20",  # commits that a reader replays at most
    "delta.logRetentionDuration": "interval 7 days",
    "delta.deletedFileRetentionDuration": "interval 1 hours",  # for readers of files that were replaced
}
KEYS = {"region": "AWS_REGION", "endpoint_override": "AWS_ENDPOINT_URL"}


def require_deltalake() -> None:
    """Raise LakeError when the package is missing."""
    try:
        import deltalake  # noqa: F401
    except ImportError:
        raise LakeError(
            "a lake needs the package deltalake, which is not installed: pip install 'wirehare[lake]'"
        ) from None


def storage_options(uri: str) -> dict[str, str]:
    """Options of delta-rs for the credentials and options in a URI of pyarrow."""
    parts = parts_of(uri)
    if not parts.scheme.startswith("s3"):
        return {}
    given = {name: values[0] for name, values in parse_qs(parts.options.lstrip("?")).items()}
    options = {KEYS[name]: value for name, value in given.items() if name in KEYS}
    if endpoint := options.get("AWS_ENDPOINT_URL"):
        scheme = given.get("scheme", "https")
        options["AWS_ENDPOINT_URL"] = endpoint if "://" in endpoint else f"{scheme}://{endpoint}"
        options["AWS_ALLOW_HTTP"] = str(options["AWS_ENDPOINT_URL"].startswith("http://")).lower()
    if ":" in parts.login:
        key, _, secret = parts.login.rstrip("@").partition(":")
        options |= {"AWS_ACCESS_KEY_ID": unquote(key), "AWS_SECRET_ACCESS_KEY": unquote(secret)}
    return options


class Log:
    """The logs of the tables below `root`; `uri`: the lake as the user wrote it."""

    def __init__(self, root: Location, uri: str | None = None) -> None:
        require_deltalake()
        self.root, self.tables = root, lake_tables()
        self._options = storage_options(uri or root.uri)
        self._open: dict[str, DeltaTable] = {}
        self._files: dict[str, tuple[int, list[LakeFile]]] = {}  # with the version of the table

    def latest(self, name: str) -> DeltaTable:
        """A table as of its last commit; cached, and updated incrementally. Raises LakeError."""
        from deltalake.exceptions import TableNotFoundError

        table = self._open.get(name)
        if table is not None and not self._committed(name, table.version() + 1):
            return table
        check_log(self.root, name)
        try:
            with content_of(self.root.child(name)):
                if table is None:
                    table = self._open[name] = self._loaded(name)
                else:
                    table.update_incremental()
        except DamagedLakeError as error:
            if isinstance(error.__cause__, TableNotFoundError):
                raise LakeError(f"{self.root.display_name}: no table {name}; the next batch creates it") from None
            raise
        return table

    def _loaded(self, name: str, version: int | None = None) -> DeltaTable:
        """A table as of a version, or of its last commit."""
        from deltalake import DeltaTable

        return DeltaTable(self._address(name), version=version, storage_options=self._options)

    def _committed(self, name: str, version: int) -> bool:
        """Whether a table has this version. delta-rs would take longer with each commit since the last checkpoint."""
        path = f"{self.root.child(name).child(LOG).path}/{version:020}.json"
        found: bool = self.root.files.get_file_info(path).type != pyarrow.fs.FileType.NotFound
        return found

    def exists(self, name: str) -> bool:
        """Whether the table was created: its log has a commit. A full disk may leave an empty log."""
        if name in self._open:
            return True
        check_log(self.root, name)
        return any(map(VERSION.match, self.root.child(name).child(LOG).entries() or ()))

    def create(self, name: str) -> None:
        """Create a table, or add the columns that an older release did not have."""
        from deltalake import DeltaTable, Schema

        wanted = Schema.from_json(spark_json(self.tables[name].whole_schema))
        if not self.exists(name):
            for path in (name, f"{name}/{LOG}"):
                create_directory(self.root, path, PRIVATE if self.tables[name].private else PUBLIC)
            check_log(self.root, name)
            DeltaTable.create(
                self._address(name),
                wanted,
                mode="ignore",
                partition_by=[OPEN, DAY] if self.tables[name].partitioned else None,
                configuration=CONFIGURATION,
                storage_options=self._options,
            )
            return
        table = self.latest(name)
        present = {field.name for field in table.schema().fields}
        missing = [field for field in wanted.fields if field.name not in present]
        if missing:
            table.alter.add_columns(missing)
            self._open.pop(name)

    def batch(self, name: str) -> int:
        """Number of the last batch of the table; 0: none."""
        return (self.latest(name).transaction_version(APP) or 0) if self.exists(name) else 0

    def as_of(self, name: str, batch: int) -> DeltaTable:
        """A table as of a recent batch, since later ones may be partly committed."""
        table = self.latest(name)
        if (table.transaction_version(APP) or 0) <= batch:
            return table
        version = table.version()
        with content_of(self.root.child(name)):
            while (table.transaction_version(APP) or 0) > batch:
                version -= 1
                table = self._loaded(name, version)
        return table

    def files(self, name: str, batch: int | None = None) -> list[LakeFile]:
        """The files of a table as of its last commit or of a batch; none of a table that is newer than the lake.
        Raises LakeError."""
        if name in LATER_TABLES and not self.exists(name):
            return []
        if batch is None:
            return self._files_of(name, self.latest(name))
        return files_of(self.root.child(name), self.as_of(name, batch))

    def readable(self, name: str, files: Iterable[LakeFile]) -> list[LakeFile]:
        """These files of a table, which libraries may open: see `confinement.check_files`."""
        found = list(files)
        check_files(self.root.child(name), (file.path for file in found))
        return found

    def _files_of(self, name: str, table: DeltaTable) -> list[LakeFile]:
        """The files of the latest version, cached."""
        version, known = self._files.get(name, (-1, []))
        if version != table.version():
            version, known = self._files[name] = table.version(), files_of(self.root.child(name), table)
        return list(known)

    def commit(
        self,
        name: str,
        batch: int | None,
        add: Iterable[LakeFile],
        remove: Collection[LakeFile],
        *,
        same_rows: bool = False,
    ) -> None:
        """Add and remove files atomically; does nothing if the table has this `batch` already. `same_rows`: only files
        change, not rows. Raises LakeError if other commits keep conflicting."""
        from deltalake import CommitProperties, Transaction
        from deltalake.exceptions import CommitFailedError
        from deltalake.transaction import AddAction, RemoveAction

        now = time.time_ns() // 1_000_000
        partitioned = self.tables[name].partitioned
        actions: list[Any] = [
            AddAction(
                file.path, file.size, _partition(file, partitioned), now, not same_rows,
                json.dumps({"numRecords": file.rows}),
            )
            for file in add
        ]  # fmt: skip
        actions += [
            RemoveAction(file.path, not same_rows, now, file.size, _partition(file, partitioned)) for file in remove
        ]
        transactions = [] if batch is None else [Transaction(APP, batch)]
        for left in reversed(range(TRIES)):
            table = self.latest(name)
            if batch is not None and (table.transaction_version(APP) or 0) >= batch:
                return
            self._require(name, table, remove)
            try:
                table.create_write_transaction(
                    actions,
                    "append",
                    table.schema(),
                    partition_by=[OPEN, DAY] if partitioned else None,
                    commit_properties=CommitProperties(app_transactions=transactions),
                )
            except CommitFailedError as error:
                self._open.pop(name, None)
                if not left:
                    raise LakeError(
                        f"{self.root.child(name).display_name}: cannot be committed, others write to it ({error})"
                    ) from error
                continue
            return

    def _require(self, name: str, table: DeltaTable, files: Collection[LakeFile]) -> None:
        """Raise LakeError unless these files are in the table: otherwise rows would be duplicated."""
        there = {file.path for file in self._files_of(name, table)} if files else set()
        for file in files:
            if file.path not in there:
                raise LakeError(
                    f"{self.root.child(name).display_name}: {file.path} was replaced by another process; try again"
                )

    def vacuum(self, name: str, hours: int) -> int:
        """Delete files that were removed from the table more than `hours` ago, and older files of its log, which each
        commit reads; returns the number of files of the table.

        Not by delta-rs, which lists the whole directory for it and follows links.
        """
        before_ns = time.time_ns() - hours * 3600 * NS
        there = {file.path for file in self.files(name)}
        gone = {path for path, removed_ns in self._removed(name) if removed_ns <= before_ns} - there
        deleted = sum(delete_file(self.root, f"{name}/{path}") for path in sorted(gone))
        self._truncate(name, before_ns)
        return deleted

    def _removed(self, name: str) -> Iterator[tuple[str, int]]:
        """(path, time in ns) of the files that the commits in the log have removed from a table."""
        check_log(self.root, name)
        table = self.root.child(name)
        for entry in sorted(table.child(LOG).entries() or ()):
            if not COMMIT.fullmatch(entry):
                continue
            with self.root.files.open_input_stream(table.child(LOG).child(entry).path) as stream:
                lines = stream.read(DOCUMENT_BYTES).splitlines()
            with content_of(table):
                for action in map(json.loads, filter(None, lines)):
                    if removed := action.get("remove"):
                        yield data_path(table, removed["path"]), int(removed.get("deletionTimestamp") or 0) * 1_000_000

    def _truncate(self, name: str, before_ns: int) -> None:
        """Delete the versions before the last checkpoint that is older than this time and than KEPT_VERSIONS."""
        found = self.root.files.get_file_info(pyarrow.fs.FileSelector(self.root.child(name).child(LOG).path))
        known = [(version, info) for info in found if (version := _version(info.base_name)) is not None]
        latest = max(version for version, _ in known)
        checkpoints = [
            version for version, info in known if "checkpoint" in info.base_name and info.mtime_ns <= before_ns
        ]
        first = max((version for version in checkpoints if version <= latest - KEPT_VERSIONS), default=0)
        for version, info in known:
            if version < first:
                delete_file(self.root, f"{name}/{LOG}/{info.base_name}")

    def _address(self, name: str) -> str:
        location = self.root.child(name)
        if location.local:
            return location.path
        parts = parts_of(location.uri)
        return f"{'s3' if parts.scheme == 's3a' else parts.scheme}://{parts.path}"


def files_of(location: Location, table: DeltaTable) -> list[LakeFile]:
    """The files of a version of the table in a directory. Raises DamagedLakeError."""
    with content_of(location):
        actions = pa.table(table.get_add_actions(flatten=True))
        columns = {
            "path": "path", "size": "size_bytes", "rows": "num_records", "open": f"partition.{OPEN}",
            "day": f"partition.{DAY}",
        }  # fmt: skip
        known = {
            name: actions[theirs].to_pylist() for name, theirs in columns.items() if theirs in actions.column_names
        }
        rows = zip(*known.values(), strict=True)
        return [checked(location, LakeFile(**dict(zip(known, row, strict=True)))) for row in rows]


def checked(table: Location, file: LakeFile) -> LakeFile:
    """A file that a log or a journal names. Raises DamagedLakeError unless it can be one of the table."""
    data_path(table, file.path)
    sizes = (file.size, file.rows)
    if (
        not all(type(number) is int and 0 <= number < 1 << 62 for number in sizes)
        or not isinstance(file.open, bool | None)
        or not isinstance(file.day, date | None)
    ):
        raise damaged(table, f"names {file.path} without its size, number of rows, or partition")
    return file


def _version(name: str) -> int | None:
    """The version in the name of a file of a log, if any."""
    found = VERSION.match(name)
    return int(found[0]) if found else None


def _partition(file: LakeFile, partitioned: bool) -> dict[str, str | None]:
    if not partitioned:
        return {}
    return {OPEN: str(bool(file.open)).lower(), DAY: file.day.isoformat() if file.day else None}
