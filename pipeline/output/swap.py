"""Atomic replacement of a directory of tables: it is written to a stage, then swapped as a whole.

    with staged("out", known=TABLES, overwrite=True) as stage:
        frames.write.parquet(stage.child("frames").uri)

The stage is a hidden sibling of the output (`.wirehare-out-<started>-<random>`), so that the swap is two renames.
Temporary files go to a sibling of the stage (`stage.scratch`), so that late tasks cannot add files to the output. Until
the swap both are private to their user, if local; the output follows the umask. If the body raises, they are removed
and the old output stays. A killed run leaves them behind; the next run for the same output removes them, and restores
the old output if the run was killed between the two renames. Object stores have no rename: there the swap is a copy.

Local paths go through `os`, every other URI through `pyarrow.fs`.
"""

from __future__ import annotations

import fcntl
import os
import posixpath
import re
import secrets
import shutil
import stat
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow.compute
import pyarrow.fs

from codec.errors import WirehareError
from udfs.arrow.umask import umask
from udfs.source.files import LOCAL, UNDECODED, arrow_uri, is_utf8, printable, public_uri, said

# Files that Spark and desktops add to a folder.
IGNORED = {"_SUCCESS", ".DS_Store", "Thumbs.db"}
GLOB_SIGNS = re.compile(r"[{}\[\]*?\\]")  # of Hadoop's file systems
PRIVATE = 0o700
REMOVALS, REMOVAL_S = 20, 0.1
SCRATCH, OLD = "-scratch", "-old"
# On file systems without locks, the stage of another run is removed only after this time.
ABANDONED_NS = 24 * 3600 * 10**9


class OutputError(WirehareError):
    """The output cannot be written there; the message is one line that says why and what to do."""


@dataclass(frozen=True)
class Place:
    """A directory: `path` as its file system `files` (a pyarrow.fs.FileSystem) names it, `uri` as Spark does."""

    files: Any
    path: str
    uri: str

    @property
    def name(self) -> str:
        return posixpath.basename(self.path)

    @property
    def parent(self) -> Place:
        return Place(self.files, posixpath.dirname(self.path), posixpath.dirname(self.uri))

    @property
    def local(self) -> bool:
        return self.uri.startswith("file://")

    @property
    def pattern(self) -> str:
        """The URI for reading with Spark, escaped."""
        return escape_glob(self.uri)

    @property
    def display_name(self) -> str:
        """The path of a local directory, else the URI without credentials."""
        return printable(self.path if self.local else public_uri(self.uri))

    def child(self, name: str) -> Place:
        return Place(self.files, posixpath.join(self.path, name), posixpath.join(self.uri, name))

    @property
    def scratch(self) -> Place:
        """The directory for temporary files of a run with this stage; not created yet."""
        return Place(self.files, self.path + SCRATCH, self.uri + SCRATCH)

    def entries(self) -> list[str] | None:
        """Names in the directory; None if it does not exist. Raises OutputError for a file."""
        info = self.files.get_file_info(self.path)
        if info.type == pyarrow.fs.FileType.NotFound:
            return None
        if info.type == pyarrow.fs.FileType.File:
            raise OutputError(f"{self.display_name}: is a file; expected a directory to write tables into")
        return [entry.base_name for entry in self.files.get_file_info(pyarrow.fs.FileSelector(self.path))]

    def dataset(self) -> Any:
        """The Parquet files in the directory, as a pyarrow.dataset.Dataset."""
        import pyarrow.dataset  # which imports pandas, if it is there: half a second

        return pyarrow.dataset.dataset(self.path, filesystem=self.files, format="parquet")

    def create(self) -> None:
        """Create the directory and its parents; a local one has mode 700. Raises OSError."""
        try:
            if self.local:
                os.makedirs(self.parent.path, exist_ok=True)
                os.mkdir(self.path, PRIVATE)
            else:
                self.files.create_dir(self.path, recursive=True)
        except OSError as error:
            raise OSError(f"{self.parent.display_name}: cannot be written to ({error.strerror or error})") from error

    def publish(self) -> None:
        """Set the permissions of a local directory and its contents according to the umask of this process."""
        if not self.local:
            return
        for_directories, for_files = 0o777 & ~umask(), 0o666 & ~umask()
        for directory, _, files in os.walk(self.path, topdown=False):
            for name in files:
                _chmod(os.path.join(directory, name), for_files)
            _chmod(directory, for_directories)

    def remove(self) -> None:
        """Delete the directory and its contents, if it exists."""
        if self.local:
            for _ in range(REMOVALS):
                shutil.rmtree(self.path, ignore_errors=True)
                if not os.path.lexists(self.path):
                    break
                time.sleep(REMOVAL_S)  # a task that was cancelled may still write a file
        elif self.files.get_file_info(self.path).type == pyarrow.fs.FileType.Directory:
            self.files.delete_dir(self.path)

    def keep(self, names: Collection[str]) -> None:
        """Delete all files in the directory but these."""
        for name in set(self.entries() or ()) - set(names):
            self.files.delete_file(posixpath.join(self.path, name))

    def move_to(self, target: Place) -> None:
        """Rename the directory; copy and delete if the store has no rename."""
        if self.local:
            os.rename(self.path, target.path)
            return
        try:
            self.files.move(self.path, target.path)
        except (OSError, NotImplementedError):
            pyarrow.fs.copy_files(self.path, target.path, self.files, target.files)
            self.files.delete_dir(self.path)


def _chmod(path: str, mode: int) -> None:
    """Set the permissions of a file or directory if it belongs to this user; keeps the set-group-ID bit."""
    with suppress(PermissionError):  # of another user, whose executor made it
        os.chmod(path, mode | (os.stat(path).st_mode & stat.S_ISGID))


def escape_glob(uri: str) -> str:
    """A URI or path with glob characters escaped, because Spark reads paths as globs."""
    return GLOB_SIGNS.sub(r"\\\g<0>", uri)


def place(output: str) -> Place:
    """The Place of `output` (a path or a URI). Raises OutputError if no file system serves it."""
    scheme = urlsplit(output).scheme if "://" in output else ""
    if scheme in ("", "file"):
        # Swap the directory itself, not a link to it.
        named = unquote(output.removeprefix(LOCAL), errors=UNDECODED) if scheme else os.path.expanduser(output)
        path = os.path.realpath(named)
        if not is_utf8(path):
            raise OutputError(
                f"{printable(path)}: this name is not UTF-8; Spark cannot write there, choose another one"
            )
        return Place(pyarrow.fs.LocalFileSystem(), path, f"file://{path}")
    try:
        files, path = pyarrow.fs.FileSystem.from_uri(arrow_uri(output))
    except (OSError, ValueError) as error:
        # Not `from error`: its traceback would show credentials in the URI.
        raise OutputError(f"{public_uri(output)}: cannot be reached ({said(error, output)})") from None
    return Place(files, path.rstrip("/"), output.partition("?")[0].rstrip("/"))


@contextmanager
def staged(output: str, *, known: Collection[str], overwrite: bool = False) -> Iterator[Place]:
    """A directory to write into, which replaces `output` when the body succeeds.

    `known`: names of sub-directories that may be replaced. Raises OutputError before the body if `output` has anything
    else, or is not empty without `overwrite`.
    """
    target = place(output)
    with staged_beside(target, target, partial(check, target, known, overwrite)) as stage:
        yield stage


@contextmanager
def staged_child(output: str, name: str) -> Iterator[Place]:
    """A directory to write into, which replaces the sub-directory `name` of `output` when the body succeeds. Until then
    nothing in `output` changes."""
    directory = place(output)
    beside = directory.parent.child(f"{directory.name}.{name}")
    with staged_beside(directory.child(name), beside, lambda: None) as stage:
        yield stage


@contextmanager
def staged_beside(target: Place, beside: Place, allowed: Callable[[], None]) -> Iterator[Place]:
    """A stage, a hidden sibling of `beside`, that replaces `target` at the end. `allowed` is called before and after
    the body, and may raise."""
    clean(target, beside)
    allowed()
    stage = beside.parent.child(f".wirehare-{beside.name}-{time.time_ns()}-{secrets.token_hex(4)}")
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


def check(target: Place, known: Collection[str], overwrite: bool) -> None:
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


def has_no_rows(target: Place, entries: Collection[str]) -> bool:
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


def swap(stage: Place, target: Place) -> None:
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


def clean(target: Place, beside: Place) -> None:
    """Remove stages and scratch directories of killed runs, and files of late tasks; restore the target if a run was
    killed during its swap. Directories of other users are left alone."""
    leftover = re.compile(rf"(\.wirehare-{re.escape(beside.name)}-(\d+)-[0-9a-f]{{8}})({OLD}|{SCRATCH})?")
    names = beside.parent.entries() or ()
    for found in filter(None, map(leftover.fullmatch, sorted(names))):
        stage, started_ns, kind = found.groups()
        if alive(beside.parent.child(stage), int(started_ns)):
            continue
        place_of_leftover = beside.parent.child(found[0])
        if place_of_leftover.local and not is_own_directory(place_of_leftover.path):
            continue
        if kind == OLD and target.entries() is None:
            place_of_leftover.move_to(target)
        else:
            place_of_leftover.remove()


def is_own_directory(path: str) -> bool:
    """Whether this is a directory of this user, and not a link."""
    try:
        status = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()


@contextmanager
def hold_lock(stage: Place) -> Iterator[None]:
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


def alive(stage: Place, started_ns: int) -> bool:
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
