"""Kernels that own no memory, compiled without reference counts.

numba counts references to every array of every NamedTuple that a compiled function receives; where a loop or branch
keeps it from cancelling a pair, a call costs an atomic instruction per array. Functions over writers and tables (some
40 arrays) spend nine tenths of their time on that. Such a function neither makes nor keeps an array, so it needs no
counting; numba refuses to compile one that would allocate ("NRT required but not enabled").
"""

from __future__ import annotations

from codec.compiler.jit import Kernel, compile_cached


def kernel(function: Kernel) -> Kernel:
    """Compile `function` as `codec.compiler.jit.njit` does, without reference counts. It may slice arrays but not
    allocate
    them."""
    return compile_cached(_nrt=False)(function)


def inlined(function: Kernel) -> Kernel:
    """`kernel`, laid out inside its callers: for what the hot path calls in one or two places, since passing a writer
    and the tables along costs some hundred stores."""
    return compile_cached(_nrt=False, forceinline=True)(function)
