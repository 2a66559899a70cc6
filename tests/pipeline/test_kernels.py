"""How kernels are compiled and cached (codec/compiler/jit.py, codec/compiler/linking.py)."""

from __future__ import annotations

import importlib.util
import pickle
from pathlib import Path
from types import ModuleType

import llvmlite.binding as llvm
import numba
import pytest

pytestmark = pytest.mark.skipif(numba.config.DISABLE_JIT, reason="nothing is compiled")

THREE = """
from codec.compiler.kernel import njit
from codec.compiler.kernel import inlined, kernel

@kernel
def add(x, y):
    return x + y

@inlined
def twice(x):
    return add(x, x)

@kernel
def entry(x):
    return add(twice(x), add(x, 1)) + add(x, 2)

@kernel
def outer(x):
    return entry(x) + 1
"""


def module_of(source: Path) -> ModuleType:
    specification = importlib.util.spec_from_file_location(source.stem, source)
    assert specification
    assert specification.loader
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


@pytest.fixture
def three(tmp_path: Path) -> ModuleType:
    """A module of kernels that call each other."""
    source = tmp_path / "three.py"
    source.write_text(THREE)
    return module_of(source)


def files_of(module: ModuleType) -> list[Path]:
    """Files with machine code in the cache."""
    directory = Path(numba.config.CACHE_DIR or Path(str(module.__file__)).parent)
    return sorted(directory.rglob("three.*.nbc"))


def cached(module: ModuleType) -> list[str]:
    """Names of the functions of which machine code is cached."""
    return sorted(path.name.split("-")[0] for path in files_of(module))


def test_only_what_python_calls_is_cached(three: ModuleType) -> None:
    assert three.entry(5) == 5 + 5 + 5 + 1 + 5 + 2
    assert cached(three) == ["three.entry"]
    assert three.add(20, 3) == 23
    assert cached(three) == ["three.add", "three.entry"]


def test_an_entry_is_cached_without_llvm_code_and_new_kernels_can_call_it(three: ModuleType) -> None:
    expected = three.entry(5)
    (file,) = files_of(three)
    (_, _, (_, bitcode)), *_ = pickle.loads(file.read_bytes())
    functions = [f for f in llvm.parse_bitcode(bitcode).functions if not f.is_declaration]
    assert {str(step).strip() for f in functions for block in f.blocks for step in block.instructions} == {"ret void"}
    again = module_of(Path(str(three.__file__)))
    assert again.entry(5) == expected
    assert sum(again.entry.stats.cache_hits.values()) == 1
    assert again.outer(5) == expected + 1


def test_literal_arguments_share_one_specialization(three: ModuleType) -> None:
    three.entry(5)
    assert [len(signature) for signature in three.add.interior.signatures] == [2]


def test_a_kernel_that_kernels_call_becomes_no_machine_code(three: ModuleType) -> None:
    three.entry(5)
    (lowered,) = three.add.interior.overloads.values()
    assert lowered.library._compiled_object is None
