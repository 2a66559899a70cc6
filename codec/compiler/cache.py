"""The cache of machine code on disk, and the directories that are trusted.

numba unpickles cache files: a user who can write them runs code in every process that decodes. So a directory is used
only if no user but this one, root and the owner of these sources can change it or its files; other directories are
never read. Kernels are loaded from the first directory that has them, in the order of `codec.compiler.bases`; it may be
read-only, when an administrator, an image or a wheel provides it. They are stored in the first directory that this user
can write. Without one they remain in the memory of the process."""

from __future__ import annotations

import functools
import grp
import os
import pwd
import stat
import sys
import uuid
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from numba.core.caching import IndexDataCacheFile, NullCache
from numba.core.compiler import CompileResult
from numba.core.runtime import rtsys

from codec.compiler import CACHE_DIR, PACKAGE, PACKAGE_CACHE, bases
from codec.compiler.levels import PACKAGED, level

ACCESS_LIST = "system.posix_acl_access"


@functools.cache
def _trusted() -> frozenset[int]:
    """Users whose files are unpickled."""
    return frozenset({0, os.geteuid(), PACKAGE.stat().st_uid})


def _group_of_one(group: int) -> bool:
    """Whether this is the private group of a trusted user."""
    try:
        named = grp.getgrgid(group)
        user = pwd.getpwnam(named.gr_name)
    except KeyError:
        return False
    return user.pw_gid == group and user.pw_uid in _trusted() and set(named.gr_mem) <= {user.pw_name}


def _has_list(path: Path) -> bool:
    """Whether there is an access control list (POSIX 1003.1e, draft 17) with further users: then the group bits are the
    permissions that any of them may have."""
    with suppress(OSError, AttributeError):  # file systems and systems without
        return ACCESS_LIST in os.listxattr(path, follow_symlinks=False)
    return False


def _changed_by_others(path: Path, above: bool = False) -> str | None:
    """The reason why another user can change `path`; None if no other can. A directory `above` may be one where all
    users create files but remove only their own."""
    try:
        found = path.lstat()
    except FileNotFoundError:  # a file that another process has just renamed
        return None
    if stat.S_ISLNK(found.st_mode):
        return f"{path} is a link"
    if found.st_uid not in _trusted():
        return f"{path} belongs to user {found.st_uid}"
    if above and found.st_mode & stat.S_ISVTX:
        return None
    if found.st_mode & stat.S_IWOTH:
        return f"everybody can write {path}"
    if found.st_mode & stat.S_IWGRP and _has_list(path):
        return f"the access control list of {path} lets others write"
    if found.st_mode & stat.S_IWGRP and not _group_of_one(found.st_gid):
        return f"group {found.st_gid} can write {path}"
    return None


@functools.cache
def _distrusted(base: Path) -> str | None:
    """The reason why no kernels are loaded from below `base`, or None. A missing directory is created later.

    Directories above the sources are not checked: a user who can change those can change the sources.
    """
    try:
        found = [path for path in ((base,) if base == PACKAGE_CACHE else (base, *base.parents)) if path.exists()]
        reasons = [_changed_by_others(path, above=path != base) for path in found]
    except OSError as error:
        return str(error)
    return next((reason for reason in reasons if reason), None)


def _unusable(directory: Path) -> str | None:
    """The reason why no kernels are loaded from `directory`, or None. A missing directory is created."""
    try:
        for path in (*reversed(directory.parents), directory):
            if not path.exists():
                path.mkdir(mode=0o755, exist_ok=True)
        reasons = [_changed_by_others(path) for path in (directory, *directory.iterdir())]
    except OSError as error:
        return str(error)
    return next((reason for reason in reasons if reason), None)


@functools.cache
def _warn(reason: str) -> None:
    warnings.warn(
        f"Compiled kernels are not cached: {reason}. Every process compiles them again, which takes minutes; "
        "set NUMBA_CACHE_DIR to a directory of your own.",
        RuntimeWarning,
        stacklevel=2,
    )


@functools.cache
def directories(name: str) -> tuple[tuple[Path, ...], Path | None]:
    """The directories `name` that kernels are loaded from, and the one that they are stored in."""
    readable: list[Path] = []
    reasons = []
    for base in bases():
        reason = _distrusted(base) or _unusable(base / name)
        if reason:
            reasons.append(reason)
            continue
        readable.append(base / name)
        if os.access(base / name, os.W_OK):
            return tuple(readable), base / name
    if not readable and not packaged_kernels(name):
        _warn("; ".join(reasons))
    return tuple(readable), None


@functools.cache
def packaged_kernels(name: str) -> tuple[Path, tuple[str, str]] | None:
    """The directory `name` of a wheel's machine code, and the processor and features that it is for."""
    found = level()
    if found is None or os.environ.get(CACHE_DIR):
        return None
    directory = PACKAGED / found.name / name
    if not directory.is_dir():
        return None
    parts = (PACKAGED, directory.parent, directory, *directory.iterdir())
    return None if any(_changed_by_others(path) for path in parts) else (directory, found.target)


class _CacheFile(IndexDataCacheFile):
    """numba's cache files, which no other user can write, with any umask."""

    @contextmanager
    def _open_for_write(self, filepath: str) -> Iterator[BinaryIO]:
        temporary = f"{filepath}.{uuid.uuid4().hex}"
        try:
            with open(temporary, "xb", opener=functools.partial(os.open, mode=0o644)) as file:
                yield file
            os.replace(temporary, filepath)
        finally:
            with suppress(OSError):
                os.unlink(temporary)


class KernelCache(NullCache):
    """The machine code of one kernel, by signature and processor, in the directories `name`."""

    def __init__(self, function: Callable[..., Any], name: str) -> None:
        code = function.__code__
        base = f"{Path(code.co_filename).stem}.{function.__qualname__}-{code.co_firstlineno}"
        self._base = f"{base}.{sys.implementation.cache_tag}".replace("<", "").replace(">", "")
        readable, writable = directories(name)
        # `name` identifies the sources: no stamp is needed
        files = {directory: _CacheFile(str(directory), self._base, None) for directory in readable}
        # each with the processor and features that it is for, if these are not the ones that are here
        self.readable: list[tuple[_CacheFile, tuple[str, str] | None]] = [(file, None) for file in files.values()]
        self.writable = files[writable] if writable else None
        packaged = packaged_kernels(name)
        if packaged:
            directory, target = packaged
            self.readable.insert(0, (_CacheFile(str(directory), self._base, None), target))

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        # All that machine code needs; numba's own cache would load everything that compiling needs, for 0.4 s
        rtsys.initialize(target_context)
        own = target_context.codegen().magic_tuple()
        for file, target in self.readable:
            with suppress(OSError):
                found = file.load((sig, (own[0], *target) if target else own))
                if found is not None:
                    return CompileResult._rebuild(target_context, *found)
        return None

    def save_overload(self, sig: Any, cres: Any) -> None:
        if self.writable and not cres.library.has_dynamic_globals:
            with suppress(OSError):  # a full disk does not stop decoding
                self.writable.save((sig, cres.codegen.magic_tuple()), cres._reduce())
