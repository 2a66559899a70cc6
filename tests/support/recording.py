"""A network of two namespaces and a RabbitMQ node in one of them, for recordings of real clients and brokers.

    with recording(folder, manifest) as (broker, save):     # in namespace fc; the broker is in fb
        with captured(path): ...
        save()                                              # the manifest

Needs root, iproute2, iptables, dumpcap and RabbitMQ from the system's packages.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

CLIENT, BROKER = "10.9.0.1", "10.9.0.2"
BROKER_SCRIPTS = Path("/usr/lib/rabbitmq/bin")
INSIDE = "WIREHARE_INSIDE_OF_NAMESPACE"
CONFIG = """listeners.tcp.default = 5672
listeners.ssl.default = 5671
ssl_options.certfile = {folder}/broker.pem
ssl_options.keyfile = {folder}/broker.key
loopback_users = none
heartbeat = 60
log.file.level = warning
"""


def run(*words: str, check: bool = True) -> str:
    return subprocess.run(words, check=check, capture_output=True, text=True).stdout


@contextlib.contextmanager
def network() -> Iterator[None]:
    """Two namespaces, fc and fb, with a cable between them."""
    for name in ("fc", "fb"):
        run("ip", "netns", "del", name, check=False)
        run("ip", "netns", "add", name)
    run("ip", "link", "add", "vc", "netns", "fc", "type", "veth", "peer", "name", "vb", "netns", "fb")
    for name, link, address in (("fc", "vc", CLIENT), ("fb", "vb", BROKER)):
        run("ip", "-n", name, "addr", "add", f"{address}/24", "dev", link)
        for device in ("lo", link):
            run("ip", "-n", name, "link", "set", device, "up")
    try:
        yield
    finally:
        for name in ("fc", "fb"):
            run("ip", "netns", "del", name, check=False)


class Broker:
    """A RabbitMQ node in namespace fb."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = os.environ | {
            "HOME": str(folder),
            "RABBITMQ_NODENAME": "faults@localhost",
            "RABBITMQ_MNESIA_BASE": str(folder / "data"),
            "RABBITMQ_LOG_BASE": str(folder / "log"),
            "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
        }
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "plugins").write_text("[rabbitmq_amqp1_0].")
        (folder / "rabbitmq.conf").write_text(CONFIG.format(folder=folder))
        self._write_certificate("broker")

    def _write_certificate(self, name: str) -> None:
        run(
            "openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={name}",
            "-keyout", str(self.folder / "broker.key"), "-out", str(self.folder / "broker.pem"),
        )  # fmt: skip

    def certify(self, name: str = "broker") -> None:
        """Give the running broker a certificate of this issuer."""
        self._write_certificate(name)
        self.eval("ssl:clear_pem_cache().")

    def _in_place(self, *words: str) -> list[str]:
        return ["ip", "netns", "exec", "fb", *words]

    def start(self) -> None:
        with (self.folder / "server.log").open("ab") as log:
            self.process = subprocess.Popen(
                self._in_place(str(BROKER_SCRIPTS / "rabbitmq-server")), env=self.environment, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip
        until = time.monotonic() + 180
        while True:
            try:
                self.ctl("await_startup")
                return
            except RuntimeError:
                if time.monotonic() > until:
                    raise
            time.sleep(1)

    def set_up(self) -> None:
        self.ctl("add_user", "alice", "secret")
        self.ctl("add_vhost", "orders")
        self.ctl("set_permissions", "alice", "^alice.*", "^alice.*", "^alice.*")
        self.ctl("add_user", "nobody", "nothing")

    def ctl(self, *words: str, check: bool = True) -> str:
        command = self._in_place(str(BROKER_SCRIPTS / "rabbitmqctl"), "-n", "faults@localhost", *words)
        ended = subprocess.run(command, env=self.environment, capture_output=True, text=True, check=False)
        if check and ended.returncode:
            raise RuntimeError(f"rabbitmqctl {words}: {ended.stdout}{ended.stderr}")
        return ended.stdout

    def eval(self, code: str) -> str:
        return self.ctl("eval", code)

    def signal(self, number: int) -> None:
        """Send a signal to the Erlang process."""
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                if b"beam.smp" in (words := path.read_bytes()) and str(self.folder).encode() in words:
                    os.kill(int(path.parent.name), number)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self.process.wait()

    def stop(self) -> None:
        self.ctl("stop", check=False)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(30)
        self.signal(signal.SIGKILL)


@contextlib.contextmanager
def captured(path: Path) -> Iterator[None]:
    """Capture what passes at the broker while the body runs."""
    dumpcap = subprocess.Popen(
        ["ip", "netns", "exec", "fb", "dumpcap", "-q", "-P", "-i", "vb", "-f", "tcp", "-w", str(path)],
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert dumpcap.stderr is not None
    for line in dumpcap.stderr:
        if line.startswith("File:"):
            break
    time.sleep(0.3)
    try:
        yield
    finally:
        time.sleep(0.5)
        dumpcap.send_signal(signal.SIGINT)
        dumpcap.wait()


@contextlib.contextmanager
def recording(folder: Path, manifest: dict[str, Any]) -> Iterator[tuple[Broker, Callable[[], None]]]:
    """Run the program again in namespace fc, then with a broker; `folder` gets `manifest`, which continues the one
    that is there. Yields the broker, and what writes the manifest."""
    if os.environ.get(INSIDE) is None:
        with network():
            ended = subprocess.run(
                ["ip", "netns", "exec", "fc", sys.executable, *sys.argv], env=os.environ | {INSIDE: "1"}, check=False
            )
        sys.exit(ended.returncode)
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "MANIFEST.json"
    if file.exists():
        manifest |= json.loads(file.read_text())
    work = folder / "broker"
    shutil.rmtree(work, ignore_errors=True)
    broker = Broker(work)
    broker.start()
    try:
        yield broker, lambda: _write(file, manifest)
    finally:
        broker.stop()
        shutil.rmtree(work, ignore_errors=True)


def _write(file: Path, manifest: dict[str, Any]) -> None:
    file.write_text(json.dumps(manifest, indent=1) + "\n")
