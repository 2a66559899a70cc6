"""The block function of SHA-256 (FIPS 180-4, section 6.2.2) in the SHA instructions of x86, for `codec.hashes.digest`.

They save a tenth to a third of a worker's CPU time. Reading, decoding and writing all tables of a capture of 300 MB
(the generator's profile 'usual') takes 4.3 CPU seconds with them and 6.5 without; 150 MB of large bodies take 0.7 and
1.1.

They have no AVX encoding. After AVX instructions that left the upper halves of vector registers in use, an Intel Xeon
hashed 14 MB/s instead of 1.7 GB/s. LLVM clears the upper halves only around calls, and this function is inlined, so it
clears them itself.

The instructions are part of the processor, so kernels with them are cached like all others. numba separates cached
kernels by processor features, and compiles anew where these differ. AVAILABLE: kernels compiled here may use them.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.core.registry import cpu_target
from numba.extending import intrinsic

from codec.compiler.kernel import interpreted

LANES = ir.VectorType(ir.IntType(32), 4)
GROUPS = 16  # of four rounds
# Lanes of the eight words a to h for `sha256rnds2`: f e b a and h g d c, first lane first; and the reverse order.
ABEF, CDGH = (5, 4, 1, 0), (7, 6, 3, 2)
ABCD, EFGH = (3, 2, 7, 6), (1, 0, 5, 4)


def _has(*features: str) -> bool:
    """Whether kernels are compiled for a processor with these features."""
    triple, _, found = cpu_target.target_context.codegen().magic_tuple()
    return triple.startswith("x86_64") and set(features) <= set(found.split(","))


AVAILABLE = not interpreted() and _has("+sha", "+sse4.1")


def _place(builder: Any, pointer: Any, index: int) -> Any:
    """Pointer to group `index` of the lanes at `pointer`."""
    return builder.gep(builder.bitcast(pointer, LANES.as_pointer()), [ir.IntType(64)(index)])


def _lanes(builder: Any, pointer: Any, index: int) -> Any:
    return builder.load(_place(builder, pointer, index), align=1)


def _shuffled(builder: Any, first: Any, second: Any, places: tuple[int, ...]) -> Any:
    return builder.shuffle_vector(first, second, ir.Constant(LANES, places))


def _scheduled(builder: Any, words: list[Any], first: Any, second: Any) -> Any:
    """The next four words of the message schedule, from the last sixteen `words`."""
    middle = _shuffled(builder, words[2], words[3], (1, 2, 3, 4))
    return builder.call(second, [builder.add(builder.call(first, [words[0], words[1]]), middle), words[3]])


@intrinsic
def compress_block(typing_context: Any, words: Any, data: Any, at: Any, rounds: Any) -> Any:
    """Add the 64-byte block `data[at:at+64]` (uint8) to the eight `words` (uint32); `rounds`: the 64 constants."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        arrays = [
            context.make_array(kind)(context, builder, value).data
            for kind, value in zip(signature.args, arguments, strict=True)
            if isinstance(kind, types.Array)
        ]
        state, octets, constants = arrays
        octets = builder.gep(octets, [arguments[2]])
        if _has("+avx"):
            nothing = ir.FunctionType(ir.VoidType(), [])
            builder.call(cgutils.get_or_insert_function(builder.module, nothing, "llvm.x86.avx.vzeroupper"), [])

        def instruction(name: str, operands: int) -> Any:
            kind = ir.FunctionType(LANES, [LANES] * operands)
            return cgutils.get_or_insert_function(builder.module, kind, f"llvm.{name}")

        swap, two_rounds = instruction("bswap.v4i32", 1), instruction("x86.sha256rnds2", 3)
        first, second = instruction("x86.sha256msg1", 2), instruction("x86.sha256msg2", 2)
        low, high = _lanes(builder, state, 0), _lanes(builder, state, 1)
        abef = before_abef = _shuffled(builder, low, high, ABEF)
        cdgh = before_cdgh = _shuffled(builder, low, high, CDGH)
        schedule = [builder.call(swap, [_lanes(builder, octets, group)]) for group in range(4)]
        for group in range(GROUPS):
            if group >= 4:
                schedule.append(_scheduled(builder, schedule[-4:], first, second))
            message = builder.add(schedule[group], _lanes(builder, constants, group))
            cdgh = builder.call(two_rounds, [cdgh, abef, message])
            abef = builder.call(two_rounds, [abef, cdgh, _shuffled(builder, message, message, (2, 3, 2, 3))])
        abef, cdgh = builder.add(abef, before_abef), builder.add(cdgh, before_cdgh)
        for index, places in enumerate((ABCD, EFGH)):
            builder.store(_shuffled(builder, abef, cdgh, places), _place(builder, state, index), align=1)
        return context.get_dummy_value()

    return types.void(words, data, at, rounds), generate
