"""What detectors read: sets of rows, as SQL of DuckDB over the tables.

`*.sql` here are scripts: macros, relations (tables and views that several statements read), and contexts, views
`context_NAME`, whose rows the detectors of that context read. Above each statement stands what its rows are. Relations
are made once for all rules; what no wanted rule needs is not made.

Tables may be in groups, each with some connections (`udfs.findings`). A rule about several connections reads facts:
relations `fact_NAME`, of a few rows for each connection, which every group makes of its tables. What reads a fact sees
those of all groups, and no table. Facts about what all groups look for read relations that were derived from facts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from functools import cache
from importlib import resources

import duckdb

from udfs.findings.program import FACT, Gate, Relation

SCRIPTS = ("macros", "connections", "channels", "messages", "sequences", "practice", "brokers")
CHANNEL = ("connection_id", "channel", "channel_incarnation")
# Contexts whose rows have fewer than the columns of CHANNEL -> how many they have.
FEWER = {
    "captures": 0,
    **dict.fromkeys(("frames", "control", "files", "upgrades"), 2),
    **dict.fromkeys(
        (
            "connections", "silences", "blocked", "peers", "refusals", "requeued", "habits", "repeats", "requeue_loops",
            "unrouted", "translated", "reply_queues", "old_headers", "tokens", "token_messages",
        ),
        1,
    ),
}  # fmt: skip
PREFIX = "context_"


def _gate(*names: str, product: str | None = None, trait: str | None = None) -> Gate:
    """A method of these names, a server of this product and a message with this trait must occur."""
    return Gate(frozenset(names), *(frozenset({word} if word else ()) for word in (product, trait)))


RABBITMQ = "RabbitMQ"
CONSUMERS = ("basic.consume", "basic.consume-ok", "basic.cancel", "basic.cancel-ok", "basic.deliver")
# What must occur in the tables for a context to have rows: contexts that are not here may always have some.
GATES: Mapping[str, Gate] = {
    "rates": _gate("channel.open", "basic.get"),
    "files": _gate("file.publish", "file.deliver"),
    "tags": _gate(*CONSUMERS),
    "numbers": _gate("basic.deliver", "basic.get-ok"),
    "prefetched": _gate("basic.qos"),
    "blocked": _gate("connection.blocked"),
    "settlements": _gate("basic.ack", "basic.nack", "basic.reject", "file.ack", "file.reject"),
    "repeats": _gate("queue.declare", "exchange.declare", "queue.bind"),
    "timed_out": _gate("channel.close"),
    "lost_consumers": _gate("basic.cancel"),
    "cancelled": _gate("basic.cancel", product=RABBITMQ, trait="redelivered"),
    "refusals": _gate("channel.close", "connection.close", "execution.exception"),
    "upgrades": _gate("queue.declare", "basic.qos", "attach", product=RABBITMQ),
    "stolen_links": _gate("attach"),
    "filtered": _gate("attach"),
    "returned_publishes": _gate("basic.return", trait="mandatory"),
    "unrouted": _gate(trait="returned"),
    "waits": _gate(trait="waiting"),
    "redeliveries": _gate(trait="back"),
    "requeue_loops": _gate(trait="redelivered"),
    "handed_back": _gate(trait="refused"),
    "management_errors": _gate(trait="managing"),
    "requeued": _gate(product=RABBITMQ, trait="requeued"),
    "reply_queues": _gate(product=RABBITMQ, trait="mandatory"),
    "old_headers": _gate(product=RABBITMQ),
    "headless": _gate(product=RABBITMQ),
}
# Relations of whose rows those of a context are some, and columns that are the same in both: no condition needs to look
# for what does not occur in them.
CENSUS: Mapping[str, tuple[str, Collection[str]]] = {
    "frames": ("unusual_frames", ("name", "frame_type", "error", "status", "notes")),
    "events": ("unusual_methods", ("name",)),
    "control": ("control_rows", ("name", "frame_type")),
    "sequences": ("sequence_rows", ("oddity",)),
}


@cache
def scripts() -> tuple[list[str], Mapping[str, Relation]]:
    """The macros, and the relations by name, in the order of the scripts."""
    macros, relations = [], dict[str, Relation]()
    for script in SCRIPTS:
        for statement in duckdb.extract_statements(resources.files(__name__).joinpath(f"{script}.sql").read_text()):
            text = "\n".join(line for line in statement.query.splitlines() if not line.startswith("--"))
            _, kind, name, _, query = text.split(maxsplit=4)
            if kind == "MACRO":
                macros.append(text.strip())
            else:
                relations[name] = Relation(name, query.rstrip().rstrip(";"), is_table=kind == "TABLE")
    return macros, relations


@cache
def reads(name: str) -> frozenset[str]:
    """The relations that a relation reads; not tables."""
    _, relations = scripts()
    return frozenset(words_in(relations[name].query)) & relations.keys() - {name}


def words_in(statement: str) -> Iterator[str]:
    """The words of a statement, without its comments and literals: a name may be a word of SQL (seconds)."""
    tokens = duckdb.tokenize(statement)
    for (at, kind), (end, _) in zip(tokens, [*tokens[1:], (len(statement), None)], strict=True):
        if kind in (duckdb.token_type.identifier, duckdb.token_type.keyword):
            yield statement[at:end].split(maxsplit=1)[0]


@cache
def needed_by(statement: str) -> frozenset[str]:
    """The relations that a query reads."""
    return frozenset(words_in(statement)) & scripts()[1].keys()


@cache
def stage(name: str) -> int:
    """The stage in which a relation is made (`udfs.findings`)."""
    after = max((stage(other) + is_fact(other) for other in reads(name)), default=0)
    return after + 1 if is_fact(name) and after % 2 else after


def is_fact(name: str) -> bool:
    return name.startswith(FACT)


def needed(names: Collection[str]) -> Iterator[Relation]:
    """These relations and those that they read, each after those that it reads."""
    _, relations = scripts()
    ordered: dict[str, None] = {}

    def make(name: str) -> None:
        if name not in ordered:
            for other in sorted(reads(name)):
                make(other)
            ordered[name] = None

    for each in names:
        make(each)
    return (relations[name]._replace(reads=reads(name), stage=stage(name)) for name in ordered)
