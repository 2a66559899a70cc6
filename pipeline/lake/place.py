"""Opening, creating and locking a lake.

A local lake is locked by the operating system, which releases the lock when the process ends. An object store has no
locks: a lease file there names the process, and is valid for LEASE_S after its last renewal. Two processes that take
it in the same instant both go on; the Delta logs then let only one of them commit a batch.
"""

from __future__ import annotations

import fcntl
import json
import os
import posixpath
import secrets
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from pipeline.lake.layout import INTERNAL, LAYOUT, LakeError
from pipeline.output.place import OutputError, Place, place, sink
from pipeline.output.swap import IGNORED

LAKE_FILE = "lake.json"


def is_lake(root: Place) -> bool:
    try:
        return LAKE_FILE in (root.child(INTERNAL).entries() or ())
    except OutputError:
        return False


def open_lake(uri: str) -> Place:
    """The lake at a path or URI. Raises LakeError if there is none, or its layout is of a later release."""
    root = _place(uri)
    if not is_lake(root):
        raise LakeError(f"{root.display_name}: is not a lake; expected a directory that `wirehare ingest` has filled")
    with root.files.open_input_stream(posixpath.join(root.path, INTERNAL, LAKE_FILE)) as file:
        try:
            layout = int(json.loads(file.read())["layout"])
        except (ValueError, KeyError, TypeError):
            raise LakeError(
                f"{root.child(INTERNAL).child(LAKE_FILE).display_name}: is damaged; expected the layout of a lake"
            ) from None
    if layout > LAYOUT:
        raise LakeError(
            f"{root.display_name}: is a lake of layout {layout}, this release reads up to {LAYOUT}; use a later release"
        )
    return root


def open_or_create_lake(uri: str) -> Place:
    """The lake at a path or URI, created if nothing is there. Raises LakeError if something else is there."""
    root = _place(uri)
    if is_lake(root):
        return open_lake(uri)
    try:
        entries = set(root.entries() or ()) - IGNORED
        if entries - {INTERNAL}:
            raise LakeError(
                f"{root.display_name}: is not a lake, but holds {min(entries)}; expected an empty directory or a lake"
            )
        if root.entries() is None:
            root.create()
            root.publish()
        own = root.child(INTERNAL)
        if own.entries() is None:
            own.create()
            own.publish()
        with sink(own.child(LAKE_FILE)) as file:
            file.write(json.dumps({"layout": LAYOUT}).encode())
    except OutputError as error:
        raise LakeError(str(error)) from error
    return root


def _place(uri: str) -> Place:
    try:
        return place(uri)
    except OutputError as error:
        raise LakeError(str(error)) from error


LOCK_FILE = "lock"
LEASE_S = 900  # longer than a batch takes; renewed with each batch


@contextmanager
def locked(root: Place) -> Iterator[Callable[[], None]]:
    """Lock the lake while the body runs; yields the function that renews the lock. Raises LakeError."""
    place = root.child(INTERNAL).child(LOCK_FILE)
    with _os_lock(root, place) if place.local else _lease(root, place) as renew:
        yield renew


@contextmanager
def _os_lock(root: Place, place: Place) -> Iterator[Callable[[], None]]:
    file = os.open(place.path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise _locked_error(root, os.pread(file, 200, 0).decode("utf-8", "replace")) from None
        os.ftruncate(file, 0)
        os.pwrite(file, _this_process().encode(), 0)
        yield lambda: None
    finally:
        os.close(file)


@contextmanager
def _lease(root: Place, place: Place) -> Iterator[Callable[[], None]]:
    mine = secrets.token_hex(8)

    def renew() -> None:
        with place.files.open_output_stream(place.path) as file:
            file.write(json.dumps({"who": _this_process(), "lease": mine, "at": time.time()}).encode())

    with suppress(FileNotFoundError, ValueError):
        with place.files.open_input_stream(place.path) as file:
            found = json.loads(file.read())
        if abs(time.time() - float(found["at"])) < LEASE_S:
            raise _locked_error(root, str(found["who"]))
    renew()
    try:
        yield renew
    finally:
        with suppress(OSError):
            place.files.delete_file(place.path)


def _this_process() -> str:
    return f"process {os.getpid()} on {socket.gethostname()}"


def _locked_error(root: Place, who: str) -> LakeError:
    return LakeError(
        f"{root.display_name}: another ingest ({who}) is running on this lake; try again when it has ended"
    )
