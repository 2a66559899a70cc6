"""Record faults between real clients and a real broker: one capture for each, and what was done in a manifest.

    python tests/faults/record.py FOLDER [--only GLOB] [--variants N]

Needs what `tests/support/recording.py` needs. Client and broker have a network namespace each, so that packets can be
dropped and delayed between them; `faults.py` has the faults. The manifest says for each capture what `wirehare explain`
has to find: of a connection its cause, of a queue or message the subject, too.
"""

from __future__ import annotations

import argparse
import fnmatch
import sys
import time
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "support")]

from recording import captured, recording  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(description="Record faults.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="*", help="names of faults, as globs with commas between them")
    parser.add_argument("--variants", type=int, default=3)
    given = parser.parse_args()
    manifest: dict[str, Any] = {}
    with recording(given.folder, manifest) as (broker, save):
        from faults import FAULTS

        broker.set_up()
        for fault in FAULTS:
            if not any(fnmatch.fnmatch(fault.name, each) for each in given.only.split(",")):
                continue
            for variant in range(given.variants):
                name = f"{fault.name}-{variant + 1}.pcap"
                started = time.monotonic()
                try:
                    with captured(given.folder / name):
                        fault.record(broker, variant)
                except Exception as error:
                    print(f"{name}: {type(error).__name__}: {error}", flush=True)
                    continue
                finally:
                    fault.clean_up(broker)
                manifest[name] = {"cause": fault.cause, "subject": fault.subject, "done": fault.done}
                save()
                print(f"{name} {time.monotonic() - started:.1f} s", flush=True)


if __name__ == "__main__":
    main()
