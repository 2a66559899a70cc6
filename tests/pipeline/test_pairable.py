"""What pairing uses: addresses and x-death headers as RabbitMQ documents them, and hashes of rows."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_fields import column

from codec.compiler.kernel import interpreted
from codec.hashes import rows as hashing
from udfs.arrow.fields import hashed
from udfs.conversation.addresses import named_by, nodes
from udfs.pairing.pairable import broker_fields

# Address -> kind, exchange and routing key of what is published there, the queue that it is delivered from.
ADDRESSES = {
    # RabbitMQ 4: percent-encoded.
    "/exchanges/orders/eu.new": ("exchange", "orders", "eu.new", None),
    "/exchanges/orders": ("exchange", "orders", "", None),
    "/exchanges/a%2Fb/c%20d%2B+": ("exchange", "a/b", "c d++", None),
    "/exchanges/%C3%A4/%zz": ("exchange", "ä", "%zz", None),
    "/queues/a%2Fb": ("queue", "", "a/b", "a/b"),
    # RabbitMQ 3: as they are.
    "/exchange/orders/eu%2Fnew": ("exchange", "orders", "eu%2Fnew", None),
    "/topic/eu.new": ("exchange", "amq.topic", "eu.new", None),
    "/queue/jobs": ("queue", "", "jobs", "jobs"),
    "/amq/queue/jobs": ("queue", "", "jobs", "jobs"),
    # ActiveMQ, Artemis, Service Bus, Event Hubs, any other broker.
    "queue://jobs": ("queue", "", "jobs", "jobs"),
    "topic://prices": ("exchange", "topic://", "prices", None),
    "prices::prices.eu": ("name", "", "prices", "prices.eu"),
    "prices/Subscriptions/eu": ("name", "", "prices", "prices/Subscriptions/eu"),
    "prices/subscriptions/eu": ("name", "", "prices", "prices/subscriptions/eu"),
    "prices/Subscriptions/eu/$DeadLetterQueue": ("name", "", "prices", "prices/Subscriptions/eu/$DeadLetterQueue"),
    "jobs/$deadletterqueue": ("name", "", "jobs", "jobs/$deadletterqueue"),
    "jobs/$deadletterqueue/x": ("name", "", "jobs/$deadletterqueue/x", "jobs/$deadletterqueue/x"),
    "hub/ConsumerGroups/$Default/Partitions/0": ("name", "", "hub", "hub/ConsumerGroups/$Default/Partitions/0"),
    "hub/Partitions/0": ("name", "", "hub", "hub/Partitions/0"),
    "jobs": ("name", "", "jobs", "jobs"),
    "": ("name", "", "", ""),
    "/queues/two\nlines": ("queue", "", "two\nlines", "two\nlines"),
    "two::\nlines::x": ("name", "", "two::\nlines", "x"),
    None: (None, None, None, None),
}


def test_addresses_are_read_as_documented() -> None:
    found = nodes(pa.array([*ADDRESSES, *ADDRESSES], pa.string()))
    assert list(zip(*(part.to_pylist() for part in found), strict=True)) == [*ADDRESSES.values()] * 2


# Address -> exchange and routing key published to, queue delivered from, in the words of the broker.
NAMED = {
    "/exchanges/orders/eu.new": ("orders", "eu.new", None),
    "/exchanges/orders": ("orders", "", None),
    "/queues/a%2Fb": ("", "a/b", "a/b"),
    "/queue/jobs": ("", "jobs", "jobs"),
    "/topic/eu": ("amq.topic", "eu", None),
    "queue://jobs": (None, None, "jobs"),
    "temp-queue://ID:b-1:2": (None, None, "ID:b-1:2"),
    "topic://prices": (None, "prices", None),
    "prices::prices.eu": (None, None, "prices.eu"),
    "prices/Subscriptions/eu/$DeadLetterQueue": (None, None, "prices/Subscriptions/eu/$DeadLetterQueue"),
    "jobs/$DeadLetterQueue": (None, None, "jobs/$DeadLetterQueue"),
    "jobs": (None, None, None),
    "/management": (None, None, None),
    None: (None, None, None),
}


def test_addresses_name_what_their_broker_has() -> None:
    found = named_by(pa.array([*NAMED], pa.string()))
    assert list(zip(*(part.to_pylist() for part in found), strict=True)) == [*NAMED.values()]
    assert [len(part) for part in named_by(pa.array([], pa.string()))] == [0, 0, 0]
    assert [part.to_pylist() for part in named_by(pa.nulls(2, pa.string()))] == [[None] * 2] * 3


def test_addresses_need_not_be_utf8() -> None:
    data = [b"/exchanges/\xff/%FE", b"\xc3"]
    found = nodes(pa.array(data, pa.binary()).view(pa.string()))
    assert [part.cast(pa.binary()).to_pylist() for part in found[1:3]] == [[rb"\xff", b""], [rb"\xfe", rb"\xc3"]]


@pytest.mark.parametrize(
    "text", [":", "/exchange/a", "/subscriptions", "/$deadletterqueue", "/partitions", "/queues/%", "a"]
)
def test_long_addresses_take_linear_time(text: str) -> None:
    """A quarter of a million bytes with a line end inside; in quadratic time they took minutes."""
    started = time.process_time()
    nodes(pa.array([text * (250_000 // len(text)) + "\nx"]))
    assert time.process_time() - started < 5


def death(queue: str, reason: str, exchange: str | None, *keys: str, count: int | None = None) -> dict[str, Any]:
    """An entry of the header x-death."""
    entry = {"queue": queue, "reason": reason, "exchange": exchange, "routing-keys": list(keys), "count": count}
    return {name: value for name, value in entry.items() if value is not None}


def first(queue: str, reason: str, exchange: str) -> dict[str, str]:
    return {"x-first-death-queue": queue, "x-first-death-reason": reason, "x-first-death-exchange": exchange}


RETRY, WORK = death("retry", "expired", "retries", "r"), death("work", "rejected", "orders", "eu", "us", count=3)
# Headers, 1.0 properties -> exchange and routing key published to, reason, number of dead-letterings.
X_DEATH_CASES: list[tuple[Any, Any, tuple[Any, ...]]] = [
    (None, None, (None, None, None, 0)),
    ({"other": 1}, None, (None, None, None, 0)),
    # The newest is the first in the list; the first dead-lettering is found by its queue and reason.
    ({"x-death": [RETRY, WORK], **first("work", "rejected", "orders")}, None, ("orders", "eu", "rejected", 4)),
    ({"x-death": [WORK, RETRY], **first("work", "rejected", "orders")}, None, ("orders", "eu", "rejected", 4)),
    # Without that: the last in the list.
    ({"x-death": [RETRY, WORK]}, None, ("orders", "eu", None, 4)),
    # Without the list: the default exchange follows from the queue's name, another one does not.
    (first("work", "rejected", ""), None, ("", "work", "rejected", 0)),
    (first("work", "rejected", "orders"), None, (None, "work", "rejected", 0)),
    ({"x-death": [], **first("work", "maxlen", "")}, None, ("", "work", "maxlen", 0)),
    ({"x-death": [death("work", "expired", "orders")]}, None, ("orders", None, None, 1)),
    ({"x-death": "no list"}, None, (None, None, None, 0)),
    ({"x-death": ["no table", 7]}, None, (None, None, None, 2)),
    # AMQP 1.0 since RabbitMQ 4.
    (
        None,
        {"message_annotations": {"x-opt-deaths": [WORK], **first("work", "rejected", "orders")}},
        ("orders", "eu", "rejected", 3),
    ),
    ({"x-death": [RETRY]}, {"message_annotations": {"x-opt-deaths": [WORK]}}, ("retries", "r", None, 1)),
]


def test_x_death_is_read_as_documented() -> None:
    found = broker_fields(
        column([headers for headers, _, _ in X_DEATH_CASES]), column([properties for _, properties, _ in X_DEATH_CASES])
    )
    columns = (found.original_exchange, found.original_routing_key, found.first_death["reason"])
    rows = list(zip(*(each.to_pylist() for each in columns), found.x_death_count.tolist(), strict=True))
    assert rows == [expected for _, _, expected in X_DEATH_CASES]
    dead_lettered = [exchange is not None or key is not None for _, _, (exchange, key, _, _) in X_DEATH_CASES]
    assert found.dead_lettered.to_pylist() == dead_lettered


def test_x_death_may_have_any_number_of_entries() -> None:
    """Sixty thousand that say nothing, beside names that would not fit if each had its own."""
    names = {f"{number:04}" * 60: number for number in range(250)}
    headers = {"x-death": [None] * 60_000 + [WORK], **first("work", "rejected", "orders"), **names}
    found = broker_fields(column([headers, None, headers]), column([None] * 3))
    assert found.x_death_count.tolist() == [60_003, 0, 60_003]
    assert found.original_exchange.to_pylist() == ["orders", None, "orders"]


def test_the_route_of_a_message_of_1_0_is_in_its_annotations() -> None:
    properties = [{"message_annotations": {"x-exchange": "orders", "x-routing-key": "eu"}}, {"subject": "x"}, None]
    found = broker_fields(column([None] * 3), column(properties))
    assert found.exchange.to_pylist() == ["orders", None, None]
    assert found.routing_key.to_pylist() == ["eu", None, None]


TEXTS = st.one_of(st.none(), st.text(max_size=12), st.sampled_from(["", "a", "b", "ab", "\0", "a\0"]))
KINDS = ("string", "string", "int64")
NUMBERS = st.one_of(st.none(), st.integers(-(1 << 63), (1 << 63) - 1), st.sampled_from([0, -1, 1, 1 << 32]))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(TEXTS, TEXTS, NUMBERS), min_size=1, max_size=50))
def test_hashes_are_the_same_where_rows_are(rows: list[tuple[Any, ...]]) -> None:
    """Sixty-four bits: what differs here by chance would be a fault."""
    one, other, number = (pa.array(part, kind) for part, kind in zip(zip(*rows, strict=True), KINDS, strict=True))
    numbers = hashed(one, other, number).tolist()
    of = dict(zip(rows, numbers, strict=True))
    assert numbers == [of[row] for row in rows]
    assert len(set(of.values())) == len(of)
    assert not set(numbers) & set(hashed(one, other, number, seed=1).tolist())


def test_hashes_spread_over_both_halves() -> None:
    numbers = hashed(pa.array(np.arange(1 << 16))).view(np.uint64)
    for half in (numbers >> np.uint64(32), numbers & np.uint64(0xFFFFFFFF)):
        assert len(np.unique(half)) > (1 << 16) - 10
        counts = np.bincount((half % np.uint64(64)).astype(np.int64), minlength=64)
        assert counts.min() > 1024 - 5 * 32  # five standard deviations
        assert counts.max() < 1024 + 5 * 32


@pytest.mark.skipif(interpreted(), reason="nothing is compiled")
@pytest.mark.parametrize("texts", [["", "a", "abcd", "abcde", "ä" * 9, None]])
def test_compiled_and_interpreted_hashes_agree(texts: list[str | None]) -> None:
    array = pa.array(texts, pa.string())
    lanes = hashing.new_lanes(len(texts))
    data, ends = np.frombuffer(array.buffers()[2], np.uint8), np.frombuffer(array.buffers()[1], np.int32)
    present = np.array([text is not None for text in texts], np.uint8)
    texts_interpreted, numbers_interpreted = (
        kernel.py_func  # type: ignore[union-attr]
        for kernel in (hashing.mix_texts, hashing.mix_numbers)
    )
    texts_interpreted(data, ends[: len(texts) + 1].astype(np.int64), present, lanes)
    numbers_interpreted(np.ones(len(texts), np.int64), np.ones(len(texts), np.uint8), lanes)
    assert ((lanes[:, 1] << 32) | lanes[:, 0]).astype(np.int64).tolist() == hashed(array).tolist()
