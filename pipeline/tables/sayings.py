"""What the two sides of a connection say of themselves, as data: which argument says a column of `connections`.

The families differ in who says a thing: in the classic family and 0-10 the name of a method tells its sender, in 1.0
both sides send the same performative.
"""

from __future__ import annotations

from typing import NamedTuple

from pyspark.sql import Column
from pyspark.sql import functions as F


class Said(NamedTuple):
    """An argument of a method; `sender` where both sides send the method."""

    method: str
    path: str
    sender: str | None = None


class Saying(NamedTuple):
    """Type of a column and the arguments that say it, one a family."""

    kind: str
    places: tuple[Said, ...]


# What a performative of 1.0 that leaves a field out says with that (core specification, 2.7.1).
DEFAULTS = {"max_frame_size": 2**32 - 1, "channel_max": 2**16 - 1}
HAS_DEFAULTS = "open"


def _own_properties(side: str, method: str) -> dict[str, Saying]:
    """What `side` says of its software: in `method`, in 1.0 in its open."""
    paths = {
        "product": ("string", "product"),
        "version": ("string", "version"),
        "platform": ("string", "platform"),
    }
    said = {
        f"{side}_{name}": Saying(
            kind, (Said(method, f"{side}_properties.{path}"), Said("open", f"properties.{path}", side))
        )
        for name, (kind, path) in paths.items()
    }
    whole = (Said(method, f"{side}_properties"), Said("open", "properties", side))
    able = (Said(method, f"{side}_properties.capabilities"), Said("open", "offered_capabilities", side))
    return {
        **said,
        f"{side}_properties": Saying("variant", whole),
        f"{side}_capabilities": Saying("variant", able),
        f"{side}_container_id": Saying("string", (Said("open", "container_id", side),)),
        f"{side}_idle_timeout_ms": Saying("bigint", (Said("open", "idle_time_out", side),)),
    }


def _limits(prefix: str, method: str, heartbeat: tuple[str, ...], side: str) -> dict[str, Saying]:
    """Limits in tune or tune-ok (max_frame_size is what 0-10 calls frame_max), in 1.0 in the open of `side`."""
    frame_max = (Said(method, "frame_max"), Said(method, "max_frame_size"), Said("open", "max_frame_size", side))
    return {
        f"{prefix}channel_max": Saying("bigint", (Said(method, "channel_max"), Said("open", "channel_max", side))),
        f"{prefix}frame_max": Saying("bigint", frame_max),
        f"{prefix}heartbeat_s": Saying("bigint", tuple(Said(method, name) for name in heartbeat)),
    }


# What a client calls itself, a name that people gave first: as is, else by the next, else by product and version.
NAMES = ("connection_name", "client_container_id", "client_process", "client_product client_version")


def _of_client(name: str) -> Saying:
    """A property that clients of several libraries give themselves."""
    return Saying(
        "string",
        (Said("connection.start-ok", f'client_properties["{name}"]'), Said("open", f'properties["{name}"]', "client")),
    )


SAID: dict[str, Saying] = {
    "connection_name": _of_client("connection_name"),  # RabbitMQ's clients, and those that follow them
    "client_process": _of_client("qpid.client_process"),  # Qpid's
    "vhost": Saying("string", (Said("connection.open", "virtual_host"), Said("open", "hostname", "client"))),
    "user": Saying("string", (Said("connection.start-ok", "user"), Said("sasl-init", "user"))),
    "mechanism": Saying("string", (Said("connection.start-ok", "mechanism"), Said("sasl-init", "mechanism"))),
    "locale": Saying("string", (Said("connection.start-ok", "locale"),)),
    **_own_properties("client", "connection.start-ok"),
    **_own_properties("server", "connection.start"),
    **_limits("client_", "connection.tune-ok", ("heartbeat",), "client"),
    **_limits("server_", "connection.tune", ("heartbeat", "heartbeat_max"), "server"),
}
SAYING_METHODS = frozenset(said.method for saying in SAID.values() for said in saying.places)


def first_said(saying: Saying) -> Column:
    """Aggregate: the value as it was said, null when it was not."""

    def value(said: Said) -> Column:
        speaks = F.col("name") == said.method
        if said.sender is not None:
            speaks &= F.col("sender") == said.sender
        stated = F.expr(f"try_variant_get(arguments, '$.{said.path}', '{saying.kind}')")
        if said.method == HAS_DEFAULTS and said.path in DEFAULTS:
            stated = F.coalesce(stated, F.when(F.col("arguments").isNotNull(), DEFAULTS[said.path]))
        return F.when(speaks, stated)

    return F.any_value(F.coalesce(*map(value, saying.places)), True)
