"""Cases of the rules: TCP connections written by hand, with times, losses and ends under the case's control.

    connection = Connection().handshake().open(1)
    connection.client("basic.publish", routing_key="q").content(b"x")      # methods of the version, by name
    connection.wait(3).server_bytes(b"...").lose("client", 20).close().fin("client")

Connections are of 0-9-1 where no version is named, inside `speaking("0-8")` of that one.

Every step returns the Connection and happens a millisecond after the one before. What `handshake` and `open` send
breaks no rule but the AMBIENT ones.
"""

from __future__ import annotations

import ipaddress
import itertools
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import classic_frames as classic
import pcap_files
from pcap_files import RAW_IP

from codec.compiler.limits import LIMITS

FIN, SYN, RST, ACK = 1, 2, 4, 16
START_NS = 1_700_000_000 * 10**9
STEP_NS, SECOND_NS = 10**6, 10**9
MSS = 60000
FIRST_PORT = 10001
SIDES = ("client", "server")
TICKETS = ("0-8", "0-9")
# Thresholds for the cases of these rules: with those of the catalogue they would be 40 % of all frames.
SCALED = {"DL-12": {"limit": 50}, "PR-01": {"least": 30}}
# Broken by every honest connection: server properties (which HS-07 asks for) tell the product; old versions are old.
AMBIENT = {"SEC-03", "SEC-07"}
ABLE = {
    "publisher_confirms": True, "exchange_exchange_bindings": True, "basic.nack": True, "consumer_cancel_notify": True,
    "connection.blocked": True,
}  # fmt: skip
SERVER_PROPERTIES = {"host": "h", "product": "Test", "version": "1", "platform": "P", "capabilities": ABLE}
CLIENT_PROPERTIES = {"product": "Test", "version": "1", "platform": "P", "capabilities": ABLE}


_spoken = ["0-9-1"]


def spoken() -> str:
    """The version of connections for which none is named."""
    return _spoken[-1]


@contextmanager
def speaking(version: str) -> Iterator[None]:
    """Connections for which no version is named are of this one."""
    _spoken.append(version)
    try:
        yield
    finally:
        _spoken.pop()


@dataclass
class Packet:
    ns: int
    sender: str
    seq: int
    ack: int
    flags: int
    data: bytes
    wire_len: int
    window: int


class Connection:
    """One TCP connection. `client`, `server`: addresses as numbers within the case's network of 127.0.0.0/8, or texts.

    `at`: seconds after the start of the capture; `syn` False: the capture begins in the middle of the connection.
    `numbers`: the sequence numbers at which client and server begin.
    """

    def __init__(
        self, version: str | None = None, client: int | str = 2, server: int | str = 1, server_port: int = 5672,
        at: float = 0, syn: bool = True, numbers: tuple[int, int] = (1000, 2000),
    ) -> None:  # fmt: skip
        self.version, self.server_port = version or spoken(), server_port
        self.addresses = {"client": client, "server": server}
        self.lacks: list[str] = []  # what was to be sent and is not in the version
        self.now = START_NS + int(at * SECOND_NS)
        self.packets: list[Packet] = []
        self.seq = dict(zip(SIDES, numbers, strict=True))
        self.last = "client"
        self.channels: list[int] = []
        if syn:
            self.packet("client", flags=SYN).packet("server", flags=SYN | ACK).packet("client")

    # ---- TCP ----
    def packet(
        self, sender: str, data: bytes = b"", flags: int = ACK, wire_len: int | None = None, window: int = 65535
    ) -> Connection:
        """One segment; `wire_len`: its length where the capture cut it."""
        other = SIDES[1 - SIDES.index(sender)]
        size = len(data) if wire_len is None else wire_len
        ack = self.seq[other] if flags & ACK else 0
        self.packets.append(Packet(self.now, sender, self.seq[sender], ack, flags, data, size, window))
        self.seq[sender] += size + (1 if flags & (SYN | FIN) else 0)
        self.now += STEP_NS
        return self

    def data(self, sender: str, data: bytes) -> Connection:
        """These bytes, in as many segments as they take."""
        self.last = sender
        for at in range(0, len(data), MSS):
            self.packet(sender, data[at : at + MSS])
        return self

    def client_bytes(self, data: bytes) -> Connection:
        return self.data("client", data)

    def server_bytes(self, data: bytes) -> Connection:
        return self.data("server", data)

    def wait(self, seconds: float) -> Connection:
        """Nothing is sent for so long."""
        self.now += int(seconds * SECOND_NS)
        return self

    def cut(self, sender: str, beginning: bytes, size: int) -> Connection:
        """The capture has only `size` bytes of the first packet of `sender` in which `beginning` occurs."""
        packet = next(packet for packet in self.packets if packet.sender == sender and beginning in packet.data)
        packet.data = packet.data[:size]
        return self

    def lose(self, sender: str, size: int) -> Connection:
        """`size` bytes that the capture lacks; the other side acknowledges them, so that they count as lost."""
        self.seq[sender] += size
        other = SIDES[1 - SIDES.index(sender)]
        return self.packet(other).wait(LIMITS.reorder_ns / SECOND_NS).packet(other)

    def fin(self, sender: str = "client") -> Connection:
        """Both sides end the TCP connection, `sender` first."""
        other = SIDES[1 - SIDES.index(sender)]
        return self.packet(sender, flags=FIN | ACK).packet(other, flags=FIN | ACK).packet(sender)

    def rst(self, sender: str = "client") -> Connection:
        return self.packet(sender, flags=RST | ACK)

    # ---- classic AMQP ----
    def send(self, sender: str, name: str, channel: int = 1, **arguments: Any) -> Connection:
        """A method frame; with an access ticket where the version has such (0-8, 0-9), unless another is given."""
        try:
            if self.version in TICKETS and classic.has_field(self.version, name, "ticket"):
                arguments = {"ticket": 1, **arguments}
            data = classic.method(self.version, name, channel, **arguments)
        except (KeyError, AssertionError) as error:
            if self.version == "0-9-1":
                raise
            self.lacks.append(str(error))
            return self
        return self.data(sender, data)

    def client(self, name: str, channel: int = 1, **arguments: Any) -> Connection:
        return self.send("client", name, channel, **arguments)

    def server(self, name: str, channel: int = 1, **arguments: Any) -> Connection:
        return self.send("server", name, channel, **arguments)

    def asks(self, name: str, channel: int = 1, reply: Mapping[str, Any] | None = None, **arguments: Any) -> Connection:
        """The client's request `name` and the server's '-ok' with arguments `reply`."""
        return self.client(name, channel, **arguments).server(f"{name}-ok", channel, **(reply or {}))

    def content(self, body: bytes = b"x", channel: int = 1, class_name: str = "basic", **properties: Any) -> Connection:
        """Header and body frames by the side that sent last."""
        data = classic.header(self.version, class_name, len(body), channel, **properties)
        return self.data(self.last, data + (classic.body(body, channel) if body else b""))

    def publish(
        self, body: bytes = b"x", channel: int = 1, exchange: str = "e", routing_key: str = "q", **more: Any
    ) -> Connection:
        """basic.publish with its content; `more`: arguments, or properties."""
        own = {name: more.pop(name) for name in ("mandatory", "immediate", "ticket") if name in more}
        self.client("basic.publish", channel, exchange=exchange, routing_key=routing_key, **own)
        return self.content(body, channel, **more)

    def deliver(
        self, delivery_tag: int, body: bytes = b"x", channel: int = 1, consumer_tag: str = "c",
        redelivered: bool = False, **properties: Any,
    ) -> Connection:  # fmt: skip
        """basic.deliver with its content."""
        self.server(
            "basic.deliver", channel, consumer_tag=consumer_tag, delivery_tag=delivery_tag, redelivered=redelivered,
            exchange="e", routing_key="q",
        )  # fmt: skip
        return self.content(body, channel, **properties)

    def consume(
        self, queue: str = "q", tag: str = "c", channel: int = 1, prefetch: int = 10, **arguments: Any
    ) -> Connection:
        """basic.qos, then basic.consume, each answered."""
        self.asks("basic.qos", channel, prefetch_count=prefetch)
        return self.asks("basic.consume", channel, {"consumer_tag": tag}, queue=queue, consumer_tag=tag, **arguments)

    def heartbeat(self, sender: str = "client") -> Connection:
        return self.data(sender, classic.heartbeat())

    def header(self, version: str | None = None, sender: str = "client") -> Connection:
        """A protocol header of the classic family."""
        return self.data(sender, classic.protocol_header(version or self.version))

    def start(self, **given: Any) -> Connection:
        major, minor = (8, 0) if self.version == "0-8" else (0, 9)
        defaults = {
            "version_major": major, "version_minor": minor, "server_properties": SERVER_PROPERTIES,
            "mechanisms": "EXTERNAL", "locales": "en_US",
        }  # fmt: skip
        return self.server("connection.start", 0, **{**defaults, **given})

    def start_ok(self, **given: Any) -> Connection:
        defaults = {"client_properties": CLIENT_PROPERTIES, "mechanism": "EXTERNAL", "response": "", "locale": "en_US"}
        return self.client("connection.start-ok", 0, **{**defaults, **given})

    def tune(self, **given: Any) -> Connection:
        return self.server("connection.tune", 0, **{"channel_max": 2047, "frame_max": 131072, "heartbeat": 60, **given})

    def tune_ok(self, **given: Any) -> Connection:
        defaults = {"channel_max": 2047, "frame_max": 131072, "heartbeat": 60, **given}
        return self.client("connection.tune-ok", 0, **defaults)

    def connection_open(self, **given: Any) -> Connection:
        return self.client("connection.open", 0, **{"virtual_host": "/test", **given}).server("connection.open-ok", 0)

    def handshake(self, **given: Mapping[str, Any]) -> Connection:
        """From the protocol header to open-ok; `given`: other arguments by step: tune={"heartbeat": 0}."""
        self.header()
        for name in ("start", "start_ok", "tune", "tune_ok", "connection_open"):
            getattr(self, name)(**given.get(name, {}))
        return self

    def open(self, channel: int = 1) -> Connection:
        self.channels.append(channel)
        return self.asks("channel.open", channel)

    def close(self, sender: str = "client", code: int = 200, text: str = "bye", channels: bool = True) -> Connection:
        """connection.close, its answer, and the end of the TCP connection; before that, `channels` that were opened."""
        other = SIDES[1 - SIDES.index(sender)]
        for channel in self.channels if channels else ():
            self.client("channel.close", channel, reply_code=200, reply_text="bye").server("channel.close-ok", channel)
        self.send(sender, "connection.close", 0, reply_code=code, reply_text=text)
        return self.send(other, "connection.close-ok", 0).fin(sender)


Connections = Connection | Iterable[Connection]


NOBODY = "nobody"  # the offender of a finding that blames neither side


@dataclass(frozen=True)
class Case:
    """`breaks` fires `rule`, and `also` the rules that the same case breaks besides; `conforms` fires nothing.

    `evidence`: what the finding shows, as far as it is named here. `offender`: who is blamed, where it is named;
    `severity`, `occurrences` and `frame_no` of the finding, where they are named.
    `besides`: what both halves break, which is beside the point.
    """

    rule: str
    version: str
    breaks: Connections
    conforms: Connections
    also: Iterable[str] = ()
    evidence: Mapping[str, Any] = field(default_factory=dict)
    offender: str | None = None
    besides: Iterable[str] = ()
    severity: str | None = None
    occurrences: int | None = None
    frame_no: int | None = None

    @property
    def lacks(self) -> list[str]:
        """What was to be sent and is not in the version."""
        return [
            missing
            for connections in self.halves.values()
            for connection in connections
            for missing in connection.lacks
        ]

    @property
    def halves(self) -> dict[str, list[Connection]]:
        return {
            "breaks": [self.breaks] if isinstance(self.breaks, Connection) else list(self.breaks),
            "conforms": [self.conforms] if isinstance(self.conforms, Connection) else list(self.conforms),
        }


@dataclass(frozen=True)
class CaptureCase:
    """`breaks`: a capture that fires `rule` without a connection; `conforms`: one that does not. Bytes of files."""

    rule: str
    breaks: bytes
    conforms: bytes
    evidence: Mapping[str, Any]
    occurrences: int = 1

    @property
    def halves(self) -> dict[str, bytes]:
        return {"breaks": self.breaks, "conforms": self.conforms}


def pcap(link: int, packets: Iterable[bytes]) -> bytes:
    """A capture of these packets, a second apart, as the bytes of a file."""
    times = itertools.count(START_NS, SECOND_NS)
    return pcap_files.pcap(zip(times, packets, strict=False), link, snaplen=1 << 24)


Key = tuple[int, str]  # number of the case, half


def write_cases(path: Path, cases: Iterable[Case]) -> dict[int, Key]:
    """One pcap with all connections of all cases; client port -> case and half. Every half has a network of its own."""
    records, owner, port, network = [], {}, FIRST_PORT, 0
    for number, case in enumerate(cases):
        for half, connections in case.halves.items():
            network += 1
            for connection in connections:
                owner[port] = (number, half)
                records += [(packet.ns, *ip_packet(connection, packet, network, port)) for packet in connection.packets]
                port += 1
    path.write_bytes(pcap_files.pcap(sorted(records, key=lambda record: record[0]), RAW_IP))
    return owner


def address(host: int | str, network: int) -> bytes:
    if isinstance(host, str):
        return ipaddress.IPv4Address(host).packed
    return bytes([127, network >> 8, network & 255, host])


def ip_packet(connection: Connection, packet: Packet, network: int, port: int) -> tuple[bytes, int]:
    """An IPv4 packet as captured, and its length on the wire."""
    ports = {"client": port, "server": connection.server_port}
    ends = [(address(connection.addresses[side], network), ports[side]) for side in SIDES]
    source, target = ends if packet.sender == "client" else ends[::-1]
    numbers = (packet.seq & 0xFFFFFFFF, packet.ack & 0xFFFFFFFF)
    data = pcap_files.tcp_packet(source, target, *numbers, packet.flags, packet.data, packet.window, packet.wire_len)
    return data, 40 + packet.wire_len
