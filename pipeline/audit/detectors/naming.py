"""NM: names of exchanges and queues, and what they stand for."""

from __future__ import annotations

from pipeline.audit.contexts.entities import entities
from pipeline.audit.contexts.prefilter import LONGEST_NAME, ODD_OCTETS
from pipeline.audit.detector import Detector, Sql, State
from pipeline.audit.detectors.transactions import SEEN_SINCE_OPEN, since_open

STATES = {
    "declare_frame": State("max(CASE WHEN name = 'queue.declare' AND sender = 'client' THEN frame_no END)"),
}
CONTEXTS = {"entities": entities}

NAMES: Sql = "array(args.exchange, args.queue, args.source, args.destination)"
# Exchanges that a server has before anybody declares them: of the specification, and of brokers in use.
PREDECLARED: Sql = (
    "('amq.direct', 'amq.fanout', 'amq.topic', 'amq.headers', 'amq.match', 'amq.rabbitmq.trace', 'amq.rabbitmq.log', "
    "'amq.rabbitmq.event', 'amq.failover', 'amq.management')"
)
TYPES: Sql = (
    "('direct', 'fanout', 'topic', 'headers', 'x-delayed-message', 'x-consistent-hash', 'x-modulus-hash', 'x-random', "
    "'x-local-random', 'x-recent-history', 'x-rtopic', 'x-lvc', 'x-jms-topic', 'x-message-deduplication', 'x-event', "
    "'x-presence', 'x-federation-upstream')"
)
USES_QUEUE: Sql = "name IN ('queue.bind', 'queue.unbind', 'queue.purge', 'queue.delete', 'basic.consume', 'basic.get')"
DECLARED_BEFORE: Sql = "ts_ns < broker_loss_ns AND NOT declared.passive AND was.deleted = false"
# An entity that the server deletes itself may be declared again with other flags: accepting that shows it was gone.
MAY_HAVE_GONE: Sql = (
    "accepted AND (was.declared.auto_delete OR was.table LIKE '%\"x-expires\"%') OR "
    "was.declared.exclusive AND was.until_ns <= ts_ns"
)
# Names that the server makes up: accepting one shows that it exists.
GIVEN_AND_ACCEPTED: Sql = "accepted AND entity LIKE 'amq.gen%'"


def redeclared(rule: str, kind: str, flags: tuple[str, ...]) -> Detector:
    """A declaration of an entity of this kind that differs from the existing one."""

    def flags_of(place: Sql, table: Sql) -> Sql:
        values = [f"'{flag}', {place}.{flag}" for flag in flags]
        return f"named_struct({', '.join(values)}, 'arguments', {table})"

    now, then = flags_of("declared", "table"), flags_of("was.declared", "was.table")
    return Detector(
        rule,
        "entities",
        when=f"name = '{kind}.declare' AND {DECLARED_BEFORE} AND NOT ({MAY_HAVE_GONE}) AND {now} != {then}",
        evidence={kind: "entity", "observed": now, "expected": then, "declared_in_frame": "was.frame_no"},
    )


DETECTORS = (
    Detector(
        "NM-01",
        "events",
        when=f"sender = 'client' AND exists({NAMES}, n -> octet_length(n) > {LONGEST_NAME})",
        evidence={
            "observed": f"array_max(transform({NAMES}, n -> octet_length(n)))",
            "expected": str(LONGEST_NAME),
            "name": f"get(filter({NAMES}, n -> octet_length(n) > {LONGEST_NAME}), 0)",
            "method": "name",
        },
    ),
    Detector(
        "NM-02",
        "events",
        when=f"sender = 'client' AND concat_ws('', {NAMES}) RLIKE {ODD_OCTETS}",
        evidence={
            "observed": f"get(filter({NAMES}, n -> n RLIKE {ODD_OCTETS}), 0)",
            "expected": "'letters, digits, - _ . :'",
            "method": "name",
        },
    ),
    Detector(
        "NM-03",
        "entities",
        when="name IN ('exchange.declare', 'queue.declare') AND NOT declared.passive AND entity LIKE 'amq.%' AND "
        f"seen = 0 AND NOT given AND NOT (kind = 'exchange' AND entity IN {PREDECLARED}) AND "
        f"NOT ({GIVEN_AND_ACCEPTED})",
        evidence={"observed": "entity", "expected": "'a name that does not begin with amq.'", "method": "name"},
    ),
    Detector(
        "NM-04",
        "events",
        when="name IN ('exchange.declare', 'exchange.delete') AND args.exchange = ''",
        evidence={"observed": "args.exchange", "expected": "'a name'", "method": "name"},
    ),
    redeclared("NM-05", "exchange", ("type", "durable")),
    redeclared("NM-06", "queue", ("durable", "exclusive", "auto_delete")),
    Detector(
        "NM-07",
        "events",
        when=f"{USES_QUEUE} AND args.queue = '' AND NOT {since_open('declare_frame')} AND {SEEN_SINCE_OPEN}",
        evidence={"observed": "args.queue", "expected": "'queue.declare on the channel before'", "method": "name"},
    ),
    Detector(
        "NM-08",
        "events",
        when="name IN ('queue.bind', 'queue.unbind', 'exchange.delete') AND args.exchange = ''",
        evidence={"observed": "args.exchange", "expected": "'the name of an exchange'", "method": "name"},
    ),
    Detector(
        "NM-09",
        "entities",
        when="kind = 'queue' AND ts_ns < broker_loss_ns AND was.deleted = false AND was.declared.exclusive AND "
        "was.connection_id != connection_id AND was.answered_ns <= ts_ns AND was.until_ns > ts_ns AND "
        f"NOT ({MAY_HAVE_GONE})",
        evidence={
            "observed": "name",
            "queue": "entity",
            "declared_by": "named_struct('connection_id', was.connection_id, 'frame_no', was.frame_no)",
        },
    ),
    Detector(
        "NM-10",
        "events",
        when="name = 'exchange.delete' AND args.exchange LIKE 'amq.%'",
        evidence={"observed": "args.exchange"},
    ),
    Detector(
        "NM-11",
        "events",
        when="name = 'channel.close' AND args.reply_code = 404",
        evidence={
            "observed": "args.reply_code",
            "text": "args.reply_text",
            "entity": "nullif(regexp_extract(args.reply_text, '\\'([^\\']*)\\'', 1), '')",
            "class": "args.class_id",
            "method": "args.method_id",
        },
    ),
    Detector(
        "NM-11",
        "connections",
        when="c.server_close.args.reply_code = 404",
        evidence={"observed": "404", "text": "c.server_close.args.reply_text"},
        row="c.server_close",
    ),
    Detector(
        "NM-12",
        "events",
        when=f"name = 'exchange.declare' AND NOT coalesce(args.passive, false) AND args.type NOT IN {TYPES}",
        evidence={"observed": "args.type", "expected": "'direct, fanout, topic, headers'", "exchange": "args.exchange"},
    ),
)
