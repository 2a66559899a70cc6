"""Captures as rows of packets or of runs of TCP segments: paths, files, splits, columns."""
