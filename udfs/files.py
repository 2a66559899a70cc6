"""A capture file on any file system that Arrow knows, by its URI."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from urllib.parse import quote, unquote, urlsplit

from pyarrow import fs

SCHEME = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]*://")
LOCAL = "file://"
# Hadoop, and Spark with it, name the same store differently.
ARROW_SCHEMES = {"s3a": "s3", "s3n": "s3"}
MISSING = -1  # size of a file that cannot be opened


@dataclass(frozen=True)
class CaptureFile:
    """One capture: `uri` opens it, `size` is its bytes as stored; `problem` says why it cannot be opened at all."""

    uri: str
    size: int
    problem: str | None = None

    @property
    def name(self) -> str:
        """The URI as rows show it."""
        return public_uri(self.uri)


@dataclass(frozen=True)
class Place:
    """A path on an opened file system. URIs of its paths are `before`, the path less `root`, `after`."""

    filesystem: fs.FileSystem
    path: str
    before: str
    root: str = ""
    after: str = ""

    def uri(self, path: str) -> str:
        """URI of another path on the same file system."""
        return self.before + quote(path.removeprefix(self.root)) + self.after

    def at(self, path: str) -> Place:
        """Another path on the same file system."""
        return replace(self, path=path)


def arrow_uri(uri: str) -> str:
    """A URI with the scheme that Arrow knows; all else as it is."""
    scheme, separator, rest = uri.partition("://")
    return ARROW_SCHEMES.get(scheme.lower(), scheme) + separator + rest


def locate(uri: str) -> Place:
    """The file system and path of a URI or local path, one and the same for all spellings of a scheme.

    Raises OSError or ArrowException if there is no such system.
    """
    if uri.startswith(LOCAL):
        return Place(fs.LocalFileSystem(), unquote(uri[len(LOCAL) :]), LOCAL)
    if not SCHEME.match(uri):
        return Place(fs.LocalFileSystem(), os.path.abspath(uri.removeprefix("file:")), LOCAL)
    uri = arrow_uri(uri)
    filesystem, path = fs.FileSystem.from_uri(uri)
    parts = urlsplit(uri)
    inside = unquote(parts.path).strip("/")  # of the bucket, which some file systems count as part of their path
    root = path.rstrip("/").removesuffix(inside)
    root = root if root.endswith("/") else root + "/"
    return Place(filesystem, path, f"{parts.scheme}://{parts.netloc}/", root, f"?{parts.query}" if parts.query else "")


def public_uri(uri: str) -> str:
    """A URI or path without passwords and connection options, which may hold keys."""
    if uri.startswith(LOCAL) or not SCHEME.match(uri):
        return uri
    scheme, _, rest = uri.partition("?")[0].partition("://")
    authority, slash, path = rest.partition("/")
    user, at, host = authority.rpartition("@")
    name, colon, _ = user.partition(":")
    if colon and not scheme.startswith("abfs"):  # there the name is the container
        name = at = ""
    return f"{scheme}://{name}{at}{host}{slash}{path}"


def first_line(error: BaseException) -> str:
    """What went wrong, in one line, without the stack of details that file systems add."""
    if isinstance(error, FileNotFoundError):
        return "no such file or directory"
    if isinstance(error, PermissionError):
        return "permission denied"
    return (str(error).splitlines() or [type(error).__name__])[0]
