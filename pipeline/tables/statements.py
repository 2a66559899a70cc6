"""What the two sides of a connection state of themselves, as data: which argument is which column of `connections`.

The families differ in who states a thing: in the classic family and 0-10 the name of a method tells its sender, in 1.0
both sides send the same performative.
"""

from __future__ import annotations

from typing import NamedTuple


class Stated(NamedTuple):
    """An argument of a method, by the names that lead to it; `sender` where both sides send the method; `default`: what
    a side states that leaves it out."""

    method: str
    path: tuple[str, ...]
    sender: str | None = None
    default: int | None = None


Statement = tuple[str, tuple[Stated, ...]]  # type of a column and the arguments that are it, one a family
# Limits of an open that leaves them out (1.0 core specification, 2.7.1).
DEFAULTS = {"max_frame_size": 2**32 - 1, "channel_max": 2**16 - 1}


def _opens(name: str, side: str) -> Stated:
    """An argument of the open of 1.0."""
    return Stated("open", (name,), side, DEFAULTS.get(name))


def _own_properties(side: str, method: str) -> dict[str, Statement]:
    """What `side` states of its software: in `method`, in 1.0 in its open."""
    whole = f"{side}_properties"
    return {
        **{
            f"{side}_{name}": ("string", (Stated(method, (whole, name)), Stated("open", ("properties", name), side)))
            for name in ("product", "version", "platform")
        },
        whole: ("variant", (Stated(method, (whole,)), _opens("properties", side))),
        f"{side}_capabilities": (
            "variant",
            (Stated(method, (whole, "capabilities")), _opens("offered_capabilities", side)),
        ),
        f"{side}_container_id": ("string", (_opens("container_id", side),)),
        f"{side}_idle_timeout_ms": ("bigint", (_opens("idle_time_out", side),)),
    }


def _limits(side: str, method: str, heartbeat: tuple[str, ...]) -> dict[str, Statement]:
    """Limits in tune or tune-ok (max_frame_size is what 0-10 calls frame_max), in 1.0 in the open of `side`."""
    frame_max = tuple(Stated(method, (name,)) for name in ("frame_max", "max_frame_size"))
    return {
        f"{side}_channel_max": ("bigint", (Stated(method, ("channel_max",)), _opens("channel_max", side))),
        f"{side}_frame_max": ("bigint", (*frame_max, _opens("max_frame_size", side))),
        f"{side}_heartbeat_s": ("bigint", tuple(Stated(method, (name,)) for name in heartbeat)),
    }


# What a client calls itself, a name that people gave first: as is, else by the next, else by product and version.
NAMES = ("connection_name", "client_container_id", "client_process", "client_product client_version")


def _of_client(name: str) -> Statement:
    """A property that clients of several libraries give themselves."""
    in_start = Stated("connection.start-ok", ("client_properties", name))
    return "string", (in_start, Stated("open", ("properties", name), "client"))


def _of_login(name: str) -> Statement:
    methods = ("connection.start-ok", "connection.secure-ok", "sasl-init", "sasl-response")
    return "string", tuple(Stated(method, (name,)) for method in methods)


STATEMENTS: dict[str, Statement] = {
    "connection_name": _of_client("connection_name"),  # RabbitMQ's clients, and those that follow them
    "client_process": _of_client("qpid.client_process"),  # Qpid's
    "vhost": ("string", (Stated("connection.open", ("virtual_host",)), _opens("hostname", "client"))),
    "user": _of_login("user"),
    "mechanism": _of_login("mechanism"),
    "locale": ("string", (Stated("connection.start-ok", ("locale",)),)),
    **_own_properties("client", "connection.start-ok"),
    **_own_properties("server", "connection.start"),
    **_limits("client", "connection.tune-ok", ("heartbeat",)),
    **_limits("server", "connection.tune", ("heartbeat", "heartbeat_max")),
}
