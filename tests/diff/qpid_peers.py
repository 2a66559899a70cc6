"""A broker and two applications that speak 0-10, each with qpid-python 1.36, which needs Python 2.7.

    python2.7 qpid_peers.py broker HOST PORT SETTINGS
    python2.7 qpid_peers.py applications HOST PORT OPTIONS

The broker is Qpid's own server side of connections and sessions, with queues in memory. SETTINGS: what connection.tune
offers, as JSON. OPTIONS: those of `workloads.py`, as JSON.
"""

# mypy: ignore-errors
# ruff: noqa: RUF005, SIM105, UP031

import collections
import json
import os
import sys
import threading
import time

from qpid import connection, messaging, util
from qpid.connection import Channel
from qpid.datatypes import Message
from qpid.delegates import Server
from qpid.ops import ExchangeQueryResult, QueueQueryResult
from qpid.session import INCOMPLETE, Delegate

UNLIMITED = 0xFFFFFFFF
NOT_FOUND, PRECONDITION_FAILED = 404, 542


class Broker:
    def __init__(self, settings):
        self.settings = settings
        self.lock = threading.RLock()
        self.queues = {}  # name -> messages
        self.durable = {}
        self.bindings = collections.defaultdict(list)  # (exchange, key) -> queues
        self.subscriptions = []

    def connection(self, connection):
        return BrokerConnection(connection, self)

    def route(self, exchange, key, message):
        with self.lock:
            for name in [key] if not exchange else self.bindings[exchange, key]:
                if name in self.queues:
                    self.queues[name].append((message, False))
            self.deliver()

    def deliver(self):
        """Send what subscribers have credit for."""
        with self.lock:
            self.subscriptions = [each for each in self.subscriptions if each.session.session.channel is not None]
            for each in self.subscriptions:
                while each.credit and self.queues.get(each.queue):
                    message, redelivered = self.queues[each.queue].popleft()
                    if each.credit != UNLIMITED:
                        each.credit -= 1
                    each.send(message, redelivered)


class BrokerConnection(Server):
    def __init__(self, connection, broker):
        Server.__init__(self, connection, delegate=lambda session: BrokerSession(session, broker))
        self.broker = broker

    def start(self):
        self.connection.read_header()
        self.connection.write_header(0, 10)
        properties = {"product": "qpid-python", "version": "1.36"}
        Channel(self.connection, 0).connection_start(
            server_properties=properties, mechanisms=self.broker.settings["mechanisms"], locales=["en_US"]
        )

    def connection_start_ok(self, ch, start_ok):
        ch.connection_tune(**self.broker.settings["tune"])


class Subscription:
    def __init__(self, session, queue, destination, accept_mode):
        self.session, self.queue, self.destination, self.accept_mode = session, queue, destination, accept_mode
        self.credit = 0

    def send(self, message, redelivered):
        headers, body = message
        sent = Message(*(list(headers) + [body]))
        properties = sent.get("delivery_properties")
        if properties is not None:
            properties.redelivered = redelivered
        session = self.session.session
        number = session.sender.next_id
        session.message_transfer(self.destination, self.accept_mode, 0, sent)
        if not self.accept_mode:
            self.session.unsettled[number] = self.queue, message


class BrokerSession(Delegate):
    def __init__(self, session, broker):
        Delegate.__init__(self, session)
        session.auto_sync = False
        self.broker, self.unsettled, self.transaction = broker, {}, None

    def refuse(self, cmd, code, text):
        channel = self.session.channel
        self.session.execution_exception(error_code=code, command_id=cmd.id, description=text)
        channel.session_detached(self.session.name)
        self.session.received = lambda cmd: None  # what was sent before the client knows
        return INCOMPLETE

    def execution_sync(self, cmd):
        pass

    def queue_query(self, cmd):
        if cmd.queue not in self.broker.queues:
            return QueueQueryResult()
        return QueueQueryResult(queue=cmd.queue, durable=self.broker.durable[cmd.queue])

    def exchange_query(self, cmd):
        found = cmd.name in [exchange for exchange, _ in self.broker.bindings]
        return ExchangeQueryResult(type="direct" if found else None, not_found=not found)

    def exchange_declare(self, cmd):
        self.broker.bindings[cmd.exchange, ""]

    def exchange_bind(self, cmd):
        if cmd.exchange not in [exchange for exchange, _ in self.broker.bindings]:
            return self.refuse(cmd, NOT_FOUND, "not-found: Exchange not found: %s" % cmd.exchange)
        self.broker.bindings[cmd.exchange, cmd.binding_key].append(cmd.queue)
        return None

    def queue_declare(self, cmd):
        known = self.broker.queues
        if cmd.passive and cmd.queue not in known:
            return self.refuse(cmd, NOT_FOUND, "not-found: Queue not found: %s" % cmd.queue)
        if cmd.queue in known and bool(cmd.durable) != self.broker.durable[cmd.queue]:
            return self.refuse(cmd, PRECONDITION_FAILED, "precondition-failed: Queue is declared otherwise")
        known.setdefault(cmd.queue, collections.deque())
        self.broker.durable.setdefault(cmd.queue, bool(cmd.durable))
        return None

    def queue_delete(self, cmd):
        self.broker.queues.pop(cmd.queue, None)

    def tx_select(self, cmd):
        self.transaction = []

    def tx_commit(self, cmd):
        done, self.transaction = self.transaction, []
        for each in done:
            self.broker.route(*each)

    def tx_rollback(self, cmd):
        self.transaction = []

    def message_transfer(self, cmd):
        keys = [each.routing_key for each in cmd.headers or () if each.NAME == "delivery_properties"]
        routed = cmd.destination, keys[0] if keys else "", (cmd.headers or [], cmd.payload)
        if self.transaction is None:
            self.broker.route(*routed)
        else:
            self.transaction.append(routed)

    def message_subscribe(self, cmd):
        with self.broker.lock:
            self.broker.subscriptions.append(Subscription(self, cmd.queue, cmd.destination, int(cmd.accept_mode)))

    def message_cancel(self, cmd):
        with self.broker.lock:
            self.broker.subscriptions[:] = [each for each in self.broker.subscriptions if each.session is not self]

    def message_set_flow_mode(self, cmd):
        pass

    def _of(self, cmd):
        mine = [each for each in self.broker.subscriptions if each.session is self]
        return [each for each in mine if each.destination == cmd.destination]

    def message_flow(self, cmd):
        if int(cmd.unit) == 0:
            with self.broker.lock:
                for each in self._of(cmd):
                    each.credit = UNLIMITED if cmd.value == UNLIMITED else each.credit + cmd.value
        self.broker.deliver()

    def message_stop(self, cmd):
        with self.broker.lock:
            for each in self._of(cmd):
                each.credit = 0

    message_flush = message_stop

    def _settled(self, cmd):
        return [self.unsettled.pop(number) for number in sorted(self.unsettled) if number in cmd.transfers]

    def message_accept(self, cmd):
        self._settled(cmd)

    message_reject = message_accept

    def message_release(self, cmd):
        with self.broker.lock:
            for queue, message in reversed(self._settled(cmd)):
                self.broker.queues[queue].appendleft((message, True))
            self.broker.deliver()


def serve(host, port, settings):
    broker = Broker(settings)
    for sock in util.listen(host, port):
        threading.Thread(target=_start, args=(connection.Connection(sock, delegate=broker.connection),)).start()


def _start(accepted):
    try:
        accepted.start(20)
    except Exception as error:
        sys.stderr.write("%r\n" % error)


def run(host, port, options):
    """A consumer and a publisher, with a connection each."""

    def opened(name):
        properties = {"qpid.client_process": name}
        if options["product"]:
            properties["product"] = options["product"]
        return messaging.Connection.establish(
            "%s:%s" % (host, port), timeout=20, username=options["user"], password=options["password"],
            sasl_mechanisms=options["mechanism"] or "PLAIN", heartbeat=options["heartbeat"],
            client_properties=properties, tcp_nodelay=True, transport="ssl" if options["tls"] else "tcp",
            ssl_skip_hostname_check=True,
        )  # fmt: skip

    inward, outward = opened("shipping"), opened("order-service")
    address = "%s; %s" % (options["queue"], json.dumps({
        "mode": "browse" if options["browse"] else "consume",
        "create": "always",
        "node": {"durable": options["durable"], "x-declare": {"arguments": options["queue_arguments"]}},
        "link": {
            "reliability": "unreliable" if options["no_ack"] else "at-least-once",
            "x-subscribe": {"exclusive": options["exclusive"], "arguments": options["consume_arguments"]},
        },
    }))  # fmt: skip
    session = inward.session()
    receiver = session.receiver(address, capacity=options["prefetch"])
    if options["refused"] == "bind":
        try:
            inward.session().receiver("%s; {link: {x-bindings: [{exchange: nowhere, key: x}]}}" % options["queue"])
        except messaging.MessagingError:
            pass

    def new_sender():
        return outward.session(transactional=options["confirm"] == "tx").sender(
            "%s; {create: always, node: {durable: %s}}" % (options["queue"], options["durable"])
        )

    sender = new_sender()
    seen, again = [], set()

    def consume(timeout):
        until = time.time() + timeout
        while options["prefetch"] and not receiver.available():
            if time.time() > until:
                return
            time.sleep(0.0005)
        try:
            message = receiver.fetch(timeout)
        except messaging.Empty:
            return
        time.sleep(options["work"])
        if options["requeue"] and (len(seen) + 1) % options["requeue"] == 0 and message.content not in again:
            again.add(message.content)
            session.acknowledge(message, messaging.Disposition(messaging.RELEASED), sync=False)
            return
        seen.append(message.content)
        if options["reject"] and len(seen) % options["reject"] == 0:
            session.acknowledge(message, messaging.Disposition(messaging.REJECTED), sync=False)
        elif len(seen) % options["ack_every"] == 0 or len(seen) == options["messages"]:
            session.acknowledge(sync=False)  # all that are not yet acknowledged

    for number in range(options["messages"]):
        message = messaging.Message(
            (b"%06d" % number).ljust(options["body"], b"x"), durable=options["delivery_mode"] == 2,
            **options["properties"]
        )  # fmt: skip
        if options["session"] == "each" and number:
            sender.session.close()
            sender = new_sender()
        sender.send(message, sync=options["confirm"] == "confirm")
        if options["confirm"] == "tx":
            sender.session.commit()
        until = time.time() + max(options["pause"], 0.02)
        while time.time() < until:
            consume(until - time.time())
    sender.session.sync()
    until = time.time() + 3 + options["messages"] * options["work"]
    while len(seen) < options["messages"] and time.time() < until:
        consume(0.05)
    if options["abrupt"]:
        os._exit(0)
    inward.close()
    outward.close()


if __name__ == "__main__":
    role, host, port, given = sys.argv[1:]
    {"broker": serve, "applications": run}[role](host, int(port), json.loads(given))
