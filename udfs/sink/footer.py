"""The footer of a Parquet file: adds the annotation of VARIANT columns, which pyarrow does not write.

A footer is a Thrift structure in the compact protocol (parquet-format, Parquet.thrift: FileMetaData, SchemaElement,
LogicalType; Thrift, "Thrift compact protocol encoding"). Only the list of schema elements is parsed; the annotation
is inserted at the end of an element, everything else is unchanged.
"""

from __future__ import annotations

from collections.abc import Collection

# Wire types of the compact protocol.
STOP, TRUE, FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT = range(13)
VARINTS = (I16, I32, I64)
SCHEMA = 2  # field of FileMetaData
NAME, CHILDREN, LOGICAL_TYPE = 4, 5, 10  # fields of SchemaElement
# LogicalType { 16: VariantType { 1: specification version 1 } }, each closed by STOP. A field number more than 15 above
# the one before is written out (zigzag: 16 is 32).
VARIANT = bytes([STRUCT, 32, 1 << 4 | BYTE, 1, STOP, STOP])


class Walk:
    """A position in a footer."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def byte(self) -> int:
        self.at += 1
        return self.data[self.at - 1]

    def varint(self) -> int:
        value = shift = 0
        while True:
            byte = self.byte()
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    def binary(self) -> bytes:
        size = self.varint()
        self.at += size
        return self.data[self.at - size : self.at]

    def field(self, last: int) -> tuple[int, int]:
        """(number, wire type) of the next field of a struct, after number `last`; type STOP at its end."""
        head = self.byte()
        kind, step = head & 15, head >> 4
        if kind == STOP:
            return last, STOP
        if step:
            return last + step, kind
        number = self.varint()
        return number >> 1 ^ -(number & 1), kind

    def items(self) -> tuple[int, int]:
        """(size, wire type) of a list or set."""
        head = self.byte()
        size = head >> 4
        return (self.varint() if size == 15 else size), head & 15

    def skip(self, kind: int, within: bool = False) -> None:
        """Skip a value; booleans take a byte only `within` a list."""
        if kind in VARINTS:
            self.varint()
        elif kind == BYTE or (kind in (TRUE, FALSE) and within):
            self.at += 1
        elif kind == DOUBLE:
            self.at += 8
        elif kind == BINARY:
            self.binary()
        elif kind in (LIST, SET):
            size, item = self.items()
            for _ in range(size):
                self.skip(item, within=True)
        elif kind == MAP:
            size = self.varint()
            kinds = self.byte() if size else 0
            for _ in range(size):
                self.skip(kinds >> 4, within=True)
                self.skip(kinds & 15, within=True)
        elif kind == STRUCT:
            number = 0
            while (field := self.field(number))[1] != STOP:
                number = field[0]
                self.skip(field[1])
        elif kind not in (TRUE, FALSE):
            raise ValueError(f"no wire type {kind} in a Parquet footer")


def with_variants(footer: bytes, columns: Collection[str]) -> bytes:
    """`footer` (FileMetaData) with the named groups annotated as VARIANT. Raises ValueError if one is missing."""
    walk = Walk(footer)
    number, kind = walk.field(0)
    while number != SCHEMA and kind != STOP:
        walk.skip(kind)
        number, kind = walk.field(number)
    pieces, done, left = [], 0, set(columns)
    for _ in range(walk.items()[0]):
        last, name = 0, ""
        while (field := walk.field(last))[1] != STOP:
            last = field[0]
            if last == NAME:
                name = walk.binary().decode()
            else:
                walk.skip(field[1])
            if last == CHILDREN and name in left:
                left.remove(name)
                pieces += [footer[done : walk.at], bytes([(LOGICAL_TYPE - CHILDREN) << 4 | STRUCT]), VARIANT]
                done = walk.at
    if left:
        raise ValueError(f"no group {', '.join(sorted(left))} in this Parquet footer")
    return b"".join([*pieces, footer[done:]])
