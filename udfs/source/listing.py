"""Lists local directories and matches globs.

Arrow's listing follows cyclic links until the system fails, and fails on a name that is not UTF-8. Here each real
directory is listed once, and names are those of `os`, with `surrogateescape`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence

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
