"""Files and streams that jobs write besides tables."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jobs.running import UsageError

if TYPE_CHECKING:
    from pipeline.output.place import Place

STANDARD_OUTPUT = "-"


def writable(name: str) -> Place:
    """The place of a file to write. Raises UsageError if its directory does not exist, or the name is a directory."""
    import pyarrow.fs

    from pipeline.output.place import OutputError, place

    try:
        target = place(name)
    except OutputError as error:
        raise UsageError(str(error)) from error
    if target.files.get_file_info(target.path).type == pyarrow.fs.FileType.Directory:
        raise UsageError(f"{name}: is a directory; expected the name of a file to write")
    if target.local and not Path(target.parent.path).is_dir():
        raise UsageError(f"{name}: there is no directory {target.parent.path} to write it into")
    return target


def json_target(name: str | None) -> Place | None:
    """The file for the JSON summary; None for standard output or no JSON. Raises UsageError."""
    return None if name in (None, STANDARD_OUTPUT) else writable(name)


def write_json(target: Place | None, document: Mapping[str, Any]) -> None:
    """Write a document to standard output (None), or to a file, replacing an old one."""
    import json

    from pipeline.output.place import sink

    text = json.dumps(document, indent=2, default=str) + "\n"
    if target is None:
        print(text, end="")
        return
    with sink(target) as file:
        file.write(text.encode())
