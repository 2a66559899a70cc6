"""A signal at a moment that no test from outside can hit for certain."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WHILE_IT_BEGINS = """
import os, signal, threading, time
from jobs.terminal import running

class Interrupted(threading.Thread):
    def start(self):
        super().start()
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0)  # the signal is handled here at the latest, before start returns to its caller

def work():
    time.sleep(0.3)
    print("removed scratch files", flush=True)

running.Thread = Interrupted
try:
    with running.signals_handled():
        running.run_interruptibly(work)
except running.Stopped:
    print("stopped", flush=True)
"""


def test_a_signal_during_the_start_waits_for_the_started_work() -> None:
    ran = subprocess.run([sys.executable, "-c", WHILE_IT_BEGINS], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (ran.stdout, ran.stderr) == ("removed scratch files\nstopped\n", "")
