"""Scripts by Hypothesis: a scene of peers and queues, and steps that the model of the broker plays."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from scenarios.broker import Broker
from scenarios.script import VERSIONS, Channel, Consumer, Peer, Queue, Script
from scenarios.steps import DEAD_EXCHANGE, EXCHANGE, FANOUT, WEIGHED

FIRST_START = 1_700_000_000 * 10**9
VHOSTS = ("/", "other")

QUEUES = (
    Queue("a", ((EXCHANGE, "k"), (FANOUT, None)), dead_letter=(DEAD_EXCHANGE, None)),
    Queue("b", ((EXCHANGE, "k"), (EXCHANGE, "other"), (FANOUT, None))),
    Queue("graveyard", ((DEAD_EXCHANGE, "a"), (DEAD_EXCHANGE, "k"), (DEAD_EXCHANGE, ""))),
    Queue("polled", ((FANOUT, None),)),
    Queue("replies"),
)

NUMBERS = st.integers(0, 5)
STEP = st.tuples(st.sampled_from(WEIGHED), NUMBERS, NUMBERS, NUMBERS, st.booleans())


@st.composite
def peers(draw: Any, versions: tuple[str, ...] = VERSIONS) -> tuple[Peer, ...]:
    """Publishers, consumers, and one that does both; each queue is consumed in one family only, as its name may look
    different in another."""
    version = st.sampled_from(versions)
    vhost = st.sampled_from(VHOSTS) if draw(st.booleans()) else st.just("/")
    found = []
    for _ in range(draw(st.integers(1, 3))):
        spoken = draw(version)
        channels = tuple(Channel(n + 1, draw(modes(spoken))) for n in range(draw(st.integers(1, 2))))
        found.append(Peer(spoken, draw(vhost), channels, captured=draw(st.integers(0, 4)) > 0))
    for index in sorted({peer.vhost for peer in found}):
        for queue in ("a", "b", "graveyard"):
            spoken = draw(version)
            if queue == "graveyard" and spoken == "0-10":
                continue
            for n in range(draw(st.integers(1, 2))):
                consumer = Consumer(f"{queue}-{n}", queue, no_ack=draw(st.integers(0, 4)) == 0)
                mode = "tx" if draw(st.integers(0, 4)) == 0 else "none"
                prefetch = 0 if consumer.no_ack else draw(st.sampled_from((0, 0, 1, 2)))
                found.append(Peer(spoken, index, (Channel(1, mode, (consumer,), prefetch),)))
        spoken = draw(st.sampled_from([v for v in versions if v.startswith(("0-8", "0-9"))] or ["0-9-1"]))
        found.append(Peer(spoken, index, (Channel(1, "none", (Consumer("r", "replies", True),)), Channel(2))))
    return tuple(found)


def modes(version: str) -> Any:
    """Modes that a publisher's channel may have; only 0-9-1 may have none of the extensions or all;
    what is published in 0-10 and 1.0 is always answered."""
    if version in ("0-10", "1.0"):
        return st.sampled_from(("confirm", "confirm", "tx"))
    return st.sampled_from(("none", "confirm", "tx") if version == "0-9-1" else ("none", "tx"))


@st.composite
def scripts(draw: Any, versions: tuple[str, ...] = VERSIONS, size: int = 40) -> Script:
    """Scripts of up to `size` steps, of broker 0."""
    limited = replace(QUEUES[0], delivery_limit=draw(st.sampled_from((0, 2))))
    broker = Broker(0, FIRST_START, draw(peers(versions)), (limited, *QUEUES[1:]))
    ids = draw(st.sampled_from(("all", "none", "some")))
    for step, a, b, c, flag in draw(st.lists(STEP, min_size=size // 2, max_size=size)):
        step(broker, ids, a, b, c, flag)
    if draw(st.booleans()):
        for peer in range(len(broker.peers)):
            broker.close(peer)
    return broker.script()
