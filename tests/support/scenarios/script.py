"""A script: what happens at one broker, as data, every event with its time. How it looks on the wire is not known here.

`broker.Broker` makes scripts that a broker could have played, `truth` says which rows they must give, `capture` writes
them as packets.
"""

from __future__ import annotations

from dataclasses import dataclass, field

VERSIONS = ("0-8", "0-9", "0-9-1", "0-10", "1.0")
CLASSIC_VERSIONS = ("0-8", "0-9", "0-9-1")
DEFAULT_VHOST = "/"
ANSWER_NS = 500  # a question comes so much before what it asks for, an answer so much after what it is about


@dataclass(frozen=True)
class Message:
    """What a publisher sends. Equal messages may be published several times."""

    body: bytes
    exchange: str = ""
    routing_key: str = ""
    message_id: str | None = None
    correlation_id: str | None = None
    reply_to: str | None = None
    mandatory: bool = False


@dataclass(frozen=True)
class Queue:
    """`bindings`: (exchange, routing key), key None: a fanout exchange. `dead_letter`: exchange and routing key (None:
    that of the message) that it sends dead messages to."""

    name: str
    bindings: tuple[tuple[str, str | None], ...] = ()
    dead_letter: tuple[str, str | None] | None = None
    delivery_limit: int | None = None


@dataclass(frozen=True)
class Consumer:
    tag: str
    queue: str
    no_ack: bool = False


@dataclass(frozen=True)
class Channel:
    """A channel or session. `mode`: 'none' 'confirm' 'tx'; in 0-10 the latter may be a branch of a distributed one.
    `prefetch`: deliveries that each of its consumers may have open, 0: no limit."""

    number: int
    mode: str = "none"
    consumers: tuple[Consumer, ...] = ()
    prefetch: int = 0


@dataclass(frozen=True)
class Peer:
    """A connection of a client; one that is not `captured` leaves no packets."""

    version: str
    vhost: str = DEFAULT_VHOST
    channels: tuple[Channel, ...] = (Channel(1),)
    captured: bool = True

    @property
    def classic(self) -> bool:
        return self.version in CLASSIC_VERSIONS

    def waits(self, number: int, outcome: str | None = None) -> bool:
        """Whether a publish on a channel, or a settlement with `outcome`, takes effect with a commit only. In 0-10 a
        transaction holds publishes and accepts, nothing else."""
        deferred = outcome in (None, "acked") or self.version != "0-10"
        return deferred and self.channel(number).mode == "tx"

    def channel(self, number: int) -> Channel:
        return next(channel for channel in self.channels if channel.number == number)


@dataclass(frozen=True)
class Death:
    """An entry of the header x-death."""

    reason: str
    queue: str
    exchange: str
    routing_key: str
    time_s: int
    count: int = 1


@dataclass(frozen=True)
class Event:
    """Something that one side sends on a channel, begun at `at` and complete at `end` (both ns).

    kinds of contents: 'publish' 'deliver' 'get' 'return', with `message`, `parts` (packets it takes), exchange and key
    as on the wire; all but a publish name the publish they are `of` (index of its event). `copy` numbers the copies
    that entered queues: a redelivery is of the same copy. `tag`: number of the content on its channel and side, from 1.
    other kinds: 'confirm' (by the broker) and 'settle' (by the client) of events `about`, all open ones up to the last
    of them where `multiple`; `outcome` 'confirmed' 'nacked' | 'acked' 'rejected' 'requeued'. 'get-empty' of a queue.
    'commit' 'rollback' of a transaction. 'close' of a connection.
    """

    kind: str
    at: int
    end: int
    peer: int
    channel: int
    message: Message | None = None
    parts: int = 1
    exchange: str = ""
    routing_key: str = ""
    of: int | None = None
    copy: int | None = None
    queue: str | None = None
    consumer: str | None = None
    no_ack: bool = False
    tag: int = 0
    redelivered: bool = False
    deliveries: int = 0
    remaining: int = 0
    x_death: tuple[Death, ...] = ()
    about: tuple[int, ...] = ()
    multiple: bool = False
    outcome: str = ""


@dataclass(frozen=True)
class Script:
    """Everything at one broker. Events are named by their index; they begin in this order."""

    number: int
    start: int
    peers: tuple[Peer, ...]
    queues: tuple[Queue, ...]
    events: tuple[Event, ...] = field(default=(), repr=False)

    @property
    def address(self) -> tuple[int, int, int, int]:
        """IPv4 address of the broker, of this script only."""
        return 10, 1, self.number // 250, 1 + self.number % 250

    @property
    def server(self) -> str:
        return ".".join(map(str, self.address)) + f":{PORT}"

    def publishes(self) -> list[int]:
        return [index for index, event in enumerate(self.events) if event.kind == "publish"]

    def deliveries(self) -> list[int]:
        return [index for index, event in enumerate(self.events) if event.kind in ("deliver", "get")]


PORT = 5672
FIRST_CLIENT_PORT = 40000
