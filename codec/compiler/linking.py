"""Compiling of kernels: lowered one by one, linked and optimised once for each entry.

numba optimises every compiled function together with all its callees, and again in each of its callers. Here a kernel
is compiled in two ways, each when it is needed:

    entry       for Python: machine code and a wrapper, cached on disk. All direct and indirect callees are linked in,
                each function once, and LLVM optimises that module as a whole.
    interior    for other kernels: the LLVM code of this one function, neither linked nor compiled, without wrappers,
                in memory while entries are compiled.

Some 500 kernels have about forty entries. Compiling these takes a quarter of the time, and they run as fast or faster.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ClassVar

import llvmlite.binding as llvm
from numba import _dynfunc
from numba.core import types
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import CompilerBase, DefaultPassBuilder
from numba.core.compiler_machinery import register_pass
from numba.core.registry import CPUDispatcher
from numba.core.typed_passes import NativeLowering

OPTIONS = {"nopython": True, "nogil": True, "boundscheck": None}
lowered: list[str] = []  # kernels that this process has compiled, for those who wait
WITHOUT_WRAPPERS = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}


class InteriorLibrary(JITCodeLibrary):
    """The LLVM code of one function, and its callees for the entries that link it."""

    def finalize(self) -> None:
        self._raise_if_finalized()
        self._finalized = True


class EntryLibrary(JITCodeLibrary):
    """The LLVM code of an entry and of all its callees."""

    _linking_libraries: list[Any]

    def finalize(self) -> None:
        found = dict.fromkeys(self._linking_libraries)
        pending = list(found)
        while pending:
            library = pending.pop()
            if isinstance(library, InteriorLibrary):
                callees = dict.fromkeys(library._linking_libraries)
                pending += [callee for callee in callees if callee not in found]
                found |= callees
        self._linking_libraries = list(found)
        super().finalize()

    def serialize_using_object_code(self) -> tuple[str, str, tuple[bytes, bytes]]:
        """What the cache stores. numba adds the LLVM code, for callers that link it. Nothing links an entry, and to
        read that code takes most of the time that it takes to load one: here are only the names of its functions."""
        self._ensure_finalized()
        names = [f.name for f in self.get_defined_functions() if f.linkage == llvm.Linkage.external]
        stubs = "\n".join(f'define void @"{name}"() {{ ret void }}' for name in names)
        return self.name, "object", (self._get_compiled_object(), llvm.parse_assembly(stubs).as_bitcode())


def _new_library(state: Any, kind: type[JITCodeLibrary]) -> JITCodeLibrary:
    library = kind(state.targetctx.codegen(), state.func_id.func_qualname)
    library.enable_object_caching()
    return library


@register_pass(mutates_CFG=True, analysis_only=False)
class EntryLowering(NativeLowering):
    """numba's lowering, into an `EntryLibrary`."""

    _name = "entry_lowering"

    def run_pass(self, state: Any) -> bool:
        state.library = _new_library(state, EntryLibrary)
        lowered.append(f"{state.func_id.modname}.{state.func_id.func_qualname}")
        return bool(super().run_pass(state))


@register_pass(mutates_CFG=True, analysis_only=False)
class InteriorLowering(NativeLowering):
    """numba's lowering, into an `InteriorLibrary`, and no machine code."""

    _name = "interior_lowering"

    def run_pass(self, state: Any) -> bool:
        state.library = library = _new_library(state, InteriorLibrary)
        state.flags.no_compile = True
        lowered.append(f"{state.func_id.modname}.{state.func_id.func_qualname}")
        super().run_pass(state)
        result, function = state["cr"], state["cr"].fndesc
        # numba identifies an overload by the function that Python would call. This one has no code; Python never calls
        # it.
        name = function.qualname, function.doc
        stub = _dynfunc.make_function(function.lookup_module(), *name, 0, result.env, (library,))
        state.targetctx.insert_user_function(stub, function, [library])
        state["cr"] = result._replace(cfunc=stub)
        return True


class EntryCompiler(CompilerBase):
    """numba's pipeline with another lowering."""

    lowering: ClassVar[type[NativeLowering]] = EntryLowering

    def define_pipelines(self) -> list[Any]:
        steps = DefaultPassBuilder.define_nopython_pipeline(self.state)
        steps.passes = [(self.lowering if step is NativeLowering else step, why) for step, why in steps.passes]
        steps._finalized = False
        steps.finalize()
        return [steps]


class InteriorCompiler(EntryCompiler):
    lowering = InteriorLowering


# Options of `numba.extending.overload` for a function that calls kernels. Without them, numba would link its callees,
# but not theirs.
OVERLOAD = {"pipeline_class": InteriorCompiler}


def _without_value(kind: Any) -> Any:
    """int64 for the literal 3: all calls share one interior, and LLVM knows the value in calls that it inlines."""
    has_value = isinstance(kind, types.IntegerLiteral | types.BooleanLiteral)
    return types.unliteral(kind) if has_value else kind  # type: ignore[attr-defined]


class KernelDispatcher(CPUDispatcher):
    """A kernel: an entry when Python calls it, its interior when another kernel does."""

    def __init__(
        self,
        function: Callable[..., Any],
        locals: dict[str, Any] | None = None,
        targetoptions: dict[str, Any] | None = None,
        pipeline_class: type[CompilerBase] = EntryCompiler,
    ) -> None:
        super().__init__(function, locals or {}, OPTIONS | (targetoptions or {}), pipeline_class)

    @functools.cached_property
    def interior(self) -> Any:
        """The same function as its callers link it."""
        return CPUDispatcher(self.py_func, self.locals, self.targetoptions | WITHOUT_WRAPPERS, InteriorCompiler)

    def get_call_template(self, args: Any, kws: Any) -> Any:
        """Types of a call in a kernel."""
        by_name = {name: _without_value(kind) for name, kind in kws.items()}
        return self.interior.get_call_template([_without_value(kind) for kind in args], by_name)

    def get_overload(self, sig: Any) -> Any:
        """The function that a kernel links for a call."""
        return self.interior.get_overload(sig)
