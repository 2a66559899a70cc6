"""What an ingest and the readers of a lake touch, in a directory where other users may have left something.

Two rules, whoever wrote the files of a lake:

* Names in them are confined. A path of a Delta log or of the journal is one of a data file below its table
  (`data_path`), on any file system; nothing else is read or deleted.
* Nothing is followed. On a local file system, what a lake consists of are directories and regular files; a link, a
  FIFO, a device or a socket in their place ends the command with a DamagedLakeError. Files are opened and deleted
  relative to descriptors of their directories, so that no component of their path is a link.

Whoever writes to a lake (an ingest, compaction, expiry) also looks at owners and modes (`check_owners`): where another
user can change its directories, the names of files could change between two calls of libraries that know only paths.
Readers do not, because lakes of others are read.
"""

from __future__ import annotations

import errno
import json
import os
import posixpath
import re
import stat
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs

from pipeline.lake.layout import INTERNAL, LOG, DamagedLakeError, LakeError
from pipeline.output.location import PRIVATE, REMOVAL_S, REMOVALS, Location
from udfs.source.capture_bytes import printable

SEGMENT = r"[A-Za-z0-9_=][A-Za-z0-9_=.-]*"
DATA_PATH = re.compile(rf"(?!{LOG}/)({SEGMENT}/){{1,4}}{SEGMENT}\.parquet")
PATH_CHARACTERS = 500
DOCUMENT_BYTES = 64 << 20  # of a JSON file, at most: those of the largest lakes have a few
CHECKPOINT_BYTES = 1 << 30
DEPTH = 8  # of folders below that of a batch, at most; a lake has two
PUBLIC, READABLE = 0o755, 0o644  # modes in a lake, before the umask
OTHERS_WRITE = 0o022  # nobody else writes there, whatever the umask
DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
FILE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # a FIFO does not block
KINDS = (
    (stat.S_ISLNK, "a link"),
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISREG, "a file"),
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISSOCK, "a socket"),
)
# What libraries raise for content that is not what a lake has.
CONTENT_ERRORS = (ValueError, KeyError, TypeError, IndexError, AttributeError, OverflowError, RecursionError)


def damaged(location: Location, why: str) -> DamagedLakeError:
    return DamagedLakeError(f"{location.display_name}: {why}")


@contextmanager
def content_of(location: Location) -> Iterator[None]:
    """In the body only files of the lake are interpreted: an error of their content is a DamagedLakeError."""
    from deltalake.exceptions import DeltaError

    try:
        yield
    except LakeError:
        raise
    except (*CONTENT_ERRORS, pa.ArrowException, DeltaError, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # of the file system, not of the content
        line = one_line(str(error))
        raise damaged(location, f"is damaged ({line or type(error).__name__})") from error


def one_line(text: str) -> str:
    """A text that somebody else wrote, as one line for a message."""
    return printable(" ".join(text.split())[:300].encode("utf-8", "backslashreplace").decode())


def data_path(table: Location, path: object) -> str:
    """A path of a data file within the directory of a table, as written in a log. Raises DamagedLakeError."""
    if not isinstance(path, str) or len(path) > PATH_CHARACTERS or not DATA_PATH.fullmatch(path):
        raise damaged(table, f"names {one_line(repr(path)[:100])}, which is not the path of a file of this table")
    return path


def _kind(mode: int) -> str:
    return next((name for is_kind, name in KINDS if is_kind(mode)), "a device")


def _require_directory(location: Location, status: os.stat_result) -> None:
    if not stat.S_ISDIR(status.st_mode):
        raise damaged(
            location, f"is {_kind(status.st_mode)}; expected a directory of the lake. See who can write there"
        )


def _require_file(location: Location, status: os.stat_result, most_bytes: int | None = None) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise damaged(location, f"is {_kind(status.st_mode)}; expected a file of the lake. See who can write there")
    if most_bytes is not None and status.st_size > most_bytes:
        raise damaged(location, f"has {status.st_size:,} bytes; expected at most {most_bytes:,}")


def check_internal(root: Location) -> None:
    """Raise DamagedLakeError unless the directory with the lake's own files has files only."""
    _check_files_in(root.child(INTERNAL), lambda _: DOCUMENT_BYTES)


def check_log(root: Location, name: str) -> None:
    """Raise DamagedLakeError unless the log of a table can be read without following or waiting for anything; a table
    that is missing is created later."""
    table = root.child(name)
    if _is_directory(table):
        _check_files_in(table.child(LOG), lambda name: DOCUMENT_BYTES if ".json" in name else CHECKPOINT_BYTES)


def _is_directory(location: Location) -> bool:
    """Whether there is a local directory. Raises DamagedLakeError for anything else but nothing."""
    if location.local:
        with suppress(FileNotFoundError):
            _require_directory(location, os.lstat(location.path))
            return True
    return False


def _check_files_in(directory: Location, most_bytes: Callable[[str], int]) -> None:
    if not _is_directory(directory):
        return
    with os.scandir(directory.path) as entries:
        for entry in entries:
            with suppress(FileNotFoundError):  # another process has just renamed it
                _require_file(directory.child(entry.name), entry.stat(follow_symlinks=False), most_bytes(entry.name))


def check_files(table: Location, paths: Iterable[str]) -> None:
    """Raise DamagedLakeError unless these data files of a table are there, regular files in directories without
    links."""
    if not table.local:
        return
    known = set[str]()
    for path in paths:
        directory, part = posixpath.dirname(path), table
        try:
            if directory not in known:
                _require_directory(part, os.lstat(part.path))
                for name in directory.split("/"):
                    part = part.child(name)
                    _require_directory(part, os.lstat(part.path))
                known.add(directory)
            part = table.child(path)
            _require_file(part, os.lstat(part.path))
        except FileNotFoundError as error:
            raise damaged(part, "is missing, although the log of the lake names it") from error


def check_owners(root: Location, tables: Iterable[str]) -> None:
    """Raise DamagedLakeError if another user can change the lake or its directories (as for compiled kernels, see
    `codec.compiler.cache`): such a user could replace them while this process writes there."""
    if not root.local:
        return
    from codec.compiler.cache import _changed_by_others as changed_by_others  # not above: it loads numba

    own = root.child(INTERNAL)
    locations = [root, *([own, *map(own.child, os.listdir(own.path))] if _is_directory(own) else ())]
    for table in filter(_is_directory, map(root.child, tables)):
        locations += [table, *filter(_is_directory, [table.child(LOG)])]
    for location in locations:
        if reason := changed_by_others(Path(location.path)):
            raise DamagedLakeError(
                f"{printable(reason)}, so that others could replace files of the lake {root.display_name}; "
                "make it yours alone (chown, chmod go-w), after a look at what is in it"
            )


@contextmanager
def _directory(root: Location, names: Iterable[str]) -> Iterator[int]:
    """A descriptor of a directory below `root`. Raises FileNotFoundError, DamagedLakeError."""
    descriptor, location = os.open(root.path, DIRECTORY), root
    try:
        for name in names:
            location = location.child(name)
            try:
                below = os.open(name, DIRECTORY, dir_fd=descriptor)
            except OSError as error:
                if error.errno not in (errno.ELOOP, errno.ENOTDIR):
                    raise
                _require_directory(location, os.lstat(name, dir_fd=descriptor))
                raise
            os.close(descriptor)
            descriptor = below
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def opened(root: Location, path: str, flags: int, mode: int = 0o600) -> Iterator[int]:
    """A descriptor of a regular file of a local lake, which belongs to it alone: a second name of a file elsewhere is
    refused. Raises FileNotFoundError, DamagedLakeError."""
    *directories, name = path.split("/")
    location = root.child(path)
    with _directory(root, directories) as directory:
        try:
            descriptor = os.open(name, flags | FILE, mode, dir_fd=directory)
        except OSError as error:
            if error.errno not in (errno.ELOOP, errno.ENXIO, errno.EISDIR):
                raise
            _require_file(location, os.lstat(name, dir_fd=directory))
            raise
    try:
        status = os.fstat(descriptor)
        _require_file(location, status, DOCUMENT_BYTES)
        if status.st_nlink > 1:
            raise damaged(location, "has a second name elsewhere (a hard link); expected a file of the lake alone")
        yield descriptor
    finally:
        os.close(descriptor)


def read_document(root: Location, name: str) -> Any:
    """One of the lake's own JSON files. Raises FileNotFoundError, DamagedLakeError."""
    location = root.child(INTERNAL).child(name)
    if root.local:
        with opened(root, f"{INTERNAL}/{name}", os.O_RDONLY) as descriptor, open(descriptor, "rb", closefd=False) as it:
            content = it.read(DOCUMENT_BYTES + 1)
    else:
        with root.files.open_input_stream(location.path) as stream:
            content = stream.read(DOCUMENT_BYTES + 1)
    if len(content) > DOCUMENT_BYTES:
        raise damaged(location, f"has more than {DOCUMENT_BYTES:,} bytes")
    with content_of(location):
        return json.loads(content)


def create_directory(root: Location, path: str, mode: int) -> None:
    """Create a directory of a lake unless it is there. Raises OSError, DamagedLakeError."""
    if not root.local:
        return  # object stores have none
    *above, name = path.split("/")
    with _directory(root, above) as directory:
        try:
            os.mkdir(name, mode, dir_fd=directory)
        except FileExistsError:
            _require_directory(root.child(path), os.lstat(name, dir_fd=directory))


def make_private(root: Location, name: str) -> None:
    """Let only its user look into the directory of a table."""
    if root.local:
        with _directory(root, [name]) as directory:
            os.fchmod(directory, PRIVATE)


def delete_file(root: Location, path: str) -> bool:
    """Delete a file of a lake; returns whether it was there. Raises DamagedLakeError."""
    *directories, name = path.split("/")
    try:
        if not root.local:
            root.files.delete_file(posixpath.join(root.path, path))
            return True
        with _directory(root, directories) as directory:
            _require_file(root.child(path), os.lstat(name, dir_fd=directory))
            os.unlink(name, dir_fd=directory)
            return True
    except FileNotFoundError:
        return False


def delete_folder(root: Location, path: str, but: Collection[str] = ()) -> None:
    """Delete what is in a folder of a lake, except files of `but` (paths within the lake), and then the folder, if it
    is empty. Links in it are deleted, and not followed; one in place of the folder raises DamagedLakeError."""
    location = root.child(path)
    if not root.local:
        if root.files.get_file_info(location.path).type == pyarrow.fs.FileType.NotFound:
            return
        found = root.files.get_file_info(pyarrow.fs.FileSelector(location.path, recursive=True))
        files = {info.path for info in found if info.type == pyarrow.fs.FileType.File}
        gone = {file for file in files if posixpath.relpath(file, root.path) not in but}
        if gone == files:
            location.remove()
        else:
            for file in gone:
                root.files.delete_file(file)
        return
    *above, name = path.split("/")
    with suppress(FileNotFoundError), _directory(root, above) as directory:
        _require_directory(location, os.lstat(name, dir_fd=directory))
        for _ in range(REMOVALS):
            if not _emptied(root, path, frozenset(but), DEPTH):
                return
            try:
                os.rmdir(name, dir_fd=directory)
                return
            except OSError as error:
                if error.errno != errno.ENOTEMPTY:
                    raise
            time.sleep(REMOVAL_S)  # a task that was cancelled may still write a file


def _emptied(root: Location, path: str, but: frozenset[str], depth: int) -> bool:
    """Delete what is in a folder, except files of `but`; returns whether nothing is left."""
    if not depth:
        raise damaged(root.child(path), "is nested deeper than folders of a lake")
    empty = True
    with _directory(root, path.split("/")) as directory:
        for name in os.listdir(directory):
            below = f"{path}/{name}"
            if stat.S_ISDIR(os.lstat(name, dir_fd=directory).st_mode):
                if _emptied(root, below, but, depth - 1):
                    with suppress(OSError):  # a late task has written there
                        os.rmdir(name, dir_fd=directory)
                else:
                    empty = False
            elif below in but:
                empty = False
            else:
                os.unlink(name, dir_fd=directory)
    return empty
