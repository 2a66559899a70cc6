"""Record changes between real clients and a real broker: a capture before and one after each, and a manifest.

    chrt --rr 50 python tests/diff/record_changes.py FOLDER [--only GLOB] [--rhea NODE_MODULES] [--qpid PYTHON]

Needs what `tests/support/recording.py` needs, rhea for some changes, and for 0-10 a Python 2.7 that has qpid-python;
`changes.py` has the changes, `workloads.py` what the applications do. With a real-time priority other work on the
machine does not disturb the times.
"""

from __future__ import annotations

import argparse
import contextlib
import fnmatch
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "support")]

from changes import ALIKE, BASELINES, CHANGES, Change, alike  # noqa: E402
from recording import Broker, captured, recording  # noqa: E402
from workloads import DELAYED_PORT, PORT, QPID_PORT, Options, Relay, Tools, qpid_broker, run  # noqa: E402


def record(broker: Broker, path: Path, options: Options, tools: Tools, of: Change | None) -> None:
    """Secrets of TLS connections are written into the capture."""
    for vhost in ("/", "orders"):
        for queue in broker.ctl("-q", "list_queues", "-p", vhost, "name", "--no-table-headers").split():
            broker.ctl("delete_queue", "-p", vhost, queue)
    keys = Path(tools.keys)
    keys.write_text("")
    with contextlib.ExitStack() as stack:
        qpid = options.library == "qpid"
        if qpid:
            stack.enter_context(qpid_broker(options, tools))
        if options.port == DELAYED_PORT:
            relay = Relay(
                QPID_PORT if qpid else PORT, of.delay if of else 0.0, options.jitter, options.cut,
                str(broker.folder / "broker") if options.tls else "", tools.keys,
            )  # fmt: skip
            stack.enter_context(relay.running())
        stack.enter_context(captured(path))
        if options.rate:
            stack.enter_context(narrow(options.rate))
        if options.loss:
            stack.enter_context(lossy(options.loss))
        if of and of.alarm:
            stack.enter_context(
                meanwhile(broker, ("set_disk_free_limit", "1000000GB"), ("set_disk_free_limit", "50MB"))
            )
        if of and of.meanwhile:
            stack.enter_context(meanwhile(broker, of.meanwhile))
        run(options, tools)
    if options.tls:
        clear = path.with_suffix(".encrypted")
        path.rename(clear)
        subprocess.run(["editcap", "--inject-secrets", f"tls,{keys}", str(clear), str(path)], check=True)
        clear.unlink()
    keys.unlink()


@contextlib.contextmanager
def narrow(rate: str) -> Iterator[None]:
    """Either direction of the cable carries so much."""
    cables = (("fc", "vc"), ("fb", "vb"))
    for space, link in cables:
        words = f"tc -n {space} qdisc add dev {link} root tbf rate {rate} burst 3000 latency 500ms"
        subprocess.run(words.split(), check=True)
    try:
        yield
    finally:
        for space, link in cables:
            subprocess.run(f"tc -n {space} qdisc del dev {link} root".split(), check=True)


@contextlib.contextmanager
def lossy(share: float) -> Iterator[None]:
    """Some packets of clients are lost."""
    rule = f"OUTPUT -p tcp -m statistic --mode random --probability {share} -j DROP"
    subprocess.run(["iptables", "-A", *rule.split()], check=True)
    try:
        yield
    finally:
        subprocess.run(["iptables", "-D", *rule.split()], check=True)


@contextlib.contextmanager
def meanwhile(broker: Broker, *commands: Sequence[str]) -> Iterator[None]:
    """An operator does something soon after the start, each two seconds after the one before."""

    def do() -> None:
        for each in commands:
            time.sleep(2)
            broker.ctl(*each)

    thread = threading.Thread(target=do)
    thread.start()
    try:
        yield
    finally:
        thread.join()


def main() -> None:
    parser = argparse.ArgumentParser(description="Record changes.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="*", help="names of changes, as globs with commas between them")
    parser.add_argument("--rhea", default="", help="a folder node_modules that has rhea")
    parser.add_argument("--qpid", default="", help="a Python 2.7 that has qpid-python")
    given = parser.parse_args()
    releases = given.folder / "releases"
    tools = Tools(given.rhea, given.qpid, str(given.folder / "keys"), str(releases))
    for library, release in {(each.after.library, each.after.release) for each in CHANGES if each.after.release}:
        if not (target := releases / f"{library}-{release}").exists():
            pip = [sys.executable, "-m", "pip", "install", "-q", "--target", str(target), f"{library}=={release}"]
            subprocess.run(pip, check=True)
    manifest: dict[str, Any] = {"changes": {}, "alike": []}
    with recording(given.folder, manifest) as (broker, save):
        broker.set_up()
        broker.ctl("set_permissions", "alice", ".*", ".*", ".*")
        broker.ctl("set_permissions", "-p", "orders", "guest", ".*", ".*", ".*")
        known: dict[str, str] = {}

        def recorded(name: str, options: Options, of: Change | None = None) -> str:
            if of is None and repr(options) in known:
                return known[repr(options)]
            started = time.monotonic()
            record(broker, given.folder / f"{name}.pcap", options, tools, of)
            print(f"{name} {time.monotonic() - started:.1f} s", flush=True)
            if of is None:
                known[repr(options)] = f"{name}.pcap"
            return f"{name}.pcap"

        def wanted(name: str) -> bool:
            return any(fnmatch.fnmatch(name, each) for each in given.only.split(","))

        for library, options in BASELINES.items():
            for how, times in ALIKE.items():
                if wanted(f"alike-{library}-{how}"):
                    name = recorded(f"alike-{library}-{how}", alike(options, times))
                    manifest["alike"] = sorted({*manifest["alike"], name})
        for change in CHANGES:
            if not wanted(change.name):
                continue
            try:
                before = recorded(f"{change.name}-before", change.before)
                if change.broker:
                    broker.eval(change.broker)
                if change.ctl:
                    broker.ctl(*change.ctl)
                if change.certificate:
                    broker.certify(change.certificate)
                after = recorded(f"{change.name}-after", change.after, change)
            except Exception as error:
                print(f"{change.name}: {type(error).__name__}: {error}", flush=True)
                continue
            finally:
                if change.undo:
                    broker.eval(change.undo)
                if change.undo_ctl:
                    broker.ctl(*change.undo_ctl)
                if change.certificate:
                    broker.certify()
            manifest["changes"][change.name] = {
                "done": change.done, "measures": change.measures, "before": before, "after": after
            }  # fmt: skip
            save()
        save()


if __name__ == "__main__":
    main()
