"""What tshark and plain framing say about the shipped captures, in the words of the `frames` table.

MANIFEST.json lists the captures; `*.frames.jsonl.gz` holds one line per AMQP frame that tshark 4.0 found, as a tree of
fields ({"n": name, "s": value as text, "t": text, "c": children}). tshark shows values as text; `disagreement` compares
such a text with a decoded value by the kind of value, without knowing any method.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any

CAPTURES = Path(__file__).parents[1] / "captures"

Node = dict[str, Any]
Endpoint = tuple[str, int]

FRAME_TYPES = {1: "method", 2: "header", 3: "body", 8: "heartbeat"}
ARGUMENT, PROPERTY = "amqp.method.arguments.", "amqp.method.properties."
# tshark's name -> ours, where tshark leaves the words of the 0-9-1 document.
RENAMED = {"nowait": "no_wait"}
# The last field of basic.consume is `filter` in 0-9 (class basic, method 20), in tshark always, `arguments` in 0-9-1.
FILTER = {"0-9": "filter"}
CLASSIC = ("0-8", "0-9", "0-9-1")
NOT_ON_THE_WIRE = {"publish_number"}  # tshark counts publishes for its analysis of confirms
CREDENTIALS = {"response", "new_secret"}

FIELD_TEXT = re.compile(r"(?s)(.*?) \(([a-z ]+)\)(?:: (.*))?")
CUT_TEXT = re.compile(r"(?s)(.*?)\.\.\.\(\d+\)")


@dataclass(frozen=True)
class Capture:
    """One shipped capture. `files` are read together; `origin` is the capture whose frames it must give."""

    file: str
    files: tuple[str, ...]
    origin: str
    made_from: str | None
    packets: int
    versions: tuple[str, ...]

    @property
    def paths(self) -> list[Path]:
        return [CAPTURES / name for name in self.files]

    @property
    def classic(self) -> bool:
        return any(version in CLASSIC for version in self.versions)


@cache
def manifest() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((CAPTURES / "MANIFEST.json").read_text())
    return loaded


@cache
def captures() -> dict[str, Capture]:
    """Every entry of the manifest; the parts of a rotated capture make one entry more, under their pattern."""
    found, rotated = {}, {}
    for entry in manifest()["captures"]:
        name, source = entry["file"], re.match(r"made from (\S+\.pcap)(?! and)", entry["notes"])
        made_from = source[1] if source else None
        versions = tuple(entry["versions"])
        found[name] = Capture(name, (name,), entry.get("same_as", name), made_from, entry["packets"], versions)
        if "part_of" in entry:
            rotated[entry["part_of"]] = made_from
    for pattern, origin in rotated.items():
        assert origin is not None
        files = tuple(sorted(path.name for path in CAPTURES.glob(pattern)))
        packets = sum(found[name].packets for name in files)
        found[pattern] = Capture(pattern, files, origin, origin, packets, found[origin].versions)
    return found


@dataclass(frozen=True)
class GoldenFrame:
    """A frame as tshark shows it. `arguments` and `properties` map our key to tshark's node."""

    stream: int
    packet_no: int
    sender: Endpoint
    receiver: Endpoint
    kind: int
    channel: int
    size: int
    class_id: int | None
    method_id: int | None
    name: str | None
    body_size: int | None
    payload: bytes
    arguments: dict[str, Node]
    properties: dict[str, Node]


@cache
def golden_frames(file: str) -> tuple[GoldenFrame, ...]:
    """Classic frames of a golden in tshark's order (it calls all three versions 0-9); it does not know every protocol
    header."""
    with gzip.open(CAPTURES / f"{file}.frames.jsonl.gz", "rt") as lines:
        rows = [json.loads(line) for line in lines]
    return tuple(golden_frame(row) for row in rows if row["kind"].startswith("0-9 "))


def golden_frame(row: dict[str, Any]) -> GoldenFrame:
    nodes = {node["n"]: node for node in row["f"]}

    def number(name: str) -> int | None:
        return int(nodes[name]["s"]) if name in nodes else None

    kind, channel = number("amqp.type"), number("amqp.channel")
    assert kind is not None
    assert channel is not None
    return GoldenFrame(
        stream=row["stream"],
        packet_no=row["frame"],
        sender=(row["src"], row["srcport"]),
        receiver=(row["dst"], row["dstport"]),
        kind=kind,
        channel=channel,
        size=row["size"],
        class_id=number("amqp.header.class" if kind == 2 else "amqp.method.class"),
        method_id=number("amqp.method.method"),
        name=method_name(row["kind"]),
        body_size=number("amqp.header.body-size"),
        payload=bytes_in_tshark(nodes.get("amqp.payload", {}).get("s", "")),
        arguments=named(nodes.get("amqp.method.arguments"), ARGUMENT),
        properties=named(nodes.get("amqp.header.properties"), PROPERTY),
    )


def method_name(kind: str) -> str | None:
    """'0-9 method Basic (60).Get-Ok (71)' -> 'basic.get-ok'; None where tshark has no name for it."""
    match = re.search(r"method (\S+) \(\d+\)\.(\S+) \(\d+\)", kind)
    return f"{match[1]}.{match[2]}".lower() if match and "Unknown" not in kind else None


def bytes_in_tshark(text: str) -> bytes:
    """'00:ff' -> b'\\x00\\xff'; of a text that was cut, the complete bytes before the cut."""
    cut = CUT_TEXT.fullmatch(text)
    data = (cut[1] if cut else text).split(":")
    return bytes(int(byte, 16) for byte in data if len(byte) == 2)


def named(parent: Node | None, prefix: str) -> dict[str, Node]:
    found = {}
    for node in (parent or {}).get("c", []):
        name = node["n"].removeprefix(prefix)
        if name != node["n"] and name not in NOT_ON_THE_WIRE | CREDENTIALS:
            found[RENAMED.get(name, name)] = node
    return found


# ---- values ---------------------------------------------------------------------------------------------------------


def disagreements(in_tshark: dict[str, Node], values: dict[str, Any] | None, where: str) -> Iterator[str]:
    """One line for each field that is missing, too much or different."""
    values = values or {}
    for name in in_tshark.keys() | values.keys():
        if name not in in_tshark or name not in values:
            side = "tshark" if name in in_tshark else "us"
            yield f"{where}.{name} is known to {side} only: {in_tshark.get(name, values.get(name))!r}"
        else:
            yield from differs(in_tshark[name], values[name], f"{where}.{name}")


def differs(node: Node, value: Any, where: str) -> Iterator[str]:
    if isinstance(value, dict):
        yield from table_differs(node.get("c", []), value, where)
    elif isinstance(value, list):
        children = node.get("c", [])
        if len(children) != len(value):
            yield f"{where} has {len(value)} elements, tshark shows {len(children)}"
        for index, (child, element) in enumerate(zip(children, value, strict=False)):
            yield from differs(child, element, f"{where}[{index}]")
    elif not same_scalar(node, value):
        yield f"{where} is {value!r}, tshark shows {node!r}"


def table_differs(children: list[Node], table: dict[str, Any], where: str) -> Iterator[str]:
    """tshark shows no key for byte arrays and timestamps: those are matched with the remaining entries."""
    remaining = dict(table)
    nameless = []
    for child in children:
        match = FIELD_TEXT.fullmatch(child.get("t", ""))
        if match is None:
            nameless.append(child)
        elif match[1] not in remaining:
            yield f"{where} has no key {match[1]!r}"
        else:
            yield from differs(child, remaining.pop(match[1]), f"{where}.{match[1]}")
    for child in nameless:
        key = next((key for key, value in remaining.items() if same_scalar(child, value)), None)
        if key is None:
            yield f"{where}: no entry is {child!r}; remaining: {remaining!r}"
        else:
            del remaining[key]
    if remaining:
        yield f"{where} has keys that tshark does not show: {remaining!r}"


def same_scalar(node: Node, value: Any) -> bool:
    match = FIELD_TEXT.fullmatch(node.get("t", "")) if node["n"] == "amqp.field" else None
    if match is None:
        in_tshark = node.get("s", "")
        cut = CUT_TEXT.fullmatch(in_tshark)
        return any(text.startswith(cut[1]) for text in renderings(value)) if cut else in_tshark in renderings(value)
    kind, text = match[2], match[3] or ""
    if kind == "boolean":
        return isinstance(value, bool) and text == str(value).lower()
    if kind in ("integer", "long int"):
        return type(value) is int and text == str(value)
    if kind == "decimal":
        return isinstance(value, Decimal) and text == f"{unsigned_decimal(value):.6f}"
    if kind == "string":
        return isinstance(value, str) and text == value
    return kind == "void" and value is None


def renderings(value: Any) -> tuple[str, ...]:
    """The ways in which tshark may show a value: a long string as text or as bytes, a bit as 1 or 0."""
    if isinstance(value, bool):
        return (str(int(value)),)
    if isinstance(value, str):
        return (value, value.encode().hex(":"))
    if isinstance(value, bytes):
        return (value.hex(":"),)
    if isinstance(value, datetime):
        return (value.strftime("%b %e, %Y %H:%M:%S.%f000 UTC"),)  # tshark pads the day with a space
    return (str(value),)


def unsigned_decimal(value: Decimal) -> Decimal:
    """tshark reads the 32 bits of a decimal as unsigned (test_golden.py shows the bytes)."""
    exponent = value.as_tuple().exponent
    return value if value >= 0 or not isinstance(exponent, int) else value + Decimal(2**32).scaleb(exponent)
