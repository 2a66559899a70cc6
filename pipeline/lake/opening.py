"""Opening, creating and locking a lake.

A local lake is locked by the operating system, which releases the lock when the process ends. An object store has no
locks: a lease file there names the process, and is valid for LEASE_S after its last renewal. Two processes that take
it in the same instant both go on; the Delta logs then let only one of them commit a batch.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from pipeline.lake.confinement import (
    CONTENT_ERRORS,
    DOCUMENT_BYTES,
    OTHERS_WRITE,
    PUBLIC,
    READABLE,
    check_internal,
    check_owners,
    create_directory,
    damaged,
    delete_file,
    one_line,
    opened,
    read_document,
)
from pipeline.lake.layout import INTERNAL, LAYOUT, LakeError, lake_tables
from pipeline.output.location import Location, OutputError, location, sink
from pipeline.output.swap import IGNORED
from udfs.source.capture_bytes import printable

LAKE_FILE = "lake.json"
CURRENT = {"layout": LAYOUT}  # what it says


def is_lake(root: Location) -> bool:
    """Whether there is a lake, which may be damaged."""
    marked = root.child(INTERNAL).child(LAKE_FILE)
    if root.local:
        return os.path.lexists(marked.path)
    try:
        return LAKE_FILE in (root.child(INTERNAL).entries() or ())
    except OutputError:
        return False


def open_lake(uri: str) -> Location:
    """The lake at a path or URI. Raises LakeError if there is none, or its layout is of a later release."""
    root = _location(uri)
    if not is_lake(root):
        raise LakeError(f"{root.display_name}: is not a lake; expected a directory that `wirehare ingest` has filled")
    check_internal(root)
    document = read_document(root, LAKE_FILE)
    layout = document.get("layout") if isinstance(document, dict) else None
    if type(layout) is not int:
        raise damaged(root.child(INTERNAL).child(LAKE_FILE), "is damaged; expected the layout of a lake")
    if layout > LAYOUT:
        raise LakeError(
            f"{root.display_name}: is a lake of layout {layout}, this release reads up to {LAYOUT}; use a later release"
        )
    return root


def open_to_change(uri: str) -> Location:
    """The same of a lake that is going to be changed, which no other user can change; it gets the layout of this
    release."""
    root = open_lake(uri)
    check_owners(root, lake_tables())
    if read_document(root, LAKE_FILE) != CURRENT:
        _write_layout(root)
    return root


def _write_layout(root: Location) -> None:
    with sink(root.child(INTERNAL).child(LAKE_FILE), READABLE) as file:
        file.write(json.dumps(CURRENT).encode())


def open_or_create_lake(uri: str) -> Location:
    """The lake at a path or URI, created if nothing is there. Raises LakeError if something else is there."""
    root = _location(uri)
    if is_lake(root):
        return open_to_change(uri)
    try:
        entries = set(root.entries() or ()) - IGNORED
        if entries - {INTERNAL}:
            raise LakeError(
                f"{root.display_name}: is not a lake, but holds {printable(min(entries))}; "
                "expected an empty directory or a lake"
            )
        if root.entries() is None:
            root.create()
            root.publish(OTHERS_WRITE)
        check_owners(root, ())
        create_directory(root, INTERNAL, PUBLIC)
        check_internal(root)
        _write_layout(root)
    except OutputError as error:
        raise LakeError(str(error)) from error
    return root


def _location(uri: str) -> Location:
    try:
        return location(uri)
    except OutputError as error:
        raise LakeError(str(error)) from error


LOCK_FILE = "lock"
WHO_BYTES = 200  # of the text that names the process
LEASE_S = 900  # longer than a batch takes; renewed with each batch


@contextmanager
def locked(root: Location) -> Iterator[Callable[[], None]]:
    """Lock the lake while the body runs; yields the function that renews the lock. Raises LakeError."""
    location = root.child(INTERNAL).child(LOCK_FILE)
    with _os_lock(root) if location.local else _lease(root, location) as renew:
        yield renew


@contextmanager
def _os_lock(root: Location) -> Iterator[Callable[[], None]]:
    with opened(root, f"{INTERNAL}/{LOCK_FILE}", os.O_RDWR | os.O_CREAT) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise _locked_error(root, os.pread(file, WHO_BYTES, 0).decode("utf-8", "replace")) from None
        os.ftruncate(file, 0)
        os.pwrite(file, _this_process().encode(), 0)
        yield lambda: None


@contextmanager
def _lease(root: Location, location: Location) -> Iterator[Callable[[], None]]:
    mine = secrets.token_hex(8)

    def renew() -> None:
        with location.files.open_output_stream(location.path) as file:
            file.write(json.dumps({"who": _this_process(), "lease": mine, "at": time.time()}).encode())

    if (who := _leased_by(location)) is not None:
        raise _locked_error(root, who)
    renew()
    try:
        yield renew
    finally:
        with suppress(OSError):
            delete_file(root, f"{INTERNAL}/{LOCK_FILE}")


def _leased_by(location: Location) -> str | None:
    """The process with a valid lease; None if there is none, or what is there is no lease."""
    try:
        with location.files.open_input_stream(location.path) as file:
            found = json.loads(file.read(DOCUMENT_BYTES))
        return str(found["who"]) if abs(time.time() - float(found["at"])) < LEASE_S else None
    except (FileNotFoundError, *CONTENT_ERRORS):
        return None


def _this_process() -> str:
    return f"process {os.getpid()} on {socket.gethostname()}"


def _locked_error(root: Location, who: str) -> LakeError:
    return LakeError(
        f"{root.display_name}: another ingest ({one_line(who[:WHO_BYTES])}) is running on this lake; "
        "try again when it has ended"
    )
