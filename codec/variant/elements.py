"""Elements of many VARIANT arrays at once: where each lies; and what values are that are no fields.

Elements lie one behind the other ("Variant Binary Encoding" of Parquet): those of an array have no more octets together
than it has. Bounds are checked, as in `codec.variant.reading`, whose terms these are.
"""

from __future__ import annotations

from codec.compiler.kernel import kernel
from codec.variant.reading import little, look

ARRAY = 3  # basic type


@kernel
def read_values(value, starts, stops, out):
    """Look at each row's value itself, as if it were the only field of an object; `out`: `Fields` of one."""
    for row in range(len(starts)):
        if starts[row] < stops[row]:
            look(value, starts[row], stops[row], out, 0, row)


@kernel
def _array(value, at, end):
    """Of the array at `at`: how many elements it has, where their offsets and their values begin, and how many octets
    an offset has; no elements if it is none, or does not end before `end`."""
    rest = int(value[at]) >> 2
    if value[at] & 3 != ARRAY:
        return 0, 0, 0, 0
    width, count_width = (rest & 3) + 1, 4 if (rest >> 2) & 1 else 1
    offsets = at + 1 + count_width
    if offsets > end:
        return 0, 0, 0, 0
    count = little(value, at + 1, count_width)
    values = offsets + (count + 1) * width
    return (0, 0, 0, 0) if values > end else (count, offsets, values, width)


@kernel
def count_elements(value, starts, stops, counts):
    """How many elements each row's array has, `counts` int64 (n,); 0 for what is none."""
    for row in range(len(starts)):
        counts[row] = _array(value, starts[row], stops[row])[0] if starts[row] < stops[row] else 0


@kernel
def read_elements(value, starts, stops, counts, begins, ends):
    """Where the elements of each row's array begin and end, those of all rows end to end, int64 (sum of `counts`,),
    zeroed; what does not lie in its array has no octets."""
    to = 0
    for row in range(len(counts)):
        if counts[row]:
            count, offsets, values, width = _array(value, starts[row], stops[row])
            begin = little(value, offsets, width)
            for i in range(count):
                stop = little(value, offsets + (i + 1) * width, width)
                if begin <= stop and values + stop <= stops[row]:
                    begins[to], ends[to] = values + begin, values + stop
                begin = stop
                to += 1
