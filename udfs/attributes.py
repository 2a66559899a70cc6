"""Arguments and properties that become columns of connections and messages, as data.

In the classic family and 0-10 the name of a method implies its sender; in 1.0 both sides send the same performative.

1.0 and 0-10 have properties in several sections, a time to live is a text in the classic family, and identifiers may
have any type. `udfs.conversation.properties` computes the columns of table messages that have other names here.
Importing this loads no kernel.
"""

from __future__ import annotations

from typing import NamedTuple

from codec.amqp.classic.tables import CLASSIC_VERSIONS


class ArgumentPath(NamedTuple):
    """An argument of a method, by its path; `sender`: if both sides send the method; `default`: if it is left out."""

    method: str
    path: tuple[str, ...]
    sender: str | None = None
    default: int | None = None


Attribute = tuple[str, tuple[ArgumentPath, ...]]  # type of a column and the arguments that are it, one a family
# Limits of an open that leaves them out (1.0 core specification, 2.7.1).
DEFAULTS = {"max_frame_size": 2**32 - 1, "channel_max": 2**16 - 1}


def _opens(name: str, side: str) -> ArgumentPath:
    return ArgumentPath("open", (name,), side, DEFAULTS.get(name))


def _software(side: str, method: str) -> dict[str, Attribute]:
    """The software of `side`: in `method`, in 1.0 in its open."""
    whole = f"{side}_properties"
    return {
        **{
            f"{side}_{name}": (
                "string",
                (ArgumentPath(method, (whole, name)), ArgumentPath("open", ("properties", name), side)),
            )
            for name in ("product", "version", "platform")
        },
        whole: ("variant", (ArgumentPath(method, (whole,)), _opens("properties", side))),
        f"{side}_capabilities": (
            "variant",
            (ArgumentPath(method, (whole, "capabilities")), _opens("offered_capabilities", side)),
        ),
        f"{side}_container_id": ("string", (_opens("container_id", side),)),
        f"{side}_idle_timeout_ms": ("bigint", (_opens("idle_time_out", side),)),
    }


def _limits(side: str, method: str, heartbeat: tuple[str, ...]) -> dict[str, Attribute]:
    """Limits in tune or tune-ok (max_frame_size is what 0-10 calls frame_max), in 1.0 in the open of `side`."""
    frame_max = tuple(ArgumentPath(method, (name,)) for name in ("frame_max", "max_frame_size"))
    return {
        f"{side}_channel_max": ("bigint", (ArgumentPath(method, ("channel_max",)), _opens("channel_max", side))),
        f"{side}_frame_max": ("bigint", (*frame_max, _opens("max_frame_size", side))),
        f"{side}_heartbeat_s": ("bigint", tuple(ArgumentPath(method, (name,)) for name in heartbeat)),
    }


RABBITMQ, NAMED_VHOST = "RabbitMQ", "vhost:"  # its product, and the prefix of a virtual host in its hostname of 1.0
# Columns for client_name: the first one that is not null; names chosen by people first, product and version last.
NAMES = ("connection_name", "client_container_id", "client_program", "client_product client_version")


def _of_client(name: str) -> Attribute:
    in_start = ArgumentPath("connection.start-ok", ("client_properties", name))
    return "string", (in_start, ArgumentPath("open", ("properties", name), "client"))


# What a broker says to name itself, at any of its addresses: RabbitMQ and Qpid.
_NAMES_OF_BROKERS = ("cluster_name", "qpid.federation_tag")


def _of_login(name: str) -> Attribute:
    methods = ("connection.start-ok", "connection.secure-ok", "sasl-init", "sasl-response")
    return "string", tuple(ArgumentPath(method, (name,)) for method in methods)


ATTRIBUTES: dict[str, Attribute] = {
    "connection_name": _of_client("connection_name"),  # RabbitMQ's clients, and those that follow them
    "client_program": _of_client("qpid.client_process"),  # Qpid's
    "vhost": ("string", (ArgumentPath("connection.open", ("virtual_host",)), _opens("hostname", "client"))),
    "user": _of_login("user"),
    "mechanism": _of_login("mechanism"),
    "locale": ("string", (ArgumentPath("connection.start-ok", ("locale",)),)),
    **_software("client", "connection.start-ok"),
    **_software("server", "connection.start"),
    "broker_name": (
        "string",
        (
            *(ArgumentPath("connection.start", ("server_properties", name)) for name in _NAMES_OF_BROKERS),
            *(ArgumentPath("open", ("properties", name), "server") for name in _NAMES_OF_BROKERS),
        ),
    ),
    **_limits("client", "connection.tune-ok", ("heartbeat",)),
    **_limits("server", "connection.tune", ("heartbeat", "heartbeat_max")),
    "sasl_code": ("bigint", (ArgumentPath("sasl-outcome", ("code",)),)),
    # 0-10 may leave it out: no heartbeat.
    "heartbeat_s": ("bigint", (ArgumentPath("connection.tune-ok", ("heartbeat",), default=0),)),
}
AGREED = ("channel_max", "frame_max", "heartbeat_s")  # limits that both sides state
STATED_BY_BOTH = ("1.0",)  # versions in which each side announces its limits, and the smaller one applies


PERSISTENT = 2  # delivery mode (0-9-1 specification, class basic, property delivery-mode; the same in 0-10)
_DELIVERY, _MESSAGE, _REPLY_TO = "delivery_properties", "message_properties", "message_properties.reply_to"
Place = tuple[str, str, str]  # section ('a.b' for nested ones, '' for none), property, type: of `fields`, or 'any'


def _in(section: str, kind: str, *names: str) -> dict[str, Place]:
    """The places of columns that have the names of properties of one section and type."""
    return {name: (section, name, kind) for name in names}


MANAGEMENT = (
    "management_operation", "management_target", "management_exchange", "management_queue", "management_routing_key",
    "management_status", "management_text",
)  # fmt: skip
# Column -> its place; columns of messages that a family does not have.
CLASSIC: dict[str, Place] = {
    **_in("", "int", "delivery_mode", "priority"),
    **_in("", "string", "expiration", "message_id", "correlation_id", "reply_to"),
    **_in("", "string", "content_type", "content_encoding", "type", "user_id", "app_id"),
    **_in("", "timestamp", "timestamp"),
    **_in("", "variant", "headers"),
    **_in("headers", "string", "traceparent"),
    "queue_offset": ("headers", "x-stream-offset", "bigint"),
    "broker_ms": ("headers", "timestamp_in_ms", "bigint"),  # of RabbitMQ's interceptors; the next since 4.0
    "received_ms": ("headers", "x-opt-rabbitmq-received-time", "bigint"),
}
NOT_CLASSIC = (
    *MANAGEMENT, "address", "browsed", "delivery_id", "delivery_tag_hex", "message_format", "resumed",
    "group_id", "sequence_number", "locked_until",
)  # fmt: skip
V0_10: dict[str, Place] = {
    **_in(_DELIVERY, "string", "exchange", "routing_key"),
    **_in(_DELIVERY, "boolean", "redelivered", "discard_unroutable", "immediate"),
    **_in(_DELIVERY, "int", "delivery_mode", "priority"),
    **_in(_DELIVERY, "bigint", "ttl"),
    **_in(_DELIVERY, "timestamp", "timestamp"),
    **_in(_MESSAGE, "string", "message_id", "content_type", "content_encoding"),
    **_in(_MESSAGE, "any", "correlation_id", "user_id", "app_id"),
    "reply_node": (_MESSAGE, "reply_to", "object"),
    "reply_exchange": (_REPLY_TO, "exchange", "string"),
    "reply_routing_key": (_REPLY_TO, "routing_key", "string"),
    **_in(_MESSAGE, "bigint", "content_length"),
    "headers": (_MESSAGE, "application_headers", "variant"),
    **_in(f"{_MESSAGE}.application_headers", "string", "traceparent"),
}
NOT_0_10 = (
    *MANAGEMENT, "address", "broker_ts_ns", "delivery_tag", "expiration", "queue_offset", "type", "group_id",
    "sequence_number", "locked_until",
)  # fmt: skip
V1_0: dict[str, Place] = {
    **_in("header", "bigint", "delivery_count", "ttl"),
    "has_header": ("", "header", "object"),
    "durable_flag": ("header", "durable", "boolean"),
    **_in("header", "int", "priority"),
    **_in("properties", "any", "message_id", "correlation_id", "user_id"),
    **_in("properties", "string", "reply_to", "to", "content_type", "content_encoding", "group_id"),
    "timestamp": ("properties", "creation_time", "timestamp"),
    "headers": ("", "application_properties", "variant"),
    **_in("application_properties", "string", "traceparent"),
    "annotated_traceparent": ("message_annotations", "traceparent", "string"),
    "queue_offset": ("message_annotations", "x-stream-offset", "bigint"),
    **_in("properties", "string", "subject"),
    "body_value": ("", "body_value", "string"),
    # Of a binding over HTTP over AMQP (RabbitMQ).
    "bound_exchange": ("body_value", "source", "string"),
    "bound_queue": ("body_value", "destination_queue", "string"),
    "bound_key": ("body_value", "binding_key", "string"),
    "http_response": ("application_properties", "http:response", "string"),
    "requested_operation": ("application_properties", "operation", "string"),
    "requested_name": ("application_properties", "name", "string"),
    "requested_type": ("application_properties", "type", "string"),
    "status_code": ("application_properties", "statusCode", "int"),  # AMQP Management
    "status_text": ("application_properties", "statusDescription", "string"),
    "claims_status": ("application_properties", "status-code", "int"),  # Claims-based Security
    "claims_text": ("application_properties", "status-description", "string"),
    "annotated_exchange": ("message_annotations", "x-exchange", "string"),  # RabbitMQ: the route
    "annotated_routing_key": ("message_annotations", "x-routing-key", "string"),
    "acquired_count": ("message_annotations", "x-acquired-count", "bigint"),  # RabbitMQ, quorum queues
    "received_time": ("message_annotations", "x-opt-rabbitmq-received-time", "timestamp"),
    "enqueued_time": ("message_annotations", "x-opt-enqueued-time", "timestamp"),  # of Azure
    "sequence_number": ("message_annotations", "x-opt-sequence-number", "bigint"),
    "locked_until": ("message_annotations", "x-opt-locked-until", "timestamp"),
    "broker_ms": ("application_properties", "timestamp_in_ms", "bigint"),
    "diagnostic_id": ("application_properties", "Diagnostic-Id", "string"),  # Azure's name for it
}
NOT_1_0 = ("app_id", "delivery_tag", "expiration", "immediate", "mandatory", "type")


class Family(NamedTuple):
    """How messages of some `versions` are assembled; `and_unknown`: also of frames whose version is unknown.
    `arguments` of the method that are columns of table messages; `properties`: column -> its place, of columns and of
    what others are derived from (`udfs.conversation.properties`); `absent`: columns that the family does not have."""

    versions: tuple[str, ...]
    and_unknown: bool
    arguments: tuple[str, ...]
    properties: dict[str, Place]
    absent: tuple[str, ...]


FAMILIES = (
    Family(
        CLASSIC_VERSIONS, True, ("exchange", "routing_key", "redelivered", "mandatory", "immediate"), CLASSIC,
        NOT_CLASSIC,
    ),
    Family(("0-10",), False, (), V0_10, NOT_0_10),
    Family(("1.0",), False, ("handle",), V1_0, NOT_1_0),
)  # fmt: skip
