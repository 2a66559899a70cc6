"""Who may read what Python workers write, where they run on the machine of the person who started the job.

The JVM there has a umask that keeps everything from others (`pipeline.output.scratch`), and its Python workers would
inherit it: compiled kernels, say, could not be shared. So they take the person's umask back, and what holds bytes of
captures they make `private`, until it is published."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress

PERSONS = "WIREHARE_UMASK"  # octal, and the process that sets it for the workers of such a JVM


def told() -> str:
    """What PERSONS is set to by this process."""
    return f"{umask():o} {os.getpid()}"


def take_back() -> None:
    """In such a worker: have the umask of the person again."""
    persons, _, teller = os.environ.get(PERSONS, "").partition(" ")
    if persons and int(teller) != os.getpid():
        os.umask(int(persons, 8))


@contextmanager
def private() -> Iterator[None]:
    """What such a worker makes inside only its user can read."""
    if PERSONS not in os.environ:
        yield
        return
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)


def umask() -> int:
    """The umask of this process."""
    with suppress(OSError), open("/proc/self/status", encoding="utf-8") as status:  # Linux: nothing is changed
        found = re.search(r"^Umask:\s*([0-7]+)$", status.read(), re.MULTILINE)
        if found:
            return int(found[1], 8)
    current = os.umask(0o077)
    os.umask(current)
    return current
