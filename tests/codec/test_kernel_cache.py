"""Whose compiled kernels are loaded (codec/compiler/cache.py): numba unpickles them, so planted ones are foreign
code."""

from __future__ import annotations

import itertools
import os
import pickle
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numba
import pytest

from codec.compiler import cache as kernel_cache

ROOT = Path(__file__).parents[2]
SERVICE, ATTACKER = 54321, 54322  # users that own nothing
NAMES = (f"kernels-{i}" for i in itertools.count())

two_users = pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("setpriv"), reason="only root can be two users, with util-linux"
)
# Another user, who may read everything (the interpreter may be in root's home) and write only what is theirs.
BECOME = [
    *("setpriv", f"--reuid={SERVICE}", f"--regid={SERVICE}", "--clear-groups"),
    *("--inh-caps=-all,+dac_read_search", "--ambient-caps=-all,+dac_read_search"),
]


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory that NUMBA_CACHE_DIR names, which only this user can write."""
    directory = tmp_path / "cache"
    directory.mkdir(mode=0o755)
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(directory))
    return directory


def refused(reason: str, name: str | None = None) -> None:
    """Nothing is read or written there, and a warning says why."""
    kernel_cache._warn.cache_clear()
    with pytest.warns(RuntimeWarning, match=reason):
        assert kernel_cache.directories(name or next(NAMES)) == ((), None)


def test_a_directory_of_ones_own_is_made_and_used(base: Path) -> None:
    name = next(NAMES)
    assert kernel_cache.directories(name) == ((base / name,), base / name)


def test_a_directory_that_is_missing_is_made(base: Path) -> None:
    base.rmdir()
    name = next(NAMES)
    assert kernel_cache.directories(name) == ((base / name,), base / name)


@pytest.mark.parametrize("mode", [0o777, 0o757, 0o1777])
def test_a_directory_that_everybody_can_write_is_not_used(base: Path, mode: int) -> None:
    base.chmod(mode)
    refused("everybody can write")


def test_a_directory_that_a_list_lets_others_write_is_not_used(base: Path) -> None:
    """The owner, user 54322, the group, the mask, others: tag, permissions, id. Its mode is 0775, of a group of one."""
    entries = [(1, 7, -1), (2, 7, ATTACKER), (4, 5, -1), (16, 7, -1), (32, 5, -1)]
    data = struct.pack("<I", 2) + b"".join(struct.pack("<HHi", *entry) for entry in entries)
    try:
        os.setxattr(base, "system.posix_acl_access", data)
    except OSError:
        pytest.skip("this file system has no access control lists")
    refused("access control list")


def test_a_directory_that_everybody_can_move_away_is_not_used(base: Path) -> None:
    base.parent.chmod(0o777)
    refused("everybody can write")


def test_a_parent_directory_with_the_sticky_bit_is_accepted(base: Path) -> None:
    base.parent.chmod(0o1777)
    name = next(NAMES)
    assert kernel_cache.directories(name) == ((base / name,), base / name)


def test_a_link_is_not_followed(base: Path, tmp_path: Path) -> None:
    name = next(NAMES)
    (tmp_path / "elsewhere").mkdir()
    (base / name).symlink_to(tmp_path / "elsewhere")
    refused("is a link", name)


def test_a_linked_file_is_not_followed(base: Path, tmp_path: Path) -> None:
    name = next(NAMES)
    (base / name).mkdir()
    (base / name / "cursor.u8.nbi").symlink_to(tmp_path / "elsewhere")
    refused("is a link", name)


def test_a_file_that_everybody_can_write_is_not_read(base: Path) -> None:
    name = next(NAMES)
    (base / name).mkdir()
    (base / name / "cursor.u8.nbi").touch()
    (base / name / "cursor.u8.nbi").chmod(0o646)
    refused("everybody can write", name)


def test_files_are_written_for_others_to_read_whatever_the_umask(base: Path) -> None:
    file = kernel_cache._CacheFile(str(base), "cursor.u8", None)
    umask = os.umask(0)
    try:
        file.save("key", "data")
    finally:
        os.umask(umask)
    assert [path.stat().st_mode & 0o777 for path in base.iterdir()] == [0o644, 0o644]
    assert file.load("key") == "data"


@two_users
@pytest.mark.parametrize("what", ["base", "directory", "file"])
def test_files_of_another_user_are_not_used(base: Path, what: str) -> None:
    name = next(NAMES)
    (base / name).mkdir()
    (base / name / "cursor.u8.nbi").touch()
    os.chown({"base": base, "directory": base / name, "file": base / name / "cursor.u8.nbi"}[what], ATTACKER, -1)
    refused(f"belongs to user {ATTACKER}", name)


class Marker:
    """Unpickling this makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str, int]]:
        return os.open, (str(self.path), os.O_CREAT | os.O_WRONLY)


KERNEL = """
import numpy as np
from codec.cursor import u8
assert u8(np.full(4, 7, np.uint8), 0, 4) == 7
print(sum(u8.stats.cache_hits.values()), sum(u8.stats.cache_misses.values()))
"""


def call_a_kernel(user: int, sources: Path, **environment: str) -> str:
    """Call a kernel of `sources` as SERVICE or root: "hits misses" of its cache."""
    done = subprocess.run(
        [*(BECOME if user else []), sys.executable, "-P", "-W", "ignore", "-B", "-c", KERNEL],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(sources), **environment},
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture
def public() -> Iterator[Path]:
    """A directory of root's that every user can enter, with the sources in it."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory)
        path.chmod(0o755)
        shutil.copytree(ROOT / "codec", path / "codec", ignore=shutil.ignore_patterns("__pycache__"))
        (path / "marks").mkdir()
        (path / "marks").chmod(0o777)
        yield path


@two_users
@pytest.mark.parametrize("beside", [True, False], ids=["beside the sources", "NUMBA_CACHE_DIR"])
def test_kernels_that_root_compiled_are_used_by_others(public: Path, beside: bool) -> None:
    where = {} if beside else {"NUMBA_CACHE_DIR": str(public / "kernels")}
    assert call_a_kernel(0, public, HOME="/root", **where) == "0 1"
    assert call_a_kernel(SERVICE, public, HOME="/nonexistent", **where) == "1 0"


@two_users
def test_a_user_who_can_write_nowhere_compiles_in_memory(public: Path) -> None:
    assert call_a_kernel(SERVICE, public, HOME="/nonexistent") == "0 1"
    assert call_a_kernel(SERVICE, public, HOME="/nonexistent") == "0 1"


def planted(sources: Path, marker: Path) -> Iterator[tuple[str, bytes]]:
    """(directory/file, bytes) of an index of the kernel that the test calls, which is code."""
    script = """
from codec.cursor import u8
from codec.compiler.kernel import kernels_digest
from pathlib import Path
import codec.cursor
print(f"kernels-{kernels_digest(Path(codec.cursor.__file__))}", u8._cache._base)
"""
    printed = subprocess.run(
        [sys.executable, "-P", "-B", "-c", script],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(sources), "NUMBA_CACHE_DIR": str(sources / "other")},
        capture_output=True,
        text=True,
        check=True,
    )
    directory, base = printed.stdout.split()
    yield f"{directory}/{base}.nbi", pickle.dumps(numba.__version__) + pickle.dumps((None, Marker(marker)))


@two_users
@pytest.mark.parametrize("trust", ["attacker", "service"])
def test_planted_kernels_are_not_unpickled(public: Path, trust: str) -> None:
    """The same index is code when its directory is the user's own (so the plant works), and nothing when it is not."""
    shared = public / "shared"
    shared.mkdir()
    shared.chmod(0o1777 if trust == "attacker" else 0o755)
    for name, data in planted(public, public / "marks" / "ran"):
        file = shared / name
        file.parent.mkdir()
        file.write_bytes(data)
        for path in (file.parent, file):
            os.chown(path, ATTACKER if trust == "attacker" else SERVICE, -1)
    if trust == "service":
        os.chown(shared, SERVICE, -1)
        with pytest.raises(AssertionError):  # what is unpickled is no index
            call_a_kernel(SERVICE, public, NUMBA_CACHE_DIR=str(shared))
    else:
        assert call_a_kernel(SERVICE, public, NUMBA_CACHE_DIR=str(shared)) == "0 1"
    assert (public / "marks" / "ran").exists() == (trust == "service")
