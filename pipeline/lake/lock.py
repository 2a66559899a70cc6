"""One ingest at a time into a lake.

A local lake is locked by the operating system, which lets go of it when the process ends, however it ends. An object
store has no locks: there a file says who works since when, and is believed for LEASE_S after it was renewed last. Two
that begin in the same instant both think that they are alone; the Delta logs then let one of them commit a batch.
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

from pipeline.lake.layout import OWN, LakeError
from pipeline.output.swap import Place

NAME = "lock"
LEASE_S = 900  # longer than a batch takes; it is renewed with each of them


@contextmanager
def locked(root: Place) -> Iterator[Callable[[], None]]:
    """Nobody else ingests into this lake while the body runs; gives what renews the lock. Raises LakeError."""
    place = root.child(OWN).child(NAME)
    with _locally(root, place) if place.local else _by_lease(root, place) as renew:
        yield renew


@contextmanager
def _locally(root: Place, place: Place) -> Iterator[Callable[[], None]]:
    file = os.open(place.path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise _taken(root, os.pread(file, 200, 0).decode("utf-8", "replace")) from None
        os.ftruncate(file, 0)
        os.pwrite(file, _who().encode(), 0)
        yield lambda: None
    finally:
        os.close(file)


@contextmanager
def _by_lease(root: Place, place: Place) -> Iterator[Callable[[], None]]:
    mine = secrets.token_hex(8)

    def renew() -> None:
        with place.files.open_output_stream(place.path) as file:
            file.write(json.dumps({"who": _who(), "lease": mine, "at": time.time()}).encode())

    with suppress(FileNotFoundError, ValueError):
        with place.files.open_input_stream(place.path) as file:
            found = json.loads(file.read())
        if abs(time.time() - float(found["at"])) < LEASE_S:
            raise _taken(root, str(found["who"]))
    renew()
    try:
        yield renew
    finally:
        with suppress(OSError):
            place.files.delete_file(place.path)


def _who() -> str:
    return f"process {os.getpid()} on {socket.gethostname()}"


def _taken(root: Place, who: str) -> LakeError:
    return LakeError(f"{root.display_name}: another ingest works on this lake ({who}); one at a time, try later")
