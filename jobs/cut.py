"""Cut packets out of the captures into a pcapng file: those of a connection, a message, a finding, or any rows.

Runs as `wirehare cut`. The tables locate the frames; the packets come from the original captures.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections.abc import Sequence
from ipaddress import ip_address
from itertools import product, starmap
from typing import TYPE_CHECKING, Any

from jobs.decode import interpret_while_cold
from jobs.terminal.arguments import PORTS, STANDARD_OUTPUT, add_list, add_tables, output_file, tables_directory
from jobs.terminal.console import print_error, print_status, step
from jobs.terminal.running import FOUND, OK, UNREADABLE, UsageError, run_interruptibly, run_standalone
from udfs.source.options import meant, unknown

if TYPE_CHECKING:
    from pipeline.extract import Choice, CutOptions, Result, Rows
    from pipeline.extract.originals import Original
    from pipeline.output.location import Location

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
  4  the file system failed; nothing was written
  5  the tables are a lake, and it is damaged; nothing was written
"""
EXIT_STATUSES = {
    "TablesError": (UNREADABLE, ""),
    "LakeError": (UNREADABLE, ""),
    "CapturesError": (UNREADABLE, ""),
    "CutError": (FOUND, "; nothing was written"),
}
LARGEST = (1 << 63) - 1  # LONG
KEY_FILE_BYTES = 1 << 20  # of --anonymise, at most
Endpoints = tuple[tuple[str, int], ...]  # IP address and port, of one or two


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_tables(parser)
    parser.add_argument(
        "-o", "--output", metavar="FILE", required=True, help="the pcapng file to write; - for standard output"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace FILE if it exists")
    rows = parser.add_argument_group("what to cut (several add up)")
    add_list(
        rows,
        "--connection",
        "ID",
        "all packets of these connections: a connection_id, IP:PORT of one side, or IP:PORT-IP:PORT of both "
        "([IP]:PORT for IPv6)",
        connection,
    )
    about = "a message by connection_id/first_frame_no, with the frames that settled it or returned it"
    add_list(rows, "--message", "ID/FRAME", about, message_key)
    add_list(rows, "--message-id", "TEXT", "messages with this property message-id")
    about = "findings of a rule, or only those of a connection, or only the one of a frame"
    add_list(rows, "--finding", "RULE[/ID[/FRAME]]", about, finding)
    rows.add_argument("--where", metavar="SQL", help="rows of a table where this condition holds (DuckDB's SQL)")
    rows.add_argument("--table", metavar="NAME", default="frames", help="the table for --where (default: frames)")
    more = parser.add_argument_group("how much")
    much = more.add_mutually_exclusive_group()
    much.add_argument("--whole", action="store_true", help="all packets of every connection with a selected row")
    much.add_argument(
        "--only",
        action="store_true",
        help="only packets with a byte of the rows; by default also those that open the connection and those up to the "
        "frame, which Wireshark needs to dissect it",
    )
    more.add_argument("--captures", metavar="DIR", help="where the captures are, if they were moved")
    inside = parser.add_argument_group("connections inside TLS or WebSocket")
    how = inside.add_mutually_exclusive_group()
    how.add_argument(
        "--with-secrets",
        action="store_true",
        help="put the secrets of these connections, and no others, into the file (a Decryption Secrets Block): "
        "whoever has the file can read them",
    )
    how.add_argument(
        "--decrypted", action="store_true", help="write these connections in clear, with all of their packets"
    )
    about = "key logs with their secrets; secrets in a pcapng are used without this option"
    add_list(inside, "--keylog", "FILE", about)
    share = parser.add_argument_group("to share it")
    share.add_argument(
        "--redact", action="store_true", help="blank message bodies, passwords and all bytes that were not decoded"
    )
    share.add_argument(
        "--anonymise",
        metavar="KEYFILE",
        help="replace IP addresses (keeping common prefixes) and hardware addresses, by the key in this file",
    )


def number(text: str) -> int:
    """A connection_id, or a frame_no. Raises ArgumentTypeError."""
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


def endpoint(text: str) -> tuple[str, int]:
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


def run(arguments: argparse.Namespace) -> int:
    """Cut: check all arguments first, write the file last; return the exit code."""
    from pipeline.extract import from_files
    from pipeline.extract.cutting import cut_rows
    from pipeline.extract.originals import COLUMNS, originals
    from pipeline.output.location import sink

    started = time.monotonic()
    how = cut_options(arguments)
    directory = tables_directory(arguments.tables)
    rows = from_files(directory, arguments.tables)
    captures = originals(rows("captures", COLUMNS), arguments.captures)
    target = None if arguments.output == STANDARD_OUTPUT else output_location(arguments, captures)
    interpret_while_cold([capture.file for capture in captures if not capture.file.problem])
    choice = choice_of(arguments, rows, directory)
    # a file replaces the old one when the cut has succeeded
    output = contextlib.nullcontext(sys.stdout.buffer) if target is None else sink(target)
    with step("cutting packets", ""), output as file:
        result = cut_rows(rows, choice, file, how, captures)
        file.flush()
    print_summary(result, arguments, time.monotonic() - started)
    for problem in result.problems:
        print_error(f"wirehare cut: {problem}")
    return UNREADABLE if result.problems else OK


def cut_options(arguments: argparse.Namespace) -> CutOptions:
    """The options of the cut. Raises UsageError."""
    from codec.pseudonyms import key_of
    from pipeline.extract import CutOptions
    from pipeline.tables.decoding import checked_key_logs
    from udfs.source.capture_bytes import first_line, read_at_most

    wanted = (arguments.connection, arguments.message, arguments.message_id, arguments.finding, arguments.where)
    if not any(wanted):
        raise UsageError("nothing to cut; expected --connection, --message, --message-id, --finding or --where")
    if arguments.with_secrets and arguments.redact:
        raise UsageError("--with-secrets: secrets show what --redact hides; expected --decrypted instead")
    if arguments.keylog and not (arguments.with_secrets or arguments.decrypted):
        raise UsageError("--keylog: packets are cut as they are; expected --with-secrets or --decrypted too")
    key_logs = checked_key_logs(arguments.keylog)
    try:
        key = None if arguments.anonymise is None else key_of(read_at_most(arguments.anonymise, KEY_FILE_BYTES))
    except OSError as error:
        raise UsageError(f"--anonymise {arguments.anonymise}: cannot be read ({first_line(error)})") from error
    except ValueError as error:
        raise UsageError(f"--anonymise {arguments.anonymise}: {error}") from error
    return CutOptions(
        arguments.whole,
        not arguments.only,
        arguments.captures,
        arguments.redact,
        key,
        arguments.with_secrets,
        arguments.decrypted,
        key_logs,
    )


def choice_of(arguments: argparse.Namespace, rows: Rows, directory: Location) -> Choice:
    """The rows that the arguments select. Raises UsageError, TablesError."""
    import pyarrow as pa

    from pipeline.audit.catalogue import catalogue
    from pipeline.extract import KEYS, Choice
    from pipeline.extract.choice import findings

    choice = Choice(messages=set(arguments.message or ()))
    for one in arguments.connection or ():
        choice.connections |= {one} if isinstance(one, int) else connections_between(rows, one)
    if arguments.message_id:
        keys = pa.table({"message_id": pa.array(arguments.message_id, pa.string())})
        choice.add("messages", rows("messages", KEYS["messages"], keys))
    for rule, connection_id, frame_no in arguments.finding or ():
        has_findings(directory, required=True)
        found = findings(rows, rule, connection_id, frame_no)
        known = {rule} if len(found) else {*catalogue(), *rows("findings", ["rule_id"])["rule_id"].to_pylist()}
        if rule not in known:
            raise UsageError(f"--finding {rule}: there is no rule {rule!r}{meant(rule, sorted(known))}")
        choice.add("findings", found)
    if arguments.where is not None:
        if arguments.table not in KEYS:
            raise UsageError(f"--table: {unknown('table', arguments.table, KEYS)}")
        choice.add(arguments.table, rows_where(arguments.table, arguments.where, directory, arguments.tables))
    return choice


def has_findings(directory: Location, required: bool) -> bool:
    """Whether the directory has the findings of an audit. Raises TablesError if they are `required` and missing."""
    from pipeline.extract import TablesError

    found = "findings" in (directory.entries() or ())
    if required and not found:
        raise TablesError(f"{directory.display_name}: has no table findings; `wirehare audit` writes it")
    return found


def connections_between(rows: Rows, ends: Endpoints) -> set[int]:
    """The connections of one endpoint, or between two. Raises CutError if there are none."""
    import pyarrow as pa

    from pipeline.extract import CutError, TablesError
    from pipeline.output.formatting import endpoint_text

    found: set[int] = set()
    for client, (one, other) in product(("client", "proxied_client"), ((0, 1), (1, 0))):
        keys: dict[str, pa.Array] = {}
        for side, which in ((client, one), ("server", other)):
            if which < len(ends):
                ip, port = ends[which]
                keys |= {f"{side}_ip": pa.array([ip]), f"{side}_port": pa.array([port], pa.int32())}
        try:
            found.update(rows("connections", ["connection_id"], pa.table(keys))["connection_id"].to_pylist())
        except TablesError:  # an earlier release did not have the columns of proxied clients
            if client == "client":
                raise
    if not found:
        between = "-".join(starmap(endpoint_text, ends))
        raise CutError(f"there is no connection {'between' if len(ends) > 1 else 'with'} {between} in the tables")
    return found


def rows_where(table: str, condition: str, directory: Location, uri: str) -> Any:
    """The keys (pyarrow.Table) of the rows of a table that match a condition in DuckDB's SQL; it may name all tables.

    Raises UsageError for an invalid condition.
    """
    from pipeline.explore.duckdb_tables import VIEWS, QueryError, open_tables
    from pipeline.extract import KEYS
    from udfs.source.capture_bytes import first_line

    has_findings(directory, required=table == "findings")
    names = [name for name in VIEWS if name == table or name in condition]
    query = f"SELECT DISTINCT {', '.join(KEYS[table])} FROM {table} WHERE ({condition}\n)"
    with open_tables(uri, copies=names) as session:
        try:
            with step(f"looking for {table}", f"Rows of {table} found"):
                return run_interruptibly(lambda: session.table(query), [session])
        except QueryError as error:
            raise UsageError(f"--where: {first_line(error)}") from error


def output_location(arguments: argparse.Namespace, captures: Sequence[Original]) -> Location:
    """Where the output goes. Raises UsageError if it is one of the captures, or a file that may not be replaced."""
    from pyarrow.fs import FileType

    from pipeline.extract.originals import is_capture

    name = arguments.output
    target = output_file(name)
    if is_capture(captures, target):
        raise UsageError(f"{name}: is one of the captures; expected another file to write into")
    if not arguments.overwrite and target.files.get_file_info(target.path).type != FileType.NotFound:
        raise UsageError(f"{name}: exists; use --overwrite to replace it, or another name")
    return target


def print_summary(result: Result, arguments: argparse.Namespace, seconds: float) -> None:
    """Print what was written to stderr: standard output may be the file."""
    from pipeline.output.formatting import plural
    from udfs.source.capture_bytes import public_uri

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
    run_standalone("jobs.cut")
