"""Where machine code is kept on disk, and from which directories it is taken.

numba unpickles what it finds in a cache: whoever can write there runs code in every process that decodes. So a
directory is used only if nobody can change it, or what is in it, but this user, root and the owner of these sources; of
every other directory nothing is read. Of the places that `codec.compiler.places` lists, kernels are taken from the
first that has them, which may be read-only: an administrator or an image brought them. They are kept in the first that
this user can write. Where there is none they stay in the memory of the process."""

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

from codec.compiler.places import BESIDE, PACKAGE, bases

ACCESS_LIST = "system.posix_acl_access"


@functools.cache
def _trusted() -> frozenset[int]:
    """Users whose files are unpickled."""
    return frozenset({0, os.geteuid(), PACKAGE.stat().st_uid})


def _group_of_one(group: int) -> bool:
    """Whether this is the group that a system makes for one user alone, and that user is trusted."""
    try:
        named = grp.getgrgid(group)
        user = pwd.getpwnam(named.gr_name)
    except KeyError:
        return False
    return user.pw_gid == group and user.pw_uid in _trusted() and set(named.gr_mem) <= {user.pw_name}


def _has_list(path: Path) -> bool:
    """Whether an access control list (POSIX 1003.1e, draft 17) names further users: the bits of the group are then what
    any of them may do."""
    with suppress(OSError, AttributeError):  # file systems and systems without
        return ACCESS_LIST in os.listxattr(path, follow_symlinks=False)
    return False


def _changed_by_others(path: Path, above: bool = False) -> str | None:
    """Who else can change what is at `path`, in words; None if it is nobody. A directory `above` may be one where
    everybody makes files but removes only their own."""
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
    """Why no kernels are taken from below `base`, or None. Where it is missing, it can be made.

    Above the sources nothing is looked at: who can change that has changed the sources themselves.
    """
    try:
        found = [path for path in ((base,) if base == BESIDE else (base, *base.parents)) if path.exists()]
        reasons = [_changed_by_others(path, above=path != base) for path in found]
    except OSError as error:
        return str(error)
    return next((reason for reason in reasons if reason), None)


def _unusable(directory: Path) -> str | None:
    """Why no kernels are taken from `directory`, or None. It is made where it is missing."""
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
        f"Compiled kernels are not kept: {reason}. Every process compiles them anew, which takes minutes; "
        "name a directory of your own with NUMBA_CACHE_DIR.",
        RuntimeWarning,
        stacklevel=2,
    )


@functools.cache
def directories(name: str) -> tuple[tuple[Path, ...], Path | None]:
    """The directories `name` that kernels are taken from, and the one they are kept in."""
    taken: list[Path] = []
    reasons = []
    for base in bases():
        reason = _distrusted(base) or _unusable(base / name)
        if reason:
            reasons.append(reason)
            continue
        taken.append(base / name)
        if os.access(base / name, os.W_OK):
            return tuple(taken), base / name
    if not taken:
        _warn("; ".join(reasons))
    return tuple(taken), None


class _CacheFile(IndexDataCacheFile):
    """numba's files, which nobody else can write whatever the umask."""

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
        taken, kept = directories(name)
        # `name` stands for the sources: no stamp is needed
        files = {directory: _CacheFile(str(directory), self._base, None) for directory in taken}
        self.taken = list(files.values())
        self.kept = files[kept] if kept else None

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        target_context.refresh()
        key = sig, target_context.codegen().magic_tuple()
        for file in self.taken:
            with suppress(OSError):
                found = file.load(key)
                if found is not None:
                    return CompileResult._rebuild(target_context, *found)
        return None

    def save_overload(self, sig: Any, cres: Any) -> None:
        if self.kept and not cres.library.has_dynamic_globals:
            with suppress(OSError):  # a full disk stops no decoding
                self.kept.save((sig, cres.codegen.magic_tuple()), cres._reduce())
