"""Record message flows whose latency has a known cause: one capture for each, and what clients measured in a manifest.

    chrt --rr 50 python tests/latency/record.py FOLDER [--only GLOB]

Needs what `tests/support/recording.py` needs; with a real-time priority other work on the machine does not disturb the
times. Publisher and consumer are threads with a connection each; they note when
they publish, get a confirm, begin to listen, get a delivery, and settle it (ns since 1970). `test_recorded_parts.py`
computes from these notes what the parts of the latency have to be.
"""

from __future__ import annotations

import argparse
import fnmatch
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pika
from proton import Message
from proton.utils import BlockingConnection

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
from recording import captured, recording, run

HOST = "10.9.0.2"
Notes = dict[str, dict[str, int]]  # by message
SCENARIOS: dict[str, Callable[[Any], None]] = {}


def now() -> int:
    return time.time_ns()


def scenario(function: Callable[[Any], None]) -> Callable[[Any], None]:
    SCENARIOS[function.__name__.replace("_", "-")] = function
    return function


class Classic:
    """0-9-1 by pika."""

    def __init__(self, queue: str) -> None:
        self.queue, self.notes = queue, Notes()
        self.channel = self._channel()
        self.channel.queue_declare(queue, auto_delete=False)

    def _channel(self) -> Any:
        parameters = pika.ConnectionParameters(HOST, 5672, "/", pika.PlainCredentials("guest", "guest"), heartbeat=60)
        return pika.BlockingConnection(parameters).channel()

    def publisher(self) -> Callable[[str, bytes], None]:
        channel = self._channel()
        channel.confirm_delivery()

        def publish(name: str, body: bytes) -> None:
            note = self.notes.setdefault(name, {})
            note["published"] = now()
            channel.basic_publish("", self.queue, body, pika.BasicProperties(message_id=name))
            note["confirmed"] = now()

        return publish

    def consume(self, count: int, window: int, work: Callable[[int], float], acknowledge_each: int = 1) -> None:
        channel = self._channel()
        channel.basic_qos(prefetch_count=window)
        listening, together = now(), list[dict[str, int]]()
        for number, (method, properties, _) in enumerate(channel.consume(self.queue)):
            note = self.notes.setdefault(properties.message_id, {})
            note["listening"], note["delivered"] = listening, now()
            time.sleep(work(number))
            note["worked"] = now()
            together.append(note)
            if (number + 1) % acknowledge_each == 0 or number + 1 == count:
                channel.basic_ack(method.delivery_tag, multiple=acknowledge_each > 1)
                for each in together:
                    each["settled"] = now()
                together.clear()
            if number + 1 == count:
                break
        time.sleep(0.1)
        channel.connection.close()


class Sessions(Classic):
    """1.0 by Qpid Proton."""

    def publisher(self) -> Callable[[str, bytes], None]:
        sender = BlockingConnection(f"amqp://guest:guest@{HOST}:5672").create_sender(f"/amq/queue/{self.queue}")

        def publish(name: str, body: bytes) -> None:
            note = self.notes.setdefault(name, {})
            message = Message(body=body, inferred=True, id=name)
            note["published"] = now()
            sender.send(message)
            note["confirmed"] = now()

        return publish

    def consume(self, count: int, window: int, work: Callable[[int], float], acknowledge_each: int = 1) -> None:
        connection: Any = BlockingConnection(f"amqp://guest:guest@{HOST}:5672")
        receiver = connection.create_receiver(f"/amq/queue/{self.queue}", credit=0)
        together = list[tuple[Any, dict[str, int]]]()
        for number in range(count):
            if number % window == 0:
                listening = now()
                receiver.flow(window)
            connection.wait(lambda: receiver.fetcher.has_message, timeout=60)
            message, delivery = receiver.fetcher.incoming.popleft()
            note = self.notes.setdefault(message.id, {})
            note["listening"], note["delivered"] = listening, now()
            time.sleep(work(number))
            note["worked"] = now()
            together.append((delivery, note))
            if (number + 1) % acknowledge_each == 0 or number + 1 == count:
                for each, _ in together:
                    each.update(each.ACCEPTED)
                    each.settle()
                for _, note in together:
                    note["settled"] = now()
                together.clear()
                connection.wait(lambda: connection.conn.transport.pending() <= 0, timeout=60)
        time.sleep(0.1)
        connection.close()


def together(*actions: Callable[[], None]) -> None:
    threads = [threading.Thread(target=action) for action in actions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def published(client: Classic, count: int, every: float, size: int = 20) -> Callable[[], None]:
    publish = client.publisher()

    def action() -> None:
        for number in range(count):
            publish(f"m{number}", bytes(size))
            time.sleep(every)

    return action


@scenario
def consumer_works(client: Any) -> None:
    """Each message takes the consumer 40 ms; one comes every 60 ms."""
    together(published(client, 25, 0.06), lambda: client.consume(25, 10, lambda _: 0.04))


@scenario
def prefetch_full(client: Any) -> None:
    """One message at a time, each takes 40 ms; one comes every 15 ms."""
    together(published(client, 25, 0.015), lambda: client.consume(25, 1, lambda _: 0.04))


@scenario
def no_consumer(client: Any) -> None:
    """The consumer comes 400 ms after the messages."""
    published(client, 15, 0.01)()
    time.sleep(0.4)
    client.consume(15, 15, lambda _: 0.002)


@scenario
def acknowledged_together(client: Any) -> None:
    """Each message takes 10 ms; one acknowledgement for eight."""
    published(client, 24, 0.001)()
    client.consume(24, 24, lambda _: 0.01, 8)


@scenario
def lost_publish(client: Any) -> None:
    """The network loses some packets of the publisher, which sends again after 200 ms."""
    publish = client.publisher()

    def action() -> None:
        for number in range(12):
            lose = number % 3 == 1
            if lose:
                run(
                    "ip",
                    "netns",
                    "exec",
                    "fb",
                    "iptables",
                    "-A",
                    "INPUT",
                    "-p",
                    "tcp",
                    "-j",
                    "DROP",
                    "-m",
                    "length",
                    "--length",
                    "100:9000",
                )
                threading.Timer(0.05, lambda: run("ip", "netns", "exec", "fb", "iptables", "-F")).start()
            publish(f"m{number}", bytes(100))
            time.sleep(0.06)

    together(action, lambda: client.consume(12, 50, lambda _: 0.0))


@scenario
def slow_wire(client: Any) -> None:
    """Publishes of 50 KB over 4 Mbit/s: 100 ms each, less the 16 KB that may go at once."""
    run("tc", "qdisc", "add", "dev", "vc", "root", "tbf", "rate", "4mbit", "burst", "16kb", "latency", "1s")
    try:
        published(client, 5, 0.1, 50_000)()
    finally:
        run("tc", "qdisc", "del", "dev", "vc", "root")
    client.consume(5, 5, lambda _: 0.0)


PROTOCOLS = {"091": Classic, "10": Sessions}


def main() -> None:
    parser = argparse.ArgumentParser(description="Record flows.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="*", help="names of captures, a glob")
    given = parser.parse_args()
    manifest: dict[str, Any] = {}
    with recording(given.folder, manifest) as (_, save):
        for name, record in SCENARIOS.items():
            for protocol, kind in PROTOCOLS.items():
                capture = f"{protocol}-{name}.pcap"
                if not fnmatch.fnmatch(capture, given.only):
                    continue
                with captured(given.folder / capture):
                    client = kind(f"{protocol}-{name}")
                    record(client)
                manifest[capture] = {"done": record.__doc__, "messages": client.notes}
                save()
                print(capture, len(client.notes), flush=True)


if __name__ == "__main__":
    main()
