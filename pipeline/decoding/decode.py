"""From captures to decoded rows (`udfs.schemas.DECODED`) as rows of Spark, or to tables straight in files."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, TypedDict, Unpack

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from pipeline.output import parquet
from pipeline.output.swap import Place
from pipeline.tables.config import MADE_BY_WORKERS, config
from pipeline.tables.exchange import Here, OnSpark, ThisProcess
from pipeline.tables.methods import streams
from udfs.schemas import DECODED
from udfs.source.suggestions import suggesting

if TYPE_CHECKING:
    import pyarrow as pa

    from udfs.decode.key_logs import SecretFiles
    from udfs.decode.writing import WriteTables
    from udfs.source.one_task import InOneTask

# Packets are handled one by one in this order, however the captures were split and their runs cut.
RUN_ORDER = ("flow", "order_ns", "capture_file", "first_packet_no")

# Captures of so many bytes in all are read and decoded by one task (`udfs.source.one_task`): a core takes a second for
# them.
ONE_TASK_BYTES = 8 << 20
# So many bytes are decoded by this process (`ThisProcess`) sooner than Spark starts, in less than 1 GB: 60 MB take 5 s.
HERE_BYTES = 64 << 20
ONE_TASK_FILES = 64

# Tables that message_flows are made of.
OF_FLOWS = ("messages", "connections")


Time = int | str | datetime
Decode = Callable[["Iterator[pa.RecordBatch]"], "Iterator[pa.RecordBatch]"]


class Chosen(TypedDict, total=False):
    """Which packets of the captures are wanted, and how these are cut.

    `ports`, `hosts`: only connections with one of them on either side. `since` (inclusive), `until` (exclusive):
    packets of this time, as `udfs.source.options.parse_time` reads it. `split_bytes`: plain captures above this size
    are read in several splits, which changes nothing in the rows. `keylog`: key logs (files, URIs) with the secrets of
    TLS connections; those in the captures themselves are found without it."""

    ports: int | Sequence[int] | None
    hosts: str | Sequence[str] | None
    since: Time | None
    until: Time | None
    split_bytes: int | None
    keylog: str | Sequence[str] | None


@suggesting
def decoded(
    spark: SparkSession,
    paths: str | Sequence[str],
    *,
    payload: bool = False,
    ports: int | Sequence[int] | None = None,
    hosts: str | Sequence[str] | None = None,
    since: Time | None = None,
    until: Time | None = None,
    split_bytes: int | None = None,
    keylog: str | Sequence[str] | None = None,
) -> DataFrame:
    """Captures -> decoded rows (`udfs.schemas.DECODED`), lazily and each time anew.

    `paths`: files, directories, globs, URIs; relative ones are under the directory of this process, wherever Spark
    was started. `payload`: with the bytes of content bodies. The others: see `Chosen`. A capture that cannot be read
    gives a row in `captures` with its error.
    """
    from udfs.decode.decoder import decode_runs

    chosen = Chosen(ports=ports, hosts=hosts, since=since, until=until, split_bytes=split_bytes)
    decode = decode_runs(payload, secrets=secret_files(paths, keylog))
    return by_flow(spark, paths, decode, DECODED, chosen)


def secret_files(paths: str | Sequence[str], keylog: str | Sequence[str] | None) -> SecretFiles:
    """Where workers find the secrets of these captures; KeyLogError where a key log is none."""
    from udfs.decode.key_logs import SecretFiles, require_key_logs
    from udfs.source.paths import anchored

    key_logs = [anchored(path) for path in ([keylog] if isinstance(keylog, str) else keylog or ())]
    require_key_logs(key_logs)
    captures = [anchored(path) for path in ([paths] if isinstance(paths, str) else paths)]
    return SecretFiles(tuple(key_logs), tuple(captures))


def decode_into(
    spark: SparkSession | ThisProcess,
    paths: str | Sequence[str],
    directory: Place,
    tables: Collection[str],
    *,
    payload: bool = False,
    **chosen: Unpack[Chosen],
) -> Written:
    """Write what workers make for these tables into files of `directory`. Raises ValueError for captures that are too
    many, or too large, for this process."""
    from udfs.sink.parquet import WRITTEN

    if directory.entries() is None:
        directory.create()
    write_tables = writer(directory, tables, payload=payload, secrets=secret_files(paths, chosen.get("keylog")))
    if not isinstance(spark, ThisProcess):
        written = OnSpark(by_flow(spark, paths, write_tables, WRITTEN, chosen)).collected()
    elif (decode := one_task(paths, write_tables, chosen, most=HERE_BYTES)) is not None:
        with spark.interruptible():
            written = Here([]).then(decode, WRITTEN).collected()
    else:
        raise ValueError("these captures need Spark")
    return Written(directory, parquet.listed(written))


def writer(
    directory: Place, tables: Collection[str], *, payload: bool = False, secrets: SecretFiles | None = None
) -> WriteTables:
    """What workers call to write these tables; `secrets`: where those of TLS are."""
    from udfs.decode.writing import WriteTables

    flows = "message_flows" in tables
    wanted = {*tables, *(OF_FLOWS if flows else ())} & {*MADE_BY_WORKERS}
    made = config(payload, {*wanted, *(("methods",) if flows else ())})  # methods tell which queues are streams
    return WriteTables(directory.files, directory.path, made, wanted, streams() if flows else None, secrets)


@dataclass(frozen=True)
class Written:
    """What `decode_into` has left in `directory`: by folder, names of files and how many rows each has. Others may be
    there, and still come, from tasks that were tried again."""

    directory: Place
    files: Mapping[str, Mapping[str, int]]

    def moved(self, table: str, target: Place) -> bool:
        """Move the files of a table to `target`, which must not exist; whether there are any."""
        names = self.files.get(table, ())
        if names:
            self.directory.child(table).move_to(target)
            target.keep(names)
        return bool(names)

    def rows(self, *folders: str) -> int:
        """How many rows there are."""
        return sum(sum(self.files.get(folder, {}).values()) for folder in folders)

    def part(self, name: str, *columns: str) -> pa.Table | None:
        """The rows in a folder that was not moved; None if there are none."""
        names = self.files.get(name)
        return parquet.read(self.directory.child(name), columns, names) if names else None


def with_commas(values: int | str | Iterable[int | str] | None) -> str:
    """One value, several or none, as an option of a data source."""
    return ",".join(map(str, [values] if isinstance(values, int | str) else values or ()))


def by_flow(
    spark: SparkSession,
    paths: str | Sequence[str],
    decode: Decode,
    schema: StructType | str,
    chosen: Chosen,
    passed_over: Mapping[str, int] | None = None,
) -> DataFrame:
    """What `decode` makes of the runs of captures (`passed_over`: see `runs`), flow by flow; few bytes in one task."""
    function = None if chosen.get("split_bytes") else one_task(paths, decode, chosen, passed_over)
    if function is None:
        return sorted_runs(spark, paths, passed_over, **chosen).mapInArrow(decode, schema)
    return spark.range(0, 1, 1, 1).mapInArrow(function, schema)


def one_task(
    paths: str | Sequence[str],
    decode: Decode,
    chosen: Chosen,
    passed_over: Mapping[str, int] | None = None,
    most: int = ONE_TASK_BYTES,
) -> InOneTask | None:
    """What reads captures and hands their runs to `decode`, if they are few and have at most so many bytes."""
    from udfs.source.one_task import InOneTask

    options, places = _source(paths, chosen, passed_over)
    return InOneTask({**options, "paths": json.dumps(places)}, RUN_ORDER, decode) if in_one_task(places, most) else None


def sorted_runs(
    spark: SparkSession,
    paths: str | Sequence[str],
    passed_over: Mapping[str, int] | None = None,
    **chosen: Unpack[Chosen],
) -> DataFrame:
    """Captures -> runs of TCP segments (`udfs.schemas.TCP_RUNS`), the runs of a flow together and in RUN_ORDER."""
    return runs(spark, paths, passed_over, **chosen).repartition("flow").sortWithinPartitions(*RUN_ORDER)


def runs(
    spark: SparkSession,
    paths: str | Sequence[str],
    passed_over: Mapping[str, int] | None = None,
    **chosen: Unpack[Chosen],
) -> DataFrame:
    """Captures -> runs of TCP segments, in no order. `passed_over`: capture -> how many of its packets were read
    before."""
    from udfs.source.sources import register

    options, places = _source(paths, chosen, passed_over)
    register(spark)
    return spark.read.format("tcp_runs").options(**options).load(places)


def _source(
    paths: str | Sequence[str], chosen: Chosen, passed_over: Mapping[str, int] | None = None
) -> tuple[dict[str, str], list[str]]:
    """Options of the source, and its paths. Raises OptionError."""
    # Here, not above: the kernels behind them take a second to load, and tables already written need none.
    from udfs.source.options import parse_options
    from udfs.source.paths import anchored

    options = {
        "ports": with_commas(chosen.get("ports")),
        "hosts": with_commas(chosen.get("hosts")),
        "since": chosen.get("since"),
        "until": chosen.get("until"),
        "splitBytes": chosen.get("split_bytes"),
        "references": "true",
        "passedOver": json.dumps(passed_over) if passed_over else None,
    }
    given = {name: str(value) for name, value in options.items() if value not in (None, "")}
    parse_options(given)  # else the source would complain of a wrong one, through Java
    return given, [anchored(path) for path in ([paths] if isinstance(paths, str) else paths)]


def in_one_task(places: Sequence[str], most: int = ONE_TASK_BYTES) -> bool:
    """Whether captures are few and have at most so many bytes, for one task, which holds all of their runs: of
    compressed ones nobody knows how large they are, and what is not on this machine is not asked for."""
    from udfs.source.files import LOCAL, SCHEME
    from udfs.source.paths import PathError, resolve
    from udfs.source.reading import is_compressed

    if any(SCHEME.match(place) and not place.startswith(LOCAL) for place in places):
        return False
    try:
        files = resolve(places)
    except PathError:  # on Connect, the captures may be where the server is
        return False
    if len(files) > ONE_TASK_FILES or sum(file.expected_size for file in files) > most:
        return False
    return not any(map(is_compressed, files))
