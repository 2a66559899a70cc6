"""Atomic replacement of a directory of tables: it is written to a stage, then swapped as a whole.

    with staged("out", known=TABLES, overwrite=True) as stage:
        frames.write.parquet(stage.child("frames").uri)

The stage is a hidden sibling of the output (`.wirehare-out-<started>-<random>`), so that the swap is two renames.
Temporary files go to a sibling of the stage (`stage.scratch`), so that late tasks cannot add files to the output. Until
the swap both are private to their user, if local; the output follows the umask. If the body raises, they are removed
and the old output stays. A killed run leaves them behind; the next run for the same output removes them, and restores
the old output if the run was killed between the two renames. Object stores have no rename: there the swap is a copy.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import stat
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import partial

import pyarrow.compute
import pyarrow.fs

from pipeline.output.location import SCRATCH, Location, OutputError, location, others_may_rename

# Files that Spark and desktops add to a folder.
IGNORED = {"_SUCCESS", ".DS_Store", "Thumbs.db"}
OLD = "-old"
# On file systems without locks, the stage of another run is removed only after this time.
ABANDONED_NS = 24 * 3600 * 10**9


@contextmanager
def staged(output: str, *, known: Collection[str], overwrite: bool = False) -> Iterator[Location]:
    """A directory to write into, which replaces `output` when the body succeeds.

    `known`: names of sub-directories that may be replaced. Raises OutputError before the body if `output` has anything
    else, or is not empty without `overwrite`.
    """
    target = location(output)
    with staged_next_to(target, target, partial(check, target, known, overwrite)) as stage:
        yield stage


@contextmanager
def staged_child(output: str, name: str) -> Iterator[Location]:
    """A directory to write into, which replaces the sub-directory `name` of `output` when the body succeeds. Until then
    nothing in `output` changes."""
    directory = location(output)
    sibling = directory.parent.child(f"{directory.name}.{name}")
    with staged_next_to(directory.child(name), sibling, lambda: None) as stage:
        yield stage


@contextmanager
def staged_next_to(target: Location, sibling: Location, allowed: Callable[[], None]) -> Iterator[Location]:
    """A stage, a hidden directory next to `sibling`, that replaces `target` at the end. `allowed` is called before and
    after the body, and may raise."""
    clean(target, sibling)
    allowed()
    stage = sibling.parent.child(f".wirehare-{sibling.name}-{time.time_ns()}-{secrets.token_hex(4)}")
    stage.create()
    try:
        with hold_lock(stage):
            yield stage
            stage.publish()
            allowed()  # another process may have written there meanwhile
            swap(stage, target)
    finally:
        stage.remove()
        stage.scratch.remove()


def check(target: Location, known: Collection[str], overwrite: bool) -> None:
    """Raise OutputError if `target` must not be replaced."""
    entries = sorted(set(target.entries() or ()) - IGNORED)
    for entry in entries:
        if entry not in known:
            raise OutputError(
                f"{target.display_name}: holds {entry}, which is not one of our tables; "
                "expected an empty directory or the output of an earlier run"
            )
    if entries and not overwrite and not has_no_rows(target, entries):
        raise OutputError(
            f"{target.display_name}: already holds tables; use --overwrite to replace them, or another directory"
        )


def has_no_rows(target: Location, entries: Collection[str]) -> bool:
    """Whether the tables are those of a run that found no capture: no rows except captures without a format."""
    try:
        for entry in entries:
            rows = target.child(entry).dataset()
            condition = pyarrow.compute.field("format").is_valid() if entry == "captures" else None
            if rows.count_rows(filter=condition):
                return False
    except (OSError, pyarrow.ArrowException):
        return False  # unknown content: do not replace it
    return True


def swap(stage: Location, target: Location) -> None:
    """Replace the target by the stage. Between the two moves the old output has a name that `clean` recognises."""
    old = stage.parent.child(f"{stage.name}{OLD}")
    existed = target.entries() is not None
    if existed:
        target.move_to(old)
    try:
        stage.move_to(target)
    except BaseException:
        if existed:
            old.move_to(target)
        raise
    if existed:
        old.remove()


def clean(target: Location, sibling: Location) -> None:
    """Remove stages and scratch directories of killed runs, and files of late tasks; restore the target if a run was
    killed during its swap. Directories of other users are left alone, and all where everybody can rename them."""
    leftover = re.compile(rf"(\.wirehare-{re.escape(sibling.name)}-(\d+)-[0-9a-f]{{8}})({OLD}|{SCRATCH})?")
    if sibling.local and others_may_rename(sibling.parent.path):
        return
    names = sibling.parent.entries() or ()
    for found in filter(None, map(leftover.fullmatch, sorted(names))):
        stage, started_ns, kind = found.groups()
        if alive(sibling.parent.child(stage), int(started_ns)):
            continue
        stale = sibling.parent.child(found[0])
        if stale.local and not is_own_directory(stale.path):
            continue
        if kind == OLD and target.entries() is None:
            stale.move_to(target)
        else:
            stale.remove()


def is_own_directory(path: str) -> bool:
    """Whether this is a directory of this user, and not a link."""
    try:
        status = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()


@contextmanager
def hold_lock(stage: Location) -> Iterator[None]:
    """Hold a lock on a local stage. It follows the directory when it is moved, and ends with the process."""
    if not stage.local:
        yield
        return
    directory = os.open(stage.path, os.O_RDONLY)
    try:
        fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(directory)


def alive(stage: Location, started_ns: int) -> bool:
    """Whether the run that created `stage` at `started_ns` may still be running."""
    if not stage.local:
        return time.time_ns() - started_ns < ABANDONED_NS
    try:
        # Do not follow a link or open a pipe, which would block: any user may have put it there.
        directory = os.open(stage.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except PermissionError:
        return True  # of another user
    except OSError:
        return False
    try:
        fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(directory)
    return False
