"""The declaration of tables: sources of columns are names of the specifications, layouts are constants of kernels."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest

from codec import tables
from codec.compiler.kernel import _file_digest
from codec.tables import (
    ALL_TABLES,
    HANDSHAKE,
    LONG,
    MESSAGES,
    METHODS,
    PROPERTIES,
    STRING,
    Column,
    Table,
    arguments_of,
    families,
    layout,
    table_of,
    with_columns,
)

ROOT = Path(__file__).parents[2]
CLASSIC = ("0-8", "0-9", "0-9-1")
METHODS_AT = layout(METHODS)
# Sections of messages that hold what applications put there; not in the specifications.
FREE = ("headers", "application_headers", "application_properties", "message_annotations", "body_value")


def facts(version: str) -> Any:
    """The fact table of a version."""
    name = f"amqp-{version.replace('.', '-')}.json"
    return json.loads(resources.files("codec.protocol.spec").joinpath(name).read_text("utf-8"))


def names(fields: list[dict[str, Any]]) -> set[str]:
    return {field["name"].replace("-", "_") for field in fields}


def arguments() -> dict[str, set[str]]:
    """The arguments of each method, control, command and performative of the five versions."""
    found: dict[str, set[str]] = {}
    for version in (*CLASSIC, "0-10"):
        for of_class in facts(version)["classes"]:
            for kind in ("methods", "controls", "commands"):
                for entry in of_class.get(kind, ()):
                    method = f"{of_class['name']}.{entry['name']}"
                    found.setdefault(method, set()).update(names(entry["fields"]))
    for entry in facts("1.0")["composite_types"]:
        found.setdefault(entry["name"], set()).update(names(entry["fields"]))
    return found


def properties(family: str) -> dict[str, set[str]]:
    """The properties of each section of messages."""
    if family == "classic":
        return {
            "": {name for version in CLASSIC for of in facts(version)["classes"] for name in names(of["properties"])}
        }
    if family == "0-10":
        structs = [entry for of in facts("0-10")["classes"] for entry in of.get("structs", ())]
        return {entry["name"].replace("-", "_"): names(entry["fields"]) for entry in structs}
    return {entry["name"].replace("-", "_"): names(entry["fields"]) for entry in facts("1.0")["composite_types"]}


def sources(table: Table) -> Iterator[tuple[str, str]]:
    return ((column.name, source) for column in table for source in column.source)


def test_a_source_in_the_handshake_is_an_argument_of_the_method() -> None:
    known = arguments()
    # What a client names itself with is inside of the SASL response (PLAIN, AMQPLAIN).
    known |= {name: known[name] | {"user"} for name in ("connection.start-ok", "connection.secure-ok")}
    known |= {name: known[name] | {"user", "mechanism"} for name in ("sasl-init", "sasl-response")}
    known["connection.secure-ok"] |= {"mechanism"}
    expected_arguments = [argument for column in HANDSHAKE for argument in arguments_of(column)]
    assert [argument for argument in expected_arguments if argument.path[0] not in known[argument.method]] == []
    assert {argument.sender for argument in expected_arguments if argument.method == "open"} == {"client", "server"}


def test_limits_that_an_open_leaves_out_have_the_defaults_of_the_specification() -> None:
    """1.0 core specification, 2.7.1: channel-max 65535, max-frame-size 4294967295."""
    (of_open,) = (entry for entry in facts("1.0")["composite_types"] if entry["name"] == "open")
    defaults = {field["name"].replace("-", "_"): field["default"] for field in of_open["fields"] if field["default"]}
    found = {
        argument.path[0]: str(argument.default)
        for column in HANDSHAKE
        for argument in arguments_of(column)
        if argument.method == "open" and argument.default is not None
    }
    assert found == {name: str(default) for name, default in defaults.items() if name in found}
    assert found.keys() == {"channel_max", "max_frame_size"}


def test_a_source_of_a_method_is_an_argument_of_some_method() -> None:
    known = set().union(*arguments().values())
    assert [each for each in sources(METHODS) if each[1].removeprefix("argument:") not in known] == []


@pytest.mark.parametrize("family", ["classic", "0-10", "1.0"])
def test_a_source_of_a_message_is_a_property_of_its_section(family: str) -> None:
    known, found = properties(family), 0
    for column, source in (*sources(MESSAGES), *sources(PROPERTIES)):
        of, _, path = source.partition(":")
        section, *inside = path.removesuffix("*").split("/")
        if of != family or section == "argument" or section in FREE:
            continue
        found += 1
        if not inside:
            assert section in known.get("", known), (column, source)
        else:
            assert inside[0] in known[section], (column, source)
    assert found > 10


def test_a_column_is_absent_in_a_family_or_has_a_source_in_it_but_not_both() -> None:
    for family in families():
        assert not set(family.absent) & {*family.arguments, *family.properties}


def test_no_two_columns_of_a_table_have_one_name() -> None:
    for table in (*ALL_TABLES.values(), HANDSHAKE, PROPERTIES):
        assert len(set(table.names)) == len(table.names)


def test_a_layout_has_the_columns_in_their_order() -> None:
    table = with_columns(table_of("rows", ("frame_no", LONG), ("name", STRING)), Column("size", LONG))
    assert layout(table)._asdict() == {"frame_no": 0, "name": 1, "size": 2}
    assert layout(table, 40)._asdict() == {"frame_no": 40, "name": 41, "size": 42}


@numba.njit
def reply(cells: Any, row: int, frame_no: int) -> None:
    cells[METHODS_AT.reply_frame_no, row] = frame_no


def test_a_layout_is_a_constant_of_a_kernel() -> None:
    cells = np.zeros((len(METHODS.names), 3), np.int64)
    reply(cells, 1, 7)
    assert cells[METHODS.names.index("reply_frame_no")].tolist() == [0, 7, 0]
    assert cells.sum() == 7


def test_the_declaration_loads_no_library() -> None:
    program = (
        "import sys, codec.tables; print([n for n in ('numpy', 'numba', 'pyarrow', 'pyspark') if n in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert ran.stdout == "[]\n"


def test_the_documentation_of_a_column_is_no_part_of_a_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    source = Path(tables.__file__)

    def digest(table: Table) -> bytes:
        monkeypatch.setattr(tables, "METHODS", table)
        _file_digest.cache_clear()
        return _file_digest(source)

    (first, *others) = METHODS.columns
    before = digest(METHODS)
    assert digest(Table(METHODS.name, "", (replace(first, doc="another"), *others))) == before
    assert digest(Table(METHODS.name, "", (*others, first))) != before
    monkeypatch.undo()
    assert digest(METHODS) == before
    _file_digest.cache_clear()
