"""Record changes between real clients and a real broker: a capture before and one after each, and a manifest.

    python tests/diff/record_changes.py FOLDER [--only GLOB] [--rhea NODE_MODULES]

Needs what `tests/support/recording.py` needs, and for one change rhea. `changes.py` has the
changes, `workloads.py` what the applications do.
"""

from __future__ import annotations

import argparse
import contextlib
import fnmatch
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "support")]

from changes import ALIKE, BASELINES, CHANGES, alike  # noqa: E402
from recording import Broker, captured, recording  # noqa: E402
from workloads import DELAYED_PORT, Options, delayed, run  # noqa: E402


def record(broker: Broker, path: Path, options: Options, rhea: str, delay: float) -> None:
    for vhost in ("/", "orders"):
        broker.ctl("delete_queue", "-p", vhost, options.queue, check=False)
    with contextlib.ExitStack() as stack:
        if options.port == DELAYED_PORT:
            stack.enter_context(delayed(delay))
        stack.enter_context(captured(path))
        run(options, rhea)


def main() -> None:
    parser = argparse.ArgumentParser(description="Record changes.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="*", help="names of changes, as globs with commas between them")
    parser.add_argument("--rhea", default="", help="a folder node_modules that has rhea")
    given = parser.parse_args()
    manifest: dict[str, Any] = {"changes": {}, "alike": []}
    with recording(given.folder, manifest) as (broker, save):
        broker.set_up()
        broker.ctl("set_permissions", "alice", ".*", ".*", ".*")
        broker.ctl("set_permissions", "-p", "orders", "guest", ".*", ".*", ".*")
        known: dict[tuple[str, float], str] = {}

        def recorded(name: str, options: Options, delay: float = 0.0, share: bool = True) -> str:
            if share and (repr(options), delay) in known:
                return known[repr(options), delay]
            started = time.monotonic()
            record(broker, given.folder / f"{name}.pcap", options, given.rhea, delay)
            print(f"{name} {time.monotonic() - started:.1f} s", flush=True)
            if share:
                known[repr(options), delay] = f"{name}.pcap"
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
                after = recorded(f"{change.name}-after", change.after, change.delay, share=False)
            except Exception as error:
                print(f"{change.name}: {type(error).__name__}: {error}", flush=True)
                continue
            finally:
                if change.undo:
                    broker.eval(change.undo)
                if change.undo_ctl:
                    broker.ctl(*change.undo_ctl)
            manifest["changes"][change.name] = {
                "done": change.done, "measures": change.measures, "before": before, "after": after
            }  # fmt: skip
            save()
        save()


if __name__ == "__main__":
    main()
