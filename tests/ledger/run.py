"""The ledger of both ends: real brokers, and clients that keep accounts; their traffic is captured, decoded and judged.

    python tests/ledger/run.py [--messages N] [--root FOLDER] [--activemq JARS] [--keep FOLDER] [--node-modules FOLDER]

For each broker that is found (RabbitMQ of this system, or with --root of other ones unpacked there; with --activemq
ActiveMQ Classic, whose jars are there), and each client library that is installed: publishers and consumers
under load, in transactions, consumers that are killed or too slow, connections that the broker or the network ends, a
broker that is killed, a memory alarm, messages that expire, are dead-lettered, refused by a full queue. Everything
stays on the loopback interface. Exit status 1 if a value is wrong. --keep leaves captures and accounts.
"""

from __future__ import annotations

import argparse
import gzip
import importlib.util
import json
import os
import re
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
from functools import partial
from pathlib import Path
from typing import IO, Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parents[1])]

import clients  # noqa: E402
import judge  # noqa: E402

MODULES = {
    "pika": "pika", "py-amqp": "amqp", "kombu": "kombu", "amqpstorm": "amqpstorm", "aio-pika": "aio_pika",
    "aiormq": "aiormq", "py-amqplib": "amqplib", "proton": "proton",
}  # fmt: skip
ROLES = ("consume", "publish")
QUEUES = ("late", "killed", "closed", "alarm", "auto", "crash", "cut", "slow")
ACTIVEMQ_RUNS = re.compile(r"Apache ActiveMQ ([0-9.]+) \(.*\) started")
RABBITMQ = "usr/lib/rabbitmq/bin/rabbitmq-server"
PATIENCE_S, TICK_MS = 20, 5000  # of RabbitMQ with a consumer that does not answer, and when it looks
CONFIGURATION = f"""log.console = false
log.file.level = warning
heartbeat = 5
consumer_timeout = {1000 * PATIENCE_S}
"""
START_S, CONTROL_S = 180, 300  # at most


@dataclass
class Broker:
    """A broker that runs; `address`: of a queue in 1.0; `crash`: kills it and starts it again; `control`: calls
    rabbitmqctl, None: it is no RabbitMQ, and speaks only 1.0."""

    name: str
    port: int
    address: str
    crash: Callable[[], None]
    control: Callable[..., str] | None = None

    @property
    def has_quorum_queues(self) -> bool:
        return self.name >= "RabbitMQ 4"


class Server:
    """A process with its children, which is started, killed and started again; `ready` waits for it to serve."""

    def __init__(
        self, words: list[str], log: IO[str], ready: Callable[[subprocess.Popen[bytes]], None],
        environment: dict[str, str] | None = None,
    ) -> None:  # fmt: skip
        self._words, self._log, self._ready, self._environment = words, log, ready, environment
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._process = subprocess.Popen(
            self._words, env=self._environment, stdout=self._log, stderr=self._log, start_new_session=True
        )
        self._ready(self._process)

    def kill(self) -> None:
        if self._process:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def crash(self) -> None:
        self.kill()
        self.start()


@contextmanager
def rabbitmq(root: Path, folder: Path, port: int) -> Iterator[Broker]:
    """RabbitMQ of the system below `root`, with its files in `folder` (in the same place below `root`)."""
    inside = Path("/tmp") / f"ledger-{os.getpid()}-{port}"
    base = root / inside.relative_to("/")
    base.mkdir(parents=True)
    (base / "plugins").write_text("[rabbitmq_amqp1_0].\n")
    (base / "rabbitmq.conf").write_text(CONFIGURATION)
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
            env=environment, capture_output=True, text=True, timeout=CONTROL_S,
        )  # fmt: skip
        return done.stdout.strip()

    with (folder / "broker.log").open("w") as log:

        def ready(process: subprocess.Popen[bytes]) -> None:
            wait_until(lambda: "true" in control("eval", "rabbit:is_running()."), process, folder / "broker.log")
            control("eval", f"application:set_env(rabbit, channel_tick_interval, {TICK_MS}).")

        server = Server([*change, f"/{RABBITMQ}"], log, ready, environment)
        try:
            server.start()
            version = control("version").split()[-1]
            address = "/queues/{}" if int(version.split(".")[0]) >= 4 else "/amq/queue/{}"
            yield Broker(f"RabbitMQ {version}", port, address, server.crash, control)
        finally:
            with suppress(subprocess.TimeoutExpired):
                control("stop")
            server.kill()
            shutil.rmtree(base, ignore_errors=True)


@contextmanager
def activemq(jars: Path, folder: Path, port: int) -> Iterator[Broker]:
    """ActiveMQ Classic of these jars, with its files in `folder`."""
    data = folder / "data"
    where = f"broker:(amqp+nio://127.0.0.1:{port})?brokerName=ledger&useJmx=false&dataDirectory={data}"
    words = ["java", "-Xmx1g", "-cp", f"{jars}/*", "org.apache.activemq.console.command.ShellCommand", "start", where]

    file = folder / "broker.log"
    starts: list[str] = []  # the versions that say that they have started

    def ready(process: subprocess.Popen[bytes]) -> None:
        wait_until(lambda: len(ACTIVEMQ_RUNS.findall(file.read_text())) > len(starts), process, file)
        starts.extend(ACTIVEMQ_RUNS.findall(file.read_text())[-1:])

    with file.open("w") as log:
        server = Server(words, log, ready)
        try:
            server.start()
            yield Broker(f"ActiveMQ {starts[0]}", port, "queue://{}", server.crash)
        finally:
            server.kill()
            shutil.rmtree(data, ignore_errors=True)


def wait_until(runs: Callable[[], bool], process: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until a broker runs; RuntimeError if it does not."""
    deadline = time.monotonic() + START_S
    while not runs():
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"The broker does not start: {log.read_text()[-500:]}")
        time.sleep(1)


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


def declare(broker: Broker, libraries: list[str]) -> None:
    """The queues of all scenes, and an exchange and queue for dead letters."""
    import pika

    queues: dict[str, dict[str, Any]] = {name: {} for name in (*libraries, *QUEUES, *clients.STYLES)}
    queues |= {"full": {"x-max-length": 5, "x-overflow": "reject-publish"}, "expires": {"x-message-ttl": 50}}
    if broker.has_quorum_queues:
        queues |= {name: {"x-queue-type": "quorum"} for name in (*libraries[1::2], "slow")}
    connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.port))
    channel = connection.channel()
    channel.exchange_declare("ledger.dlx", "fanout", durable=True)
    channel.queue_declare("ledger.dead", durable=True)
    channel.queue_bind("ledger.dead", "ledger.dlx")
    for name, arguments in queues.items():
        dead = {"x-dead-letter-exchange": "ledger.dlx"}
        channel.queue_declare(f"ledger.{name}", durable=True, arguments={**dead, **arguments})
    connection.close()


def installed(node_modules: Path | None) -> list[str]:
    """The client libraries that can be used."""
    sys.path.append(clients.SYSTEM_MODULES)
    found = [name for name, module in MODULES.items() if importlib.util.find_spec(module)]
    sys.path.remove(clients.SYSTEM_MODULES)
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


def finish(processes: list[subprocess.Popen[bytes]], most_s: float = 600) -> None:
    """Wait for clients, `most_s` seconds together; then they are killed."""
    deadline = time.monotonic() + most_s
    for process in processes:
        with suppress(subprocess.TimeoutExpired):
            process.wait(max(1.0, deadline - time.monotonic()))
        process.kill()
        process.wait()


def play(crew: Crew, libraries: list[str], messages: int, busy_count: int) -> None:
    """The scenes. `messages`: those of all libraries; `busy_count`: those of a publisher that is cut off."""
    if crew.broker.control is None:
        libraries = [library for library in libraries if library in clients.V1_0]
    else:
        declare(crew.broker, libraries)
    each = max(1, messages // len(libraries))
    play_usual(crew, libraries, each)
    play_cut_off(crew, libraries, min(each, 300), busy_count)
    if crew.broker.control is not None:
        play_rabbitmq(crew, crew.broker.control, libraries, min(each, 300), busy_count)


def play_usual(crew: Crew, libraries: list[str], each: int) -> None:
    """Each library with its queue, four at a time; messages that expire."""
    for at in range(0, len(libraries), 4):
        part = libraries[at : at + 4]
        most_s = 600 + each / 10
        finish(
            [
                crew.start(name, role, f"ledger.{name}", count=each, idle_s=PATIENCE_S / 2)
                for name in part
                for role in ROLES
            ],
            most_s,
        )
    late = [name for name in libraries if name in ("pika", *clients.V1_0)]
    finish([crew.start(name, "publish", "ledger.late", count=20, ttl_ms=50) for name in late])
    time.sleep(1)
    finish([crew.start(libraries[0], "consume", "ledger.late")])
    if crew.broker.control is None:
        finish([crew.start(libraries[0], "consume", "ActiveMQ.DLQ")])


def play_cut_off(crew: Crew, libraries: list[str], count: int, busy_count: int) -> None:
    """Consumers that are killed, with one that gets what they leave; then the network ends all connections in the
    middle of the work; then the broker is killed, and starts again."""
    first, last = libraries[0], libraries[-1]
    finish([crew.start(first, "publish", "ledger.killed", count=count)])
    finish([crew.start(library, "consume", "ledger.killed", crash_after=17) for library in libraries[:5]])
    finish([crew.start(last, "consume", "ledger.killed")])
    busy = [crew.start(name, role, "ledger.cut", count=busy_count) for name in libraries[-6:] for role in ROLES]
    threading.Event().wait(1.5)
    subprocess.run(["ss", "-K", "dst", "127.0.0.1", "dport", "=", str(crew.broker.port)], capture_output=True)
    finish(busy)
    finish([crew.start(first, "consume", "ledger.cut")])
    busy = [crew.start(library, "publish", "ledger.crash", count=busy_count) for library in libraries[-3:]]
    busy += [crew.start(first, "consume", "ledger.crash")]
    threading.Event().wait(1.5)
    crew.broker.crash()
    finish(busy)
    finish([crew.start(last, "consume", "ledger.crash")])


def play_rabbitmq(crew: Crew, control: Callable[..., str], libraries: list[str], count: int, busy_count: int) -> None:
    """What RabbitMQ has besides: queues that are full, transactions, several settlements at once, no settlements,
    connections that the operator closes, consumers that are too slow, an alarm."""
    finish([crew.start("pika", "publish", "ledger.full", count=20)])
    finish([crew.start(libraries[3 % len(libraries)], "publish", "ledger.expires", count=20)])
    for style in clients.STYLES:
        publisher = "transactions" if style == "transactions" else ""
        finish([crew.start("pika", "publish", f"ledger.{style}", count=count, style=publisher)])
        finish([crew.start("pika", "consume", f"ledger.{style}", style=style)])
    of_1_0 = {name: name in clients.V1_0 for name in libraries}
    finish([crew.start(name, "publish", "ledger.auto", count=10, auto=of_1_0[name]) for name in libraries[-2:]])
    finish([crew.start(library, "consume", "ledger.auto", auto=True) for library in libraries[:2]])
    busy = [crew.start(library, "publish", "ledger.closed", count=busy_count) for library in libraries[:4]]
    threading.Event().wait(1.5)
    control("close_all_connections", "closed by the ledger")
    finish(busy)
    finish([crew.start("amqpstorm", "consume", "ledger.closed")])
    finish([crew.start("pika", "publish", "ledger.slow", count=count)])
    most_s = 3 * PATIENCE_S
    slow = [crew.start(name, "consume", "ledger.slow", stall_after=5, idle_s=most_s) for name in libraries]
    finish(slow, most_s)
    finish([crew.start("py-amqp", "consume", "ledger.slow")])
    control("set_vm_memory_high_watermark", "0.00001")
    waiting = [crew.start("pika", "publish", "ledger.alarm", count=10)]
    time.sleep(2)
    control("set_vm_memory_high_watermark", "0.6")
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
    parser.add_argument("--root", type=Path, action="append", help="a system with a RabbitMQ (default: this one)")
    parser.add_argument("--activemq", type=Path, metavar="JARS", help="a folder with ActiveMQ and its AMQP module")
    parser.add_argument("--port", type=int, default=25672, help="of the first broker; the others have 100 more each")
    parser.add_argument("--node-modules", type=Path, help="folder with the libraries of Node.js")
    parser.add_argument("--keep", type=Path, help="folder for captures and accounts")
    parser.add_argument("--record", type=Path, help="folder for small recordings, as the tests have them")
    given = parser.parse_args()
    libraries = installed(given.node_modules)
    roots = given.root or ([] if given.activemq else [Path("/")])
    brokers = [partial(rabbitmq, root) for root in roots if (root / RABBITMQ).is_file()]
    brokers += [partial(activemq, given.activemq)] if given.activemq else []
    if not brokers or not shutil.which("dumpcap"):
        print("No broker, or no dumpcap, on this machine: nothing was compared", file=sys.stderr)
        return 2
    print(f"Clients: {', '.join(libraries)}")
    wrong = 0
    with ExitStack() as stack:
        keep = given.keep or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        for turn, started in enumerate(brokers):
            folder = keep / f"broker-{turn}"
            folder.mkdir(parents=True)
            port = given.port + 100 * turn
            with started(folder, port) as broker:
                print(f"{broker.name} on port {port}")
                with captured(folder / "capture.pcap", port):
                    crew = Crew(broker, folder, given.node_modules, given.largest)
                    play(crew, libraries, given.messages, given.busy)
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
