"""Changes, each of one kind: what differs between a recording before and one after, and the measures of which one has
to be among the first differences that `wirehare diff` names; 'argument prefetch_count' is the argument of that name.
ALIKE has recordings between which nothing changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from workloads import DELAYED_PORT, QPID_PORT, TLS_PORT, Options


@dataclass(frozen=True)
class Change:
    """`before`, `after`: recordings of these options; `broker`: Erlang that is evaluated before the second one, and
    `undo` after it; `certificate`: who issues that of the broker for the second one; `delay`: seconds that the network
    holds data of the second one; `alarm`: the broker runs short of disk space for a time; `meanwhile`: what an
    operator does."""

    name: str
    done: str
    measures: Sequence[str]
    before: Options
    after: Options
    broker: str = ""
    undo: str = ""
    ctl: Sequence[str] = ()
    undo_ctl: Sequence[str] = ()
    certificate: str = ""
    delay: float = 0.0
    alarm: bool = False
    meanwhile: Sequence[str] = ()


PIKA = Options()
PY_AMQP = Options(library="amqp")
PROTON = Options(library="proton", port=5672, heartbeat=60, frame_max=32768)
RHEA = Options(library="rhea")
# Latencies are compared by seconds: these take some.
PACED = replace(PIKA, pause=0.07)
QPID = Options(library="qpid", port=QPID_PORT)
TLS = replace(PIKA, port=TLS_PORT, tls="1.3", messages=20)
RHEA_TLS = replace(TLS, library="rhea")
QPID_TLS = replace(QPID, port=DELAYED_PORT, tls="1.3", messages=20)
PROTON_TLS = replace(PROTON, port=TLS_PORT, tls="1.3", messages=20)
JITTER = replace(PACED, port=DELAYED_PORT, jitter=0.02)
NARROW = replace(PACED, body=2000, rate="256kbit")
AIO_PIKA = replace(PIKA, library="aio-pika", release="9.5.8")
# A pair of applications among 24 others, with two connections each.
MANY = replace(PIKA, rounds=2, messages=12, others=24)
MANY_PROTON = replace(MANY, library="proton", frame_max=32768)
BASELINES = {
    "pika": PIKA, "amqp": PY_AMQP, "proton": PROTON, "paced": PACED, "qpid": QPID, "tls": TLS, "rhea-tls": RHEA_TLS,
    "proton-tls": PROTON_TLS, "qpid-tls": QPID_TLS, "aio-pika": AIO_PIKA, "jitter": JITTER,
    "narrow": NARROW,
    "many": MANY, "many-1.0": MANY_PROTON,
}  # fmt: skip

CHANGES: list[Change] = []
FORGET_NEWS = 'rabbit_exchange:delete(rabbit_misc:r(<<"/">>, exchange, <<"news">>), false, <<"x">>).'
SPECIAL = "broker", "undo", "ctl", "undo_ctl", "certificate", "delay", "alarm", "meanwhile"


def change(name: str, done: str, *measures: str, of: Options = PIKA, before: Any = None, **after: Any) -> None:
    special = {key: after.pop(key) for key in SPECIAL if key in after}
    first = replace(of, **(before or {}))
    CHANGES.append(Change(name, done, measures, first, replace(of, **((before or {}) | after)), **special))


# Options of a client, 0-9-1
change("heartbeat", "heartbeat 30 s instead of 60 s", "heartbeat", heartbeat=30)
change("frame-max", "largest frame 8,192 bytes", "frame_max", frame_max=8192)
change("channel-max", "100 channels at most", "channel_max", channel_max=100)
change("prefetch", "prefetch 50 instead of 10", "argument prefetch_count", prefetch=50)
change("prefetch-global", "prefetch for the channel", "argument global", global_qos=True)
change("no-ack", "the consumer asks for no acknowledgements", "argument no_ack", "presettled", "link_mode", no_ack=True)
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
change("consumer-exclusive", "the consumer is exclusive", "argument exclusive", exclusive=True)
change("consumer-priority", "the consumer has a priority", "argument x-priority", consume_arguments={"x-priority": 7})
change("abrupt", "connections end without a close", "ending", abrupt=True)
change(
    "queue-lazy",
    "the queue is lazy",
    "argument x-queue-mode",
    before={"queue": "lazy"},
    queue_arguments={"x-queue-mode": "lazy"},
)
change(
    "queue-quorum", "the queue is a quorum queue", "argument x-queue-type", "queue_type",
    before={"queue": "kind"}, queue_arguments={"x-queue-type": "quorum"},
)  # fmt: skip
change("queue-transient", "the queue is not durable", "argument durable", before={"queue": "brief"}, durable=False)
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
change("1.0-credit", "credit 50 instead of 10", "argument link_credit", of=PROTON, prefetch=50)
change(
    "1.0-presettled",
    "messages are sent settled",
    "publish_presettled",
    "argument snd_settle_mode",
    of=PROTON,
    presettled=True,
)
change("1.0-no-ack", "messages are delivered settled", "presettled", "argument snd_settle_mode", of=PROTON, no_ack=True)
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

change("0-9-1-to-1.0-transient", "the same, and messages are no longer durable", "durable", library="proton",
       frame_max=32768, delivery_mode=1)  # fmt: skip
change(
    "0-9-1-to-1.0-body",
    "the same, and bodies of 2,000 bytes",
    "body_size",
    library="proton",
    frame_max=32768,
    body=2000,
)
change("0-9-1-to-1.0-no-ack", "the same, and messages are delivered settled", "presettled", "link_mode",
       library="proton", frame_max=32768, no_ack=True)  # fmt: skip
change("0-9-1-to-1.0-delay", "the same, and the network takes 10 ms", "confirm_latency", "tcp_rtt", "ack_latency",
       of=PACED, before={"port": DELAYED_PORT}, library="proton", frame_max=32768, delay=0.01)  # fmt: skip
# Releases of libraries
change("pika-release", "pika 1.1.0 instead of the newest", "client_version", release="1.1.0")
change("py-amqp-release", "py-amqp 5.0.9 instead of the newest", "client_version", of=PY_AMQP, release="5.0.9")
# 0-10, with qpid-python on both sides
change("0-10-heartbeat", "heartbeat 30 s instead of 60 s", "heartbeat", of=QPID, heartbeat=30)
change("0-10-prefetch", "credit 50 instead of 10", "argument value", of=QPID, prefetch=50)
change("0-10-no-ack", "the consumer asks for no acknowledgements", "argument accept_mode", "presettled", "link_mode",
       of=QPID, no_ack=True)  # fmt: skip
change("0-10-ack-many", "one acknowledgement for ten messages", "ack_batch", of=QPID, ack_every=10)
change("0-10-release", "one of ten deliveries is released", "requeued", "redelivered", of=QPID, requeue=10)
change("0-10-reject", "one of eight deliveries is rejected", "rejected", of=QPID, reject=8)
change("0-10-transient", "messages are not durable", "durable", of=QPID, delivery_mode=1)
change("0-10-ttl", "messages expire", "with_ttl", of=QPID, properties={"ttl": 60})
change("0-10-priority", "messages have a priority", "with_priority", "message_priority", of=QPID,
       properties={"priority": 5})  # fmt: skip
change("0-10-content-type", "messages have a content type", "message_content_type", of=QPID,
       properties={"content_type": "application/json"})  # fmt: skip
change("0-10-body", "bodies of 2,000 bytes instead of 200", "body_size", "bytes_published", of=QPID, body=2000)
change("0-10-no-sync", "the publisher does not wait for completion", "confirm_batch", "methods", "confirm_latency",
       of=QPID, confirm="none")  # fmt: skip
change("0-10-transactions", "each message in a transaction", "in_transaction", "mode", of=QPID, confirm="tx")
change("0-10-exclusive", "the consumer is exclusive", "argument exclusive", of=QPID, exclusive=True)
change("0-10-queue-limit", "the queue is declared with a limit", "argument max_count", of=QPID,
       queue_arguments={"qpid.max_count": 1000})  # fmt: skip
change(
    "0-10-product", "the client announces a product", "client_product", "client_properties", of=QPID, product="orders"
)
change("0-10-anonymous", "the login is anonymous", "mechanism", of=QPID, mechanism="ANONYMOUS")
change("0-10-refused", "a binding is refused", "errors", of=QPID, refused="bind")
change("0-10-abrupt", "connections end without a close", "ending", of=QPID, abrupt=True)
change("0-10-broker-channel-max", "the broker allows 100 channels", "channel_max", "server_channel_max", of=QPID,
       tune={"channel_max": 100})  # fmt: skip
change("0-10-broker-frame-size", "the broker allows frames of 4,096 bytes", "frame_max", "server_frame_max", of=QPID,
       tune={"max_frame_size": 4096})  # fmt: skip
change("0-10-slow-consumer", "each message takes 15 ms", "ack_latency", of=QPID, before={"pause": 0.07}, work=0.015)
change("0-10-delay", "the network takes 10 ms", "tcp_rtt", "confirm_latency", "broker_latency", "login_latency",
       "ack_latency", of=QPID, before={"port": DELAYED_PORT, "pause": 0.07}, delay=0.01)  # fmt: skip
# TLS, its secrets in the capture
change("tls", "TLS instead of none", "tls_mode", "transport", "tls_version", before={"messages": 20}, port=TLS_PORT,
       tls="1.3")  # fmt: skip
change("tls-version", "TLS 1.2 instead of 1.3", "tls_version", of=TLS, tls="1.2")
change("tls-cipher", "another cipher suite", "cipher_suite", of=TLS,
       before={"tls": "1.2", "ciphers": "ECDHE-RSA-AES256-GCM-SHA384"},
       ciphers="ECDHE-RSA-AES128-GCM-SHA256")  # fmt: skip
change("tls-server-name", "the client asks for a server by name", "tls_name", of=TLS, server_name="broker.example")
change("tls-certificate", "another issuer of the broker's certificate", "certificate", of=TLS,
       certificate="Another Authority")  # fmt: skip
change("tls-heartbeat", "heartbeat 30 s, inside of TLS", "heartbeat", of=TLS, heartbeat=30)
change("tls-prefetch", "prefetch 50 instead of 10, inside of TLS", "argument prefetch_count", of=TLS, prefetch=50)
change("tls-requeue", "one of ten deliveries is requeued, inside of TLS", "redelivered", "requeued", of=TLS, requeue=10)
change("tls-1.0-version", "TLS 1.2 instead of 1.3, for 1.0", "tls_version", of=RHEA_TLS, tls="1.2")
change("tls-1.0-credit", "credit 50 instead of 10, inside of TLS", "argument link_credit", of=RHEA_TLS, prefetch=50)
# One of many applications, and all of them
change(
    "many-prefetch",
    "prefetch of one of 25 consumers",
    "argument prefetch_count",
    of=MANY,
    before={"around": MANY},
    prefetch=50,
)
change("many-no-ack", "one of 25 consumers asks for no acknowledgements", "argument no_ack", "presettled", "link_mode",
       of=MANY, before={"around": MANY}, no_ack=True)  # fmt: skip
change("many-transient", "messages of one of 25 publishers are not persistent", "durable", of=MANY,
       before={"around": MANY}, delivery_mode=1)  # fmt: skip
change(
    "many-reject",
    "one of 25 consumers rejects every second delivery",
    "rejected",
    of=MANY,
    before={"around": MANY},
    reject=2,
)
change("many-channel-each", "one of 25 publishers opens a channel for each message", "methods", of=MANY,
       before={"around": MANY}, channel="each")  # fmt: skip
change("many-heartbeat", "heartbeat of all 50 applications", "heartbeat", of=MANY, heartbeat=30)
change("many-library", "py-amqp instead of pika for all 50 applications", "client_product", of=MANY, library="amqp")
change("many-1.0-presettled", "one of 25 publishers sends settled", "publish_presettled", "argument snd_settle_mode",
       of=MANY_PROTON, before={"around": MANY_PROTON}, presettled=True)  # fmt: skip
change("many-1.0-credit", "credit of one of 25 consumers", "argument link_credit", of=MANY_PROTON,
       before={"around": MANY_PROTON}, prefetch=50)  # fmt: skip
# Further ones: clients and brokers do more of it, less of it, or it takes longer
change("connection-each", "a connection for every ten messages", "connections", connection=10)
change("default-exchange", "messages go to the default exchange", "publishes_to", exchange="")
change("fanout", "the exchange is of type fanout", "argument type", exchange_type="fanout",
       before={"exchange": "news"}, broker=FORGET_NEWS, undo=FORGET_NEWS)  # fmt: skip
change("consume-again", "the consumer is cancelled and comes again for every ten messages", "methods",
       consume_again=10)  # fmt: skip
change(
    "policy-ttl", "a policy gives messages of the queue one millisecond", "delivered",
    before={"queue": "short", "prefetch": 1, "consume_every": 5},
    ctl=("set_policy", "short", "^short$", '{"message-ttl":1}', "--apply-to", "queues"),
    undo_ctl=("clear_policy", "short"),
)  # fmt: skip
change("aio-pika", "aio-pika instead of pika", "client_product", "client_version", "client_properties",
       library="aio-pika", release="9.5.8")  # fmt: skip
change(
    "broker-mechanisms", "the broker offers PLAIN only", "argument mechanisms",
    broker="application:set_env(rabbit, auth_mechanisms, ['PLAIN']).",
    undo="application:set_env(rabbit, auth_mechanisms, ['PLAIN', 'AMQPLAIN']).",
)  # fmt: skip
change("jitter", "the network takes up to 20 ms", "tcp_rtt", "confirm_latency", "broker_latency", "ack_latency",
       "login_latency", "handshake_latency", of=JITTER, before={"jitter": 0.0},
       jitter=0.02)  # fmt: skip
change("narrow", "the network carries 256 kbit/s", "confirm_latency", "broker_latency", "tcp_rtt", "ack_latency",
       of=NARROW,
       before={"rate": ""}, rate="256kbit")  # fmt: skip
change("alarm", "the broker has no disk space for a time", "blocked", "errors", of=PACED,
       before={"messages": 80}, alarm=True)  # fmt: skip
change("1.0-credit-by-one", "the consumer gives credit for each message", "argument link_credit", "credit_methods",
       of=PROTON, prefetch=0)  # fmt: skip
change("1.0-link-each", "a link for every message", "methods", of=PROTON, link="each")
change("1.0-data", "bodies are data sections instead of a value", "message_body", of=PROTON, data=True)
change("1.0-subject", "messages have a subject", "message_property", of=PROTON,
       properties={"subject": "order.created"})  # fmt: skip
change("tls-1.0-reject", "one of eight deliveries is rejected, inside of TLS", "rejected", of=PROTON_TLS, reject=8)
change("tls-0-10-reject", "one of eight deliveries is rejected, inside of TLS", "rejected", of=QPID_TLS, reject=8)
change("tls-0-10", "TLS instead of none", "tls_mode", "transport", "tls_version", of=QPID_TLS, before={"tls": ""},
       tls="1.3")  # fmt: skip
change("0-10-session-each", "a session for every message", "methods", of=QPID, session="each")
# The second ones that the comparison had not seen
change("routing-key", "messages have another routing key", "argument routing_key",
       "message_routing_key", key="order.v2")  # fmt: skip
change("two-consumers", "two consumers on the channel", "receivers", consumers=2)
change("passive-declare", "the queue is also declared passively", "argument passive", "channel_start", passive=True)
change("auto-delete", "the queue is deleted automatically", "argument auto_delete", auto_delete=True,
       before={"queue": "short-lived"})  # fmt: skip
change("dead-letter-exchange", "the queue has a dead letter exchange", "argument x-dead-letter-exchange",
       before={"queue": "letters"}, queue_arguments={"x-dead-letter-exchange": "amq.fanout"})  # fmt: skip
change("exchange-bind", "the queue is bound to an inner exchange", "methods_sent", "channel_start", via=True)
change("recover", "the consumer asks for recovery", "methods_sent", "channel_start", "methods", recover=True)
change("encoding", "bodies are compressed", "message_content_encoding", properties={"content_encoding": "gzip"})
change(
    "some-big", "one of twenty bodies is large", "body_size", "bytes_published", before={"messages": 120}, big_every=20
)
change("some-slow", "one of twenty messages takes 300 ms", "ack_latency", of=PACED, before={"messages": 120}, work=0.3,
       work_every=20)  # fmt: skip
change("loss", "the network loses 3 % of the packets of clients", "retransmitted", "ack_latency", "network",
       of=PACED, loss=0.03)  # fmt: skip
change("cut", "something in the network resets connections", "ending", of=JITTER, before={"jitter": 0.0}, cut=1.5)
change("operator-close", "an operator closes all connections", "errors", "ending", of=PACED,
       meanwhile=("close_all_connections", "maintenance"))  # fmt: skip
change("1.0-selector", "the consumer has a filter", "argument", of=PROTON, selector="colour = 'red'")
change("1.0-modified", "one of ten deliveries is modified", "errors", of=PROTON, modify=10)
change("1.0-second", "the receiver settles second", "argument rcv_settle_mode", of=PROTON, second=True)
change("0-10-browse", "the consumer browses", "argument acquire_mode", of=QPID, browse=True)
change("1.0-correlation-id", "messages have a correlation-id", "with_correlation_id", of=PROTON,
       properties={"correlation_id": "x"})  # fmt: skip
change("1.0-header", "messages have one more header", "message_header", of=PROTON,
       properties={"properties": {"retry-of": "x"}})  # fmt: skip
change("tls-1.0-idle-timeout", "idle time-out 30 s, inside of TLS", "client_idle_timeout", of=PROTON_TLS, heartbeat=15)
change("0-10-header", "messages have one more header", "message_header", of=QPID,
       properties={"properties": {"retry-of": "x"}})  # fmt: skip
change("0-10-subject", "messages have a subject", "message_property", "message_header", of=QPID,
       properties={"subject": "order.created"})  # fmt: skip
change("0-10-jitter", "the network takes up to 20 ms", "confirm_latency", "broker_latency", "ack_latency",
       of=replace(QPID, port=DELAYED_PORT, pause=0.07), jitter=0.02)  # fmt: skip

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
