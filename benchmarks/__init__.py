"""Measurements: a deterministic capture of a chosen size, and our times beside tshark's on the same file."""
