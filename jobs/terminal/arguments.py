"""What several jobs have in common: options, argument types, directories of tables to read, and files to write."""

from __future__ import annotations

import argparse
import ipaddress
from pathlib import Path
from typing import TYPE_CHECKING

from jobs.terminal.running import UsageError

if TYPE_CHECKING:
    from pipeline.output.location import Location

STANDARD_OUTPUT = "-"
PORTS = range(1, 65536)


def add_tables(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "tables",
        metavar="TABLES",
        help="directory or URI of tables that `wirehare decode` has written, or of a lake of `wirehare ingest`",
    )


def add_captures(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "captures",
        metavar="CAPTURE",
        nargs="+",
        help="a pcap or pcapng file (also .gz .zst .lz4), a directory of them, a glob pattern, or a URI (s3, gs, hdfs)",
    )


def add_filter(parser: argparse.ArgumentParser) -> None:
    """Options: whether message bodies are written, which connections are decoded, and where TLS secrets are."""
    parser.add_argument(
        "--payload",
        action="store_true",
        help="write message bodies too (frames.payload, messages.body): much larger, and they may contain secrets",
    )
    add_list(parser, "--port", "N", "only connections from or to these ports", port)
    add_list(parser, "--host", "IP", "only connections from or to these addresses", host)
    add_list(
        parser, "--keylog", "FILE", "key logs with the secrets of TLS connections, as SSLKEYLOGFILE makes them; "
        "secrets in a pcapng are used without this option",
    )  # fmt: skip


def add_list(parser: argparse._ActionsContainer, name: str, metavar: str, about: str, kind: object = str) -> None:
    """An option with several values, which may also be repeated."""
    parser.add_argument(name, metavar=metavar, nargs="+", type=kind, action="extend", help=about)  # type: ignore[arg-type]


def port(text: str) -> int:
    if not text.isdecimal() or int(text) not in PORTS:
        raise argparse.ArgumentTypeError(f"{text!r} is not a valid port; expected a number from 1 to 65535")
    return int(text)


def host(text: str) -> str:
    """An IPv4 or IPv6 address in its usual text form."""
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a valid address; expected one like 10.0.0.7 or fd00::7"
        ) from None


def moment(text: str) -> int:
    """Nanoseconds since 1970 UTC, from ISO 8601 or a number as in ts_ns."""
    from udfs.source.options import OptionError, parse_time

    try:
        return parse_time(text, "time")
    except OptionError as error:
        raise argparse.ArgumentTypeError(str(error).removeprefix("time: ")) from None


def tables_directory(name: str) -> Location:
    """The directory of tables to read. Raises TablesError if it does not exist."""
    from pipeline.output.location import OutputError, TablesError, location

    try:
        directory = location(name)
        if directory.entries() is not None:
            return directory
    except OutputError as error:
        raise TablesError(str(error).replace("write tables into", "read tables from")) from error
    raise TablesError(f"{name}: no such directory; expected one that `wirehare decode` has written")


def output_file(name: str) -> Location:
    """Where a file is to be written. Raises UsageError if its directory does not exist, or the name is that of a
    directory or a device."""
    import pyarrow.fs

    from pipeline.output.location import OutputError, location

    try:
        target = location(name)
        target.require_replaceable()
    except OutputError as error:
        raise UsageError(str(error)) from error
    if target.files.get_file_info(target.path).type == pyarrow.fs.FileType.Directory:
        raise UsageError(f"{name}: is a directory; expected the name of a file to write")
    if target.local and not Path(target.parent.path).is_dir():
        raise UsageError(f"{name}: there is no directory {target.parent.path} to write it into")
    return target


def write_text(target: Location, text: str) -> None:
    """Write a file, replacing the old one in one step."""
    from pipeline.output.location import sink

    with sink(target) as file:
        file.write(text.encode(errors="replace"))
