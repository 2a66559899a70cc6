"""Scratch directories for Spark on one machine, readable only by their user.

Shuffle and spill files contain bytes of captures, and Spark makes them world-readable. `directories()` makes a private
directory below each of Spark's local directories. It is removed when this process exits, or if the process was killed,
by the next one that uses the same parent directory. A lock, which ends with the process, marks a directory as in use.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from pipeline.output.location import others_may_rename
from udfs.workers.process_setup import USER_UMASK, umask_setting

PREFIX = "wirehare-scratch-"
LOCAL_DIR, LOCAL_DIRS = "spark.local.dir", "SPARK_LOCAL_DIRS"  # the setting, and the variable that overrides it
PRIVATE = 0o077  # umask: no access for others


def directories(conf: Mapping[str, str]) -> str:
    """Private directories, comma-separated, below Spark's local directories according to the environment, `conf`, or
    spark-defaults.conf; else below the system's temporary directory."""
    directories = os.environ.get(LOCAL_DIRS) or conf.get(LOCAL_DIR) or default_of(LOCAL_DIR) or tempfile.gettempdir()
    return ",".join(private(parent.strip()) for parent in directories.split(",") if parent.strip())


@contextmanager
def private_umask(local_dirs: str) -> Iterator[None]:
    """For starting a JVM: its files are readable only by its user, and go to `local_dirs`. Its Python workers restore
    the umask of this process (`udfs.workers.process_setup`)."""
    before = os.environ.get(LOCAL_DIRS)
    os.environ[LOCAL_DIRS] = local_dirs
    os.environ[USER_UMASK] = umask_setting()
    umask_before = os.umask(PRIVATE)
    try:
        yield
    finally:
        os.umask(umask_before)
        del os.environ[USER_UMASK]
        if before is None:
            del os.environ[LOCAL_DIRS]
        else:
            os.environ[LOCAL_DIRS] = before


@cache
def private(parent: str) -> str:
    """A new directory in `parent` for this process. Raises OSError."""
    parent = parent.removeprefix("file://").removeprefix("file:")
    os.makedirs(parent, exist_ok=True)
    clean(parent)
    while True:
        directory = tempfile.mkdtemp(prefix=PREFIX, dir=parent)  # mode 700
        lock = try_lock(directory)
        # Another process may have removed it as abandoned before it was locked.
        if lock is not None and Path(directory).is_dir():
            break
    atexit.register(remove_directory, directory, lock, os.getpid())
    return directory


def clean(parent: str) -> None:
    """Remove what killed processes of this user have left in `parent`, unless everybody can rename what is there."""
    if others_may_rename(parent):
        return
    with suppress(OSError):
        for entry in list(os.scandir(parent)):
            if entry.name.startswith(PREFIX):
                lock = try_lock(entry.path)
                if lock is not None:
                    shutil.rmtree(entry.path, ignore_errors=True)
                    os.close(lock)


def try_lock(directory: str) -> int | None:
    """A lock on a directory of this user; None if it belongs to another user, or is in use."""
    try:
        lock = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        status = os.fstat(lock)
        if status.st_uid == os.getuid() and not status.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return lock
    except OSError:  # in use, or a file system without locks
        pass
    os.close(lock)
    return None


def remove_directory(directory: str, lock: int, process: int) -> None:
    """Remove the directory of this process; not in a forked process."""
    if process == os.getpid():
        shutil.rmtree(directory, ignore_errors=True)
        os.close(lock)


def default_of(setting: str) -> str | None:
    """A setting in spark-defaults.conf; None if it is not set, or there is no such file."""
    installed = find_spec("pyspark")  # importing it would take 0.1 s
    spark = os.environ.get("SPARK_HOME") or os.path.dirname(str(installed and installed.origin))
    home = os.environ.get("SPARK_CONF_DIR") or os.path.join(spark, "conf")
    with suppress(OSError), open(os.path.join(home, "spark-defaults.conf"), encoding="utf-8", errors="replace") as file:
        for line in file:
            name, _, value = line.strip().replace("=", " ", 1).partition(" ")
            if name == setting and value.strip():
                return value.strip()
    return None
