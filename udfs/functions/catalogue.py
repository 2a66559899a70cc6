"""Every SQL function as data: its name, arguments, type, what it does, and an example that a test runs."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.types import BinaryType, DataType, StringType, StructField, StructType, VariantType

from codec.pseudonyms import key_of
from codec.tables import FRAMES
from udfs.arrow.spark_schemas import spark_type
from udfs.functions.decode_functions import (
    FRAME_COLUMNS,
    decode_arguments,
    decode_frame,
    decode_properties,
    decode_table,
    decode_value,
    version_of,
)
from udfs.functions.privacy_functions import (
    anonymise_ip,
    flow_id,
    pseudonyms,
    redact_frame,
)


@dataclass(frozen=True)
class Function:
    """One function. `types`: of its arguments, which have the names of the parameters of `of`, also in SQL; those in
    brackets are optional. `example`: an expression of type STRING, with its `result`."""

    name: str
    of: Callable[..., pa.Array]
    types: tuple[str, ...]
    returns: DataType
    does: str
    example: str
    result: str

    @property
    def arguments(self) -> tuple[inspect.Parameter, ...]:
        return tuple(inspect.signature(self.of).parameters.values())

    @property
    def keyed(self) -> bool:
        """Whether the results depend on a key."""
        return self.arguments[-1].name == "key"

    def __str__(self) -> str:
        """How it is called: 'amqp_frame(frame BINARY, version STRING)'."""
        parameters = [
            f"{argument.name} {kind}" if argument.default is argument.empty else f"[{argument.name} {kind}]"
            for argument, kind in zip(self.arguments, self.types, strict=True)
        ]
        return f"{self.name}({', '.join(parameters)})"


# basic.ack 7 on channel 1; connection.secure-ok with the response 'pw'; a content header with a content type and a
# delivery mode; a table of one integer; a map of 1.0.
_ACK = "X'0100010000000d003c0050000000000000000700ce'"
_SECURE_OK = "X'0100000000000a000a0015000000027077ce'"
_ACK_PAYLOAD = "X'003c0050000000000000000700'"
_PROPERTIES = "X'003c0000000000000000000590000a746578742f706c61696e02'"
_TABLE = "X'0000000b056c696d69744900000064'"
_VALUE = "X'c10602a1016b5407'"
# The key and an address of the sample data that Crypto-PAn was published with.
_KEY = "X'1522178d33a4cf80130a5b1649907d10d8988f837979652762574c2d2a842202'"

FUNCTIONS = (
    Function(
        "amqp_frame",
        decode_frame,
        ("BINARY", "STRING"),
        StructType([StructField(name, spark_type(FRAMES[name].type)) for name in FRAME_COLUMNS]),
        "One whole frame, or a protocol header: a struct with the columns of table `frames` that its bytes determine. "
        "`status` and `error` report bytes that do not fit.",
        f"amqp_frame({_ACK}, '0-9-1').name",
        "basic.ack",
    ),
    Function(
        "amqp_arguments",
        decode_arguments,
        ("BINARY", "STRING"),
        VariantType(),
        "The payload of a method (0-8 to 0-9-1), control or command (0-10) or performative (1.0), from its numbers or "
        "descriptor on: the fields by name. NULL when they do not fit.",
        f"string(amqp_arguments({_ACK_PAYLOAD}, '0-9-1'):delivery_tag)",
        "7",
    ),
    Function(
        "amqp_properties",
        decode_properties,
        ("BINARY", "STRING"),
        VariantType(),
        "The payload of a content header frame (0-8 to 0-9-1) or header segment (0-10), or a whole message with its "
        "sections (1.0): the properties by name. NULL when they do not fit.",
        f"string(amqp_properties({_PROPERTIES}, '0-9-1'):content_type)",
        "text/plain",
    ),
    Function(
        "amqp_table",
        decode_table,
        ("BINARY", "STRING"),
        VariantType(),
        "A field table with its length before it (0-8 to 0-9-1), a map with its size (0-10), any value (1.0). NULL "
        "when it does not fit.",
        f"string(amqp_table({_TABLE}, '0-9-1'):limit)",
        "100",
    ),
    Function(
        "amqp_value",
        decode_value,
        ("BINARY",),
        VariantType(),
        "One value of 1.0, its constructor first. NULL when it does not fit.",
        f"string(amqp_value({_VALUE}):k)",
        "7",
    ),
    Function(
        "amqp_version",
        version_of,
        ("BINARY",),
        StringType(),
        "The version of the bytes, which begin a stream or a TCP payload with a protocol header or with whole frames "
        "of which one parses exactly. NULL for anything else than AMQP, also for TLS. Frames that are equal in 0-8, "
        "0-9 and 0-9-1 count as 0-9-1.",
        "amqp_version(X'414d515000000901')",
        "0-9-1",
    ),
    Function(
        "amqp_community_id",
        flow_id,
        ("STRING", "INT", "STRING", "INT", "INT", "INT"),
        StringType(),
        "Community ID, version 1, of a flow, the same for both orders of its ends; `protocol` 6 (TCP, the default), "
        "17 or 132, `seed` 0 by default. NULL for an invalid address or port.",
        "amqp_community_id('128.232.110.120', 34855, '66.35.250.204', 80)",
        "1:LQU9qZlK+B5F3KDmev6m5PMibrg=",
    ),
    Function(
        "amqp_redact",
        redact_frame,
        ("BINARY", "STRING"),
        BinaryType(),
        "The frame with its SASL responses and tokens replaced by asterisks, of the same length. NULL for bytes that "
        "are not one whole frame of a known method.",
        f"hex(amqp_redact({_SECURE_OK}, '0-9-1'))",
        "0100000000000A000A0015000000022A2ACE",
    ),
    Function(
        "amqp_anonymise_ip",
        anonymise_ip,
        ("STRING", "STRING or BINARY"),
        StringType(),
        "An address anonymised by Crypto-PAn: two that share their first k bits share exactly k bits afterwards. NULL "
        "for an invalid address.",
        f"amqp_anonymise_ip('128.11.68.132', {_KEY})",
        "135.242.180.132",
    ),
    Function(
        "amqp_pseudonym",
        pseudonyms,
        ("STRING", "STRING", "STRING or BINARY"),
        StringType(),
        "A pseudonym for a name: the prefix and 12 hexadecimal digits, the same digits for the same name. An empty "
        "name stays empty.",
        # printf orders | openssl mac -macopt hexkey:(the key) -macopt custom:"wirehare names" -macopt size:6 BLAKE2BMAC
        f"amqp_pseudonym('orders', 'queue', {_KEY})",
        "queue-41d4ca9f0f01",
    ),
)


def with_key(function: Callable[..., pa.Array], key: bytes) -> Callable[..., pa.Array]:
    """`function` with `key` as the default of its last argument."""

    @wraps(function)
    def keyed(*columns: pa.Array, **named: pa.Array) -> pa.Array:
        called = inspect.signature(function).bind(*columns, **named).arguments
        called.setdefault("key", pa.repeat(pa.scalar(key), len(next(iter(called.values())))))
        return function(**called)

    return keyed


def register(spark: SparkSession, key: str | bytes | None = None) -> None:
    """Register FUNCTIONS in `spark`, a classic session or one of Spark Connect.

    `key` (32 bytes, or a passphrase): the default of functions that take a key. It is part of the function, and in no
    query text or plan.
    """
    data = None if key is None else key_of(key)
    declare: Any = arrow_udf  # its type hints lack VARIANT
    for function in FUNCTIONS:
        of = function.of if data is None or not function.keyed else with_key(function.of, data)
        spark.udf.register(function.name, declare(of, function.returns))


def markdown() -> str:
    """The table of docs/functions.md."""
    lines = ["| function | gives | what |", "|---|---|---|"]
    for function in FUNCTIONS:
        gives = "STRUCT" if isinstance(function.returns, StructType) else function.returns.simpleString().upper()
        example = f"<br>`{function.example}` → `{function.result}`"
        lines.append(f"| `{function}` | {gives} | {function.does}{example} |")
    return "\n".join(lines)
