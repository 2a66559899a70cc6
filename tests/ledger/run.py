"""The ledger of both ends: real brokers, and clients that keep accounts; their traffic is captured, decoded and judged.

    python tests/ledger/run.py [--messages N] [--root FOLDER] [--keep FOLDER] [--node-modules FOLDER]

For each broker that is found (RabbitMQ of this system; with --root the one of another system unpacked there), and each
client library that is installed: publishers and consumers under load, consumers that are killed, connections that the
broker closes, a memory alarm, messages that expire, are dead-lettered, refused by a full queue. Everything stays on the
loopback interface. Exit status 1 if a value is wrong. --keep leaves captures and accounts.
"""

from __future__ import annotations

import argparse
import gzip
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parents[1])]

import clients  # noqa: E402
import judge  # noqa: E402

MODULES = {
    "pika": "pika", "py-amqp": "amqp", "kombu": "kombu", "amqpstorm": "amqpstorm", "aio-pika": "aio_pika",
    "aiormq": "aiormq", "proton": "proton",
}  # fmt: skip
ROLES = ("consume", "publish")
RABBITMQ = "usr/lib/rabbitmq/bin/rabbitmq-server"
START_S, CLIENT_S = 90, 600
PORT = 25672


@dataclass
class Broker:
    """A RabbitMQ that runs; `control`: calls rabbitmqctl; `crash`: kills the broker and starts it again."""

    name: str
    port: int
    address: str
    control: Callable[..., str]
    crash: Callable[[], None]


@contextmanager
def rabbitmq(root: Path, folder: Path, port: int) -> Iterator[Broker]:
    """RabbitMQ of the system below `root`, with its files in `folder` (in the same place below `root`)."""
    inside = Path("/tmp") / f"ledger-{os.getpid()}-{port}"
    base = root / inside.relative_to("/")
    base.mkdir(parents=True)
    (base / "plugins").write_text("[rabbitmq_amqp1_0].\n")
    (base / "rabbitmq.conf").write_text("log.console = false\nlog.file.level = warning\nheartbeat = 5\n")
    node = f"ledger{port}@localhost"
    environment = {
        "PATH": "/usr/lib/rabbitmq/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": str(inside), "LANG": "C.UTF-8",
        "RABBITMQ_NODENAME": node, "RABBITMQ_NODE_PORT": str(port), "RABBITMQ_DIST_PORT": str(port + 1),
        "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1", "RABBITMQ_MNESIA_BASE": f"{inside}/data",
        "RABBITMQ_LOG_BASE": f"{inside}/log", "RABBITMQ_ENABLED_PLUGINS_FILE": f"{inside}/plugins",
        "RABBITMQ_CONFIG_FILE": f"{inside}/rabbitmq.conf", "ERL_EPMD_ADDRESS": "127.0.0.1",
        "RABBITMQ_PID_FILE": f"{inside}/pid",
    }  # fmt: skip
    change = [] if root == Path("/") else ["chroot", str(root)]

    def control(*words: str) -> str:
        done = subprocess.run(
            [*change, "/usr/lib/rabbitmq/bin/rabbitmqctl", "-q", *words],
            env=environment, capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        return done.stdout.strip()

    with (folder / "broker.log").open("w") as log:
        servers: list[subprocess.Popen[bytes]] = []

        def start() -> None:
            words = [*change, f"/{RABBITMQ}"]
            servers.append(subprocess.Popen(words, env=environment, stdout=log, stderr=log, start_new_session=True))
            deadline = time.monotonic() + START_S
            while "true" not in control("eval", "rabbit:is_running()."):
                if servers[-1].poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"RabbitMQ does not start: {(folder / 'broker.log').read_text()[-500:]}")
                time.sleep(1)

        def kill() -> None:
            with suppress(ProcessLookupError):
                os.killpg(servers[-1].pid, signal.SIGKILL)
            servers[-1].wait()

        def crash() -> None:
            kill()
            start()

        try:
            start()
            version = control("version").split()[-1]
            address = "/queues/{}" if int(version.split(".")[0]) >= 4 else "/amq/queue/{}"
            yield Broker(f"RabbitMQ {version}", port, address, control, crash)
        finally:
            control("stop")
            kill()
            shutil.rmtree(base, ignore_errors=True)


@contextmanager
def captured(file: Path, port: int) -> Iterator[None]:
    """The packets of a port on the loopback interface, written to `file`."""
    words = ["dumpcap", "-q", "-i", "lo", "-B", "64", "-f", f"tcp port {port}", "-P", "-w", str(file)]
    capture = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
    assert capture.stderr is not None
    for line in capture.stderr:
        if line.startswith("File:"):
            break
    try:
        yield
    finally:
        time.sleep(1)  # the last packets
        capture.send_signal(signal.SIGINT)
        print(" ".join(capture.stderr.read().split()[-12:]))
        capture.wait()


def declare(port: int, queues: dict[str, dict[str, Any]]) -> None:
    """Queues with their arguments, and an exchange and queue for dead letters."""
    import pika

    connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port))
    channel = connection.channel()
    channel.exchange_declare("ledger.dlx", "fanout", durable=True)
    channel.queue_declare("ledger.dead", durable=True)
    channel.queue_bind("ledger.dead", "ledger.dlx")
    for name, arguments in queues.items():
        channel.queue_declare(name, durable=True, arguments={"x-dead-letter-exchange": "ledger.dlx", **arguments})
    connection.close()


def installed(node_modules: Path | None) -> list[str]:
    """The client libraries that can be used."""
    found = [name for name, module in MODULES.items() if importlib.util.find_spec(module)]
    if node_modules and shutil.which("node"):
        found += [name for name in clients.NODE if (node_modules / name).is_dir()]
    return found


class Crew:
    """Client processes of one broker, each with an account in `folder`."""

    def __init__(self, broker: Broker, folder: Path, node_modules: Path | None, largest: int) -> None:
        self.broker, self.folder, self.node_modules, self.largest = broker, folder, node_modules, largest
        self.turn = 0

    def start(self, library: str, role: str, queue: str, **more: Any) -> subprocess.Popen[bytes]:
        self.turn += 1
        name = f"{library}-{role}-{self.turn}"
        settings = clients.Settings(
            library, role, name, queue, str(self.folder / f"{name}.jsonl"), port=self.broker.port,
            address=self.broker.address, largest=self.largest, **more,
        )  # fmt: skip
        node = library in clients.NODE
        words = ["node", str(HERE / "clients.js")] if node else [sys.executable, str(HERE / "clients.py")]
        environment = {**os.environ, **({"NODE_PATH": str(self.node_modules)} if node else {})}
        with (self.folder / f"{name}.log").open("w") as log:
            return subprocess.Popen([*words, json.dumps(asdict(settings))], env=environment, stdout=log, stderr=log)


def finish(processes: list[subprocess.Popen[bytes]]) -> None:
    deadline = time.monotonic() + CLIENT_S
    for process in processes:
        with suppress(subprocess.TimeoutExpired):
            process.wait(max(1.0, deadline - time.monotonic()))
        process.kill()
        process.wait()


def play(crew: Crew, libraries: list[str], each: int, busy_count: int) -> None:
    """The scenes: each library alone with its queue; then what goes wrong. `each`: messages of a library; `busy_count`:
    those of a publisher that is cut off."""
    broker = crew.broker
    quorum = {"x-queue-type": "quorum"}
    queues: dict[str, dict[str, Any]] = {
        f"ledger.{library}": quorum if turn % 2 and int(broker.name.split()[1][0]) >= 4 else {}
        for turn, library in enumerate(libraries)
    }
    queues |= {
        "ledger.full": {"x-max-length": 5, "x-overflow": "reject-publish"},
        "ledger.expires": {"x-message-ttl": 50},
        "ledger.killed": {}, "ledger.closed": {}, "ledger.alarm": {}, "ledger.auto": {},
        "ledger.crash": {}, "ledger.cut": {},
    }  # fmt: skip
    declare(broker.port, queues)
    for at in range(0, len(libraries), 4):  # four at a time
        part = libraries[at : at + 4]
        finish([crew.start(library, role, f"ledger.{library}", count=each) for library in part for role in ROLES])
    turns = {
        name: libraries[(at * 3) % len(libraries)] for at, name in enumerate(["full", "expires", "killed", "closed"])
    }
    finish(
        [
            crew.start("pika", "publish", "ledger.full", count=20),
            crew.start(turns["expires"], "publish", "ledger.expires", count=20),
        ]
    )
    # Consumers that are killed, and one that gets what they leave.
    finish([crew.start("pika", "publish", "ledger.killed", count=min(each, 300))])
    finish([crew.start(library, "consume", "ledger.killed", crash_after=17) for library in libraries[:5]])
    finish([crew.start("py-amqp", "consume", "ledger.killed")])
    # Deliveries that need no answer.
    finish(
        [
            crew.start(library, "publish", "ledger.auto", count=10, auto=library in clients.V1_0)
            for library in libraries[-2:]
        ]
    )
    finish([crew.start(library, "consume", "ledger.auto", auto=True) for library in libraries[:2]])
    # The broker closes all connections in the middle of the work.
    busy = [crew.start(library, "publish", "ledger.closed", count=busy_count) for library in libraries[:4]]
    threading.Event().wait(1.5)
    broker.control("close_all_connections", "closed by the ledger")
    finish(busy)
    finish([crew.start("amqpstorm", "consume", "ledger.closed")])
    # The network ends all connections in the middle of the work.
    busy = [crew.start(library, role, "ledger.cut", count=busy_count) for library in libraries[1:6] for role in ROLES]
    threading.Event().wait(1.5)
    subprocess.run(["ss", "-K", "dst", "127.0.0.1", "dport", "=", str(broker.port)], capture_output=True)
    finish(busy)
    finish([crew.start("kombu", "consume", "ledger.cut")])
    # The broker is killed in the middle of the work, and starts again.
    busy = [crew.start(library, "publish", "ledger.crash", count=busy_count) for library in libraries[-3:]]
    busy += [crew.start("py-amqp", "consume", "ledger.crash")]
    threading.Event().wait(1.5)
    broker.crash()
    finish(busy)
    finish([crew.start("aio-pika", "consume", "ledger.crash")])
    # A memory alarm: publishes wait, then go on.
    broker.control("set_vm_memory_high_watermark", "0.00001")
    waiting = [crew.start("pika", "publish", "ledger.alarm", count=10)]
    time.sleep(2)
    broker.control("set_vm_memory_high_watermark", "0.6")
    finish(waiting)
    finish([crew.start("pika", "consume", "ledger.alarm"), crew.start("pika", "consume", "ledger.dead")])


def record(folder: Path, target: Path) -> None:
    """A capture with its accounts, small enough to keep: `recorded` of the tests."""
    target.mkdir(parents=True, exist_ok=True)
    name = (folder / "broker.txt").read_text().strip().lower().replace(" ", "-")
    (target / f"{name}.pcap.gz").write_bytes(gzip.compress((folder / "capture.pcap").read_bytes(), 9, mtime=0))
    lines = b"".join(file.read_bytes() for file in sorted(folder.glob("*.jsonl")))
    (target / f"{name}.jsonl.gz").write_bytes(gzip.compress(lines, 9, mtime=0))


def decoded(capture: Path, tables: Path) -> None:
    words = ["decode", str(capture), "--output", str(tables), "--payload", "--overwrite", "-q"]
    subprocess.run(
        [sys.executable, "-c", "import sys; from jobs.cli import main; sys.exit(main())", *words], check=True
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=2000, help="published in all, for each broker")
    parser.add_argument("--busy", type=int, default=3000, help="published by each client that is cut off")
    parser.add_argument("--largest", type=int, default=20_000, help="bytes of the largest body")
    parser.add_argument("--root", type=Path, action="append", default=[], help="a system with another RabbitMQ")
    parser.add_argument("--node-modules", type=Path, help="folder with the libraries of Node.js")
    parser.add_argument("--keep", type=Path, help="folder for captures and accounts")
    parser.add_argument("--record", type=Path, help="folder for small recordings, as the tests have them")
    given = parser.parse_args()
    libraries = installed(given.node_modules)
    roots = [root for root in (Path("/"), *given.root) if (root / RABBITMQ).is_file()]
    if not roots or not shutil.which("dumpcap"):
        print("No RabbitMQ, or no dumpcap, on this machine: nothing was compared", file=sys.stderr)
        return 2
    print(f"Clients: {', '.join(libraries)}")
    wrong = 0
    with ExitStack() as stack:
        keep = given.keep or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        for turn, root in enumerate(roots):
            folder = keep / f"broker-{turn}"
            folder.mkdir(parents=True)
            port = PORT + 100 * turn
            with rabbitmq(root, folder, port) as broker:
                print(f"{broker.name} on port {port}")
                with captured(folder / "capture.pcap", port):
                    crew = Crew(broker, folder, given.node_modules, given.largest)
                    play(crew, libraries, max(1, given.messages // len(libraries)), given.busy)
                (folder / "broker.txt").write_text(f"{broker.name}\n")
            decoded(folder / "capture.pcap", folder / "tables")
            verdict = judge.judge(folder / "tables", folder)
            print(verdict.text())
            wrong += len(verdict.wrong)
            if given.record:
                record(folder, given.record)
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
