"""Cut packets out of the captures: those of a connection, a message, a finding, or of any rows, as pcapng.

Runs as `wirehare cut`. The tables locate the frames; the packets come from the original captures. Only --where starts
Spark.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections.abc import Iterator, Sequence
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jobs.console import print_error, print_status, step
from jobs.decode import PORTS, start
from jobs.outputs import STANDARD_OUTPUT, writable
from jobs.running import FOUND, OK, UNREADABLE, USAGE, ExitStatus, ExitStatuses, UsageError, run_standalone
from jobs.stopping import run_interruptibly
from udfs.source.files import first_line, public_uri
from udfs.source.suggestions import meant, unknown

if TYPE_CHECKING:
    from pipeline.extract import Choice, CutOptions, Result, Rows
    from pipeline.extract.originals import Original
    from pipeline.output.place import Place

EPILOG = """examples:
  wirehare cut tables --connection 4711 -o one.pcapng              (connection_id)
  wirehare cut tables --connection 10.0.0.7:44650 -o one.pcapng    (as the summary of decode names it)
  wirehare cut tables --message 4711/20 -o message.pcapng          (connection_id/first_frame_no)
  wirehare cut tables --message-id order-17 -o order.pcapng        (wherever it was published or delivered)
  wirehare cut tables --finding HS-08 --whole -o hs-08.pcapng      (after wirehare audit; packets carry comments)
  wirehare cut tables --where "settle_latency_ns > 1e9" --table messages -o slow.pcapng
  wirehare cut tables --connection 4711 --redact --anonymise key -o to-share.pcapng
  wirehare cut tables --connection 4711 --keylog keys.txt --decrypted -o clear.pcapng
  wirehare cut tables --connection 4711 -o - | wireshark -k -i -

exit codes:
  0  done
  1  nothing matched, nothing was written
  2  bad usage; nothing was written
  3  tables or captures could not be read, or not to their end, or have changed: what could be read was written
  4  Spark or the file system failed; nothing was written
"""
LARGEST = (1 << 63) - 1  # LONG
Endpoint = tuple[str, int]  # IP address, port
Endpoints = tuple[Endpoint, ...]  # one or two


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "tables",
        metavar="TABLES",
        help="directory that `wirehare decode` has written, or a lake of `wirehare ingest`, or a URI of one",
    )
    parser.add_argument(
        "-o", "--output", metavar="FILE", required=True, help="the pcapng file to write; - for standard output"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace FILE if it exists")
    rows = parser.add_argument_group("what to cut (several add up)")
    rows.add_argument(
        "--connection",
        metavar="ID",
        nargs="+",
        type=connection,
        action="extend",
        help="all packets of these connections: a connection_id, IP:PORT of one side, or IP:PORT-IP:PORT of both "
        "([IP]:PORT for IPv6)",
    )
    rows.add_argument(
        "--message",
        metavar="ID/FRAME",
        nargs="+",
        type=message_key,
        action="extend",
        help="a message by connection_id/first_frame_no, with the frames that settled it or gave it back",
    )
    rows.add_argument(
        "--message-id", metavar="TEXT", nargs="+", action="extend", help="messages with this property message-id"
    )
    rows.add_argument(
        "--finding",
        metavar="RULE[/ID[/FRAME]]",
        nargs="+",
        type=finding,
        action="extend",
        help="findings of a rule, or only those of a connection, or only the one of a frame",
    )
    rows.add_argument("--where", metavar="SQL", help="rows of a table where this condition holds (Spark SQL)")
    rows.add_argument("--table", metavar="NAME", default="frames", help="the table for --where (default: frames)")
    more = parser.add_argument_group("how much")
    much = more.add_mutually_exclusive_group()
    much.add_argument("--whole", action="store_true", help="all packets of every connection with a selected row")
    much.add_argument(
        "--only",
        action="store_true",
        help="only packets that carry the rows: not those that open the connection and lead to a frame, without which "
        "dissectors may not find their way",
    )
    more.add_argument("--captures", metavar="DIR", help="where the captures are now, when they were moved")
    inside = parser.add_argument_group("connections inside TLS or WebSocket")
    how = inside.add_mutually_exclusive_group()
    how.add_argument(
        "--with-secrets",
        action="store_true",
        help="put the secrets of the connections cut, and no others, into the file (a Decryption Secrets Block): "
        "whoever has it can read them",
    )
    how.add_argument(
        "--decrypted", action="store_true", help="rewrite these connections in clear, with all of their packets"
    )
    inside.add_argument(
        "--keylog",
        metavar="FILE",
        nargs="+",
        action="extend",
        help="key logs with their secrets; secrets in the captures themselves are found without it",
    )
    share = parser.add_argument_group("to share it")
    share.add_argument(
        "--redact", action="store_true", help="blank message bodies, passwords and all bytes that were not understood"
    )
    share.add_argument(
        "--anonymise",
        metavar="KEYFILE",
        help="replace IP addresses (keeping common prefixes) and hardware addresses, by the key in this file",
    )


def number(text: str) -> int:
    """A connection_id, or a frame_no."""
    if not text.isdecimal() or int(text) > LARGEST:
        raise argparse.ArgumentTypeError(f"{text!r} is not a connection_id; expected a number as in the tables")
    return int(text)


def connection(text: str) -> int | Endpoints:
    """A connection_id, or the addresses and ports of one side or both."""
    if text.isdecimal():
        return number(text)
    try:
        return tuple(map(endpoint, text.split("-", 1)))
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a connection; expected a connection_id, IP:PORT or IP:PORT-IP:PORT, "
            "as 10.0.0.7:44650 or [fd00::7]:44650"
        ) from None


def endpoint(text: str) -> Endpoint:
    """The address and port of one side. Raises ValueError."""
    ip, _, port = text.rpartition(":")
    address = ip_address(ip.removeprefix("[").removesuffix("]"))
    if not port.isdecimal() or int(port) not in PORTS:
        raise ValueError(text)
    return str(address), int(port)


def message_key(text: str) -> tuple[int, int]:
    """A connection_id and the first_frame_no of a message."""
    connection, _, frame = text.partition("/")
    try:
        return number(connection), number(frame)
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a message; expected connection_id/first_frame_no, as 4711/20"
        ) from None


def finding(text: str) -> tuple[str, int | None, int | None]:
    """A rule_id, perhaps a connection_id, perhaps a frame_no."""
    rule, *numbers = text.split("/")
    try:
        if not rule or len(numbers) > 2:
            raise argparse.ArgumentTypeError
        connection, frame = (*map(number, numbers), None, None)[:2]
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a finding; expected a rule as HS-08, or HS-08/connection/frame"
        ) from None
    return rule, connection, frame


def exit_statuses() -> ExitStatuses:
    """Exit statuses of job-specific errors."""
    from pipeline.extract import CapturesError, CutError, TablesError
    from udfs.decode.key_logs import KeyLogError
    from udfs.source.paths import PathError

    return {
        KeyLogError: ExitStatus(USAGE),
        PathError: ExitStatus(USAGE),
        TablesError: ExitStatus(UNREADABLE),
        CapturesError: ExitStatus(UNREADABLE),
        CutError: ExitStatus(FOUND, "; nothing was written"),
    }


def run(arguments: argparse.Namespace) -> int:
    """Cut: check all arguments first, write the file last; return the exit code."""
    from pipeline.extract import TablesError, cut_rows, from_files
    from pipeline.extract.originals import COLUMNS, originals
    from pipeline.output.place import OutputError, place

    started = time.monotonic()
    how = cut_options(arguments)
    try:
        directory = place(arguments.tables)
        if directory.entries() is None:
            raise TablesError(f"{arguments.tables}: no such directory; expected one that `wirehare decode` has written")
    except OutputError as error:
        raise TablesError(str(error).replace("write tables into", "read tables from")) from error
    rows = from_files(directory, arguments.tables)
    captures = originals(rows("captures", COLUMNS), arguments.captures)
    target = None if arguments.output == STANDARD_OUTPUT else output_place(arguments, captures)
    chosen = chosen_rows(arguments, rows, directory)
    with open_output(target) as file:
        result = cut_rows(rows, chosen, file, how, captures)
    print_summary(result, arguments, time.monotonic() - started)
    for problem in result.problems:
        print_error(f"wirehare cut: {problem}")
    return UNREADABLE if result.problems else OK


def cut_options(arguments: argparse.Namespace) -> CutOptions:
    """The options of the cut. Raises UsageError."""
    from pipeline.extract import CutOptions
    from udfs.decode.key_logs import require_key_logs
    from udfs.source.paths import anchored

    wanted = (arguments.connection, arguments.message, arguments.message_id, arguments.finding, arguments.where)
    if not any(wanted):
        raise UsageError("nothing to cut; expected --connection, --message, --message-id, --finding or --where")
    if arguments.with_secrets and arguments.redact:
        raise UsageError("--with-secrets: secrets show what --redact hides; expected --decrypted instead")
    if arguments.keylog and not (arguments.with_secrets or arguments.decrypted):
        raise UsageError("--keylog: packets are cut as they are; expected --with-secrets or --decrypted too")
    key_logs = tuple(anchored(path) for path in arguments.keylog or ())
    require_key_logs(key_logs)
    return CutOptions(
        arguments.whole,
        not arguments.only,
        arguments.captures,
        arguments.redact,
        read_key(arguments.anonymise),
        arguments.with_secrets,
        arguments.decrypted,
        key_logs,
    )


def read_key(name: str | None) -> bytes | None:
    """The key in a file. Raises UsageError."""
    from codec.pseudonyms import key_of

    if name is None:
        return None
    try:
        return key_of(Path(name).read_bytes())
    except OSError as error:
        raise UsageError(f"--anonymise {name}: cannot be read ({first_line(error)})") from error
    except ValueError as error:
        raise UsageError(f"--anonymise {name}: {error}") from error


def chosen_rows(arguments: argparse.Namespace, rows: Rows, directory: Place) -> Choice:
    """The rows that the arguments select. Raises UsageError, TablesError."""
    import pyarrow as pa

    from pipeline.extract import KEYS, Choice
    from pipeline.extract.choice import findings

    chosen = Choice(messages=set(arguments.message or ()))
    for one in arguments.connection or ():
        chosen.connections |= {one} if isinstance(one, int) else connections_between(rows, one)
    if arguments.message_id:
        keys = pa.table({"message_id": pa.array(arguments.message_id, pa.string())})
        chosen.add("messages", rows("messages", KEYS["messages"], keys))
    if arguments.finding:
        require_findings(directory)
    for rule, connection_id, frame_no in arguments.finding or ():
        found = findings(rows, rule, connection_id, frame_no)
        if not len(found):
            require_rule(rule, rows)
        chosen.add("findings", found)
    if arguments.where is not None:
        if arguments.table not in KEYS:
            raise UsageError(f"--table: {unknown('table', arguments.table, KEYS)}")
        chosen.add(arguments.table, rows_where(arguments.table, arguments.where, directory, arguments.tables))
    return chosen


def has_findings(directory: Place) -> bool:
    """Whether the directory has the findings of an audit."""
    return "findings" in (directory.entries() or ())


def require_findings(directory: Place) -> None:
    """Raise TablesError if there are no findings."""
    from pipeline.extract import TablesError

    if not has_findings(directory):
        raise TablesError(f"{directory.display_name}: holds no table findings; `wirehare audit` writes it")


def require_rule(name: str, rows: Rows) -> None:
    """Raise UsageError for an unknown rule."""
    from pipeline.audit.catalogue import catalogue

    known = {*catalogue(), *rows("findings", ["rule_id"])["rule_id"].to_pylist()}  # the latter has custom rules, too
    if name not in known:
        raise UsageError(f"--finding {name}: there is no rule {name!r}{meant(name, sorted(known))}")


def connections_between(rows: Rows, ends: Endpoints) -> set[int]:
    """The connections of one endpoint, or between two. Raises CutError if there are none."""
    import pyarrow as pa

    from pipeline.extract import CutError

    found: set[int] = set()
    for one, other in ((0, 1), (1, 0)):
        keys: dict[str, pa.Array] = {}
        for side, which in (("client", one), ("server", other)):
            if which < len(ends):
                ip, port = ends[which]
                keys |= {f"{side}_ip": pa.array([ip]), f"{side}_port": pa.array([port], pa.int32())}
        found.update(rows("connections", ["connection_id"], pa.table(keys))["connection_id"].to_pylist())
    if not found:
        shown = "-".join(f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}" for ip, port in ends)
        raise CutError(f"there is no connection {'between' if len(ends) > 1 else 'of'} {shown} in the tables")
    return found


def rows_where(table: str, condition: str, directory: Place, uri: str) -> Any:
    """The keys (pyarrow.Table) of the rows of a table that match a condition in Spark SQL, which may name all tables.

    Raises UsageError for an invalid condition.
    """
    from pyspark.errors import AnalysisException, ParseException

    import pipeline
    from pipeline.extract import KEYS
    from pipeline.lake.place import is_lake

    if table == "findings":
        require_findings(directory)
    spark = run_interruptibly(start)
    for name, frame in pipeline.load(spark, uri if is_lake(directory) else directory.pattern).items():
        frame.createOrReplaceTempView(name)
    if has_findings(directory):
        spark.read.parquet(directory.child("findings").pattern).createOrReplaceTempView("findings")
    try:
        with step(f"looking for {table}", f"Rows of {table} found", spark):
            keys = spark.table(table).where(condition).select(*KEYS[table]).distinct()
            return run_interruptibly(keys.toArrow, [spark])
    except (AnalysisException, ParseException) as error:
        raise UsageError(f"--where: {first_line(error)}") from error


def output_place(arguments: argparse.Namespace, captures: Sequence[Original]) -> Place:
    """The place of the output. Raises UsageError if it is one of the captures, or a file that may not be replaced."""
    from pyarrow.fs import FileType

    from pipeline.extract.originals import is_capture

    name = arguments.output
    target = writable(name)
    if is_capture(captures, target):
        raise UsageError(f"{name}: is one of the captures; expected another file to write into")
    if not arguments.overwrite and target.files.get_file_info(target.path).type != FileType.NotFound:
        raise UsageError(f"{name}: exists; use --overwrite to replace it, or another name")
    return target


@contextlib.contextmanager
def open_output(target: Place | None) -> Iterator[Any]:
    """An open file, which replaces `target` when the body succeeds; standard output without a target."""
    from pipeline.output.place import sink

    if target is None:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    with sink(target) as file:
        yield file


def print_summary(result: Result, arguments: argparse.Namespace, seconds: float) -> None:
    """Print what was written to stderr: standard output may be the file."""
    from pipeline.output.units import plural

    name = "standard output" if arguments.output == STANDARD_OUTPUT else public_uri(arguments.output)
    print_status(
        f"{plural(result.packets, 'packet')} of {plural(result.connections, 'connection')} from "
        f"{plural(len(result.captures), 'capture')} to {name} in {seconds:.1f} s"
    )
    if result.blanked:
        print_status(
            f"{plural(result.blanked, 'packet')} with all of the payload blanked: fragments, copies that differ, "
            "or outside of the stream"
        )


if __name__ == "__main__":
    sys.exit(run_standalone("jobs.cut"))
