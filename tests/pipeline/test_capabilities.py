"""Capabilities of peers in table connections: any value that a field table may hold, pika being the encoder."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import fuzz_tables
import pika.frame
import pika.spec
import pytest
from pyspark.sql.variant_utils import VariantUtils
from wire import CLIENT, FLOW, SERVER, Wire

from codec.compiler.limits import LIMITS

ODD: dict[str, Any] = {
    "decimal": Decimal("1.5"), "large": 2**62, "at": datetime(2020, 2, 3, tzinfo=UTC), "none": None,
    "list": [1, [Decimal("3.25")], {"a": b"\xff"}],
}  # fmt: skip


def capabilities(client: dict[str, Any], server: dict[str, Any]) -> Any:
    """Of a connection whose sides say these, as `connections` has it."""
    start = pika.spec.Connection.Start(0, 9, {"capabilities": server}, "PLAIN", "en_US")
    start_ok = pika.spec.Connection.StartOk({"capabilities": client}, "PLAIN", "\0guest\0guest", "en_US")
    wire = Wire()
    wire.add(CLIENT, b"AMQP\0\0\x09\x01")
    wire.add(SERVER, pika.frame.Method(0, start).marshal())
    wire.add(CLIENT, pika.frame.Method(0, start_ok).marshal())
    rows = fuzz_tables.tables([[(FLOW, *wire.arrays())]])
    fuzz_tables.check(rows)
    (value,) = fuzz_tables.table_of(rows, "connections", "capabilities")["capabilities"].to_pylist()
    return value and VariantUtils.to_python(value["value"], value["metadata"])


def test_capabilities_of_any_type_are_shown() -> None:
    found = capabilities(ODD, {"basic.nack": True})
    assert found["server"] == {"basic.nack": True}
    assert found["client"] == ODD | {"list": [1, [Decimal("3.25")], {"a": found["client"]["list"][2]["a"]}]}


def test_more_capabilities_than_a_variant_may_hold_are_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each side's are in its properties."""
    monkeypatch.setattr("codec.variant.python_values.LIMITS", replace(LIMITS, variant_bytes=100))
    assert capabilities({"a": "x" * 60}, {}) == {"client": {"a": "x" * 60}, "server": {}}
    assert capabilities({"a": "x" * 60}, {"b": "y" * 60}) is None
