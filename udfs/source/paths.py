"""Capture files of paths: files, directories, globs, on any file system that Arrow knows.

A named file is always read: if it is not a capture, the tables say so. In a directory, and among the matches of a glob,
only captures count: by name (`.pcap`, `.pcapng`, `.cap`, `.dmp`, `.trc`, also rotated as `.pcap3` or
`.pcap.3` and compressed) or by their first bytes. Hidden files are skipped. Only regular files are opened: a FIFO
named like a capture is a file with a problem.

Costs one listing per directory, and one open per file without the name of a capture.
"""

from __future__ import annotations

import glob
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from urllib.parse import quote, unquote

import pyarrow as pa
from pyarrow import fs

from codec.capture import CaptureError, sniff
from codec.errors import WirehareError
from udfs.source.capture_bytes import (
    COMPRESSED_SUFFIX,
    LOCAL,
    MISSING,
    SCHEME,
    UNDECODED,
    CaptureBytes,
    CaptureFile,
    Location,
    arrow_uri,
    error_line,
    first_line,
    is_utf8,
    locate,
    printable,
    public_uri,
    special,
)

# Lists local directories and matches globs.
#
# Arrow's listing follows cyclic links until the system fails, and fails on a name that is not UTF-8. Here each real
# directory is listed once, and names are those of `os`, with `surrogateescape`.


Unreadable = Callable[[OSError], object]  # called for each directory that cannot be listed


def below(folder: str, unreadable: Unreadable) -> Iterator[str]:
    """Paths of all files below `folder`, without hidden names; each directory is listed once, despite links."""
    for directory, names in _directories(folder, unreadable):
        yield from (os.path.join(directory, name) for name in names)


def matching(folder: str, names: Sequence[str], unreadable: Unreadable) -> Iterator[str]:
    """Paths that a glob, split at '/', matches in `folder`; perhaps with duplicates."""
    name, rest = names[0], names[1:]
    if name == "**" and rest:
        for directory, _ in _directories(folder, unreadable):
            yield from matching(directory, rest, unreadable)
        return
    if not name and rest:
        yield from matching(folder, rest, unreadable)
        return
    pattern = glob_pattern("*" if name == "**" else name)
    for entry in _entries(folder, unreadable):
        if pattern.fullmatch(entry.name):
            if not rest:
                yield entry.path
            elif _leads_to_directory(entry):
                yield from matching(entry.path, rest, unreadable)


def _directories(folder: str, unreadable: Unreadable) -> Iterator[tuple[str, list[str]]]:
    """(directory, names of its other entries) from `folder` down, each once, by its real path if possible."""
    seen: set[tuple[int, int]] = set()
    pending, links = [folder], list[str]()
    while pending or links:
        directory = pending.pop() if pending else links.pop()
        try:
            status = os.stat(directory)
        except OSError as error:
            unreadable(error)
            continue
        if (status.st_dev, status.st_ino) in seen:
            continue
        seen.add((status.st_dev, status.st_ino))
        names, own = [], []
        for entry in _entries(directory, unreadable):
            if entry.name.startswith("."):
                continue
            if not _leads_to_directory(entry):
                names.append(entry.name)
            elif entry.is_symlink():
                links.append(entry.path)
            else:
                own.append(entry.path)
        pending += reversed(own)
        yield directory, names


def _entries(folder: str, unreadable: Unreadable) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except OSError as error:
        unreadable(error)
        return []


def _leads_to_directory(entry: os.DirEntry[str]) -> bool:
    return os.path.isdir(entry.path) if entry.is_symlink() else entry.is_dir()


def glob_pattern(pattern: str) -> re.Pattern[str]:
    """A glob as a regular expression over '/'-separated paths: `*` `?` `[...]` within a name, `**` across directories.

    As in a shell, `*` and `?` at the beginning of a name, and `**`, do not match hidden names.
    """
    parts = []
    names = pattern.split("/")
    for i, name in enumerate(names):
        last = i == len(names) - 1
        if name == "**":
            parts.append(r"(?:(?!\.)[^/]+/)*" + (r"(?!\.)[^/]+" if last else ""))
        else:
            hidden_out = r"(?!\.)" if name[:1] in ("*", "?", "[") else ""
            parts.append(hidden_out + "".join(_glob_signs(name)) + ("" if last else "/"))
    return re.compile("".join(parts), re.DOTALL)


def _glob_signs(name: str) -> Iterator[str]:
    for sign in re.findall(r"\[[!^]?\]?[^\]]*\]|.", name, re.DOTALL):
        if sign == "*":
            yield "[^/]*"
        elif sign == "?":
            yield "[^/]"
        elif len(sign) > 1:
            inside = re.sub(r"[\\[]", r"\\\g<0>", sign[1:-1])
            yield "[" + ("^" + inside[1:] if inside[0] in "!^" else inside) + "]"
        else:
            yield re.escape(sign)


CAPTURE_NAME = re.compile(rf"\.(pcap|pcapng|cap|dmp|trc)(\.?\d+)?({COMPRESSED_SUFFIX})?$", re.IGNORECASE)


class PathError(WirehareError, ValueError):
    """A path has no capture; the message is one line."""


def resolve(paths: Sequence[str]) -> list[CaptureFile]:
    """The captures of `paths`, each once, ordered by URI. A local file found several times, through links, counts once,
    under its own name if possible.

    A path without captures becomes a file of size MISSING, for the tables, unless nothing is found at all: PathError.
    """
    found: dict[str, CaptureFile] = {}
    problems: list[str] = []
    for path in map(arrow_uri, paths):
        try:
            files = list(_expand(path))
            problem = None if files else "no pcap or pcapng file found"
        except (OSError, pa.ArrowException) as error:
            problem = error_line(error, path)
        if problem:
            problems.append(f"{public_uri(printable(path))}: {problem}")
            files = [CaptureFile(path if SCHEME.match(path) else locate(path).uri(locate(path).path), MISSING, problem)]
        found.update((file.uri, file) for file in files)
    if len(problems) == len(paths):
        raise PathError("; ".join(problems) or "no path given; expected a capture file, a directory or a glob")
    return sorted(_without_duplicates(found.values()), key=lambda file: file.uri)


def require_capture(files: Sequence[CaptureFile]) -> None:
    """Raise PathError if no file is a capture. Costs one small read per file up to the first capture."""
    problems = []
    for file in files:
        problem = _refusal(file)
        if problem is None:
            return
        problems.append(f"{file.name}: {problem}")
    among = f"none of these {len(files)} files is a capture; " if len(files) > 1 else ""
    raise PathError(among + problems[0])


def anchored(path: str) -> str:
    """A path for another process: a relative one is made absolute; a name that is not UTF-8 becomes a URI."""
    if path and not SCHEME.match(path) and not os.path.isabs(relative := path.removeprefix("file:")):
        here = os.getcwd()
        # Only the given part may be a glob.
        path = os.path.join(glob.escape(here) if glob.has_magic(relative) else here, relative)
    if is_utf8(path):
        return path
    return LOCAL + quote(path.removeprefix("file:"), safe="/*?[]!", errors=UNDECODED)


def _without_duplicates(files: Iterable[CaptureFile]) -> list[CaptureFile]:
    """The files without duplicates; of the same local file the name that is not a link, or the first."""
    same: dict[object, list[CaptureFile]] = {}
    for file in files:
        same.setdefault(_identity(file), []).append(file)
    return [names[0] if len(names) == 1 else min(names, key=_by_own_name) for names in same.values()]


def _identity(file: CaptureFile) -> object:
    """Device and inode of a local file (its real directory and its name if it cannot be read), the URI of any other."""
    if not file.uri.startswith(LOCAL):
        return file.uri
    path = locate(file.uri).path
    try:
        status = os.stat(path)
    except OSError:
        return os.path.realpath(os.path.dirname(path)), os.path.basename(path)
    return (status.st_dev, status.st_ino) if status.st_ino else os.path.realpath(path)


def _by_own_name(file: CaptureFile) -> tuple[bool, bool, str]:
    path = locate(file.uri).path if file.uri.startswith(LOCAL) else ""
    return os.path.islink(path), os.path.realpath(path) != path, file.uri


def _expand(path: str) -> Iterator[CaptureFile]:
    """Captures of one path. Raises FileNotFoundError when it matches nothing."""
    remote = bool(SCHEME.match(path)) and not path.startswith(LOCAL)
    if not SCHEME.match(path):
        path = path.removeprefix("file:")
    magic = "*" if remote else "*?["  # in a URI, a question mark begins the options
    whole, query, options = path.partition("?") if remote else (path, "", "")
    if not any(sign in whole for sign in magic) or (not remote and os.path.lexists(locate(path).path)):
        yield from _named(locate(path))
        return
    first = min(whole.find(sign) for sign in magic if sign in whole)
    base, slash, _ = whole[:first].rpartition("/")
    pattern = whole[len(base) + len(slash) :].rstrip("/")
    location = locate((base or slash or ".") + query + options)
    if location.local and path.startswith(LOCAL):
        pattern = unquote(pattern, errors=UNDECODED)
    yield from _matching_local(location, pattern) if location.local else _matching_remote(location, pattern)


def _matching_local(location: Location, pattern: str) -> Iterator[CaptureFile]:
    matched, unreadable = False, list[OSError]()
    for path in matching(location.path, pattern.split("/"), unreadable.append):
        matched = True
        yield from _in_directory(location.at(path)) if os.path.isdir(path) else _captures([_local_file(location, path)])
    unlisted = list(_unlisted(location, unreadable))
    yield from unlisted
    if not matched and not unlisted:
        raise FileNotFoundError


def _matching_remote(location: Location, pattern: str) -> Iterator[CaptureFile]:
    names = glob_pattern(pattern)
    matches = [info for info in _listed(location, "/" in pattern) if names.fullmatch(_relative(location, info.path))]
    if not matches:
        raise FileNotFoundError
    for match in matches:
        if match.type == fs.FileType.Directory:
            yield from _in_directory(location.at(match.path))
        else:
            yield from _captures([_remote_file(location, match)])


def _named(location: Location) -> Iterator[CaptureFile]:
    if location.local:
        is_directory = stat.S_ISDIR(os.stat(location.path).st_mode)
        file = _local_file(location, location.path)
    else:
        info = location.filesystem.get_file_info(location.path)
        if info.type == fs.FileType.NotFound:
            raise FileNotFoundError
        is_directory = info.type == fs.FileType.Directory
        file = _remote_file(location, info)
    if is_directory:
        yield from _in_directory(location)
    elif file[1].problem:
        raise OSError(file[1].problem)
    else:
        yield file[1]


def _in_directory(location: Location) -> Iterator[CaptureFile]:
    """Captures below a directory; a subdirectory that cannot be listed is a file with a problem."""
    if not location.local:
        infos = [info for info in _listed(location, True) if info.type == fs.FileType.File]
        visible = [info for info in infos if not _hidden(_relative(location, info.path))]
        yield from _captures(_remote_file(location, info) for info in visible)
        return
    unreadable: list[OSError] = []
    yield from _captures(_local_file(location, path) for path in below(location.path, unreadable.append))
    for error in unreadable:
        if error.filename == location.path:
            raise error
    yield from _unlisted(location, unreadable)


def _unlisted(location: Location, errors: Iterable[OSError]) -> Iterator[CaptureFile]:
    for error in errors:
        if not isinstance(error, FileNotFoundError):  # removed meanwhile, or a dangling link
            yield CaptureFile(location.uri(error.filename), MISSING, first_line(error))


def _listed(location: Location, recursive: bool) -> list[fs.FileInfo]:
    listed: list[fs.FileInfo] = location.filesystem.get_file_info(fs.FileSelector(location.path, recursive=recursive))
    return listed


def _relative(location: Location, path: str) -> str:
    return path.removeprefix(location.path).lstrip("/")


def _hidden(relative: str) -> bool:
    return any(part.startswith(".") for part in relative.split("/"))


def _local_file(location: Location, path: str) -> tuple[str, CaptureFile]:
    """A path and its file; with a problem if it cannot be read."""
    uri = location.uri(path)
    try:
        status = os.stat(path)
    except OSError as error:
        return path, CaptureFile(uri, MISSING, first_line(error))
    if problem := special(status):
        return path, CaptureFile(uri, MISSING, problem)
    return path, CaptureFile(uri, status.st_size, None, status.st_mtime_ns)


def _remote_file(location: Location, info: fs.FileInfo) -> tuple[str, CaptureFile]:
    return info.path, CaptureFile(location.uri(info.path), info.size or 0, None, info.mtime_ns)


def _captures(files: Iterable[tuple[str, CaptureFile]]) -> Iterator[CaptureFile]:
    """The files that are captures, by name or by their first bytes."""
    for path, file in files:
        if CAPTURE_NAME.search(path) or _refusal(file) is None:
            yield file


def _refusal(file: CaptureFile) -> str | None:
    """Why the first bytes of a file are not those of a capture; None if they are."""
    try:
        with CaptureBytes(file) as source:
            sniff(source.head)
    except CaptureError as refusal:
        return str(refusal)
    except (OSError, pa.ArrowException) as error:
        return error_line(error, file.uri)
    return None
