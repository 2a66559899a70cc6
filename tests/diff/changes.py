"""Changes, each of one kind: what differs between a recording before and one after, and the measures of which one has
to be among the first differences that `wirehare diff` names. ALIKE has recordings between which nothing changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from workloads import DELAYED_PORT, Options


@dataclass(frozen=True)
class Change:
    """`before`, `after`: recordings of these options; `broker`: Erlang that is evaluated before the second one, and
    `undo` after it; `delay`: seconds that the network holds data of the second one."""

    name: str
    done: str
    measures: Sequence[str]
    before: Options
    after: Options
    broker: str = ""
    undo: str = ""
    ctl: Sequence[str] = ()
    undo_ctl: Sequence[str] = ()
    delay: float = 0.0


PIKA = Options()
PY_AMQP = Options(library="amqp")
PROTON = Options(library="proton", port=5672, heartbeat=60, frame_max=32768)
RHEA = Options(library="rhea")
# Latencies are compared by seconds: these take some.
PACED = replace(PIKA, pause=0.07)
BASELINES = {"pika": PIKA, "amqp": PY_AMQP, "proton": PROTON, "paced": PACED}

CHANGES: list[Change] = []


def change(name: str, done: str, *measures: str, of: Options = PIKA, before: Any = None, **after: Any) -> None:
    special = {key: after.pop(key) for key in ("broker", "undo", "ctl", "undo_ctl", "delay") if key in after}
    first = replace(of, **(before or {}))
    CHANGES.append(Change(name, done, measures, first, replace(of, **((before or {}) | after)), **special))


# Options of a client, 0-9-1
change("heartbeat", "heartbeat 30 s instead of 60 s", "heartbeat", heartbeat=30)
change("frame-max", "largest frame 8,192 bytes", "frame_max", frame_max=8192)
change("channel-max", "100 channels at most", "channel_max", channel_max=100)
change("prefetch", "prefetch 50 instead of 10", "argument", prefetch=50)
change("prefetch-global", "prefetch for the channel", "argument", global_qos=True)
change("no-ack", "the consumer asks for no acknowledgements", "argument", "presettled", "link_mode", no_ack=True)
change("ack-multiple", "one acknowledgement for ten messages", "ack_batch", ack_every=10)
change("requeue", "one of ten deliveries is requeued", "redelivered", "requeued", requeue=10)
change("reject", "one of eight deliveries is rejected", "rejected", reject=8)
change("transient", "messages are not persistent", "durable", delivery_mode=1)
change("unroutable", "one of eight messages is routed nowhere", "returned", before={"mandatory": True}, unroutable=8)
change("mandatory", "messages are mandatory", "mandatory", mandatory=True)
change("no-confirms", "the publisher asks for no confirms", "mode", "confirmed", "methods", confirm="none")
change("transactions", "transactions instead of confirms", "mode", "in_transaction", "confirmed", confirm="tx")
change("expiration", "messages expire", "with_ttl", properties={"expiration": "60000"})
change("priority", "messages have a priority", "with_priority", "message_priority", properties={"priority": 5})
change(
    "content-type", "messages are JSON instead of text", "message_content_type",
    before={"properties": {"content_type": "text/plain"}}, properties={"content_type": "application/json"},
)  # fmt: skip
change("header", "messages have one more header", "message_header", properties={"headers": {"retry-of": "x"}})
change("body", "bodies of 2,000 bytes instead of 200", "body_size", "bytes_published", body=2000)
change(
    "small-frames", "bodies need three frames", "frames_published", "frame_max", before={"body": 10000}, frame_max=4096
)
change("declare-each", "the queue is declared before every publish", "methods", "argument", declare="each")
change("channel-each", "a channel for every publish", "methods", channel="each")
change("basic-get", "messages are fetched by basic.get", "got", "methods", get=True)
change("slow-consumer", "each message takes 15 ms", "ack_latency", of=PACED, work=0.015)
change("consumer-exclusive", "the consumer is exclusive", "argument", exclusive=True)
change("consumer-priority", "the consumer has a priority", "argument", consume_arguments={"x-priority": 7})
change("abrupt", "connections end without a close", "ending", abrupt=True)
change(
    "queue-lazy", "the queue is lazy", "argument", before={"queue": "lazy"}, queue_arguments={"x-queue-mode": "lazy"}
)
change(
    "queue-quorum", "the queue is a quorum queue", "argument", "queue_type",
    before={"queue": "kind"}, queue_arguments={"x-queue-type": "quorum"},
)  # fmt: skip
change("queue-transient", "the queue is not durable", "argument", before={"queue": "brief"}, durable=False)
change("refused-declare", "a declaration is refused", "errors", refused="declare")
# Libraries
change("other-library", "py-amqp instead of pika", "client_product", "client_version", library="amqp")
change("other-version", "another version of the library", "client_version", "client_product", product="orders-client")
change("mechanism", "AMQPLAIN instead of PLAIN", "mechanism", of=PY_AMQP, mechanism="AMQPLAIN")
change("user", "another user", "user", user="alice")
change("vhost", "another virtual host", "vhost", vhost="orders")
# Settings of the broker
change(
    "broker-heartbeat", "the broker proposes a heartbeat of 20 s", "heartbeat", "server_heartbeat",
    broker="application:set_env(rabbit, heartbeat, 20).", undo="application:set_env(rabbit, heartbeat, 60).",
)  # fmt: skip
change(
    "broker-channel-max", "the broker allows 64 channels", "channel_max", "server_channel_max",
    broker="application:set_env(rabbit, channel_max, 64).", undo="application:set_env(rabbit, channel_max, 2047).",
)  # fmt: skip
change(
    "broker-frame-max", "the broker allows frames of 16,384 bytes", "frame_max", "server_frame_max",
    broker="application:set_env(rabbit, frame_max, 16384).", undo="application:set_env(rabbit, frame_max, 131072).",
)  # fmt: skip
change(
    "policy-reject", "a policy limits the queue, and refuses what exceeds it", "publish_refused", "confirmed",
    before={"queue": "small", "prefetch": 1, "consume_every": 5},
    ctl=("set_policy", "small", "^small$", '{"max-length":1,"overflow":"reject-publish"}', "--apply-to", "queues"),
    undo_ctl=("clear_policy", "small"),
)  # fmt: skip
# The network
change("delay", "the network takes 10 ms", "tcp_rtt", "confirm_latency", "broker_latency", "ack_latency",
       "login_latency", "handshake_latency", of=PACED, before={"port": DELAYED_PORT}, delay=0.01)  # fmt: skip
# 1.0
change("1.0-idle-timeout", "idle time-out 30 s", "client_idle_timeout", "server_idle_timeout", of=PROTON, heartbeat=15)
change("1.0-frame-size", "largest frame 4,096 bytes", "frame_max", of=PROTON, frame_max=4096)
change(
    "1.0-product", "the client announces a product", "client_product", "client_properties", of=PROTON, product="orders"
)
change("1.0-credit", "credit 50 instead of 10", "argument", of=PROTON, prefetch=50)
change("1.0-presettled", "messages are sent settled", "publish_presettled", "argument", of=PROTON, presettled=True)
change("1.0-no-ack", "messages are delivered settled", "presettled", "argument", of=PROTON, no_ack=True)
change("1.0-release", "one of ten deliveries is released", "requeued", "redelivered", of=PROTON, requeue=10)
change("1.0-reject", "one of eight deliveries is rejected", "rejected", of=PROTON, reject=8)
change("1.0-transient", "messages are not durable", "durable", of=PROTON, delivery_mode=1)
change("1.0-ttl", "messages expire", "with_ttl", of=PROTON, properties={"ttl": 60})
change("1.0-content-type", "messages have a content type", "message_content_type", of=PROTON,
       properties={"content_type": "application/json"})  # fmt: skip
change("1.0-body", "bodies of 2,000 bytes instead of 200", "body_size", "bytes_published", of=PROTON, body=2000)
change("1.0-slow-consumer", "each message takes 15 ms", "ack_latency", of=PROTON, before={"pause": 0.07}, work=0.015)
change("1.0-refused-attach", "a link is refused", "errors", of=PROTON, refused="attach")
change("1.0-abrupt", "connections end without a close", "ending", of=PROTON, abrupt=True)
change("1.0-library", "rhea instead of Proton", "argument", "handshake", "client_idle_timeout", "client_product",
       of=PROTON, library="rhea")  # fmt: skip
change("1.0-delay", "the network takes 10 ms", "tcp_rtt", "confirm_latency", "broker_latency", "login_latency",
       "ack_latency", of=PROTON, before={"port": DELAYED_PORT, "pause": 0.07}, delay=0.01)  # fmt: skip
change("0-9-1-to-1.0", "Proton and 1.0 instead of pika and 0-9-1", "version", library="proton", frame_max=32768)

# Recordings of the same applications: again, with half and double the load, and the duration.
ALIKE = {
    "again": {},
    "half-load": {"pause": 2.0},
    "double-load": {"pause": 0.5},
    "half-duration": {"messages": 0.5},
    "double-duration": {"messages": 2.0},
    "fewer-connections": {"rounds": 0.5},
    "more-connections": {"rounds": 2.0},
}


def alike(options: Options, how: dict[str, float]) -> Options:
    """The options with `how` often their pause, messages and connections."""
    found: dict[str, Any] = {name: getattr(options, name) * times for name, times in how.items()}
    found |= {name: int(value) for name, value in found.items() if name != "pause"}
    return replace(options, **found)
