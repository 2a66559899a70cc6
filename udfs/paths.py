"""Which capture files a person means by a path: a file, a directory, a glob, on any file system that Arrow knows.

A file that is named is taken, whatever it holds: if it is no capture, the tables say so. In a directory, and among what
a glob finds, only captures count: by name (`.pcap`, `.pcapng`, `.cap`, `.dmp`, `.trc`, also rotated as `.pcap3` or
`.pcap.3` and compressed) or by their first bytes. Hidden files are passed over.

Costs one listing per directory, and one open per file whose name does not tell.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
from pyarrow import fs

from codec.capture import CaptureError, sniff
from udfs.files import LOCAL, MISSING, PACKED_END, SCHEME, CaptureFile, Place, arrow_uri, locate, public_uri, said
from udfs.reading import CaptureBytes

CAPTURE_NAME = re.compile(rf"\.(pcap|pcapng|cap|dmp|trc)(\.?\d+)?({PACKED_END})?$", re.IGNORECASE)


class PathError(ValueError):
    """No capture is where a path points; the text is one line for the person who gave it."""


def resolve(paths: Sequence[str]) -> list[CaptureFile]:
    """The captures that `paths` name, each once, ordered by URI.

    A path that leads nowhere becomes a file of size MISSING, so that the tables tell of it, unless nothing else is
    found either: then PathError.
    """
    found: dict[str, CaptureFile] = {}
    complaints: list[str] = []
    for path in map(arrow_uri, paths):
        try:
            files = list(_expand(path))
            problem = None if files else "no capture file is there"
        except (OSError, pa.ArrowException) as error:
            problem = said(error, path)
        if problem:
            complaints.append(f"{public_uri(path)}: {problem}")
            files = [CaptureFile(path if SCHEME.match(path) else locate(path).uri(locate(path).path), MISSING, problem)]
        found.update((file.uri, file) for file in files)
    if len(complaints) == len(paths):
        raise PathError("; ".join(complaints) or "no path given; expected a capture file, a directory or a glob")
    return sorted(found.values(), key=lambda file: file.uri)


def anchored(path: str) -> str:
    """A path for another process: a relative one under the directory of this one, all others as they are."""
    if not path or SCHEME.match(path) or os.path.isabs(relative := path.removeprefix("file:")):
        return path
    here = os.getcwd()
    # Only what was asked for is a glob.
    return os.path.join(glob.escape(here) if glob.has_magic(relative) else here, relative)


def _expand(path: str) -> Iterator[CaptureFile]:
    """Captures of one path. Raises FileNotFoundError when it matches nothing."""
    remote = SCHEME.match(path) and not path.startswith(LOCAL)
    magic = "*" if remote else "*?["  # in a URI, a question mark begins the options
    whole, query, options = path.partition("?") if remote else (path, "", "")
    if not any(sign in whole for sign in magic) or (not remote and _is_there(path)):
        yield from _named(locate(path))
        return
    first = min(whole.find(sign) for sign in magic if sign in whole)
    base, slash, _ = whole[:first].rpartition("/")
    pattern = whole[len(base) + len(slash) :].rstrip("/")
    place = locate((base or slash or ".") + query + options)
    matching = glob_pattern(pattern)
    matched = False
    for info in _listed(place, "/" in pattern):
        if matching.fullmatch(_relative(place, info.path)):
            matched = True
            if info.type == fs.FileType.Directory:
                yield from _in_directory(place.at(info.path))
            else:
                yield from _captures(place, [info])
    if not matched:
        raise FileNotFoundError


def _is_there(path: str) -> bool:
    """Whether a name with glob signs in it is a file's own name."""
    place = locate(path)
    return bool(place.filesystem.get_file_info(place.path).type != fs.FileType.NotFound)


def _named(place: Place) -> Iterator[CaptureFile]:
    info = place.filesystem.get_file_info(place.path)
    if info.type == fs.FileType.NotFound:
        raise FileNotFoundError
    if info.type == fs.FileType.Directory:
        yield from _in_directory(place)
    else:
        yield CaptureFile(place.uri(info.path), info.size or 0)


def _in_directory(place: Place) -> Iterator[CaptureFile]:
    infos = (info for info in _listed(place, True) if info.type != fs.FileType.Directory)
    shown = (info for info in infos if not _hidden(_relative(place, info.path)))
    yield from _captures(place, shown)


def _listed(place: Place, recursive: bool) -> list[fs.FileInfo]:
    listed: list[fs.FileInfo] = place.filesystem.get_file_info(fs.FileSelector(place.path, recursive=recursive))
    return listed


def _relative(place: Place, path: str) -> str:
    return path.removeprefix(place.path).lstrip("/")


def _hidden(relative: str) -> bool:
    return any(part.startswith(".") for part in relative.split("/"))


def _captures(place: Place, infos: Iterable[fs.FileInfo]) -> Iterator[CaptureFile]:
    for info in infos:
        file = CaptureFile(place.uri(info.path), info.size or 0)
        if CAPTURE_NAME.search(info.path) or _begins_like_a_capture(file):
            yield file


def _begins_like_a_capture(file: CaptureFile) -> bool:
    try:
        with CaptureBytes(file) as source:
            sniff(source.head)
    except (CaptureError, OSError, pa.ArrowException):
        return False
    return True


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
