"""Addresses of AMQP 1.0 read as exchange and routing key, or as a queue.

RabbitMQ writes them as '/exchanges/EXCHANGE/KEY', '/queues/QUEUE' (percent-encoded), before version 4 as
'/exchange/EXCHANGE/KEY', '/queue/QUEUE', '/amq/queue/QUEUE', '/topic/KEY' (its documentation, AMQP 1.0, addresses).
Artemis separates the queue of an address by '::', Service Bus the subscription of a topic by '/Subscriptions/'. Any
other address is a name, of a queue or not: that only the broker knows.
"""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F

# (what it is, pattern, exchange or None for the first group, group of the routing key, percent-encoded)
FORMS = (
    ("exchange", r"^/exchanges/([^/]+)/?(.*)$", None, 2, True),
    ("exchange", r"^/exchange/([^/]+)/?(.*)$", None, 2, False),
    ("exchange", r"^/topic/(.*)$", "amq.topic", 1, False),
    ("queue", r"^/queues/(.*)$", "", 1, True),
    ("queue", r"^/(?:amq/)?queue/(.*)$", "", 1, False),
    ("name", r"^(.+)::.*$", "", 1, False),
    ("name", r"^(?i)(.+)/subscriptions/.*$", "", 1, False),
)


def node(address: Column) -> Column:
    """Struct of `kind` ('exchange' 'queue' 'name'), `exchange`, `routing_key`; null without an address."""
    found = F.when(address.isNotNull(), _form("name", F.lit(""), address))
    for kind, pattern, exchange, group, encoded in reversed(FORMS):
        named = F.lit(exchange) if exchange is not None else _part(address, pattern, 1, encoded)
        found = F.when(address.rlike(pattern), _form(kind, named, _part(address, pattern, group, encoded))).otherwise(
            found
        )
    return found


def to_coordinator() -> Column:
    """On publishes of table messages: those of 1.0 that declare or discharge a transaction. Their link has no address
    (4.2); a link to the anonymous relay has none either, but there each message has one of its own."""
    return F.coalesce("exchange", "address").isNull() & F.col("link").isNotNull()


def _form(kind: str, exchange: Column, routing_key: Column) -> Column:
    return F.struct(F.lit(kind).alias("kind"), exchange.alias("exchange"), routing_key.alias("routing_key"))


def _part(address: Column, pattern: str, group: int, encoded: bool) -> Column:
    part = F.regexp_extract(address, pattern, group)
    # A plus is a plus in a path; url_decode is for forms.
    return F.coalesce(F.try_url_decode(F.replace(part, F.lit("+"), F.lit("%2B"))), part) if encoded else part
