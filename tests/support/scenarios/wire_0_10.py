"""How a script looks in 0-10, by the tests' own encoder: sessions, subscriptions, transfers, completions and accepts.

A publish is confirmed when the server completes its command, in a transaction with the command that ends that;
deliveries are accepted, rejected or released by their command ids. Every other channel with transactions has branches
of distributed ones, and every other rollback of these is a commit that the server cannot do. A prefetch is a window: it
moves on as the client completes what it has settled. Queues are declared and bound by the client, as qpid's clients do.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from typing import Any

from encode_0_10 import content, header, one_frame, segment

from scenarios.script import Event, Script
from scenarios.wire_classic import CLIENT, SERVER, Sent, Step

PROTOCOL_HEADER = b"AMQP\x01\x01\x00\x0a"
NO_ACCEPT = 1
SETTLES = {"acked": "message.accept", "rejected": "message.reject", "requeued": "message.release"}
Ids = list[tuple[int, int]]
NO_LIMIT = 2**32 - 1
XA_OK, XA_RBROLLBACK = 0, 1  # dtx.xa-status


def by_branch(script: Script, number: int) -> bool:
    """Whether transactions of a session are branches (dtx), not local (tx)."""
    return (script.number + number) % 2 == 1


class WireV0_10:
    """One peer. Channel n carries session n; both sides number their commands from 0."""

    def __init__(self, script: Script, number: int) -> None:
        self.script, self.peer = script, script.peers[number]
        self.commands = {channel.number: 0 for channel in self.peer.channels}  # of the client
        self.id_of: dict[int, int] = {}  # event -> command id
        self.returned = {event.of for event in script.events if event.kind == "return"}
        self.published: dict[int, list[int]] = {channel.number: [] for channel in self.peer.channels}  # not completed
        self.accepted: dict[int, list[int]] = {channel.number: [] for channel in self.peer.channels}  # in a transaction
        self.completed: dict[int, list[int]] = {channel.number: [] for channel in self.peer.channels}  # by the client
        self.branches = {channel.number: 0 for channel in self.peer.channels}
        self.answer: list[Step] = []

    def opening(self) -> list[Step]:
        text: dict[str, Any] = {"qpid.client_process": ("str16", "scene")}
        steps: list[Step] = [(CLIENT, PROTOCOL_HEADER), (SERVER, PROTOCOL_HEADER)]
        start = {
            "server-properties": {"product": ("str16", "qpid-cpp")},
            "mechanisms": ("str16", ["PLAIN", "ANONYMOUS"]),
            "locales": ("str16", ["en_US"]),
        }
        ok = {"client-properties": text, "mechanism": "ANONYMOUS", "response": b"", "locale": "en_US"}
        tune = {"channel-max": 32767, "max-frame-size": 65535, "heartbeat-min": 0, "heartbeat-max": 120}
        tuned = {"channel-max": 32767, "max-frame-size": 65535, "heartbeat": 0}
        for side, name, fields in (
            (SERVER, "connection.start", start),
            (CLIENT, "connection.start-ok", ok),
            (SERVER, "connection.tune", tune),
            (CLIENT, "connection.tune-ok", tuned),
            (CLIENT, "connection.open", {"virtual-host": self.peer.vhost}),
            (SERVER, "connection.open-ok", {}),
        ):
            steps.append((side, one_frame(name, fields, 0)))
        for channel in self.peer.channels:
            steps += self.session(channel.number)
        return steps

    def session(self, number: int) -> list[Step]:
        def say(side: str, name: str, /, **fields: Any) -> Step:
            return side, one_frame(name, {key.replace("_", "-"): value for key, value in fields.items()}, number)

        name = self.name(number)
        steps = [
            say(CLIENT, "session.attach", name=name),
            say(SERVER, "session.attached", name=name),
            say(CLIENT, "session.command-point", command_id=0, command_offset=0),
            say(SERVER, "session.command-point", command_id=0, command_offset=0),
        ]
        commands, prefetch = [], self.peer.channel(number).prefetch
        for consumer in self.peer.channel(number).consumers:
            queue = next(queue for queue in self.script.queues if queue.name == consumer.queue)
            accept = NO_ACCEPT if consumer.no_ack else 0
            commands.append(say(CLIENT, "queue.declare", queue=queue.name, durable=True))
            for exchange, key in queue.bindings:
                bound = {"queue": queue.name, "exchange": exchange, "binding_key": key or ""}
                commands.append(say(CLIENT, "exchange.bind", **bound))
            tag = consumer.tag
            commands += [
                say(CLIENT, "message.subscribe", queue=queue.name, destination=tag, accept_mode=accept, acquire_mode=0),
                say(CLIENT, "message.set-flow-mode", destination=tag, flow_mode=1 if prefetch else 0),
                say(CLIENT, "message.flow", destination=tag, unit=0, value=prefetch or NO_LIMIT),
                say(CLIENT, "message.flow", destination=tag, unit=1, value=NO_LIMIT),
            ]
        if self.peer.channel(number).mode == "tx":
            commands += (
                [say(CLIENT, "dtx.select"), self.begins(number)]
                if by_branch(self.script, number)
                else [say(CLIENT, "tx.select")]
            )
        if commands:
            self.commands[number] = len(commands)
            steps += [*commands, say(SERVER, "session.completed", commands=[(0, len(commands) - 1)])]
        return steps

    def name(self, number: int) -> bytes:
        return f"session {number}".encode()

    def closing(self) -> list[Step]:
        close = {"reply-code": 200, "reply-text": "bye"}
        ends = b"".join(
            one_frame("session.detach", {"name": self.name(on.number)}, on.number) for on in self.peer.channels
        )
        return [
            (CLIENT, ends + one_frame("connection.close", close, 0)),
            (SERVER, one_frame("connection.close-ok", {}, 0)),
        ]

    def asks(self, event: Event) -> list[Step]:
        return []

    def answers(self, event: Event) -> list[Step]:
        """What follows the end of a transaction."""
        return self.answer if event.kind in ("commit", "rollback") else []

    # ---- transactions -----------------------------------------------------------------------------------------------

    def branch(self, number: int) -> dict[str, Any]:
        return {"format": 1, "global-id": f"g{self.branches[number]}".encode(), "branch-id": f"b{number}".encode()}

    def begins(self, number: int) -> Step:
        self.branches[number] += 1
        return CLIENT, one_frame("dtx.start", {"xid": self.branch(number)}, number)

    def ends(self, event: Event) -> bytes:
        """A transaction is over; `answer` is what follows then."""
        number, first = event.channel, self.commands[event.channel]
        done = [self.id_of[index] for index in self.published[number] if index not in self.returned]
        self.published[number] = []
        if not by_branch(self.script, number):
            self.commands[number] += 1
            completed = {"commands": ranges([*done, first])}
            self.answer = [(SERVER, one_frame("session.completed", completed, number))]
            return one_frame(f"tx.{event.kind}", {}, number)
        xid, fails = self.branch(number), event.kind == "rollback" and self.branches[number] % 2 == 0
        name = "dtx.rollback" if event.kind == "rollback" and not fails else "dtx.commit"
        fields = {"xid": xid} if name == "dtx.rollback" else {"xid": xid, "one-phase": True}
        wire_bytes = one_frame("dtx.end", {"xid": xid}, number) + one_frame(name, fields, number)
        result = {"status": XA_RBROLLBACK if fails else XA_OK}
        self.answer = [
            (
                SERVER,
                one_frame("execution.result", {"command-id": first + 1, "value": ("dtx.xa-result", result)}, number),
            ),
            (SERVER, one_frame("session.completed", {"commands": ranges([*done, first, first + 1])}, number)),
            self.begins(number),
        ]
        self.commands[number] += 3
        return wire_bytes

    def says(self, index: int) -> Sent:
        event = self.script.events[index]
        if event.message is not None and event.kind != "return":
            self.id_of[index] = self.command_of(event)
            if event.kind == "publish" and self.peer.waits(event.channel):
                self.published[event.channel].append(index)
            return (CLIENT if event.kind == "publish" else SERVER), transfer(event)
        if event.kind in ("commit", "rollback"):
            accepted, self.accepted[event.channel] = self.accepted[event.channel], []
            done = self.completes(event.channel, accepted) if event.kind == "commit" else b""
            return CLIENT, [self.ends(event) + done]
        if event.kind == "settle":
            self.commands[event.channel] += 1
            ids = [self.id_of[index] for index in event.about]
            fields: dict[str, Any] = {"transfers": ranges(ids)}
            if event.outcome == "rejected":
                fields["code"] = 0
            if event.outcome == "requeued":
                fields["set-redelivered"] = True
            wire_bytes = one_frame(SETTLES[event.outcome], fields, event.channel)
            if not self.peer.waits(event.channel, event.outcome):
                return CLIENT, [wire_bytes + self.completes(event.channel, ids)]
            self.accepted[event.channel] += ids
            return CLIENT, [wire_bytes]
        if event.kind == "return":
            assert event.of is not None
            at = self.id_of[event.of]
            fields = {"transfers": [(at, at)], "code": 1, "text": "no route"}
            return SERVER, [one_frame("message.reject", fields, event.channel)]
        assert event.kind == "confirm"
        ids = [self.id_of[index] for index in event.about]
        return SERVER, [one_frame("session.completed", {"commands": ranges(ids)}, event.channel)]

    def completes(self, number: int, ids: Iterable[int]) -> bytes:
        """session.completed with all commands so far, and these."""
        self.completed[number] += ids
        return one_frame("session.completed", {"commands": ranges(self.completed[number])}, number)

    def command_of(self, event: Event) -> int:
        """The server sends no other commands than transfers."""
        if event.kind != "publish":
            return event.tag - 1
        self.commands[event.channel] += 1
        return self.commands[event.channel] - 1


def transfer(event: Event) -> list[bytes]:
    message, number = event.message, event.channel
    assert message is not None
    published = event.kind == "publish"
    fields: dict[str, Any] = {
        "destination": event.exchange if published else event.consumer,
        "accept-mode": NO_ACCEPT if event.no_ack else 0,
        "acquire-mode": 0,
    }
    delivery: dict[str, Any] = {"routing-key": event.routing_key, "delivery-mode": 2}
    if published:
        delivery["discard-unroutable"] = not message.mandatory
    else:
        delivery |= {"exchange": event.exchange, "redelivered": event.redelivered}
    about: dict[str, Any] = {"content-length": len(message.body)}
    if message.message_id is not None:
        about["message-id"] = uuid.UUID(message.message_id)
    if message.correlation_id is not None:
        about["correlation-id"] = message.correlation_id.encode()
    if message.reply_to is not None:
        about["reply-to"] = {"exchange": "", "routing-key": message.reply_to}
    head = header(("message.delivery-properties", delivery), ("message.message-properties", about))
    return content(segment("message.transfer", fields), head, message.body, number)


def ranges(ids: list[int]) -> Ids:
    """Numbers as sets of (first, last)."""
    found: Ids = []
    for number in sorted(ids):
        if found and number == found[-1][1] + 1:
            found[-1] = (found[-1][0], number)
        else:
            found.append((number, number))
    return found
