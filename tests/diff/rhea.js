// A publisher and a consumer with rhea: HOST OPTIONS, those of workloads.py as JSON.
const host = process.argv[2];
const { port, messages: wanted, queue, tls, ciphers, prefetch, server_name } = JSON.parse(process.argv[3]);
const secured = tls && {
  transport: "tls", rejectUnauthorized: false, minVersion: `TLSv${tls}`, maxVersion: `TLSv${tls}`,
  ...(ciphers && { ciphers }), ...(server_name && { servername: server_name }),
};
const rhea = require("rhea");
const opened = (name) =>
  rhea.create_container({ id: name }).connect({
    host, port, username: "guest", password: "guest", reconnect: false, idle_time_out: 60000, ...secured,
  });
const inward = opened("shipping");
const outward = opened("order-service");
inward.open_receiver({ source: `/queue/${queue}`, name: "in", credit_window: prefetch, autoaccept: false });
let seen = 0;
inward.on("message", (context) => {
  context.delivery.accept();
  if (++seen === wanted) setTimeout(() => { inward.close(); outward.close(); }, 50);
});
const sender = outward.open_sender({ target: `/queue/${queue}`, name: "out" });
let sent = 0;
const publish = () => {
  if (sent >= wanted) return;
  if (sender.sendable()) {
    sent += 1;
    sender.send({ body: String(sent).padStart(6, "0").padEnd(200, "x"), durable: true });
  }
  setTimeout(publish, 2);
};
sender.once("sendable", publish);
for (const connection of [inward, outward]) connection.on("disconnected", () => {});
