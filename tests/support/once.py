"""Work that tests in several files need the result of, done once in a run, in whichever process comes first."""

from __future__ import annotations

import fcntl
from collections.abc import Callable
from pathlib import Path
from shutil import rmtree

Once = Callable[[str, Callable[[Path], None]], Path]


def filled_once(shared: Path, name: str, make: Callable[[Path], None]) -> Path:
    """The directory `name` below `shared`, filled by `make`; a process that comes while another one is at work waits
    for it. Where `make` failed, the next test tries again, and shows the error as well."""
    folder, done = shared / name, shared / f"{name}.done"
    with (shared / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            rmtree(folder, ignore_errors=True)
            folder.mkdir()
            make(folder)
            done.touch()
    return folder
