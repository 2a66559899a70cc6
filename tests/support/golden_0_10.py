"""What tshark shows of AMQP 0-10 frames, compared with rows of `frames` field by field, without knowing any command.

tshark names a field after the first command that has it; only the last part of such a name counts here. It shows no
contents of sequence sets and of dtx.xid, and of maps only what is text; what it gets wrong is data here, with the
reason.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import encode_0_10
import golden
import golden_captures
from golden import Node, renderings

FRAME_TYPES = {0: "control", 1: "command", 2: "header", 3: "body"}
RENAMED = {
    "frame_max": "max_frame_size",
    "known_hosts_bytes": "known_hosts",
    "credit_unit": "unit",
    "reject_code": "code",
    "delivery_priority": "priority",
    "xa_status": "status",
    "id": "resume_id",
}
OF_COMMAND = {"exchange.query": {"exchange": "name"}}
EXCEPTION_FIELDS = re.compile(r"amqp\.(class|[a-z]+\.method)")  # in execution.exception
NOISE = re.compile(r".*(\.size|\.packing|\.padding|struct32_size|struct32\.(class|struct)|array\.[a-z_]+|_ws\.expert)")
UNSHOWN = {"response"}  # credentials
UNNAMED = {"in_doubt"}  # tshark shows the array without its name
# tshark takes the length byte of this field for its text.
LENGTH_ONLY = "amqp.exchange.bind.binding-key"
# tshark begins one byte late to read commands of this class: it shows the size of the session header as their code.
READ_LATE = 5
BITS = {
    field["name"].replace("-", "_")
    for entry in encode_0_10.entries().values()
    for field in entry["fields"]
    if field["type"] == "bit"
}
STRUCT_NAMES = {
    (entry["class_code"], entry["code"]): name
    for name, entry in encode_0_10.entries().items()
    if entry["group"] == "structs"
}
TEXT_FIELD = re.compile(r"(?s)(.*?) \((str8|str16)\): (.*)")
# Frames that tshark shows and the framing rightly refuses (test_amqp_0_10_streams.py has the bytes).
REFUSED = {"010_bad_frame.pcap": {8}}


def captures() -> list[str]:
    """The shipped captures of version 0-10."""
    return sorted(path.name for path in golden.CAPTURES.glob("010_*.pcap*") if path.suffix in (".pcap", ".pcapng"))


def capture_disagreements(name: str) -> Iterator[str]:
    """One line for each difference between tshark's view of a capture and ours."""
    return golden_captures.capture_disagreements(name, frame_disagreements, REFUSED.get(name, ()))


def frame_disagreements(frame: Node, row: dict[str, Any]) -> Iterator[str]:
    nodes = {node["n"]: node for node in frame["f"]}
    where = f"frame {row['frame_no']} {row['name']}"
    kind = int(nodes["amqp.type"]["s"])
    method = next((node["s"] for name, node in nodes.items() if name.endswith(".method")), None)
    late = kind == 1 and row["class_id"] == READ_LATE
    expected = {
        "frame_type": FRAME_TYPES[kind],
        "size": int(nodes["amqp.length"]["s"]),
        "channel": int(nodes["amqp.channel"]["s"]),
        "class_id": int(nodes["amqp.class"]["s"]) if "amqp.class" in nodes else None,
        "method_id": int(method) if method else None,
        "name": re.search(r"\)\.(\S+) \(", frame["kind"])[1] if method else None,  # type: ignore[index]
    }
    for column, text in expected.items():
        if row[column] != text and not (late and column in ("method_id", "name")):
            yield f"{where}.{column} is {row[column]}, tshark shows {text}"
    ours = dict(row["arguments"] or {})
    children = nodes.get("amqp.method.arguments", {}).get("c", [])
    if kind == 1:
        ours.pop("own_command_id" if row["name"] in ("execution.result", "execution.exception") else "command_id", None)
        if late:
            ours.pop("sync", None)
        else:
            children = [*children, {"n": "sync", "s": nodes.get("amqp.session.header.sync", {}).get("s", "0")}]
    if kind <= 1:
        renamed = OF_COMMAND.get(row["name"], {})
        yield from disagreements(children, {_old(renamed, key): item for key, item in ours.items()}, where)
    if kind == 2:
        yield from section_disagreements(frame["f"], row["properties"], where)


def _old(renamed: dict[str, str], key: str) -> str:
    return next((old for old, new in renamed.items() if new == key), key)


def section_disagreements(nodes: list[Node], properties: dict[str, Any], where: str) -> Iterator[str]:
    sections = {}
    for node in nodes:
        if node["n"] == "amqp.struct32":
            code = int(node["s"], 16)
            sections[STRUCT_NAMES[code >> 8, code & 255].partition(".")[2].replace("-", "_")] = node
    if sections.keys() != properties.keys():
        yield f"{where} has {sorted(properties)}, tshark shows {sorted(sections)}"
        return
    for key, node in sections.items():
        yield from disagreements(node["c"], properties[key], f"{where}.{key}")


def key_of(name: str) -> str:
    if EXCEPTION_FIELDS.fullmatch(name):
        return "class_code" if name == "amqp.class" else "command_code"
    bare = name.rpartition(".")[2].replace("-", "_")
    return "value" if bare == "struct32" else RENAMED.get(bare, bare)


def disagreements(children: list[Node], ours: dict[str, Any], where: str) -> Iterator[str]:
    """One line for each field that tshark shows and we do not, or otherwise. A bit that is not set is not in a row."""
    ours = dict(ours)
    ours.pop("user", None)
    if ours.get("class_code") == 0:
        ours.pop("command_code")  # tshark does not show the command of a class that it does not know
    for child in children:
        key = key_of(child["n"])
        if NOISE.fullmatch(child["n"]) or key in UNSHOWN or (key in BITS and child["s"] == "0" and key not in ours):
            continue
        if key not in ours:
            yield f"{where}.{key} is known to tshark only: {child!r}"
            continue
        yield from differs(child, ours.pop(key), f"{where}.{key}")
    for key in ours.keys() - UNNAMED:
        yield f"{where}.{key} is known to us only: {ours[key]!r}"


def differs(node: Node, value: Any, where: str) -> Iterator[str]:
    children = node.get("c", [])
    if where.endswith(".xid"):
        return  # tshark shows it without its fields
    if node["n"] == LENGTH_ONLY:
        value = f"\\x{len(value):x}" if value else ""
    if isinstance(value, dict) and children and all(child["n"] == "amqp.field" for child in children):
        for child in children:
            text = TEXT_FIELD.fullmatch(child.get("t", ""))
            if text and value.get(text[1]) != text[3]:
                yield f"{where}.{text[1]} is {value.get(text[1])!r}, tshark shows {text[3]!r}"
    elif isinstance(value, dict) and value:
        ours = {key: item for key, item in value.items() if key != "struct"}
        if "struct" in value and STRUCT_NAMES[int(node["s"][:4], 16), int(node["s"][4:], 16)] != value["struct"]:
            yield f"{where} is {value['struct']}, tshark shows {node['s']}"
        yield from disagreements(children, ours, where)
    elif isinstance(value, list):
        texts = [child.get("s", "") for child in children if child["n"] == "amqp.array.string"]
        if texts and texts != value:
            yield f"{where} is {value!r}, tshark shows {texts!r}"
    elif node.get("s", "") not in (*renderings(value), *(["{}"] if value == {} else [])) and value != {}:
        yield f"{where} is {value!r}, tshark shows {node!r}"
