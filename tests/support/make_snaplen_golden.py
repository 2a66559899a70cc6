"""What tshark shows of captures that a snaplen of 160 bytes has cut: `python tests/support/make_snaplen_golden.py`.

It writes captures/snaplen160.json: of each capture the column Info of its AMQP packets. Needs tshark 4.0 and editcap.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from pathlib import Path

CAPTURES = Path(__file__).parents[1] / "captures"
GOLDEN = CAPTURES / "snaplen160.json"
SNAPLEN = 160
NAMES = (
    "08_amqplib_session.pcap", "09_qpid_client.pcap", "091_confirms_and_return.pcap",
    "091_declare_publish_consume_ack.pcap", "091_field_tables.pcap", "010_cpp_send_receive.pcap",
    "010_messaging_api_python.pcapng", "10_qpidd_all_types.pcap", "10_qpidd_outcomes_drain.pcap",
    "10_rabbitmq_rhea_send_receive.pcap", "10_rabbitmq_settle_modes.pcap",
)  # fmt: skip


def info_columns(path: Path) -> dict[str, str]:
    """Packet number -> Info, of packets in which tshark sees AMQP."""
    command = ["tshark", "-r", str(path), "-Y", "amqp", "-T", "fields", "-e", "frame.number", "-e", "_ws.col.Info"]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    return {number: info.strip() for number, info in (line.split("\t", 1) for line in lines)}


def main() -> None:
    golden = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in NAMES:
            cut = Path(folder) / name
            subprocess.run(["editcap", "-s", str(SNAPLEN), str(CAPTURES / name), str(cut)], check=True)
            golden[name] = info_columns(cut)
    GOLDEN.write_text(json.dumps(golden, indent=0, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
