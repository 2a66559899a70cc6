"""The classic family's tables against the method lists of pika and py-amqp, and against themselves."""

from __future__ import annotations

import re

import amqp.spec
import numpy as np
import pika.spec
import pytest
from classic_support import method_named

from codec.names import CLASSIC_VERSIONS
from codec.protocol import classic_tables as kinds
from codec.protocol.classic_tables import (
    CLASS_IDS,
    METHOD_IDS,
    WITHOUT_CONTENT,
    Method,
    classic_names,
    classic_tables,
    content_classes,
    key_set,
    method_name,
    methods,
    tag_kinds,
)
from codec.protocol.versions import FRAME_TYPES, VERSIONS, fact_table

every_version = pytest.mark.parametrize("version", CLASSIC_VERSIONS)


def hyphened(camel: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "-", camel).lower()


def test_method_numbers_and_names_of_pika() -> None:
    theirs = {
        (number >> 16, number & 0xFFFF): ".".join(map(hyphened, of_method.NAME.split(".")))
        for number, of_method in pika.spec.methods.items()
    }
    assert {numbers: method_name("0-9-1", *numbers) for numbers in theirs} == theirs


def test_method_numbers_of_py_amqp() -> None:
    for of_class in (amqp.spec.Connection, amqp.spec.Channel, amqp.spec.Exchange, amqp.spec.Queue, amqp.spec.Basic):
        for name, numbers in vars(of_class).items():
            if isinstance(numbers, tuple) and not name.startswith("__"):  # what Python 3.13 adds to a class
                assert method_name("0-9-1", *numbers) == f"{of_class.__name__.lower()}.{hyphened(name)}"


def test_content_and_replies_of_pika() -> None:
    for number, theirs in pika.spec.methods.items():
        ours = method_named("0-9-1", method_name("0-9-1", number >> 16, number & 0xFFFF) or "")
        assert ours.content == pika.spec.has_content(number), ours.name
        if ours.name not in ("connection.close", "channel.close") and not ours.name.endswith("-ok"):
            assert bool(ours.replies) == theirs.synchronous.fget(None), ours.name  # pika: "waits for an answer"


@every_version
def test_the_tables_are_complete(version: str) -> None:
    counts = fact_table(version)["counts"]
    numbers = described_numbers(version)
    own = [method for method in methods(version) if (method.class_id, method.method_id) in numbers]
    assert len(own) == counts["methods"]
    assert sum(len(method.fields) for method in own) >= counts["fields"]
    assert sum(len(of_class["properties"]) for of_class in fact_table(version)["classes"]) == counts["properties"]


def described_numbers(version: str) -> set[tuple[int, int]]:
    return {(c["index"], m["index"]) for c in fact_table(version)["classes"] for m in c["methods"]}


@every_version
def test_numbers_are_unique_and_in_range(version: str) -> None:
    numbers = [(method.class_id, method.method_id) for method in methods(version)]
    assert len(set(numbers)) == len(numbers)
    assert max(c for c, _ in numbers) < CLASS_IDS
    assert max(m for _, m in numbers) < METHOD_IDS


@every_version
def test_the_arrays_agree_with_the_lookups(version: str) -> None:
    t, code = classic_tables(), VERSIONS.index(version)
    found = {
        (int(c), int(m)): classic_names()[int(t.method_name[t.lookup[code, c, m]])]
        for c, m in np.argwhere(t.lookup[code] >= 0)
    }
    assert found == {(method.class_id, method.method_id): method.name for method in methods(version)}
    for method in methods(version):
        index = int(t.lookup[code, method.class_id, method.method_id])
        rows = slice(int(t.field_from[index]), int(t.field_from[index + 1]))
        assert [kinds.NAMES[kind] for kind in t.field_kind[rows]] == [kinds.NAMES[f.kind] for f in method.fields]
        without_content = method.name in ("file.publish", "file.deliver")  # what they are about was sent before
        assert t.method_content[index] == (WITHOUT_CONTENT if without_content else method.content)
        assert ("client", "server", "both")[int(t.method_sender[index])] == method.sent_by


@every_version
def test_every_reply_is_a_method_and_knows_its_request(version: str) -> None:
    known = {method.name: method for method in methods(version)}
    for method in methods(version):
        for reply in method.replies:
            assert method.name in known[reply].reply_to
        for request in method.reply_to:
            assert method.name in known[request].replies


@every_version
def test_a_reply_is_not_a_request(version: str) -> None:
    """0-8 and 0-9, class file: file.open-ok answers file.open; file.stage, which follows, answers nothing."""
    for method in methods(version):
        assert not (method.replies and method.reply_to), method.name
        assert "file.open-ok" not in method.reply_to, method.name


@every_version
def test_keys_of_a_method_are_distinct(version: str) -> None:
    for method in methods(version):
        keys = key_set(method.fields)
        assert len(set(keys)) == len(keys), method.name
        assert all(re.fullmatch(r"[a-z][a-z0-9_]*", key) for key in keys), keys


def fields_of(method: Method) -> list[str | None]:
    return [field.key for field in method.fields]


def test_keys_are_the_field_names_in_common_use() -> None:
    assert fields_of(method_named("0-9-1", "exchange.declare")) == (
        ["ticket", "exchange", "type", "passive", "durable", "auto_delete", "internal", "no_wait", "arguments"]
    )
    assert fields_of(method_named("0-8", "queue.declare"))[-2:] == ["no_wait", "arguments"]
    assert fields_of(method_named("0-9-1", "connection.open")) == ["virtual_host", "capabilities", "insist"]


def test_secret_fields_have_no_key_except_the_user() -> None:
    for version in CLASSIC_VERSIONS:
        for method in methods(version):
            secret = [f.name for f in method.fields if f.kind in (kinds.SECRET, kinds.SASL_RESPONSE)]
            named = ["challenge", "response", "new-secret", "security-token", "string-2", "string-result"]
            if method.name == "test.string-ok":
                named.append("result")
            assert secret == [f.name for f in method.fields if f.name in named]
    assert fields_of(method_named("0-9-1", "connection.start-ok")) == [
        "client_properties",
        "mechanism",
        "user",
        "locale",
    ]
    assert fields_of(method_named("0-9-1", "connection.secure-ok")) == ["user"]
    assert fields_of(method_named("0-9-1", "connection.update-secret")) == [None, "reason"]


@pytest.mark.parametrize(
    ("version", "name", "numbers"),
    [
        ("0-8", "connection.close", (10, 60)),
        ("0-9", "connection.close", (10, 50)),
        ("0-9-1", "connection.blocked", (10, 60)),
        ("0-9", "basic.nack", (60, 120)),  # RabbitMQ under a 0-9 header
        ("0-9", "confirm.select", (85, 10)),
        ("0-9-1", "exchange.unbind-ok", (40, 51)),
        ("0-9-1", "exchange.bound", (40, 22)),  # Qpid
        ("0-9", "message.transfer", (120, 10)),
        ("0-8", "test.integer", (120, 10)),
    ],
)
def test_where_versions_differ(version: str, name: str, numbers: tuple[int, int]) -> None:
    assert method_name(version, *numbers) == name


def test_extensions_change_who_sends_a_method() -> None:
    assert method_named("0-9-1", "basic.ack").sent_by == "both"  # publisher confirms
    assert method_named("0-8", "basic.ack").sent_by == "client"


def test_frame_types() -> None:
    t = classic_tables()
    kinds_of = {
        v: {o: FRAME_TYPES[k] for o, k in enumerate(t.frame_kind[VERSIONS.index(v)]) if k >= 0}
        for v in CLASSIC_VERSIONS
    }
    assert kinds_of["0-9-1"] == {1: "method", 2: "header", 3: "body", 8: "heartbeat"}
    assert kinds_of["0-8"] == kinds_of["0-9"]
    assert kinds_of["0-8"] == {**kinds_of["0-9-1"], 4: "oob-method", 5: "oob-header", 6: "oob-body", 7: "trace"}


def test_type_tags_are_those_of_real_brokers() -> None:
    tags = tag_kinds("0-9-1")
    assert (tags["s"], tags["l"], tags["L"], tags["U"]) == (kinds.INT16, kinds.INT64, kinds.INT64, kinds.INT16)
    assert "U" not in tag_kinds("0-8")


@every_version
def test_properties_are_indexed_by_their_flag_bits(version: str) -> None:
    basic = next(of_class for of_class in content_classes(version) if of_class.name == "basic")
    theirs = {
        name.lower()[5:]: getattr(pika.spec.BasicProperties, name)
        for name in vars(pika.spec.BasicProperties)
        if name.startswith("FLAG_")
    }
    assert {field.key: 1 << bit for bit, field in basic.properties.items()} == theirs


def test_classes_with_content() -> None:
    t = classic_tables()
    for version, expected in (("0-9-1", {60}), ("0-9", {60, 70, 80, 110}), ("0-8", {60, 70, 80, 110, 120})):
        assert set(np.flatnonzero(t.class_name[VERSIONS.index(version)] >= 0).tolist()) == expected


@every_version
def test_tune_ok_is_found(version: str) -> None:
    t = classic_tables()
    index = int(t.tune_ok[VERSIONS.index(version)])
    assert classic_names()[int(t.method_name[index])] == "connection.tune-ok"
    assert index == int(t.lookup[VERSIONS.index(version), 10, 31])
