"""Where output goes: a directory or file on any file system. Local paths go through `os`, other URIs through Arrow."""

from __future__ import annotations

import errno
import os
import posixpath
import re
import secrets
import shutil
import stat
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow.fs

from codec.errors import WirehareError
from udfs.source.capture_bytes import (
    LOCAL,
    UNDECODED,
    arrow_uri,
    error_line,
    is_utf8,
    printable,
    public_uri,
    special,
)
from udfs.workers.process_setup import umask

GLOB_SIGNS = re.compile(r"[{}\[\]*?\\]")  # of Hadoop's file systems
PRIVATE = 0o700
REMOVALS, REMOVAL_S = 20, 0.1
SCRATCH = "-scratch"


class OutputError(WirehareError):
    """The output cannot be written there; the message is one line that says why and what to do."""


class TablesError(WirehareError):
    """Tables or columns are missing or cannot be read; the message is one line that says which and why."""


@dataclass(frozen=True)
class Location:
    """A directory: `path` as its file system `files` (a pyarrow.fs.FileSystem) names it, `uri` as Spark does."""

    files: Any
    path: str
    uri: str

    @property
    def name(self) -> str:
        return posixpath.basename(self.path)

    @property
    def parent(self) -> Location:
        return Location(self.files, posixpath.dirname(self.path), posixpath.dirname(self.uri))

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

    def child(self, name: str) -> Location:
        return Location(self.files, posixpath.join(self.path, name), posixpath.join(self.uri, name))

    @property
    def scratch(self) -> Location:
        """The directory for temporary files of a run with this stage; not created yet."""
        return Location(self.files, self.path + SCRATCH, self.uri + SCRATCH)

    def entries(self) -> list[str] | None:
        """Names in the directory; None if it does not exist. Raises OutputError for a file."""
        info = self.files.get_file_info(self.path)
        if info.type == pyarrow.fs.FileType.NotFound:
            return None
        if info.type != pyarrow.fs.FileType.Directory:  # a device has the type Unknown
            raise OutputError(f"{self.display_name}: is a file; expected a directory to write tables into")
        return [entry.base_name for entry in self.files.get_file_info(pyarrow.fs.FileSelector(self.path))]

    def byte_size(self) -> int:
        """Bytes of all files below the directory, 0 if it does not exist."""
        below = pyarrow.fs.FileSelector(self.path, recursive=True, allow_not_found=True)
        files = self.files.get_file_info(below)
        return sum(file.size or 0 for file in files)

    def dataset(self) -> Any:
        """The Parquet files in the directory, as a pyarrow.dataset.Dataset. Raises OSError."""
        self._require_files()
        import pyarrow.dataset  # which imports pandas, if it is there: half a second

        return pyarrow.dataset.dataset(self.path, filesystem=self.files, format="parquet")

    def _require_files(self) -> None:
        """Raise OSError if a local directory has files that are not regular ones: to open a FIFO would block."""
        for directory, _, names in os.walk(self.path) if self.local else ():
            for name in names:
                path = os.path.join(directory, name)
                if os.path.exists(path) and (problem := special(os.stat(path))):
                    raise OSError(f"{printable(path)} {problem}")

    def require_replaceable(self) -> None:
        """Raise OutputError for a local device, FIFO or socket: a file in the place of /dev/null harms the machine."""
        with suppress(FileNotFoundError, NotADirectoryError):
            if self.local and (problem := special(os.stat(self.path), "expected the name of a file to write")):
                raise OutputError(f"{self.display_name}: {problem}")

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

    def publish(self, mask: int = 0) -> None:
        """Set the permissions of a local directory and its contents according to the umask of this process, without
        those in `mask`."""
        if not self.local:
            return
        mask |= umask()
        for directory, _, files in os.walk(self.path, topdown=False):
            for name in files:
                _chmod(os.path.join(directory, name), 0o666 & ~mask)
            _chmod(directory, 0o777 & ~mask)

    def remove(self) -> None:
        """Delete the directory and its contents, if it exists; of a link, the link."""
        if self.local:
            if os.path.islink(self.path):
                os.unlink(self.path)
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

    def move_to(self, target: Location) -> None:
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
    """Set the permissions of a file or directory if it belongs to this user, not of what a link points to; keeps the
    set-group-ID bit."""
    with suppress(PermissionError):  # of another user, whose executor made it
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENXIO):  # a link, a socket
                return
            raise
        try:
            os.fchmod(descriptor, mode | (os.fstat(descriptor).st_mode & stat.S_ISGID))
        finally:
            os.close(descriptor)


def others_may_rename(directory: str) -> bool:
    """Whether everybody can give another name to what is in a local directory: then a name says nothing."""
    try:
        mode = os.stat(directory).st_mode
    except OSError:
        return False
    return bool(mode & stat.S_IWOTH) and not mode & stat.S_ISVTX


def escape_glob(uri: str) -> str:
    """A URI or path with glob characters escaped, because Spark reads paths as globs."""
    return GLOB_SIGNS.sub(r"\\\g<0>", uri)


def location(output: str) -> Location:
    """The Location of `output` (a path or a URI). Raises OutputError if no file system serves it."""
    scheme = urlsplit(output).scheme if "://" in output else ""
    if scheme in ("", "file"):
        # Swap the directory itself, not a link to it.
        named = unquote(output.removeprefix(LOCAL), errors=UNDECODED) if scheme else os.path.expanduser(output)
        path = os.path.realpath(named)
        if not is_utf8(path):
            raise OutputError(
                f"{printable(path)}: this name is not UTF-8; Spark cannot write there, choose another one"
            )
        return Location(pyarrow.fs.LocalFileSystem(), path, f"file://{path}")
    try:
        files, path = pyarrow.fs.FileSystem.from_uri(arrow_uri(output))
    except (OSError, ValueError) as error:
        # Not `from error`: its traceback would show credentials in the URI.
        raise OutputError(f"{public_uri(output)}: cannot be reached ({error_line(error, output)})") from None
    return Location(files, path.rstrip("/"), output.partition("?")[0].rstrip("/"))


@contextmanager
def sink(target: Location, mode: int = 0o666) -> Iterator[Any]:
    """An open file, which atomically replaces `target` when the body succeeds; `mode`: of a local one, before the
    umask. Raises OutputError for a device, a FIFO or a socket, which is not replaced."""
    target.require_replaceable()
    draft = target.parent.child(f".{target.name}-{time.time_ns()}-{secrets.token_hex(4)}")
    try:
        if target.local:  # whatever another user has put there under this name is not written to
            flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
            with open(os.open(draft.path, flags, mode), "wb") as file:
                yield file
            os.replace(draft.path, target.path)
        else:
            with target.files.open_output_stream(draft.path) as stream:
                yield stream
            target.files.move(draft.path, target.path)
    except BaseException:
        with suppress(OSError):
            target.files.delete_file(draft.path)
        raise
