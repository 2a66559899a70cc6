"""A signal at a moment that no test from outside can hit for certain."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WHILE_IT_BEGINS = """
import os, signal, threading, time
from jobs import running

class Interrupted(threading.Thread):
    def start(self):
        super().start()
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0)  # the signal is handled here at the latest, before whoever called start is told

def work():
    time.sleep(0.3)
    print("removed what was left aside", flush=True)

running.Thread = Interrupted
try:
    with running.signals_handled():
        running.run_interruptibly(work)
except running.Stopped:
    print("stopped", flush=True)
"""


def test_work_that_a_signal_meets_as_it_begins_is_waited_for() -> None:
    ran = subprocess.run([sys.executable, "-c", WHILE_IT_BEGINS], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (ran.stdout, ran.stderr) == ("removed what was left aside\nstopped\n", "")
