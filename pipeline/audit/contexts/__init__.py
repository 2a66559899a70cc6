"""What detectors read: sets of rows, as SQL of DuckDB over the tables.

`*.sql` here are scripts: macros, relations (tables and views that several statements read), and contexts, views
`context_NAME`, whose rows the detectors of that context read. Above each statement stands what its rows are. Relations
are made once for all rules; what no wanted rule needs is not made.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from functools import cache
from importlib import resources

import duckdb

from udfs.findings import SOURCES, Relation

SCRIPTS = ("macros", "connections", "channels", "messages", "sequences", "practice", "brokers")
CHANNEL = ("connection_id", "channel", "channel_life")
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


@cache
def scripts() -> tuple[list[Relation], Mapping[str, Relation]]:
    """The macros, and the other relations by name, in the order of the scripts."""
    macros, relations = [], {name: Relation(name, "") for name in SOURCES}
    for script in SCRIPTS:
        for statement in duckdb.extract_statements(resources.files(__name__).joinpath(f"{script}.sql").read_text()):
            relation = Relation(made_by(statement.query), statement.query.strip().rstrip(";"))
            if script == SCRIPTS[0]:
                macros.append(relation)
            else:
                relations[relation.name] = relation
    return macros, relations


def made_by(statement: str) -> str:
    """The name of the table, view or macro that a CREATE statement makes."""
    code = " ".join(line for line in statement.splitlines() if not line.startswith("--"))
    words = code.split()
    kind = next(word for word in words if word in ("TABLE", "VIEW", "MACRO"))
    return words[words.index(kind) + 1].partition("(")[0]


@cache
def reads(name: str) -> frozenset[str]:
    """The relations that a relation reads; not tables."""
    _, relations = scripts()
    if name in SOURCES:
        return frozenset({"known_connections"})
    return frozenset(words_in(relations[name].statement)) & relations.keys() - {name}


def words_in(statement: str) -> Iterator[str]:
    """The words of a statement, without its comments and literals: a name may be a word of SQL (seconds)."""
    tokens = duckdb.tokenize(statement)
    for (at, kind), (end, _) in zip(tokens, [*tokens[1:], (len(statement), None)], strict=True):
        if kind in (duckdb.token_type.identifier, duckdb.token_type.keyword):
            yield statement[at:end].split(maxsplit=1)[0]


def needed(contexts: Collection[str]) -> Iterator[Relation]:
    """The relations that these contexts need, and the contexts, each after those that it reads."""
    _, relations = scripts()
    made: dict[str, None] = {}

    def make(name: str) -> None:
        if name not in made:
            for other in sorted(reads(name)):
                make(other)
            made[name] = None

    for context in contexts:
        make(f"{PREFIX}{context}")
    return (relations[name] for name in made)
