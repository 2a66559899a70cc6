"""Machine code that a wheel carries (codec/compiler/levels.py): which of it a processor gets, and that it is used."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from llvmlite import binding

from codec.compiler import levels

ROOT = Path(__file__).parents[2]
# Flags as Linux prints them, of two real processors; the older one is an Ivy Bridge, which has no AVX2.
HASWELL = (
    "fpu cx8 cmov mmx fxsr sse sse2 lahf_lm pni ssse3 fma cx16 sse4_1 sse4_2 movbe popcnt xsave avx f16c abm bmi1 avx2 "
    "bmi2"
)
IVY_BRIDGE = "fpu cx8 cmov mmx fxsr sse sse2 lahf_lm pni ssse3 cx16 sse4_1 sse4_2 popcnt xsave avx f16c"


@pytest.fixture
def carried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package that carries both levels; `cpuinfo` beside it is what Linux says of the processor."""
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(levels, "PROCESSOR", tmp_path / "cpuinfo")
    monkeypatch.setattr(levels, "PACKAGED", tmp_path / "machine_code")
    for level in levels.LEVELS:
        (tmp_path / "machine_code" / level.name).mkdir(parents=True)
    levels.flags.cache_clear()
    levels.level.cache_clear()
    yield tmp_path
    levels.flags.cache_clear()
    levels.level.cache_clear()


@pytest.mark.parametrize(
    ("processor", "expected"),
    [(f"{HASWELL} sha_ni", "x86-64-v3-sha"), (HASWELL, "x86-64-v3"), (IVY_BRIDGE, None), ("", None)],
)
def test_a_processor_gets_the_machine_code_that_it_can_run(carried: Path, processor: str, expected: str | None) -> None:
    (carried / "cpuinfo").write_text(f"processor\t: 0\nflags\t\t: {processor}\nbugs\t\t: spectre_v1\n")
    found = levels.level()
    assert (found and found.name) == expected


@pytest.mark.parametrize(
    ("processor", "expected"), [(f"{HASWELL} sha_ni", "x86-64-v3-sha"), (HASWELL, "x86-64-v3"), (IVY_BRIDGE, None)]
)
def test_without_proc_llvm_says_what_a_processor_has(
    carried: Path, monkeypatch: pytest.MonkeyPatch, processor: str, expected: str | None
) -> None:
    called = {linux: llvm for llvm, linux in levels.FLAGS.items()}
    has = {called.get(flag, flag): True for flag in processor.split()} | {"avx512f": False}
    monkeypatch.setattr(binding, "get_host_cpu_features", lambda: has)
    found = levels.level()
    assert (found and found.name) == expected


def test_llvm_and_linux_say_the_same_of_this_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    of_linux = levels.flags()
    levels.flags.cache_clear()
    monkeypatch.setattr(levels, "PROCESSOR", Path("nowhere"))
    of_llvm = levels.flags()
    levels.flags.cache_clear()
    needed = {levels.FLAGS.get(feature, feature) for level in levels.LEVELS for feature in level.features}
    assert needed & of_llvm == needed & of_linux


def test_elsewhere_than_on_x86_64_there_is_no_machine_code(carried: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    assert levels.level() is None


def test_who_names_a_processor_gets_kernels_compiled_for_it(carried: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (carried / "cpuinfo").write_text(f"flags : {HASWELL}\n")
    monkeypatch.setenv("NUMBA_CPU_NAME", "generic")
    assert levels.level() is None


HASH = """
import numpy as np
from codec.variant.containers import key_hash
print(key_hash(np.frombuffer(b"foobar", np.uint8), 0, 6), sum(key_hash.stats.cache_hits.values()))
"""


@pytest.mark.skipif(not {"avx2", "bmi2", "fma", "movbe"} <= levels.flags(), reason="another processor")
def test_machine_code_in_the_package_is_loaded_and_nothing_is_compiled(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "codec", tmp_path / "codec", ignore=shutil.ignore_patterns("__pycache__"))
    own = {name: value for name, value in os.environ.items() if not name.startswith("NUMBA")}
    own |= {"PYTHONPATH": str(tmp_path), "HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")}

    def printed(**settings: str) -> list[str]:
        ran = subprocess.run(
            [sys.executable, "-c", HASH], cwd=tmp_path, env=own | settings, capture_output=True, text=True, check=True
        )
        return ran.stdout.split()

    level = levels.LEVELS[-1]
    index = tmp_path / "codec" / "machine_code" / level.name
    # 32-bit FNV-1a of "foobar", from the vectors that its authors publish.
    assert printed(NUMBA_CACHE_DIR=str(index), **level.settings) == [str(0xBF9CF968), "0"]
    assert printed() == [str(0xBF9CF968), "1"]
    # other sources never run it
    source = tmp_path / "codec" / "variant" / "containers.py"
    source.write_text(source.read_text() + "\n# changed\n")
    assert printed() == [str(0xBF9CF968), "0"]
