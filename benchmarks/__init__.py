"""Measurements: a deterministic capture of a chosen size, and our times beside tshark's on the same file."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent.parent / "tests" / "support"))  # encoders, certificates
