// Clients of Node.js that keep accounts; what an account is, and what is decided about a message, says clients.py.
"use strict";
const crypto = require("crypto");
const fs = require("fs");

const settings = Object.assign(
  { port: 5672, count: 100, auto: false, crash_after: 0, stall_after: 0, idle_s: 2, ttl_ms: 0, address: "/amq/queue/{}", largest: 20000, user: "guest", password: "guest" },
  JSON.parse(process.argv[2]),
);
const V1_0 = settings.library === "rhea";
const SIZES = [0, 3, 40, 500, 4000, 20000];
const RETURN_EVERY = 23;
const SETTLEMENTS = ["acked", "acked", "acked", "acked", "acked", "rejected", "requeued", "acked"];
const SETTLEMENTS_1_0 = ["acked", "acked", "acked", "rejected", "released", "modified", "acked", "acked"];
const url = `amqp://${settings.user}:${settings.password}@127.0.0.1:${settings.port}`;
const account = fs.openSync(settings.account, "a");
let events = 0;
const seen = new Set();

function write(event, id = null, more = {}) {
  fs.writeSync(account, JSON.stringify({ client: settings.name, library: settings.library, event, id, ...more }) + "\n");
  events += 1;
  if (settings.crash_after && events >= settings.crash_after) process.kill(process.pid, "SIGKILL");
}

function* outgoing() {
  for (let turn = 0; turn < settings.count; turn++) {
    const marker = `${settings.name}:${String(turn).padStart(7, "0")}`;
    const filler = Buffer.from(Array.from({ length: Math.min(SIZES[turn % SIZES.length], settings.largest) }, (_, at) => (turn * 7 + at) % 251));
    const body = Buffer.concat([Buffer.from(`|${marker}|`), filler]);
    const lost = turn % RETURN_EVERY === RETURN_EVERY - 1 && !V1_0;
    const queue = lost ? "ledger.no-such-queue" : settings.queue;
    yield { marker, body, messageId: turn % 2 ? marker : undefined, queue };
  }
}

function markerOf(body) {
  return body.toString("latin1").split("|")[1];
}

function published(message) {
  const sha256 = crypto.createHash("sha256").update(message.body).digest("hex");
  write("published", message.marker, { size: message.body.length, sha256 });
}

function delivered(body, redelivered) {
  const marker = markerOf(body);
  write("delivered", marker, { size: body.length, redelivered });
  const turn = parseInt(crypto.createHash("sha256").update(marker).digest("hex").slice(0, 8), 16);
  const choices = V1_0 ? SETTLEMENTS_1_0 : SETTLEMENTS;
  const choice = redelivered || seen.has(marker) ? "acked" : choices[turn % choices.length];
  seen.add(marker);
  if (settings.auto || (settings.stall_after && seen.size > settings.stall_after)) return [marker, null];
  // RabbitMQ 3 ends the session of a client that says `modified`.
  return [marker, choice === "modified" && settings.address.startsWith("/amq/") ? "released" : choice];
}

// Calls `end` once nothing has been delivered for a while.
function whenIdle(end) {
  let last = Date.now();
  const timer = setInterval(() => {
    if (Date.now() - last > settings.idle_s * 1000) {
      clearInterval(timer);
      end();
    }
  }, 100);
  return () => (last = Date.now());
}

const amqplib = {
  async publish() {
    const lib = require("amqplib");
    const connection = await lib.connect(url, { clientProperties: { connection_name: settings.name } });
    const channel = await connection.createConfirmChannel();
    const returned = new Set();
    channel.on("return", (message) => returned.add(markerOf(message.content)));
    for (const message of outgoing()) {
      published(message);
      channel.publish("", message.queue, message.body, { messageId: message.messageId, mandatory: true }, (error) =>
        write(error ? "nacked" : returned.has(message.marker) ? "returned" : "confirmed", message.marker),
      );
    }
    await channel.waitForConfirms();
    await connection.close();
  },
  async consume() {
    const lib = require("amqplib");
    const connection = await lib.connect(url, { clientProperties: { connection_name: settings.name } });
    const channel = await connection.createChannel();
    await channel.prefetch(20);
    await new Promise((end) => {
      const moved = whenIdle(end);
      channel.consume(
        settings.queue,
        (message) => {
          moved();
          const [marker, decision] = delivered(message.content, message.fields.redelivered);
          if (decision === null) return;
          if (decision === "acked") channel.ack(message);
          else if (decision === "rejected") channel.nack(message, false, false);
          else channel.reject(message, true);
          write(decision, marker);
        },
        { noAck: settings.auto },
      );
    });
    await connection.close();
  },
};

const rabbitmqClient = {
  async publish() {
    const { Connection } = require("rabbitmq-client");
    const connection = new Connection({ url, connectionName: settings.name });
    const returned = new Set();
    const channel = await connection.acquire();
    await channel.confirmSelect();
    channel.on("basic.return", (message) => returned.add(markerOf(message.body)) && write("returned", markerOf(message.body)));
    const waiting = [];
    for (const message of outgoing()) {
      published(message);
      const sent = channel.basicPublish({ routingKey: message.queue, messageId: message.messageId, mandatory: true }, message.body);
      waiting.push(
        sent.then(
          () => returned.has(message.marker) || write("confirmed", message.marker),
          () => write("nacked", message.marker),
        ),
      );
      if (waiting.length >= 50) await Promise.all(waiting.splice(0));
    }
    await Promise.all(waiting);
    await channel.close();
    await connection.close();
  },
  async consume() {
    const { Connection } = require("rabbitmq-client");
    const connection = new Connection({ url, connectionName: settings.name });
    const channel = await connection.acquire();
    await channel.basicQos({ prefetchCount: 20 });
    await new Promise((end) => {
      const moved = whenIdle(end);
      channel.basicConsume({ queue: settings.queue, noAck: settings.auto }, (message) => {
        moved();
        const body = Buffer.isBuffer(message.body) ? message.body : Buffer.from(String(message.body));
        const [marker, decision] = delivered(body, message.redelivered);
        if (decision === null) return;
        if (decision === "acked") channel.basicAck({ deliveryTag: message.deliveryTag });
        else channel.basicNack({ deliveryTag: message.deliveryTag, requeue: decision === "requeued" });
        write(decision, marker);
      });
    });
    await channel.close();
    await connection.close();
  },
};

const rhea = {
  connect(container) {
    return container.connect({
      host: "127.0.0.1", port: settings.port, username: settings.user, password: settings.password,
      container_id: settings.name, reconnect: false,
    });
  },
  publish() {
    const container = require("rhea").create_container();
    const messages = outgoing();
    const waiting = new Map();
    let done = false;
    return new Promise((resolve) => {
      const finish = (context) => done && !waiting.size && context.connection.close();
      container.on("sendable", (context) => {
        while (context.sender.sendable() && !done) {
          const { value, done: end } = messages.next();
          if (end) {
            done = true;
            break;
          }
          published(value);
          const body = container.message.data_section(value.body);
          const ttl = settings.ttl_ms || undefined;
          const delivery = context.sender.send({ body, message_id: value.messageId, durable: true, ttl });
          if (!settings.auto) waiting.set(delivery.id, value.marker);
        }
        finish(context);
      });
      for (const [event, name] of Object.entries({ accepted: "confirmed", rejected: "rejected", released: "released", modified: "modified" }))
        container.on(event, (context) => {
          write(name, waiting.get(context.delivery.id));
          waiting.delete(context.delivery.id);
          finish(context);
        });
      container.on("connection_close", resolve);
      container.on("disconnected", cutOff(resolve));
      const options = settings.auto ? { snd_settle_mode: 1 } : {};
      this.connect(container).open_sender({ target: settings.address.replace("{}", settings.queue), ...options });
    });
  },
  consume() {
    const container = require("rhea").create_container();
    return new Promise((resolve) => {
      const connection = this.connect(container);
      let closing = false;
      const moved = whenIdle(() => { closing = true; connection.close(); });
      let turn = Promise.resolve();
      container.on("session_error", (context) => { closing = true; write("error", null, { text: String(context.session.error) }); });
      container.on("message", (context) => {
        if (closing) return; // rhea would send no outcome any more
        moved();
        const { message, delivery } = context;
        const body = Buffer.from(message.body.content || message.body);
        const again = message.first_acquirer === false || message.delivery_count > 0;
        const [marker, decision] = delivered(body, again);
        if (decision === null) return;
        // One at a time: rhea joins outcomes of neighbours in one disposition, also of another kind.
        turn = turn.then(() => new Promise((flushed) => setTimeout(flushed, 2))).then(() => {
          if (closing) return;
          if (decision === "acked") delivery.accept();
          else if (decision === "rejected") delivery.reject();
          else if (decision === "released") delivery.release();
          else delivery.modified({ delivery_failed: true });
          write(decision, marker);
        });
      });
      container.on("connection_close", resolve);
      container.on("disconnected", cutOff(resolve));
      const options = settings.auto ? { snd_settle_mode: 1 } : {};
      connection.open_receiver({ source: settings.address.replace("{}", settings.queue), credit_window: 20, autoaccept: false, ...options });
    });
  },
};

// The other side ended the connection without a close.
function cutOff(resolve) {
  return () => { write("error", null, { text: "disconnected" }); resolve(); };
}

const client = { amqplib, "rabbitmq-client": rabbitmqClient, rhea }[settings.library];
client[settings.role]().then(
  () => { write("closed"); process.exit(0); },
  (error) => { write("error", null, { code: Number.isInteger(error.code) ? error.code : null, text: String(error) }); write("closed"); process.exit(0); },
);
