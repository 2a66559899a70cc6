"""A password in a URI is in no table, wherever a peer writes it."""

from __future__ import annotations

import encode_1_0
import fuzz_tables
import numpy as np
import pytest
from uris import SECRET, TEXTS, URI, VERSIONS, frames_of
from wire import FLOW, Wire

from codec.amqp.redaction import blank_secrets
from codec.protocol.versions import VERSIONS as codec_versions


@pytest.mark.parametrize("version", VERSIONS)
def test_a_password_in_a_uri_is_in_no_table(version: str) -> None:
    inputs = []
    for text in TEXTS:
        wire = Wire()
        for side, data in frames_of(version, text):
            wire.add(side, data)
        inputs.append([(FLOW, *wire.arrays())])
    rows = fuzz_tables.tables(inputs)
    fuzz_tables.check(rows)
    found = fuzz_tables.spelled_out(rows)
    assert found.count(b"****@broker.example") > 50
    leaks = [
        f"{table}.{name}"
        for table, batches in rows.items()
        for batch in batches
        for name, column in zip(batch.schema.names, batch.columns, strict=True)
        if SECRET.encode() in fuzz_tables.bytes_of(column)
    ]
    assert leaks == []
    assert SECRET.encode() not in found
    assert SECRET.encode().hex().encode() not in found


@pytest.mark.parametrize("version", VERSIONS)
def test_a_redacted_frame_has_no_password_in_a_uri(version: str) -> None:
    for _, data in frames_of(version, URI):
        buffer = np.frombuffer(bytearray(data), np.uint8).copy()
        blank_secrets(buffer, np.array([0, len(data)], np.int64), codec_versions.index(version))
        assert SECRET.encode() not in buffer.tobytes()
        assert len(buffer) == len(data)


def test_a_redacted_frame_keeps_addresses_without_a_password() -> None:
    """The byte after an address is often the constructor of null, 0x40: the sign @."""
    source, target = (encode_1_0.described(code, "queue://orders") for code in (encode_1_0.SOURCE, encode_1_0.TARGET))
    frame = encode_1_0.performative_frame(
        encode_1_0.ATTACH, 0, name="amqp://orders", handle=0, role=False, source=source, target=target,
        initial_delivery_count=0,
    )  # fmt: skip
    assert frame.count(b"//orders@") >= 1
    buffer = np.frombuffer(bytearray(frame), np.uint8).copy()
    assert blank_secrets(buffer, np.array([0, len(frame)], np.int64), codec_versions.index("1.0")).all()
    assert buffer.tobytes() == frame
