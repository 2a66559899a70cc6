"""What tshark shows of AMQP 1.0 frames, compared with rows of `frames` field by field, knowing no performative.

tshark names fields in camel case, and some after their type. What it does not decode is data here, with the reason.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import golden
import golden_captures
from golden import Node, renderings

PREFIX = re.compile(
    r"amqp\.(performative\.arguments|properties|arguments|message|sasl|error|modified|tx\.arguments|tx|received)\."
)
VALUE_TYPE = re.compile(r"\.(string|uint|uuid|binary)$")
# tshark's name in snake case -> the field in the specification.
RENAMED = {
    "init_delivery_count": "initial_delivery_count",
    "idle_timeout": "idle_time_out",
    "terminus_durable": "durable",
    "expiry_time": "absolute_expiry_time",
    "sasl_code": "code",
    "mechanisms": "sasl_server_mechanisms",
    "capabilities_sym": "capabilities",
}
SECTIONS = {
    "amqp.header": "header",
    "amqp.deliveryAnnotations": "delivery_annotations",
    "amqp.messageAnnotations": "message_annotations",
    "amqp.properties": "properties",
    "amqp.applicationProperties": "application_properties",
    "amqp.footer": "footer",
}
BODIES = {"amqp.data": "data", "amqp.sequence": "sequence", "amqp.value": "value"}
REPLACED_BY = {"init_response": "user"}  # the credentials themselves are not decoded


def key_of(name: str) -> str:
    """'amqp.performative.arguments.initDeliveryCount' -> 'initial_delivery_count'."""
    bare = VALUE_TYPE.sub("", PREFIX.sub("", name)).removeprefix("amqp.")
    snake = re.sub(r"([a-z])([A-Z])", r"\1_\2", bare).lower().replace("-", "_")
    return RENAMED.get(snake, snake)


def state_of(name: str) -> str | None:
    """'amqp.delivery-state.accepted' -> 'accepted', 'amqp.tx.transactionalState' -> 'transactional-state'."""
    match = re.fullmatch(r"amqp\.(?:delivery-state|tx)\.([A-Za-z-]+)", name)
    return re.sub(r"([a-z])([A-Z])", r"\1-\2", match[1]).lower() if match else None


def captures() -> list[str]:
    """The shipped captures of version 1.0."""
    return sorted(path.name for path in golden.CAPTURES.glob("10_*.pcap*") if path.suffix in (".pcap", ".pcapng"))


def capture_disagreements(name: str) -> Iterator[str]:
    """One line for each difference between tshark's view of a capture and ours."""
    return golden_captures.capture_disagreements(name, lambda frame, row: frame_disagreements(frame["f"], row))


def disagreements(children: list[Node], ours: dict[str, Any] | None, where: str) -> Iterator[str]:
    """One line for each field that tshark shows and we do not, or otherwise; `ours` is an object of fields."""
    ours = dict(ours or {})
    kind = ours.pop("type", None)
    seen = set()
    for child in children:
        name, state = child["n"], state_of(child["n"])
        key = key_of(name)
        if state == "coordinator":
            key = "target"
        elif state is not None:
            key = {"transactional-state": "outcome", "source": "default_outcome"}.get(kind, "state")
        elif key in REPLACED_BY:
            ours.pop(REPLACED_BY[key], None)
            continue
        seen.add(key)
        if key not in ours:
            yield f"{where}.{key} is known to tshark only: {child!r}"
            continue
        value = ours[key]
        if state is not None and value.get("type") != state:
            yield f"{where}.{key} is {value!r}, tshark shows {state}"
        yield from differs(child, value, f"{where}.{key}")
    for key in ours.keys() - seen:
        yield f"{where}.{key} is known to us only: {ours[key]!r}"


def differs(node: Node, value: Any, where: str) -> Iterator[str]:
    children = node.get("c", [])
    if isinstance(value, dict) and all(child["n"] == "amqp.list" for child in children) and "type" not in value:
        if len(children) != len(value):  # tshark shows neither keys nor values of maps
            yield f"{where} has {len(value)} entries, tshark shows {len(children)}"
    elif isinstance(value, dict):
        yield from disagreements(children, value, where)
    elif isinstance(value, list):
        if len(children) != len(value) and [node.get("s")] != value:
            yield f"{where} has {len(value)} elements, tshark shows {len(children)}"
    elif node.get("s") not in renderings(value):
        yield f"{where} is {value!r}, tshark shows {node!r}"


def frame_disagreements(nodes: list[Node], row: dict[str, Any]) -> Iterator[str]:
    """Of one frame: header, performative, and the sections of a message that is complete in it.

    tshark takes the payload of every transfer for the beginning of a message, and does not decode described bodies.
    """
    by_name = {node["n"]: node for node in nodes}
    where = f"frame {row['frame_no']} {row['name']}"
    for name, column in (("amqp.length", "size"), ("amqp.channel", "channel")):
        if int(by_name[name]["s"]) != row[column]:
            yield f"{where}.{column} is {row[column]}, tshark shows {by_name[name]['s']}"
    code = by_name.get("amqp.performative") or by_name.get("amqp.sasl.method")
    if (int(code["s"]) if code else None) != row["code"]:
        yield f"{where}.code is {row['code']}, tshark shows {code!r}"
    if "amqp.method.arguments" in by_name:
        yield from disagreements(by_name["amqp.method.arguments"].get("c", []), row["arguments"], where)
    if row["name"] != "transfer" or row["content_frame_no"] != row["frame_no"] or row["arguments"].get("more"):
        return
    properties = dict(row["properties"] or {})
    operation = properties.pop("body", None)
    body_kind = properties.pop("body_kind", None)
    in_tshark = {SECTIONS[node["n"]]: node for node in nodes if node["n"] in SECTIONS}
    bodies = {BODIES[node["n"]] for node in nodes if node["n"] in BODIES}
    if "_ws.expert" not in by_name and operation is None and bodies != ({body_kind} if body_kind else set()):
        yield f"{where}.body_kind is {body_kind}, tshark shows {bodies}"
    for key in in_tshark.keys() | properties.keys():
        if key not in in_tshark or key not in properties:
            yield f"{where}.{key}: tshark {in_tshark.get(key)!r}, we {properties.get(key)!r}"
        else:
            yield from differs(in_tshark[key], properties[key], f"{where}.{key}")
