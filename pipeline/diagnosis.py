"""What a machine lacks to decode fast, and what a capture lacks to be understood: each a line with its remedy.

The checks of a capture read its tables, the findings of group CAP, and its packet headers once more.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from codec.compiler import CACHE_DIR, bases
from pipeline.output.formatting import plural, size

if TYPE_CHECKING:
    from pipeline.explore.duckdb_tables import Session
    from udfs.source.capture_bytes import CaptureFile

OK, NOTE, PROBLEM = "ok", "note", "problem"

TESTED_PYTHONS = ((3, 11), (3, 13))
PACKAGES = ("pyspark", "numba", "duckdb", "pyarrow", "numpy")
JAVA_HELP = "Debian, Ubuntu: apt install default-jre-headless; Fedora: dnf install java-latest-openjdk-headless"
MEMORY_FACTS = Path("/proc/meminfo")
MOUNTS = Path("/proc/self/mounts")
REMOTE_SYSTEMS = ("nfs", "cifs", "smb", "fuse.sshfs", "9p", "ceph", "glusterfs", "lustre")
SCRATCH_BYTES = 2 << 30  # free for temporary files

# Rules of the audit about the capture itself; of the others of the group the result does not suffer.
DAMAGING = ("CAP-01", "CAP-03", "CAP-04")
CLOCK_STEP_NS = 1_000_000_000  # that packets of several interfaces or queues are out of order is no step
LARGEST_FRAME = 9216 + 18  # bytes: a jumbo frame with its Ethernet header
PORTS_NAMED = 3


class Check(NamedTuple):
    """`state`: OK, NOTE or PROBLEM; `about`: what was checked; `found`; `remedy`: what to do, if anything."""

    state: str
    about: str
    found: str
    remedy: str = ""


def machine(compile_command: str) -> Iterator[Check]:
    """What this machine has. `compile_command`: compiles the kernels."""
    yield _python()
    yield _packages()
    yield _kernels(compile_command)
    yield _java()
    yield _memory()
    yield _scratch()


def _python() -> Check:
    release = sys.version_info[:2]
    found = ".".join(map(str, sys.version_info[:3]))
    if release in TESTED_PYTHONS:
        return Check(OK, "Python", found)
    tested = " or ".join(".".join(map(str, each)) for each in TESTED_PYTHONS)
    return Check(NOTE, "Python", f"{found}, which is not tested", f"use {tested}")


def _packages() -> Check:
    found, missing = [], []
    for name in PACKAGES:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            missing.append(name)
    if missing:
        return Check(PROBLEM, "packages", f"{', '.join(missing)} not installed", f"pip install {' '.join(missing)}")
    return Check(OK, "packages", ", ".join(found))


def _kernels(compile_command: str) -> Check:
    from codec.compiler.kernel import all_compiled
    from codec.compiler.levels import level

    if all_compiled():
        found = level()
        return Check(OK, "kernels", f"compiled for {found.name}, by the wheel" if found else "compiled")
    writable = [base for base in bases() if _writable(base)]
    if not writable:
        remedy = f"set {CACHE_DIR} to a directory of your own, then: {compile_command}"
        return Check(PROBLEM, "kernels", "not compiled, and no directory to store them can be written", remedy)
    remedy = f"{compile_command} (minutes, once)"
    return Check(PROBLEM, "kernels", "not compiled: small captures are decoded slowly, large ones wait", remedy)


def _writable(directory: Path) -> bool:
    """Whether files can be made in the directory, or it can be made."""
    existing = next((each for each in (directory, *directory.parents) if each.exists()), directory)
    return os.access(existing, os.W_OK)


def _java() -> Check:
    from pipeline.run.session import OLDEST_JAVA, java_version

    found = java_version()
    if found is None:
        return Check(NOTE, "Java", "none; only Spark needs it", f"for Spark: {JAVA_HELP}, or set JAVA_HOME")
    if found < OLDEST_JAVA:
        remedy = f"for Spark: {JAVA_HELP}, or set JAVA_HOME"
        return Check(NOTE, "Java", f"{found}; Spark needs {OLDEST_JAVA} or later", remedy)
    return Check(OK, "Java", str(found))


def available_memory() -> int | None:
    """Bytes that programs can still have, of the machine; None where the system does not say."""
    try:
        lines = MEMORY_FACTS.read_text().splitlines()
    except OSError:
        return None
    kib = next((line.split()[1] for line in lines if line.startswith("MemAvailable:")), None)
    return int(kib) * 1024 if kib else None


def _memory() -> Check:
    from pipeline.run.local_processes import PROCESS_MEMORY, memory_limit, most_processes

    whole, processes = memory_limit(), most_processes()
    free = min(whole, available_memory() or whole)
    found = f"{size(whole)}, {size(free)} free; {processes} processes decode a large capture"
    if free < PROCESS_MEMORY:
        return Check(PROBLEM, "memory", found, f"end other programs: a process takes up to {size(PROCESS_MEMORY)}")
    if free < processes * PROCESS_MEMORY:
        return Check(NOTE, "memory", found, f"end other programs: each process takes up to {size(PROCESS_MEMORY)}")
    return Check(OK, "memory", found)


def _scratch() -> Check:
    from pipeline.run import scratch

    directory = os.path.dirname(scratch.directories({}).partition(",")[0])
    try:
        free = shutil.disk_usage(directory).free
    except OSError as error:
        return Check(PROBLEM, "temporary files", f"{directory}: {error.strerror}", "set TMPDIR to another directory")
    system = file_system(directory)
    found = f"{directory} has {size(free)} free" + (f" ({system})" if system else "")
    if free < SCRATCH_BYTES:
        return Check(PROBLEM, "temporary files", found, "free space there, or set TMPDIR to another directory")
    if system.startswith(REMOTE_SYSTEMS):
        return Check(NOTE, "temporary files", found, "set TMPDIR to a disk of this machine, which is faster")
    return Check(OK, "temporary files", found)


def file_system(directory: str) -> str:
    """The type of the file system of a directory, as Linux calls it; empty where that is not known."""
    try:
        lines = [line.split() for line in MOUNTS.read_text().splitlines()]
    except OSError:
        return ""
    path = os.path.realpath(directory)
    mounts = [
        (mount, kind) for _, mount, kind, *_ in lines if path == mount or path.startswith(mount.rstrip("/") + "/")
    ]
    return max(mounts, key=lambda each: len(each[0]), default=("", ""))[1]


def capture(
    session: Session, paths: Mapping[str, Sequence[str]], files: Iterable[CaptureFile], key_logs: bool
) -> Iterator[Check]:
    """What the captures `files` lack, whose tables are in `session`, in the Parquet files `paths` by table. `key_logs`:
    whether there were any."""
    yield from _files(session)
    connections = _rows(
        session,
        "SELECT content = 'amqp' AS amqp, tls.mode != 'none' AS encrypted, coalesce(tls.decrypted, false) AS decrypted,"
        " undecoded_reason, server_port, server_ip FROM connections",
    )
    yield _amqp(session, connections)
    yield from _encryption(connections, key_logs)
    yield from _findings(paths)
    loopback = all(row["server_ip"].startswith("127.") or row["server_ip"] == "::1" for row in connections)
    yield from _packets(files, loopback)


def _rows(session: Session, query: str) -> list[dict[str, Any]]:
    return [dict(zip(names, row, strict=True)) for names, rows in session.run(query) for row in rows]


def _files(session: Session) -> Iterator[Check]:
    """How the files were recorded, and whether they are whole."""
    for row in _rows(session, "SELECT * FROM captures ORDER BY capture_file"):
        name = os.path.basename(row["capture_file"])
        if row["error"]:
            yield Check(PROBLEM, name, row["error"], "copy the capture again, or repair it: pcapfix")
        elif row["truncated"]:
            found = f"{row['format']}, {plural(row['packets'], 'packet')}; ends inside a record"
            yield Check(NOTE, name, found, "nothing, if it was still being written; else copy it again")
        else:
            yield Check(OK, name, f"{row['format']}, {plural(row['packets'], 'packet')}")
        if row["dropped"]:
            yield Check(
                PROBLEM,
                name,
                f"the capturing machine lost {plural(row['dropped'], 'packet')}",
                "enlarge its buffer: tcpdump -B 65536; write to a fast disk; filter: tcp port 5672",
            )


def _amqp(session: Session, connections: Sequence[Mapping[str, Any]]) -> Check:
    """Whether there is AMQP, or what there is instead."""
    amqp = sum(bool(row["amqp"]) for row in connections)
    if amqp:
        return Check(OK, "AMQP", f"in {amqp} of {plural(len(connections), 'connection')}")
    if not connections:
        skipped = Counter[str]()
        for row in _rows(session, "SELECT skipped_packets FROM captures"):
            skipped.update(row["skipped_packets"] or {})
        seen = ", ".join(f"{reason} {count}" for reason, count in skipped.most_common(PORTS_NAMED))
        found = "none, and no TCP connection" + (f"; packets: {seen}" if seen else "")
        return Check(PROBLEM, "AMQP", found, "capture the host and the interface of the broker: tcpdump -i any")
    if any(row["encrypted"] for row in connections):
        return Check(NOTE, "AMQP", f"none in clear, in {plural(len(connections), 'connection')}")
    ports = Counter(row["server_port"] for row in connections).most_common(PORTS_NAMED)
    found = (
        f"none in {plural(len(connections), 'connection')}; most to port {', '.join(str(port) for port, _ in ports)}"
    )
    return Check(PROBLEM, "AMQP", found, "capture the port of the broker: tcp port 5672 or tcp port 5671")


def _encryption(connections: Sequence[Mapping[str, Any]], key_logs: bool) -> Iterator[Check]:
    """Whether TLS was decrypted, and the reason if it was not."""
    encrypted = [row for row in connections if row["encrypted"]]
    closed = [row for row in encrypted if not row["decrypted"]]
    if not encrypted:
        if key_logs:
            yield Check(NOTE, "key log", "not needed: no connection is encrypted")
        return
    total = plural(len(encrypted), "TLS connection")
    if not closed:
        yield Check(OK, "TLS", f"{total}, decrypted")
        return
    reasons = Counter(row["undecoded_reason"] or "not known" for row in closed)
    why = ", ".join(f"{reason} {count}" for reason, count in reasons.most_common())
    if key_logs and reasons["no secrets"] == len(encrypted):
        remedy = "log the secrets of these connections: start the client with SSLKEYLOGFILE before it connects"
        yield Check(PROBLEM, "key log", f"matches none of {total}", remedy)
    elif reasons["no secrets"]:
        remedy = "give the secrets: --keylog FILE, as SSLKEYLOGFILE makes it (docs/tls.md)"
        yield Check(PROBLEM, "TLS", f"{len(closed)} of {total} encrypted: {why}", remedy)
    else:
        remedy = "capture from the beginning of the connections (docs/tls.md)"
        yield Check(PROBLEM, "TLS", f"{len(closed)} of {total} not decrypted: {why}", remedy)


def _findings(paths: Mapping[str, Sequence[str]]) -> Iterator[Check]:
    """What the audit finds about the capture itself."""
    from pipeline.audit import findings_in
    from pipeline.audit.catalogue import catalogue

    found = findings_in(paths, rules=("CAP",)).select(["rule_id", "connection_id"]).to_pylist()
    pairs = {(row["rule_id"], row["connection_id"]) for row in found}
    # The ends of packets that were cut are missing, too.
    pairs -= {("CAP-01", connection) for rule, connection in pairs if rule == "CAP-04"}
    for rule, connections in sorted(Counter(rule for rule, _ in pairs).items()):
        entry = catalogue()[rule]
        state = PROBLEM if rule in DAMAGING else NOTE
        text = f"{entry.summary} {plural(connections, 'connection')}"
        yield Check(state, rule, text, entry.remedy)


def _packets(files: Iterable[CaptureFile], loopback: bool) -> Iterator[Check]:
    """Steps of the clock, and packets that were recorded before the network card cut them."""
    from codec.compiler.limits import LIMITS
    from codec.net.layers import Filter
    from udfs.source.splits import Account, Split, read_blocks

    for file in files:
        largest = steps = back = packets = 0
        before: int | None = None
        for block in read_blocks(Split(file), Account(file.name, file.size), LIMITS.block_bytes, Filter()):
            times = block.records["ts_ns"]
            begins = int(times[0]) if before is None else before
            falls = -(times - [begins, *times[:-1]])
            steps += int((falls >= CLOCK_STEP_NS).sum())
            back = max(back, int(falls.max()))
            packets += int((block.records["wire_len"] > LARGEST_FRAME).sum())
            largest = max(largest, int(block.records["wire_len"].max()))
            before = int(times[-1])
        name = os.path.basename(file.name)
        if steps:
            yield Check(
                PROBLEM,
                name,
                f"times go back {steps} times, by up to {back / 1e9:.1f} s: durations across that are wrong",
                "keep the clock of the capturing machine in step (chrony slews it); sort joined captures: reordercap",
            )
        if packets and not loopback:
            yield Check(
                NOTE,
                name,
                f"{plural(packets, 'packet')} larger than any Ethernet frame, up to {size(largest)}: the network card "
                "joins or cuts them",
                "nothing for decoding; to see them as they were on the wire: ethtool -K eth0 tso off gso off gro off",
            )
